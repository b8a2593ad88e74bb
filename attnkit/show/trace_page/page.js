const state = { trace: 0, token: -1, context: -1 };
const SVG = "http://www.w3.org/2000/svg";

function draw(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}
const trace = () => data.traces[state.trace];
const markOf = (context) => trace().marks[context] || null;
const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
const paint = (element, mark) => { if (mark) element.style.backgroundColor = `#${mark.colour}`; };

// Tokens of one context stand together: the first of them has its letter.
function showAnswer() {
  const box = at("answer");
  let last = null;
  box.replaceChildren(...trace().tokens.map((token, number) => {
    const mark = trace().voiced && !token.end && !token.agreed ? markOf(token.context) : null;
    const text = token.end ? "[end]" : token.text;
    const span = make("span", { className: "token", id: `t${number}` });
    span.setAttribute("role", "option");
    if (mark && mark.letter + token.context !== last) {
      const letter = make("span", { className: "letter", textContent: mark.letter });
      letter.setAttribute("aria-hidden", "true");
      const lead = text.match(/^\s*/)[0];
      span.append(lead, letter, text.slice(lead.length));
    } else span.append(text);
    last = mark ? mark.letter + token.context : null;
    if (!token.text && !token.end) { span.append("\u00b7"); span.classList.add("blank"); }
    span.classList.toggle("spoken", Boolean(mark));
    span.classList.toggle("end", token.end);
    span.classList.toggle("apart", token.apart);
    span.classList.toggle("agreed", token.agreed);
    paint(span, mark);
    span.addEventListener("click", () => choose(number));
    return span;
  }));
}

function showContexts() {
  at("contexts").replaceChildren(...trace().listed.map((context) => {
    const mark = markOf(context);
    const sign = make("span", { className: "mark", textContent: mark ? mark.letter : "" });
    paint(sign, mark);
    const passage = trace().contexts[context];
    const share = percent(passage.share);
    const button = make("button", { type: "button", id: `c${context}` }, sign,
      make("span", { className: "share", textContent: share }),
      make("span", { className: "title", textContent: `${context + 1} ${passage.name}` }));
    button.addEventListener("click", () => { state.token = -1; showContext(context); markTokens(); });
    return button;
  }));
}

function showContext(context, word = "") {
  state.context = context;
  const passage = trace().contexts[context];
  at("name").textContent = `Context ${context + 1}: ${passage.name}`;
  const box = at("passage");
  box.replaceChildren(...parts(passage.text, word));
  const first = box.querySelector("mark");
  box.scrollTop = first ? Math.max(0, first.offsetTop - box.offsetTop - 40) : 0;
  for (const button of at("contexts").children) button.setAttribute("aria-pressed", String(button.id === `c${context}`));
}

// The text with each place where the word stands marked, whatever its case.
function parts(text, word) {
  if (!word) return [text || "(empty)"];
  const found = [];
  const escaped = word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
  const letter = /[\p{L}\p{N}]/u;
  const edge = (side, sign) => (letter.test(sign) ? side : "");
  const pattern = new RegExp(`${edge("(?<![\\p{L}\\p{N}])", [...word][0])}${escaped}${edge("(?![\\p{L}\\p{N}])", [...word].at(-1))}`, "giu");
  let place = 0;
  for (const match of text.matchAll(pattern)) {
    found.push(text.slice(place, match.index), make("mark", { textContent: match[0] }));
    place = match.index + match[0].length;
  }
  return [...found, text.slice(place)];
}

// The word of the answer that a token is part of: what stands between spaces, its punctuation aside.
function wordOf(number) {
  const tokens = trace().tokens;
  const before = tokens.slice(0, number).map((token) => token.text).join("");
  const text = tokens[number].text;
  const whole = tokens.map((token) => token.text).join("");
  const place = before.length + text.length - text.trimStart().length;
  if (!text.trim()) return "";
  let start = place, end = place;
  while (start > 0 && !/\s/.test(whole[start - 1])) start -= 1;
  while (end < whole.length && !/\s/.test(whole[end])) end += 1;
  return whole.slice(start, end).replace(/^[^\p{L}\p{N}]+|[^\p{L}\p{N}]+$/gu, "");
}

const nameOf = (context) => {
  const mark = trace().voiced ? markOf(context) : null;
  return `${mark ? `${mark.letter}: ` : ""}context ${context + 1} (${trace().contexts[context].name})`;
};

function choose(number) {
  state.token = number;
  const token = trace().tokens[number];
  const [first, entropy] = token.surest[0];
  const told = [token.end ? "End of the answer" : `Token ${number + 1}: \u201c${token.text}\u201d`];
  told.push(`${trace().voiced ? "selected:" : "lowest entropy:"} ${nameOf(first)}, entropy ${entropy.toFixed(3)} nats`);
  if (token.surest.length > 1) told.push(`lowest of the others: ${nameOf(token.surest[1][0])}, ${token.surest[1][1].toFixed(3)} nats`);
  if (token.weights) told.push(`weights ${token.weights.map(([context, weight]) => `${context + 1}: ${weight.toFixed(3)}`).join(", ")}`);
  if (token.agreed) told.push("the model would write it without any context too");
  if (token.apart) told.push("no token was kept by all contexts: the union of what they kept was merged");
  at("readout").textContent = told.join("; ");
  showContext(first, token.end ? "" : wordOf(number));
  markTokens();
  at(`t${number}`).scrollIntoView({ block: "nearest" });
}

function markTokens() {
  trace().tokens.forEach((token, number) => {
    const span = at(`t${number}`);
    span.setAttribute("aria-selected", String(number === state.token));
    span.classList.toggle("same", state.token < 0 && trace().voiced && token.context === state.context);
    at(`b${number}`).classList.toggle("chosen", number === state.token);
  });
  if (state.token >= 0) at("answer").setAttribute("aria-activedescendant", `t${state.token}`);
  else { at("answer").removeAttribute("aria-activedescendant"); at("readout").textContent = ""; }
}

function showChart() {
  const tokens = trace().tokens;
  const height = 140, left = 38, low = 120;
  const step = Math.max(6, Math.min(36, (at("chart").clientWidth - left - 8) / Math.max(1, tokens.length)));
  const top = Math.max(...tokens.flatMap((token) => token.surest.slice(0, 2).map((pair) => pair[1])), 0) || 1;
  const y = (value) => low - (value / top) * (low - 10);
  const svg = draw("svg", { width: left + step * tokens.length + 8, height, role: "img", "aria-label": at("caption").textContent });
  for (const value of [0, top]) {
    svg.append(draw("line", { class: "axis", x1: left, x2: left + step * tokens.length, y1: y(value), y2: y(value) }));
    svg.append(draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, value ? value.toPrecision(2) : "0"));
  }
  tokens.forEach((token, number) => {
    const x = left + step * number, [context, entropy] = token.surest[0];
    const mark = trace().voiced ? markOf(context) : null;
    const bar = draw("rect", { id: `b${number}`, class: mark ? "bar" : "bar plain", x: x + 1, width: Math.max(3, step - 2), y: Math.min(y(entropy), low - 1), height: Math.max(1, low - y(entropy)) });
    if (mark) bar.style.fill = `#${mark.colour}`;
    bar.append(draw("title", {}, token.end ? "end" : token.text));
    bar.addEventListener("click", () => choose(number));
    svg.append(bar);
    if (token.surest.length > 1) svg.append(draw("circle", { class: "dot", cx: x + step / 2, cy: y(token.surest[1][1]), r: Math.min(3.5, step / 3) }));
    if (mark && step >= 10) svg.append(draw("text", { x: x + step / 2, y: low + 15, "text-anchor": "middle" }, mark.letter));
  });
  at("chart").replaceChildren(svg);
}

function showTrace(number) {
  state.trace = number;
  state.token = -1;
  const one = trace();
  at("prompt").textContent = one.prompt;
  at("facts").textContent = `${one.model}; ${one.how}`;
  at("notes").textContent = one.notes.join("; ");
  at("hint").textContent = one.voiced
    ? "Each token has the colour and letter of the selected context; grey ones the model would write without any context too. Choose one to see its passage."
    : "The contexts are mixed at every token; choose one to see the passage of lowest entropy there.";
  at("caption").textContent = `Entropy in nats: bars ${one.voiced ? "the selected context" : "the context of lowest entropy"}, circles the lowest of the others.`;
  showAnswer();
  showContexts();
  showChart();
  markTokens();
  showContext(one.source);
}

at("answer").addEventListener("keydown", (event) => {
  const last = trace().tokens.length - 1;
  const to = { ArrowRight: state.token + 1, ArrowDown: state.token + 1, ArrowLeft: state.token - 1, ArrowUp: state.token - 1, Home: 0, End: last }[event.key];
  if (to === undefined || last < 0) return;
  event.preventDefault();
  choose(Math.min(Math.max(to, 0), last));
});
at("several").hidden = data.traces.length < 2;
at("which").append(...data.traces.map((one, number) => make("option", { value: String(number), textContent: `${number + 1}: ${one.prompt.slice(0, 80)}` })));
at("which").addEventListener("change", (event) => showTrace(Number(event.target.value)));
let wide = innerWidth;
addEventListener("resize", () => { if (innerWidth !== wide) { wide = innerWidth; showChart(); markTokens(); } });
showTrace(0);
