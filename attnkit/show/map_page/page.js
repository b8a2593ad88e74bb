// Third: views, controls, and what is said in words and tables.

const VIEWS = { grid: "All heads", matrix: "Matrix", lines: "Lines", numbers: "Numbers" };
const SCALES = { linear: "linear", log: "logarithmic", row: "row maximum" };
const MODES = { side: "side by side", difference: "difference" };

function element(name, properties = {}, ...children) {
  const node = Object.assign(document.createElement(name), properties);
  node.append(...children);
  return node;
}
const headings = (texts) => element("tr", {}, ...texts.map((text) => element("th", { scope: "col" }, text)));
const cells = (texts) => texts.map((text) => element("td", {}, String(text)));
const say = (id, text) => ($(id).textContent = text);
const pairs = (list) => list.flatMap(([name, text]) => [element("dt", {}, name), element("dd", {}, text)]);

// ---- Words ----

function digits(value) {
  const size = Math.abs(value);
  return size < 1e-4 && size > 1e-6 ? value.toExponential(1) : (size < 1e-6 ? 0 : value).toFixed(4);
}
const quoted = (text) => `\u201c${text}\u201d`;
const called = (head) => (head === "mean" ? "mean over heads" : `head ${head}`);
const nameOf = (capture) => data.captures[capture].model;
// What tells a model's name from the others': of a/x/1 and a/y/1 the x and the y.
function shortName({ capture }) {
  const all = data.captures.map(({ model }) => model.split("/"));
  const own = all[capture].filter((part) => !all.every((parts) => parts.includes(part)));
  return own.join("/") || nameOf(capture);
}

function about(map, { row, column }) {
  if (!map || row >= map.rows || column >= map.columns || (row < 0 && column < 0)) return "";
  return row < 0 ? `Attention to ${quoted(map.to[column].label)}` : `Attention of ${quoted(map.from[row].label)}`;
}

function readout() {
  const { map } = panes[0], here = active(), { row, column } = here, subject = about(map, here);
  if (!subject) return "Point at a cell or token, tap it, or move with the arrow keys.";
  if (row < 0 || column < 0) return subject;
  const said = shown().filter(({ map: some }) => row < some.rows && column < some.columns).map(({ map: some }) => {
    const error = (some.step / 2) * some.to[column].places.length;
    const who = state.other < 0 || some.signed ? "" : `${shortName(some)} `;
    return `${who}${digits(rowOf(some, row)[column])} (within ${error.toPrecision(2)})`;
  });
  return `${quoted(map.from[row].label)} to ${quoted(map.to[column].label)}: ${said.join("; ")}`;
}

function fillTable() {
  const here = active(), byRow = here.row >= 0, maps = shown().map(({ map }) => map), [map] = maps;
  const [caption, head, body] = $("row").children, subject = about(map, here);
  caption.textContent = subject || "Choose a token to list its weights here.";
  head.replaceChildren();
  body.replaceChildren();
  if (!subject) return;
  const pair = comparable(...maps) ? maps : [map];
  const weights = pair.map((some) => weightsAt(some, here.row, here.column));
  const list = (byRow ? map.to : map.from).map(({ label }, i) => {
    const own = weights.map((some) => some[i]);
    return { label, own, size: most(own.map(Math.abs)) };
  });
  const listed = list.sort((a, b) => b.size - a.size).slice(0, 60), rest = list.length - listed.length;
  const line = (name, numbers, size) => {
    const share = element("span", { className: "share" });
    share.style.width = `${(100 * size) / (listed[0].size || 1)}%`;
    return element("tr", {}, element("th", { scope: "row" }, name, share), ...cells(numbers.map(digits)));
  };
  const totals = weights.map((some) => some.reduce((a, b) => a + b, 0));
  head.append(headings([byRow ? "to" : "from", ...(pair.length > 1 ? pair.map(shortName) : ["weight"])]));
  body.append(...listed.map(({ label, own, size }) => line(label, own, size)));
  body.append(line(`${rest ? `${rest} smaller weights; ` : ""}total`, totals, 0));
}

function describe({ maps, layer, head, pool, hidden }) {
  const said = [layer.label];
  const apart = layer.distance ? (head < 0 ? layer.distance : [layer.distance[head]]) : [null];
  if (!apart.includes(null)) {
    const mean = apart.reduce((a, b) => a + b) / apart.length;
    said.push(`${mean.toFixed(2)} from exact softmax on the same queries and keys (half the L1 distance)`);
  }
  if (hidden) said.push(`first column hidden: ${hidden}`);
  if (maps.lost) said.push(`${maps.lost} weights of these maps are not finite: drawn as 0`);
  if (most(pool) > 1) {
    const wanted = head < 0 ? "" : ` --head ${maps.heads[head]}`;
    said.push(`reduced resolution: each cell is the maximum of ${pool.join(" \u00d7 ")}. `
      + `Full resolution: ${data.command} --layer ${layer.number}${wanted}`);
  }
  return said.join(" \u00b7 ");
}

// ---- Views: each says what stands in the note ----

async function drawGrid(isCurrent) {
  const { layers, heads } = mapsOf(state.model), found = [];
  for (const layer of layers) for (const head of ["mean", ...heads]) {
    const maps = (await chosen(layer.number, head)).map((map) => {
      const by = map && Math.ceil(Math.max(map.rows, map.columns) / 64);
      return map && coarser(map, by, by);
    });
    if (!isCurrent()) return "";
    found.push({ layer, head, maps });
  }
  const limits = limitsOf(found.flatMap(({ maps }) => maps).filter(Boolean));
  const classes = `heads${heads.length > 8 ? " many" : ""}${state.other < 0 || limits.signed ? "" : " twins"}`;
  const picture = (map) => (map ? paint(map, limits) : element("i", {}, "nothing to show"));
  const pictures = (maps) =>
    limits.signed && !maps[0]?.signed ? [element("i", {}, "no difference")] : maps.map(picture);
  legend(limits);
  $("grid").replaceChildren(...layers.map((layer) => {
    const kindOf = (one) => [one.mechanism, one.static && "static", !one.exact && "effective"].filter(Boolean).join(" \u00b7 ");
    const theirs = state.other < 0 ? null : mapsOf(state.other)?.layers.find(({ number }) => number === layer.number);
    const both = [...new Set([layer, theirs].filter(Boolean).map(kindOf))].join(" beside ");
    const buttons = found.filter((some) => some.layer === layer).map(({ head, maps }) => {
      const name = head === "mean" ? "mean" : `head ${head}`, at = { layer: layer.number, head };
      const className = at.layer === state.layer && head === state.head ? "chosen" : "";
      const onclick = () => change({ ...at, view: "matrix" });
      return element("button", { type: "button", className, onclick }, element("span", {}, ...pictures(maps)), name);
    });
    return element("div", { className: "layer" },
      element("h2", {}, `Layer ${layer.number} `, element("small", {}, both)),
      element("div", { className: classes }, ...buttons));
  }));
  const hidden = found.flatMap(({ maps }) => maps).find((map) => map?.hidden);
  const note = hidden ? `First column hidden: ${hidden.hidden}. ` : "";
  if (state.other < 0) return note;
  if (limits.signed) return `${note}Each map is ${nameOf(state.other)} minus ${nameOf(state.model)}.`;
  return `${note}${subtracts() ? UNLIKE : ""}Left: ${nameOf(state.model)}. Right: ${nameOf(state.other)}.`;
}
const UNLIKE = "No difference is shown: the two maps do not have the same tokens on both axes, or the same resolution. ";

function drawNumbers() {
  const { layers, heads, numbers } = mapsOf(state.model);
  const rows = layers.flatMap(({ number: layer }, l) => heads.map((head, h) => {
    const texts = numbers[l][h].map((value) => (value === null ? "\u2013" : value.toFixed(3)));
    const onclick = () => change({ layer, head, view: "matrix" });
    const onkeydown = ({ key }) => key === "Enter" && onclick();
    return element("tr", { tabIndex: 0, onclick, onkeydown }, ...cells([layer, head, ...texts]));
  }));
  const head = headings(["layer", "head", ...data.numbers.map(([name]) => name)]);
  const caption = `${data.kinds[state.kind]} of ${nameOf(state.model)}, each head averaged over its queries; `
    + "computed from the whole maps, hidden and merged tokens included";
  $("numbers").replaceChildren(
    element("table", {}, element("caption", {}, caption), element("thead", {}, head), element("tbody", {}, ...rows)),
    element("p", {}, `${data.numbers.map((both) => both.join(": ")).join("; ")}.`),
  );
  return "";
}

async function drawPanes(isCurrent) {
  const maps = await chosen(), some = maps.filter(Boolean), limits = limitsOf(some);
  if (!isCurrent()) return "";
  legend(limits);
  $("legend").hidden = state.view === "lines" && !limits.diverging;
  panes.forEach((pane, i) => {
    const map = maps[i], [title, note] = pane.section.children;
    Object.assign(pane, { map, limits });
    pane.section.hidden = i >= maps.length;
    if (pane.section.hidden) return;
    const who = map && map.signed ? `${nameOf(state.other)} minus ${nameOf(state.model)}: `
      : state.other < 0 ? "" : `${nameOf(models()[i])}: `;
    title.textContent = `${who}${data.kinds[state.kind]}, layer ${state.layer}, ${called(state.head)}`;
    note.textContent = !map ? "This model has no such map, or all its tokens are hidden."
      : map.signed ? `${describe(map.second)}; minus ${describe(map)}` : describe(map);
    pane.scroll.hidden = !map;
    pane.scroll.setAttribute("aria-label", `${title.textContent}; arrow keys move over its cells`);
  });
  for (const pane of shown()) { // when all are laid out
    pane.image = paint(pane.map, limits);
    measure(pane);
  }
  redraw();
  return subtracts() && maps.length > 1 ? UNLIKE : "";
}

function legend(limits) {
  tint($("bar"), Array.from({ length: 256 }, (_, i) => i / 255), 256, limits.diverging);
  const relative = limits.scale === "row", log = limits.scale === "log";
  say("unit", limits.signed ? "difference" : log ? "weight, logarithmic" : "weight");
  say("low", relative ? "0" : log ? `\u2264 ${data.floor}` : digits(limits.low));
  say("high", relative ? "row maximum" : digits(log ? logEnd(limits) : limits.high));
}

let waiting = 0;
function redraw() {
  waiting ||= requestAnimationFrame(() => {
    waiting = 0;
    if (!$("panes").hidden) shown().forEach(draw);
    say("readout", readout());
    fillTable();
  });
}

let turn = 0;
async function update() {
  const mine = ++turn, isCurrent = () => mine === turn;
  const { view } = state, inPanes = view === "matrix" || view === "lines";
  document.body.dataset.state = "busy";
  fillControls();
  for (const [id, visible] of Object.entries({
    panes: inPanes, readout: inPanes, zoom: view === "matrix", legend: view !== "numbers",
    grid: view === "grid", numbers: view === "numbers",
  })) $(id).hidden = !visible;
  const note = await (inPanes ? drawPanes : view === "grid" ? drawGrid : drawNumbers)(isCurrent);
  if (!isCurrent()) return;
  say("note", note);
  document.body.dataset.state = "ready";
}

function change(some) {
  Object.assign(state, some);
  if (!("zoom" in some)) pinned = hovered = null;
  update();
}

// ---- Controls ----

function fillControls() {
  const { captures } = data, kinds = captures[state.model].maps.map(({ kind }) => kind);
  const oneOf = (list, value) => (list.includes(value) ? value : list[0]);
  state.kind = oneOf(kinds, state.kind);
  const { layers, heads } = mapsOf(state.model), named = captures.map(({ model }, i) => [i, model]);
  state.layer = oneOf(layers.map(({ number }) => number), state.layer);
  state.head = oneOf(heads.length > 1 ? ["mean", ...heads] : heads, state.head);
  for (const [id, list] of Object.entries({
    kind: kinds.map((kind) => [kind, data.kinds[kind]]),
    layer: layers.map(({ number, mechanism }) => [number, `${number} \u00b7 ${mechanism}`]),
    head: ["mean", ...heads].map((head) => [head, head]),
    scale: Object.entries(SCALES), mode: Object.entries(MODES), model: named, other: [[-1, "none"], ...named],
  })) {
    $(id).replaceChildren(...list.map(([value, text]) => element("option", { value }, text)));
    $(id).value = state[id];
  }
  say("fold", `${data.kinds[state.kind]} \u00b7 layer ${state.layer} \u00b7 ${called(state.head)}`);
  for (const label of document.querySelectorAll(".several")) label.hidden = captures.length < 2;
  for (const id of ["words", "plain", "first"]) $(id).checked = state[id];
  for (const button of $("views").children) button.setAttribute("aria-pressed", button.value === state.view);
}

const typed = (value) => (isNaN(value) ? value : Number(value)); // names stay text

// To the next or previous option of a control.
function step(id, by) {
  const { options, selectedIndex } = $(id);
  change({ [id]: typed(options[clamp(selectedIndex + by, 0, options.length - 1)].value) });
}

function move(rows, columns) {
  const { map } = panes[0];
  if (!map) return;
  const to = (at, by, count) => clamp(Math.max(at, 0) + by, 0, count - 1);
  pinned = pinned || Math.abs(columns) > 1
    ? { row: to(pinned?.row ?? 0, rows, map.rows), column: to(pinned?.column ?? 0, columns, map.columns) }
    : { row: 0, column: 0 };
  hovered = null;
  const lines = state.view === "lines";
  const nearest = (at, size, from, visible) => clamp(from, (at + 1) * size - visible, at * size);
  for (const { scroll, shape: { left, top, cell } } of shown()) {
    const size = lines ? LINE : cell, above = lines ? 2 * LINE : top;
    scroll.scrollTop = nearest(pinned.row, size, scroll.scrollTop, scroll.clientHeight - above);
    if (!lines) scroll.scrollLeft = nearest(pinned.column, size, scroll.scrollLeft, scroll.clientWidth - left);
  }
  redraw();
}

const zoom = (by) => change({ zoom: clamp(state.zoom * by, 0.25, 8) });
const KEYS = {
  ArrowUp: () => move(-1, 0), ArrowDown: () => move(1, 0), ArrowLeft: () => move(0, -1), ArrowRight: () => move(0, 1),
  Home: () => move(0, -Infinity), End: () => move(0, Infinity),
};
const SHORTCUTS = {
  "[": () => step("head", -1), "]": () => step("head", 1), "{": () => step("layer", -1), "}": () => step("layer", 1),
  g: () => change({ view: "grid" }), m: () => change({ view: "matrix" }),
  l: () => change({ view: "lines" }), n: () => change({ view: "numbers" }),
  w: () => change({ words: !state.words }), s: () => change({ plain: !state.plain }),
  f: () => change({ first: !state.first }),
  "+": () => zoom(1.25), "-": () => zoom(1 / 1.25),
};

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const dark = theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  say("theme", dark ? "Light" : "Dark");
  redraw();
}

function start() {
  $("views").append(...Object.entries(VIEWS).map(([view, name]) =>
    element("button", { type: "button", value: view, onclick: () => change({ view }) }, name)));
  for (const box of document.querySelectorAll("#controls select, #controls input")) {
    box.onchange = () => change({ [box.id]: box.type === "checkbox" ? box.checked : typed(box.value) });
  }
  $("fold").onclick = () => $("fold").setAttribute("aria-expanded", $("fold").ariaExpanded !== "true");
  $("smaller").onclick = SHORTCUTS["-"];
  $("larger").onclick = SHORTCUTS["+"];
  $("theme").onclick = () => setTheme($("theme").textContent.toLowerCase());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(""));
  for (const pane of panes) {
    const hover = (place) => { hovered = place; redraw(); };
    Object.assign(pane.scroll, {
      onscroll: redraw,
      onpointermove: (event) => hover(locate(pane, event)),
      onpointerleave: () => hover(null),
      onclick: (event) => { pinned = locate(pane, event); redraw(); },
      onkeydown: (event) => {
        if (!(event.key in KEYS) || event.ctrlKey || event.metaKey) return;
        event.preventDefault();
        KEYS[event.key]();
      },
    });
  }
  document.onkeydown = ({ target, key, ctrlKey, metaKey, altKey }) => {
    if (!target.matches("select, input") && !ctrlKey && !metaKey && !altKey) SHORTCUTS[key]?.();
  };
  window.onresize = update;
  $("texts").append(...pairs(data.texts));
  say("omitted", data.omitted);
  const facts = data.captures.flatMap(({ model, facts: some }) => [["model", model], ...Object.entries(some)]);
  $("facts").querySelector("dl").append(...pairs(facts));
  setTheme("");
  if (window.DecompressionStream) update();
  else say("note", "This browser is too old to unpack the maps: it has no DecompressionStream.");
}

start();
