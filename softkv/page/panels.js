/* The panels of one query: the query, the answer, weights, arithmetic. They are filled for each state. */

function make(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, x] of Object.entries(attributes)) {
    if (name.startsWith('on')) made.addEventListener(name.slice(2), x);
    else if (name in made && name !== 'list') made[name] = x;
    else made.setAttribute(name, x);
  }
  made.append(...children);
  return made;
}
/* Put a text into an element, with the number in full for those who point at it. */
function put(place, text, exact) {
  const there = typeof place === 'string' ? byId(place) : place;
  if (there.textContent !== text) there.textContent = text;
  if (exact === undefined || exact === null) delete there.dataset.exact;
  else there.dataset.exact = exact;
}
/* Give an element so many children; existing ones are kept, so that focus is not lost. */
function children(place, count, build) {
  while (place.children.length > count) place.lastChild.remove();
  while (place.children.length < count) place.append(build(place.children.length));
  return [...place.children];
}
const chosen = (list, options, value) => {
  if (list.dataset.of !== JSON.stringify(options)) {
    list.replaceChildren(...options.map(([name, text]) => make('option', { value: name, textContent: text })));
    list.dataset.of = JSON.stringify(options);
  }
  list.value = value;
};

function showQuestion() {
  const { scene, asked, temperature } = now;
  const queries = scene.queries.map((query, i) => [`q${i}`, brief(query.name, 90)]);
  const here = asked.row === null ? `q${scene.queries.indexOf(asked)}` : `i${scene.numbers[asked.row]}`;
  const own = asked.row === null ? ['item', 'a key of the items: click one'] : [here, `the key ${brief(asked.name, 70)}`];
  chosen(byId('query'), mayAsk(scene) ? [...queries, own] : queries, here);
  put('asked', `${asked.row === null ? '' : 'the key of '}“${brief(asked.name, 200)}”`);
  byId('warmth').value = slideOf(temperature);
  const between = `${figure(temperature)}${temperature === scene.temperature ? ', the store’s own' : ''}`;
  const warm = { 0: 'hard: the best takes all', Infinity: 'plain mean: all alike' }[temperature] || between;
  put('temperature', warm, temperature);
  byId('warmth').setAttribute('aria-valuetext', warm);
  byId('heads').hidden = !scene.heads;
  const names = scene.heads ? ['all heads', ...scene.heads.w_q.map((_, i) => `head ${i + 1}`)] : [];
  children(byId('heads'), names.length, (i) => make('button', { onclick: () => go({ head: i - 1 }) })).forEach((button, i) => {
    put(button, names[i]);
    button.setAttribute('aria-pressed', String(now.head === i - 1));
  });
}
const DECADES = 4;
const slideOf = (T) => {
  if (T === 0 || T === Infinity) return T === 0 ? 0 : 1000;
  return Math.round(Math.min(999, Math.max(1, 500 + (500 / DECADES) * Math.log10(T / now.scene.temperature))));
};
const warmthAt = (slide) => {
  if (slide === 0 || slide === 1000) return slide === 0 ? 0 : Infinity;
  return slide === 500 ? null : now.scene.temperature * 10 ** ((slide - 500) * (DECADES / 500));
};

const exactly = (x) => (typeof x === 'object' && x ? JSON.stringify(Array.from(x)) : typeof x === 'number' ? x : null);
const mean = (numbers) => numbers.reduce((sum, x) => sum + x, 0) / numbers.length;
function showAnswer() {
  const { scene, asked, found, heard, head, weights, order, told } = now;
  const shares = scene.kind === 'label' && told.count ? sharesOf(found) : null;
  const spread = found.spread === undefined || told.count < 2 ? '' : `± ${figure(found.spread)}`;
  put('value', told.count ? (shares || [answerOf(scene, found)])[0] : 'nothing: the filter leaves no item', exactly(found.value));
  put('spread', shares ? shares.slice(1).join(', ') : spread, found.spread);
  const one = head < 0 ? heard : [told];
  const [effective, logMass] = [mean(one.map((each) => each.effective)), mean(one.map((each) => each.logMass))];
  put('effective', figure(effective), effective);
  const without = Number.isNaN(logMass);
  put('logmass', without && told.count ? 'none: only the order counts' : figure(logMass), without ? null : logMass);
  put('count', `${counted(told.count)}${told.count < scene.count ? ` of ${counted(scene.count)}` : ''}`, told.count);
  const all = scene.total > scene.count ? `All ${counted(scene.total)} items` : 'The store itself';
  put('whole', asked.facts && !live ? `${all}, at its own temperature: ${harmless(asked.value)} (${harmless(asked.facts)}).` : '');
  showWays(now.exact, weights, order);
  if (live) showOwn();
}
function exactOf(scene, asked) {
  if (asked.text !== null) return scene.keys.indexOf(asked.name); // cut as keys are
  if (asked.row !== null) return asked.row;
  if (asked.vector.length !== scene.width) return -1;
  return scene.numbers.findIndex((_, row) => asked.vector.every((x, i) => x === scene.vectors[row * scene.width + i]));
}
function showWays(exact, weights, order) {
  const { scene } = now;
  const k = Math.min(state.k, order.length);
  const best = bestOf(order, weights, k);
  const hard = order.length ? valueOf(scene, order[0]) : 'nothing';
  const top = scene.heads ? null : blend(scene, best.weights);
  const ways = [
    ['exact', exact < 0 ? 'no such key: a dictionary fails' : valueOf(scene, exact), exact < 0 ? 0 : weights[exact], null],
    ['hard', `${hard}`, order.length ? weights[order[0]] : 0, null],
    [`top ${k}`, top ? withSpread(top) : 'not with heads', best.held, top && top.value],
    ['soft', withSpread(now.found), order.length ? 1 : 0, now.found.value],
  ];
  fillTable('ways', ways.map(([name, answer, held, found]) => [[name], [answer, exactly(found)], [percent(held), held]]));
  byId('k').max = scene.count;
  if (document.activeElement !== byId('k')) byId('k').value = state.k;
}
/* Fill a table of three columns: the text of each cell, and its number in full. */
const fillTable = (id, lines) => children(byId(id).tBodies[0], lines.length, threeCells).forEach((line, i) =>
  lines[i].forEach(([text, exact], column) => put(line.cells[column], text, exact)));
const threeCells = () => make('tr', {}, make('th', { scope: 'row' }), make('td'), make('td', { className: 'number' }));
const withSpread = (found) => `${answerOf(now.scene, found)}${found.spread === undefined ? '' : ` ± ${figure(found.spread)}`}`;

const BARS = 12;
/* The heaviest items: those of the whole store if it has answered, otherwise those of the page. */
function heaviest(answer) {
  const { scene, weights, order, temperature } = now;
  if (answer && scene.total > scene.count) {
    return answer.contributors.map((one) => ({
      name: brief(one.text && one.key[0] === '#' ? one.text : one.key, 48),
      weight: temperature === 0 ? 1 : one.weight,
      value: plainly(one.value),
      row: rowOf(scene, one.key),
    }));
  }
  const told = (row) => ({ name: nameOf(scene, row, 48), weight: weights[row], value: valueOf(scene, row, 40), row });
  return order.slice(0, BARS).map(told);
}
function showWeights(looked) {
  const { scene } = now;
  const own = now.head < 0 ? now.own : null; // the store gives the heaviest over all heads, not for one
  const all = heaviest(own);
  const narrow = matchMedia('(max-width: 34rem)').matches;
  byId('bars').classList.toggle('long', narrow || all.some((one) => one.name.length > 28 || one.value.length > 16));
  const parts = () => ['name', 'track', 'share', 'told'].map((name) => make('span', { className: name }));
  const build = () => make('li', {}, make('button', { className: 'bar' }, ...parts()));
  children(byId('bars'), all.length, build).forEach((line, i) => {
    const [name, track, share, told] = line.firstChild.children;
    put(name, all[i].name);
    if (!track.firstChild) track.append(make('i'));
    track.firstChild.style.transform = `scaleX(${all[i].weight})`;
    put(share, percent(all[i].weight), all[i].weight);
    put(told, all[i].value);
    line.firstChild.onclick = () => go({ look: scene.numbers[all[i].row] });
    line.firstChild.disabled = all[i].row < 0;
    line.firstChild.setAttribute('aria-pressed', String(all[i].row === looked));
  });
  const left = 1 - all.reduce((sum, one) => sum + one.weight, 0);
  const others = (own ? scene.total : now.told.count) - all.length;
  const more = state.where && own ? 'others' : `${counted(others)} more`;
  const any = others > 0 && now.told.count;
  const read = own && own.contributors_are ? `; these are ${own.contributors_are}` : '';
  put('rest', any ? `and ${more}, with ${percent(Math.max(0, left))} of the weight together${read}` : '');
}

/* The arithmetic of one weight, with its numbers. */
function stepsOf(row) {
  const { scene, asked, temperature, heard, head, weights } = now;
  const which = Math.max(0, head);
  const [score, told] = [now.scores[which][row], heard[which]];
  const lines = scene.heads
    ? [['score', `(W_q q + b_q) · (W_k k + b_k) / √${scene.heads.w_q[0].length}, of head ${which + 1}`, score]]
    : scoreLines(scene, asked.vector, row, score);
  const highest = told.best === row ? 'the highest score takes all' : 'not the highest score';
  if (temperature === 0) lines.push(['weight', highest, told.weights[row]]);
  else if (temperature === Infinity) lines.push(['weight', `1 / ${counted(told.count)}: all count alike`, told.weights[row]]);
  else {
    const logit = score / temperature;
    const peak = now.scores[which][told.best] / temperature;
    lines.push(['logit', `score ÷ temperature = ${figure(score)} / ${figure(temperature)}`, logit]);
    const power = `e to the power of ${figure(logit)} − ${bracketed(peak)}`;
    const why = 'the highest logit is taken off all, which changes no share';
    lines.push(['exponential', `${power}; ${why}`, Math.exp(logit - peak)]);
    lines.push(['weight', `÷ the sum of all ${counted(told.count)} exponentials, ${figure(told.mass)}`, told.weights[row]]);
  }
  if (scene.heads && head < 0) lines.push(['all heads', `the mean of its weights in ${heard.length} heads`, weights[row]]);
  if (scene.kind === 'number' && !scene.heads) {
    const adds = `weight × value = ${figure(weights[row])} × ${valueOf(scene, row)}`;
    lines.push(['adds', adds, weights[row] * scene.values[row]]);
  } else if (!scene.heads) lines.push(['adds', `${percent(weights[row])} of ${valueOf(scene, row)}`, null]);
  return lines;
}
function scoreLines(scene, query, row, score) {
  const way = scene.compared;
  if (way === 'uniform') return [['score', 'none is asked for: all count alike', 0]];
  const { term } = WAYS[way];
  const sign = term === product ? '×' : '−';
  const name = term === product ? 'q · k' : term === square ? '‖q − k‖²' : '‖q − k‖₁';
  const terms = Array.from(query.slice(0, query.length > 5 ? 3 : 5), (x, i) => {
    const pair = `${figure(x)} ${sign} ${bracketed(scene.vectors[row * scene.width + i])}`;
    return term === square ? `(${pair})²` : term === apart ? `|${pair}|` : pair;
  });
  if (query.length > 5) terms.push(`… ${query.length} terms`);
  const sum = summed(query, scene.vectors, row * scene.width, term);
  const lengths = [lengthOf(query, 0, query.length), scene.lengths[row]];
  const ends = {
    scaled_dot: `q · k / √d = ${figure(sum)} / √${query.length}`,
    cosine: `q · k / (‖q‖ ‖k‖) = ${figure(sum)} / (${figure(lengths[0])} × ${figure(lengths[1])})`,
    gaussian: `−½ ‖q − k‖² = −½ × ${figure(sum)}`,
    laplace: `−‖q − k‖₁ = −${figure(sum)}`,
    student: `−log(1 + ½ ‖q − k‖²) = −log(1 + ½ × ${figure(sum)})`,
  }[way];
  return [[name, terms.join(' + '), sum], ...(ends ? [['score', ends, score]] : [['score', 'q · k itself', score]])];
}
const bracketed = (x) => (x < 0 ? `(${figure(x)})` : figure(x));

function showSteps(row) {
  const [name, value] = row === null ? [] : [nameOf(now.scene, row, 200), valueOf(now.scene, row, 200)];
  put('steps-of', row === null ? 'No item is left to weigh.' : `${name} → ${value}`);
  const lines = row === null ? [] : stepsOf(row);
  fillTable('arithmetic', lines.map(([step, how, x]) => [[step], [how], [x === null ? '' : `= ${figure(x)}`, x]]));
}
