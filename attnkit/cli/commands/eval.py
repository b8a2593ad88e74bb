"""`attnkit eval`: score trained runs, or the output of any system, side by side."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer import Argument

from attnkit.cli import completion, console, options, output
from attnkit.cli.options import flag, suggestion, value
from attnkit.cli.progress_bar import progress_bar
from attnkit.errors import MissingInputError, UsageError
from attnkit.text import quoted

if TYPE_CHECKING:
    from attnkit.recipe import Recipe
    from attnkit.runs import Run
    from attnkit.scoring import Entry

OF_RUNS = ("split", "device", "data_dir", "offline", "fresh", "out", "baseline", "model")
"""Options that do nothing with --hyp."""
OF_MODELS = ("dtype", "chat", "template")  # options that need --model
QUESTIONS = "question-answering"  # the task of recipes whose questions --model is asked

RunToScore = tuple["Run", "Recipe"]  # a run, and the recipe by which it is scored and searched
Baselines = dict[str | None, str]  # recipe -> its baseline variant


class ScoredEntries(NamedTuple):
    """Scores to be compared."""

    entries: "Sequence[Entry]"
    baselines: Baselines
    method: str | None  # baseline among the methods that answer questions; None: the first
    resamples: int
    published: "Sequence[dict[str, Any]]" = ()  # figures from elsewhere to stand beside them


class FoundRuns(NamedTuple):
    """What one word of the command line leads to."""

    runs: list[RunToScore]
    baselines: Baselines
    published: "list[dict[str, Any]]"


class EvalRequest(NamedTuple):
    """What the command line says of the evaluation of models."""

    changes: dict[str, Any]  # of the recipes' eval sections
    splits: Sequence[str]
    baseline: str | None
    out: Path
    corpus: dict[str, Any]  # where corpora come from: data_dir, offline
    fresh: bool


def eval(
    context: typer.Context,
    targets: Annotated[
        list[str] | None,
        Argument(
            metavar="RECIPE|RUN",
            help="A recipe (its runs under --out), or a folder of one or more runs.",
            autocompletion=completion.recipes,
        ),
    ] = None,
    *,
    hyp: Annotated[
        list[str] | None,
        value(
            "FILE",
            "Output of any system, one segment per line; - is standard input. Repeatable.",
            "--hyp",
        ),
    ] = None,
    ref: Annotated[
        list[str] | None, value("FILE", "Reference for --hyp. Repeat for more references.", "--ref")
    ] = None,
    split: Annotated[
        list[str] | None, value("S", "Split to score. [default: the recipe's]")
    ] = None,
    metrics: Annotated[
        str | None,
        value(
            "M,...",
            "bleu, chrf, ter, rouge (rouge1, rouge2, rougeL, rougeLsum), bleu1, bleu4, meteor, "
            "cider, embedding-average, embedding-greedy, embedding-extrema, distinct-1, "
            "distinct-2, seq-rep-4, length-ratio, exact-match; of a model accuracy, perplexity, "
            "word-perplexity; for question answering answer-match, answer-f1, context-found. "
            "[default: the recipe's, or bleu]",
        ),
    ] = None,
    tokenize: Annotated[
        str | None,
        value(
            "T,...",
            "sacrebleu tokeniser; several give a BLEU each. [default: the recipe's, or 13a]",
        ),
    ] = None,
    vectors: Annotated[
        Path | None,
        value("FILE", "Word vectors for embedding metrics: text of word2vec, GloVe or fastText."),
    ] = None,
    lowercase: Annotated[
        bool, flag("--lowercase", "Ignore case in BLEU, chrF, distinct-n and seq-rep-4.")
    ] = False,
    baseline: Annotated[
        str | None,
        value("NAME", "Variant to compare the others with; for question answering also a method."),
    ] = None,
    model: Annotated[
        list[str] | None,
        value(
            "NAME",
            "Evaluate this model on the recipe's questions instead of its runs: a run, or a "
            "Hugging Face model (name or folder). Repeatable.",
        ),
    ] = None,
    chat: options.Chat = False,
    template: options.Template = "",
    dtype: options.ModelType = "float32",
    format: options.Format = "table",
    out: options.Out = Path("runs"),
    device: options.Device = "auto",
    threads: options.Threads = None,
    data_dir: options.DataDir = None,
    offline: options.Offline = False,
    fresh: Annotated[
        bool, flag("--fresh", "Decode and score again, ignoring stored results.")
    ] = False,
    plugins: options.Plugins = None,
) -> None:
    """Score trained runs, or the output of any system, side by side.

    Outputs are decoded once and stored in the run. Differences from the baseline are tested over
    sentences and training seeds; ^ marks what is level with the best. Answers of a --model are
    stored in OUT/RECIPE/models/NAME.

      attnkit eval translation/multi30k --split test_2017
      attnkit eval runs/quickstart --metrics bleu,chrf --format markdown
      attnkit eval --hyp output.txt --ref reference.txt --metrics bleu,chrf,ter
      attnkit eval long-context/nq-passages --model Qwen/Qwen2.5-0.5B-Instruct --chat
    """
    changes = _changes(metrics, tokenize, vectors, lowercase)
    if not model:
        _refuse(context, OF_MODELS, "needs --model NAME")
    splits = [name for words in split or [] for name in words.split(",")]
    request = EvalRequest(
        changes, splits, baseline, out, {"data_dir": data_dir, "offline": offline}, fresh
    )
    if hyp or ref:
        if not hyp or not ref:
            have, lack = ("--hyp", "--ref") if hyp else ("--ref", "--hyp")
            raise UsageError(f"{have} needs {lack} FILE as well")
        if targets:
            raise UsageError(
                f"{quoted(targets[0], 200)}: --hyp scores files only; put --hyp or --ref before "
                "each of them"
            )
        _refuse(context, OF_RUNS, "is for trained runs; it does nothing with --hyp")
        scored = _files(hyp, ref, changes)
    elif model:
        how = {
            "device": device, "dtype": dtype, "offline": offline, "chat": chat,
            "template": template.replace("\\n", "\n"),
        }  # fmt: skip
        scored = _models(targets or [], model, how, request)
    else:
        scored = _runs(targets or [], device, request)
    _print(scored, format)


def _changes(
    metrics: str | None, tokenize: str | None, vectors: Path | None, lowercase: bool
) -> dict[str, Any]:
    """What the command line sets in the eval section of a recipe."""
    from attnkit.scoring import TOKENIZERS, expand

    changes: dict[str, Any] = {}
    if metrics is not None:
        changes["metrics"] = expand([name.strip() for name in metrics.split(",")])
    if tokenize is not None:
        words = list(dict.fromkeys(word.strip() for word in tokenize.split(",")))
        if wrong := [word for word in words if word not in TOKENIZERS]:
            raise UsageError(f"--tokenize {quoted(wrong[0])}: {suggestion(wrong[0], TOKENIZERS)}")
        changes["tokenize"] = words[0] if len(words) == 1 else tuple(words)
    if vectors is not None:
        changes["vectors"] = str(vectors)
    if lowercase:
        changes["lowercase"] = True
    return changes


def _refuse(context: typer.Context, names: Sequence[str], why: str) -> None:
    """Refuse options that were given and do nothing here."""
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"--{name.replace('_', '-')} {why}")


def _files(hyp: list[str], ref: list[str], changes: dict[str, Any]) -> ScoredEntries:
    """Score --hyp files; the first is the baseline."""
    from attnkit.recipe.schema import EvalConfig
    from attnkit.scoring import TEACHER_FORCED
    from attnkit.scoring.outputs import score_files

    settings = EvalConfig().model_copy(update=changes)
    if of_models := [name for name in settings.metrics if name in TEACHER_FORCED]:
        raise UsageError(
            f"--metrics {of_models[0]} needs a trained run; a file has no probabilities"
        )
    entries = score_files(hyp, ref, settings, stdin=sys.stdin.buffer)
    return ScoredEntries(entries, {None: str(entries[0].row["variant"])}, None, settings.bootstrap)


def _baseline(
    name: str | None, usual: Baselines, variants: Sequence[str], methods: Sequence[str]
) -> tuple[Baselines, str | None]:
    """The baseline variant of each recipe, and the baseline method where --baseline names one."""
    if name is None or name in variants:
        return usual if name is None else dict.fromkeys(usual, name), None
    if name in methods:
        return usual, name
    raise UsageError(f"--baseline {quoted(name)}: {suggestion(name, [*variants, *methods])}")


def _models(
    targets: Sequence[str], models: Sequence[str], how: dict[str, Any], request: EvalRequest
) -> ScoredEntries:
    """Ask models, opened in this way, the questions of a recipe."""
    name, recipe = _questions(targets, models)
    settings = recipe.eval.model_copy(update=request.changes)
    methods = recipe.contexts.methods
    baselines, method = _baseline(request.baseline, {name: models[0]}, models, methods)

    from attnkit.data.corpus import Corpus
    from attnkit.nbce import open_model, question_sets
    from attnkit.runs import Run, is_run

    corpus = Corpus.open(recipe.data, QUESTIONS, **request.corpus)
    entries: list[Entry] = []
    mixed = not all(map(is_run, models))
    with progress_bar("sentences decoded") as progress:
        for model in models:
            limit, opening = None, how
            if is_run(model):
                limit = Run.open(model).recipe.data.max_length
                if mixed:  # these options are for the Hugging Face models beside it
                    opening = how | {"dtype": "float32", "chat": False, "template": ""}
            reading = {key: opening[key] for key in ("chat", "template")}
            reader = open_model(model, **opening)
            entries += question_sets.evaluate_model(
                question_sets.EvaluatedModel.of_reader(
                    reader, model, name, request.out, limit=limit, settings=reading
                ),
                corpus,
                request.splits or settings.splits,
                settings,
                recipe.contexts,
                recipe.search,
                force=request.fresh,
                progress=progress,
            )
    return ScoredEntries(entries, baselines, method, settings.bootstrap)


def _questions(targets: Sequence[str], models: Sequence[str]) -> "tuple[str, Recipe]":
    """The recipe whose questions models are asked, with its name."""
    from attnkit.recipe import load

    if twice := next((name for i, name in enumerate(models) if name in models[:i]), None):
        raise UsageError(f"--model {quoted(twice, 200)} is given twice; name each model once")
    if len(targets) != 1:
        raise UsageError("--model needs exactly one recipe with questions: RECIPE --model NAME")
    if Path(targets[0]).is_dir():
        raise UsageError(
            f"{quoted(targets[0], 200)} is a folder of runs: name the recipe for --model, or leave "
            "--model out"
        )
    file = load(targets[0])
    recipe = file.variants[file.baseline or next(iter(file.variants))]
    if recipe.task != QUESTIONS:
        raise UsageError(
            f"{file.name}: --model needs a recipe of task {QUESTIONS}; this one is for "
            f"{recipe.task}"
        )
    return file.name, recipe


def _runs(targets: Sequence[str], device: str, request: EvalRequest) -> ScoredEntries:
    """Decode and score the finished runs that the command line names, each once."""
    if not targets:
        raise UsageError("name a recipe, a run, or files with --hyp and --ref")
    tasks: dict[Path, RunToScore] = {}
    usual: Baselines = {}
    published: list[dict[str, Any]] = []
    for target in targets:
        folder = Path(target).is_dir()
        runs, defaults, figures = _folder(target) if folder else _recipe(target, request.out)
        published += [some for some in figures if some not in published]
        for run, recipe in runs:
            settings = recipe.eval.model_copy(update=request.changes)
            task = run, recipe.model_copy(update={"eval": settings})
            tasks.setdefault(run.path.resolve(), task)
        usual = defaults | usual
    question_recipes = [recipe for run, recipe in tasks.values() if run.recipe.task == QUESTIONS]
    methods = dict.fromkeys(
        method for recipe in question_recipes for method in recipe.contexts.methods
    )
    variants = dict.fromkeys(run.variant for run, _ in tasks.values())
    baselines, method = _baseline(request.baseline, usual, [*variants], [*methods])

    from attnkit.nbce import question_sets
    from attnkit.scoring import evaluation

    entries: list[Entry] = []
    with progress_bar("sentences decoded") as progress:
        for run, recipe in tasks.values():
            questions = run.recipe.task == QUESTIONS
            entries += (question_sets if questions else evaluation).evaluate(
                run,
                request.splits or recipe.eval.splits,
                recipe.eval,
                search=recipe.search,
                force=request.fresh,
                progress=progress,
                device=device,
                **request.corpus,
                **({"spec": recipe.contexts} if questions else {}),
            )
    resamples = next(iter(tasks.values()))[1].eval.bootstrap
    return ScoredEntries(entries, baselines, method, resamples, published)


def _folder(target: str) -> FoundRuns:
    """The runs in a folder; a run's manifest may name the baseline variant."""
    from attnkit.runs import find_runs
    from attnkit.scoring.published_figures import published_figures

    runs = find_runs([target], note=console.warn)
    baselines: Baselines = {}
    for run in runs:
        named = run.manifest.get("baseline")
        baselines.setdefault(run.name, named if isinstance(named, str) else run.variant)
    runs.sort(key=lambda run: (run.name, run.variant != baselines[run.name]))
    return FoundRuns([(run, run.recipe) for run in runs], baselines, published_figures(runs))


def _recipe(target: str, out: Path) -> FoundRuns:
    """The runs of a recipe under --out, to be scored and searched as the file says now."""
    from attnkit.recipe import load
    from attnkit.runs import Run, find_runs
    from attnkit.scoring.published_figures import published_figures

    try:
        file = load(target)
    except MissingInputError as error:
        raise MissingInputError(f"{error}; and there is no folder of runs of that name") from error
    tasks = []
    for variant, recipe in file.variants.items():
        folder = Run.find(out, file.name, variant, 0).parent
        runs = find_runs([folder], note=console.warn) if any(folder.glob("*/manifest.json")) else []
        tasks += [(run, recipe) for run in runs]
        if not runs:
            console.warn(f"{folder}: variant {variant} skipped: it has no finished run")
    if not tasks:
        raise MissingInputError(
            f"{file.name}: no finished run in {out / file.name}; train one: attnkit train {target}"
        )
    baselines: Baselines = {file.name: file.baseline or next(iter(file.variants))}
    return FoundRuns(tasks, baselines, published_figures(file))


def _print(scored: ScoredEntries, format: str) -> None:
    """Warnings to standard error, the comparison to standard output."""
    from attnkit.scoring import side_by_side
    from attnkit.show import comparison_tables as shown

    entries, baselines, method, resamples, published = scored
    result = side_by_side(
        entries, baselines, method=method, published=published, resamples=resamples
    )
    for text in shown.warning_lines(result):
        console.warn(text)
    if format == "json":
        output.write_json(result)
    elif format == "table":
        output.write_tables(shown.tables(result), format)
    else:
        # programs want a column per metric
        across = shown.by_contexts(result) and format != "csv"
        table = (shown.contexts_table if across else shown.comparison_table)(result)
        output.write_tables([table], format)
