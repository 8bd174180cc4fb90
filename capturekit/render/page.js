'use strict';
(() => {
const data = JSON.parse(document.getElementById('data').textContent);
const words = data.words, $ = id => document.getElementById(id);
const boxes = data.boxes.map((b, number) => ({
  number, row: b[0], column: b[1], color: b[2], short: words[b[3]], name: words[b[4]], kind: words[b[5]],
  where: words[b[6]], place: b[7] === '' ? '' : words[b[7]], detail: b[8].map(([k, v]) => [words[k], words[v]]),
  marks: b[9], before: [], after: [], text: null}));
const arrows = data.arrows.map(([tail, head, way]) => ({tail: boxes[tail], head: boxes[head], way}));
for (const arrow of arrows) { arrow.tail.after.push(arrow); arrow.head.before.push(arrow); }
const rows = data.rows.map(([title, story]) => ({title, story, boxes: [], longest: 0}));
for (const box of boxes) rows[box.row].boxes.push(box);

const canvas = $('lanes'), overview = $('overview'), stage = $('stage'), tip = $('tip'), search = $('search');
const pen = canvas.getContext('2d'), small = overview.getContext('2d');
const LEFT = 86, PAD = 14, LABELS = 64, MOST = 220;
let width = 0, height = 0, ratio = 1, lane = 54, pitch = 0, left = 0, top = 0;
let colors = {}, hovered = null, selected = null, matches = null, hits = new Set(), at = -1, drawn = false;
let strip = null, timed = false;
const times = data.times, span = times ? times.reduce((last, [start, took]) => Math.max(last, start + took), 0) : 0;
const unit = Math.max(span, 0.001) / Math.max(1, data.columns);  // the microseconds of a column, where times are shown

// -- where things are ------------------------------------------------------------------------------------------

const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const gap = () => pitch >= LABELS ? clamp(pitch * 0.2, 14, 26) : pitch * 0.3;
const tall = () => Math.min(38, lane - 12);
const startOf = box => timed ? times[box.number][0] / unit : box.column;
const wideOf = box => timed ? times[box.number][1] / unit * pitch : pitch - gap();
const labelled = box => timed ? wideOf(box) >= 48 : pitch >= LABELS;
const most = () => timed ? Math.max(MOST, 100 * unit) : MOST;
const xOf = column => LEFT + PAD + column * pitch - left;
const xBox = box => xOf(startOf(box));
const yOf = row => PAD + (row + 0.5) * lane - top;
const smallest = () => Math.min(most(), Math.max(0.02, (width - LEFT - 2 * PAD) / Math.max(1, data.columns)));

function bound() {
  pitch = clamp(pitch, Math.min(smallest(), 90), most());
  left = clamp(left, 0, Math.max(0, data.columns * pitch + LEFT + 2 * PAD - width));
  top = clamp(top, 0, Math.max(0, rows.length * lane + 2 * PAD - height));
}
function zoom(factor, x = (width + LEFT) / 2) {
  const column = (x - LEFT - PAD + left) / pitch;
  pitch *= factor;
  bound();
  left = column * pitch - (x - LEFT - PAD);
  show();
}
function fit() { pitch = Math.min(smallest(), 170); left = top = 0; show(); }
function order() {
  for (const row of rows) {
    row.boxes.sort((a, b) => startOf(a) - startOf(b) || a.number - b.number);
    row.longest = timed ? row.boxes.reduce((most, box) => Math.max(most, times[box.number][1]), 0) / unit : 0;
  }
}
function tell(on) {  // times, or the order
  const part = (left + (width - LEFT) / 2) / pitch;
  timed = on && times !== null;
  order();
  $('clock').setAttribute('aria-pressed', timed);
  strip = null;
  bound();
  left = part * pitch - (width - LEFT) / 2;
  hover(null);
  if (selected) reveal(selected); else show();
}
function from(list, column) {  // the first of a row's boxes that does not begin before this column
  let low = 0, high = list.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (startOf(list[middle]) < column) low = middle + 1; else high = middle;
  }
  return low;
}
function nearest(row, column) {
  const list = rows[row].boxes, i = from(list, column);
  const two = [list[i - 1], list[i]].filter(Boolean);
  return two.sort((a, b) => Math.abs(startOf(a) - column) - Math.abs(startOf(b) - column))[0] || null;
}
function under(x, y) {
  const row = Math.floor((y - PAD + top) / lane);
  if (x < LEFT || row < 0 || row >= rows.length) return null;
  if (Math.abs(y - yOf(row)) > tall() / 2 + 4) return null;
  const list = rows[row].boxes, i = from(list, (x - LEFT - PAD + left) / pitch);
  const near = box => box && x >= xBox(box) - 3 && x <= xBox(box) + Math.max(wideOf(box), 1) + 3;
  return [list[i - 1], list[i], list[i - 2]].find(near) || null;
}
function reveal(box) {
  if (pitch < 24 && !timed) pitch = 110;
  bound();
  const x = xBox(box), y = yOf(box.row), w = timed ? Math.min(wideOf(box), width - LEFT - 50) : pitch;
  if (x < LEFT + 20 || x + w > width - 20) left += x - (LEFT + width - w) / 2;
  if (y - lane / 2 < 0 || y + lane / 2 > height) top += y - height / 2;
  show();
}

// -- drawing ---------------------------------------------------------------------------------------------------

function show() {
  if (!pitch) return;
  bound();
  if (!drawn) requestAnimationFrame(() => { drawn = false; draw(); });
  drawn = true;
}

function rounded(p, x, y, w, h, r) { p.beginPath(); p.roundRect ? p.roundRect(x, y, w, h, r) : p.rect(x, y, w, h); }

function way(arrow) {  // the corners of an arrow's way
  const a = arrow.tail, b = arrow.head, g = gap();
  const x1 = xBox(a) + wideOf(a), x2 = xBox(b), y1 = yOf(a.row), y2 = yOf(b.row);
  if (timed || arrow.way === 'along') return [x1, y1, x2, y2];
  const down = x1 + g * (0.12 + 0.06 * (a.row % 4)), up = x2 - g * (0.36 + 0.08 * (b.row % 4));
  if (arrow.way === 'fork' || arrow.way === 'join') {
    const x = arrow.way === 'fork' ? down : up;
    return [x1, y1, x, y1, x, y2, x2, y2];
  }
  const beside = y2 - tall() / 2 - 0.16 * (lane - tall()) * (1 + a.row % 3);
  return [x1, y1, down, y1, down, beside, up, beside, up, y2, x2, y2];
}
function trace(arrow) {
  const p = way(arrow), last = p.length - 2, turn = Math.min(6, gap() / 3);
  pen.moveTo(p[0], p[1]);
  for (let i = 2; i < last; i += 2) {
    const room = Math.min(Math.abs(p[i] - p[i - 2]) + Math.abs(p[i + 1] - p[i - 1]),
      Math.abs(p[i + 2] - p[i]) + Math.abs(p[i + 3] - p[i + 1])) / 2;
    pen.arcTo(p[i], p[i + 1], p[i + 2], p[i + 3], Math.min(turn, room));
  }
  pen.lineTo(p[last], p[last + 1]);
}
function drawArrows(list, color, thick, heads) {
  pen.strokeStyle = pen.fillStyle = color;
  pen.lineWidth = thick;
  pen.beginPath();
  list.forEach(trace);
  pen.stroke();
  if (!heads) return;
  pen.beginPath();
  for (const arrow of list) {
    const x = xBox(arrow.head), y = yOf(arrow.head.row);
    pen.moveTo(x, y); pen.lineTo(x - 7, y - 3.5); pen.lineTo(x - 7, y + 3.5); pen.closePath();
  }
  pen.fill();
}
function cut(text, room) {
  if (text.length <= room) return text;
  if (room < 2) return '';
  const tail = room >= 8 ? Math.floor(room / 4) : 0;
  return text.slice(0, room - 1 - tail) + '\u2026' + (tail ? text.slice(-tail) : '');
}
const cutLeft = (text, room) => text.length <= room ? text : '\u2026' + text.slice(text.length - Math.max(room - 1, 0));
function drawBox(box) {
  const x = xBox(box), w = wideOf(box), h = tall(), y = yOf(box.row) - h / 2;
  const off = matches && !hits.has(box.number), lit = matches && !off;
  if (off) { pen.fillStyle = colors.ground; pen.fillRect(x, y, Math.max(w, 1), h); }
  pen.globalAlpha = off ? 0.3 : 1;
  if (!labelled(box)) {
    pen.fillStyle = colors['c' + box.color];
    pen.fillRect(x, y, Math.max(w, 1), h);
    if (lit) { pen.fillStyle = colors.hit; pen.fillRect(x, y - 5, Math.max(w, 2), 4); }
  } else {
    rounded(pen, x, y, w, h, 5);
    pen.fillStyle = lit ? colors.glow : colors.box;
    pen.fill();
    pen.strokeStyle = lit ? colors.hit : colors.edge;
    pen.lineWidth = lit ? 2 : 1;
    pen.stroke();
    pen.fillStyle = colors['c' + box.color];
    pen.fillRect(x + 3, y + 5, 4, h - 10);
    pen.fillStyle = colors.text;
    pen.font = `600 11.5px ${colors.mono}`;
    const two = h >= 30;
    const inset = 12 + (timed ? clamp(LEFT - x, 0, Math.max(0, w - 48)) : 0);  // names of long boxes stay in view
    const name = cut(box.short, Math.floor((w - inset - 6) / colors.wide));
    pen.fillText(name, x + inset, y + (two ? h / 2 - 3 : h / 2 + 4));
    if (two) {
      pen.fillStyle = colors.dim;
      pen.font = `10px ${colors.mono}`;
      const room = Math.floor((w - inset - 4) / colors.wide * 1.15);
      const words = [timed ? inTime(times[box.number][1], 1) : box.kind, box.where];
      const parts = words.filter(word => word && word !== box.short), both = parts.join(' ');
      const told = both.length <= room ? both : cutLeft(parts[timed ? 0 : parts.length - 1], room);
      pen.fillText(told, x + inset, y + h / 2 + 11);
    }
  }
  if (box.marks.length) drawMarks(box, x + w, y);
  pen.globalAlpha = 1;
}
function drawMarks(box, x, y) {
  pen.fillStyle = colors.mark;
  if (!labelled(box)) { pen.beginPath(); pen.arc(x, y, pitch < 8 ? 2 : 3, 0, 7); pen.fill(); return; }
  pen.font = `bold 9.5px ${colors.mono}`;
  for (const number of box.marks.slice(0, 3).reverse()) {
    const text = String(number + 1), w = 8 + 6 * text.length;
    rounded(pen, x - w - 2, y - 8, w, 14, 7);
    pen.fillStyle = colors.mark;
    pen.fill();
    pen.fillStyle = colors.marktext;
    pen.fillText(text, x - w + 2, y + 2.5);
    x -= w + 2;
  }
}
function outline(box, thick) {
  if (!box) return;
  const h = tall(), grow = labelled(box) ? 3 : 2;
  rounded(pen, xBox(box) - grow, yOf(box.row) - h / 2 - grow, Math.max(wideOf(box), 1) + 2 * grow, h + 2 * grow, 6);
  pen.strokeStyle = colors.arrow;
  pen.lineWidth = thick;
  pen.stroke();
}
const units = [[1e6, 's'], [1e3, 'ms'], [1, 'us']];
function inTime(us, step) {
  const [size, name] = units.find(([size]) => Math.max(step, us / 1e4) >= size) || units[2];
  return `${Number((us / size).toFixed(3))} ${name}`;
}
function drawAxis() {  // lines at round times, and which they are
  const least = 96 * unit / pitch, power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map(n => n * power).find(n => n >= least) || 10 * power;
  pen.font = `10px ${colors.mono}`;
  for (let n = Math.max(0, Math.ceil((left - PAD) / pitch * unit / step)); ; n++) {
    const x = xOf(n * step / unit);
    if (x > width) break;
    pen.fillStyle = colors.rail;
    pen.fillRect(Math.round(x), 0, 1, height);
    pen.fillStyle = colors.dim;
    pen.fillText(inTime(n * step, step), x + 3, height - 4);
  }
}
function drawLanes(first, last) {
  pen.fillStyle = colors.ground;
  pen.fillRect(0, 0, LEFT, height);
  pen.fillStyle = colors.rail;
  pen.fillRect(LEFT - 1, 0, 1, height);
  for (let row = first; row <= last; row++) {
    const y = yOf(row), story = rows[row].story, found = /, (origin|forked from lane \d+)/.exec(story);
    pen.fillStyle = colors.text;
    pen.font = `600 11.5px ${colors.mono}`;
    pen.fillText(cut(rows[row].title, Math.floor((LEFT - 16) / colors.wide)), 10, lane >= 34 ? y - 2 : y + 4);
    if (!found || lane < 34) continue;
    pen.fillStyle = colors.dim;
    pen.font = `10px ${colors.mono}`;
    pen.fillText(found[1].replace('forked ', '').replace('lane ', ''), 10, y + 11);
  }
}
function draw() {
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.fillStyle = colors.ground;
  pen.fillRect(0, 0, width, height);
  const first = clamp(Math.floor((top - PAD) / lane), 0, rows.length);
  const last = clamp(Math.ceil((top + height) / lane), -1, rows.length - 1);
  const start = (left - PAD) / pitch - 1, end = start + (width - LEFT + PAD) / pitch + 2;
  if (timed) drawAxis();
  pen.lineWidth = 2;
  pen.strokeStyle = colors.rail;
  pen.beginPath();
  for (let row = first; row <= last; row++) {
    const list = rows[row].boxes;
    if (!list.length) continue;
    pen.moveTo(Math.max(xBox(list[0]), 0), yOf(row));
    pen.lineTo(Math.min(xBox(list[list.length - 1]) + wideOf(list[list.length - 1]), width), yOf(row));
  }
  pen.stroke();
  const seen = arrows.filter(({tail, head}) => Math.max(startOf(tail), startOf(head)) >= start
    && Math.min(startOf(tail), startOf(head)) <= end && Math.max(tail.row, head.row) >= first
    && Math.min(tail.row, head.row) <= last && !(timed && tail.row === head.row));
  const cross = seen.filter(arrow => timed || arrow.way !== 'along'), heads = pitch >= 40;
  if (pitch >= 14 && !timed) drawArrows(seen.filter(arrow => arrow.way === 'along'), colors.step, 1.2, heads);
  pen.globalAlpha = clamp(pitch / 14, 0.12, 1);
  if (pitch >= 0.8) drawArrows(cross, colors.arrow, heads ? 1.5 : 0.8, heads);
  pen.globalAlpha = 1;
  for (let row = first; row <= last; row++) {
    const list = rows[row].boxes;
    let i = from(list, start - rows[row].longest);
    for (; i < list.length && startOf(list[i]) <= end; i++) drawBox(list[i]);
  }
  for (const box of new Set([selected, hovered])) {
    if (box) drawArrows([...box.before, ...box.after], colors.hit, 2, true);
    outline(box, box === selected ? 2.5 : 1.5);
  }
  drawLanes(first, last);
  drawOverview();
}
function drawOverview() {
  const w = overview.width / ratio, h = overview.height / ratio, step = w / Math.max(1, data.columns);
  const line = Math.max(1, (h - 8) / rows.length);
  small.setTransform(ratio, 0, 0, ratio, 0, 0);
  if (!strip) {
    small.fillStyle = colors.side;
    small.fillRect(0, 0, w, h);
    for (const box of boxes) {
      small.globalAlpha = matches && !hits.has(box.number) ? 0.15 : 1;
      small.fillStyle = colors['c' + box.color];
      const wide = timed ? times[box.number][1] / unit * step : step * 0.8;
      small.fillRect(startOf(box) * step, 4 + box.row * (h - 8) / rows.length, Math.max(wide, 0.7), line * 0.7);
    }
    small.globalAlpha = 1;
    strip = document.createElement('canvas');
    [strip.width, strip.height] = [overview.width, overview.height];
    if (strip.width && strip.height) strip.getContext('2d').drawImage(overview, 0, 0);
  } else if (strip.width && strip.height) small.drawImage(strip, 0, 0, w, h);
  small.strokeStyle = colors.arrow;
  small.lineWidth = 2;
  const x = left / pitch * step, wide = (width - LEFT - PAD) / pitch * step;
  small.strokeRect(clamp(x, 1, w - 4), 1, Math.max(3, Math.min(wide, w - x - 2)), h - 2);
}

// -- what is said ----------------------------------------------------------------------------------------------

const inWords = count => count.toLocaleString('en');
function told(box) {
  const lines = [`#${box.number} ${box.name}`, box.place ? `${box.kind} at ${box.where}` : box.kind];
  for (const [key, value] of box.detail) lines.push(`${key}: ${value}`);
  for (const number of box.marks) lines.push(`[${number + 1}] ${data.marks[number][0]}`);
  return lines.join('\n');
}
function hover(box, x, y) {
  if (box !== hovered) { hovered = box; show(); }
  tip.hidden = !box;
  if (!box) return;
  tip.textContent = told(box);
  tip.style.left = tip.style.top = '0';
  tip.style.left = `${clamp(x + 14, 0, Math.max(0, width - tip.offsetWidth - 4))}px`;
  const below = y + 18, room = stage.clientHeight - tip.offsetHeight - 4;
  tip.style.top = `${below <= room ? below : Math.max(0, y - tip.offsetHeight - 12)}px`;
}
function element(name, text, parent) {
  const made = document.createElement(name);
  if (text !== null) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}
function jump(parent, text, box) {
  const button = element('button', text, parent);
  button.type = 'button';
  button.addEventListener('click', () => select(box));
}
function select(box) {
  selected = box;
  const panel = $('selected');
  panel.replaceChildren();
  element('h2', 'Selected', panel);
  if (!box) { element('p', 'Click a box, or use the arrow keys.', panel).className = 'dim'; show(); return; }
  const list = element('dl', null, panel);
  const pairs = [['number', `#${box.number}`], ['name', box.name], ['kind', box.kind], ['lane', rows[box.row].title]];
  if (box.place) pairs.push(['line', box.place]);
  for (const [key, value] of [...pairs, ...box.detail]) { element('dt', key, list); element('dd', value, list); }
  for (const [title, others] of [['after', box.before.map(a => a.tail)], ['before', box.after.map(a => a.head)]]) {
    if (!others.length) continue;
    element('dt', title, list);
    for (const other of others.slice(0, 20)) jump(element('dd', null, list), `#${other.number} ${other.short}`, other);
  }
  for (const number of box.marks) {
    element('dt', `mark ${number + 1}`, list);
    element('dd', data.marks[number][0], list);
  }
  reveal(box);
}
function find(text) {
  const wanted = text.trim().toLowerCase();
  const inside = box => box.text ??= [box.name, box.kind, box.where, box.place, rows[box.row].title,
    ...box.detail.flat(), ...box.marks.map(number => data.marks[number][0])].join('\n').toLowerCase();
  matches = wanted ? boxes.filter(box => inside(box).includes(wanted)) : null;
  hits = new Set(matches ? matches.map(box => box.number) : []);
  at = -1;
  strip = null;
  $('count').textContent = matches ? `${inWords(matches.length)} of ${inWords(boxes.length)}` : '';
  show();
}
function step(by) {
  if (!matches || !matches.length) return;
  at = at < 0 && by < 0 ? matches.length - 1 : (at + by + matches.length) % matches.length;
  $('count').textContent = `${inWords(at + 1)} of ${inWords(matches.length)} matches`;
  select(matches[at]);
}
function walk(key) {
  if (!boxes.length) return;
  if (!selected) { select(nearest(rows.findIndex(row => row.boxes.length), (left + 1) / pitch)); return; }
  const list = rows[selected.row].boxes, i = list.indexOf(selected);
  if (key === 'ArrowLeft' || key === 'ArrowRight') {
    select(list[clamp(i + (key === 'ArrowLeft' ? -1 : 1), 0, list.length - 1)]);
    return;
  }
  const by = key === 'ArrowUp' ? -1 : 1;
  for (let row = selected.row + by; row >= 0 && row < rows.length; row += by) {
    if (rows[row].boxes.length) { select(nearest(row, startOf(selected))); return; }
  }
}

// -- what is done ----------------------------------------------------------------------------------------------

const touches = new Map();
let moved = 0;
function spot(event) {
  const r = canvas.getBoundingClientRect();
  return [event.clientX - r.left, event.clientY - r.top];
}
canvas.addEventListener('pointerdown', event => {
  canvas.setPointerCapture(event.pointerId);
  touches.set(event.pointerId, spot(event));
  moved = 0;
});
canvas.addEventListener('pointermove', event => {
  const [x, y] = spot(event), before = touches.get(event.pointerId);
  if (!before) { hover(under(x, y), x, y); return; }
  const [other] = [...touches].filter(([id]) => id !== event.pointerId).map(([, point]) => point);
  touches.set(event.pointerId, [x, y]);
  if (other) {
    const was = Math.hypot(before[0] - other[0], before[1] - other[1]);
    if (was > 0) zoom(Math.hypot(x - other[0], y - other[1]) / was, (x + other[0]) / 2);
    moved = 9;
    return;
  }
  moved += Math.abs(x - before[0]) + Math.abs(y - before[1]);
  if (moved < 4) return;
  canvas.classList.add('drag');
  hover(null);
  left -= x - before[0];
  top -= y - before[1];
  show();
});
for (const name of ['pointerup', 'pointercancel']) canvas.addEventListener(name, event => {
  touches.delete(event.pointerId);
  canvas.classList.remove('drag');
  if (name === 'pointerup' && moved < 4) select(under(...spot(event)));
});
canvas.addEventListener('pointerleave', () => hover(null));
canvas.addEventListener('wheel', event => {
  event.preventDefault();
  const scale = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 300 : 1, [x, y] = spot(event);
  if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    left += (event.deltaX || event.deltaY) * scale;
    show();
  } else zoom(Math.exp(clamp(-event.deltaY * scale * 0.0018, -0.7, 0.7)), Math.max(x, LEFT));
  hover(under(x, y), x, y);
}, {passive: false});
canvas.addEventListener('keydown', event => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const key = event.key, acts = {
    '+': () => zoom(1.3), '=': () => zoom(1.3), '-': () => zoom(1 / 1.3), '_': () => zoom(1 / 1.3), '0': fit,
    Home: () => boxes.length && select(boxes[0]), End: () => boxes.length && select(boxes[boxes.length - 1]),
    Escape: () => select(null), PageDown: () => { left += width / 2; show(); },
    PageUp: () => { left -= width / 2; show(); }};
  if (key.startsWith('Arrow')) {
    const by = {ArrowLeft: [-90, 0], ArrowRight: [90, 0], ArrowUp: [0, -lane], ArrowDown: [0, lane]}[key];
    if (event.shiftKey) { left += by[0]; top += by[1]; show(); } else walk(key);
  } else if (acts[key]) acts[key]();
  else return;
  event.preventDefault();
});
document.addEventListener('keydown', event => {
  if (document.activeElement === search || event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.key === '/') { event.preventDefault(); search.focus(); }
  if (event.key === 't') tell(!timed);
});
search.addEventListener('input', () => find(search.value));
search.addEventListener('keydown', event => {
  if (event.key === 'Enter') step(event.shiftKey ? -1 : 1);
  if (event.key === 'Escape') { search.value = ''; find(''); canvas.focus(); }
});
$('next').addEventListener('click', () => step(1));
$('previous').addEventListener('click', () => step(-1));
$('in').addEventListener('click', () => zoom(1.4));
$('out').addEventListener('click', () => zoom(1 / 1.4));
$('fit').addEventListener('click', fit);
$('clock').addEventListener('click', () => tell(!timed));
function turn(event) {
  if (event.type === 'pointermove' && !event.buttons) return;
  const r = overview.getBoundingClientRect();
  left = (event.clientX - r.left) / r.width * data.columns * pitch - (width - LEFT) / 2;
  show();
}
overview.addEventListener('pointerdown', event => { overview.setPointerCapture(event.pointerId); turn(event); });
overview.addEventListener('pointermove', turn);

// -- at the beginning ------------------------------------------------------------------------------------------

function paint() {
  const style = getComputedStyle(document.documentElement);
  const names = 'ground side text dim rail box edge arrow step mark marktext hit glow mono c0 c1 c2 c3 c4 c5 c6 c7 c8';
  for (const name of names.split(' ')) colors[name] = style.getPropertyValue('--' + name).trim();
  pen.font = `600 11.5px ${colors.mono}`;
  colors.wide = pen.measureText('0').width || 7;
  strip = null;
  show();
}
function resize() {
  ratio = window.devicePixelRatio || 1;
  overview.style.height = `${clamp(rows.length * 6 + 8, 22, 72)}px`;
  for (const each of [canvas, overview]) {
    each.width = Math.round(each.clientWidth * ratio);
    each.height = Math.round(each.clientHeight * ratio);
  }
  [width, height] = [canvas.clientWidth, canvas.clientHeight];
  lane = clamp((height - 2 * PAD) / Math.max(1, rows.length), 26, 62);
  if (!pitch && width) pitch = smallest() < 90 ? 126 : Math.min(smallest(), 170);
  strip = null;
  if (!pitch) return;
  bound();
  draw();
}
data.legend.forEach(([name, count], i) => {
  const item = element('li', null, $('legend'));
  element('i', null, item).style.background = `var(--c${Math.min(i, 8)})`;
  element('span', `${name} x ${inWords(count)}`, item);
});
rows.slice(0, 300).forEach(({title, story}) => { element('dt', title, $('rows')); element('dd', story, $('rows')); });
if (data.marks.length) {
  const list = $('marks').querySelector('ol');
  $('marks').hidden = false;
  for (const [line, box] of data.marks.slice(0, 500)) {
    const item = element('li', null, list);
    box === null ? item.textContent = line : jump(item, line, boxes[box]);
  }
  if (data.marks.length > 500) element('p', `and ${data.marks.length - 500} more`, $('marks'));
}
order();
$('clock').hidden = $('clockhelp').hidden = !times;
paint();
new ResizeObserver(resize).observe(canvas);
window.matchMedia('(prefers-color-scheme: dark)').addEventListener('change', paint);
window.capturekit = {  // for those who look on from outside, tests among them
  spot: number => {
    const r = canvas.getBoundingClientRect(), box = boxes[number];
    return [r.left + xBox(box) + Math.max(wideOf(box), 1) / 2, r.top + yOf(box.row)];
  },
  view: () => ({pitch, left, top, timed, unit, columns: data.columns, selected: selected && selected.number,
    ready: width > 0}),
};
})();
