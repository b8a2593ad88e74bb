"""`attnkit generate`: translate, summarise or answer line by line with a trained run."""

import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attnkit.cli import console, plugin, streams
from attnkit.cli.input import Errors, InputLines, destination, open_lines
from attnkit.cli.options import Beam, Device, MaxLength, RunFolder, Temperature, TopP
from attnkit.errors import UsageError
from attnkit.text import quoted

if TYPE_CHECKING:
    from attnkit.recipe.schema import SearchConfig
    from attnkit.runs import Run

BLOCK = 2048
"""Lines read before the first answer."""
SAMPLING = ("top_p", "top_k", "temperature", "seed")
"""Options that mean nothing without sampling."""


def generate(
    run: RunFolder,
    input: Annotated[
        str, typer.Argument(metavar="INPUT", help="Text, a sentence a line; - is standard input.")
    ] = "-",
    *,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write there, whole or not at all.")
    ] = None,
    beam: Beam = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Draw each token from the model's distribution.")
    ] = False,
    top_p: TopP = None,
    top_k: Annotated[
        int | None, typer.Option(metavar="K", help="Sample from the K likeliest tokens.")
    ] = None,
    temperature: Temperature = None,
    seed: Annotated[
        int | None, typer.Option(metavar="N", help="Seed of sampling, with the line's number.")
    ] = None,
    n_best: Annotated[
        int | None, typer.Option(metavar="N", help="N outputs for each line, best first.")
    ] = None,
    scores: Annotated[
        bool, typer.Option("--scores", help="Print line number, score and text, with tabs between.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help='Print {"line", "rank", "score", "text"} objects.')
    ] = False,
    batch_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Lines x beams x longest input of a batch.")
    ] = None,
    max_length: MaxLength = None,
    min_length: Annotated[
        int | None, typer.Option(metavar="N", help="Shortest output in tokens.")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(metavar="A", help="Score = log-probability / length ** A.")
    ] = None,
    no_repeat_ngram: Annotated[
        int | None, typer.Option(metavar="N", help="Never repeat N tokens in a row.")
    ] = None,
    block: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help=f"Lines read before the first answer; on a terminal 1. [default: {BLOCK}]",
        ),
    ] = None,
    errors: Annotated[
        str, typer.Option(metavar="WHAT", help="Malformed UTF-8: strict stops, replace goes on.")
    ] = "strict",
    device: Device = "auto",
    plugins: plugin.Plugins = None,
) -> None:
    """Translate, summarise or answer line by line with a trained run.

    N lines in give N lines out, in order (with --n-best K, N times K); an empty line gives an empty
    one.  What is not said here comes from the search section of the run's recipe.

      echo "A man rides a horse." | attnkit generate runs/translation/multi30k/vanilla/seed-1
      attnkit generate RUN input.txt --output output.txt --beam 8
      attnkit generate RUN input.txt --sample --top-p 0.9 --seed 7 --n-best 3 --scores
    """
    from attnkit.runs import Run

    if block is not None and block < 1:
        raise UsageError(f"--block {block}: should be greater than or equal to 1")
    if scores and as_json:
        raise UsageError("--json has the scores already: leave --scores out")
    asked = {
        "beam": beam, "top_p": top_p, "top_k": top_k, "temperature": temperature, "seed": seed,
        "n_best": n_best, "batch_tokens": batch_tokens, "max_length": max_length,
        "min_length": min_length, "length_penalty": length_penalty,
        "no_repeat_ngram": no_repeat_ngram,
    }  # fmt: skip
    trained = Run.open(run)
    spec = settings(trained.recipe.search, asked, sample)
    if trained.recipe.model.shape == "encoder":
        raise UsageError(f"{run}: a model of shape encoder cannot generate: it has no decoder")
    show = _json if as_json else _scored if scores else _plain
    policy = _policy(errors)
    with open_lines(input, policy) as lines:
        typed = input == "-" and sys.stdin.isatty()
        if typed and streams.terminal(sys.stderr):
            console.say("type a line and press Enter; Ctrl-D ends")
        job = GenerationJob(trained, spec, lines, block or (1 if typed else BLOCK), device)
        with destination(output) as write:
            for number, answers in enumerate(job.answers(), 1):
                write("".join(show(number, rank, *one) for rank, one in enumerate(answers, 1)))
    for warning in job.warnings():
        console.warn(warning)


def _policy(word: str) -> Errors:
    """The value of --errors."""
    policies: dict[str, Errors] = {"strict": "strict", "replace": "replace"}
    if word not in policies:
        raise UsageError(f"--errors {quoted(word)}: choose from {', '.join(policies)}")
    return policies[word]


def settings(recipe: "SearchConfig", asked: Mapping[str, Any], sample: bool) -> "SearchConfig":
    """The search section of the recipe with what the command line asks for (None: nothing).

    Raises:
        UsageError: options exclude each other, mean nothing together, or are out of range.
    """
    from pydantic import ValidationError

    given = {name: value for name, value in asked.items() if value is not None}
    if sample and "beam" in given:
        raise UsageError("--beam and --sample exclude each other: leave one of them out")
    method = "sample" if sample else "beam" if "beam" in given else recipe.method
    for name in SAMPLING:
        if name in given and method != "sample":
            raise UsageError(f"{_option(name)} is for sampling: add --sample")
    try:
        spec = type(recipe)(**recipe.model_dump() | given | {"method": method})
    except ValidationError as error:
        fault = error.errors()[0]
        name = str(fault["loc"][0])
        reason = fault["msg"].removeprefix("Input ")
        raise UsageError(f"{_option(name)} {given.get(name)}: {reason}") from error
    if spec.min_length >= spec.max_length:
        raise UsageError(
            f"--min-length {spec.min_length}: must be below --max-length {spec.max_length}"
        )
    most = {"sample": spec.n_best, "beam": spec.beam, "greedy": 1}[method]
    if spec.n_best > most:
        raise UsageError(
            f"--n-best {spec.n_best}: the search keeps {most}; add --beam {spec.n_best} or --sample"
        )
    # a beam of one is greedy search, which needs no reordering
    single = method == "beam" and spec.beam == 1
    return spec.model_copy(update={"method": "greedy"}) if single else spec


def _option(name: str) -> str:
    """How a setting is spelled on the command line."""
    return "--" + name.replace("_", "-")


class GenerationJob:
    """One stream of lines through one run."""

    def __init__(
        self, run: "Run", spec: "SearchConfig", lines: InputLines, block: int, device: str
    ) -> None:
        from attnkit.search import LineCounts

        self.run, self.spec, self.lines = run, spec, lines
        self.block, self.device = block, device
        self.counts = LineCounts()

    def answers(self) -> Iterator[list[tuple[str, float]]]:
        """The outputs for each line."""
        from attnkit.device import pick_device
        from attnkit.search import translate

        recipe, place = self.run.recipe, pick_device(self.device)
        return translate(
            self.run.model(place),
            self.run.tokenizer(),
            self.lines,
            self.spec,
            max_source=recipe.data.max_length,
            block=self.block,
            prompts=recipe.task == "language-modeling",
            counts=self.counts,
        )

    def warnings(self) -> Iterator[str]:
        """What was replaced or cut so far."""
        longest = self.run.recipe.data.max_length - 1
        for count, what in (
            (self.lines.replaced, "malformed UTF-8 sequences of the input turned into U+FFFD"),
            (self.counts.truncated, f"input lines cut to {longest} tokens"),
            (self.counts.unfinished, "outputs cut at the longest length"),
        ):
            if count:
                yield f"{what}: {count:,}"


def _plain(number: int, rank: int, text: str, score: float) -> str:
    """The text alone."""
    return f"{text}\n"


def _scored(number: int, rank: int, text: str, score: float) -> str:
    """Line number (from 1), score and text, with tabs between."""
    return f"{number}\t{score:.4f}\t{text}\n"


def _json(number: int, rank: int, text: str, score: float) -> str:
    """One object; the score is null where the search found no such output."""
    value = round(score, 6) if math.isfinite(score) else None
    fields = {"line": number, "rank": rank, "score": value, "text": text}
    return json.dumps(fields, ensure_ascii=False) + "\n"
