// Second: pictures of maps.  A pane draws only what is visible of it, as matrix or lines.

const palette = (hex) => hex.match(/.{6}/g).map((six) => [...six.match(/../g).map((two) => parseInt(two, 16)), 255]);
const colors = [palette(data.colors.sequential), palette(data.colors.diverging)];
const FONT = '13px system-ui, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif', LINE = 24;

let pinned = null; // the cell chosen by click or key: { row, column }, -1 for none of the axis
let hovered = null; // the cell under the pointer
const active = () => hovered || pinned || { row: -1, column: -1 };

// Shares of a color map as the pixels of a canvas.
function tint(canvas, shares, width, signed) {
  Object.assign(canvas, { width, height: shares.length / width });
  const context = canvas.getContext("2d"), image = context.createImageData(width, canvas.height);
  shares.forEach((share, i) => image.data.set(colors[+signed][Math.round(255 * share)], 4 * i));
  context.putImageData(image, 0, 0);
  return canvas;
}

function paint(map, limits) {
  const tops = Array.from({ length: map.rows }, (_, row) => most(rowOf(map, row)));
  const shares = map.values.map((value, i) => level(value, limits, tops[Math.floor(i / map.columns)]));
  return tint(document.createElement("canvas"), shares, map.columns, limits.diverging);
}

const panes = [...document.querySelectorAll(".pane")].map((section) => {
  const scroll = section.querySelector(".scroll");
  return { section, scroll, canvas: scroll.querySelector("canvas"), box: scroll.firstChild, map: null };
});
const shown = () => panes.filter((pane) => !pane.section.hidden && pane.map);
const shorten = (text) => ([...text].length > 18 ? `${[...text].slice(0, 17).join("")}\u2026` : text);

// Where things stand in a pane; its box gets the size of the whole drawing.
function measure(pane) {
  const { from, to, rows, columns } = pane.map, context = pane.canvas.getContext("2d");
  context.font = FONT;
  const widest = (some) => Math.max(56, most(some.map(({ label }) => context.measureText(shorten(label)).width)));
  const named = most(data.sides[state.kind].map((side) => context.measureText(`${side} \u2193`).width));
  const left = Math.max(widest(from), named) + 12, above = widest(to), room = pane.section.clientWidth - 16;
  if (state.view === "lines") {
    const width = Math.min(room, 760), side = width * 0.38;
    const height = LINE * (Math.max(rows, columns) + 1.5);
    pane.shape = { width, height, left: Math.min(left + 56, side), right: width - Math.min(above + 60, side) };
  } else {
    const top = above * 0.87 + 18, spare = above * 0.5 + 8;
    const fit = Math.min((room - left - spare) / columns, (0.8 * innerHeight - top) / rows);
    const least = Math.max(rows, columns) > 100 ? 2 : 14;
    const cell = Math.max(2, Math.round(clamp(fit, least, 44) * state.zoom));
    pane.shape = { left, top, cell, width: left + cell * columns + spare, height: top + cell * rows + 4 };
    pane.scroll.dataset.geometry = JSON.stringify([left, top, cell]);
  }
  for (const side of ["width", "height"]) pane.box.style[side] = `${pane.shape[side]}px`;
}

function draw(pane) {
  const { scroll, canvas, shape } = pane, sharp = window.devicePixelRatio || 1;
  const width = Math.min(scroll.clientWidth, Math.ceil(shape.width));
  const height = Math.min(scroll.clientHeight, Math.ceil(shape.height));
  Object.assign(canvas, { width: width * sharp, height: height * sharp });
  Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
  const context = canvas.getContext("2d");
  context.scale(sharp, sharp);
  Object.assign(context, { font: FONT, textBaseline: "middle" });
  const [ink, accent, soft] = [document.body, $("accent"), $("note")].map((node) => getComputedStyle(node).color);
  const write = (text, x, y, align, fillStyle) => {
    Object.assign(context, { textAlign: align, fillStyle });
    context.fillText(text, x, y);
  };
  (state.view === "lines" ? drawLines : drawMatrix)(pane, { context, write, width, height, ink, accent, soft });
}

function drawMatrix({ map, limits, scroll, image, shape }, { context, write, width, height, ink, accent, soft }) {
  const { left, top, cell } = shape, { row, column } = active(), every = Math.ceil(14 / cell);
  const x = left - scroll.scrollLeft, y = top - scroll.scrollTop, wide = cell * map.columns, high = cell * map.rows;
  const within = (clip, work) => {
    context.save();
    context.beginPath();
    context.rect(...clip);
    context.clip();
    work();
    context.restore();
  };
  within([left, top, width, height], () => {
    context.imageSmoothingEnabled = false;
    context.drawImage(image, x, y, wide, high);
    Object.assign(context, { strokeStyle: limits.diverging ? "#1b1f24" : "#ff9a4d", lineWidth: 2 });
    if (row >= 0) context.strokeRect(x, y + row * cell, wide, cell);
    if (column >= 0) context.strokeRect(x + column * cell, y, cell, high);
  });
  const [from, to] = data.sides[state.kind];
  write(`${to} \u2192`, left - 7, top - 26, "right", soft);
  write(`${from} \u2193`, left - 7, top - 9, "right", soft);
  // Labels as far as there is room: the chosen one always, and none that touches it.
  const labels = (list, start, end, first, chosen, work) => list.forEach(({ label }, i) => {
    const at = first + (i + 0.5) * cell, near = chosen >= 0 && Math.abs(i - chosen) * cell < 14;
    if (at < start || at > end + cell || (i !== chosen && (i % every || near))) return;
    work(shorten(label), at, i === chosen ? accent : ink);
  });
  within([0, top, left, height], () => labels(map.from, top - cell, height, y, row, (label, at, color) => {
    write(label, left - 7, at, "right", color);
  }));
  within([left - 6, 0, width, top], () => labels(map.to, left - 2, width, x, column, (label, at, color) => {
    context.save();
    context.translate(at, top - 8);
    context.rotate(-Math.PI / 3);
    write(label, 0, 0, "left", color);
    context.restore();
  }));
}

function drawLines({ map, limits, scroll, shape }, { context, write, height, ink, accent, soft }) {
  const { left, right } = shape, { row, column } = active(), middle = (left + right) / 2;
  const y = (i) => (i + 1.5) * LINE - scroll.scrollTop;
  const visible = (i) => y(i) > -LINE && y(i) < height + LINE;
  const byRow = row >= 0, byColumn = !byRow && column >= 0, only = byRow || byColumn;
  for (let r = 0; r < map.rows; r++) {
    if (byRow ? r !== row : !only && !visible(r)) continue;
    const line = rowOf(map, r), top = most(line);
    line.forEach((value, c) => {
      const place = limits.diverging ? Math.abs(value) / limits.high : level(value, limits, top);
      if (place < 0.03 || (byColumn && c !== column)) return;
      context.globalAlpha = only ? 0.15 + 0.85 * place : 0.75 * place;
      context.strokeStyle = limits.diverging ? `rgb(${colors[1][value < 0 ? 40 : 215].slice(0, 3)})` : accent;
      context.lineWidth = only ? 1 + 3 * place : 1.5;
      context.beginPath();
      context.moveTo(left, y(r));
      context.bezierCurveTo(middle, y(r), middle, y(c), right, y(c));
      context.stroke();
    });
  }
  // Each token; beside it, where the other side's is chosen, its weight.
  const side = (list, x, align, title, mine, weights) => {
    list.forEach(({ label }, i) => {
      if (!visible(i)) return;
      const parts = [shorten(label), weights && Math.abs(weights[i]) >= 0.005 ? weights[i].toFixed(2) : ""];
      context.globalAlpha = weights && !parts[1] ? 0.5 : 1;
      write((align === "right" ? parts.reverse() : parts).join("  "), x, y(i), align, i === mine ? accent : ink);
    });
    context.globalAlpha = 1;
    write(title, x, LINE / 2 - scroll.scrollTop, align, soft);
  };
  const [from, to] = data.sides[state.kind];
  side(map.from, left - 6, "right", from, row, byColumn && weightsAt(map, -1, column));
  side(map.to, right + 6, "left", to, column, byRow && weightsAt(map, row, -1));
}

// Of a row, or of a column (row -1).
const weightsAt = (map, row, column) =>
  row >= 0 ? rowOf(map, row) : map.values.filter((_, i) => i % map.columns === column);

// The cell under a pointer, or null.
function locate({ canvas, map, scroll, shape }, event) {
  const box = canvas.getBoundingClientRect();
  const x = event.clientX - box.left, y = event.clientY - box.top + scroll.scrollTop;
  const inside = ({ row, column }) => row < map.rows && column < map.columns && Math.max(row, column) >= 0;
  let place;
  if (state.view === "lines") {
    const i = Math.round(y / LINE - 1.5);
    place = x < (shape.left + shape.right) / 2 ? { row: i, column: -1 } : { row: -1, column: i };
    return inside(place) ? place : null;
  }
  place = {
    row: Math.floor((y - shape.top) / shape.cell),
    column: Math.floor((x + scroll.scrollLeft - shape.left) / shape.cell),
  };
  return inside(place) && Math.min(place.row, place.column) >= 0 ? place : null;
}
