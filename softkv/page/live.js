/* A page of a server: it asks the server for what it shows, and for the answers of the whole store.
   The token comes behind the # of the address, is kept for this tab alone, and leaves the address at once. */

const TOKEN = 'softkv.token';
const TOKENS = /^[A-Za-z0-9._~+/=-]{20,200}$/; // as the server takes them
const LINK = /^(scene|step|query|T|k|where|look|head|text|store)=/;
const HEALTH = '/health';
const AGAIN = 2000; // milliseconds between looks at the server
let served = []; // the stores, as the server tells of them
let commit = 0; // of the items that are shown
let own = { asked: null, told: null, busy: false }; // the answers of the store

function takeToken() {
  const link = location.hash.slice(1);
  if (!TOKENS.test(link) || LINK.test(link)) return;
  sessionStorage.setItem(TOKEN, link);
  history.replaceState(null, '', location.pathname);
}
const away = () => Object.assign(new Error('The server does not answer. It is asked again every two seconds.'), { gone: true });
async function ask(method, path, body) {
  // Whoever has the port of a server that is gone is not sent the token, before a server answers there again.
  if (gone && path !== HEALTH) await ask('GET', HEALTH).catch(() => Promise.reject(away()));
  const token = path === HEALTH ? null : sessionStorage.getItem(TOKEN) || '';
  const headers = token === null ? {} : { Authorization: `Bearer ${token}` };
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  const sent = { method, headers, cache: 'no-store', credentials: 'omit', redirect: 'error' };
  if (body !== undefined) sent.body = JSON.stringify(body);
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
const inStore = (method, what, body, { name } = scenes[0] || { name: store() }) =>
  ask(method, `/v1/${encodeURIComponent(name)}/${what}`, body);
const store = (link = location.hash) => {
  const named = new URLSearchParams(link.slice(1)).get('store');
  return served.some((one) => one.name === named) ? named : served[0].name;
};
let gone = false; // whether the server did not answer last
/* Whether something went well. What went wrong is told, until something else goes well that a person did. */
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
    const link = location.hash; // as it is now: while the server is asked, the state before may be kept in the address
    served = (await ask('GET', '/v1/stores')).told;
    await load(store(link));
    state = stateOf(link);
    const text = new URLSearchParams(link.slice(1)).get('text');
    if (text && scenes[0]) await type(text);
    else go({});
  });
  return watch();
}
/* Take up a store: some of its items for the page, and what it is. Until they have come, the page is of the store before. */
let loads = 0; // stores that were asked for: the last one counts
async function load(name) {
  const turn = (loads += 1);
  const asked = inStore('POST', 'scene', {}, { name });
  const found = await asked.catch((error) => (error.kind === 'EmptyStore' ? null : Promise.reject(error)));
  if (turn !== loads) return;
  const scene = found && sceneOf(found.told);
  const same = scenes[0] && scenes[0].name === name;
  const kept = same ? scenes[0].queries : [];
  if (!same) hold(null, '', undefined);
  byId('stores').hidden = served.length < 2;
  chosen(byId('store'), served.map((one) => [one.name, one.name]), name);
  byId('editing').hidden = served.find((one) => one.name === name).read_only;
  document.title = `${brief(name)} – softkv`;
  put('title', brief(name, 80));
  scenes.length = 0;
  if (!scene) {
    byId('main').hidden = true;
    put('about', 'This store is empty. Add its first item with `softkv add`, then load this page again.');
    throw new Error('This store is empty, so there is nothing to look up yet.');
  }
  scenes.push(Object.assign(scene, { name, url: `${location.origin}/${name}`, queries: kept }));
  [now, commit, own] = [null, found.commit, { asked: null, told: null, busy: false }];
  byId('typed').hidden = false;
  put('foot', `Answers are those of ${location.host}. This page keeps the token for this tab, and nothing else.`);
}
/* Ask in words of one's own: the server makes a vector of them, and the page goes on from there. */
async function type(text) {
  const there = scenes[0].queries.findIndex((one) => one.text === text);
  if (there >= 0) return go({ query: `q${there}`, look: null });
  const [query] = (await inStore('POST', 'scene', { items: 1, queries: [text] })).told.queries;
  scenes[0].queries.push(hydrated(scenes[0], query));
  return go({ query: `q${scenes[0].queries.length - 1}`, look: null });
}

/* What the store itself answers to the state as it is: one question at a time, and the last one counts. */
function showOwn() {
  const { scene, asked, temperature } = now;
  const query = asked.text !== null ? asked.text : asked.given && Array.from(asked.given);
  const wanted = { query, k: state.k, show: BARS };
  if (state.where) wanted.where = state.where;
  if (temperature === Infinity) wanted.compatibility = 'uniform';
  else if (temperature && temperature !== scene.temperature) wanted.temperature = temperature;
  const asking = JSON.stringify([asked.key, wanted]);
  const there = own.asked === asking;
  byId('answer').setAttribute('aria-busy', String(!there));
  now.own = there ? own.told : null;
  if (now.own) tellOwn(temperature === 0 ? own.told.hard : own.told.soft);
  else put('whole', 'Asking the store…');
  if (!there && !own.busy) askOwn(asking);
}
async function askOwn(asking) {
  own.busy = true;
  const there = own;
  await tried(async () => {
    const [key, wanted] = JSON.parse(asking);
    // What was learned is worked into the vectors of the page, so the key's own is asked for.
    if (wanted.query === null) wanted.query = (await inStore('POST', 'items/get', { keys: [key], whole: true })).told.items[0].vector;
    const { told } = await inStore('POST', 'compare', wanted);
    Object.assign(there, { asked: asking, told });
  });
  there.busy = false;
  if (there === own && byId('problem').hidden) go({});
}
/* A value of an answer in JSON, and what else of it there is to say. */
function valueTold(answer) {
  if (answer.distribution) return sharesOf({ shares: Object.entries(answer.distribution).sort((a, b) => b[1] - a[1]) });
  const spread = answer.spread === undefined || answer.scored < 2 ? '' : `± ${figure(answer.spread)}`;
  return [plainly(answer.value), spread];
}
const plainly = (x) => (typeof x === 'number' ? figure(x) : Array.isArray(x) ? vectorOf(x, 6) : brief(x || '', 160));
function tellOwn(answer) {
  const { scene, own: ways } = now;
  const [value, ...rest] = valueTold(answer);
  put('value', value, typeof answer.value === 'number' ? answer.value : null);
  put('spread', rest.join(', '), answer.spread);
  put('effective', figure(answer.effective), answer.effective);
  if (now.temperature !== 0) put('logmass', figure(answer.log_mass), answer.log_mass);
  if (!state.where) put('count', counted(scene.total), scene.total);
  byId('error-row').hidden = answer.error === undefined;
  put('error', `${figure(answer.error)} (${answer.error_kind})`, answer.error);
  const read = answer.rows_read === undefined ? '' : `, ${counted(answer.rows_read)} rows read`;
  const why = answer.reason ? `: ${harmless(answer.reason)}` : '';
  const here = `The map, the steps and the list are of the ${counted(scene.count)} items that this page has.`;
  const part = scene.total > scene.count ? ` ${here}` : '';
  const those = state.where ? 'all items that the filter leaves' : `all ${counted(scene.total)} items`;
  put('whole', `The store’s own answer, over ${those}; route ${answer.route}${read}${why}.${part}`);
  const [exact, ...others] = byId('ways').tBodies[0].rows;
  put(exact.cells[1], ways.exact ? plainly(ways.exact.value) : 'no such key: a dictionary fails');
  put(exact.cells[2], '');
  [ways.hard, ways.top_k, ways.soft].forEach((one, i) => {
    const told = valueTold(one).filter(Boolean).join(one.distribution ? ', ' : ' ');
    put(others[i].cells[1], told, typeof one.value === 'number' ? one.value : null);
    put(others[i].cells[2], one.mass === undefined ? '' : percent(one.mass), one.mass);
  });
}

/* Look at the server now and then: whether it is there, and whether others have changed the store. */
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
/* The item in the form: where it was chosen, and what was shown of it, as JSON. */
let held = { look: null, key: '', value: undefined, text: '' };
function hold(look, key, value) {
  const text = typeof value === 'object' ? JSON.stringify(value) : String(value === undefined ? '' : value);
  held = { look, key, value: JSON.stringify(value), text };
  [byId('edit-key').value, byId('edit-value').value] = [key, text];
}
/* Show the chosen item in the form, but for one in which somebody types. */
function fill(scene, looked) {
  if (looked === null) return void (held.look = null);
  const number = scene.numbers[looked];
  const key = scene.keys[looked] === null ? `#${number}` : scene.keys[looked];
  const typed = byId('edit-key').value !== key || byId('edit-value').value !== held.text;
  if (held.look === number && (held.key !== key || typed)) return undefined;
  const vector = scene.kind === 'vector' && scene.values.subarray(looked * scene.value_width, (looked + 1) * scene.value_width);
  return hold(number, key, vector ? Array.from(vector) : plainValue(scene, looked));
}
/* Whether the form has shown what a store holds by a key, which is changed only then; else it is shown now. */
async function wasShown(scene, key) {
  const shownOf = held.key === key ? held.value : undefined;
  const { told } = await inStore('POST', 'items/get', { keys: [key], default: null }, scene);
  const value = told.missing[0] ? undefined : told.values[0];
  if (JSON.stringify(value) === shownOf) return { value };
  if (!scenes[0] || scenes[0].name !== scene.name) return null;
  hold(held.look, key, value);
  const is = value === undefined ? 'is there no more' : `is ${plainly(value)} by now`;
  put('edited', `Nothing was changed: ${brief(key)} ${is}, which this form had not shown. Look, and do it again.`);
  return null;
}
/* Give an item another value, or add one. */
async function save(key, text) {
  const scene = scenes[0];
  const there = await wasShown(scene, key);
  if (!there) return;
  const value = scene.kind === 'number' ? Number(text) : scene.kind === 'vector' ? JSON.parse(text) : text;
  const batch = Array.from(crypto.getRandomValues(new Uint32Array(4)), (one) => one.toString(16)).join('-');
  const item = { keys: [key], values: [value], batch };
  if (there.value === undefined) await inStore('POST', 'items', item, scene);
  else await inStore('PATCH', 'items', { ...item, expected: [there.value] }, scene);
  await changed(scene, key, value, text, there.value === undefined ? 'Added' : 'Saved');
}
async function discard(key, text) {
  const scene = scenes[0];
  if (!(await wasShown(scene, key))) return;
  const { told } = await inStore('POST', 'items/delete', { keys: [key] }, scene);
  await changed(scene, key, undefined, text, told.deleted ? 'Deleted' : 'There was no');
}
async function changed(scene, key, value, text, what) {
  if (scenes[0] && scenes[0].name === scene.name) held = { look: held.look, key, value: JSON.stringify(value), text };
  await reload();
  put('edited', `${what} ${brief(key)}.`);
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
  form('editing', () => save(byId('edit-key').value, byId('edit-value').value));
  on('delete', 'click', () => tried(() => discard(byId('edit-key').value, byId('edit-value').value)));
  on('store', 'change', () => tried(async () => {
    await load(byId('store').value).catch((error) => {
      if (scenes[0]) byId('store').value = scenes[0].name;
      throw error;
    });
    state = { ...USUAL };
    go({});
  }));
}
