"use strict";
// Draws the attention maps in #data.  Nothing is fetched, and text is only ever set as text.

const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const VIEWS = { grid: "All heads", matrix: "Matrix", lines: "Lines", numbers: "Numbers" };
const SCALES = { linear: "linear", log: "logarithmic", row: "row maximum" };
const MODES = { side: "side by side", difference: "difference" };

const state = { layer: 0, head: "mean", model: 0, mode: "side", zoom: 1, ...data.start };
let pinned = null; // the cell chosen by click or key: { row, column }, -1 for none of the axis
let hovered = null; // the cell under the pointer
const active = () => hovered || pinned || { row: -1, column: -1 };

function element(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}
const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const palette = (hex) => hex.match(/../g).map((pair) => parseInt(pair, 16));
const colours = {
  sequential: palette(data.colours.sequential),
  diverging: palette(data.colours.diverging),
};

// ---- Values: decoding, merging, scaling ----

const decoded = new Map();
function decode(coded) {
  if (!decoded.has(coded)) decoded.set(coded, inflate(coded));
  return decoded.get(coded);
}

// Each row of a map has its own step and zero; power 2 is finer near zero.
async function inflate(coded) {
  const bytes = Uint8Array.from(atob(coded.data), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  const buffer = await new Response(stream).arrayBuffer();
  const lines = coded.count * coded.rows;
  const steps = new Float32Array(buffer, 0, lines);
  const zeros = new Uint8Array(buffer, 4 * lines, lines);
  const cells = new Uint8Array(buffer, 5 * lines);
  const values = new Float32Array(lines * coded.columns);
  for (let i = 0; i < values.length; i++) {
    const line = Math.floor(i / coded.columns);
    const q = cells[i] - zeros[line];
    values[i] = steps[line] * (coded.power === 2 ? q * Math.abs(q) : q);
  }
  return values;
}

// The finest values there are of one head, or (head -1) of the mean over heads.
async function values(maps, layer, head) {
  const own = maps.full[`${layer}.${head < 0 ? "mean" : head}`];
  if (own) return { ...own, values: await decode(own) };
  const all = maps.overview;
  const every = await decode(all);
  const size = all.rows * all.columns;
  const start = layer * maps.heads.length * size;
  const one = (h) => every.subarray(start + h * size, start + (h + 1) * size);
  if (head >= 0) return { ...all, values: one(head) };
  const mean = new Float32Array(size);
  maps.heads.forEach((_, h) => one(h).forEach((value, i) => (mean[i] += value / maps.heads.length)));
  return { ...all, values: mean };
}

// The rows or columns to show: the places of each, and its label.
function groups(number, pool) {
  const axis = data.axes[number];
  const found = [];
  if (pool > 1) {
    const first = axis.text.filter((_, i) => i % pool === 0);
    return first.map((text, i) => ({ places: [i], label: `${text} \u2026` }));
  }
  axis.text.forEach((text, i) => {
    if (state.plain && axis.special[i]) return;
    const last = found.at(-1);
    if (state.words && last && axis.word[i] !== null && last.word === axis.word[i]) {
      last.places.push(i);
      last.label += text;
    } else found.push({ places: [i], label: text, word: axis.word[i] });
  });
  const plain = (label) => label.replaceAll(/[\u2581\u25cc]/g, " ").trim() || label;
  return state.words ? found.map((group) => ({ ...group, label: plain(group.label) })) : found;
}

// Attention to a word sums over its pieces, from a word averages.
function merge(maps, layer, head, coded) {
  const rows = groups(maps.queries, coded.pool[0]);
  const columns = groups(maps.keys, coded.pool[1]);
  const merged = new Float32Array(rows.length * columns.length);
  rows.forEach((row, r) => columns.forEach((column, c) => {
    let sum = 0;
    for (const i of row.places) {
      for (const j of column.places) sum += coded.values[i * coded.columns + j];
    }
    merged[r * columns.length + c] = sum / row.places.length;
  }));
  return { maps, layer, head, rows, columns, values: merged, pool: coded.pool, error: coded.error };
}

const mapsOf = (capture) => data.captures[capture].maps.find(({ kind }) => kind === state.kind);

async function mapOf(capture, number, name) {
  const maps = mapsOf(capture);
  const layer = maps ? maps.layers.findIndex((some) => some.number === number) : -1;
  const head = maps && name !== "mean" ? maps.heads.indexOf(name) : -1;
  if (layer < 0 || (head < 0 && name !== "mean")) return null;
  const merged = merge(maps, layer, head, await values(maps, layer, head));
  return merged.values.length ? { capture, ...merged } : null; // null too where all tokens are hidden
}

// What is shown in each pane for a layer and head: one map, two, or their difference.
async function chosen(number = state.layer, name = state.head) {
  const first = await mapOf(state.model, number, name);
  if (state.other < 0) return [first];
  const second = await mapOf(state.other, number, name);
  if (state.mode !== "difference" || !first || !second || !comparable(first, second)) return [first, second];
  const change = first.values.map((value, i) => second.values[i] - value);
  return [{ ...first, values: change, error: first.error + second.error, signed: true, second }];
}
const comparable = (a, b) =>
  a.maps.queries === b.maps.queries && a.maps.keys === b.maps.keys && String(a.pool) === String(b.pool);

function limitsOf(maps) {
  let low = 0, high = 0;
  for (const map of maps) for (const value of map.values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  const signed = maps.some((map) => map.signed);
  if (signed) high = Math.max(high, -low);
  return { low: signed ? -high : low, high: high || 1, signed };
}

const logEnd = (limits) => Math.max(limits.high, 10 * data.floor);

// A value's place on the colour bar, 0 to 1; `top` is the largest of its row.
function level(value, limits, top) {
  const scale = limits.signed ? "linear" : state.scale;
  const share = scale === "row" ? value / top
    : scale === "log" ? Math.log(value / data.floor) / Math.log(logEnd(limits) / data.floor)
    : (value - limits.low) / (limits.high - limits.low);
  return clamp(share || 0, 0, 1);
}
const rowOf = (map, row) => map.values.subarray(row * map.columns.length, (row + 1) * map.columns.length);

// A map for a thumbnail: the value farthest from zero of each block.
function shrink(map) {
  const by = Math.ceil(Math.max(map.rows.length, map.columns.length) / 64);
  if (by === 1) return map;
  const [rows, columns] = [map.rows, map.columns].map((some) => some.filter((_, i) => i % by === 0));
  const values = new Float32Array(rows.length * columns.length);
  map.values.forEach((value, i) => {
    const [row, column] = [Math.floor(i / map.columns.length), i % map.columns.length];
    const at = Math.floor(row / by) * columns.length + Math.floor(column / by);
    if (Math.abs(value) > Math.abs(values[at])) values[at] = value;
  });
  return { ...map, rows, columns, values };
}

function paint(map, limits) {
  const canvas = element("canvas", { width: map.columns.length, height: map.rows.length });
  const context = canvas.getContext("2d");
  const image = context.createImageData(canvas.width, canvas.height);
  const table = limits.signed ? colours.diverging : colours.sequential;
  for (let r = 0; r < canvas.height; r++) {
    const line = rowOf(map, r);
    const top = state.scale === "row" ? line.reduce((a, b) => Math.max(a, b), 0) : 0;
    line.forEach((value, c) => {
      const colour = 3 * Math.round(255 * level(value, limits, top));
      image.data.set([table[colour], table[colour + 1], table[colour + 2], 255], 4 * (r * canvas.width + c));
    });
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

// ---- Panes: matrix and lines, drawn only where they are visible ----

const panes = [...document.querySelectorAll(".pane")].map((section) => {
  const scroll = section.querySelector(".scroll");
  return { section, scroll, canvas: scroll.querySelector("canvas"), box: scroll.firstChild, map: null };
});
const shorten = (text) => ([...text].length > 18 ? `${[...text].slice(0, 17).join("")}\u2026` : text);
const FONT = '13px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif';
const LINE = 24;

function measure(pane) {
  const { rows, columns } = pane.map;
  const context = pane.canvas.getContext("2d");
  context.font = FONT;
  const width = ({ label }) => context.measureText(shorten(label)).width;
  const widest = (some) => some.reduce((most, group) => Math.max(most, width(group)), 56);
  const [left, above] = [widest(rows) + 12, widest(columns)];
  const room = pane.section.clientWidth - 16;
  if (state.view === "lines") {
    const across = Math.min(room, 760), most = across * 0.38;
    const height = LINE * (Math.max(rows.length, columns.length) + 1.5);
    pane.shape = { width: across, height, left: Math.min(left + 56, most), right: across - Math.min(above + 60, most) };
    return;
  }
  const top = above * 0.87 + 18, spare = above * 0.5 + 8;
  const fit = Math.min((room - left - spare) / columns.length, (0.8 * innerHeight - top) / rows.length);
  const least = Math.max(rows.length, columns.length) > 100 ? 2 : 14;
  const cell = Math.max(2, Math.round(clamp(fit, least, 44) * state.zoom));
  const size = { width: left + cell * columns.length + spare, height: top + cell * rows.length + 4 };
  pane.shape = { left, top, cell, ...size };
  pane.scroll.dataset.geometry = JSON.stringify([left, top, cell]);
}

function draw(pane) {
  const { scroll, canvas, shape } = pane;
  if (!pane.map || pane.section.hidden) return;
  const width = Math.min(scroll.clientWidth, Math.ceil(shape.width));
  const height = Math.min(scroll.clientHeight, Math.ceil(shape.height));
  const sharp = window.devicePixelRatio || 1;
  canvas.width = width * sharp;
  canvas.height = height * sharp;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.scale(sharp, sharp);
  context.font = FONT;
  context.textBaseline = "middle";
  const ink = getComputedStyle(document.body).color, accent = getComputedStyle($("accent")).color;
  (state.view === "lines" ? drawLines : drawMatrix)(pane, context, { width, height, ink, accent });
}

function clipped(context, x, y, width, height, work) {
  context.save();
  context.beginPath();
  context.rect(x, y, width, height);
  context.clip();
  work();
  context.restore();
}

function drawMatrix(pane, context, { width, height, ink, accent }) {
  const { map, limits, scroll, image, shape: { left, top, cell } } = pane;
  const x = left - scroll.scrollLeft, y = top - scroll.scrollTop, here = active();
  const every = Math.ceil(14 / cell);
  clipped(context, left, top, width, height, () => {
    context.imageSmoothingEnabled = false;
    context.drawImage(image, x, y, cell * map.columns.length, cell * map.rows.length);
    context.strokeStyle = limits.signed ? "#1b1f24" : "#ff9a4d";
    context.lineWidth = 2;
    const wide = cell * map.columns.length, high = cell * map.rows.length;
    if (here.row >= 0) context.strokeRect(x, y + here.row * cell, wide, cell);
    if (here.column >= 0) context.strokeRect(x + here.column * cell, y, cell, high);
  });
  const [from, to] = data.sides[state.kind];
  context.fillStyle = getComputedStyle($("note")).color;
  context.textAlign = "right";
  context.fillText(`${to} \u2192`, left - 7, top - 26);
  context.fillText(`${from} \u2193`, left - 7, top - 9);
  const shownAt = (i, at) => i === at || (i % every === 0 && (at < 0 || Math.abs(i - at) * cell >= 14));
  clipped(context, 0, top, left, height, () => {
    context.textAlign = "right";
    map.rows.forEach(({ label }, r) => {
      const at = y + (r + 0.5) * cell;
      if (at < top - cell || at > height + cell || !shownAt(r, here.row)) return;
      context.fillStyle = r === here.row ? accent : ink;
      context.fillText(shorten(label), left - 7, at);
    });
  });
  clipped(context, left - 6, 0, width, top, () => {
    context.textAlign = "left";
    map.columns.forEach(({ label }, c) => {
      const at = x + (c + 0.5) * cell;
      if (at < left - 2 || at > width + cell || !shownAt(c, here.column)) return;
      context.save();
      context.translate(at, top - 8);
      context.rotate(-Math.PI / 3);
      context.fillStyle = c === here.column ? accent : ink;
      context.fillText(shorten(label), 0, 0);
      context.restore();
    });
  });
}

function drawLines(pane, context, { width, height, ink, accent }) {
  const { map, limits, scroll, shape: { left, right } } = pane;
  const here = active(), columns = map.columns.length;
  const y = (i) => (i + 1.5) * LINE - scroll.scrollTop;
  const visible = (i) => y(i) > -LINE && y(i) < height + LINE;
  const only = here.row >= 0 ? "row" : here.column >= 0 ? "column" : "";
  map.rows.forEach((_, r) => {
    if (only === "row" ? r !== here.row : !only && !visible(r)) return;
    const line = rowOf(map, r), top = line.reduce((a, b) => Math.max(a, b), 0);
    line.forEach((value, c) => {
      if (only === "column" && c !== here.column) return;
      const place = limits.signed ? Math.abs(value) / limits.high : level(value, limits, top);
      if (place < 0.03) return;
      context.globalAlpha = only ? 0.15 + 0.85 * place : 0.75 * place;
      const end = colours.diverging.slice(value < 0 ? 3 * 40 : 3 * 215).slice(0, 3);
      context.strokeStyle = limits.signed ? `rgb(${end})` : accent;
      context.lineWidth = only ? 1 + 3 * place : 1.5;
      context.beginPath();
      context.moveTo(left, y(r));
      context.bezierCurveTo((left + right) / 2, y(r), (left + right) / 2, y(c), right, y(c));
      context.stroke();
    });
  });
  context.globalAlpha = 1;
  const side = (some, x, align, mine, other, value) => some.forEach(({ label }, i) => {
    if (!visible(i)) return;
    context.textAlign = align;
    context.fillStyle = i === mine ? accent : ink;
    const number = other >= 0 && Math.abs(value(i)) >= 0.005 ? value(i).toFixed(2) : "";
    if (other >= 0) context.globalAlpha = number ? 1 : 0.5;
    const parts = [shorten(label), number];
    context.fillText((align === "right" ? parts.reverse() : parts).join("  "), x, y(i));
    context.globalAlpha = 1;
  });
  const value = (r, c) => map.values[r * columns + c];
  side(map.rows, left - 6, "right", here.row, only === "column" ? here.column : -1, (r) => value(r, here.column));
  side(map.columns, right + 6, "left", here.column, only === "row" ? here.row : -1, (c) => value(here.row, c));
  context.fillStyle = getComputedStyle($("note")).color;
  context.textAlign = "right";
  const [from, to] = data.sides[state.kind];
  context.fillText(from, left - 6, LINE / 2 - scroll.scrollTop);
  context.textAlign = "left";
  context.fillText(to, right + 6, LINE / 2 - scroll.scrollTop);
}

// The cell under a pointer, or null.
function locate(pane, event) {
  const box = pane.canvas.getBoundingClientRect();
  const { map, scroll, shape } = pane;
  const x = event.clientX - box.left, y = event.clientY - box.top + scroll.scrollTop;
  if (state.view === "lines") {
    const i = Math.round(y / LINE - 1.5);
    const left = x < (shape.left + shape.right) / 2;
    return i >= 0 && i < (left ? map.rows : map.columns).length
      ? { row: left ? i : -1, column: left ? -1 : i } : null;
  }
  const row = Math.floor((y - shape.top) / shape.cell);
  const column = Math.floor((x + scroll.scrollLeft - shape.left) / shape.cell);
  const inside = row >= 0 && row < map.rows.length && column >= 0 && column < map.columns.length;
  return inside ? { row, column } : null;
}

// ---- Numbers in words and tables ----

function digits(value) {
  const size = Math.abs(value);
  return size < 1e-4 && size > 1e-6 ? value.toExponential(1) : (size < 1e-6 ? 0 : value).toFixed(4);
}
const nameOf = (map) => data.captures[map.capture].model;
// What tells a model's name from the others': of a/x/1 and a/y/1 the x and the y.
function shortName(map) {
  const all = data.captures.map(({ model }) => model.split("/"));
  const own = all[map.capture].filter((part) => !all.every((parts) => parts.includes(part)));
  return own.join("/") || nameOf(map);
}
const quoted = (text) => `\u201c${text}\u201d`;

function readout() {
  const map = panes[0].map, { row, column } = active();
  if (!map || row >= map.rows.length || column >= map.columns.length || (row < 0 && column < 0)) {
    return "Point at a cell or token, tap it, or move with the arrow keys.";
  }
  if (row < 0) return `What looks at ${quoted(map.columns[column].label)}`;
  if (column < 0) return `Where ${quoted(map.rows[row].label)} looks`;
  const said = panes.filter((pane) => !pane.section.hidden && pane.map).map(({ map: some }) => {
    const value = some.values[row * some.columns.length + column];
    const error = some.error * (some.columns[column] || { places: [] }).places.length;
    const who = state.other < 0 || some.signed ? "" : `${shortName(some)} `;
    return value === undefined ? "" : `${who}${digits(value)} (8-bit, within ${error.toPrecision(2)})`;
  });
  return `${quoted(map.rows[row].label)} to ${quoted(map.columns[column].label)}: ${said.join("; ")}`;
}

function fillTable() {
  const { row, column } = active(), table = $("row");
  const maps = panes.filter((pane) => !pane.section.hidden && pane.map).map((pane) => pane.map);
  const map = maps[0], pair = maps.length > 1 && comparable(...maps) ? maps : [map];
  const [caption, head, body] = table.children;
  const byRow = row >= 0;
  if (!map || (!byRow && column < 0) || row >= map.rows.length || column >= map.columns.length) {
    caption.textContent = "Choose a token to list its weights here.";
    head.replaceChildren();
    body.replaceChildren();
    return;
  }
  const label = (byRow ? map.rows[row] : map.columns[column]).label;
  caption.textContent = byRow ? `Where ${quoted(label)} looks` : `What looks at ${quoted(label)}`;
  const list = (byRow ? map.columns : map.rows).map((group, i) => ({
    label: group.label,
    weights: pair.map(({ values: some, columns: { length } }) => some[byRow ? row * length + i : i * length + column]),
  }));
  const totals = pair.map((_, k) => list.reduce((sum, { weights }) => sum + weights[k], 0));
  const size = ({ weights }) => Math.max(...weights.map(Math.abs));
  const shown = list.sort((a, b) => size(b) - size(a)).slice(0, 60);
  const most = size(shown[0]) || 1;
  const line = (name, cells, bar = 0) => {
    const share = element("span", { className: "share" });
    share.style.width = `${bar}%`;
    const head = element("th", { scope: "row" }, name, share);
    return element("tr", {}, head, ...cells.map((cell) => element("td", {}, digits(cell))));
  };
  const titles = [byRow ? "to" : "from", ...(pair.length > 1 ? pair.map(shortName) : ["weight"])];
  head.replaceChildren(element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title))));
  const rest = list.length - shown.length;
  body.replaceChildren(
    ...shown.map((one) => line(one.label, one.weights, (100 * size(one)) / most)),
    line(rest ? `${rest} smaller ones; all together` : "all together", totals),
  );
}

function describe(map) {
  const layer = map.maps.layers[map.layer];
  const said = [layer.mechanism];
  if (layer.static) said.push(data.static);
  if (!layer.exact) said.push("effective map: what the mechanism amounts to, not a matrix that it forms");
  if (layer.distance) {
    const some = map.head < 0 ? layer.distance : [layer.distance[map.head]];
    const mean = some.reduce((a, b) => a + b, 0) / some.length;
    if (!some.includes(null)) said.push(`${mean.toFixed(2)} from exact softmax on the same queries and keys (total variation)`);
  }
  if (map.maps.lost) said.push(`${map.maps.lost} weights of these maps are not finite: drawn as 0`);
  if (Math.max(...map.pool) > 1) {
    const wanted = map.head < 0 ? "" : ` --head ${map.maps.heads[map.head]}`;
    said.push(`left out here: full resolution; each cell is the largest of ${map.pool.join(" \u00d7 ")}. `
      + `In full: ${data.command} --layer ${layer.number}${wanted}`);
  }
  return said.join(" \u00b7 ");
}

// ---- Views ----

async function drawGrid(isCurrent) {
  const maps = mapsOf(state.model);
  const cells = [];
  for (const layer of maps.layers) for (const head of ["mean", ...maps.heads]) {
    const map = (await chosen(layer.number, head))[0];
    if (!isCurrent()) return;
    cells.push({ layer, head, map: map && shrink(map) });
  }
  const limits = limitsOf(cells.map(({ map }) => map).filter(Boolean));
  const thumbnail = (map) => (map && !limits.signed === !map.signed ? paint(map, limits) : "nothing to show");
  legend(limits);
  $("grid").replaceChildren(...maps.layers.map((layer) => {
    const heads = cells.filter((cell) => cell.layer === layer).map(({ head, map }) => {
      const name = head === "mean" ? "mean" : `head ${head}`;
      const button = element("button", { type: "button" }, thumbnail(map), name);
      button.classList.toggle("chosen", layer.number === state.layer && head === state.head);
      button.addEventListener("click", () => change({ layer: layer.number, head, view: "matrix" }));
      return button;
    });
    const kind = [layer.mechanism, layer.static && "static", !layer.exact && "effective"].filter(Boolean);
    const title = element("h2", {}, `Layer ${layer.number} `, element("small", {}, kind.join(" \u00b7 ")));
    const row = element("div", { className: heads.length > 9 ? "heads many" : "heads" }, ...heads);
    return element("div", { className: "layer" }, title, row);
  }));
}

function drawNumbers() {
  const maps = mapsOf(state.model);
  const titles = [["layer", "from 0"], ["head", "from 0"], ...data.numbers];
  const head = element("tr", {}, ...titles.map(([name, title]) => element("th", { scope: "col", title }, name)));
  const body = maps.layers.flatMap(({ number: layer }, l) => maps.heads.map((number, h) => {
    const numbers = maps.numbers[l][h].map((value) => (value === null ? "\u2013" : value.toFixed(3)));
    const cells = [layer, number, ...numbers].map((text) => element("td", {}, String(text)));
    const row = element("tr", { tabIndex: 0 }, ...cells);
    const open = () => change({ layer, head: number, view: "matrix" });
    row.addEventListener("click", open);
    row.addEventListener("keydown", (event) => event.key === "Enter" && open());
    return row;
  }));
  const meaning = data.numbers.map(([name, title]) => `${name}: ${title}`).join("; ");
  const { model } = data.captures[state.model];
  const caption = `${data.kinds[state.kind]} of ${model}, each head averaged over its queries`;
  const parts = [element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, ...body)];
  $("numbers").replaceChildren(element("table", {}, ...parts), element("p", {}, `${meaning}.`));
}

async function drawPanes(isCurrent) {
  const maps = await chosen();
  if (!isCurrent()) return;
  const limits = limitsOf(maps.filter(Boolean));
  legend(limits);
  $("legend").hidden = state.view === "lines" && !limits.signed;
  panes.forEach((pane, i) => {
    pane.section.hidden = i >= maps.length;
    pane.map = maps[i];
    if (pane.section.hidden) return;
    const [title, note] = pane.section.children;
    const place = `layer ${state.layer}, ${state.head === "mean" ? "mean over heads" : `head ${state.head}`}`;
    const model = data.captures[i ? state.other : state.model].model;
    title.textContent = maps[i] && maps[i].signed
      ? `${data.captures[state.other].model} minus ${model}: ${data.kinds[state.kind]}, ${place}`
      : `${state.other < 0 ? "" : `${model}: `}${data.kinds[state.kind]}, ${place}`;
    const none = "This model has no such map, or none of its tokens is shown.";
    note.textContent = maps[i] ? describe(maps[i]) : none;
    if (maps[i] && maps[i].second) note.textContent = `${describe(maps[i].second)}; minus ${note.textContent}`;
    pane.scroll.hidden = !maps[i];
    pane.scroll.setAttribute("aria-label", `${title.textContent}; arrow keys move over its cells`);
  });
  for (const pane of panes) if (!pane.section.hidden && pane.map) {
    pane.limits = limits;
    pane.image = paint(pane.map, limits);
    measure(pane);
    pane.box.style.width = `${pane.shape.width}px`;
    pane.box.style.height = `${pane.shape.height}px`;
  }
  const apart = state.other >= 0 && state.mode === "difference" && maps.length > 1;
  const why = "No difference is shown: the two maps do not have the same tokens on both axes.";
  $("note").textContent = apart ? why : "";
  redraw();
}

function legend(limits) {
  const context = $("bar").getContext("2d");
  const image = context.createImageData(256, 1);
  const table = limits.signed ? colours.diverging : colours.sequential;
  for (let i = 0; i < 256; i++) image.data.set([...table.slice(3 * i, 3 * i + 3), 255], 4 * i);
  context.putImageData(image, 0, 0);
  const relative = state.scale === "row" && !limits.signed, log = state.scale === "log" && !limits.signed;
  $("unit").textContent = limits.signed ? "difference" : log ? "weight, logarithmic" : "weight";
  $("low").textContent = relative ? "0" : log ? `\u2264 ${data.floor}` : digits(limits.low);
  $("high").textContent = relative ? "the row\u2019s largest" : digits(log ? logEnd(limits) : limits.high);
}

let waiting = 0;
function redraw() {
  if (waiting) return;
  waiting = requestAnimationFrame(() => {
    waiting = 0;
    if (!$("panes").hidden) panes.forEach(draw);
    $("readout").textContent = readout();
    fillTable();
  });
}

let turn = 0;
async function update() {
  const mine = ++turn;
  document.body.dataset.state = "busy";
  fillControls();
  const inPanes = state.view === "matrix" || state.view === "lines";
  $("panes").hidden = !inPanes;
  $("zoom").hidden = state.view !== "matrix";
  $("legend").hidden = state.view === "numbers";
  $("readout").hidden = !inPanes;
  document.querySelector("main").classList.toggle("wide", !inPanes);
  for (const id of ["grid", "numbers"]) $(id).hidden = state.view !== id;
  const isCurrent = () => mine === turn;
  await (state.view === "grid" ? drawGrid : state.view === "numbers" ? drawNumbers : drawPanes)(isCurrent);
  if (isCurrent()) document.body.dataset.state = "ready";
}

function change(some) {
  Object.assign(state, some);
  if (!("zoom" in some)) pinned = hovered = null;
  update();
}

// ---- Controls ----

const pairs = (list) => [...list].flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]);

function options(id, list, value) {
  $(id).replaceChildren(...list.map(([key, text]) => element("option", { value: key }, text)));
  $(id).value = String(value);
}

function fillControls() {
  const { captures } = data;
  const kinds = captures[state.model].maps.map(({ kind }) => kind);
  if (!kinds.includes(state.kind)) [state.kind] = kinds;
  const maps = mapsOf(state.model);
  const layers = maps.layers.map(({ number }) => number);
  if (!layers.includes(state.layer)) [state.layer] = layers;
  if (state.head !== "mean" && !maps.heads.includes(state.head)) state.head = "mean";
  if (maps.heads.length === 1) [state.head] = maps.heads;
  options("kind", kinds.map((kind) => [kind, data.kinds[kind]]), state.kind);
  const named = maps.layers.map(({ number, mechanism }) => [number, `${number} \u00b7 ${mechanism}`]);
  options("layer", named, state.layer);
  options("head", [["mean", "mean"], ...maps.heads.map((head) => [head, head])], state.head);
  options("scale", Object.entries(SCALES), state.scale);
  options("model", captures.map(({ model }, i) => [i, model]), state.model);
  options("other", [[-1, "none"], ...captures.map(({ model }, i) => [i, model])], state.other);
  options("mode", Object.entries(MODES), state.mode);
  document.querySelectorAll(".several").forEach((label) => (label.hidden = captures.length < 2));
  $("words").checked = state.words;
  $("plain").checked = state.plain;
  for (const button of $("views").children) button.setAttribute("aria-pressed", button.value === state.view);
  const texts = new Map(); // what was read and written, each text once
  for (const { model, source, output, how, facts } of captures) {
    if (source) texts.set(`read ${source}`, ["read", source]);
    const written = how === "given" ? ["given", output] : ["wrote", how ? `${output} (${how})` : output];
    if (output) texts.set(`wrote ${output}`, written);
    if (facts.note) texts.set(`note ${facts.note}`, ["note", `${model}: ${facts.note}`]);
  }
  $("texts").replaceChildren(...pairs(texts.values()));
}

const typed = (value) => (isNaN(value) ? value : Number(value)); // names stay text

// To the next or previous option of a control.
function step(id, by) {
  const list = [...$(id).options];
  change({ [id]: typed(list[clamp($(id).selectedIndex + by, 0, list.length - 1)].value) });
}

function move(rows, columns, toEnd) {
  const map = panes[0].map;
  if (!map) return;
  const from = pinned || { row: 0, column: 0 };
  const last = { row: map.rows.length - 1, column: map.columns.length - 1 };
  const by = pinned ? { row: rows, column: columns } : { row: 0, column: 0 };
  pinned = {
    row: clamp(Math.max(from.row, 0) + by.row, 0, last.row),
    column: clamp(Math.max(from.column, 0) + (toEnd ? columns * Infinity : by.column), 0, last.column),
  };
  hovered = null;
  for (const { scroll, shape, map: some } of panes) if (some && shape) reveal(scroll, shape);
  redraw();
}

function reveal(scroll, { left, top, cell }) {
  const lines = state.view === "lines";
  const size = lines ? LINE : cell;
  const nearest = (at, from, visible) => clamp(from, (at + 1) * size - visible, at * size);
  scroll.scrollTop = nearest(pinned.row, scroll.scrollTop, scroll.clientHeight - (lines ? 2 * LINE : top));
  if (!lines) scroll.scrollLeft = nearest(pinned.column, scroll.scrollLeft, scroll.clientWidth - left);
}

const KEYS = {
  ArrowUp: () => move(-1, 0), ArrowDown: () => move(1, 0),
  ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1),
  Home: () => move(0, -1, true), End: () => move(0, 1, true),
};
const SHORTCUTS = {
  "[": () => step("head", -1), "]": () => step("head", 1),
  "{": () => step("layer", -1), "}": () => step("layer", 1),
  g: () => change({ view: "grid" }), m: () => change({ view: "matrix" }),
  l: () => change({ view: "lines" }), n: () => change({ view: "numbers" }),
  w: () => change({ words: !state.words }), s: () => change({ plain: !state.plain }),
  "+": () => change({ zoom: clamp(state.zoom * 1.25, 0.25, 8) }),
  "-": () => change({ zoom: clamp(state.zoom / 1.25, 0.25, 8) }),
};

function start() {
  for (const [view, name] of Object.entries(VIEWS)) {
    const button = element("button", { type: "button", value: view, textContent: name });
    button.addEventListener("click", () => change({ view }));
    $("views").append(button);
  }
  for (const box of document.querySelectorAll("#controls select, #controls input")) {
    const value = () => (box.type === "checkbox" ? box.checked : typed(box.value));
    box.addEventListener("change", () => change({ [box.id]: value() }));
  }
  $("smaller").addEventListener("click", SHORTCUTS["-"]);
  $("larger").addEventListener("click", SHORTCUTS["+"]);
  $("theme").addEventListener("click", () => setTheme($("theme").textContent.toLowerCase()));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(""));
  setTheme("");
  for (const pane of panes) {
    pane.scroll.addEventListener("scroll", redraw, { passive: true });
    pane.scroll.addEventListener("pointermove", (event) => {
      hovered = locate(pane, event);
      redraw();
    });
    pane.scroll.addEventListener("pointerleave", () => {
      hovered = null;
      redraw();
    });
    pane.scroll.addEventListener("click", (event) => {
      pinned = locate(pane, event);
      redraw();
    });
    pane.scroll.addEventListener("keydown", (event) => {
      if (event.key in KEYS && !event.ctrlKey && !event.metaKey) {
        event.preventDefault();
        KEYS[event.key]();
      }
    });
  }
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches("select, input") || event.ctrlKey || event.metaKey || event.altKey;
    if (!typing && event.key in SHORTCUTS) SHORTCUTS[event.key]();
  });
  addEventListener("resize", update);
  fillFooter();
  if (window.DecompressionStream) update();
  else $("note").textContent = "This browser is too old to unpack the maps: it has no DecompressionStream.";
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  $("theme").textContent = dark ? "Light" : "Dark";
  redraw();
}

// How many heads the page holds in full, where not all of them.
function omitted() {
  return data.captures.flatMap(({ maps }) => maps).flatMap(({ kind, layers, heads, overview, full }) => {
    if (Math.max(...overview.pool) === 1) return [];
    const whole = Object.keys(full).filter((name) => !name.endsWith("mean")).length;
    const pool = overview.pool.join(" \u00d7 ");
    return [`${data.kinds[kind]}: ${whole} of ${layers.length * heads.length} heads are here in full resolution, `
      + `the others as the largest of each ${pool} weights`];
  });
}

function fillFooter() {
  const left = omitted();
  const command = `${data.command} --layer L --head H`;
  if (left.length) $("omitted").textContent = `To keep this file small: ${left.join("; ")}. In full: ${command}`;
  const facts = $("facts").querySelector("dl");
  for (const { model, facts: some } of data.captures) {
    facts.append(...pairs([["model", model], ...Object.entries(some)]));
  }
}

start();
