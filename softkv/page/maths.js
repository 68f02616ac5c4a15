/* The arithmetic of a lookup, in float64: scores, logits, weights, answers.
   Does not know of the page. Vectors of keys lie one after the other in one array. */

const numbersOf = (packed, wide) => {
  const bytes = Uint8Array.from(atob(packed), (one) => one.charCodeAt(0));
  return wide ? new Float64Array(bytes.buffer) : new Float32Array(bytes.buffer);
};

const summed = (query, keys, at, term) => {
  let sum = 0;
  for (let i = 0; i < query.length; i++) sum += term(query[i], keys[at + i]);
  return sum;
};
const product = (a, b) => a * b;
const square = (a, b) => (a - b) ** 2;
const apart = (a, b) => Math.abs(a - b);
const lengthOf = (vector, at, width) => Math.sqrt(summed(vector.subarray(at, at + width), vector, at, product));

/* The compatibilities: the terms that are summed, and the function of the sum. */
const WAYS = {
  dot: { term: product, ends: (sum) => sum },
  scaled_dot: { term: product, ends: (sum, width) => sum / Math.sqrt(width) },
  cosine: { term: product, ends: (sum, width, lengths) => sum / lengths },
  gaussian: { term: square, ends: (sum) => -0.5 * sum },
  laplace: { term: apart, ends: (sum) => -sum },
  student: { term: square, ends: (sum) => -Math.log1p(0.5 * sum) },
  uniform: { term: product, ends: () => 0 },
};

/* The scores of all keys, as one array. */
function scoresOf(way, query, keys, lengths) {
  const { term, ends } = WAYS[way];
  const width = query.length;
  const own = way === 'cosine' ? lengthOf(query, 0, width) : 1;
  const found = new Float64Array(keys.length / width);
  return found.map((_, row) => ends(summed(query, keys, row * width, term), width, own * lengths[row]));
}

/* The weights of scores at a temperature: at 0 only the best row, at Infinity all equal. Unseen rows have weight 0. */
function weigh(scores, temperature, seen) {
  const weights = new Float64Array(scores.length);
  let [peak, best, count] = [-Infinity, -1, 0];
  for (let row = 0; row < scores.length; row++) {
    if (seen && !seen[row]) continue;
    count += 1;
    if (scores[row] > peak) [peak, best] = [scores[row], row];
  }
  if (best < 0 || temperature === 0) {
    if (best >= 0) weights[best] = 1;
    return { weights, count, mass: Number(best >= 0), logMass: NaN, effective: Number(best >= 0), best };
  }
  let [mass, excess] = [0, 0];
  for (let row = 0; row < scores.length; row++) {
    if (seen && !seen[row]) continue;
    const below = temperature === Infinity ? 0 : scores[row] / temperature - peak / temperature;
    const e = Math.exp(below);
    weights[row] = e;
    mass += e;
    excess += e * Math.max(below, -1e300);
  }
  for (let row = 0; row < scores.length; row++) weights[row] /= mass;
  const logMass = (temperature === Infinity ? 0 : peak / temperature) + Math.log(mass);
  return { weights, count, mass, logMass, effective: Math.exp(Math.log(mass) - excess / mass), best };
}

/* The rows by weight, the heaviest first; equal ones in their order. */
const rowsOf = (all, seen) => Array.from(all, (_, row) => row).filter((row) => !seen || seen[row]);
const inOrder = (weights, scores, seen) =>
  rowsOf(weights, seen).sort((a, b) => weights[b] - weights[a] || scores[b] - scores[a] || a - b);

/* The weights of the k best rows, scaled to a sum of 1, and their share of all weight. */
function bestOf(order, weights, k) {
  const found = new Float64Array(weights.length);
  const rows = order.slice(0, k);
  const held = rows.reduce((sum, row) => sum + weights[row], 0);
  for (const row of rows) found[row] = held > 0 ? weights[row] / held : 0;
  return { weights: found, held: Math.min(1, held) };
}

/* The weighted mean of a scene's values: a number with its spread, a vector, shares of labels, or texts. */
const under = (weights, of) => weights.reduce((sum, weight, row) => (weight > 0 ? sum + weight * of(row) : sum), 0);
function blend(scene, weights) {
  if (scene.kind === 'number') {
    const value = under(weights, (row) => scene.values[row]);
    const off = (row) => Math.abs(scene.values[row] / 2 - value / 2);
    const largest = weights.reduce((most, weight, row) => (weight > 0 ? Math.max(most, off(row)) : most), 0);
    // In units of the farthest value, whose square might leave float64.
    const squares = largest && under(weights, (row) => (off(row) / largest) ** 2);
    return { value, spread: 2 * largest * Math.sqrt(squares) };
  }
  if (scene.kind === 'vector') return { value: meanOf(scene.values, weights, scene.value_width) };
  const shares = new Map();
  weights.forEach((weight, row) => weight > 0 && shares.set(scene.values[row], (shares.get(scene.values[row]) || 0) + weight));
  const ranked = [...shares].sort((a, b) => b[1] - a[1]);
  return { shares: ranked.map(([code, share]) => [scene.labels ? scene.labels[code] : code, share, code]) };
}

const meanOf = (values, weights, width) => {
  const mean = new Float64Array(width);
  for (let row = 0; row < weights.length; row++) {
    if (weights[row] > 0) for (let i = 0; i < width; i++) mean[i] += weights[row] * values[row * width + i];
  }
  return mean;
};

/* Heads: the query is projected for each head, all use the same keys, and their results are projected and joined. */
const times = (matrix, vector, offset) =>
  Float64Array.from(matrix, (line, i) => summed(line, vector, 0, product) + (offset ? offset[i] : 0));

function headScores(heads, query, keys, width) {
  return heads.w_q.map((matrix, head) => {
    const asked = times(matrix, query, heads.b_q && heads.b_q[head]).map((x) => x / Math.sqrt(matrix.length));
    const added = heads.b_k ? summed(asked, heads.b_k[head], 0, product) : 0;
    const rewritten = new Float64Array(width);
    asked.forEach((x, i) => heads.w_k[head][i].forEach((w, j) => (rewritten[j] += x * w)));
    const found = scoresOf('dot', rewritten, keys, []);
    return found.map((score) => score + added);
  });
}

function joinedHeads(heads, means) {
  const parts = means.map((mean, head) => {
    if (heads.w_v) return times(heads.w_v[head], mean, heads.b_v && heads.b_v[head]);
    return mean.map((x, i) => x + (heads.b_v ? heads.b_v[head][i] : 0));
  });
  const joined = Float64Array.from(parts.flatMap((part) => [...part]));
  return heads.w_o ? times(heads.w_o, joined, heads.b_o) : joined.map((x, i) => x + (heads.b_o ? heads.b_o[i] : 0));
}

/* The evidence, as the guard of a store defines it (softkv/guard/guard.py). */
function evidenceOf(scene, { weights, logMass, count }) {
  const share = scene.guard.coded ? Math.min(1 - 1e-7, Math.max(1e-7, blend(scene, weights).shares[0][1])) : 0.5;
  return logMass - Math.log(count) + 4 * Math.log(share / (1 - share));
}

/* The share of sorted numbers that are below a number. */
const shareBelow = (sorted, x) => sorted.filter((one) => one < x).length / sorted.length;

/* Whether an item meets a filter of conditions on fields; a missing field meets none. */
const OPERATORS = ['$eq', '$ne', '$gt', '$gte', '$lt', '$lte'];
const hasField = (payload, field) =>
  payload !== null && typeof payload === 'object' && !Array.isArray(payload) && Object.hasOwn(payload, field);
function meets(where, payload, value) {
  return Object.entries(where).every(([field, asked]) => {
    if (field !== '$value' && !hasField(payload, field)) return false;
    const found = field === '$value' ? value : payload[field];
    return Object.entries(asked).every(([operator, x]) => {
      if (operator === '$ne') return found !== x;
      if (operator === '$eq') return found === x;
      if (typeof found !== typeof x || !['number', 'string'].includes(typeof x)) return false;
      const order = typeof x === 'string' ? byCodePoint(found, x) : found - x;
      return { $gt: order > 0, $gte: order >= 0, $lt: order < 0, $lte: order <= 0 }[operator];
    });
  });
}

const byCodePoint = (a, b) => {
  const [left, right] = [Array.from(a, (one) => one.codePointAt(0)), Array.from(b, (one) => one.codePointAt(0))];
  const at = left.findIndex((one, i) => one !== right[i]);
  return at < 0 ? left.length - right.length : at < right.length ? left[at] - right[at] : 1;
};
