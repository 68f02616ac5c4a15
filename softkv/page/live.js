/* A page of a server: it asks the server for what it shows, and for the answers of the whole store.
   The token comes behind the # of the address, is kept for this tab alone, and leaves the address at once. */

const TOKEN = 'softkv.token';
const TOKENS = /^[A-Za-z0-9._~+/=-]{20,200}$/; // the form that the server accepts
const LINK = /^(scene|step|query|T|k|where|look|head|text|store)=/;
const HEALTH = '/health';
const AGAIN = 2000; // milliseconds between polls of the server
let served = []; // the stores, as the server lists them
let commit = 0; // the commit of the items that are shown
let own = { busy: {} }; // the answer of the store to the query, and then those of the other ways of lookup

function takeToken() {
  const link = location.hash.slice(1);
  if (!TOKENS.test(link) || LINK.test(link)) return;
  sessionStorage.setItem(TOKEN, link);
  history.replaceState(null, '', location.pathname);
}
const away = () => Object.assign(new Error('The server does not answer. It is asked again every two seconds.'), { gone: true });
async function ask(method, path, body) {
  // Another program may have taken the port of a server that is gone: the token is sent only once a server answers.
  if (gone && path !== HEALTH) await ask('GET', HEALTH).catch(() => Promise.reject(away()));
  const token = path === HEALTH ? null : sessionStorage.getItem(TOKEN) || '';
  const headers = { ...(token !== null && { Authorization: `Bearer ${token}` }), ...(body && { 'Content-Type': 'application/json' }) };
  const sent = { method, headers, body: JSON.stringify(body), cache: 'no-store', credentials: 'omit', redirect: 'error' };
  const reply = await fetch(path, sent).catch(() => Promise.reject(away()));
  if (reply.status === 401) {
    if (token === sessionStorage.getItem(TOKEN)) {
      sessionStorage.removeItem(TOKEN);
      scenes.length = 0;
      byId('door').hidden = false;
      byId('main').hidden = true;
    }
    throw new Error('The server takes no such token.');
  }
  const told = reply.status === 204 ? null : await reply.json();
  if (!reply.ok) throw Object.assign(new Error(told.detail || 'The server refused.'), { kind: told.error });
  return { told, commit: Number(reply.headers.get('softkv-commit')) };
}
const inStore = (method, what, body, { name } = scenes[0] || { name: byId('store').value || store() }) =>
  ask(method, `/v1/${encodeURIComponent(name)}/${what}`, body);
const store = (link = location.hash) => {
  const named = new URLSearchParams(link.slice(1)).get('store');
  return served.some((one) => one.name === named) ? named : served[0].name;
};
let gone = false; // whether the last request got no answer
/* Whether an action succeeded. An error is shown until the next action of the user succeeds. */
async function tried(work, asked = true) {
  let problem = null;
  await Promise.resolve().then(work).catch((error) => (problem = error));
  const back = gone && !problem;
  if (problem || asked || back) {
    byId('problem').hidden = !problem;
    put('problem', problem ? problem.message : '');
  }
  gone = Boolean(problem && problem.gone);
  if (back && scenes.length) go({});
}

async function enter() {
  takeToken();
  byId('door').hidden = Boolean(sessionStorage.getItem(TOKEN));
  if (!sessionStorage.getItem(TOKEN)) return byId('token').focus();
  await tried(async () => {
    const link = location.hash; // read now: during the request the previous state may be written to the address
    served = (await ask('GET', '/v1/stores')).told;
    await load(store(link));
    state = stateOf(link);
    const text = new URLSearchParams(link.slice(1)).get('text');
    if (text && scenes[0]) await type(text);
    else go({});
  });
  return watch();
}
/* Load a store: some of its items, and its description. Until they arrive, the page shows the previous store. */
let loads = 0; // number of stores requested; only the response to the last request is used
async function load(name, heads = headsOf(name)) {
  const turn = (loads += 1);
  const asked = inStore('POST', 'scene', { heads }, { name });
  const found = await asked.catch((error) => (error.kind === 'EmptyStore' ? null : Promise.reject(error)));
  if (turn !== loads) return;
  const scene = found && sceneOf(found.told);
  const same = byId('store').dataset.shown === name;
  const kept = same && heads === headsOf(name) && scenes[0] ? scenes[0].queries : [];
  if (!same) hold(null, '', undefined);
  byId('store').dataset.shown = name;
  byId('stores').hidden = served.length < 2;
  chosen(byId('store'), served.map((one) => [one.name, one.name]), name);
  byId('editing').hidden = served.find((one) => one.name === name).read_only;
  document.title = `${brief(name)} – softkv`;
  put('title', brief(name, 80));
  scenes.length = 0;
  byId('main').hidden = false;
  byId('main').classList.toggle('empty', !scene);
  if (!scene) return put('about', 'This store is empty, so there is nothing to look up yet. Its first item says what values are.');
  scenes.push(Object.assign(scene, { name, url: `${location.origin}/${name}`, queries: kept }));
  [now, commit, own] = [null, found.commit, { busy: {} }];
  const worded = ['label', 'text'].includes(scene.kind); // heads cannot project these
  [byId('typed').hidden, byId('bring').hidden, byId('headless').hidden] = [false, worded, !scene.heads];
  return put('foot', `Answers are those of ${location.host}. This page keeps the token for this tab, and nothing else.`);
}
/* The heads with which stores are shown, and a change of them for the present store. */
const headsOf = (name) => (scenes[0] && scenes[0].name === name ? scenes[0].heads : null);
async function bring(heads) {
  const [{ name }, { text }] = [scenes[0], now.asked];
  await load(name, heads);
  if (!scenes[0] || scenes[0].name !== name) return undefined; // another store was chosen meanwhile
  return text === null ? go({}) : type(text);
}
/* Ask with a text: the server embeds it, and the page continues with the vector. */
async function type(text) {
  const { queries, heads } = scenes[0];
  const there = queries.findIndex((one) => one.text === text);
  if (there >= 0) return go({ query: `q${there}`, look: null });
  const [query] = (await inStore('POST', 'scene', { items: 1, queries: [text], heads })).told.queries;
  if (!scenes[0] || scenes[0].queries !== queries) return undefined; // of another store or heads; a reload keeps them
  queries.push(hydrated(scenes[0], query));
  return go({ query: `q${queries.length - 1}`, look: null });
}

function askingNow(scene = scenes[state.scene]) {
  const [asked, temperature] = [askedNow(scene), warmthOf(scene)];
  const query = asked.text !== null ? asked.text : asked.given && Array.from(asked.given);
  const wanted = { query, show: BARS, ...optionsOf(scene, temperature, state.where) };
  return JSON.stringify([asked.key, wanted, state.k, temperature === 0]);
}
/* Ask the store itself; only the last request counts. The other ways of lookup take far longer, so they wait until the slider rests. */
function showOwn() {
  const asking = askingNow();
  const there = own.asked === asking;
  byId('answer').setAttribute('aria-busy', String(!(there && own.ways)));
  now.own = there ? own.answer : null;
  put('error', '…'); // the error on display belongs to the previous question
  if (now.own) tellOwn(now.own, own.ways);
  else put('whole', 'Asking the store…');
  const of = own;
  clearTimeout(of.calm);
  if (!there) askOwn(asking);
  else if (!own.ways) of.calm = setTimeout(() => of === own && askOwn(asking, 'compare'), 300);
}
async function askOwn(asking = askingNow(), method = 'lookup') {
  const [there, [scene]] = [own, scenes];
  if (!scene || there.busy[method] || (method === 'lookup' && there.asked === asking)) return;
  there.busy[method] = true;
  await tried(async () => {
    const [key, wanted, k, hard] = JSON.parse(asking);
    // The page has projected vectors where a metric was learned, so the original vector of the key is requested.
    if (wanted.query === null) wanted.query = (await inStore('POST', 'items/get', { keys: [key], whole: true }, scene)).told.items[0].vector;
    Object.assign(wanted, method === 'compare' ? { k } : { heads: scene.heads, ...(hard && { k: 1, show: 1 }) });
    const { told } = await inStore('POST', method, wanted, scene);
    if (method === 'lookup') Object.assign(there, { asked: asking, answer: told, ways: scene.heads && {} });
    else if (there.asked === asking) there.ways = told;
  });
  there.busy[method] = false;
  if (there === own && byId('problem').hidden) go({});
}
/* The value of an answer in JSON, and its spread. */
function valueTold(answer) {
  if (answer.distribution) return sharesOf({ shares: Object.entries(answer.distribution).sort((a, b) => b[1] - a[1]) });
  const spread = answer.spread === undefined || answer.scored < 2 ? '' : `± ${figure(answer.spread)}`;
  return [plainly(answer.value), spread];
}
const plainly = (x) => (typeof x === 'number' ? figure(x) : Array.isArray(x) ? vectorOf(x, 6) : brief(x || '', 160));
function tellOwn(answer, ways) {
  const { scene, head } = now;
  const [value, ...rest] = valueTold(answer);
  put('value', value, exactly(answer.value));
  put('spread', [...rest, answer.known === false ? 'not known' : ''].filter(Boolean).join(', '), answer.spread);
  const [effective, logMass] = [answer.effective, answer.log_mass].map((x) => (Array.isArray(x) ? (head < 0 ? mean(x) : x[head]) : x));
  put('effective', figure(effective), effective);
  if (now.temperature !== 0) put('logmass', figure(logMass), logMass);
  if (!state.where) put('count', counted(scene.total), scene.total);
  byId('error-row').hidden = answer.error === undefined;
  put('error', `${figure(answer.error)} (${answer.error_kind})`, answer.error);
  const read = answer.rows_read === undefined ? '' : `, ${counted(answer.rows_read)} rows read`;
  const why = answer.reason ? `: ${harmless(answer.reason)}` : '';
  const these = scene.heads ? 'The map, the four ways' : 'The map'; // the request `compare` takes no heads
  const part = scene.total > scene.count ? ` ${these} and the steps are of the ${counted(scene.count)} items that this page has.` : '';
  const those = state.where ? 'all items that the filter leaves' : `all ${counted(scene.total)} items`;
  put('whole', `The store’s own answer, over ${those}; route ${answer.route}${read}${why}.${part}`);
  if (scene.heads) return;
  const exact = ways && (ways.exact || { value: 'no such key: a dictionary fails' });
  const all = ways ? [exact, ways.hard, ways.top_k, ways.soft] : Array(4).fill({ value: '…' });
  all.forEach((one, i) => {
    const { cells } = byId('ways').tBodies[0].rows[i];
    put(cells[1], valueTold(one).filter(Boolean).join(one.distribution ? ', ' : ' '), exactly(one.value));
    put(cells[2], one.mass === undefined ? '' : percent(one.mass), one.mass);
  });
}

/* Poll the server: whether it answers, and whether the store has changed. */
let watching = false;
async function watch() {
  if (watching) return;
  watching = true;
  for (;;) {
    await new Promise((done) => setTimeout(done, AGAIN));
    if (document.hidden || !byId('door').hidden) continue;
    await tried(async () => {
      const { told } = scenes.length ? await inStore('GET', 'info') : { told: {} };
      return told.commit === commit ? undefined : reload();
    }, false);
  }
}
async function reload() {
  served = (await ask('GET', '/v1/stores')).told;
  await load(byId('store').value || store());
  go({});
}
/* The item in the form: where it was chosen, and its content as it was shown, as JSON. */
let held = { look: null, key: '', was: undefined, text: '', payload: '' };
const spelled = (item) => (item ? JSON.stringify([item.value, item.payload]) : undefined);
function hold(look, key, value, payload = null) {
  const text = typeof value === 'object' ? JSON.stringify(value) : String(value === undefined ? '' : value);
  const was = spelled(value !== undefined && { value, payload });
  held = { look, key, was, text, payload: payload === null ? '' : JSON.stringify(payload) };
  [byId('edit-key').value, byId('edit-value').value, byId('edit-payload').value] = [key, text, held.payload];
}
/* Choose an item that is in the list of the store, but not on the map. */
function holdOnly({ key, value, payload }) {
  hold(null, key, value, payload);
  go({ look: null });
}
/* The items of the whole store from one on, as far as the list shows them; those that have not come are asked for.
   Where some are to be found among them, a page begins with the item before which the page before it has ended. */
let [listed, listing, starts] = [{ of: null }, false, [0]];
function listOwn(scene, start) {
  const { page, find } = shown;
  const wanted = { where: state.where, find: find || null, start, limit: LISTED };
  const of = JSON.stringify([scene.name, commit, wanted]);
  if (listed.of === of) return listed;
  const came = ({ told }) => go(void ([listed, starts[page + 1]] = [{ of, ...told }, told.next]));
  if (!listing) tried(() => inStore('POST', 'items/select', wanted, scene).then(came).finally(() => (listing = false)), false);
  listing = true;
  return { items: [], next: null, none: '…' };
}
/* Show the chosen item in the form, unless the user is typing in it. */
function fill(scene, looked) {
  if (looked === null) return void (held.look = null);
  const number = scene.numbers[looked];
  const key = scene.keys[looked] === null ? `#${number}` : scene.keys[looked];
  const typed = ['key', 'text', 'payload'].some((one) => byId(`edit-${one === 'text' ? 'value' : one}`).value !== held[one]);
  if (held.look === number && (held.key !== key || typed)) return undefined;
  const vector = scene.kind === 'vector' && scene.values.subarray(looked * scene.value_width, (looked + 1) * scene.value_width);
  return hold(number, key, vector ? Array.from(vector) : plainValue(scene, looked), scene.payloads[looked]);
}
/* Whether the form has shown what a store holds by a key, which is changed only then; else it is shown now. */
async function wasShown(scene, key) {
  const was = held.key === key ? held.was : undefined;
  const [item] = (await inStore('POST', 'items/get', { keys: [key], default: null, whole: true }, scene)).told.items;
  if (spelled(item) === was) return { item };
  if (byId('store').dataset.shown !== scene.name) return null;
  hold(held.look, key, ...(item ? [item.value, item.payload] : []));
  const is = item ? `is ${plainly(item.value)} by now` : 'is there no more';
  put('edited', `Nothing was changed: ${brief(key)} ${is}, which this form had not shown. Look, and do it again.`);
  return null;
}
/* Change what the form names: give an item another value and payload, or add one, or delete it. */
async function change(does) {
  const scene = scenes[0] || { name: byId('store').dataset.shown };
  const [key, text, payload] = ['key', 'value', 'payload'].map((one) => byId(`edit-${one}`).value);
  const there = await wasShown(scene, key);
  if (!there) return;
  const [what, item] = await does(scene, there.item, { key, text, payload });
  if (byId('store').dataset.shown === scene.name) held = { look: held.look, key, was: spelled(item), text, payload };
  await reload();
  put('edited', `${what} ${brief(key)}.`);
}
async function save(scene, there, { key, text, payload }) {
  const numbers = scene.kind === 'number' || (!scene.kind && text.trim() !== '' && Number.isFinite(Number(text)));
  const item = { value: numbers ? Number(text) : scene.kind === 'vector' ? parsed(text) : text, payload: parsed(payload) };
  const batch = Array.from(crypto.getRandomValues(new Uint32Array(4)), (one) => one.toString(16)).join('-');
  const sent = { keys: [key], values: [item.value], payloads: [item.payload], batch };
  if (there) await inStore('PATCH', 'items', { ...sent, expected: [there.value] }, scene);
  else await inStore('POST', 'items', sent, scene);
  return [there ? 'Saved' : 'Added', item];
}
async function discard(scene, there, { key }) {
  const { told } = await inStore('POST', 'items/delete', { keys: [key] }, scene);
  return [told.deleted ? 'Deleted' : 'There was no'];
}
function parsed(text) {
  try {
    return text.trim() ? JSON.parse(text) : null;
  } catch {
    throw new Error(`This is no JSON: ${brief(text)}`);
  }
}
function listenLive(on) {
  const form = (id, work) => on(id, 'submit', (event) => {
    event.preventDefault();
    tried(work);
  });
  form('door-form', () => {
    sessionStorage.setItem(TOKEN, byId('token').value.trim());
    byId('token').value = '';
    return enter();
  });
  form('typed', () => byId('text').value.trim() && type(byId('text').value.trim()));
  form('editing', () => change(save));
  on('delete', 'click', () => tried(() => change(discard)));
  on('projections', 'click', () => (byId('projections').value = '')); // otherwise choosing the same file again would not be a change
  on('projections', 'change', () => tried(async () => bring(parsed(await byId('projections').files[0].text()))));
  on('headless', 'click', () => tried(() => bring(null)));
  on('store', 'change', () => tried(async () => {
    await load(byId('store').value).catch((error) => {
      if (scenes[0]) byId('store').value = scenes[0].name;
      throw error;
    });
    state = { ...USUAL };
    look({ page: 0 });
  }));
}
