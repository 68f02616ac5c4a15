/* The handlers of user input. */

function listen() {
  const on = (id, event, does) => byId(id).addEventListener(event, does);
  on('warmth', 'input', () => go({ T: warmthAt(Number(byId('warmth').value)) }));
  for (const [id, T] of [['hard', 0], ['usual', null], ['mean', Infinity]]) on(id, 'click', () => go({ T }));
  on('query', 'change', () => byId('query').value !== 'item' && go({ query: byId('query').value, look: null }));
  on('k', 'input', () => Number(byId('k').value) >= 1 && go({ k: Math.floor(Number(byId('k').value)) }));
  on('attend', 'click', () => look({ attention: !shown.attention }));
  on('causal', 'change', () => look({ causal: byId('causal').checked }));
  const only = (where) => [look({ page: 0 }), go({ where })];
  on('filter', 'submit', (event) => {
    event.preventDefault();
    only({ [byId('field').value]: { [byId('operator').value]: operandOf(byId('operand').value) } });
  });
  on('everyone', 'click', () => only(null));
  on('find', 'input', () => look({ find: byId('find').value, page: 0 }));
  for (const [id, by] of [['before', -1], ['after', 1]]) on(id, 'click', () => look({ page: shown.page + by }));
  for (const [id, by] of [['tour-back', -1], ['tour-next', 1]]) on(id, 'click', () => goToStep(state.step + by));
  on('tour-choice', 'change', () => goToStep(Number(byId('tour-choice').value)));
  on('skip', 'click', (event) => {
    event.preventDefault();
    byId('answer-title').focus();
  });
  listenToMap(on);
  listenToMatrix(on);
  if (live) listenLive(on);
  window.addEventListener('hashchange', () => {
    const link = new URLSearchParams(location.hash.slice(1));
    const other = !scenes[0] || (link.get('store') || scenes[0].name) !== scenes[0].name;
    if (live && (other || link.get('text') || !LINK.test(location.hash.slice(1)))) return enter();
    return go(stateAt(location.hash));
  });
  window.addEventListener('resize', () => go({}));
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => {
    readPalette();
    for (const scene of scenes) scene.colours = null;
    matrix.of = null;
    go({});
  });
}
/* Typed text as the operand of a filter: true, false, null, a number, or a text. */
function operandOf(text) {
  if (['true', 'false', 'null'].includes(text)) return JSON.parse(text);
  const field = byId('field').value;
  const { scene } = now;
  const found = (row) => (field === '$value' ? plainValue(scene, row) : (scene.payloads[row] || {})[field]);
  const numbers = scene.numbers.some((_, row) => typeof found(row) === 'number');
  return numbers && text.trim() !== '' && Number.isFinite(Number(text)) ? Number(text) : text;
}

const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
const placeIn = (canvas, event) => {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
};
function listenToMap(on) {
  const canvas = byId('chart');
  on('chart', 'pointermove', (event) => tip(pointed(...placeIn(canvas, event)), ...placeIn(canvas, event)));
  on('chart', 'pointerleave', () => tip(null));
  on('chart', 'click', (event) => {
    const row = pointed(...placeIn(canvas, event));
    if (row !== null) go({ look: now.scene.numbers[row] });
  });
  on('chart', 'keydown', (event) => {
    if (event.key in ARROWS) {
      shown.cursor = towards(shown.cursor, ...ARROWS[event.key]);
      if (shown.cursor !== null) tip(shown.cursor, chart.points[2 * shown.cursor], chart.points[2 * shown.cursor + 1]);
      go({});
    } else if (event.key === 'Enter' && shown.cursor !== null) go({ look: now.scene.numbers[shown.cursor] });
    else if (event.key === 'Escape') {
      tip(null);
      go({ look: null });
    } else return;
    event.preventDefault();
  });
  on('chart', 'blur', () => look(tip(null)));
}
function tip(row, x, y) {
  const place = byId('tip');
  place.hidden = row === null;
  byId('chart').style.cursor = row === null ? 'default' : 'pointer';
  if (row === null) return;
  const facts = [`value ${valueOf(now.scene, row)}`, `weight ${percent(now.weights[row])}`];
  place.replaceChildren(make('strong', {}, nameOf(now.scene, row, 100)), ...facts.map((text) => make('span', {}, text)));
  place.style.left = `${Math.max(0, Math.min(x + 14, chart.width - place.offsetWidth))}px`;
  place.style.top = `${y + 14 + place.offsetHeight > chart.height ? Math.max(0, y - 10 - place.offsetHeight) : y + 14}px`;
}
function listenToMatrix(on) {
  const canvas = byId('matrix');
  const move = (i, j) => {
    const last = matrix.lines.length - 1;
    matrix.cursor = [Math.max(0, Math.min(last, i)), Math.max(0, Math.min(last, j))];
    drawMatrix(matrix.lines, matrix.cursor);
    tellCell();
  };
  const point = (event) => {
    const [x, y] = placeIn(canvas, event).map((one) => Math.floor((one - matrix.frame.margin) / matrix.frame.cell));
    if (x >= 0 && y >= 0) move(y, x);
  };
  on('matrix', 'pointermove', point);
  on('matrix', 'click', point);
  on('matrix', 'keydown', (event) => {
    if (!(event.key in ARROWS)) return;
    event.preventDefault();
    const [dx, dy] = ARROWS[event.key];
    move(...(matrix.cursor ? [matrix.cursor[0] + dy, matrix.cursor[1] + dx] : [0, 0]));
  });
}

function begin() {
  readPalette();
  listen();
  if (live) return enter();
  scenes.push(...given.scenes.map(sceneOf));
  put('foot', 'This file holds the items it shows, and sends nothing: whoever has it can read them.');
  state = stateAt(location.hash);
  document.title = `${brief(given.scenes[state.scene].title || given.scenes[state.scene].name)} – softkv`;
  return show();
}
begin();
