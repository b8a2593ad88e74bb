"""Results of scoring: rows of scores, differences between systems, and comparisons.

Each has a JSON form, which `attnkit eval --format json` prints and docs/comparing.md describes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any, NamedTuple

from attnkit.recipe import RecipeFile, flat
from attnkit.recipe.metrics import base_metric
from attnkit.recipe.published import Published
from attnkit.runs import Run
from attnkit.runs.json_files import RecordedChange, StoredSearch, Tuned, parse
from attnkit.scoring.metrics import Score
from attnkit.scoring.significance import SEED, UNTESTED, Difference

SEED_KEYS = ("train.seeds", "search.", "eval.", "contexts.")
"""Recipe keys that may differ between seeds of one system."""
FILE_KEYS = ("data.train", "data.valid", "data.test", "tokenizer.model")
"""Recipe keys of files, whose content has a digest in the manifest."""
RUN_ID = 12
"""Number of digits in the id of a run."""


class Budget(NamedTuple):
    """Amount of data in a training."""

    steps: int
    batch_tokens: int
    accumulate: int
    """Number of batches per update, summed over processes."""


@dataclass(frozen=True)
class TrainingCost:
    """Cost of a training, and its machine; None: unknown."""

    updates: int | None = None
    seconds: float | None = None
    tokens_per_second: float | None = None
    peak_memory_bytes: int | None = None
    device: str | None = None
    threads: int | None = None
    precision: str | None = None
    processes: int | None = None
    machine: str | None = None
    """Description of cores, processor and memory."""


@dataclass(frozen=True)
class System:
    """Scored system: a trained run, a model from elsewhere, or a file of outputs."""

    recipe: str | None
    variant: str
    seed: int | None = None
    run: str | None = None
    """Folder of the run, or name of the model."""
    parameters: int | None = None
    cost: TrainingCost = TrainingCost()
    corpus: str | None = None
    training_data: str | None = None
    """SHA-256 of the training corpus."""
    budget: Budget | None = None
    lr: float | None = None
    tuned: Tuned | None = None
    changes: tuple[RecordedChange, ...] = ()
    """Changes of the recipe during training."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Training settings except the seed, by dotted key; empty: unknown."""

    @classmethod
    def of_run(cls, run: Run) -> "System":
        """Return the system of a finished run; data files are identified by content, so that moved runs stay equal."""
        manifest, recipe, spec = run.manifest, run.recipe, run.recipe.train
        outcome, hashes, count_based = run.outcome, manifest.hashes, recipe.model.count_based
        budget = Budget(spec.steps, spec.batch_tokens, spec.accumulate * manifest.world_size)
        settings = {key: value for key, value in flat(recipe).items() if not key.startswith(SEED_KEYS)}
        if data := hashes.get("data"):
            settings = {key: value for key, value in settings.items() if key not in FILE_KEYS}
            settings["data"] = data[:8]
        cost = TrainingCost(
            updates=outcome.updates,
            seconds=outcome.seconds,
            tokens_per_second=outcome.tokens_per_second,
            peak_memory_bytes=outcome.peak_memory_bytes,
            device=manifest.device,
            threads=manifest.threads,
            precision=manifest.precision,
            processes=manifest.world_size,
            machine=manifest.machine,
        )
        return cls(
            recipe=run.name,
            variant=run.variant,
            seed=run.seed,
            run=run.path.as_posix(),
            parameters=manifest.parameters,
            cost=cost,
            corpus=recipe.data.corpus,
            training_data=hashes.get("corpus"),
            budget=None if count_based else budget,
            lr=None if count_based else spec.lr,
            tuned=manifest.tuned,
            changes=tuple(manifest.changes),
            settings=settings,
        )


class OutputFiles(NamedTuple):
    """Files that a row was scored from."""

    hypotheses: str
    references: tuple[str, ...]


@dataclass(frozen=True)
class ScoreRow:
    """Scores of one system on one split, with per-sentence statistics."""

    system: System
    split: str | None
    scores: Mapping[str, Score]
    sentences: int
    references: str
    """Digest or names of the references; only systems with equal references are compared."""
    source: str | None = None
    """SHA-256 of the decoded texts."""
    empty_references: int = 0
    """Number of sentences with an empty reference."""
    weights: str | None = None
    """SHA-256 of the weights."""
    search: StoredSearch | None = None
    search_from: str = "run"
    """Source of the search settings: run, recipe or command line."""
    sentences_per_second: float | None = None
    tokens_per_second: float | None = None
    warnings: tuple[str, ...] = ()
    files: OutputFiles | None = None
    length: int | None = None
    """Length of generated rows, or of windows of a text."""
    method: str | None = None
    """Method of question answering."""
    contexts: int | None = None
    """Number of contexts per question."""
    cut: int | None = None
    """Number of questions that lost some of their contexts."""
    name: str = ""
    """Name that distinguishes the system from others of its variant; see `attnkit.scoring.comparison.named`."""

    @property
    def recipe(self) -> str | None:
        return self.system.recipe

    @property
    def variant(self) -> str:
        return self.system.variant

    @property
    def seed(self) -> int | None:
        return self.system.seed

    @property
    def run(self) -> str | None:
        return self.system.run

    @property
    def run_id(self) -> str | None:
        """Identifier of the run in tables: the first digits of `weights`."""
        return self.weights and self.weights[:RUN_ID]

    def only(self, metrics: Sequence[str]) -> "ScoreRow":
        """Return the row with these metrics only, in this order; BLEU by several tokenizers is one metric."""
        names = [name for metric in metrics for name in self.scores if base_metric(name) == metric]
        return replace(self, scores={name: self.scores[name] for name in names})

    def json(self) -> dict[str, Any]:
        """Return the row of `attnkit eval --format json`."""
        system, cost = self.system, self.system.cost
        head: dict[str, Any] = {
            "recipe": system.recipe,
            "variant": system.variant,
            "seed": system.seed,
            "split": self.split,
            **({} if self.length is None else {"length": self.length}),
            "metrics": {name: score.stored.model_dump() for name, score in self.scores.items()},
            "sentences": self.sentences,
            "empty_references": self.empty_references,
            **{column.key: column.value(self) for column in COST_COLUMNS},
        }
        tail: dict[str, Any] = {"warnings": [*self.warnings]}
        if self.method is not None:
            tail |= {"method": self.method, "contexts": self.contexts, "cut": self.cut}
        tail |= {"system": self.name}
        if self.files:
            hypotheses, references = self.files
            return head | {"run": None, "hypotheses": hypotheses, "references": references} | tail
        return head | {
            **{f"train_{name}": value for name, value in vars(cost).items()},
            "corpus": system.corpus,
            "budget": system.budget and system.budget._asdict(),
            **({"tuned": system.tuned.model_dump()} if system.tuned else {}),
            **({"train_lr": system.lr} if system.lr else {}),
            "changes": [change.model_dump() for change in system.changes],
            "decode_tokens_per_second": self.tokens_per_second,
            "run": system.run,
            "run_id": self.run_id,
            "weights": self.weights,
            "search": self.search and self.search.model_dump(),
            "search_from": self.search_from,
            "digests": {"source": self.source, "references": self.references},
            **tail,
        }

    def names(self) -> dict[str, Any]:
        """Return the keys that identify the row in JSON objects of differences and best systems."""
        named: dict[str, Any] = {"recipe": self.recipe, "variant": self.variant, "system": self.name}
        named |= {} if self.length is None else {"length": self.length}
        return named | ({} if self.contexts is None else {"method": self.method, "contexts": self.contexts})


class CostColumn(NamedTuple):
    """Column of tables after the scores."""

    title: str
    """Title in tables; `--columns` has hyphens for its spaces."""
    key: str
    """Key in JSON and CSV."""
    priority: int
    """A narrow screen omits columns of high priority numbers first; LaTeX omits those above 1."""
    value: Callable[[ScoreRow], float | None]
    """Value of a row; None: not measured. A column without values is not shown."""
    of_seeds: Callable[[Sequence[float]], float] = mean
    """Aggregate of the values of all seeds."""
    in_bytes: bool = False


COST_COLUMNS = (
    CostColumn("parameters", "parameters", 2, lambda row: row.system.parameters),
    CostColumn("train tokens/s", "train_tokens_per_second", 3, lambda row: row.system.cost.tokens_per_second),
    CostColumn("decode sentences/s", "decode_sentences_per_second", 3, lambda row: row.sentences_per_second),
    CostColumn(
        "peak memory", "train_peak_memory_bytes", 4, lambda row: row.system.cost.peak_memory_bytes, max, in_bytes=True
    ),
)


@dataclass(frozen=True)
class SystemDifference:
    """Difference of a system to its baseline by one metric."""

    row: ScoreRow
    """Row of the system's first seed."""
    baseline: ScoreRow
    metric: str
    value: float | None
    """Difference of the means over seeds; None: data or metric differ."""
    tested: Difference | None
    """Difference with interval and p-value; None: not tested."""
    not_comparable: tuple[str, ...]
    """Other conditions in which they differ; see `attnkit.scoring.comparison.reasons`."""
    seeds: tuple[int, int]
    """Number of seeds of the system and of the baseline."""
    sentences: int

    def json(self) -> dict[str, Any]:
        """Return an item of `comparisons`; the keys of a test are null without a test."""
        base, questions = self.baseline, self.row.contexts is not None
        return {
            "split": self.row.split,
            **self.row.names(),
            "metric": self.metric,
            "not_comparable": [*self.not_comparable],
            "baseline": base.variant,
            "baseline_system": base.name,
            "baseline_recipe": base.recipe,
            **({"baseline_method": base.method} if questions else {}),
            "difference": self.value,
            **(self.tested.json() if self.tested else UNTESTED),
            "seeds": [*self.seeds],
            "sentences": self.sentences,
        }


@dataclass(frozen=True)
class BestSystem:
    """Best system of a split by one metric, with the tests of all other systems against it."""

    row: ScoreRow
    metric: str
    others: tuple[tuple[ScoreRow, Difference], ...]

    @property
    def inseparable(self) -> list[ScoreRow]:
        """Rows of the best system and of the systems that are not significantly different."""
        return [self.row, *(row for row, difference in self.others if not difference.significant)]

    def json(self) -> dict[str, Any]:
        """Return an item of `best`."""
        others = [
            {
                **row.names(),
                "difference": difference.value,
                "p": difference.p,
                "p_corrected": difference.p_holm,
                "separable": difference.significant,
                "level": not difference.significant,  # former name of not separable
            }
            for row, difference in self.others
        ]
        return {"split": self.row.split, **self.row.names(), "metric": self.metric, "others": others}


def published_entry(file: RecipeFile) -> dict[str, Any] | None:
    """Return the published figures of a recipe file as a manifest stores them, or None."""
    return None if file.published is None else file.published.model_dump(mode="json")


class PublishedFigures(NamedTuple):
    """Published figures in the file of a recipe."""

    recipe: str
    figures: Published

    @classmethod
    def of_file(cls, file: RecipeFile) -> "list[PublishedFigures]":
        """Return the figures of a recipe file as a list of at most one item."""
        return [] if file.published is None else [cls(file.name, file.published)]

    @classmethod
    def of_runs(cls, runs: Iterable[Run]) -> "list[PublishedFigures]":
        """Return the distinct figures in the manifests of runs. Raises DataError if a manifest is damaged."""
        out: list[PublishedFigures] = []
        for run in runs:
            if entry := run.manifest.published:
                figures = cls(run.name, parse(entry, Published, f"{run.path}/manifest.json: published"))
                out += [] if figures in out else [figures]
        return out

    def score(self, row: ScoreRow, metric: str) -> float | None:
        """Return the published figure for a score, or None."""
        if self.recipe != row.recipe or self.figures.split not in (None, row.split):
            return None
        return self.figures.scores.get(row.variant, {}).get(metric)

    def json(self) -> dict[str, Any]:
        """Return an item of `published`."""
        return {"recipe": self.recipe, **self.figures.model_dump(mode="json")}


@dataclass(frozen=True)
class Comparison:
    """Scores of systems, and the differences between the systems."""

    rows: tuple[ScoreRow, ...]
    """Rows, one per run and split."""
    baseline: str | None = None
    """Variant of the baseline."""
    differences: tuple[SystemDifference, ...] = ()
    best: tuple[BestSystem, ...] = ()
    published: tuple[PublishedFigures, ...] = ()
    resamples: int = 0
    """Number of resamples of the paired bootstrap."""

    def json(self) -> dict[str, Any]:
        """Return the object that `attnkit eval --format json` prints."""
        return {
            "rows": [row.json() for row in self.rows],
            "baseline": self.baseline,
            "comparisons": [difference.json() for difference in self.differences],
            "best": [best.json() for best in self.best],
            "published": [figures.json() for figures in self.published],
            "resamples": self.resamples,
            "bootstrap_seed": SEED,
        }
