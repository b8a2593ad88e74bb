const BATCH = 50;
const TIE = 1e-9;
const state = { shown: [], count: 0 };

const gain = (line) => data.sign * (line.scores[1] - line.scores[0]);
const mean = (line) => line.scores.reduce((sum, score) => sum + score, 0);
const second = data.names[1];
const ORDERS = [
  [`${second} better than ${data.names[0]}`, (line) => -gain(line)],
  [`${second} worse than ${data.names[0]}`, gain],
  ["Worst scores first", (line) => data.sign * mean(line)],
  ["Longest references first", (line) => -line.length],
  ["As in the test set", (line) => line.line],
];

function output(spans) {
  const box = make("dd");
  box.dir = "auto";
  if (!spans.some(([text]) => text.trim())) {
    box.append(make("span", { className: "dim", textContent: "(empty)" }));
    return box;
  }
  for (const [text, differs] of spans) {
    const lead = text.match(/^ */)[0];
    if (!differs) box.append(text);
    else if (text.trim()) box.append(lead, make("mark", { textContent: text.slice(lead.length) }));
    else box.append(lead, make("mark", { className: "gap", textContent: "_", title: "words are missing here" }));
  }
  return box;
}

function contexts(line) {
  const noted = line.contexts.filter(([, note]) => note).length;
  const box = make("details", {}, make("summary", { textContent: `${line.contexts.length} contexts, ${noted} marked` }));
  box.addEventListener("toggle", () => {
    if (box.children.length > 1) return;
    const list = make("dl");
    line.contexts.forEach(([text, note], place) => {
      list.append(make("dt", { textContent: `context ${place + 1}${note ? `: ${note}` : ""}` }),
        make("dd", { dir: "auto", textContent: text }));
    });
    box.append(list);
  });
  return box;
}

function card(line) {
  const what = data.questions ? ["question", "answer"] : ["source", "reference"];
  const list = make("dl", {}, make("dt", { textContent: what[0] }), make("dd", { dir: "auto", textContent: line.source }));
  line.references.forEach((text, place) => {
    const label = line.references.length > 1 ? `${what[1]} ${place + 1}` : what[1];
    list.append(make("dt", { textContent: label }), make("dd", { dir: "auto", textContent: text }));
  });
  line.outputs.forEach((spans, place) => {
    const score = make("span", { className: "score", textContent: line.scores[place].toFixed(1) });
    list.append(make("dt", {}, `${data.names[place]} `, score), output(spans));
  });
  const title = `${data.questions ? "Question" : "Line"} ${line.line}, difference ${line.difference}`;
  const box = make("article", {}, make("h3", { textContent: title }), list);
  if (line.contexts.length) box.append(contexts(line));
  return box;
}

function texts(line) {
  return [line.source, ...line.references, ...line.outputs.map((spans) => spans.map(([text]) => text).join(""))];
}

function choose() {
  const wanted = at("find").value.toLowerCase().trim();
  const key = ORDERS[at("sort").selectedIndex][1];
  state.shown = data.lines.filter((line) =>
    (!wanted || texts(line).some((text) => text.toLowerCase().includes(wanted))) &&
    (!at("unlike").checked || Math.max(...line.scores) - Math.min(...line.scores) > TIE));
  state.shown.sort((one, other) => key(one) - key(other) || one.line - other.line);
  state.count = 0;
  at("lines").replaceChildren();
  at("count").textContent = `${state.shown.length.toLocaleString("en")} of ${data.lines.length.toLocaleString("en")}`;
  more();
}

function more() {
  const end = Math.min(state.count + BATCH, state.shown.length);
  at("lines").append(...state.shown.slice(state.count, end).map(card));
  state.count = end;
  at("more").hidden = end === state.shown.length;
  at("more").textContent = `Show ${Math.min(BATCH, state.shown.length - end)} more`;
}

at("heading").textContent = `Sentences are judged by ${data.metric}.`;
at("examples").textContent = data.questions ? "Questions" : "Sentences";
at("legend").replaceChildren(make("mark", { textContent: "marked" }),
  ` words are not in ${data.against} at this place; `, make("mark", { className: "gap", textContent: "_" }),
  " stands where words of it are missing." +
  (data.left_out ? ` ${data.left_out.toLocaleString("en")} that differ less are left out.` : ""));
at("runs").textContent = `Runs: ${data.runs.join(", ")}`;
at("command").textContent = data.command ? `Made by: ${data.command}` : "";
at("sort").append(...ORDERS.map(([name]) => make("option", { textContent: name })));
at("sort").selectedIndex = data.order;
for (const id of ["sort", "find", "unlike"]) at(id).addEventListener("input", choose);
at("more").addEventListener("click", more);
choose();
document.body.dataset.state = "ready";
