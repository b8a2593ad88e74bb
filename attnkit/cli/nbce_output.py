"""What `attnkit nbce` does once all is read: ask, stream, print, save."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnkit.cli import console, streams
from attnkit.text import safe_text

if TYPE_CHECKING:
    from attnkit.nbce.answer import Reply
    from attnkit.nbce.contexts import Context
    from attnkit.nbce.merge import Rule
    from attnkit.nbce.reader import ContextReader
    from attnkit.nbce.trace import Decode, TextStream, Trace
    from attnkit.recipe.schema import SearchConfig
    from attnkit.show.answers import MethodAnswer


class NbceRequest(NamedTuple):
    """What is asked, and how answers are to be made."""

    reader: "ContextReader"
    contexts: "Sequence[Context]"
    prompts: Sequence[str]
    methods: Sequence[str]
    rule: "Rule"
    spec: "SearchConfig"
    traced: bool
    against: Mapping[str, Any]
    """Of the baselines of one row: alpha, limit, cut."""


class Form(NamedTuple):
    """How answers are printed."""

    as_json: bool
    table: bool
    trace: bool
    plain: bool


class Line(NamedTuple):
    """The answer of one method to one prompt."""

    number: int
    prompt: str
    method: str
    reply: "Reply"
    trace: "Trace | None"
    source: str | None
    """Name of the context that answered, where one did."""


def stream(asked: NbceRequest, form: Form) -> "TextStream | None":
    """Where the one answer is written as it comes: on a terminal."""
    from attnkit.nbce.trace import TextStream

    single = len(asked.prompts) == len(asked.methods) == 1 and asked.spec.method != "beam"
    watched = streams.terminal(sys.stdout) and not form.as_json
    return TextStream(_decoder(asked.reader)) if single and watched else None


def _decoder(reader: "ContextReader") -> "Decode":
    """Texts without space around them."""
    return lambda ids: reader.decode(ids).strip()


def answers(asked: NbceRequest, stream: "TextStream | None") -> list[list[Line]]:
    """Of each prompt the answers of all methods."""
    from attnkit.nbce.answer import ask

    def emit(token: int) -> None:
        if stream is not None:
            console.write(safe_text(stream.add(token)))

    every = [[one.text for one in asked.contexts]] * len(asked.prompts)
    found = [
        ask(
            asked.reader, method, every, asked.prompts, asked.spec, asked.rule,
            traced=asked.traced and method == asked.rule.pool,
            emit=None if stream is None else emit,
            **asked.against,
        )
        for method in asked.methods
    ]  # fmt: skip
    return [
        [
            _line(asked, number, method, replies[number - 1])
            for method, replies in zip(asked.methods, found, strict=True)
        ]
        for number in range(1, len(asked.prompts) + 1)
    ]


def _line(asked: NbceRequest, number: int, method: str, reply: "Reply") -> Line:
    """An answer, and where its words come from if contexts were merged and that was asked."""
    from attnkit.nbce.trace import trace

    reader, prompt, told = asked.reader, asked.prompts[number - 1], None
    if asked.traced and method == asked.rule.pool:
        ids = reply.hypotheses[0].ids if reply.hypotheses else []
        told = trace(
            reader.name, prompt, asked.contexts, asked.rule, ids, reply.steps, _decoder(reader)
        )
    source = None if reply.context is None else asked.contexts[reply.context].name
    return Line(number, prompt, method, reply, told, source)


def show(groups: Sequence[Sequence[Line]], form: Form, stream: "TextStream | None") -> None:
    """The answers; of several prompts an answer a line."""
    from attnkit.show.answers import AnswerList
    from attnkit.show.trace_screen import TraceScreen

    many, watched = len(groups) > 1, sys.stdout.isatty()
    for lines in groups:
        if form.as_json:
            for line in lines:
                console.write(json.dumps(_record(line, form), ensure_ascii=False) + "\n")
            continue
        text = lines[0].reply.text.strip()
        if form.table:
            if many:
                console.stdout().print(f"{lines[0].number}: {safe_text(lines[0].prompt)}")
            console.stdout().print(AnswerList([_said(line) for line in lines]))
        elif stream is not None:
            console.write(safe_text(stream.close(text)) + "\n")
        else:
            text = " ".join(text.split()) if many else text
            console.write((safe_text(text) if watched else text) + "\n")
        for line in lines:
            if form.trace and line.trace is not None:
                console.stdout().print()
                console.stdout().print(TraceScreen(line.trace, form.plain))


def _said(line: Line) -> "MethodAnswer":
    """A method's answer as a row of the table."""
    from attnkit.show.answers import MethodAnswer

    reply = line.reply
    chosen = () if line.source is None else (f"from context {reply.context}: {line.source}",)
    return MethodAnswer(line.method, reply.text.strip(), (*chosen, *reply.notes))


def _record(line: Line, form: Form) -> dict[str, Any]:
    """One answer as JSON; prompts are counted from 1, contexts from 0."""
    reply = line.reply
    best = reply.hypotheses[0] if reply.hypotheses else None
    fields: dict[str, Any] = {
        "prompt": line.number,
        "method": line.method,
        "text": reply.text.strip(),
        "score": None if best is None else _finite(best.score),
        "tokens": 0 if best is None else len(best.ids),
        "complete": best is not None and best.complete,
        "context": reply.context,
        "source": line.source,
        "scores": [_finite(score) for score in reply.scores],
        "notes": list(reply.notes),
    }
    if form.trace and line.trace is not None:
        fields["trace"] = line.trace.json()
    return fields


def _finite(score: float) -> float | None:
    """A number that JSON has."""
    return round(score, 6) if math.isfinite(score) else None


def save(files: Sequence[Path], traces: "Sequence[Trace]") -> None:
    """Write all traces to each file."""
    from attnkit.show.trace_page import page
    from attnkit.storage.files import atomic_write

    for path in files:
        if path.suffix.lower() == ".json":
            content: str | bytes = json.dumps({"traces": [one.json() for one in traces]}) + "\n"
        else:
            content = page(traces)
        atomic_write(path, content)
        console.say(f"wrote {path}")


def warn(lines: Sequence[Line], form: Form, spec: "SearchConfig") -> None:
    """What was cut."""
    if not (form.table or form.as_json):
        for line in lines:
            for note in line.reply.notes:
                console.warn(note)
    ends = [line.reply.hypotheses[0].complete for line in lines if line.reply.hypotheses]
    if cut := ends.count(False):
        console.warn(f"answers cut at {spec.max_length} tokens: {cut:,} (--max-length)")
