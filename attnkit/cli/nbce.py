"""`attnkit nbce`: answer from more context than a model was trained for."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from attnkit.cli import console, plugin
from attnkit.cli.generate import settings
from attnkit.cli.lines import open_lines
from attnkit.errors import UsageError
from attnkit.text import nearest, quoted, safe_text

if TYPE_CHECKING:
    from attnkit.nbce.ask import Reply
    from attnkit.nbce.contexts import Context
    from attnkit.nbce.merge import Rule
    from attnkit.nbce.reader import Reader
    from attnkit.nbce.trace import Decode, Stream, Trace
    from attnkit.recipe.schema import Search
    from attnkit.show.replies import Said

PoolWord = Literal["entropy", "mean", "max", "weighted"]
UnitWord = Literal["tokens", "sentences"]
BASELINES = ("concat", "window", "cad", "best", "retrieval", "none")
LONGEST = 100
"""Tokens of an answer at most, where there is room for so many."""
SHORTEST = 8
"""An answer is not shortened below this to make contexts fit."""
FILES = (".html", ".htm", ".json")


class Asked(NamedTuple):
    """What is asked, and how answers are to be made."""

    reader: "Reader"
    contexts: "Sequence[Context]"
    prompts: Sequence[str]
    methods: Sequence[str]
    rule: "Rule"
    spec: "Search"
    traced: bool


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


def nbce(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder of a finished run; or a Hugging Face causal model, by folder or name.",
        ),
    ],
    *,
    context: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="A context; - is standard input; may be repeated."),
    ] = None,
    contexts: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help='Contexts, one a line: {"text": "..."} or a JSON string; - is standard input.',
        ),
    ] = None,
    prompt: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help="What is asked; may be repeated.")
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Prompts, one a line, answered one a line."),
    ] = None,
    pool: Annotated[
        PoolWord,
        typer.Option(help="entropy: the surest context speaks; the others mix all contexts."),
    ] = "entropy",
    beta: Annotated[
        float,
        typer.Option(metavar="B", help="How much the answer without context is divided out."),
    ] = 0.25,
    eta: Annotated[
        float,
        typer.Option(
            metavar="E", help="How much surer, in nats, another context must be to speak."
        ),
    ] = 0.1,
    top_p: Annotated[
        float,
        typer.Option(metavar="P", help="Each context keeps its likeliest tokens of this mass."),
    ] = 0.95,
    top_k: Annotated[
        int, typer.Option(metavar="K", help="And at most so many tokens; 0 is no limit.")
    ] = 0,
    weights: Annotated[
        str | None,
        typer.Option(
            metavar="W,W,...",
            help="Of each context, for --pool weighted. [default: softmax of minus the entropies]",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(metavar="N", help="Split each context into windows of N --unit."),
    ] = None,
    overlap: Annotated[
        int | None,
        typer.Option(metavar="N", help="How much of a window the next one repeats. [default: 0]"),
    ] = None,
    pack: Annotated[
        int | None,
        typer.Option(metavar="N", help="Read neighbouring contexts together, up to N tokens."),
    ] = None,
    unit: Annotated[UnitWord, typer.Option(help="What --window and --overlap count.")] = "tokens",
    baseline: Annotated[
        list[str] | None,
        typer.Option(
            metavar="METHOD",
            help="Answer by this as well, side by side; may be repeated. All contexts in one row, "
            "cut to fit (concat); in parallel windows (window); against no context (cad); one by "
            "one, the likeliest answer (best); the one that makes the prompt least surprising "
            "(retrieval); no context (none).",
        ),
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Show which context spoke at each token.")
    ] = False,
    plain: Annotated[
        bool, typer.Option("--plain", help="The trace as a line a token, for readers and grep.")
    ] = False,
    save: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE", help="Write the trace as a page (.html) or .json; may be repeated."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print an object for each prompt and method.")
    ] = False,
    beam: Annotated[
        int | None, typer.Option(metavar="K", help="Beam search. [default: greedy]")
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw each token from the merged distribution.")
    ] = False,
    temperature: Annotated[
        float | None,
        typer.Option(
            metavar="T",
            help="Sample at T; 0 is greedy, and the published 0.01 hardly differs from it.",
        ),
    ] = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Seed of sampling, with the prompt's number.")
    ] = None,
    max_length: Annotated[
        int | None,
        typer.Option(
            metavar="N", help=f"Longest answer in tokens. [default: {LONGEST}, or what fits]"
        ),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Use the chat template of a Hugging Face model.")
    ] = False,
    dtype: Annotated[
        str,
        typer.Option(metavar="TYPE", help="float32, bfloat16, float16 or auto (Hugging Face)."),
    ] = "float32",
    offline: Annotated[
        bool, typer.Option("--offline", help="Never download a Hugging Face model.")
    ] = False,
    device: Annotated[
        str, typer.Option(metavar="DEVICE", help="auto, cpu, cuda, cuda:1, mps.")
    ] = "auto",
    plugins: plugin.Plugins = None,
) -> None:
    """Answer a prompt from many contexts, each read on its own and merged at every token.

    No context is longer than the model can read, however many there are: naive-Bayes-based context
    extension. With --trace one sees which context each word came from.

      attnkit nbce RUN --context paris.txt --context rome.txt --prompt "Where is the Seine?"
      attnkit nbce RUN --context book.txt --window 200 --overlap 50 --prompt "Who?" --trace
      cat notes/*.txt | attnkit nbce RUN --context - --window 5 --unit sentences --prompt "When?"
      attnkit nbce RUN --contexts passages.jsonl --prompts questions.txt --json > answers.jsonl
      attnkit nbce RUN --contexts passages.jsonl --prompt "Why?" --baseline concat --baseline best
    """
    files = _checked(save or [], baseline or [], as_json, plain, trace)
    questions = _questions(prompt or [], prompts, (*(context or ()), contexts))
    spec, fixed = _spec(beam, sample, temperature, seed, max_length)
    rule = _rule(pool, beta, eta, top_p, top_k, weights)
    _check_splitting(window, overlap, pack)
    opened = _open(model, device=device)
    splitting = {"window": window, "overlap": overlap or 0, "unit": unit, "pack": pack}
    found = _contexts(opened, context or [], contexts, splitting)
    rule.check(len(found))
    if not fixed:
        spec = _fitted(spec, opened, found, questions)
    methods = list(dict.fromkeys([pool, *(baseline or ())]))
    asked = Asked(opened, found, questions, methods, rule, spec, trace or bool(files))
    form = Form(as_json, len(methods) > 1, trace, plain)
    stream = _stream(asked, form)
    groups = _answers(asked, stream)
    _print(groups, form, stream)
    lines = [line for some in groups for line in some]
    _save(files, [line.trace for line in lines if line.trace is not None])
    _warn(lines, form, spec)


def _checked(
    files: Sequence[Path], baselines: Sequence[str], as_json: bool, plain: bool, trace: bool
) -> Sequence[Path]:
    """Refuse what could not be written or means nothing, before any work is done."""
    for word in baselines:
        if word not in BASELINES:
            near = nearest(word, BASELINES)
            hint = f"did you mean {near}? " if near else ""
            raise UsageError(f"--baseline {quoted(word)}: {hint}choose from {', '.join(BASELINES)}")
    for path in files:
        if path.suffix.lower() not in FILES:
            raise UsageError(
                f"--save {path}: suffix {quoted(path.suffix)} is not known; choose from "
                + " ".join(FILES)
            )
    if plain and not trace:
        raise UsageError("--plain is how a trace is shown: add --trace")
    if plain and as_json:
        raise UsageError("--json has the trace in full: leave --plain out")
    return files


def _questions(given: Sequence[str], file: str | None, others: Sequence[str | None]) -> list[str]:
    """The prompts.

    Raises:
        UsageError: there is none, one is empty, or standard input is wanted twice.
    """
    if [*others, file].count("-") > 1:
        raise UsageError("only one of --context, --contexts and --prompts can be standard input")
    found = list(given)
    if file is not None:
        with open_lines(file, "strict") as lines:
            found += lines
    if not found:
        raise UsageError("there is no prompt: say what is asked, by --prompt TEXT or --prompts")
    for number, text in enumerate(found, 1):
        if not text.strip():
            raise UsageError(f"prompt {number} is empty: say what the model should answer")
    return found


def _spec(
    beam: int | None,
    sample: bool,
    temperature: float | None,
    seed: int | None,
    max_length: int | None,
) -> "tuple[Search, bool]":
    """How answers are searched, and whether their length was asked for."""
    from attnkit.recipe.schema import Search

    if temperature == 0 and sample:
        raise UsageError("--temperature 0 is greedy: leave --sample out")
    sample = sample or bool(temperature)
    asked = {"beam": beam, "temperature": temperature or None, "seed": seed,
             "max_length": max_length}  # fmt: skip
    base = Search(method="greedy", max_length=LONGEST)
    return settings(base, asked, sample), max_length is not None


def _rule(
    pool: PoolWord, beta: float, eta: float, top_p: float, top_k: int, weights: str | None
) -> "Rule":
    """How contexts are merged."""
    from attnkit.nbce.merge import Rule

    given = None
    if weights is not None:
        try:
            given = tuple(float(word) for word in weights.split(","))
        except ValueError as error:
            raise UsageError(
                f"--weights {quoted(weights)}: numbers with commas between, such as 0.5,0.3,0.2"
            ) from error
    return Rule(pool, beta, eta, top_p, top_k, given)


def _check_splitting(window: int | None, overlap: int | None, pack: int | None) -> None:
    for name, value in (("window", window), ("pack", pack)):
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value}: should be at least 1")
    if overlap and window is None:
        raise UsageError("--overlap is of windows: add --window N")
    if window is not None and not 0 <= (overlap or 0) < window:
        raise UsageError(f"--overlap {overlap}: should be from 0 to {window - 1}")


def _open(model: str, *, device: str) -> "Reader":
    from attnkit.evaluate import pick_device
    from attnkit.nbce.own import open_run
    from attnkit.runs import Run

    return open_run(Run.open(Path(model)), pick_device(device))


def _contexts(
    reader: "Reader", files: Sequence[str], lines: str | None, splitting: Mapping[str, Any]
) -> "list[Context]":
    """What is to be read; says what was dropped, split or packed."""
    from attnkit.nbce.contexts import from_jsonl, from_text, prepare

    read = [from_text(path) for path in files]
    read += [] if lines is None else from_jsonl(lines)
    found = prepare(read, lambda text: len(reader.encode(text)), **splitting)
    for note in found.notes:
        console.say(note)
    return found.all


def _fitted(
    spec: "Search", reader: "Reader", contexts: "Sequence[Context]", prompts: Sequence[str]
) -> "Search":
    """The search with answers as long as the longest context leaves room for."""
    if reader.limit is None:
        return spec
    head = max((reader.row(one.text, prompts[0]) for one in contexts), key=lambda row: row.longest)
    rows = [reader.row("", text) for text in prompts]
    size = head.longest - len(head.tail) + max(len(row.tail) for row in rows)
    room = max(SHORTEST, min(spec.max_length, reader.limit - size))
    if room < spec.max_length:
        console.say(f"answers have at most {room} tokens: the contexts leave no more room")
    return spec.model_copy(update={"max_length": room})


def _stream(asked: Asked, form: Form) -> "Stream | None":
    """Where the one answer is written as it comes: on a terminal."""
    from attnkit.nbce.trace import Stream

    single = len(asked.prompts) == len(asked.methods) == 1 and asked.spec.method != "beam"
    watched = console.terminal(sys.stdout) and not form.as_json
    return Stream(_decoder(asked.reader)) if single and watched else None


def _decoder(reader: "Reader") -> "Decode":
    """Texts without space around them."""
    return lambda ids: reader.decode(ids).strip()


def _answers(asked: Asked, stream: "Stream | None") -> list[list[Line]]:
    """Of each prompt the answers of all methods."""
    from attnkit.nbce.ask import ask

    def emit(token: int) -> None:
        if stream is not None:
            console.write(safe_text(stream.add(token)))

    every = [[one.text for one in asked.contexts]] * len(asked.prompts)
    found = [
        ask(
            asked.reader, method, every, asked.prompts, asked.spec, asked.rule,
            traced=asked.traced and method == asked.rule.pool,
            emit=None if stream is None else emit,
        )
        for method in asked.methods
    ]  # fmt: skip
    return [
        [
            Line(
                number, prompt, method, replies[number - 1], _trace(asked, number, method, replies)
            )
            for method, replies in zip(asked.methods, found, strict=True)
        ]
        for number, prompt in enumerate(asked.prompts, 1)
    ]


def _trace(asked: Asked, number: int, method: str, replies: "Sequence[Reply]") -> "Trace | None":
    """Where the words of one answer come from, if contexts were merged and it was asked."""
    from attnkit.nbce.trace import trace

    if not asked.traced or method != asked.rule.pool:
        return None
    reader, reply = asked.reader, replies[number - 1]
    ids = reply.hypotheses[0].ids if reply.hypotheses else []
    prompt, decode = asked.prompts[number - 1], _decoder(reader)
    return trace(reader.name, prompt, asked.contexts, asked.rule, ids, reply.steps, decode)


def _print(groups: Sequence[Sequence[Line]], form: Form, stream: "Stream | None") -> None:
    """The answers; of several prompts an answer a line."""
    from attnkit.show.replies import Replies
    from attnkit.show.trace import TraceScreen

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
            console.stdout().print(Replies([_said(line) for line in lines]))
        elif stream is not None:
            console.write(safe_text(stream.close(text)) + "\n")
        else:
            text = " ".join(text.split()) if many else text
            console.write((safe_text(text) if watched else text) + "\n")
        for line in lines:
            if form.trace and line.trace is not None:
                console.stdout().print()
                console.stdout().print(TraceScreen(line.trace, form.plain))


def _said(line: Line) -> "Said":
    """A method's answer as a row of the table."""
    from attnkit.show.replies import Said

    reply = line.reply
    chosen = () if reply.context is None else (f"from context {reply.context}",)
    return Said(line.method, reply.text.strip(), (*chosen, *reply.notes))


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
        "scores": [_finite(score) for score in reply.scores],
        "notes": list(reply.notes),
    }
    if form.trace and line.trace is not None:
        fields["trace"] = line.trace.json()
    return fields


def _finite(score: float) -> float | None:
    """A number that JSON has."""
    return round(score, 6) if math.isfinite(score) else None


def _save(files: Sequence[Path], traces: "Sequence[Trace]") -> None:
    """Write all traces to each file."""
    from attnkit.files import atomic_write
    from attnkit.show.tracepage import page

    for path in files:
        if path.suffix.lower() == ".json":
            content: str | bytes = json.dumps({"traces": [one.json() for one in traces]}) + "\n"
        else:
            content = page(traces)
        atomic_write(path, content)
        console.say(f"wrote {path}")


def _warn(lines: Sequence[Line], form: Form, spec: "Search") -> None:
    """What was cut."""
    if not (form.table or form.as_json):
        for line in lines:
            for note in line.reply.notes:
                console.warn(note)
    ends = [line.reply.hypotheses[0].complete for line in lines if line.reply.hypotheses]
    if cut := ends.count(False):
        console.warn(f"answers cut at {spec.max_length} tokens: {cut:,} (--max-length)")
