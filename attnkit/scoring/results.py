"""What scoring found: rows of scores, differences between systems, and comparisons of both.

Each has one JSON form, which `attnkit eval --format json` prints and docs/comparing.md describes.
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
"""Keys of a recipe in which seeds of one system may differ."""
FILE_KEYS = ("data.train", "data.valid", "data.test", "tokenizer.model")
"""Keys of a recipe that name files, whose content has a digest in the manifest."""
RUN_ID = 12
"""Digits of the id of a run."""


class Budget(NamedTuple):
    """How much a training may learn from."""

    steps: int
    batch_tokens: int
    accumulate: int
    """Batches of an update, those of all processes together."""


@dataclass(frozen=True)
class TrainingCost:
    """What a training took, and on what; None where it is not known."""

    updates: int | None = None
    seconds: float | None = None
    tokens_per_second: float | None = None
    peak_memory_bytes: int | None = None
    device: str | None = None
    threads: int | None = None
    precision: str | None = None
    processes: int | None = None
    machine: str | None = None
    """Its cores, kind of processor and memory, in words."""


@dataclass(frozen=True)
class System:
    """What is scored: a trained run, a model from elsewhere, or a file of outputs."""

    recipe: str | None
    variant: str
    seed: int | None = None
    run: str | None = None
    """Its folder, or the name of the model."""
    parameters: int | None = None
    cost: TrainingCost = TrainingCost()
    corpus: str | None = None
    training_data: str | None = None
    """SHA-256 of the corpus that it was trained on."""
    budget: Budget | None = None
    lr: float | None = None
    tuned: Tuned | None = None
    changes: tuple[RecordedChange, ...] = ()
    """What was changed in its recipe while it was trained."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """What it was trained by but for the seed, by dotted keys; empty where that is not known."""

    @classmethod
    def of_run(cls, run: Run) -> "System":
        """A finished run.  Data files count by their content, so that moved runs stay equal."""
        manifest, recipe, spec = run.manifest, run.recipe, run.recipe.train
        done, hashes, counted = run.outcome, manifest.hashes, recipe.model.count_based
        budget = Budget(spec.steps, spec.batch_tokens, spec.accumulate * manifest.world_size)
        settings = {k: value for k, value in flat(recipe).items() if not k.startswith(SEED_KEYS)}
        if data := hashes.get("data"):
            settings = {key: value for key, value in settings.items() if key not in FILE_KEYS}
            settings["data"] = data[:8]
        cost = TrainingCost(
            done.updates,
            done.seconds,
            done.tokens_per_second,
            done.peak_memory_bytes,
            manifest.device,
            manifest.threads,
            manifest.precision,
            manifest.world_size,
            manifest.machine,
        )
        return cls(
            run.name,
            run.variant,
            run.seed,
            run.path.as_posix(),
            manifest.parameters,
            cost,
            recipe.data.corpus,
            hashes.get("corpus"),
            None if counted else budget,
            None if counted else spec.lr,
            manifest.tuned,
            tuple(manifest.changes),
            settings,
        )


class OutputFiles(NamedTuple):
    """The files that a row was scored from."""

    hypotheses: str
    references: tuple[str, ...]


@dataclass(frozen=True)
class ScoreRow:
    """The scores of one system on one split, with their statistics of each sentence."""

    system: System
    split: str | None
    scores: Mapping[str, Score]
    sentences: int
    references: str
    """Digest of the references; only systems scored on the same ones are compared."""
    source: str | None = None
    """SHA-256 of what was decoded."""
    empty_references: int = 0
    """Sentences with an empty reference."""
    weights: str | None = None
    """SHA-256 of the weights."""
    search: StoredSearch | None = None
    """How it was decoded."""
    search_from: str = "run"
    """Who decided on the search: run, recipe or command line."""
    sentences_per_second: float | None = None
    tokens_per_second: float | None = None
    warnings: tuple[str, ...] = ()
    files: OutputFiles | None = None
    length: int | None = None
    """Of generated rows, or of the windows of a text."""
    method: str | None = None
    """How questions were answered."""
    contexts: int | None = None
    """How many each question had."""
    cut: int | None = None
    """Questions that lost some of their contexts."""
    name: str = ""
    """Tells the system from others of its variant; see `attnkit.scoring.comparison.named`."""

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
        """What tells a run from others in tables."""
        return self.weights and self.weights[:RUN_ID]

    def only(self, metrics: Sequence[str]) -> "ScoreRow":
        """The same with these metrics alone, in this order; those without a score are left out.

        BLEU by several tokenizers is one metric."""
        names = [name for metric in metrics for name in self.scores if base_metric(name) == metric]
        return replace(self, scores={name: self.scores[name] for name in names})

    def json(self) -> dict[str, Any]:
        """The row of `attnkit eval --format json`."""
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
        """What differences and best systems say of it."""
        named: dict[str, Any] = {"recipe": self.recipe, "variant": self.variant, "system": self.name}
        named |= {} if self.length is None else {"length": self.length}
        return named | ({} if self.contexts is None else {"method": self.method, "contexts": self.contexts})


class CostColumn(NamedTuple):
    """A column of tables after the scores, and its key in JSON and CSV."""

    title: str
    """In tables; `--columns` has hyphens for its spaces."""
    key: str
    """In JSON and CSV."""
    priority: int
    """Columns of a higher number go first where a screen is narrow; in LaTeX those above 1 go."""
    value: Callable[[ScoreRow], float | None]
    """Of one row; None where it was not measured.  A column without any value is not shown."""
    of_seeds: Callable[[Sequence[float]], float] = mean
    """What stands for the values of all seeds."""
    in_bytes: bool = False


COST_COLUMNS = (
    CostColumn("parameters", "parameters", 2, lambda row: row.system.parameters),
    CostColumn("train tokens/s", "train_tokens_per_second", 3, lambda row: row.system.cost.tokens_per_second),
    CostColumn("decode sentences/s", "decode_sentences_per_second", 3, lambda row: row.sentences_per_second),
    CostColumn(
        "peak memory", "train_peak_memory_bytes", 4, lambda row: row.system.cost.peak_memory_bytes, max, in_bytes=True
    ),
)
"""In their order."""


@dataclass(frozen=True)
class SystemDifference:
    """A system against its baseline by one metric."""

    row: ScoreRow
    """The system's; of several seeds the first."""
    baseline: ScoreRow
    metric: str
    value: float | None
    """Difference of the means over seeds; None where other data or another metric was scored."""
    tested: Difference | None
    """Its interval and p; None where it was not tested."""
    not_comparable: tuple[str, ...]
    """In what else than the system they differ; see `attnkit.scoring.comparison.reasons`."""
    seeds: tuple[int, int]
    """Of the system, and of the baseline."""
    sentences: int

    def json(self) -> dict[str, Any]:
        """An item of `comparisons`; what was not tested is null."""
        base, asked = self.baseline, self.row.contexts is not None
        return {
            "split": self.row.split,
            **self.row.names(),
            "metric": self.metric,
            "not_comparable": [*self.not_comparable],
            "baseline": base.variant,
            "baseline_system": base.name,
            "baseline_recipe": base.recipe,
            **({"baseline_method": base.method} if asked else {}),
            "difference": self.value,
            **(self.tested.json() if self.tested else UNTESTED),
            "seeds": [*self.seeds],
            "sentences": self.sentences,
        }


@dataclass(frozen=True)
class BestSystem:
    """The best system of a split by one metric, and every other one against it."""

    row: ScoreRow
    metric: str
    others: tuple[tuple[ScoreRow, Difference], ...]

    @property
    def inseparable(self) -> list[ScoreRow]:
        """The best one, and those that are not separable from it."""
        return [self.row, *(row for row, found in self.others if not found.significant)]

    def json(self) -> dict[str, Any]:
        """An item of `best`."""
        others = [
            {
                **row.names(),
                "difference": found.value,
                "p": found.p,
                "p_corrected": found.p_holm,
                "separable": found.significant,
                "level": not found.significant,  # the older name of not separable
            }
            for row, found in self.others
        ]
        named = {"split": self.row.split, **self.row.names()}
        return {**named, "metric": self.metric, "others": others}


def published_entry(file: RecipeFile) -> dict[str, Any] | None:
    """The figures of a recipe file as a manifest keeps them; None where it has none."""
    return None if file.published is None else file.published.model_dump(mode="json")


class PublishedFigures(NamedTuple):
    """What the file of a recipe says that others published."""

    recipe: str
    figures: Published

    @classmethod
    def of_file(cls, file: RecipeFile) -> "list[PublishedFigures]":
        """At most one."""
        return [] if file.published is None else [cls(file.name, file.published)]

    @classmethod
    def of_runs(cls, runs: Iterable[Run]) -> "list[PublishedFigures]":
        """What the manifests of runs say, each once.

        Raises DataError: a manifest is damaged.
        """
        out: list[PublishedFigures] = []
        for run in runs:
            if found := run.manifest.published:
                one = cls(run.name, parse(found, Published, f"{run.path}/manifest.json: published"))
                out += [] if one in out else [one]
        return out

    def score(self, row: ScoreRow, metric: str) -> float | None:
        """The figure that stands beside a score."""
        if self.recipe != row.recipe or self.figures.split not in (None, row.split):
            return None
        return self.figures.scores.get(row.variant, {}).get(metric)

    def json(self) -> dict[str, Any]:
        """An item of `published`."""
        return {"recipe": self.recipe, **self.figures.model_dump(mode="json")}


@dataclass(frozen=True)
class Comparison:
    """Systems side by side."""

    rows: tuple[ScoreRow, ...]
    """One a run and split."""
    baseline: str | None = None
    """The variant that others were compared with."""
    differences: tuple[SystemDifference, ...] = ()
    best: tuple[BestSystem, ...] = ()
    published: tuple[PublishedFigures, ...] = ()
    resamples: int = 0
    """Of the paired bootstrap."""

    def json(self) -> dict[str, Any]:
        """The object that `attnkit eval --format json` prints."""
        return {
            "rows": [row.json() for row in self.rows],
            "baseline": self.baseline,
            "comparisons": [one.json() for one in self.differences],
            "best": [one.json() for one in self.best],
            "published": [one.json() for one in self.published],
            "resamples": self.resamples,
            "bootstrap_seed": SEED,
        }
