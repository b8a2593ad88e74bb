"""`attnkit nbce`: answer from more context than a model was trained for."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from attnkit.cli import console, nbce_limits, nbce_output, output, plugin
from attnkit.cli.commands.generate import settings
from attnkit.cli.input import open_lines
from attnkit.cli.options import Chat, Device, ModelType, OfflineModel, Template
from attnkit.errors import UsageError
from attnkit.text import quoted

if TYPE_CHECKING:
    from attnkit.nbce.contexts import Context
    from attnkit.nbce.merge import Rule
    from attnkit.nbce.reader import ContextReader
    from attnkit.recipe.schema import SearchConfig

PoolWord = Literal["entropy", "mean", "max", "weighted"]
QuantizeWord = Literal["8bit", "4bit"]
UnitWord = Literal["tokens", "sentences"]
CutWord = Literal["end", "start"]
BASELINES = ("concat", "window", "cad", "best", "retrieval", "none")
LONGEST = 100
"""Tokens of an answer at most, where there is room for so many."""
FILES = (".html", ".htm", ".json")


def nbce(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder of a finished run; or a Hugging Face model, by folder or name.",
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
        typer.Option(
            metavar="POOL",
            help="entropy: the surest context speaks; mean, max or weighted: all are mixed.",
        ),
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
    unit: Annotated[
        UnitWord,
        typer.Option(metavar="UNIT", help="Of --window and --overlap: tokens or sentences."),
    ] = "tokens",
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
    alpha: Annotated[
        float | None,
        typer.Option(metavar="A", help="How much cad contrasts contexts with none. [default: 0.5]"),
    ] = None,
    limit: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="Most tokens of the one row of concat and cad, answer included. [default: what "
            "the model can read]",
        ),
    ] = None,
    cut: Annotated[
        CutWord | None,
        typer.Option(
            metavar="END", help="Which end of that row goes: end or start. [default: end]"
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
    chat: Chat = False,
    template: Template = "",
    dtype: ModelType = "float32",
    quantize: Annotated[
        QuantizeWord | None,
        typer.Option(metavar="BITS", help="Keep a Hugging Face model's weights in 8bit or 4bit."),
    ] = None,
    offline: OfflineModel = False,
    device: Device = "auto",
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
    from attnkit.nbce import open_model

    files = _checked(save or [], baseline or [], as_json, plain, trace)
    questions = _questions(prompt or [], prompts, (*(context or ()), contexts))
    spec, fixed = _spec(beam, sample, temperature, seed, max_length)
    rule = _rule(pool, beta, eta, top_p, top_k, weights)
    against = _against(baseline or [], alpha, limit, cut)
    _check_splitting(window, overlap, pack)
    opened = open_model(
        model, device=device, dtype=dtype, offline=offline, chat=chat,
        template=template.replace("\\n", "\n"), quantization=quantize,
    )  # fmt: skip
    splitting = {"window": window, "overlap": overlap or 0, "unit": unit, "pack": pack}
    found = _contexts(opened, context or [], contexts, splitting)
    rule.check(len(found))
    row = nbce_limits.longest(opened, [one.text for one in found], questions)
    spec = nbce_limits.fitted(row, spec, fixed, splitting)
    methods = list(dict.fromkeys([pool, *(baseline or ())]))
    traced = trace or as_json or len(methods) > 1 or bool(files)  # who spoke is told there
    asked = nbce_output.NbceRequest(opened, found, questions, methods, rule, spec, traced, against)
    nbce_limits.warn(asked, row, fixed, splitting)
    form = nbce_output.Form(as_json, len(methods) > 1, trace, plain)
    stream = nbce_output.stream(asked, form)
    groups = nbce_output.answers(asked, stream)
    nbce_output.show(groups, form, stream)
    lines = [line for some in groups for line in some]
    nbce_output.save(files, [line.trace for line in lines if line.trace is not None])
    nbce_output.warn(lines, form, spec)


def _checked(
    files: Sequence[Path], baselines: Sequence[str], as_json: bool, plain: bool, trace: bool
) -> Sequence[Path]:
    """Refuse what could not be written or means nothing, before any work is done."""
    for word in baselines:
        if word not in BASELINES:
            raise UsageError(f"--baseline {quoted(word)}: {output.choices(word, BASELINES)}")
    for path in files:
        output.check_saves(path, FILES)
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
) -> "tuple[SearchConfig, bool]":
    """How answers are searched, and whether their length was asked for."""
    from attnkit.recipe.schema import SearchConfig

    if temperature == 0 and sample:
        raise UsageError("--temperature 0 is greedy: leave --sample out")
    sample = sample or bool(temperature)
    asked = {"beam": beam, "temperature": temperature or None, "seed": seed,
             "max_length": max_length}  # fmt: skip
    base = SearchConfig(method="greedy", max_length=LONGEST)
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


def _against(
    baselines: Sequence[str], alpha: float | None, limit: int | None, cut: CutWord | None
) -> dict[str, Any]:
    """How the baselines of one row are asked: what `ask` is told beside the rule."""
    given = {"alpha": alpha, "limit": limit, "cut": cut}
    for name, value in given.items():
        users = ("cad",) if name == "alpha" else ("concat", "cad")
        if value is not None and not {*users} & {*baselines}:
            raise UsageError(f"--{name} is of {' and '.join(users)}: add --baseline {users[0]}")
    if alpha is not None and not 0 <= alpha < math.inf:
        raise UsageError(f"--alpha {alpha:g}: should be at least 0")
    if limit is not None and limit < 1:
        raise UsageError(f"--limit {limit}: should be at least 1")
    return {name: value for name, value in given.items() if value is not None}


def _check_splitting(window: int | None, overlap: int | None, pack: int | None) -> None:
    for name, value in (("window", window), ("pack", pack)):
        if value is not None and value < 1:
            raise UsageError(f"--{name} {value}: should be at least 1")
    if overlap and window is None:
        raise UsageError("--overlap is of windows: add --window N")
    if window is not None and not 0 <= (overlap or 0) < window:
        raise UsageError(f"--overlap {overlap}: should be from 0 to {window - 1}")


def _contexts(
    reader: "ContextReader", files: Sequence[str], lines: str | None, splitting: Mapping[str, Any]
) -> "list[Context]":
    """What is to be read; says what was dropped, split or packed."""
    from attnkit.nbce.contexts import from_jsonl, from_text, prepare

    read = [from_text(path) for path in files]
    read += [] if lines is None else from_jsonl(lines)
    found, notes = prepare(read, lambda text: len(reader.encode(text)), **splitting)
    for note in notes:
        console.say(note)
    return found
