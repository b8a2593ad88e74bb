const state = { trace: 0, token: -1, context: -1 };
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
  });
  if (state.token >= 0) at("answer").setAttribute("aria-activedescendant", `t${state.token}`);
  else { at("answer").removeAttribute("aria-activedescendant"); at("readout").textContent = ""; }
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
  showAnswer();
  showContexts();
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
showTrace(0);
