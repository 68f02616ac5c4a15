/* Draws the map of the keys, the gauge of evidence and the matrix of self-attention. Does not change the state. */

const HUES = ['--c0', '--c1', '--c2', '--c3', '--c4', '--c5', '--c6'];
let palette = {};
function readPalette() {
  const style = getComputedStyle(document.documentElement);
  const names = [...HUES, '--ink', '--quiet', '--line', '--card', '--mark', '--rest', '--low', '--middle', '--high'];
  palette = Object.fromEntries(names.map((name) => [name, style.getPropertyValue(name).trim()]));
}

/* A canvas of the size of its element, in device pixels. */
function sheet(canvas, height, width = canvas.parentElement.clientWidth) {
  const ratio = window.devicePixelRatio || 1;
  const wide = Math.round(width * ratio);
  const high = Math.round(height * ratio);
  if (canvas.width !== wide || canvas.height !== high) [canvas.width, canvas.height] = [wide, high];
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext('2d');
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return { pen, width, height };
}

const mixed = (a, b, share) => {
  const channel = (hex, i) => parseInt(hex.slice(1 + 2 * i, 3 + 2 * i), 16);
  return `rgb(${[0, 1, 2].map((i) => Math.round(channel(a, i) * (1 - share) + channel(b, i) * share)).join(' ')})`;
};
/* The colours of items, by their values: from low to high, or one for each of the most frequent labels. */
function coloursOf(scene) {
  if (scene.kind === 'number') {
    const sorted = Array.from(scene.values).sort((a, b) => a - b);
    const at = (share) => sorted[Math.round(share * (sorted.length - 1))];
    const [low, high] = sorted.length > 50 ? [at(0.02), at(0.98)] : [at(0), at(1)];
    const place = (x) => (high > low ? Math.min(1, Math.max(0, (x / 2 - low / 2) / (high / 2 - low / 2))) : 0.5);
    const [from, middle, to] = ['--low', '--middle', '--high'].map((name) => palette[name]);
    const of = (share) => (share < 0.5 ? mixed(from, middle, 2 * share) : mixed(middle, to, 2 * share - 1));
    return { of: Array.from(scene.values, (x) => of(place(x))), low, high };
  }
  if (scene.kind !== 'label') return { of: null };
  const counts = new Map();
  for (const code of scene.values) counts.set(code, (counts.get(code) || 0) + 1);
  const codes = [...counts].sort((a, b) => b[1] - a[1]).map(([code]) => code);
  const hues = new Map(codes.slice(0, HUES.length).map((code, i) => [code, HUES[i]]));
  return { of: Array.from(scene.values, (code) => palette[hues.get(code) || '--rest']), hues, others: codes.length - hues.size };
}

/* The places of all items on the map, with one scale for both directions, so that nothing is stretched. */
function frameOf(scene, asked, width, height) {
  if (!scene.bounds) {
    const bounds = [Infinity, Infinity, -Infinity, -Infinity];
    for (let row = 0; row < scene.count; row++) stretch(bounds, scene.places[2 * row], scene.places[2 * row + 1]);
    for (const query of scene.queries) if (query.place) stretch(bounds, ...query.place);
    scene.bounds = bounds;
  }
  const [left, top, right, bottom] = scene.bounds;
  const edge = Math.min(width, height) * 0.11;
  const scale = Math.min((width - 2 * edge) / (right - left || 1), (height - 2 * edge) / (bottom - top || 1));
  const place = (x, y) => [width / 2 + (x - (left + right) / 2) * scale, height / 2 - (y - (top + bottom) / 2) * scale];
  const points = new Float64Array(2 * scene.count);
  for (let row = 0; row < scene.count; row++) points.set(place(scene.places[2 * row], scene.places[2 * row + 1]), 2 * row);
  return { points, query: asked.place && place(...asked.place) };
}
const stretch = (bounds, x, y) => {
  [bounds[0], bounds[1]] = [Math.min(bounds[0], x), Math.min(bounds[1], y)];
  [bounds[2], bounds[3]] = [Math.max(bounds[2], x), Math.max(bounds[3], y)];
};

let chart = null; // the map as it was drawn last, to find the item under the pointer
function drawMap(looked, near) {
  const { scene, asked, weights, order, seen } = now;
  const canvas = byId('chart');
  const { pen, width, height } = sheet(canvas, Math.max(260, Math.min(620, canvas.parentElement.clientWidth * 0.72)));
  const { points, query } = frameOf(scene, asked, width, height);
  scene.colours = scene.colours || coloursOf(scene);
  chart = { points, width, height };
  const largest = Math.min(width, height) * 0.13;
  const radius = (row) => Math.max(scene.count > 500 ? 1.6 : 2.5, Math.sqrt(weights[row]) * largest);
  const round = (x, y, r) => {
    pen.beginPath();
    pen.arc(x, y, r, 0, 7);
  };
  const disc = (x, y, r) => [round(x, y, r), pen.fill(), pen.stroke()];
  const at = (row) => [points[2 * row], points[2 * row + 1]];
  pen.lineWidth = 1;
  if (seen) {
    pen.fillStyle = palette['--line'];
    for (let row = 0; row < scene.count; row++) if (!seen[row]) { round(...at(row), 1.2); pen.fill(); }
  }
  pen.strokeStyle = palette['--quiet'];
  for (const row of near) lined(pen, at(looked), at(row));
  pen.strokeStyle = palette['--card'];
  for (const row of order) {
    pen.globalAlpha = weights[row] > 1e-4 ? 0.88 : 0.5;
    pen.fillStyle = scene.colours.of ? scene.colours.of[row] : palette['--c0'];
    const [x, y, r] = [...at(row), radius(row)];
    if (r === 1.6) pen.fillRect(x - 1.4, y - 1.4, 2.8, 2.8); // of many items: circles would take longer than a frame
    else disc(x, y, r);
  }
  pen.globalAlpha = 1;
  const ringed = (row, colour) => {
    [pen.strokeStyle, pen.lineWidth] = [colour, 2];
    round(...at(row), radius(row) + 2.5);
    pen.stroke();
  };
  if (looked !== null) ringed(looked, palette['--ink']);
  if (shown.cursor !== null && document.activeElement === canvas) ringed(shown.cursor, palette['--mark']);
  const boxes = [];
  if (query) drawQuery(pen, query, boxes, width);
  const box = (row) => [-1, 1].flatMap((sign) => at(row).map((x) => x + sign * radius(row)));
  boxes.push(...(scene.count <= 30 ? order : []).map(box));
  pen.font = '12px system-ui, sans-serif';
  for (const row of scene.count <= 30 ? order : order.slice(0, 6)) {
    if (weights[row] < 0.004 && scene.count > 30) break;
    labelled(pen, nameOf(scene, row, width > 700 ? 44 : 26), ...at(row), radius(row) + 4, boxes, width, height);
  }
}
function lined(pen, from, to) {
  pen.beginPath();
  pen.moveTo(...from);
  pen.lineTo(...to);
  pen.stroke();
}
function drawQuery(pen, [x, y], boxes, width) {
  [pen.strokeStyle, pen.lineWidth] = [palette['--mark'], 2.5];
  for (const [dx, dy] of [[8, 0], [0, 8]]) lined(pen, [x - dx, y - dy], [x + dx, y + dy]);
  boxes.push([x - 8, y - 8, x + 8, y + 8]);
  pen.font = '600 12px system-ui, sans-serif';
  labelled(pen, 'query', x, y, 11, boxes, width, 1e9, palette['--mark']);
}
/* Write a name beside a point, where it covers no other name. */
function labelled(pen, text, x, y, beside, boxes, width, height, colour = palette['--ink']) {
  const wide = pen.measureText(text).width;
  const sides = [[x + beside, y + 4], [x - beside - wide, y + 4]]; // right, left, and then above and below
  for (const [left, base] of [...sides, [x - wide / 2, y - beside - 2], [x - wide / 2, y + beside + 11]]) {
    const box = [left - 2, base - 12, left + wide + 2, base + 4];
    const free = box[0] >= 0 && box[2] <= width && box[1] >= 0 && box[3] <= height;
    if (!free || boxes.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3])) continue;
    [pen.strokeStyle, pen.lineWidth] = [palette['--card'], 3];
    pen.strokeText(text, left, base);
    pen.fillStyle = colour;
    pen.fillText(text, left, base);
    boxes.push(box);
    return;
  }
}
/* The item nearest to a point of the map, if one is near. */
function pointed(x, y, within = 18) {
  let [best, far] = [null, within * within];
  for (let row = 0; row < now.scene.count; row++) {
    const apartBy = (chart.points[2 * row] - x) ** 2 + (chart.points[2 * row + 1] - y) ** 2;
    if (apartBy < far && (!now.seen || now.seen[row])) [best, far] = [row, apartBy];
  }
  return best;
}
/* The next item in a direction from one: near, and close to the line. */
function towards(from, dx, dy) {
  const [x, y] = from === null ? [chart.width / 2, chart.height / 2] : [chart.points[2 * from], chart.points[2 * from + 1]];
  let [best, far] = [from, Infinity];
  for (let row = 0; row < now.scene.count; row++) {
    const [ax, ay] = [chart.points[2 * row] - x, chart.points[2 * row + 1] - y];
    const along = ax * dx + ay * dy;
    const across = Math.abs(ax * dy) + Math.abs(ay * dx);
    const there = row !== from && along > 0.01 && along >= across * 0.5 && (!now.seen || now.seen[row]);
    if (there && along + 2 * across < far) [best, far] = [row, along + 2 * across];
  }
  return best;
}

const SVG = 'http://www.w3.org/2000/svg';
function svg(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, x] of Object.entries(attributes)) made.setAttribute(name, x);
  made.append(...children);
  return made;
}
/* The gauge of evidence: ticks of left-out items, the query among them, and the threshold of known queries. */
function gauge(sorted, x, words, limit = x) {
  const span = Math.max(sorted[sorted.length - 1] - sorted[0], 1e-9);
  const ends = [sorted[0], sorted[sorted.length - 1], x, limit];
  const [low, high] = [Math.min(...ends) - 0.04 * span, Math.max(...ends) + 0.04 * span];
  const at = (one) => (10 + (580 * (one - low)) / (high - low)).toFixed(2);
  const side = (one) => (at(one) < 110 ? 'start' : at(one) > 490 ? 'end' : 'middle');
  const picture = svg('svg', { viewBox: `0 0 600 ${limit === x ? 74 : 92}`, role: 'img', 'aria-label': words });
  picture.append(svg('line', { x1: 10, x2: 590, y1: 46, y2: 46, class: 'axis' }));
  for (const one of sorted) picture.append(svg('line', { x1: at(one), x2: at(one), y1: 32, y2: 46, class: 'tick' }));
  if (limit !== x) picture.append(svg('line', { x1: at(limit), x2: at(limit), y1: 24, y2: 54, class: 'limit' }));
  if (limit !== x) picture.append(svg('text', { x: at(limit), y: 86, 'text-anchor': side(limit) }, 'known from here'));
  picture.append(svg('path', { d: `M${at(x)} 50 l-7 -22 h14 z`, class: 'here' }));
  picture.append(svg('text', { x: at(x), y: 20, 'text-anchor': side(x), class: 'here-told' }, `this query ${figure(x)}`));
  picture.append(svg('text', { x: 10, y: 66 }, figure(low + 0.04 * span)));
  picture.append(svg('text', { x: 590, y: 66, 'text-anchor': 'end' }, figure(high - 0.04 * span)));
  return picture;
}

/* Self-attention: a row for each item as query, a column for each as key; dark is a large weight. */
function drawMatrix(matrix, cursor) {
  const canvas = byId('matrix');
  const count = matrix.length;
  const names = count <= 16;
  const side = Math.min(canvas.parentElement.clientWidth, 640);
  const { pen } = sheet(canvas, side, side);
  const margin = names ? Math.min(110, side * 0.26) : 0;
  const cell = (side - margin) / count;
  pen.font = '12px system-ui, sans-serif';
  matrix.forEach((line, i) => {
    line.weights.forEach((weight, j) => {
      pen.fillStyle = mixed(palette['--card'], palette['--high'], Math.sqrt(weight));
      pen.fillRect(margin + j * cell, margin + i * cell, Math.ceil(cell), Math.ceil(cell));
    });
    if (!names) return;
    pen.fillStyle = palette['--ink'];
    pen.textAlign = 'right';
    pen.fillText(nameOf(now.scene, line.row, 16), margin - 6, margin + (i + 0.5) * cell + 4, margin - 8);
    pen.save();
    pen.translate(margin + (i + 0.5) * cell + 4, margin - 6);
    pen.rotate(-Math.PI / 2);
    pen.textAlign = 'left';
    pen.fillText(nameOf(now.scene, line.row, 16), 0, 0, margin - 8);
    pen.restore();
  });
  if (cursor) {
    [pen.strokeStyle, pen.lineWidth] = [palette['--mark'], 2];
    pen.strokeRect(margin + cursor[1] * cell, margin + cursor[0] * cell, cell, cell);
  }
  pen.textAlign = 'left';
  return { margin, cell };
}
