"""`attnkit eval`: scores of trained runs, models, or the output of any system, side by side."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import typer

from attnkit.cli import console, options, output
from attnkit.cli.found_runs import QUESTIONS, Baselines, is_questions, question_recipe, runs_to_score, split_overrides
from attnkit.cli.options import argument, flag, value
from attnkit.cli.progress_bar import progress_bar, say_loading
from attnkit.errors import UsageError
from attnkit.recipe.metrics import metrics_that_read
from attnkit.text import hint, quoted

if TYPE_CHECKING:
    from attnkit.scoring import Comparison, ScoreRow

RUN_OPTIONS = ("split", "device", "data_dir", "offline", "fresh", "out", "baseline", "model")
"""Options that have no effect with --hyp."""
MODEL_OPTIONS = ("dtype", "chat", "template")  # options that need --model


def _metric_list(kind: str) -> str:
    """Return the metrics that read outputs, contexts, labels or probabilities, separated by commas."""
    return ", ".join(metrics_that_read(kind))


class EvalRequest(NamedTuple):
    """Settings of the evaluation from the command line."""

    changes: dict[str, Any]  # to the eval sections of recipes
    splits: Sequence[str]
    baseline: str | None
    out: Path
    corpus: dict[str, Any]  # data_dir and offline
    fresh: bool
    overrides: Sequence[str]  # KEY=VALUE, for keys that may change after training, and sweeps


def eval(
    context: typer.Context,
    targets: list[str] | None = argument(
        "RECIPE|RUN|KEY=VALUE",
        "A recipe (its runs under --out), a folder of one or more runs, or with --model "
        "a file of questions. "
        "search.KEY=VALUE sets the search, otherwise the named recipe, otherwise each run's own recipe.",
        default=None,
    ),
    *,
    hyp: list[str] | None = value(
        "FILE", "Output of any system, one segment per line; - is standard input. Repeatable.", "--hyp"
    ),
    ref: list[str] | None = value("FILE", "Reference for --hyp. Repeat for more references.", "--ref"),
    split: list[str] | None = value("S", "Split to score. [default: the recipe's]"),
    metrics: str | None = value(
        "M,...",
        f"{_metric_list('outputs')}; rouge, the four ROUGE metrics; for a model {_metric_list('probabilities')}; "
        f"for question answering {_metric_list('contexts')}; for classification {_metric_list('labels')}. "
        "[default: the recipe's, or bleu]",
    ),
    tokenize: str | None = value(
        "T,...", "sacrebleu tokenizer; several give one BLEU each. [default: the recipe's, or 13a]"
    ),
    words: Literal["classic", "unicode"] | None = value(
        "W",
        "Word splitting of ROUGE, TER and answer metrics: classic (for English) or unicode (for "
        "all scripts). [default: the recipe's, or classic]",
    ),
    vectors: Path | None = value("FILE", "Word vectors for embedding metrics: text of word2vec, GloVe or fastText."),
    lowercase: bool = flag("--lowercase", "Ignore case in BLEU, chrF, distinct-n and seq-rep-4."),
    baseline: str | None = value(
        "NAME",
        "Variant or run to compare the others with; for question answering also a method. "
        "[default: the recipe's, or the first]",
    ),
    model: list[str] | None = value(
        "NAME",
        "Evaluate this model on the recipe's questions instead of its runs: a run, or a "
        "Hugging Face model (name or folder). Repeatable.",
    ),
    chat: options.Chat = False,
    template: options.Template = "",
    dtype: options.ModelType = "float32",
    format: options.Format = "table",
    columns: options.Columns = None,
    notes: options.Notes = None,
    out: options.Out = Path("runs"),
    nproc: options.Processes = 1,
    device: options.Device = "auto",
    threads: options.Threads = None,
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
    fresh: bool = flag("--fresh", "Decode and score again, ignoring stored results."),
) -> None:
    """Score trained runs, or the output of any system, side by side.

    Outputs are decoded once and stored in the run. Differences from the baseline have a 95 %
    interval over sentences and training seeds; ^ marks systems that are not separable from the best.
    Answers of a --model are stored in OUT/RECIPE/models/NAME.

      attnkit eval translation/multi30k --split test_2017
      attnkit eval runs/quickstart --metrics bleu,chrf --format markdown
      attnkit eval runs/quickstart search.method=beam search.beam=4
      attnkit eval --hyp output.txt --ref reference.txt --metrics bleu,chrf,ter
      attnkit eval long-context/nq-passages --model Qwen/Qwen2.5-0.5B-Instruct --chat
      attnkit eval questions.jsonl --model ./model contexts.beta=0,0.25,1 data.source=question
    """
    output.check_columns(columns, format)
    if options.run_in_processes(nproc):
        return
    changes = _changes(metrics, tokenize, words, vectors, lowercase)
    if not model:
        _refuse(context, MODEL_OPTIONS, "needs --model NAME")
    targets, overrides = split_overrides(targets or [], data=bool(model))
    request = EvalRequest(
        changes,
        [name for words in split or [] for name in words.split(",")],
        baseline,
        out,
        {"data_dir": data_dir, "offline": offline},
        fresh,
        overrides,
    )
    if hyp or ref:
        if not hyp or not ref:
            given, missing = ("--hyp", "--ref") if hyp else ("--ref", "--hyp")
            raise UsageError(f"{given} needs {missing} FILE too")
        if targets:
            advice = "--hyp scores files only; put --hyp or --ref before each file"
            raise UsageError(f"{quoted(targets[0], 200)}: {advice}")
        _refuse(context, RUN_OPTIONS, "is for trained runs; it has no effect with --hyp")
        result = _score_files(hyp, ref, changes)
    elif model:
        model_arguments = {
            "device": device,
            "dtype": dtype,
            "offline": offline,
            "chat": chat,
            "template": template.replace("\\n", "\n"),
        }
        result = _score_models(targets, model, model_arguments, request)
    else:
        result = _score_runs(targets, device, request)
    _print(result, format, columns, notes)


def _changes(
    metrics: str | None, tokenize: str | None, words: str | None, vectors: Path | None, lowercase: bool
) -> dict[str, Any]:
    """Return the keys of a recipe's eval section that the options set."""
    from attnkit.scoring import TOKENIZERS, expand

    tokenizers = None
    if tokenize is not None:
        names = tuple(dict.fromkeys(name.strip() for name in tokenize.split(",")))
        if unknown := [name for name in names if name not in TOKENIZERS]:
            raise UsageError(f"--tokenize {quoted(unknown[0])}: {hint(unknown[0], TOKENIZERS)}")
        tokenizers = names if len(names) > 1 else names[0]
    changes = {
        "metrics": None if metrics is None else expand([name.strip() for name in metrics.split(",")]),
        "tokenize": tokenizers,
        "words": words,
        "vectors": vectors and str(vectors),
        "lowercase": lowercase or None,
    }
    return {name: value for name, value in changes.items() if value is not None}


def _refuse(context: typer.Context, names: Sequence[str], why: str) -> None:
    """Raise UsageError if the command line has any of these options."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"--{name.replace('_', '-')} {why}")


def _score_files(hyp: list[str], ref: list[str], changes: dict[str, Any]) -> "Comparison":
    """Score --hyp files; the first file is the baseline."""
    from attnkit.recipe.schema import EvalConfig
    from attnkit.scoring import CONTEXT, LABELS, TEACHER_FORCED, side_by_side
    from attnkit.scoring.outputs import score_files

    settings = EvalConfig().model_copy(update=changes)
    if unavailable := {*settings.metrics} & {*TEACHER_FORCED, *CONTEXT, *LABELS}:
        raise UsageError(f"--metrics {min(unavailable)} needs a trained run, not files of text")
    rows = score_files(hyp, ref, settings, stdin=sys.stdin.buffer)
    return side_by_side(rows, {None: rows[0].variant}, settings)


def _baseline(
    name: str | None, defaults: Baselines, names: Sequence[str], methods: Sequence[str]
) -> tuple[Baselines, str | None]:
    """Return the baseline of each recipe, and the method if --baseline names a method, otherwise None."""
    if name is None:
        return defaults, None
    for baseline in (name, Path(name).as_posix()):
        if baseline in names:
            return dict.fromkeys(defaults, baseline), None
    if name in methods:
        return defaults, name
    raise UsageError(f"--baseline {quoted(name)}: {hint(name, [*names, *methods])}")


def _score_models(
    targets: Sequence[str], models: Sequence[str], model_arguments: dict[str, Any], request: EvalRequest
) -> "Comparison":
    """Score the answers of models, opened with `model_arguments`, to the questions of a recipe."""
    name, recipe = question_recipe(targets, models, request.overrides)
    settings = recipe.eval.model_copy(update=request.changes)
    from attnkit.data.corpus import Corpus
    from attnkit.nbce import open_model, question_sets
    from attnkit.nbce.answer import refusal
    from attnkit.nbce.huggingface_reader import CHAT_TEMPLATE
    from attnkit.runs import Run, is_run
    from attnkit.runs.json_files import StoredContexts
    from attnkit.scoring import side_by_side

    corpus, spec = Corpus.open(recipe.data, QUESTIONS, **request.corpus), recipe.contexts
    splits = request.splits or settings.splits
    methods_given = any(word.startswith("contexts.methods=") for word in request.overrides)
    methods = [label for word in spec.methods for label, _ in question_sets.sweep(word, spec)]
    baselines, method = _baseline(request.baseline, {name: models[0]}, models, methods)

    rows: list[ScoreRow] = []
    mixed = not all(map(is_run, models))
    for model in models:
        limit, arguments = None, model_arguments
        if is_run(model):
            limit = Run.open(model).recipe.data.max_length
            if mixed:  # these options are meant for the Hugging Face models only
                arguments = model_arguments | {"dtype": "float32", "chat": False, "template": ""}
        template = arguments["template"] or CHAT_TEMPLATE * arguments["chat"]
        stored = StoredContexts(chat=arguments["chat"], template=template)
        say_loading(model)
        reader = open_model(model, **arguments)
        if is_questions(targets[0]) and not methods_given:
            supported = tuple(word for word in spec.methods if not refusal(reader, word))
            spec = spec.model_copy(update={"methods": supported})
        evaluated = question_sets.EvaluatedModel.of_reader(reader, model, name, request.out, limit, stored)
        with progress_bar("sentences decoded") as progress:
            rows += question_sets.evaluate_model(
                evaluated, corpus, splits, settings, spec, recipe.search, force=request.fresh, progress=progress
            )
    return side_by_side(rows, baselines, settings, method=method)


def _score_runs(targets: Sequence[str], device: str, request: EvalRequest) -> "Comparison":
    from attnkit.nbce.question_sets import evaluate_run
    from attnkit.runs import one_task
    from attnkit.scoring import side_by_side

    if not targets:
        raise UsageError("name a recipe, a run, or files with --hyp and --ref")
    if files := [target for target in targets if is_questions(target)]:
        raise UsageError(f"{files[0]}: a file of questions needs --model NAME to answer the questions")
    found = runs_to_score(targets, request.overrides, request.out)
    runs = [item.run for item in found.runs]
    one_task(runs, "score each task separately")
    recipes = [item.recipe for item in found.runs if item.run.recipe.task == QUESTIONS]
    methods = dict.fromkeys(method for recipe in recipes for method in recipe.contexts.methods)
    names = dict.fromkeys([*(run.variant for run in runs), *(run.path.as_posix() for run in runs)])
    baselines, method = _baseline(request.baseline, found.baselines, [*names], [*methods])
    rows: list[ScoreRow] = []
    options = {"force": request.fresh, "device": device, **request.corpus}
    with progress_bar("sentences decoded") as progress:
        for run, recipe, search_from in found.runs:
            settings = recipe.eval.model_copy(update=request.changes)
            recipe = recipe.model_copy(update={"eval": settings})
            scored = evaluate_run(run, recipe, request.splits, progress=progress, **options)
            rows += [replace(row, search_from=search_from) for row in scored]
    settings = found.runs[0].recipe.eval.model_copy(update=request.changes)
    return side_by_side(rows, baselines, settings, method=method, published=found.published)


def _print(result: "Comparison", format: str, columns: str | None, notes: str | None) -> None:
    from attnkit.show.comparison_tables import comparison_table, tables, warning_lines

    for text in warning_lines(result):
        console.warn(text)
    if format == "json":
        output.write_json(result.json())
        return
    if format == "csv":  # one table with a column per metric, for programs
        shown = [comparison_table(result)]
    else:
        shown = tables(result, by_split=format == "table")
    notes = notes or ("short" if format == "latex" else "full")
    chosen = output.choose_columns(shown, columns, add_metrics=True)
    output.write_tables([table.with_notes(notes) for table in chosen], format)
