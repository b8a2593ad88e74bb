"""Scoring trained runs: decode a split, score it, keep what was measured, put runs side by side.

Outputs go to outputs/<split>.hyp.txt, their per-sentence statistics to outputs/<split>.stats.npz
and everything that is reported to scores.json.  What the same weights gave under the same search
settings on the same lines is not computed again.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from attnkit import __version__
from attnkit.data.rows import Row
from attnkit.device import pick_device
from attnkit.errors import DataError, MissingInputError, RecipeError
from attnkit.recipe.schema import EvalConfig, SearchConfig
from attnkit.scoring import (
    CHOSEN,
    FORCED,
    TEXT,
    Entry,
    Score,
    expand,
    score,
    side_by_side,
    warnings,
)
from attnkit.scoring.output_warnings import SHARE
from attnkit.scoring.saved_scores import SavedScores, described
from attnkit.scoring.teacher_forced import forced, forced_scores
from attnkit.search import LineCounts, translate

if TYPE_CHECKING:
    from attnkit.data.corpus import Corpus
    from attnkit.data.tokenizer import Tokenizer
    from attnkit.models.base import Model
    from attnkit.runs import Results, Run

__all__ = [
    "baselines", "comparison", "digest", "evaluate", "forced", "kept_before", "stored",
]  # fmt: skip

Progress = Callable[[str, int, int], object]
"""Called with what is decoded (a run's split), sentences done, and sentences in all."""


def evaluate(
    run: "Run",
    splits: Sequence[str],
    eval: EvalConfig,
    *,
    device: str = "auto",
    data_dir: str | Path | None = None,
    offline: bool = False,
    search: SearchConfig | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> list[Entry]:
    """Decode and score splits of a run's corpus; one entry a split, also stored in the run.

    Args:
        run: a finished one.
        splits: names of splits that the corpus has.
        eval: metrics and their settings.
        device: auto takes a GPU where there is one.
        data_dir: where corpora are; $ATTNKIT_DATA by default.
        offline: never download.
        search: instead of the recipe's; always one output a line.
        force: compute everything again.
        progress: told about decoding.

    Raises:
        MissingInputError: the run is not finished, or the corpus has no such split.
        DataError: a split has no rows.
        RecipeError: a metric of output text for a language model.
        UnavailableError: the device or a tokeniser's package is missing.
    """
    recipe = run.recipe
    names = _metrics(eval, recipe.task)
    corpus = corpus_of(run, data_dir, offline)
    spec = (search or recipe.search).model_copy(update={"n_best": 1})
    job = _EvaluationJob(run, eval, names, spec, pick_device(device), force, progress)
    return [job.split(split, list(corpus.rows(split))) for split in splits]


def corpus_of(run: "Run", data_dir: str | Path | None, offline: bool) -> "Corpus":
    """The corpus of a finished run.

    Raises:
        MissingInputError: the run is not finished, or a file of the corpus is not there.
        DataError: a file is damaged.
    """
    from attnkit.data.corpus import Corpus

    if not run.finished:
        raise MissingInputError(
            f"{run.path}: training is not finished; run `attnkit train` again to go on"
        )
    return Corpus.open(
        run.recipe.data,
        run.recipe.task,
        data_dir=None if data_dir is None else Path(data_dir),
        offline=offline,
    )


def comparison(
    runs: Iterable["Run"],
    splits: Sequence[str] | None = None,
    *,
    metrics: Sequence[str] | None = None,
    baseline: str | Mapping[str, str] | None = None,
    resamples: int = 1000,
) -> dict[str, Any]:
    """Evaluated runs side by side: the object of `attnkit eval --format json`.

    Args:
        runs: in the order in which they are shown.
        splits: all that were scored when None.
        metrics: all that were scored when None.
        baseline: the variant that others are compared with, or that of each recipe by its name;
            the first run's variant when None.
        resamples: of the paired bootstrap; 0 leaves p-values out.

    Raises:
        MissingInputError: a run was not evaluated on a split.
        DataError: what was stored is damaged.
    """
    names = None if metrics is None else expand(metrics)
    if names is not None and "perplexity" in names:
        names = expand((*names, "word-perplexity"))
    entries = [
        entry if names is None else entry.only(names)
        for run in runs
        for entry in [stored(run, split) for split in splits or run.scores()]
    ]
    return side_by_side(entries, baselines(entries, baseline), resamples=resamples)


def baselines(
    entries: Iterable[Entry], chosen: str | Mapping[str, str] | None = None
) -> dict[str | None, str]:
    """The baseline of each recipe: the chosen variant, else the first one shown."""
    out: dict[str | None, str] = {}
    for entry in entries:
        recipe = entry.row["recipe"]
        given = chosen if isinstance(chosen, str) else (chosen or {}).get(recipe)
        out.setdefault(recipe, given or entry.row["variant"])
    return out


def stored(run: "Run", split: str) -> Entry:
    """What the last evaluation of a split found.

    Raises:
        MissingInputError: there was none.
        DataError: what it stored is damaged.
    """
    kept = SavedScores.read(run, split)
    if kept is None:
        raise MissingInputError(
            f"{run.path}: split {split} is not scored: run `attnkit eval` on it"
        )
    return kept.entry(described(run), split)


@dataclass
class _EvaluationJob:
    """One run and how it is evaluated."""

    run: "Run"
    eval: EvalConfig
    names: tuple[str, ...]
    search: SearchConfig
    device: str
    force: bool
    progress: Progress | None

    def split(self, split: str, rows: list[Row]) -> Entry:
        """Evaluate one split, and store what was not known yet."""
        references = [list(row.references or (row.target,)) for row in rows]
        kept = self._start(split, rows, references)
        text = [name for name in self.names if name in TEXT]
        missing = [name for name in self.names if name not in kept.scores]
        if text and not kept.texts:
            kept.texts, kept.facts["decode"] = self._decode(split, rows)
        if text and missing:
            kept.scores |= score(missing, kept.texts, references, self.eval)
        if set(missing) & set(FORCED):
            kept.scores |= self._forced(missing, rows)
        kept.facts |= {"sentences": len(rows), "warnings": []}
        if text:
            found = warnings(kept.texts, references, metrics=text, tokenize=self.eval.tokenize)
            kept.facts["warnings"] = found + _limits(kept.facts["decode"], self.search)
        if missing:
            kept.write(self.run, split)
        return kept.entry(described(self.run), split).only(self.names)

    @cached_property
    def model(self) -> "Model":
        """The run's model; not loaded where everything is known already."""
        return self.run.model(self.device)

    @cached_property
    def tokenizer(self) -> "Tokenizer":
        """The run's tokenizer."""
        return self.run.tokenizer()

    def _start(self, split: str, rows: Sequence[Row], references: list[list[str]]) -> SavedScores:
        """What an earlier evaluation found and is still true."""
        return kept_before(
            self.run,
            self.run.manifest["files"]["model.safetensors"],
            split,
            self.eval,
            force=self.force,
            source=digest([row.source for row in rows]),
            references=digest(*references),
            search=self.search.model_dump(mode="json"),
        )

    def _decode(self, split: str, rows: Sequence[Row]) -> tuple[list[str], dict[str, Any]]:
        """Outputs of the split, and how fast they came."""
        what, texts, counts = f"{self.run.variant} seed {self.run.seed}, {split}", [], LineCounts()
        model, tokenizer = self.model, self.tokenizer
        start = time.perf_counter()
        for answer in translate(
            model,
            tokenizer,
            [row.source for row in rows],
            self.search,
            max_source=self.run.recipe.data.max_length,
            counts=counts,
        ):
            texts.append(answer[0][0])
            if self.progress is not None:
                self.progress(what, len(texts), len(rows))
        seconds = max(time.perf_counter() - start, 1e-6)
        tokens = sum(map(len, tokenizer.target.encode(texts)))
        return texts, {
            "seconds": round(seconds, 3),
            "sentences_per_second": round(len(texts) / seconds, 2),
            "tokens_per_second": round(tokens / seconds, 2),
            "tokens": tokens,
            "device": self.device,
            "threads": torch.get_num_threads(),
            **asdict(counts),
        }

    def _forced(self, names: Sequence[str], rows: Sequence[Row]) -> dict[str, Score]:
        """Scores of the model's probabilities."""
        recipe = self.run.recipe
        return forced_scores(
            names,
            self.model,
            self.tokenizer,
            rows,
            max_length=recipe.data.max_length,
            stream=recipe.task == "language-modeling",
            device=self.device,
        )


def kept_before(
    results: "Results",
    weights: str,
    split: str,
    eval: EvalConfig,
    *,
    force: bool,
    source: str,
    references: str,
    search: dict[str, Any],
) -> SavedScores:
    """What an earlier evaluation of a split found and is still true.

    Args:
        results: the folder, such as a finished run.
        weights: SHA-256 of what decodes.
        split: its name.
        eval: settings of the metrics.
        force: nothing is true any more.
        source, references: digests of what is decoded, and of what it is compared with.
        search: how it is decoded.

    Raises:
        DataError: the scores are damaged, without `force`.
    """
    kept = SavedScores(
        weights=weights,
        source=source,
        references=references,
        search=search,
        scoring={
            "tokenize": eval.tokenize,
            "lowercase": eval.lowercase,
            "sentences": eval.sentences,
            "attnkit": __version__,
            "sacrebleu": version("sacrebleu"),
            "rouge-score": version("rouge-score"),
        },
    )
    try:
        results.scores()
    except DataError as error:  # told before the work, since it cannot be written to either
        if not force:
            text = f"{error}; remove this file, or replace it by `attnkit eval --fresh`"
            raise DataError(text) from error
        results.remove_scores()
    try:
        old = None if force else SavedScores.read(results, split)
    except DataError:
        return kept
    made_from = (kept.weights, kept.source, kept.search)
    if old is None or (old.weights, old.source, old.search) != made_from:
        return kept
    kept.texts, kept.facts = old.texts, old.facts
    if (old.scoring, old.references) == (kept.scoring, kept.references):
        kept.scores = old.scores
    return kept


def _limits(decode: Mapping[str, Any], search: SearchConfig) -> list[str]:
    """Warnings about lines that were cut by a limit of the recipe."""
    out = []
    if cut := decode["truncated"]:
        out.append(
            f"{cut} of {decode['lines']} inputs are longer than data.max_length and were cut"
        )
    if decode["unfinished"] > SHARE * decode["lines"]:
        out.append(
            f"{decode['unfinished']} of {decode['lines']} outputs did not end within "
            f"search.max_length={search.max_length} tokens"
        )
    return out


def _metrics(eval: EvalConfig, task: str) -> tuple[str, ...]:
    """Metrics that the task can have; a language model gets word perplexity beside perplexity."""
    names = expand(eval.metrics)
    if wrong := [name for name in names if name in CHOSEN]:
        raise RecipeError(f"eval.metrics: {wrong[0]} is for question-answering; remove it")
    if task != "language-modeling":
        return names
    if wrong := [name for name in names if name in TEXT]:
        raise RecipeError(
            f"eval.metrics: {wrong[0]} scores output text, which language modelling has none of; "
            "use perplexity and accuracy"
        )
    return (*names, "word-perplexity") if "perplexity" in names else names


def digest(*rows: Sequence[str]) -> str:
    """SHA-256 of rows of texts, and of where each text and row ends."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(len(row).to_bytes(8, "big"))
        for text in row:
            data = text.encode("utf-8", "surrogatepass")
            digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
