const BATCH = 50;
const cards = [...document.querySelectorAll("#lines article")];
const state = { shown: [], count: 0 };

const [first, second] = data.names;
const of = (name) => (card) => Number(card.dataset[name]);
const ORDERS = [
  [`${second} better than ${first}`, (card) => -of("gain")(card)],
  [`${second} worse than ${first}`, of("gain")],
  ["Worst scores first", of("score")],
  ["Longest references first", (card) => -of("length")(card)],
  ["As in the test set", of("line")],
];

function choose() {
  const wanted = at("find").value.toLowerCase().trim();
  const key = ORDERS[at("sort").selectedIndex][1];
  const texts = (card) => [...card.querySelectorAll(":scope > dl dd")].map((node) => node.textContent.toLowerCase());
  state.shown = cards.filter((card) =>
    (!wanted || texts(card).some((text) => text.includes(wanted))) && (!at("unlike").checked || of("unlike")(card)));
  state.shown.sort((one, other) => key(one) - key(other) || of("line")(one) - of("line")(other));
  state.count = 0;
  at("lines").replaceChildren();
  at("count").textContent = `${state.shown.length.toLocaleString("en")} of ${cards.length.toLocaleString("en")}`;
  more();
}

function more() {
  const end = Math.min(state.count + BATCH, state.shown.length);
  at("lines").append(...state.shown.slice(state.count, end));
  state.count = end;
  at("more").hidden = end === state.shown.length;
  at("more").textContent = `Show ${Math.min(BATCH, state.shown.length - end)} more`;
}

at("sort").append(...ORDERS.map(([name]) => make("option", { textContent: name })));
at("sort").selectedIndex = data.order;
for (const id of ["sort", "find", "unlike"]) at(id).addEventListener("input", choose);
at("more").addEventListener("click", more);
choose();
document.body.dataset.state = "ready";
