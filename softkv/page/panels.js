/* The panels: what is asked, the answer, weights, arithmetic, evidence, items, lines. They are filled anew for a state. */

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
/* A text, and the number behind it in full, in a place. */
function put(place, text, exact) {
  const there = typeof place === 'string' ? byId(place) : place;
  if (there.textContent !== text) there.textContent = text;
  if (exact === undefined || exact === null) delete there.dataset.exact;
  else there.dataset.exact = exact;
}
/* So many children of a place: those that are there stay, so that whoever has the focus keeps it. */
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
  const own = mayAsk(scene) ? [[asked.row === null ? 'item' : here, asked.row === null ? 'a key of the items: click one' : `the key ${brief(asked.name, 70)}`]] : [];
  chosen(byId('query'), [...queries, ...own], here);
  put('asked', `${asked.row === null ? '' : 'the key of '}“${brief(asked.name, 200)}”`);
  byId('warmth').value = slideOf(temperature);
  const warm = temperature === 0 ? 'hard: the best takes all' : temperature === Infinity ? 'plain mean: all alike' : `${figure(temperature)}${temperature === scene.temperature ? ', the store’s own' : ''}`;
  put('temperature', warm, temperature);
  byId('warmth').setAttribute('aria-valuetext', warm);
  byId('warmth').setAttribute('aria-label', 'Temperature');
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

const mean = (numbers) => numbers.reduce((sum, x) => sum + x, 0) / numbers.length;
function showAnswer() {
  const { scene, asked, found, heard, head, weights, order, told } = now;
  const shares = scene.kind === 'label' && told.count ? sharesOf(found) : null;
  put('value', shares ? shares[0] : told.count ? answerOf(scene, found) : 'nothing: the filter leaves no item', typeof found.value === 'number' ? found.value : found.value ? `[${found.value.join(',')}]` : null);
  put('spread', shares ? shares.slice(1).join(', ') : found.spread === undefined || told.count < 2 ? '' : `± ${figure(found.spread)}`, found.spread);
  const one = head < 0 ? heard : [told];
  const [effective, logMass] = [mean(one.map((each) => each.effective)), mean(one.map((each) => each.logMass))];
  put('effective', figure(effective), effective);
  put('logmass', told.count && Number.isNaN(logMass) ? 'none: only the order counts' : figure(logMass), Number.isNaN(logMass) ? null : logMass);
  put('count', `${counted(told.count)}${told.count < scene.count ? ` of ${counted(scene.count)}` : ''}`, told.count);
  const all = scene.total > scene.count ? `All ${counted(scene.total)} items` : 'The store itself';
  put('whole', asked.facts && !live ? `${all}, at its own temperature: ${harmless(asked.value)} (${harmless(asked.facts)}).` : '');
  showWays(exactOf(scene, asked), weights, order);
  if (live) showOwn();
}
function exactOf(scene, asked) {
  if (asked.text !== null) return scene.keys.indexOf(asked.text);
  if (asked.row !== null) return asked.row;
  return scene.numbers.findIndex((_, row) => asked.vector.length === scene.width && asked.vector.every((x, i) => x === scene.vectors[row * scene.width + i]));
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
  children(byId('ways').tBodies[0], 4, () => make('tr', {}, make('th', { scope: 'row' }), make('td'), make('td', { className: 'number' }))).forEach((line, i) => {
    const [name, answer, held, exactly] = ways[i];
    put(line.cells[0], name);
    put(line.cells[1], answer, typeof exactly === 'number' ? exactly : null);
    put(line.cells[2], percent(held), held);
  });
  byId('k').max = scene.count;
  if (document.activeElement !== byId('k')) byId('k').value = state.k;
}
const withSpread = (found) => `${answerOf(now.scene, found)}${found.spread === undefined ? '' : ` ± ${figure(found.spread)}`}`;

const BARS = 12;
/* The heaviest items: those of the whole store where it has told them, else those of the page. */
function heaviest() {
  const { scene, weights, order, own: ways, temperature } = now;
  if (ways && scene.total > scene.count) {
    const { contributors } = temperature === 0 ? ways.hard : ways.soft;
    return contributors.map((one) => ({ name: brief(one.text && one.key[0] === '#' ? one.text : one.key, 48), weight: temperature === 0 ? 1 : one.weight, value: plainly(one.value), row: scene.keys.indexOf(one.key) }));
  }
  return order.slice(0, BARS).map((row) => ({ name: nameOf(scene, row, 48), weight: weights[row], value: valueOf(scene, row, 40), row }));
}
function showWeights(looked) {
  const { scene } = now;
  const all = heaviest();
  byId('bars').classList.toggle('long', all.some((one) => one.name.length > 28 || one.value.length > 16));
  const build = () => make('li', {}, make('button', { className: 'bar' }, ...['name', 'track', 'share', 'told'].map((name) => make('span', { className: name }))));
  children(byId('bars'), all.length, build).forEach((line, i) => {
    const [name, track, share, told] = line.firstChild.children;
    put(name, all[i].name);
    if (!track.firstChild) track.append(make('i'));
    track.firstChild.style.width = `${100 * all[i].weight}%`;
    put(share, percent(all[i].weight), all[i].weight);
    put(told, all[i].value);
    line.firstChild.onclick = () => go({ look: scene.numbers[all[i].row] });
    line.firstChild.disabled = all[i].row < 0;
    line.firstChild.setAttribute('aria-pressed', String(all[i].row === looked));
  });
  const left = 1 - all.reduce((sum, one) => sum + one.weight, 0);
  const others = (now.own ? scene.total : now.told.count) - all.length;
  put('rest', others > 0 && now.told.count ? `and ${state.where && now.own ? 'others' : `${counted(others)} more`}, with ${percent(Math.max(0, left))} of the weight together` : '');
}

/* How one weight comes about, with its numbers. */
function stepsOf(row) {
  const { scene, asked, temperature, heard, head, weights } = now;
  const which = Math.max(0, head);
  const [score, told] = [now.scores[which][row], heard[which]];
  const lines = scene.heads
    ? [['score', `(W_q q + b_q) · (W_k k + b_k) / √${scene.heads.w_q[0].length}, of head ${which + 1}`, score]]
    : scoreLines(scene, asked.vector, row, score);
  if (temperature === 0) lines.push(['weight', told.best === row ? 'the highest score takes all' : 'not the highest score', told.weights[row]]);
  else if (temperature === Infinity) lines.push(['weight', `1 / ${counted(told.count)}: all count alike`, told.weights[row]]);
  else {
    const logit = score / temperature;
    const peak = now.scores[which][told.best] / temperature;
    lines.push(['logit', `score ÷ temperature = ${figure(score)} / ${figure(temperature)}`, logit]);
    lines.push(['exponential', `e to the power of ${figure(logit)} − ${bracketed(peak)}; the highest logit is taken off all, which changes no share`, Math.exp(logit - peak)]);
    lines.push(['weight', `÷ the sum of all ${counted(told.count)} exponentials, ${figure(told.mass)}`, told.weights[row]]);
  }
  if (scene.heads && head < 0) lines.push(['all heads', `the mean of its weights in ${heard.length} heads`, weights[row]]);
  if (scene.kind === 'number' && !scene.heads) lines.push(['adds', `weight × value = ${figure(weights[row])} × ${valueOf(scene, row)}`, weights[row] * scene.values[row]]);
  else if (!scene.heads) lines.push(['adds', `${percent(weights[row])} of ${valueOf(scene, row)}`, null]);
  return lines;
}
const SIGNS = { dot: ['×', 'q · k'], scaled_dot: ['×', 'q · k'], cosine: ['×', 'q · k'], gaussian: ['−', '‖q − k‖²'], laplace: ['−', '‖q − k‖₁'], student: ['−', '‖q − k‖²'] };
function scoreLines(scene, query, row, score) {
  const way = scene.compared;
  if (way === 'uniform') return [['score', 'none is asked for: all count alike', 0]];
  const { term } = WAYS[way];
  const [sign, name] = SIGNS[way];
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
  if (row === null) {
    put('steps-of', 'No item is left to weigh.');
    byId('arithmetic').tBodies[0].replaceChildren();
    return;
  }
  put('steps-of', `${nameOf(now.scene, row, 200)} → ${valueOf(now.scene, row, 200)}`);
  const lines = stepsOf(row);
  children(byId('arithmetic').tBodies[0], lines.length, () => make('tr', {}, make('th', { scope: 'row' }), make('td'), make('td', { className: 'number' }))).forEach((line, i) => {
    const [name, how, x] = lines[i];
    put(line.cells[0], name);
    put(line.cells[1], how);
    put(line.cells[2], x === null ? '' : `= ${figure(x)}`, x);
  });
}

const NEAR = 8;
/* The items whose keys are nearest to that of one, as the store compares, in all dimensions. */
function neighbours(scene, row) {
  if (scene.heads) return [];
  const key = Float64Array.from(scene.vectors.subarray(row * scene.width, (row + 1) * scene.width));
  const scores = scoresOf(scene.compared, key, scene.vectors, scene.lengths);
  return inOrder(scores, scores).filter((one) => one !== row).slice(0, NEAR).map((one) => [one, scores[one]]);
}
let nearest = { of: null, rows: [] };
function showMap(looked) {
  const { scene, weights } = now;
  if (nearest.of !== looked || nearest.scene !== scene) nearest = { of: looked, scene, rows: looked === null ? [] : neighbours(scene, looked) };
  drawMap(looked, nearest.rows.map(([row]) => row));
  put('map-told', looked === null ? '' : `${nameOf(scene, looked, 100)}: value ${valueOf(scene, looked)}, weight ${percent(weights[looked])}`);
  put('share', `the map shows ${percent(scene.share)} of how keys of ${counted(scene.width)} numbers differ.`);
  showLegend(scene);
  const place = byId('near');
  place.hidden = looked === null;
  if (looked === null || place.dataset.of === `${state.scene} ${looked}`) return;
  place.dataset.of = `${state.scene} ${looked}`;
  const list = make('ol', {}, ...nearest.rows.map(([row, score]) => make('li', {}, make('button', { className: 'plain', textContent: nameOf(scene, row, 60), onclick: () => go({ look: scene.numbers[row] }) }), ` score ${figure(score)}`)));
  const ask = make('button', { className: 'main', id: 'ask-key', textContent: 'Ask with this key', onclick: () => go({ query: `i${scene.numbers[looked]}` }) });
  if (live) [byId('edit-key').value, byId('edit-value').value] = [scene.keys[looked] === null ? `#${scene.numbers[looked]}` : scene.keys[looked], scene.kind === 'vector' ? '' : String(plainValue(scene, looked))];
  const head = make('h3', { textContent: `Nearest keys to ${nameOf(scene, looked, 60)}, in all ${counted(scene.width)} dimensions` });
  place.replaceChildren(...(nearest.rows.length ? [head, list] : []), make('p', {}, ...(mayAsk(scene) ? [ask, ' '] : []), make('button', { textContent: 'Close', onclick: () => go({ look: null }) })));
}
function showLegend(scene) {
  const place = byId('legend');
  if (place.dataset.of === String(state.scene)) return;
  place.dataset.of = String(state.scene);
  const { low, high, hues, others } = scene.colours;
  const swatch = (name, text) => make('span', { className: `swatch ${name.slice(2)}` }, make('i'), text);
  if (low !== undefined) place.replaceChildren('Colour is value: ', make('span', { className: 'ramp' }, figure(low), make('i'), figure(high)));
  else if (hues) place.replaceChildren('Colour is label: ', ...[...hues].map(([code, hue]) => swatch(hue, brief(scene.labels[code], 24))), ...(others ? [swatch('--rest', `${counted(others)} others`)] : []));
  else place.replaceChildren();
}

function showEvidence() {
  const { scene, scores } = now;
  if (!scene.evidence) {
    put('evidence-told', scene.heads ? 'Heads compare in ways of their own, of which no evidence was measured.' : 'One item alone is evidence of nothing.');
    byId('gauge').replaceChildren();
    return;
  }
  const x = weigh(scores[0], scene.temperature, null).logMass;
  const share = shareBelow(scene.evidence, x);
  const words = `This query’s log mass is ${figure(x)}, above that of ${share === 0 ? 'none of ' : share === 1 ? 'all ' : `${percent(share)} of `}${counted(scene.evidence.length)} items that were left out and asked like it.`;
  const means = share === 0 ? ' Nothing here is like it: the answer is a guess.' : share < 0.05 ? ' Little here is like it: do not rely on the answer.' : ' It is like what is stored, so there is something to go by.';
  byId('gauge').replaceChildren(gauge(scene.evidence, x, words));
  put('evidence-told', `${words}${means} Measured at the store’s own temperature, ${figure(scene.temperature)}, over all items of this page.`, share);
}

const ATTEND = 200;
let matrix = { of: null };
function showAttention() {
  const { scene, temperature, seen, head } = now;
  const may = mayAsk(scene);
  put('attention-note', may ? `Each item’s key asks all keys${scene.count > ATTEND ? `; of ${counted(scene.count)} items, the first ${ATTEND}${seen ? ' that the filter leaves' : ''}` : ''}. A line for each that asks, a column for each that answers.` : 'The heads take queries of another width than the keys have, so no key can ask.');
  byId('attend').hidden = !may;
  byId('heat').hidden = byId('causal-label').hidden = !(may && shown.attention);
  byId('attend').setAttribute('aria-expanded', String(may && shown.attention));
  if (!may || !shown.attention) return;
  const of = [state.scene, temperature, JSON.stringify(state.where), head, shown.causal].join();
  if (matrix.of !== of) matrix = { of, lines: attended(scene, temperature, seen, head), cursor: null };
  matrix.frame = drawMatrix(matrix.lines, matrix.cursor);
  tellCell();
}
function attended(scene, temperature, seen, head) {
  const rows = scene.numbers.map((_, row) => row).filter((row) => !seen || seen[row]).slice(0, ATTEND);
  const part = new Float64Array(rows.length * scene.width);
  rows.forEach((row, i) => part.set(scene.vectors.subarray(row * scene.width, (row + 1) * scene.width), i * scene.width));
  const lengths = rows.map((row) => scene.lengths[row]);
  return rows.map((row, i) => {
    const key = part.subarray(i * scene.width, (i + 1) * scene.width);
    const scores = scene.heads ? headScores(scene.heads, key, part, scene.width) : [scoresOf(scene.compared, key, part, lengths)];
    const heard = (head < 0 ? scores : [scores[head]]).map((one) => weigh(one, temperature, shown.causal ? one.map((_, j) => (j <= i ? 1 : 0)) : null));
    return { row, weights: averaged(heard) };
  });
}
function tellCell() {
  if (!matrix.cursor) return put('cell', 'Point at a cell, or move with the arrow keys.');
  const [i, j] = matrix.cursor;
  const [asks, heard] = [matrix.lines[i], matrix.lines[j]];
  return put('cell', `${nameOf(now.scene, asks.row, 60)} gives ${nameOf(now.scene, heard.row, 60)} ${percent(asks.weights[j])} of its weight`, asks.weights[j]);
}

const LISTED = 25;
function showItems() {
  const { scene, weights, seen } = now;
  const fields = new Set();
  for (const payload of scene.payloads) {
    for (const name of Object.keys(payload || {})) if (name[0] !== '$' && hasField(payload, name) && fields.size < 50) fields.add(name);
  }
  const options = [...(scene.kind === 'vector' ? [] : [['$value', 'value']]), ...[...fields].map((name) => [name, brief(name, 30)])];
  const [condition] = Object.entries(state.where || {});
  chosen(byId('field'), options, condition ? condition[0] : byId('field').value || (options[0] || [''])[0]);
  byId('filter').querySelectorAll('label:not(.end), button').forEach((one) => (one.hidden = !options.length));
  put('filtered', state.where ? `${counted(now.told.count)} of ${counted(scene.count)} items meet ${harmless(JSON.stringify(state.where))}; the others take no part.` : '');
  const wanted = shown.find.toLowerCase();
  const rows = scene.numbers.map((_, row) => row).filter((row) => (!seen || seen[row]) && (!wanted || `${scene.keys[row]} ${scene.texts[row] || ''}`.toLowerCase().includes(wanted)));
  const pages = Math.max(1, Math.ceil(rows.length / LISTED));
  shown.page = Math.min(shown.page, pages - 1);
  const here = rows.slice(shown.page * LISTED, (shown.page + 1) * LISTED);
  const build = () => make('tr', {}, make('th', { scope: 'row' }, make('button', { className: 'plain' })), make('td'), make('td'), make('td', { className: 'number' }), make('td', { className: 'number' }));
  children(byId('list').tBodies[0], here.length, build).forEach((line, i) => {
    const row = here[i];
    put(line.cells[0].firstChild, nameOf(scene, row, 80));
    line.cells[0].firstChild.onclick = () => go({ look: scene.numbers[row] });
    put(line.cells[1], valueOf(scene, row, 80));
    put(line.cells[2], scene.payloads[row] === null ? '' : brief(JSON.stringify(scene.payloads[row]), 80));
    const score = now.scores[Math.max(0, now.head)][row];
    put(line.cells[3], figure(score), score);
    put(line.cells[4], percent(weights[row]), weights[row]);
  });
  put('where-in', rows.length ? `${counted(shown.page * LISTED + 1)} to ${counted(shown.page * LISTED + here.length)} of ${counted(rows.length)}` : 'no item');
  byId('before').disabled = shown.page === 0;
  byId('after').disabled = shown.page >= pages - 1;
}

const LINES = { link: 'this state', python: 'Python', command: 'shell', curl: 'curl' };
function showLines() {
  const { scene, asked, temperature } = now;
  const found = { link: location.href.split('#')[0] + linkOf(state).replace(/^#$/, ''), ...(scene.example ? { command: `softkv demo ${scene.example}` } : linesOf(scene, asked, temperature, state.where)) };
  put('lines-note', scene.example ? 'A command tells this example with all its code.' : `These ask the store${scene.total > scene.count ? `, all ${counted(scene.total)} items of it,` : ''} what is asked here${scene.heads ? '; heads are those the page was written with' : ''}.`);
  const names = Object.keys(LINES).filter((name) => found[name]);
  const build = () => make('div', {}, make('dt'), make('dd', {}, make('code', { tabIndex: 0 }), make('button', { textContent: 'Copy' })));
  children(byId('line-list'), names.length, build).forEach((line, i) => {
    const [code, copy] = line.lastChild.children;
    put(line.firstChild, LINES[names[i]]);
    put(code, found[names[i]]);
    code.id = `line-${names[i]}`;
    copy.setAttribute('aria-label', `Copy the line for ${LINES[names[i]]}`);
    copy.onclick = () => copied(code, copy);
  });
}
function copied(code, button) {
  const range = document.createRange();
  range.selectNodeContents(code);
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  const done = document.execCommand('copy');
  button.textContent = done ? 'Copied' : 'Selected';
}

/* Everything, for the state as it is now. */
function show() {
  if (!scenes.length) return;
  showTour();
  work();
  const { scene } = now;
  const chosenRow = state.look === null ? undefined : scene.rows.get(state.look);
  const looked = chosenRow === undefined ? null : chosenRow;
  byId('main').hidden = false;
  put('title', brief(scene.title || scene.name, 80));
  put('about', aboutOf(scene));
  showQuestion();
  showAnswer();
  showWeights(looked);
  showSteps(looked !== null ? looked : now.order.length ? now.order[0] : null);
  showMap(looked);
  showEvidence();
  showAttention();
  showItems();
  showLines();
  byId('main').dataset.took = (performance.now() - now.began).toFixed(2);
}
function aboutOf(scene) {
  const what = { number: 'numbers', vector: 'vectors', label: 'labels', text: 'texts' }[scene.kind];
  const part = scene.drawn === null ? `${counted(scene.count)} ${scene.count === 1 ? 'item' : 'items'}` : `${counted(scene.count)} of ${counted(scene.total)} items, drawn with seed ${scene.drawn}`;
  const how = scene.learned ? 'as the store has learned' : `by ${scene.compared}`;
  return `${part}; values are ${what}, keys of ${counted(scene.width)} numbers are compared ${how}.`;
}
