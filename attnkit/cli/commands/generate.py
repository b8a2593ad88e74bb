"""`attnkit generate`: outputs of a trained run for each line of a text."""

import json
import os
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from attnkit.cli import console, options
from attnkit.cli.input import destination, open_lines
from attnkit.cli.options import argument, flag, search_settings, value
from attnkit.cli.output import finite
from attnkit.distributed import group
from attnkit.errors import DataError, OutputError, OutputPathError, UnavailableError, UsageError

if TYPE_CHECKING:
    from attnkit.models import Model
    from attnkit.recipe import Recipe
    from attnkit.recipe.schema import SearchConfig
    from attnkit.runs import Run
    from attnkit.search.decoding import Engine, LineCounts

BLOCK = 2048  # lines read before the first output


def generate(
    run: options.RunFolder,
    input: str = argument("INPUT", "Text, one sentence per line; - is standard input.", default="-"),
    *,
    output: Path | None = value("FILE", "Write the output to this file.", "--output", "-o"),
    beam: options.Beam = None,
    sample: options.Sample = False,
    top_p: options.TopP = None,
    top_k: int | None = value("K", "Sample from the K most probable tokens."),
    temperature: options.Temperature = None,
    seed: options.Seed = None,
    n_best: int | None = value("N", "Print the N best outputs of each line."),
    scores: bool = flag("--scores", "Print line number, score and text, separated by tabs."),
    as_json: bool = flag("--json", 'Print {"line", "rank", "score", "text"} objects.'),
    batch_tokens: int | None = value("N", "Batch size: lines x beams x longest input."),
    max_length: options.MaxLength = None,
    min_length: int | None = value("N", "Minimum output length in tokens."),
    length_penalty: float | None = value("A", "Rank by log-probability / length ** A."),
    no_repeat_ngram: int | None = value("N", "Never repeat an n-gram of N tokens."),
    block: int | None = value("N", f"Lines read before the first output. [default: {BLOCK}; 1 on a terminal]", min=1),
    engine: Literal["attnkit", "ctranslate2", "auto"] = value(
        "ENGINE",
        "Decoding engine: attnkit, or ctranslate2, for which the run is converted once; "
        "auto uses ctranslate2 for single lines (on a terminal, --block 1) if it supports the run.",
        default="attnkit",
    ),
    precision: Literal["fp32", "bf16", "fp16"] = value(
        "PRECISION",
        "Precision of matrix products: fp32, or bf16 or fp16, which are faster on some devices and change a few "
        "outputs.",
        default="fp32",
    ),
    nproc: options.Processes = 1,
    device: options.Device = "auto",
    threads: options.Threads = None,
) -> None:
    """Translate, summarize, answer or classify line by line with a trained run.

    N lines in give N lines out, in order (K times N with --n-best K); an empty line gives an empty
    line. Defaults come from the search section of the run's recipe. A classifier prints the most
    probable label of each line.

      echo "A man rides a horse." | attnkit generate runs/translation/multi30k/vanilla/seed-1
      attnkit generate RUN input.txt --output output.txt --beam 8
      attnkit generate RUN input.txt --sample --top-p 0.9 --seed 7 --n-best 3 --scores
      attnkit generate RUN input.txt --engine ctranslate2
    """
    if options.run_in_processes(nproc):
        return
    if scores and as_json:
        raise UsageError("--json already includes the scores; remove --scores")
    from attnkit.runs import Run

    trained = Run.open(run)
    recipe = trained.recipe
    if not recipe.writes:
        what = "marked positions" if recipe.task == "tagging" else "masked tokens"
        raise UsageError(f"{run}: the model predicts {what} and writes no text")
    settings: dict[str, Any] = {"beam": beam, "batch_tokens": batch_tokens}
    settings |= {"top_p": top_p, "top_k": top_k, "temperature": temperature, "seed": seed}
    settings |= {"max_length": max_length, "min_length": min_length, "length_penalty": length_penalty}
    settings |= {"n_best": n_best, "no_repeat_ngram": no_repeat_ngram}
    labels = recipe.data.labels if recipe.task == "classification" else ()
    if labels:
        settings = _classifier_settings(settings | {"sample": sample or None}, run, len(labels))
    spec = search_settings(recipe.search, settings, sample)
    if engine == "ctranslate2":
        _check_engine(recipe, spec, precision, nproc)
    from attnkit.device import pick_device
    from attnkit.search import LineCounts, answer_lines

    counts, device = LineCounts(rare=Counter()), pick_device(device)
    with open_lines(input if group.is_main_process() else os.devnull) as lines:
        typed = group.broadcast_object(input == "-" and sys.stdin.isatty())
        if typed and console.is_terminal(sys.stderr):
            console.say("type a line and press Enter; Ctrl-D ends")
        size = block or (1 if typed else BLOCK)
        if engine == "auto":
            line_by_line = size == 1 and device == "cpu" and nproc == 1 and precision == "fp32"
            text_only = spec.n_best == 1 and not scores and not as_json
            differs = spec.min_length or spec.no_repeat_ngram or _unsupported(recipe, spec)
            usable = not differs and find_spec("ctranslate2") is not None
            engine = "auto" if line_by_line and text_only and usable else "attnkit"
        model, tokenizer = _open_model(trained, engine, device, precision), trained.tokenizer()
        results = answer_lines(model, tokenizer, lines, recipe, spec, block=size, counts=counts)
        # rank 0 writes; the standard output of other ranks is discarded
        with destination(output if group.is_main_process() else None) as write:
            for line, outputs in enumerate(results, 1):
                ranked = enumerate(outputs[: n_best or 1] if labels else outputs, 1)
                write("".join(_format(line, rank, *result, scores, as_json) for rank, result in ranked))
    _warn(counts, recipe.data.max_length - 1)


def _warn(counts: "LineCounts", max_tokens: int) -> None:
    """Warn of truncated lines and outputs, and of unknown and rare words."""
    from attnkit.data.rare_words import unlike_note
    from attnkit.data.tokenizer import unknown_note

    for count, what in (
        (counts.truncated, f"input lines cut to {max_tokens} tokens"),
        (counts.unfinished, "outputs cut at the maximum length"),
    ):
        if count:
            console.warn(f"{what}: {count:,}")
    for note in (unknown_note(counts.unknown), unlike_note(counts.rare, counts.lines)):
        if note:
            console.warn(note)


def _check_engine(recipe: "Recipe", spec: "SearchConfig", precision: str, nproc: int) -> None:
    """Raise UsageError, before any line is read, for a model or options that CTranslate2 does not support."""
    from attnkit.export.exporting import check

    if nproc > 1:
        raise UsageError("--nproc is for --engine attnkit; remove one of the two")
    if precision != "fp32":
        raise UsageError(f"--precision {precision} is for --engine attnkit; remove one of the two")
    if feature := _unsupported(recipe, spec):
        raise UsageError(f"--engine ctranslate2 does not support {feature}; remove --engine")
    check("ctranslate2")
    if spec.min_length or spec.no_repeat_ngram:
        console.warn(
            "min_length and no_repeat_ngram: ctranslate2 renormalizes the remaining tokens, so "
            "some outputs differ from attnkit's"
        )


def _unsupported(recipe: "Recipe", spec: "SearchConfig") -> str:
    """Return a feature of the recipe or the search that CTranslate2 does not support, or ""."""
    from attnkit.recipe.export_rules import export_issue

    if issue := export_issue(recipe, "ctranslate2"):
        return issue
    if recipe.task == "classification":
        return "task: classification"
    return "sampling with the seeds of attnkit" if spec.method == "sample" else ""


def _open_model(run: "Run", engine: str, device: str, precision: str) -> "Model | Engine":
    from attnkit.memory import keep_freed_memory
    from attnkit.models.precision import lower_precision

    if engine != "attnkit":
        from attnkit.export.to_ctranslate2 import open_run

        try:
            return open_run(run, device)
        except (DataError, OutputError, OutputPathError, UnavailableError) as error:
            if engine == "ctranslate2":
                raise
            console.warn(f"attnkit decodes, because CTranslate2 cannot: {error}")
    if device == "cpu":
        keep_freed_memory()
    model = run.model(device)
    lower_precision(model, precision)
    return model


def _classifier_settings(settings: dict[str, Any], run: Path, labels: int) -> dict[str, Any]:
    """Return the only search option of a classifier, `batch_tokens`.  Raises UsageError for search options."""
    for name, setting in settings.items():
        if setting is not None and name not in ("n_best", "batch_tokens"):
            raise UsageError(f"--{name.replace('_', '-')} has no effect: {run} classifies and writes no text")
    if not 1 <= (settings["n_best"] or 1) <= labels:
        raise UsageError(f"--n-best {settings['n_best']}: must be from 1 to {labels}, the number of labels")
    return {"batch_tokens": settings["batch_tokens"]}


def _format(line: int, rank: int, text: str, score: float, scores: bool, as_json: bool) -> str:
    """Return a line to print for an output; in JSON, the score of an impossible output is null."""
    if as_json:
        fields = {"line": line, "rank": rank, "score": finite(score), "text": text}
        return json.dumps(fields, ensure_ascii=False) + "\n"
    return f"{line}\t{score:.4f}\t{text}\n" if scores else f"{text}\n"
