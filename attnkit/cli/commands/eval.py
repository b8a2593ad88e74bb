"""`attnkit eval`: score trained runs, or the output of any system, side by side."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from attnkit.cli import completion, console, output, plugin, question_evaluation
from attnkit.cli.options import Chat, DataDir, Device, Format, ModelType, Offline, Out, Template
from attnkit.cli.progress_bar import ProgressBar
from attnkit.errors import MissingInputError, UsageError
from attnkit.text import quoted

if TYPE_CHECKING:
    from attnkit.recipe import Recipe
    from attnkit.recipe.schema import ContextsConfig, EvalConfig, SearchConfig
    from attnkit.runs import Run
    from attnkit.scoring import Entry

OF_RUNS = ("split", "device", "data_dir", "offline", "fresh", "out", "baseline", "model")
"""Options that mean nothing with --hyp."""
OF_MODELS = ("dtype", "chat", "template")
"""Options that mean nothing without --model."""


class RunToScore(NamedTuple):
    """A run and how to score it."""

    run: "Run"
    eval: "EvalConfig"
    search: "SearchConfig"
    contexts: "ContextsConfig"


def eval(
    context: typer.Context,
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RECIPE|RUN",
            help="A recipe (its runs below --out), or a folder of one run or of many.",
            autocompletion=completion.recipes,
        ),
    ] = None,
    *,
    hyp: Annotated[
        list[str] | None,
        typer.Option(
            "--hyp", metavar="FILE", help="Output of any system, one a line; - is standard input."
        ),
    ] = None,
    ref: Annotated[
        list[str] | None,
        typer.Option("--ref", metavar="FILE", help="Reference for --hyp; once for each reference."),
    ] = None,
    split: Annotated[
        list[str] | None, typer.Option(metavar="S", help="Split to score. [default: the recipe's]")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            metavar="M,...",
            help="bleu, chrf, ter, rouge, bleu1, bleu4, exact-match, accuracy, perplexity; of "
            "questions answer-match, answer-f1, context-found. [default: the recipe's, or bleu]",
        ),
    ] = None,
    tokenize: Annotated[
        str | None, typer.Option(metavar="T", help="sacrebleu tokeniser of BLEU. [default: 13a]")
    ] = None,
    lowercase: Annotated[
        bool, typer.Option("--lowercase", help="BLEU and chrF without case.")
    ] = False,
    baseline: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Variant that the others are compared with; of questions also a method.",
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Ask the recipe's questions of this model instead of its runs: a run, or a "
            "Hugging Face model by folder or name; may be repeated.",
        ),
    ] = None,
    chat: Chat = False,
    template: Template = "",
    dtype: ModelType = "float32",
    format: Format = "table",
    out: Out = Path("runs"),
    device: Device = "auto",
    data_dir: DataDir = None,
    offline: Offline = False,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Decode and score again what is known already.")
    ] = False,
    plugins: plugin.Plugins = None,
) -> None:
    """Score trained runs, or the output of any system, side by side.

    Outputs are decoded once and kept in the run; differences to the baseline come with a paired
    bootstrap test. Answers of a --model are kept in OUT/RECIPE/models/NAME.

      attnkit eval translation/multi30k --split test_2017
      attnkit eval runs/quickstart --metrics bleu,chrf --format markdown
      attnkit eval --hyp output.txt --ref reference.txt --metrics bleu,chrf,ter
      attnkit eval long-context/nq-passages --model Qwen/Qwen2.5-0.5B-Instruct --chat
    """
    output.check(format)
    changes = _changes(metrics, tokenize, lowercase)
    if not model:
        _refuse(context, OF_MODELS, "is of a --model: name one")
    splits = [name for words in split or [] for name in words.split(",")]
    if hyp or ref:
        _only_files(context, targets, hyp, ref)
        entries, base, resamples = _score_files(hyp or [], ref or [], changes)
    elif model:
        how = question_evaluation.Opening(
            device, dtype, offline, chat, template.replace("\\n", "\n")
        )
        task = question_evaluation.task(targets or [], model, changes)
        base = question_evaluation.chosen(
            baseline, {task.name: model[0]}, model, task.contexts.methods
        )
        with ProgressBar("sentences decoded") as progress:
            entries = question_evaluation.entries(
                task, model, how, out, splits, data_dir, fresh, progress
            )
        resamples = task.eval.bootstrap
    else:
        tasks, baselines = _tasks(targets or [], out, changes)
        base = question_evaluation.chosen(baseline, baselines, *_known(tasks))
        entries = _evaluate(tasks, splits, device, data_dir, offline, fresh)
        resamples = tasks[0].eval.bootstrap
    _print(entries, base, resamples, format)


def _changes(metrics: str | None, tokenize: str | None, lowercase: bool) -> dict[str, Any]:
    """What the command line sets in the eval section of a recipe."""
    from attnkit.scoring import TOKENIZERS, expand

    changes: dict[str, Any] = {}
    if metrics is not None:
        changes["metrics"] = expand([name.strip() for name in metrics.split(",")])
    if tokenize is not None:
        if tokenize not in TOKENIZERS:
            raise UsageError(
                f"--tokenize {quoted(tokenize)}: {output.choices(tokenize, TOKENIZERS)}"
            )
        changes["tokenize"] = tokenize
    if lowercase:
        changes["lowercase"] = True
    return changes


def _only_files(
    context: typer.Context,
    targets: list[str] | None,
    hyp: list[str] | None,
    ref: list[str] | None,
) -> None:
    """Refuse what does not belong to --hyp and --ref."""
    if not hyp or not ref:
        have, lack = ("--hyp", "--ref") if hyp else ("--ref", "--hyp")
        raise UsageError(f"{have} needs {lack} FILE as well")
    if targets:
        raise UsageError(
            f"{quoted(targets[0], 200)}: with --hyp only files are scored; put --hyp or --ref "
            "before each of them"
        )
    _refuse(context, OF_RUNS, "is for trained runs; it does nothing with --hyp")


def _refuse(context: typer.Context, names: Sequence[str], why: str) -> None:
    """Refuse options that were given and mean nothing here."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"--{name.replace('_', '-')} {why}")


def _score_files(
    hyp: list[str], ref: list[str], changes: dict[str, Any]
) -> tuple[list["Entry"], question_evaluation.Base, int]:
    """Entries of --hyp files; the first is the baseline."""
    from attnkit.recipe.schema import EvalConfig
    from attnkit.scoring import TEACHER_FORCED
    from attnkit.scoring.outputs import score_files

    settings = EvalConfig().model_copy(update=changes)
    if model := [name for name in settings.metrics if name in TEACHER_FORCED]:
        raise UsageError(f"--metrics {model[0]} needs a trained run; a file has no probabilities")
    entries = score_files(hyp, ref, settings, stdin=sys.stdin.buffer)
    return (
        entries,
        question_evaluation.Base({None: str(entries[0].row["variant"])}),
        settings.bootstrap,
    )


def _tasks(
    targets: Sequence[str], out: Path, changes: dict[str, Any]
) -> tuple[list[RunToScore], dict[str | None, str]]:
    """The finished runs that the command line names, each once, and the baseline of each recipe."""
    if not targets:
        raise UsageError("name a recipe, a run, or files by --hyp and --ref")
    tasks: dict[Path, RunToScore] = {}
    baselines: dict[str | None, str] = {}
    for target in targets:
        found, known = _folder(target) if Path(target).is_dir() else _recipe(target, out)
        for task in found:
            changed = task._replace(eval=task.eval.model_copy(update=changes))
            tasks.setdefault(task.run.path.resolve(), changed)
        baselines = known | baselines
    return list(tasks.values()), baselines


def _folder(target: str) -> tuple[list[RunToScore], dict[str | None, str]]:
    """The runs in a folder; a run's manifest may say which variant is the baseline."""
    from attnkit.runs import find_runs

    runs = find_runs([target], note=console.warn)
    baselines: dict[str | None, str] = {}
    for run in runs:
        named = run.manifest.get("baseline")
        baselines.setdefault(run.name, named if isinstance(named, str) else run.variant)
    runs.sort(key=lambda run: (run.name, run.variant != baselines[run.name]))
    return [_task(run, run.recipe) for run in runs], baselines


def _task(run: "Run", recipe: "Recipe") -> RunToScore:
    """A run, scored and searched as a recipe says."""
    return RunToScore(run, recipe.eval, recipe.search, recipe.contexts)


def _recipe(target: str, out: Path) -> tuple[list[RunToScore], dict[str | None, str]]:
    """The runs of a recipe below --out, scored and searched as the file now says."""
    from attnkit.recipe import load
    from attnkit.runs import Run, find_runs

    try:
        file = load(target)
    except MissingInputError as error:
        raise MissingInputError(f"{error}; nor is it a folder of runs") from error
    tasks = []
    for variant, recipe in file.variants.items():
        folder = Run.find(out, file.name, variant, 0).parent
        runs = find_runs([folder], note=console.warn) if any(folder.glob("*/manifest.json")) else []
        tasks += [_task(run, recipe) for run in runs]
        if not runs:
            console.warn(f"{folder}: no finished run of variant {variant}; left out")
    if not tasks:
        raise MissingInputError(
            f"{file.name}: no finished run in {out / file.name}; `attnkit train {target}` makes one"
        )
    return tasks, {file.name: file.baseline or next(iter(file.variants))}


def _known(tasks: Sequence[RunToScore]) -> tuple[list[str], list[str]]:
    """Variants, and methods by which questions are asked."""
    asked = [task for task in tasks if task.run.recipe.task == question_evaluation.ASKED]
    methods = [method for task in asked for method in task.contexts.methods]
    return list(dict.fromkeys(task.run.variant for task in tasks)), list(dict.fromkeys(methods))


def _evaluate(
    tasks: Sequence[RunToScore],
    splits: Sequence[str],
    device: str,
    data_dir: Path | None,
    offline: bool,
    fresh: bool,
) -> list["Entry"]:
    """Decode and score all runs, telling how far it is."""
    from attnkit.nbce import question_sets
    from attnkit.scoring import evaluation

    entries = []
    with ProgressBar("sentences decoded") as progress:
        for task in tasks:
            asked = task.run.recipe.task == question_evaluation.ASKED
            entries += (question_sets if asked else evaluation).evaluate(
                task.run,
                splits or task.eval.splits,
                task.eval,
                device=device,
                data_dir=data_dir,
                offline=offline,
                search=task.search,
                force=fresh,
                progress=progress,
                **({"spec": task.contexts} if asked else {}),
            )
    return entries


def _print(
    entries: Sequence["Entry"], base: question_evaluation.Base, resamples: int, format: str
) -> None:
    """Warnings to standard error, the comparison to standard output."""
    from attnkit.scoring import side_by_side
    from attnkit.show.context_scores import contexts_table, seen, tables
    from attnkit.show.table import comparison_table, warning_lines

    result = side_by_side(entries, base.variants, method=base.method, resamples=resamples)
    for text in warning_lines(result):
        console.warn(text)
    if format == "json":
        console.write(json.dumps(result, indent=2, allow_nan=False) + "\n")
    elif format == "table":
        output.show(tables(result))
    else:
        across = seen(result) and format != "csv"  # programs want a column a metric
        output.write((contexts_table if across else comparison_table)(result), format)
