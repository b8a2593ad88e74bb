"""Scoring models: decode a split, score it, save what was measured.

Outputs go to outputs/<split>.hyp.txt, their per-sentence statistics to outputs/<split>.stats.npz
and everything that is reported to scores.json.  What the same weights gave under the same search
settings on the same lines is not computed again.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from attnkit.data.objectives import objective_of
from attnkit.data.preparation import check_reaches
from attnkit.data.rows import Row
from attnkit.data.tokenizer import Tokenizer, unknown_note
from attnkit.device import pick_device
from attnkit.distributed import group
from attnkit.errors import RecipeError
from attnkit.memory import keep_freed_memory
from attnkit.models.base import Model
from attnkit.recipe.capability import length_issue
from attnkit.recipe.metrics import base_metric, metrics_of, not_of
from attnkit.recipe.schema import EvalConfig, Recipe, SearchConfig
from attnkit.recipe.search_text import effective
from attnkit.runs import Run
from attnkit.runs.json_files import Decoding
from attnkit.runs.layout import windows_name
from attnkit.runs.run_corpus import RunCorpus
from attnkit.scoring import total_variation
from attnkit.scoring.metrics import (
    LABELS,
    TEACHER_FORCED,
    Score,
    check_available,
    expand,
    is_text,
    label_scores,
    score,
)
from attnkit.scoring.output_warnings import SHARE, empty_references, warnings
from attnkit.scoring.results import ScoreRow, System
from attnkit.scoring.saved_scores import (
    SavedScores,
    digest,
    one_best,
    packed_scores,
    reusable_scores,
)
from attnkit.scoring.teacher_forced import encode_rows, teacher_forced_scores
from attnkit.search import LineCounts, answer_lines

NOT_KEPT = "scores are not kept, as the run cannot be written"
Progress = Callable[[str, int, int], object]
"""Called with what is decoded (a run's split), sentences done, and sentences in all."""


def evaluate(
    run: Run,
    splits: Sequence[str],
    eval: EvalConfig,
    *,
    device: str = "auto",
    data_dir: str | Path | None = None,
    offline: bool = False,
    search: SearchConfig | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> list[ScoreRow]:
    """Decode and score splits of a run's corpus; one row a split, also saved in the run.

    With `eval.lengths` one row a split and length.

    Args:
        run: a finished one.
        splits: names of splits that the corpus has.
        eval: metrics and their settings.
        device: auto takes a GPU where there is one.
        data_dir: where corpora are; $ATTNKIT_DATA by default.
        offline: never download.
        search: instead of that of the run's recipe; always one output a line.
        force: compute everything again.
        progress: called after every decoded line.

    Raises:
        MissingInputError: the run is not finished, or the corpus has no such split; or a split or
            search is not among the results of a run without weights.
        DataError: a split has no rows, or fewer tokens than one of `eval.lengths`.
        RecipeError: a metric of output text for a language model, or a length that it cannot read.
        UnavailableError: the device, or what a metric or tokenizer needs, is missing.
    """
    recipe = run.recipe
    names = _metrics(eval, recipe)
    if why := length_issue(recipe, max(eval.lengths, default=0)):
        raise RecipeError(f"{run.path}: eval.lengths: {why}")
    corpus = corpus_of(run, data_dir, offline, fresh=force, keep=group.is_main_process())
    spec = one_best(search or recipe.search)
    job = _EvaluationJob(run, eval, names, spec, pick_device(device), force, progress)
    out = []
    for split in splits:
        rows = list[Row]()
        for length in eval.lengths or [None]:
            name = split if length is None else windows_name(split, length)
            if run.left_out and not force and (found := job.packed(name)):
                out.append(found)
                continue
            if not rows or recipe.task in ("recall", "tagging"):  # of every length its own
                read = list(corpus.rows(split, length)) if group.is_main_process() else None
                rows = group.broadcast_object(read)
            out.append(job.split(split, rows, length))
    return out


def corpus_of(
    run: Run,
    data_dir: str | Path | None,
    offline: bool,
    *,
    fresh: bool = False,
    keep: bool = False,
) -> RunCorpus:
    """The corpus of a finished run; arguments as of `RunCorpus`.

    Raises:
        MissingInputError: the run is not finished, or there is no folder `data_dir`.
    """
    run.require_finished()
    return RunCorpus(run, data_dir, offline, fresh=fresh, keep=keep)


def model_scores(
    metrics: Sequence[str],
    model: Model,
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    recipe: Recipe,
    *,
    search: SearchConfig | None = None,
    eval: EvalConfig | None = None,
    length: int | None = None,
) -> dict[str, Score]:
    """Scores of a model on rows, of its output and teacher-forced; nothing is saved.

    `search` and `eval` are the recipe's when None; always one output a row.  `length` is that of
    the windows of running text, data.max_length when None.

    Raises:
        DataError: there are no rows, or the model answers NaN.
        UnavailableError: a tokenizer's package is missing.
    """
    found: dict[str, Score] = {}
    if any(is_text(name) or name in LABELS for name in metrics):
        sources = [row.source for row in rows]
        spec = one_best(search or recipe.search)
        texts = list(answers(model, tokenizer, sources, recipe, spec))
        found = answer_scores(metrics, texts, rows, recipe, eval or recipe.eval)
    if total_variation.METRIC in metrics:
        found[total_variation.METRIC] = total_variation.total_variation(
            model, tokenizer, rows, recipe
        )
    stream = recipe.task == "language-modeling"
    return found | teacher_forced_scores(
        metrics, model, tokenizer, rows,
        max_length=(length if stream else None) or recipe.data.max_length,
        stream=stream, objective=objective_of(recipe),
    )  # fmt: skip


def answers(
    model: Model,
    tokenizer: Tokenizer,
    sources: Sequence[str],
    recipe: Recipe,
    search: SearchConfig,
    counts: LineCounts | None = None,
) -> Iterator[str]:
    """The best output of each source, by `answer_lines`."""
    ranked = answer_lines(model, tokenizer, sources, recipe, search, counts=counts)
    return (answer[0][0] for answer in ranked)


def answer_scores(
    metrics: Sequence[str], texts: Sequence[str], rows: Sequence[Row], recipe: Recipe,
    eval: EvalConfig,
) -> dict[str, Score]:  # fmt: skip
    """The metrics of outputs and labels among the given ones."""
    if recipe.task != "classification":
        return score(metrics, texts, references_of(rows), eval, [row.source for row in rows])
    names = [name for name in metrics if name in LABELS]
    return label_scores(names, texts, [row.target for row in rows], recipe.data.labels)


def references_of(rows: Sequence[Row]) -> list[list[str]]:
    """All references of each row."""
    return [list(row.references or (row.target,)) for row in rows]


@dataclass
class _EvaluationJob:
    """One run and how it is evaluated."""

    run: Run
    eval: EvalConfig
    names: tuple[str, ...]
    search: SearchConfig
    device: str
    force: bool
    progress: Progress | None

    def packed(self, name: str) -> ScoreRow | None:
        """The row of a run without weights, whose corpus need not be at hand; None where some
        metrics are to be computed from its outputs.

        Raises:
            MissingInputError: neither these scores nor outputs by this search were kept.
            DataError: what was kept is damaged.
        """
        saved = packed_scores(self.run, name, self.eval, self.search.model_dump(mode="json"))
        if saved is not None and {*self.names} <= {*map(base_metric, saved.scores)}:
            return saved.row(System.of_run(self.run)).only(self.names)
        if saved is None or not saved.texts:
            self.run.require_weights()
        return None

    def split(self, split: str, rows: list[Row], length: int | None) -> ScoreRow:
        """Evaluate a split, or its windows of a length, and save what was not known yet."""
        run, recipe, search = self.run, self.run.recipe, self.search.model_dump(mode="json")
        references = references_of(rows)
        main = group.is_main_process()
        known = main and reusable_scores(
            run,
            run.weights_sha256,
            split if length is None else windows_name(split, length),
            self.eval,
            force=self.force,
            source=digest([row.source for row in rows]),
            references=digest(*references),
            search=search,
            own=effective(search) == effective(recipe.search.model_dump()),
        )
        saved: SavedScores = group.broadcast_object(known or None)
        text = [one for one in self.names if is_text(one) or one in LABELS]
        missing = [one for one in self.names if one not in saved.scores]
        check_available(missing, self.eval)
        if text and not saved.texts:
            saved.texts, saved.decoding = self._decode(split, rows)
        if text and missing:
            made = main and answer_scores(missing, saved.texts, rows, recipe, self.eval)
            saved.scores |= group.broadcast_object(made or {})
        if measured := [one for one in missing if one in TEACHER_FORCED]:
            if length and recipe.task == "language-modeling":
                encoded = encode_rows(rows, self.tokenizer, length, stream=True)
                check_reaches(f"{run.path}: {split}", len(encoded.target.ids), length)
            saved.scores |= model_scores(
                measured, self.model, self.tokenizer, rows, recipe, length=length
            )
        saved.sentences, saved.empty_references = len(rows), 0
        if missing and not run.left_out:
            self._look_up(saved, rows, missing)
        saved.warnings = list(filter(None, saved.unknown.values()))
        if text:
            saved.empty_references = empty_references(references)
            saved.warnings += warnings(saved.texts, references, text, self.eval)
            saved.warnings += self._search_warnings(saved.decoding or Decoding())
        if missing and not run.writable:
            saved.warnings.append(NOT_KEPT)
        elif missing and main:
            saved.write(run)
        return saved.row(System.of_run(run)).only(self.names)

    def _look_up(self, saved: SavedScores, rows: Sequence[Row], names: Sequence[str]) -> None:
        """What the tokenizer does not know of sources, and of targets that the model reads."""
        source, target = self.tokenizer
        saved.unknown["source"] = unknown_note(source.unknown([row.source for row in rows]))
        if {*names} & {*TEACHER_FORCED} and not self.run.recipe.data.labels:
            saved.unknown["target"] = unknown_note(target.unknown([row.target for row in rows]))

    def _search_warnings(self, decoding: Decoding) -> list[str]:
        """That inputs were cut, or many outputs did not end."""
        lines, longest, out = decoding.lines, self.run.recipe.data.max_length, []
        if decoding.truncated:
            cut = f"inputs cut to data.max_length={longest} tokens"
            out.append(f"{cut}: {decoding.truncated} of {lines}")
        if decoding.unfinished > SHARE * lines:
            out.append(
                f"{decoding.unfinished} of {lines} outputs did not end within "
                f"search.max_length={self.search.max_length} tokens"
            )
        return out

    @cached_property
    def model(self) -> Model:
        """Not loaded where everything is known already."""
        if self.device == "cpu":
            keep_freed_memory()
        return self.run.model(self.device)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.run.tokenizer()

    def _decode(self, split: str, rows: Sequence[Row]) -> tuple[list[str], Decoding]:
        """Outputs of the split, and how fast they came."""
        what, texts, counts = f"{self.run.variant} seed {self.run.seed}, {split}", [], LineCounts()
        model, tokenizer, recipe = self.model, self.tokenizer, self.run.recipe
        sources = [row.source for row in rows]
        start = time.perf_counter()
        for text in answers(model, tokenizer, sources, recipe, self.search, counts):
            texts.append(text)
            if self.progress is not None:
                self.progress(what, len(texts), len(rows))
        seconds = max(time.perf_counter() - start, 1e-6)
        tokens = sum(map(len, tokenizer.target.encode(texts)))
        return texts, Decoding(
            seconds=round(seconds, 3),
            sentences_per_second=round(len(texts) / seconds, 2),
            tokens_per_second=round(tokens / seconds, 2),
            tokens=tokens,
            device=self.device,
            threads=torch.get_num_threads(),
            lines=counts.lines,
            empty=counts.empty,
            truncated=counts.truncated,
            unfinished=counts.unfinished,
        )


def _metrics(eval: EvalConfig, recipe: Recipe) -> tuple[str, ...]:
    """Metrics that the task can have; a language model gets word perplexity beside perplexity."""
    names, task, known = expand(eval.metrics), recipe.task, metrics_of(recipe.task)
    if strange := [name for name in names if base_metric(name) not in known]:
        raise RecipeError(f"eval.metrics: {not_of(strange[0], task, known)}")
    if task not in ("language-modeling", "tagging"):
        return names
    if recipe.corrupts or not recipe.writes:
        return tuple(name for name in names if name != "word-perplexity")
    return (*names, "word-perplexity") if "perplexity" in names else names
