"""Answers of `attnkit nbce`: asked for, streamed, printed and saved."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnkit.cli import console, output, streams
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
    prompts: Sequence[str]
    methods: Sequence[str]
    rule: "Rule"
    spec: "SearchConfig"
    one_row: Mapping[str, Any]  # options of the baselines of one row: alpha, limit
    trace: bool
    as_json: bool
    files: Sequence[Path]

    @property
    def table(self) -> bool:
        """Whether several methods answer side by side."""
        return len(self.methods) > 1

    @property
    def traced(self) -> bool:
        """Whether the answers or their files name the context of each token."""
        return self.trace or self.as_json or self.table or bool(self.files)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, without space around it."""
        return self.reader.decode(ids).strip()


class PromptAnswer(NamedTuple):
    """The answer of one method to one prompt."""

    number: int  # of the prompt, from 1
    prompt: str
    method: str
    reply: "Reply"
    trace: "Trace | None"
    source: str | None  # name of the context that answered, where one did


def answer(request: NbceRequest) -> None:
    """Ask everything, print the answers, write the files and warn about what was cut."""
    from attnkit.nbce.trace import TextStream

    single = len(request.prompts) == len(request.methods) == 1 and request.spec.method != "beam"
    watched = streams.terminal(sys.stdout) and not request.as_json
    stream = TextStream(request.decode) if single and watched else None
    groups = _ask(request, stream)
    for answers in groups:
        if request.as_json:
            for one in answers:
                console.write(json.dumps(_record(one, request), ensure_ascii=False) + "\n")
        else:
            _show(answers, request, stream)
    answers = [one for group in groups for one in group]
    traces = [one.trace for one in answers if one.trace is not None]
    for path in request.files:
        if path.suffix.lower() == ".json":
            output.save(path, json.dumps({"traces": [one.json() for one in traces]}) + "\n")
        else:
            from attnkit.show.trace_page import page

            output.save(path, page(traces))
    if not (request.table or request.as_json):
        for one in answers:
            if one.reply.cut:
                console.warn(one.reply.cut)
    ends = [one.reply.hypotheses[0].complete for one in answers if one.reply.hypotheses]
    if cut := ends.count(False):
        console.warn(f"answers cut at {request.spec.max_length} tokens: {cut:,} (--max-length)")


def _ask(request: NbceRequest, stream: "TextStream | None") -> list[list[PromptAnswer]]:
    """The answers of all methods to each prompt."""
    from attnkit.nbce.answer import ask

    def emit(token: int) -> None:
        if stream is not None:
            console.write(safe_text(stream.add(token)))

    contexts = [[one.text for one in request.contexts]] * len(request.prompts)
    replies = {
        method: ask(
            request.reader, method, contexts, request.prompts, request.spec, request.rule,
            traced=request.traced and method == request.rule.pool,
            emit=None if stream is None else emit,
            **request.one_row,
        )
        for method in request.methods
    }  # fmt: skip
    return [
        [_answer(request, place, method, some[place]) for method, some in replies.items()]
        for place in range(len(request.prompts))
    ]


def _answer(request: NbceRequest, place: int, method: str, reply: "Reply") -> PromptAnswer:
    """An answer, with the trace of its tokens if contexts were merged and a trace is wanted."""
    from attnkit.nbce.trace import trace

    prompt, traced = request.prompts[place], None
    if request.traced and method == request.rule.pool:
        ids = reply.hypotheses[0].ids if reply.hypotheses else []
        traced = trace(
            request.reader.name, prompt, request.contexts, request.rule, ids, reply.steps,
            request.decode,
        )  # fmt: skip
    source = None if reply.context is None else request.contexts[reply.context].name
    return PromptAnswer(place + 1, prompt, method, reply, traced, source)


def _show(
    answers: Sequence[PromptAnswer], request: NbceRequest, stream: "TextStream | None"
) -> None:
    """The answers to one prompt; of several prompts each answer is a line."""
    from attnkit.show.output_examples import AnswerList, MethodAnswer
    from attnkit.show.trace_screen import TraceScreen

    first, many, screen = answers[0], len(request.prompts) > 1, console.stdout()
    text = first.reply.text.strip()
    if request.table:
        if many:
            screen.print(f"{first.number}: {safe_text(first.prompt)}")
        rows = []
        for one in answers:
            notes = [one.reply.cut] if one.reply.cut else []
            if one.source is not None:
                notes.insert(0, f"from context {_number(one.reply)}: {one.source}")
            rows.append(MethodAnswer(one.method, one.reply.text.strip(), tuple(notes)))
        screen.print(AnswerList(rows))
    elif stream is not None:
        console.write(safe_text(stream.close(text)) + "\n")
    else:
        text = " ".join(text.split()) if many else text
        console.write((safe_text(text) if sys.stdout.isatty() else text) + "\n")
    for one in answers:
        if request.trace and one.trace is not None:
            screen.print()
            screen.print(TraceScreen(one.trace))


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
        "complete": best is not None and best.complete,
        "context": _number(reply),
        "source": answer.source,
        "scores": [_finite(score) for score in reply.scores],
        "notes": [reply.cut] if reply.cut else [],
    }
    if request.trace and answer.trace is not None:
        fields["trace"] = answer.trace.json()
    return fields


def _number(reply: "Reply") -> int | None:
    """Number of the context that answered, from 1."""
    return None if reply.context is None else reply.context + 1


def _finite(score: float) -> float | None:
    """A number that JSON has."""
    return round(score, 6) if math.isfinite(score) else None
