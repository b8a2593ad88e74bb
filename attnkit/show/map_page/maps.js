"use strict";
// Draws the attention maps in #data.  Nothing is fetched, and text is only ever set as text.
// First: what there is, decoded, merged and scaled.

const $ = (id) => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const state = { layer: 0, head: "mean", model: 0, mode: "side", zoom: 1, ...data.start };

const clamp = (value, low, high) => Math.min(Math.max(value, low), high);
const most = (list) => list.reduce((a, b) => Math.max(a, b), 0);
const decode = (coded) => (coded.decoded ??= inflate(coded));

async function inflate({ data: text, step }) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return Float32Array.from(new Int16Array(await new Response(stream).arrayBuffer()), (value) => step * value);
}

const mapsOf = (capture) => data.captures[capture].maps.find(({ kind }) => kind === state.kind);

// The weights of a layer and head ("mean": over heads), by number; null: none.
async function weightsOf(capture, number, name) {
  const maps = mapsOf(capture);
  const layer = maps ? maps.layers.findIndex((some) => some.number === number) : -1;
  const head = maps && name !== "mean" ? maps.heads.indexOf(name) : -1;
  if (layer < 0 || (head < 0 && name !== "mean")) return null;
  const what = { capture, maps, layer: maps.layers[layer], head };
  const every = await decode(maps.weights), size = maps.weights.rows * maps.weights.columns;
  const from = (h) => (layer * maps.heads.length + h) * size;
  if (head >= 0) return { ...maps.weights, ...what, values: every.subarray(from(head), from(head + 1)) };
  const values = new Float32Array(size);
  const { length } = maps.heads;
  every.subarray(from(0), from(length)).forEach((value, i) => (values[i % size] += value / length));
  return { ...maps.weights, ...what, values };
}

// The rows or columns to show: the places of each, and its label.  The first is that of the begin
// token, if there is one; of a coarse map it is a block.
function groups(number, pool) {
  const axis = data.axes[number], found = [];
  if (pool > 1) {
    const texts = axis.text.filter((_, i) => i % pool === 0);
    return texts.map((text, i) => ({ places: [i], label: `${text} \u2026` }));
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

// Attention to a word sums over its pieces, from a word averages.  Null: no token is left.
function merge(map) {
  const [from, to] = map ? [groups(map.maps.queries, map.pool[0]), groups(map.maps.keys, map.pool[1])] : [[], []];
  // where special tokens are hidden, a begin token is not there any more
  const hidden = state.first && to[0]?.places[0] === 0 ? to.shift().label : "";
  if (!from.length || !to.length) return null;
  const values = new Float32Array(from.length * to.length);
  from.forEach((row, r) => to.forEach((column, c) => {
    let sum = 0;
    for (const i of row.places) for (const j of column.places) sum += map.values[i * map.columns + j];
    values[r * to.length + c] = sum / row.places.length;
  }));
  return { ...map, values, rows: from.length, columns: to.length, from, to, hidden };
}

// Blocks as one value each: the one farthest from zero.
function coarser(map, down, across) {
  if (down === 1 && across === 1) return map;
  const rows = Math.ceil(map.rows / down), columns = Math.ceil(map.columns / across);
  const values = new Float32Array(rows * columns);
  map.values.forEach((value, i) => {
    const row = Math.floor(i / map.columns / down), column = Math.floor((i % map.columns) / across);
    const at = row * columns + column;
    if (Math.abs(value) > Math.abs(values[at])) values[at] = value;
  });
  return { ...map, rows, columns, values };
}

const comparable = (a, b) => a && b && a.maps.queries === b.maps.queries && a.maps.keys === b.maps.keys;

// What is shown of a layer and head: one map, two, or their difference.  Null: there is none.
const models = () => (state.other < 0 ? [state.model] : [state.model, state.other]);
const subtracts = () => state.other >= 0 && state.mode === "difference";

async function chosen(number = state.layer, name = state.head) {
  const maps = (await Promise.all(models().map((capture) => weightsOf(capture, number, name)))).map(merge);
  const [first, second] = maps;
  if (!subtracts() || !comparable(first, second)) return maps;
  const values = first.values.map((value, i) => second.values[i] - value);
  return [{ ...first, values, step: first.step + second.step, signed: true, second }];
}

function limitsOf(maps) {
  let low = 0, high = 0;
  for (const map of maps) for (const value of map.values) {
    if (value < low) low = value;
    if (value > high) high = value;
  }
  const signed = maps.some((map) => map.signed), scale = signed ? "linear" : state.scale;
  const diverging = signed || (scale === "linear" && -low > data.negative_share * high);
  if (diverging) high = Math.max(high, -low) || 1;
  return { low: diverging ? -high : low, high: high || 1, signed, diverging, scale };
}
const logEnd = (limits) => Math.max(limits.high, 10 * data.floor);

// A value's place on the color bar, 0 to 1; `top` is the largest of its row.
function level(value, limits, top) {
  const share = limits.scale === "row" ? value / top
    : limits.scale === "log" ? Math.log(value / data.floor) / Math.log(logEnd(limits) / data.floor)
    : (value - limits.low) / (limits.high - limits.low);
  return clamp(share || 0, 0, 1);
}
const rowOf = (map, row) => map.values.subarray(row * map.columns, (row + 1) * map.columns);
