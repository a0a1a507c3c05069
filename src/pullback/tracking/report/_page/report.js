"use strict";
// Data: a list of rows with two sides each; their points lie one after another in one block of
// four bytes a point, as pullback.tracking.run._log packs them.
const data = JSON.parse(document.getElementById("data").textContent);
const bytes = Uint8Array.from(atob(data.points), (c) => c.charCodeAt(0));
const view = new DataView(bytes.buffer);
const BAD = 7, EMPTY = 8, NULL = 16;
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const element = (id) => document.getElementById(id);
const power = (e) => "2" + String(Math.round(e)).replace(/./g, (c) => c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c]);
const number = (x) => x === null ? "–" : x === 0 ? "0" : Math.abs(x) >= 1e5 || Math.abs(x) < 1e-3
  ? x.toExponential(2).replace("e+", "e") : String(Number(x.toPrecision(3)));

const levelOf = (code) => Math.sign(code) * (Math.abs(code) <= 27800 ? Math.abs(code) / 200
  : 139 + (Math.abs(code) - 27800) / 5) - 11;

function decode(side) {
  if (!side || side.read) return side;
  side.read = true;
  side.scale = new Float32Array(side.count); side.peak = new Float32Array(side.count);
  side.flags = new Uint8Array(side.count);
  for (let i = 0; i < side.count; i++) {
    const at = 4 * (side.offset + i), stored = view.getInt16(at, true);
    const hidden = stored === -32767 ? NaN : stored === -32768 ? -Infinity : 0;
    side.scale[i] = hidden === 0 ? levelOf(stored) : hidden;
    side.peak[i] = hidden === 0 ? side.scale[i] + bytes[at + 2] / 8 : hidden;
    side.flags[i] = Math.max(bytes[at + 3] - 248, 0) | (hidden === 0 ? 0 : hidden < 0 ? NULL : EMPTY);
  }
  side.moments = side.moments || null;
  return side;
}
const column = (side, i) => side.moments ? side.moments[i] : i;
data.rows.forEach((row) => { row.group = row.group || "layers"; });
const groups = [...new Set(data.rows.map((row) => row.group))];
// Rows of one group are drawn alike: an optimizer's states would stretch the axis of layers.
const rowsOf = (group) => data.rows.filter((row) => row.group === group);
const sidesOf = (which, group) => rowsOf(group).map((row) => row[which]).filter(Boolean).map(decode);
const inEach = (make) => Object.fromEntries(groups.map((group) => [group,
  { forward: make("forward", group), backward: make("backward", group) }]));
const shown = () => element("group").value;

function extent(list) {
  let low = Infinity, high = -Infinity;
  for (const side of list) {
    for (let i = 0; i < side.count; i++) {
      if (isFinite(side.scale[i])) { low = Math.min(low, side.scale[i]); high = Math.max(high, side.peak[i]); }
    }
    const total = side.bins.reduce((a, b) => a + b, 0);
    let below = 0;  // the lowest hundredth of the values may leave the picture
    for (let i = 0; i < side.bins.length; i++) {
      below += side.bins[i];
      if (below > total / 100) { low = Math.min(low, side.first + i); break; }
    }
  }
  if (!isFinite(low)) return [-4, 4];
  return [Math.floor(low) - 1, Math.ceil(Math.max(high, low + 6)) + 1];
}
const shared = inEach((which, group) => extent(sidesOf(which, group)));

function canvasFor(canvas, height) {
  const ratio = window.devicePixelRatio || 1, width = canvas.clientWidth || 400;
  canvas.width = Math.round(width * ratio); canvas.height = Math.round(height * ratio);
  canvas.style.height = height + "px";
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  return [pen, width, height];
}

// The map: dark blue is small, pale is the median of its direction, dark red is large.
function spread(which, group) {
  const levels = sidesOf(which, group).flatMap((s) => Array.from(s.scale).filter(isFinite)).sort((a, b) => a - b);
  const quantile = (q) => levels.length ? levels[Math.min(levels.length - 1, Math.floor(q * levels.length))] : 0;
  const middle = quantile(.5);
  return [middle, Math.max(2, quantile(.99) - middle, middle - quantile(.01))];
}
const spreads = inEach(spread);
const stops = [[23, 54, 122], [74, 134, 200], [190, 214, 232], [246, 243, 236], [244, 200, 165], [214, 112, 66], [125, 28, 30]];
function colour(level, [middle, reach]) {
  const t = Math.max(0, Math.min(1, (level - middle) / (2 * reach) + .5)) * (stops.length - 1);
  const i = Math.min(stops.length - 2, Math.floor(t)), f = t - i;
  return stops[i].map((a, k) => Math.round(a + (stops[i + 1][k] - a) * f));
}
function drawMap(id, which) {
  const canvas = element(id), rows = rowsOf(shown()), columns = data.moments.length;
  const cell = Math.max(1, Math.min(15, Math.floor(520 / Math.max(rows.length, 1))));
  const height = Math.max(24, rows.length * cell);
  const [pen, full] = canvasFor(canvas, height);
  const left = labels(pen, rows, height, full), width = full - left;
  const image = document.createElement("canvas");
  image.width = Math.max(columns, 1); image.height = Math.max(rows.length, 1);
  const paint = image.getContext("2d"), pixels = paint.createImageData(image.width, image.height);
  rows.forEach((row, y) => {
    const side = row[which];
    if (!side) return;
    for (let i = 0; i < side.count; i++) {
      const at = 4 * (y * image.width + column(side, i)), flags = side.flags[i];
      const rgb = flags & BAD ? [255, 0, 144] : flags & NULL ? [40, 40, 44] : colour(side.scale[i], spreads[row.group][which]);
      pixels.data.set([...rgb, 255], at);
    }
  });
  paint.putImageData(pixels, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(image, left, 0, width, height);
  pen.fillStyle = css("--bad");
  rows.forEach((row, y) => {
    if (row.problems.length) pen.fillRect(left, y * height / rows.length, 5, Math.max(1, height / rows.length));
  });
  const ends = canvas.nextElementSibling.children;
  ends[0].textContent = moment(0); ends[1].textContent = moment(columns - 1);
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [Math.floor((event.clientX - box.left - left) / (box.width - left) * columns),
      Math.floor((event.clientY - box.top) / box.height * rows.length)];
  };
  canvas.onmousemove = (event) => {
    const [x, y] = at(event), row = rows[y], side = row && row[which];
    if (!row || x < 0) return;
    let i = side ? (side.moments ? side.moments.indexOf(x) : x) : -1;
    tip(event, row.name + "\n" + moment(x) + ": " + (i >= 0 && i < (side ? side.count : 0) ? level(side, i) : "not measured"));
  };
  canvas.onmouseleave = () => { element("tip").hidden = true; };
  canvas.onclick = (event) => { const row = rows[at(event)[1]]; if (row) go(row); };
}
// Names at the left of a map: of every row where there is room, else of some at equal distances.
function labels(pen, rows, height, width) {
  const line = 12, step = Math.max(1, Math.ceil(line * rows.length / height));
  const named = rows.map((row, y) => [row.name, y]).filter(([, y]) => y % step === 0);
  pen.font = "11px system-ui, sans-serif"; pen.textAlign = "right"; pen.textBaseline = "middle";
  pen.fillStyle = css("--muted");
  const room = Math.min(6 + Math.max(0, ...named.map(([name]) => pen.measureText(name).width)), width / 3);
  for (const [name, y] of named) {
    let text = name, left = name.length;  // its beginning and its end tell layers apart
    while (left > 2 && pen.measureText(text).width > room - 5) text = name.slice(0, --left * 2 / 3) + "…" + name.slice(-left / 3);
    pen.fillText(text, room, Math.max((y + .5) * height / rows.length, line / 2));
  }
  return room + 8;
}
const level = (side, i) => (side.flags[i] & EMPTY ? "nothing finite" : side.flags[i] & NULL ? "all zero"
  : "scale " + power(side.scale[i]) + " = " + number(2 ** side.scale[i]) + ", max " + number(2 ** side.peak[i]))
  + (side.flags[i] & BAD ? ", with NaN or infinity" : "");
function moment(x) {
  const m = data.moments[x];
  return m === undefined ? "" : "step " + m[0] + (data.microbatches ? ", microbatch " + m[1] : "");
}
function legend(which) {
  const place = element("legend-" + which), canvas = document.createElement("canvas");
  const range = spreads[shown()][which], [middle, reach] = range;
  place.replaceChildren(power(middle - reach) + " ", canvas, " " + power(middle + reach));
  const [pen, width] = canvasFor(canvas, 11);
  for (let x = 0; x < width; x++) {
    pen.fillStyle = "rgb(" + colour(middle + (2 * x / width - 1) * reach, range) + ")"; pen.fillRect(x, 0, 1, 11);
  }
}
function tip(event, text) {
  const box = element("tip");
  box.textContent = text; box.hidden = false;
  box.style.left = Math.min(event.clientX + 14, window.innerWidth - box.offsetWidth - 8) + "px";
  box.style.top = Math.min(event.clientY + 14, window.innerHeight - box.offsetHeight - 8) + "px";
}

function drawChart(canvas, side, range, ink) {
  const [pen, width, height] = canvasFor(canvas, 164);
  const left = 38, bars = 62, right = width - bars - 6, top = 6, bottom = height - 18;
  const y = (e) => bottom - (Math.max(range[0], Math.min(range[1], e)) - range[0]) / (range[1] - range[0]) * (bottom - top);
  const columns = Math.max(data.moments.length - 1, 1);
  const x = (i) => data.moments.length < 2 ? (left + right) / 2 : left + 5 + column(side, i) / columns * (right - left - 10);
  const format = data.formats[Number(element("format").value)];
  const band = (low, high, fill) => {
    const a = y(Math.min(high, range[1])), b = y(Math.max(low, range[0]));
    if (b > a) { pen.fillStyle = css(fill); pen.fillRect(left, a, width - left, b - a); }
  };
  band(range[0], format.tiny, "--out"); band(format.tiny, format.normal, "--small");
  band(format.normal, format.top, "--normal"); band(format.top, range[1], "--out");
  pen.font = "11px system-ui, sans-serif"; pen.textBaseline = "middle";
  const step = [1, 2, 4, 8, 16, 32, 64].find((s) => (range[1] - range[0]) / s <= 7) || 64;
  for (let e = Math.ceil(range[0] / step) * step; e <= range[1]; e += step) {
    pen.strokeStyle = css("--rule"); pen.lineWidth = 1; pen.beginPath();
    pen.moveTo(left, Math.round(y(e)) + .5); pen.lineTo(width, Math.round(y(e)) + .5); pen.stroke();
    pen.fillStyle = css("--muted"); pen.textAlign = "right"; pen.fillText(power(e), left - 6, y(e));
  }
  pen.textBaseline = "alphabetic"; pen.textAlign = "left";
  if (data.moments.length) {
    const last = data.moments.length - 1;
    let ends = [moment(0), moment(last)];
    if (pen.measureText(ends.join("  ")).width > right - left) ends = [data.moments[0][0], data.moments[last][0]];
    pen.fillText(ends[0], left, height - 4); pen.textAlign = "right";
    if (last) pen.fillText(ends[1], right, height - 4);
  }
  const most = Math.max(...side.bins, 1), unit = (bottom - top) / (range[1] - range[0]);
  pen.fillStyle = ink; pen.globalAlpha = .5;
  side.bins.forEach((share, i) => {
    const e = side.first + i;
    if (share && e + 1 > range[0] && e < range[1]) {
      const length = share / most * (bars - 6);
      pen.fillRect(width - 2 - length, y(e + 1) + .5, length, Math.max(1, unit - 1));
    }
  });
  pen.globalAlpha = 1;
  line(pen, side, side.peak, x, y, ink, 1, [4, 3]); line(pen, side, side.scale, x, y, ink, 2, []);
  pen.fillStyle = css("--bad");
  for (let i = 0; i < side.count; i++) {
    if (side.flags[i] & BAD) {
      pen.save(); pen.translate(x(i), top + 5); pen.rotate(Math.PI / 4); pen.fillRect(-3.5, -3.5, 7, 7); pen.restore();
    }
  }
  const nulls = side.flags.filter((flag) => flag & NULL).length;
  if (nulls) {
    pen.textAlign = "left"; pen.fillStyle = ink; pen.fillText(nulls === side.count ? "all zero" : "all zero at times", left + 8, bottom - 7);
    for (let i = 0; i < side.count; i++) if (side.flags[i] & NULL) pen.fillRect(x(i) - 2, bottom - 3, 4, 3);
  }
  canvas.onmousemove = (event) => {
    const spot = event.clientX - canvas.getBoundingClientRect().left;
    let best = 0;
    for (let i = 1; i < side.count; i++) if (Math.abs(x(i) - spot) < Math.abs(x(best) - spot)) best = i;
    if (side.count) tip(event, moment(column(side, best)) + ": " + level(side, best));
  };
  canvas.onmouseleave = () => { element("tip").hidden = true; };
}
function line(pen, side, values, x, y, ink, width, dash) {
  pen.strokeStyle = ink; pen.fillStyle = ink; pen.lineWidth = width; pen.setLineDash(dash); pen.lineJoin = "round";
  pen.beginPath();
  let open = false, drawn = 0;
  for (let i = 0; i < side.count; i++) {
    if (!isFinite(values[i])) { open = false; continue; }
    if (open) pen.lineTo(x(i), y(values[i])); else pen.moveTo(x(i), y(values[i]));
    open = true; drawn++;
  }
  pen.stroke(); pen.setLineDash([]);
  if (drawn === 1) for (let i = 0; i < side.count; i++) {
    if (isFinite(values[i])) { pen.beginPath(); pen.arc(x(i), y(values[i]), width + .8, 0, 7); pen.fill(); }
  }
}

const make = (tag, text, kind) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
};
function figures(row) {
  const table = make("table"), head = make("thead"), top = make("tr");
  ["", "forward", "backward"].forEach((text) => top.append(make("th", text)));
  head.append(top); table.append(head);
  data.figures.forEach((label, i) => {
    const line = make("tr");
    line.append(make("td", label));
    for (const side of [row.forward, row.backward]) {
      const value = side ? side.figures[i] : null;
      const text = label.includes("%") && value !== null ? number(100 * value) + " %" : number(value);
      line.append(make("td", text, label === "non-finite" && value > 0 ? "alarm" : ""));
    }
    table.append(line);
  });
  return table;
}
function build(row) {
  const box = make("article", undefined, "row"), words = make("div");
  words.append(make("h3", row.name));
  if (row.also) words.append(make("p", "the same tensor as " + row.also.join(", "), "also"));
  row.problems.forEach((text) => words.append(make("span", text, "badge" + (text === "non-finite" ? " bad" : ""))));
  words.append(figures(row)); box.append(words);
  for (const which of ["forward", "backward"]) {
    box.append(row[which] ? make("canvas") : make("div", "no " + which + " pass measured", "none"));
  }
  box.row = row; row.box = box;
  return box;
}
function paint(box) {
  const row = box.row, both = [row.forward, row.backward].filter(Boolean);
  const own = element("axis").value === "own";
  const canvases = [...box.querySelectorAll("canvas")];
  both.forEach((side, i) => {
    const which = side === row.forward ? "forward" : "backward";
    drawChart(canvases[i], side, own ? extent([side]) : shared[row.group][which], css("--" + which));
  });
}
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    entry.target.seen = entry.isIntersecting;
    if (entry.isIntersecting) paint(entry.target);
  }
}, { rootMargin: "400px" });
const orders = {
  execution: (a, b) => a.index - b.index,
  problems: (a, b) => a.rank - b.rank || a.index - b.index,
  smallest: (a, b) => mean(a.backward, Infinity) - mean(b.backward, Infinity),
  largest: (a, b) => mean(b.forward, -Infinity) - mean(a.forward, -Infinity),
};
const mean = (side, missing) => side && side.figures[0] !== null ? side.figures[0] : missing;
function list() {
  const words = element("search").value.trim().toLowerCase(), rows = element("rows");
  const chosen = rowsOf(shown()).filter((row) => [row.name, ...(row.also || [])].some((name) => name.toLowerCase().includes(words)));
  chosen.sort(orders[element("order").value]);
  watcher.disconnect();
  rows.replaceChildren(...chosen.map((row) => row.box || build(row)));
  chosen.forEach((row) => watcher.observe(row.box));
  element("shown").textContent = chosen.length + " of " + rowsOf(shown()).length + " " + words_of[shown()];
}
function go(row) {
  element("search").value = ""; choose(row.group);
  document.querySelectorAll(".found").forEach((box) => box.classList.remove("found"));
  row.box.classList.add("found"); row.box.scrollIntoView({ block: "center" });
}
const repaint = () => document.querySelectorAll(".row").forEach((box) => { if (box.seen) paint(box); });
const words_of = { layers: "layers", parameters: "parameters", updates: "updates", states: "states of the optimizer" };
function choose(group) {
  element("group").value = group;
  ["forward", "backward"].forEach(legend); maps(); list();
}
function maps() { drawMap("map-forward", "forward"); drawMap("map-backward", "backward"); }
document.querySelectorAll("[data-row]").forEach((link) => link.addEventListener("click", (event) => {
  event.preventDefault(); go(data.rows[Number(link.dataset.row)]);
}));
element("search").addEventListener("input", list);
element("order").addEventListener("change", list);
element("format").addEventListener("change", repaint);
element("axis").addEventListener("change", repaint);
window.addEventListener("resize", () => { maps(); repaint(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaint);
data.rows.forEach((row, index) => { row.index = index; });
groups.forEach((group) => element("group").append(new Option(words_of[group], group)));
element("group").parentElement.hidden = groups.length < 2;
element("group").addEventListener("change", () => choose(shown()));
if (groups.length) choose(groups[0]);
