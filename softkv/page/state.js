/* The state, and what is computed from it. A state is a link: all of it is in the address, after the #. */

const byId = (id) => document.getElementById(id);
const given = JSON.parse(byId('data').textContent);
const live = given === null;
const scenes = [];
const USUAL = { scene: 0, query: null, T: null, k: 3, look: null, where: null, head: -1, step: null };
const LONGEST_WHERE = 2000; // characters; JSON that is nested too deeply could not be written again
let state = { ...USUAL };
let now = null; // all that is computed from the state
const shown = { page: 0, find: '', attention: false, causal: false, cursor: null }; // settings of the view, which are not in the link

function sceneOf(told) {
  const scene = { ...told, vectors: numbersOf(told.vectors, told.wide), places: numbersOf(told.places, false) };
  if (scene.kind === 'vector') scene.values = numbersOf(told.values, false);
  scene.count = scene.numbers.length;
  scene.rows = new Map(scene.numbers.map((number, row) => [number, row]));
  scene.lengths = Float64Array.from(scene.numbers, (_, row) => lengthOf(scene.vectors, row * scene.width, scene.width));
  scene.queries = told.queries.map((query) => hydrated(scene, query));
  return scene;
}
function hydrated(scene, query) {
  const vector = Float64Array.from(query.vector);
  return { ...query, vector, given: query.given || query.vector, place: placeOf(scene, vector), row: null, key: null };
}
/* The projection of a query onto the map; null if it has another width than the keys. */
function placeOf(scene, vector) {
  if (vector.length !== scene.width) return null;
  const { unit, middle, axes } = scene.plane;
  const length = scene.compared === 'cosine' ? lengthOf(vector, 0, vector.length) : 1;
  return axes.map((axis) => axis.reduce((sum, one, i) => sum + one * (vector[i] / length / unit - middle[i]), 0));
}

/* The query of a state: one of the page's queries, or an item whose key is the query. */
function askedOf(scene, name) {
  const row = name && name[0] === 'i' && mayAsk(scene) ? scene.rows.get(Number(name.slice(1))) : undefined;
  if (row !== undefined) return asItem(scene, row);
  return (name && name[0] === 'q' && scene.queries[name.slice(1)]) || scene.queries[0] || asItem(scene, 0);
}
function asItem(scene, row) {
  const vector = Float64Array.from(scene.vectors.subarray(row * scene.width, (row + 1) * scene.width));
  const key = scene.keys[row] === null || scene.keys[row].length > 1000 ? `#${scene.numbers[row]}` : scene.keys[row];
  const place = [scene.places[2 * row], scene.places[2 * row + 1]];
  return { name: nameOf(scene, row, 200), text: null, vector, given: scene.learned ? null : vector, place, row, key };
}
const mayAsk = (scene) => !scene.heads || scene.heads.w_q[0][0].length === scene.width;
const askedNow = (scene) => (now && now.scene === scene && now.query === state.query ? now.asked : askedOf(scene, state.query));
const warmthOf = (scene) => (state.T === null ? scene.temperature : state.T);

/* Everything that is computed from the state. Scores depend on the query only, and are kept when the temperature changes. */
function work() {
  const scene = scenes[state.scene];
  const [asked, temperature] = [askedNow(scene), warmthOf(scene)];
  const { scores, exact } = now && now.asked === asked ? now : { scores: allScores(scene, asked), exact: exactOf(scene, asked) };
  const seen = now && now.scene === scene && now.where === state.where ? now.seen : seenOf(scene, state.where);
  const heard = scores.map((one) => weigh(one, temperature, seen));
  const head = scene.heads && state.head < scene.heads.w_q.length ? state.head : -1;
  const told = head < 0 ? heard[0] : heard[head];
  const weights = head < 0 ? averaged(heard) : told.weights;
  const order = inOrder(weights, scores[Math.max(0, head)], seen);
  now = { scene, query: state.query, asked, scores, exact, temperature, where: state.where, seen, heard, head, told, weights, order };
  now.found = answerFor(scene, heard, weights);
}
const seenOf = (scene, where) =>
  where && Uint8Array.from(scene.numbers, (_, row) => meets(where, scene.payloads[row], plainValue(scene, row)));
function plainValue(scene, row) {
  if (scene.kind === 'vector') return undefined;
  return scene.kind === 'label' ? scene.labels[scene.values[row]] : scene.values[row];
}

function allScores(scene, asked) {
  if (scene.heads) return headScores(scene.heads, asked.vector, scene.vectors, scene.width);
  return [scoresOf(scene.compared, asked.vector, scene.vectors, scene.lengths)];
}
function averaged(heard) {
  if (heard.length === 1) return heard[0].weights;
  return heard[0].weights.map((_, row) => heard.reduce((sum, one) => sum + one.weights[row], 0) / heard.length);
}
function answerFor(scene, heard, weights) {
  if (!heard[0].count) return {};
  if (!scene.heads) return blend(scene, weights);
  const cells = scene.kind === 'vector' ? scene.values : Float64Array.from(scene.values);
  return { value: joinedHeads(scene.heads, heard.map((one) => meanOf(cells, one.weights, scene.value_width || 1))) };
}

/* The state as a link, and a link as a state. Parts of a link that the page does not have are ignored. */
function linkOf(one) {
  const link = new URLSearchParams();
  const warm = one.T === 0 ? 'hard' : one.T === Infinity ? 'mean' : one.T;
  const parts = { scene: one.scene || null, step: one.step, query: one.query, T: warm, k: one.k === USUAL.k ? null : one.k };
  Object.assign(parts, { where: one.where && JSON.stringify(one.where), look: one.look, head: one.head < 0 ? null : one.head });
  const asked = live && one.query && one.query[0] === 'q' && scenes[one.scene] && scenes[one.scene].queries[one.query.slice(1)];
  if (asked && asked.text !== null) Object.assign(parts, { query: null, text: asked.text });
  if (live && scenes[one.scene]) parts.store = scenes[one.scene].name;
  for (const [name, x] of Object.entries(parts)) if (x !== null && x !== undefined) link.set(name, x);
  return `#${link}`;
}
function stateOf(hash) {
  const link = new URLSearchParams(hash.slice(1));
  const one = { ...USUAL };
  const below = { scene: Math.max(1, scenes.length), k: 1e9, step: 1e6, look: 1e15, head: 1e6 };
  for (const name of Object.keys(below)) {
    const x = Number(link.get(name) || NaN);
    if (Number.isInteger(x) && x >= (name === 'k' ? 1 : 0) && x < below[name]) one[name] = x;
  }
  const warm = link.get('T');
  const T = warm === 'hard' ? 0 : warm === 'mean' ? Infinity : Number(warm);
  if (warm && (T > 0 || warm === 'hard')) one.T = T;
  one.query = /^[qi]\d{1,15}$/.test(link.get('query') || '') ? link.get('query') : null;
  try {
    const where = JSON.parse((link.get('where') || '').length > LONGEST_WHERE ? null : link.get('where'));
    const known = (asked) => asked && typeof asked === 'object' && Object.keys(asked).every((operator) => OPERATORS.includes(operator));
    if (where && Object.values(where).every(known)) one.where = where;
  } catch {
    one.where = null;
  }
  return one;
}

/* Change the state: drawn at most once a frame, and written to the address soon after, however often it is changed. */
const look = (change) => go(void Object.assign(shown, change));
let [waiting, keeping] = [false, 0];
function go(change) {
  state = { ...state, ...change };
  if (live && now && scenes.length) askOwn(); // so that the store looks it up while the page draws
  if (!waiting) requestAnimationFrame(() => show((waiting = false)));
  waiting = true;
  keeping ||= setTimeout(keepLink, 150);
}
function keepLink() {
  keeping = 0;
  const link = linkOf(state);
  if (link !== (location.hash || '#')) history.replaceState(null, '', location.pathname + location.search + link);
}
