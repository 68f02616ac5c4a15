/* Numbers and texts for display, and the code that runs the same lookup elsewhere. */

/* A number to four figures. */
function figure(x) {
  if (x === null || x === undefined || Number.isNaN(x)) return '–';
  if (!Number.isFinite(x)) return x > 0 ? '∞' : '−∞';
  const size = Math.abs(x);
  if (size >= 1000 && size < 1e6) return Math.round(x).toLocaleString('en-US').replace('-', '−');
  if (size !== 0 && (size >= 1e6 || size < 1e-4)) {
    const [digits, power] = x.toExponential(3).split('e');
    return `${Number(digits)}e${power.replace('+', '')}`.replace(/-/g, '−');
  }
  return String(Number(x.toPrecision(4))).replace('-', '−');
}
const percent = (share) => `${(100 * share).toFixed(1)}%`;
const counted = (count) => count.toLocaleString('en-US');

/* A text without characters that reverse or hide text. */
const harmless = (text) =>
  String(text).replace(/[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]/g, (one) =>
    '\t\n'.includes(one) ? ' ' : `\\u${one.charCodeAt(0).toString(16).padStart(4, '0')}`);
const brief = (text, most = 60) => {
  const line = harmless(text).replace(/\s+/g, ' ').trim();
  return line.length <= most ? line : `${Array.from(line).slice(0, most - 1).join('')}…`;
};

/* The name of an item and its value, shortened. */
function nameOf(scene, row, most) {
  if (scene.keys[row] !== null) return brief(scene.keys[row] || '(empty)', most);
  return scene.texts[row] !== null ? brief(scene.texts[row], most) : `#${scene.numbers[row]}`;
}
/* The row of an item by its name in the store (its key, or # and its number); -1 if the page does not have it. */
function rowOf(scene, key) {
  const numbered = key[0] === '#' ? scene.rows.get(Number(key.slice(1))) : undefined;
  return numbered === undefined || scene.keys[numbered] !== null ? scene.keys.indexOf(key) : numbered;
}
function valueOf(scene, row, most = 60) {
  if (scene.kind === 'number') return figure(scene.values[row]);
  if (scene.kind === 'label') return brief(scene.labels[scene.values[row]], most);
  if (scene.kind === 'text') return brief(scene.values[row], most);
  return vectorOf(scene.values.subarray(row * scene.value_width, (row + 1) * scene.value_width));
}
const vectorOf = (cells, most = 4) => {
  const shown = Array.from(cells.slice(0, cells.length > most ? most - 1 : most), figure).join(', ');
  return `[${shown}${cells.length > most ? `, … ${cells.length} numbers` : ''}]`;
};
function answerOf(scene, found) {
  if (found.value === undefined) {
    if (!found.shares || !found.shares.length) return 'nothing';
    if (scene.kind === 'text') return brief(found.shares[0][0], 160);
    return sharesOf(found).join(', ');
  }
  if (found.value instanceof Float64Array) return vectorOf(found.value, 6);
  return figure(found.value);
}
function sharesOf(found) {
  const told = found.shares.filter(([, share], i) => i < 1 || (i < 5 && share >= 0.01));
  return told.map(([label, share]) => `${brief(label, 40)} ${percent(share)}`);
}

/* JSON as Python writes it, and a word of a shell. */
function python(x) {
  if (x === null || typeof x === 'boolean') return { null: 'None', true: 'True', false: 'False' }[x];
  if (typeof x === 'number') return String(x);
  if (typeof x === 'string') return escaped(x);
  if (Array.isArray(x)) return `[${x.map(python).join(', ')}]`;
  return `{${Object.entries(x).map(([name, one]) => `${python(name)}: ${python(one)}`).join(', ')}}`;
}
const escaped = (x) =>
  JSON.stringify(x).replace(/[\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, (one) =>
    `\\u${one.charCodeAt(0).toString(16).padStart(4, '0')}`);
const word = (text) => (/^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replace(/'/g, `'\\''`)}'`);

/* Characters that a shell would take for keystrokes, or that turn or hide a line. A command with one is not given. */
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/;

/* The options of the lookup that a state shows, as far as they are not the defaults of the store. */
function optionsOf(scene, temperature, where) {
  const warm = temperature && temperature !== scene.temperature && { temperature };
  const end = { 0: scene.heads && { k: 1 }, Infinity: scene.heads ? { temperature: 1e30 } : { compatibility: 'uniform' } }[temperature];
  return { ...(end || warm), ...(where && { where }) };
}
/* The code for the page's lookup in the whole store: Python, command and curl. */
function linesOf(scene, asked, temperature, where) {
  const store = live ? scene.url : scene.name;
  const vector = asked.given ? Array.from(asked.given, (x) => Number(x.toPrecision(9))) : null; // what float32 holds
  const hard = temperature === 0;
  const given = optionsOf(scene, temperature, where);
  const options = Object.entries(given).map(([name, x]) => `${name}=${python(x)}`);
  if (scene.heads) options.push('heads=heads');
  const method = hard && !scene.heads ? 'nearest' : 'lookup';
  const query = asked.text !== null ? escaped(asked.text) : asked.row !== null ? `db.item(${escaped(asked.key)}).vector` : python(vector);
  const opened = `softkv.open(${escaped(store)})`;
  const call = `${method}(${[query, ...options].join(', ')})`;
  const found = { python: asked.row === null ? `${opened}.${call}` : `db = ${opened}; db.${call}` };
  if (scene.heads || (asked.text === null && !vector)) return found;
  const flags = [asked.text !== null ? word(asked.text) : `--vector=${vector.join(',')}`, '--db', word(store)];
  if (hard) flags.push('--hard');
  if (given.compatibility) flags.push('--compatibility', given.compatibility);
  if (given.temperature) flags.push('-T', String(temperature));
  if (where) flags.push('--where', word(JSON.stringify(where)));
  if (asked.text !== null && asked.text.startsWith('-')) flags.push('--', flags.shift()); // otherwise it would be taken for an option
  found.command = `softkv query ${flags.join(' ')}`;
  const body = { query: asked.text !== null ? asked.text : vector, ...given };
  const served = /^https?:/.test(store) ? store : `http://127.0.0.1:7411/${store.replace(/\.softkv$/, '')}`;
  const address = `${served.replace(/\/([^/]*)$/, '/v1/$1')}/${method}`;
  const headers = '-H "Authorization: Bearer $SOFTKV_TOKEN" -H "Content-Type: application/json"';
  found.curl = `curl ${word(address)} ${headers} -d ${word(escaped(body))}`;
  return Object.fromEntries(Object.entries(found).filter(([, line]) => !UNSEEN.test(line)));
}
