"""Answers of `attnkit nbce`: asked for, streamed, printed and saved."""

import json
import math
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnkit.cli import console, output, streams
from attnkit.cli.progress_bar import Progress, progress_bar
from attnkit.text import safe_text

if TYPE_CHECKING:
    from attnkit.nbce.answer import Reply
    from attnkit.nbce.contexts import Context
    from attnkit.nbce.merge import Rule
    from attnkit.nbce.reader import ContextReader
    from attnkit.nbce.trace import TextStream, Trace
    from attnkit.recipe.schema import SearchConfig


class NbceRequest(NamedTuple):
    """What is asked, and how answers are made and printed."""

    reader: "ContextReader"
    contexts: "Sequence[Context]"
    methods: Sequence[str]
    rule: "Rule"
    spec: "SearchConfig"
    fixed: bool  # the user set the length of answers
    alpha: float  # of the baseline cad
    choices: Sequence[str]  # scored in place of generating; empty: text is generated
    trace: bool
    as_json: bool
    files: Sequence[Path]

    @property
    def table(self) -> bool:
        """Whether several methods answer side by side."""
        return len(self.methods) > 1

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, without space around it."""
        return self.reader.decode(ids).strip()

    def source(self, reply: "Reply") -> str | None:
        """Name of the context that an answer is from, where there is one."""
        return None if reply.context is None else self.contexts[reply.context].name


class PromptAnswer(NamedTuple):
    """The answer of one method to one prompt."""

    number: int  # of the prompt, from 1
    prompt: str
    method: str
    reply: "Reply"
    trace: "Trace | None"


def answer(
    request: NbceRequest, prompts: Sequence[str], piped: Iterator[str] | None = None
) -> None:
    """Ask everything, print the answers, write the files and warn about what was cut.

    The prompts are asked together, then each of `piped` when it comes, with the contexts kept.
    """
    several = len(prompts) > 1 or piped is not None
    traces: list[Trace] = []
    cut = 0  # answers; of a pipe that stays open only what is asked for is kept

    def ask_and_count(some: Sequence[str], first: int) -> None:
        nonlocal cut
        for one in _answered(request, some, first, several):
            if request.files and one.trace is not None:
                traces.append(one.trace)
            if one.reply.cut and not (request.table or request.as_json):
                console.warn(one.reply.cut)
            cut += bool(one.reply.hypotheses) and not one.reply.complete

    if prompts:
        ask_and_count(prompts, 1)
    if piped is not None:
        request.reader.keep_contexts = True
        for number, prompt in enumerate(piped, len(prompts) + 1):
            ask_and_count([prompt], number)
            sys.stdout.flush()
    for path in request.files:
        if path.suffix.lower() == ".json":
            output.save(path, json.dumps({"traces": [one.json() for one in traces]}) + "\n")
        else:
            from attnkit.show.trace_page import page

            output.save(path, page(traces))
    if cut:
        console.warn(f"answers cut at their maximum length: {cut:,} (--max-length)")


def _answered(
    request: NbceRequest, prompts: Sequence[str], first: int, several: bool
) -> list[PromptAnswer]:
    """Answers to some prompts, printed; `first` is the number of the first."""
    from attnkit.nbce.reader import fitted
    from attnkit.nbce.trace import TextStream

    if not request.choices and prompts[0].strip():
        texts = [one.text for one in request.contexts]
        spec, notes = fitted(request.reader, texts, prompts, request.spec, request.fixed)
        for note in notes if first == 1 else ():
            console.warn(note)
        request = request._replace(spec=spec)
    single = not several and not request.table and request.spec.method != "beam"
    watched = single and streams.terminal(sys.stdout) and not request.as_json
    stream = TextStream(request.decode) if watched and not request.choices else None
    bar = ExitStack()

    def progress(done: int, total: int) -> None:
        if not shown:
            shown.append(bar.enter_context(progress_bar("rows read")))
        shown[0]("contexts", done, total)
        if done >= total:  # the bar goes before text is written
            bar.close()
            shown.clear()

    shown: list[Progress] = []
    request.reader.progress = progress
    with bar:
        columns = [_ask(request, method, prompts, first, stream) for method in request.methods]
    rows = list(zip(*columns, strict=True))
    for row in rows:
        if request.as_json:
            for one in row:
                console.write(json.dumps(_record(one, request), ensure_ascii=False) + "\n")
        else:
            _show(row, request, stream, several)
    return [one for row in rows for one in row]


def _ask(
    request: NbceRequest, method: str, prompts: Sequence[str], first: int,
    stream: "TextStream | None",
) -> list[PromptAnswer]:  # fmt: skip
    """The answers of one method; an empty prompt, as a pipe may have, gets an empty one."""
    from attnkit.nbce.answer import Reply, ask
    from attnkit.nbce.trace import trace

    def emit(token: int) -> None:
        if stream is not None:
            console.write(safe_text(stream.add(token)))

    reader, rule = request.reader, request.rule
    contexts = [[one.text for one in request.contexts]] * len(prompts)
    how: dict[str, Any] = {"alpha": request.alpha, "limit": _limit(request, prompts)}
    if not prompts[0].strip():
        replies = [Reply("", [], [], None)]
    else:
        how |= {"choices": request.choices, "emit": emit if stream is not None else None}
        replies = ask(reader, method, contexts, prompts, request.spec, rule, **how)
    found = []
    for number, (prompt, reply) in enumerate(zip(prompts, replies, strict=True), first):
        traced = None
        if reply.steps and reply.source:
            ids = reply.hypotheses[0].ids
            traced = trace(
                reader.name, prompt, request.contexts, rule, ids, reply.steps, reply.source,
                request.decode,
            )  # fmt: skip
        found.append(PromptAnswer(number, prompt, method, reply, traced))
    return found


def _limit(request: NbceRequest, prompts: Sequence[str]) -> int | None:
    """Most tokens of a row of several contexts, with its answer; None: the model's own.

    As in evaluation it is cut to the length of training, but for a prompt that alone is longer.
    """
    reader = request.reader
    if reader.trained is None:
        return None
    prompt = max(reader.row("", text).longest for text in prompts)
    return max(reader.trained + 1, prompt) + request.spec.max_length


def _show(
    answers: Sequence[PromptAnswer], request: NbceRequest, stream: "TextStream | None",
    several: bool,
) -> None:  # fmt: skip
    """The answers to one prompt; of several prompts each answer is a line.

    The source of a text is told beside it, on standard error: the text alone can be piped on.
    """
    first, screen = answers[0], console.stdout()
    text, probabilities = first.reply.text.strip(), first.reply.probabilities
    if request.table:
        from attnkit.show.table import Table

        if several:
            screen.print(f"{first.number}: {safe_text(first.prompt)}")
        rows = []
        for one in answers:
            text = one.reply.text.strip() or "(nothing)"
            if one.reply.probabilities:
                text = f"{text} ({max(one.reply.probabilities.values()):.1%})"
            said = "; ".join(filter(None, (_from(one.reply, request), one.reply.cut)))
            rows.append((one.method, text, said))
        screen.print(Table.of_texts("", ("method", "answer", "from"), rows))
    elif stream is not None:
        console.write(safe_text(stream.close(text)) + "\n")
    else:
        text = " ".join(text.split()) if several else text
        console.write((safe_text(text) if sys.stdout.isatty() else text) + "\n")
    if not request.table and not several:
        for choice, probability in probabilities.items():
            console.write(f"{probability:6.1%} {safe_text(choice)}\n")
        said = _from(first.reply, request)
        if said and probabilities:
            console.write(safe_text(said) + "\n")
        elif said and not (request.trace and first.trace):  # a trace ends with the source
            console.say(said)
    for one in answers:
        if request.trace and one.trace is not None:
            from attnkit.show.trace_screen import TraceScreen

            screen.print()
            screen.print(TraceScreen(one.trace))


def _from(reply: "Reply", request: NbceRequest) -> str:
    """Which context an answer is from, and its share; "" where nobody knows."""
    share = f" ({reply.source.share:.0%})" if reply.source else ""
    if reply.context is not None:
        return f"from context {reply.context + 1}{share}: {request.source(reply)}"
    return f"source unclear{share.replace('(', '(at most ')}" if reply.source else ""


def _record(answer: PromptAnswer, request: NbceRequest) -> dict[str, Any]:
    """One answer as JSON; prompts and contexts are counted from 1."""
    reply = answer.reply
    best = reply.hypotheses[0] if reply.hypotheses else None
    fields: dict[str, Any] = {
        "prompt": answer.number,
        "method": answer.method,
        "text": reply.text.strip(),
        "score": None if best is None else _finite(best.score),
        "tokens": 0 if best is None else len(best.ids),
        "complete": reply.complete,
        "context": None if reply.context is None else reply.context + 1,
        "source": request.source(reply),
        "share": None if reply.source is None else round(reply.source.share, 4),
        "scores": [_finite(score) for score in reply.scores],
        "notes": [reply.cut] if reply.cut else [],
    }
    if reply.probabilities:
        fields["probabilities"] = {
            choice: round(value, 6) for choice, value in reply.probabilities.items()
        }
    if request.trace and answer.trace is not None:
        fields["trace"] = answer.trace.json()
    return fields


def _finite(score: float) -> float | None:
    """A number that JSON has."""
    return round(score, 6) if math.isfinite(score) else None
