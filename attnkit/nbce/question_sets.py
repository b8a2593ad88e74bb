"""Evaluation on question sets, for each method and number of contexts.

Each combination is stored like a separate split, `<split>.<method>.<contexts>`, with answers in outputs/ and scores in
scores.json, in the run or in the results folder of another model.
"""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from attnkit.data.corpus import Corpus
from attnkit.data.questions import QuestionSet, accepted
from attnkit.device import pick_device
from attnkit.distributed import group
from attnkit.errors import DataError
from attnkit.nbce.answer import Reply, ask
from attnkit.nbce.merge import POOLS, Rule
from attnkit.nbce.opening import open_run
from attnkit.nbce.reader import ContextReader
from attnkit.recipe.metrics import metrics_of_answers
from attnkit.recipe.schema import ContextsConfig, EvalConfig, SearchConfig
from attnkit.recipe.search_settings import effective
from attnkit.runs import Results
from attnkit.runs.json_files import Decoding, StoredContexts, StoredSearch
from attnkit.runs.layout import ScoredSplit
from attnkit.runs.run_corpus import RunCorpus
from attnkit.scoring import CONTEXT, check_known, context_found, evaluation, expand, score
from attnkit.scoring.evaluation import DoneCallback, Progress, corpus_of, evaluate_lines
from attnkit.scoring.metrics import Score
from attnkit.scoring.output_warnings import unread_text
from attnkit.scoring.results import ScoreRow, System
from attnkit.scoring.saved_scores import SavedScores, one_best, packed_row
from attnkit.text import counted

if TYPE_CHECKING:
    from attnkit.data.rows import Row
    from attnkit.recipe import Recipe
    from attnkit.runs import Run

PORTION = 32  # questions per call of `ask`, and between two progress reports
MODELS = "models"  # results folder of models that are not runs, beside the variants of a recipe
MAX_NAME_LENGTH = 120
MERGE_SETTINGS = ("beta", "eta", "top_p", "alpha", "limit")  # settings that answers depend on besides the method


@dataclass
class EvaluatedModel:
    """A model with its description and results folder."""

    name: str  # shown in progress messages
    system: System
    results: Results
    weights: str
    """SHA-256 of the weights; stored answers of other weights are not reused."""
    limit: int | None
    """Default maximum number of tokens in the row of `concat` and `cad`; None: the model's limit."""
    open: Callable[[], ContextReader]
    """Function that opens the model; called only if an answer is not stored."""
    reading: StoredContexts = field(default_factory=StoredContexts)
    """Settings of reading, such as the template, that are stored with the answers."""
    recipe: "Recipe | None" = None
    """Recipe of a run; answers with its search and merge settings are stored under plain names."""

    @cached_property
    def reader(self) -> ContextReader:
        return self.open()

    @classmethod
    def of_run(cls, run: "Run", device: str = "cpu") -> "EvaluatedModel":
        """Wrap a finished run, in which the answers are stored."""
        name, weights = f"{run.variant} seed {run.seed}", run.weights_sha256
        limit = run.recipe.data.max_length
        return cls(name, System.of_run(run), run, weights, limit, lambda: open_run(run, device), recipe=run.recipe)

    @classmethod
    def of_reader(
        cls, reader: ContextReader, name: str, recipe: str, out: str | Path, limit: int | None, reading: StoredContexts
    ) -> "EvaluatedModel":
        """Wrap any other model; its answers are stored in <out>/<recipe>/models/<name>."""
        folder = "--".join(part for part in Path(name).parts if part not in ("/", ".", ".."))
        results = Results(Path(out).joinpath(*recipe.split("/"), MODELS, folder[-MAX_NAME_LENGTH:]))
        parameters = sum(weight.numel() for weight in reader.model.parameters())
        system = System(recipe, name, None, results.path.as_posix(), parameters)
        weights = _weights_digest(reader.model)
        return cls(name, system, results, weights, limit, lambda: reader, reading)


class Condition(NamedTuple):
    """Questions of a split, answered by one method from the same number of contexts each."""

    split: str
    method: str
    number: int  # of contexts
    questions: list[tuple["Row", tuple[str, ...]]]
    """Questions that have enough contexts, each with its contexts."""
    spec: ContextsConfig
    """Settings, with a single value of each swept setting."""

    @property
    def name(self) -> str:
        """Name under which answers and scores are stored."""
        return str(ScoredSplit(self.split, None, self.method, self.number))


ABLATIONS: dict[str, tuple[str, dict[str, float]]] = {
    "entropy-free": ("entropy", {"eta": 0.0}),
    "mean-whole": ("mean", {"top_p": 1.0}),
}
"""Methods that are a pool with a fixed setting."""


def sweep(method: str, spec: ContextsConfig) -> Iterator[tuple[str, ContextsConfig]]:
    """Yield label and settings for each combination of swept values; unused settings keep their first value."""
    pool, fixed = ABLATIONS.get(method, (method, {}))
    points: dict[str, tuple[float, ...]] = {}
    for key in ("beta", "eta", "top_p"):
        value = getattr(spec, key)
        points[key] = value if isinstance(value, tuple) else (value,)
        if pool not in POOLS or key in fixed or (key == "eta" and pool != "entropy"):
            points[key] = points[key][:1]
    for point in product(*points.values()):
        values = dict(zip(points, point, strict=True))
        swept = [f"{key}={value:g}" for key, value in values.items() if points[key][1:]]
        yield ",".join((method, *swept)), spec.model_copy(update=values)


def pooling(method: str, spec: ContextsConfig) -> tuple[str, Rule]:
    """Return the method of `ask` and the merge rule; `spec` has a single value of each setting."""
    pool, fixed = ABLATIONS.get(method, (method, {}))
    beta, eta, top_p = (fixed.get(key, getattr(spec, key)) for key in ("beta", "eta", "top_p"))
    return pool, Rule("entropy", beta, eta, top_p)


def evaluate_run(
    run: "Run", recipe: "Recipe | None" = None, splits: Sequence[str] = (), **options: Any
) -> list[ScoreRow]:
    """Evaluate a run of any task with `recipe` (default: its own) and `splits` (default: the recipe's)."""
    recipe = recipe or run.recipe
    evaluate_task: Callable[..., list[ScoreRow]] = evaluation.evaluate
    if run.recipe.task == "question-answering":
        evaluate_task, options["spec"] = evaluate, recipe.contexts
    return evaluate_task(run, splits or recipe.eval.splits, recipe.eval, search=recipe.search, **options)


def evaluate(
    run: "Run",
    splits: Sequence[str],
    eval: EvalConfig,
    spec: ContextsConfig | None = None,
    *,
    device: str = "auto",
    data_dir: str | Path | None = None,
    offline: bool = False,
    search: SearchConfig | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> list[ScoreRow]:
    """Run `evaluate_model` on a run and its corpus; `spec` and `search` default to its recipe's.

    The other arguments are as in `scoring.evaluation.evaluate`. Raises MissingInputError if the run is not finished.
    """
    corpus = corpus_of(run, data_dir, offline, fresh=force, keep=group.is_main_process())
    model = EvaluatedModel.of_run(run, pick_device(device))
    spec, search = spec or run.recipe.contexts, search or run.recipe.search
    if not force and (rows := _packed_rows(run, splits, eval, spec, one_best(search))):
        return rows
    return evaluate_model(model, corpus, splits, eval, spec, search, force=force, progress=progress)


def _packed_rows(
    run: "Run", splits: Sequence[str], eval: EvalConfig, spec: ContextsConfig, search: SearchConfig
) -> list[ScoreRow]:
    """Return all rows of a run without weights; [] if the run has weights or a row is not stored."""
    names, rows = expand(eval.metrics), []
    points = [point for method in spec.methods for point in sweep(method, spec)]
    for split, count, (label, settings) in product(splits, spec.counts, points):
        stored = _stored_search(search, label, settings, StoredContexts())
        row = packed_row(run, f"{split}.{label}.{count}", eval, names, stored)
        if row is None:
            return []
        rows.append(row)
    return rows


def evaluate_model(
    model: EvaluatedModel,
    corpus: Corpus | RunCorpus,
    splits: Sequence[str],
    eval: EvalConfig,
    spec: ContextsConfig,
    search: SearchConfig,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> list[ScoreRow]:
    """Answer and score questions; returns and stores one row per split, number of contexts and method.

    Args:
        corpus: corpus of the splits, which need not be the training corpus.
        force: answer and score again, ignoring stored results.
        progress: called after every `PORTION` answers.

    Raises:
        MissingInputError: The corpus has no such split.
        DataError: A split has no contexts, or no question has any of the requested numbers of contexts.
        UsageError: The model does not support a method or metric, or a row does not fit.
    """
    names = expand(eval.metrics)
    check_known(names, "question-answering", metrics_of_answers())
    all_conditions = None
    if group.is_main_process():
        all_conditions = [condition for split in splits for condition in conditions(corpus, split, spec)]
    all_conditions = group.broadcast_object(all_conditions)
    if not all_conditions:
        raise DataError(f"no question has {counted(min(spec.counts), 'passage')}: change contexts.counts")
    total, done, rows = sum(len(condition.questions) for condition in all_conditions), 0, list[ScoreRow]()
    for condition in all_conditions:

        def on_done(answered: int, split: str = condition.split, before: int = done) -> None:
            if progress is not None:
                progress(f"{model.name}, {split}", before + answered, total)

        lines = QuestionLines(model, condition)
        rows.append(evaluate_lines(lines, eval, names, one_best(search), force=force, on_done=on_done))
        done += len(condition.questions)
    if missing := sorted({*spec.counts} - {condition.number for condition in all_conditions}):
        warning = f"no question has {', '.join(map(str, missing))} passages; skipped"
        rows[0] = replace(rows[0], warnings=(*rows[0].warnings, warning))
    return rows


def conditions(corpus: Corpus | RunCorpus, split: str, spec: ContextsConfig) -> Iterator[Condition]:
    """Yield the conditions of a split, for each number of contexts and each method."""
    rows = corpus.questions(split, max(spec.counts))
    questions = QuestionSet(rows, spec.seed)
    first = rows[: spec.rows or None]  # passages of the other questions still serve as distractors
    for count in spec.counts:
        drawn = [(row, questions.contexts(number, count)) for number, row in enumerate(first)]
        answerable = [(row, contexts) for row, contexts in drawn if contexts is not None]
        for method in spec.methods if answerable else ():
            for label, settings in sweep(method, spec):
                yield Condition(split, label, count, answerable, settings)


class QuestionLines:
    """A condition as `scoring.evaluation.ScoredLines`."""

    def __init__(self, model: EvaluatedModel, condition: Condition) -> None:
        self.system, self.results, self.weights = model.system, model.results, model.weights
        self.model, self.condition, self.name = model, condition, condition.name
        self.source = [[row.source, *contexts] for row, contexts in condition.questions]
        self.references = [list(accepted(row)) for row, _ in condition.questions]

    def stored(self, search: SearchConfig) -> tuple[StoredSearch, bool]:
        spec, recipe = self.condition.spec, self.model.recipe
        is_default = recipe is None or (
            all(getattr(spec, key) == getattr(recipe.contexts, key) for key in MERGE_SETTINGS)
            and effective(search) == effective(recipe.search)
        )
        return _stored_search(search, self.condition.method, spec, self.model.reading), is_default

    def decode(self, search: SearchConfig, on_done: DoneCallback) -> tuple[list[str], Decoding]:
        """Answer all questions in portions, distributed over the ranks."""
        reader, spec = self.model.reader, self.condition.spec
        method, rule = pooling(self.condition.method.partition(",")[0], spec)
        replies: list[Reply] = []
        start = time.perf_counter()
        questions = self.condition.questions
        portions = [questions[i : i + PORTION] for i in range(0, len(questions), PORTION)]
        for first in range(0, len(portions), ranks := group.world_size()):
            local = [
                reply
                for portion in portions[first : first + ranks][group.rank() :][:1]
                for reply in ask(
                    reader,
                    method,
                    [contexts for _, contexts in portion],
                    [row.source for row, _ in portion],
                    search,
                    rule,
                    alpha=spec.alpha,
                    limit=spec.limit or self.model.limit,
                )
            ]
            replies += [reply for gathered in group.all_gather_object(local) for reply in gathered]
            on_done(len(replies))
        seconds = max(time.perf_counter() - start, 1e-6)
        chosen = [deciding_context(reply) for reply in replies]
        # only the first line: other language models continue after the answer
        texts = [reply.text.strip().partition("\n")[0].rstrip() for reply in replies]
        return texts, Decoding(
            seconds=round(seconds, 3),
            sentences_per_second=round(len(replies) / seconds, 2),
            device=str(reader.device),
            threads=torch.get_num_threads(),
            lines=len(replies),
            chosen=None if None in chosen else [context for context in chosen if context is not None],
            cut=sum(bool(reply.cut) for reply in replies),
        )

    def scores(self, names: Sequence[str], saved: SavedScores, eval: EvalConfig) -> dict[str, Score]:
        computed = group.is_main_process() and score(names, saved.texts, self.references, eval)
        scores: dict[str, Score] = group.broadcast_object(computed or {})
        if {*names} & {*CONTEXT} and saved.stored.decode and (chosen := saved.stored.decode.chosen):
            pairs = zip(self.condition.questions, chosen, strict=True)
            contexts = [contexts[i] for (_, contexts), i in pairs]
            scores["context-found"] = context_found(contexts, self.references, eval.words)
        return scores

    def warnings(self, names: Sequence[str], saved: SavedScores, eval: EvalConfig) -> list[str]:
        return unread_text(self.references, names, eval)


def _stored_search(search: SearchConfig, method: str, spec: ContextsConfig, reading: StoredContexts) -> StoredSearch:
    """Return the search and merge settings that are stored with the answers."""
    merging = {key: getattr(spec, key) for key in MERGE_SETTINGS}
    return StoredSearch.of(search, reading.model_copy(update={"method": method, **merging}))


def deciding_context(reply: Reply) -> int | None:
    """Return the context with the largest share of a merged answer, otherwise the selected context, if any."""
    return reply.context if reply.source is None else reply.source.leading


def _weights_digest(model: torch.nn.Module) -> str:
    """Compute the SHA-256 of the weights, at about one second per GB."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        if isinstance(weight, torch.Tensor):  # the state dict of a quantized layer also has settings
            digest.update(f"{name} {weight.dtype} {tuple(weight.shape)}".encode())
            flat = weight.detach().cpu().contiguous().flatten()
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
