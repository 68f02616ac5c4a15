/* The wide panels: map with nearest items, evidence, self-attention, items, code; and the redrawing of all panels. */

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
  if (nearest.of !== looked || nearest.scene !== scene) {
    nearest = { of: looked, scene, rows: looked === null ? [] : neighbours(scene, looked) };
  }
  drawMap(looked, nearest.rows.map(([row]) => row));
  const facts = (row) => `value ${valueOf(scene, row)}, weight ${percent(weights[row])}`;
  put('map-told', looked === null ? '' : `${nameOf(scene, looked, 100)}: ${facts(looked)}`);
  put('share', `the map shows ${percent(scene.share)} of how keys of ${counted(scene.width)} numbers differ.`);
  showLegend(scene);
  const place = byId('near');
  place.hidden = looked === null;
  if (live) fill(scene, looked);
  if (looked === null || place.of === nearest) return;
  place.of = nearest;
  const button = (className, text, onclick) => make('button', { className, onclick }, text);
  const line = ([row, score]) =>
    make('li', {}, button('plain', nameOf(scene, row, 60), () => go({ look: scene.numbers[row] })), ` score ${figure(score)}`);
  const asks = { className: 'main', id: 'ask-key', onclick: () => go({ query: `i${scene.numbers[looked]}` }) };
  const head = make('h3', { textContent: `Nearest keys to ${nameOf(scene, looked, 60)}, in all ${counted(scene.width)} dimensions` });
  const told = nearest.rows.length ? [head, make('ol', {}, ...nearest.rows.map(line))] : [];
  const close = button('', 'Close', () => go({ look: null }));
  place.replaceChildren(...told, make('p', {}, ...(mayAsk(scene) ? [make('button', asks, 'Ask with this key'), ' '] : []), close));
}
function showLegend(scene) {
  const place = byId('legend');
  if (place.of === scene.colours) return;
  place.of = scene.colours;
  const { low, high, hues, others } = scene.colours;
  const swatch = (name, text) => make('span', { className: `swatch ${name.slice(2)}` }, make('i'), text);
  if (hues) {
    const told = [...hues].map(([code, hue]) => swatch(hue, brief(scene.labels[code], 24)));
    place.replaceChildren('Colour is label: ', ...told, ...(others ? [swatch('--rest', `${counted(others)} others`)] : []));
  } else if (low === undefined) place.replaceChildren();
  else place.replaceChildren('Colour is value: ', make('span', { className: 'ramp' }, figure(low), make('i'), figure(high)));
}

let evidence = { of: null };
/* Evidence depends on the query only, at the temperature where it was measured, so the slider does not change it. */
function showEvidence() {
  const { scene, scores, asked, own: answer } = now;
  const known = answer && answer.known !== undefined ? answer.known : asked.known; // given only for answers of all items
  if (evidence.of === scores && (known === undefined || evidence.known === known)) return;
  evidence = { of: scores, known };
  const { threshold, told } = scene.guard || {};
  const guarded = threshold !== undefined;
  const sorted = guarded ? scene.guard.evidence : scene.evidence;
  byId('gauge').replaceChildren();
  if (!sorted) {
    const heads = 'Heads compare in ways of their own, of which no evidence was measured.';
    return put('evidence-told', scene.heads ? heads : 'One item alone is evidence of nothing.');
  }
  const one = weigh(scores[0], scene.temperature, null);
  const x = guarded ? evidenceOf(scene, one) : one.logMass;
  const share = shareBelow(sorted, x);
  const above = { 0: 'none of', 1: 'all' }[share] || `${percent(share)} of`;
  const others = `${counted(sorted.length)} ${guarded ? 'that made the guard' : 'items that were left out and asked like it'}`;
  const words = `This query’s ${guarded ? 'evidence' : 'log mass'} is ${figure(x)}, above that of ${above} ${others}.`;
  const little = share === 0 ? 'Nothing here is like it: the answer is a guess.' : 'Little here is like it: do not rely on the answer.';
  const means = share < 0.05 ? little : 'It is like what is stored, so there is something to go by.';
  const is = typeof known === 'boolean' ? known : x >= threshold;
  const so = typeof known === 'boolean' || scene.drawn === null ? `so the query is ${is ? 'known' : 'not known'}` : 'which only all items can tell';
  const judged = `It takes ${figure(threshold)} to be known, ${so}`;
  byId('gauge').append(gauge(sorted, x, words, threshold));
  const guard = told ? ` Guard: ${told}${told.endsWith('.') ? '' : '.'}` : '';
  const measured = `All this holds at the store’s own temperature, ${figure(scene.temperature)}, wherever the slider stands.`;
  return put('evidence-told', `${words} ${guarded ? `${judged}.` : means}${guard} ${measured}`, share);
}

const ATTEND = 200;
let matrix = { of: null };
function showAttention() {
  const { scene, temperature, seen, head } = now;
  const may = mayAsk(scene);
  const first = scene.count > ATTEND ? `, of the first ${ATTEND} items${seen ? ' that the filter leaves' : ''}` : '';
  const note = `Each key asks all keys${first}. A line for each that asks, a column for each that answers.`;
  put('attention-note', may ? note : 'The heads take queries of another width than the keys have, so no key can ask.');
  byId('attend').hidden = !may;
  byId('heat').hidden = byId('causal-label').hidden = !(may && shown.attention);
  byId('attend').setAttribute('aria-expanded', String(may && shown.attention));
  if (!may || !shown.attention) return;
  const of = [temperature, JSON.stringify(state.where), head, shown.causal].join();
  if (matrix.of !== of || matrix.scene !== scene) matrix = { of, scene, lines: attended(scene, temperature, seen, head), cursor: null };
  matrix.frame = drawMatrix(matrix.lines, matrix.cursor);
  tellCell();
}
function attended(scene, temperature, seen, head) {
  const rows = rowsOf(scene.numbers, seen).slice(0, ATTEND);
  const part = new Float64Array(rows.length * scene.width);
  rows.forEach((row, i) => part.set(scene.vectors.subarray(row * scene.width, (row + 1) * scene.width), i * scene.width));
  const lengths = rows.map((row) => scene.lengths[row]);
  return rows.map((row, i) => {
    const key = part.subarray(i * scene.width, (i + 1) * scene.width);
    const scores = scene.heads ? headScores(scene.heads, key, part, scene.width) : [scoresOf(scene.compared, key, part, lengths)];
    const earlier = shown.causal ? rows.map((_, j) => (j <= i ? 1 : 0)) : null;
    const heard = (head < 0 ? scores : [scores[head]]).map((one) => weigh(one, temperature, earlier));
    return { row, weights: averaged(heard) };
  });
}
function tellCell() {
  if (!matrix.cursor) return put('cell', 'Point at a cell, or move with the arrow keys.');
  const [i, j] = matrix.cursor;
  const [asks, heard] = [matrix.lines[i], matrix.lines[j]];
  const [from, to] = [asks, heard].map((one) => nameOf(now.scene, one.row, 60));
  return put('cell', `${from} gives ${to} ${percent(asks.weights[j])} of its weight`, asks.weights[j]);
}

const LISTED = 25;
function showItems() {
  const { scene, weights, seen } = now;
  const fieldsOf = (one) => Object.keys(one || {}).filter((name) => name[0] !== '$' && hasField(one, name));
  scene.fields = scene.fields || [...new Set(scene.payloads.flatMap(fieldsOf))].slice(0, 50);
  const value = scene.kind === 'vector' ? [] : [['$value', 'value']];
  const options = [...value, ...scene.fields.map((name) => [name, brief(name, 30)])];
  const [condition] = Object.entries(state.where || {});
  chosen(byId('field'), options, condition ? condition[0] : byId('field').value || (options[0] || [''])[0]);
  byId('filter').querySelectorAll('label:not(.end), button').forEach((one) => (one.hidden = !options.length));
  const meeting = `${counted(now.told.count)} of ${counted(scene.count)} items`;
  put('filtered', state.where ? `${meeting} meet ${harmless(JSON.stringify(state.where))}; the others take no part.` : '');
  const wanted = shown.find.toLowerCase();
  const called = (row) => [scene.keys[row] || `#${scene.numbers[row]}`, scene.texts[row]].join(' ');
  const rows = rowsOf(scene.numbers, seen).filter((row) => !wanted || called(row).toLowerCase().includes(wanted));
  const whole = live && scene.total > scene.count; // then the list comes from the server
  const count = !whole ? rows.length : state.where || wanted ? Infinity : scene.total;
  shown.page = Math.max(0, Math.min(shown.page, Math.ceil(count / LISTED) - 1));
  const start = whole && wanted ? starts[shown.page] : shown.page * LISTED;
  const ofPage = (row) => [row, nameOf(scene, row, 80), valueOf(scene, row, 80), scene.payloads[row]];
  const ofStore = ({ key, value, payload }) => [rowOf(scene, key), brief(key, 80), brief(plainly(value), 80), payload];
  const there = whole ? listOwn(scene, start) : { items: rows.slice(start, start + LISTED), next: start + LISTED };
  const here = there.items.map(whole ? ofStore : ofPage);
  const cells = () => ['', '', 'number', 'number'].map((className) => make('td', { className }));
  const build = () => make('tr', {}, make('th', { scope: 'row' }, make('button', { className: 'plain' })), ...cells());
  children(byId('list').tBodies[0], here.length, build).forEach((line, i) => {
    const [row, name, value, payload] = here[i];
    put(line.cells[0].firstChild, name);
    line.cells[0].firstChild.onclick = () => (row < 0 ? holdOnly(there.items[i]) : go({ look: scene.numbers[row] }));
    put(line.cells[1], value);
    put(line.cells[2], payload === null ? '' : brief(JSON.stringify(payload), 80));
    const score = now.scores[Math.max(0, now.head)][row];
    put(line.cells[3], row < 0 ? '' : figure(score), score);
    put(line.cells[4], row < 0 ? '' : percent(weights[row]), weights[row]);
  });
  const of = count < Infinity ? ` of ${counted(count)}` : '';
  const end = there.next === null ? 'the last' : counted(there.next);
  const found = `${here.length || 'none'} found, from item ${counted(start + 1)} to ${end}`;
  const told = here.length ? `${counted(start + 1)} to ${counted(start + here.length)}${of}` : 'no item';
  put('where-in', there.none || (whole && wanted ? found : told));
  byId('before').disabled = shown.page === 0;
  byId('after').disabled = there.next === null || there.next >= count;
}

const LINES = { link: 'this state', python: 'Python', command: 'shell', curl: 'curl' };
function showLines() {
  const { scene, asked, temperature } = now;
  const example = scene.example && { command: `softkv demo ${word(scene.example)}` };
  const link = location.href.split('#')[0] + linkOf(state).replace(/^#$/, '');
  const found = { link, ...(example || linesOf(scene, asked, temperature, state.where)) };
  const all = scene.total > scene.count ? `, all ${counted(scene.total)} items of it,` : '';
  const note = `These ask the store${all} what is asked here${scene.heads ? '; heads are those of this page' : ''}.`;
  put('lines-note', example ? 'A command tells this example with all its code.' : note);
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
  button.textContent = document.execCommand('copy') ? 'Copied' : 'Selected';
}

/* Draw everything for the present state. */
function show() {
  if (!scenes.length) return;
  const began = performance.now();
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
  byId('main').dataset.took = (performance.now() - began).toFixed(2);
}
function aboutOf(scene) {
  const what = { number: 'numbers', vector: 'vectors', label: 'labels', text: 'texts' }[scene.kind];
  const count = counted(scene.count);
  const drawn = `${count} of ${counted(scene.total)} items, drawn with seed ${scene.drawn}`;
  const part = scene.drawn === null ? `${count} ${scene.count === 1 ? 'item' : 'items'}` : drawn;
  const how = scene.learned ? 'as the store has learned' : `by ${scene.compared}`;
  return `${part}; values are ${what}, keys of ${counted(scene.width)} numbers are compared ${how}.`;
}
