"""Evaluation of models: decode a split, score the outputs, save the results.

Outputs are saved in outputs/<split>.hyp.txt, their per-sentence statistics in outputs/<split>.stats.npz and all
reported values in scores.json. Results of the same weights, search settings and lines are not computed again.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Protocol

import torch

from attnkit.data.objectives import objective_of
from attnkit.data.preparation import check_reaches, check_rows_fit
from attnkit.data.rows import Row
from attnkit.data.tokenizer import Tokenizer, unknown_note
from attnkit.device import pick_device
from attnkit.distributed import group
from attnkit.errors import RecipeError
from attnkit.memory import keep_freed_memory
from attnkit.models.base import Model
from attnkit.recipe.capability import length_issue
from attnkit.recipe.metrics import metrics_of
from attnkit.recipe.schema import EvalConfig, Recipe, SearchConfig
from attnkit.recipe.search_settings import effective
from attnkit.runs import Results, Run
from attnkit.runs.json_files import Decoding, StoredDigests, StoredSearch, StoredSplit
from attnkit.runs.layout import ScoredSplit
from attnkit.runs.run_corpus import RunCorpus
from attnkit.scoring.metrics import (
    CONTEXT,
    LABELS,
    TEACHER_FORCED,
    Score,
    check_available,
    check_known,
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
    packed_row,
    reusable_scores,
    scoring_of,
    stored_name,
)
from attnkit.scoring.teacher_forced import encode_rows, teacher_forced_scores, total_variation
from attnkit.search import LineCounts, answer_lines

DoneCallback = Callable[[int], object]
"""Called with the number of outputs so far."""
Progress = Callable[[str, int, int], object]
"""Called after each sentence with the run and split, the number of decoded sentences, and that of all sentences."""


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
    """Decode and score splits of a finished run's corpus.

    Returns and saves one row per split, with `eval.lengths` one per split and length.

    Args:
        device: "auto": a GPU if there is one.
        data_dir: folder of corpora; default: $ATTNKIT_DATA.
        search: replaces the search of the run's recipe; `n_best` is always 1.
        force: whether to compute everything again.

    Raises:
        MissingInputError: the run is not finished, the corpus lacks a split, or a run without weights has no saved
            results of a split and search.
        DataError: a split has no rows, or too few tokens or too long generated rows for one of `eval.lengths`.
        UsageError: a metric that the task does not have, such as a metric of output text for a language model.
        RecipeError: the model cannot read one of `eval.lengths`.
        UnavailableError: the device, or a dependency of a metric or tokenizer, is missing.
    """
    recipe, names = run.recipe, _metrics(eval, run.recipe)
    _check_lengths(run, eval)
    corpus = corpus_of(run, data_dir, offline, fresh=force, keep=group.is_main_process())
    spec, out = one_best(search or recipe.search), list[ScoreRow]()
    device = pick_device(device)
    load = cache(partial(_model, run, device))
    for split in splits:
        rows = list[Row]()
        for length in eval.lengths or [None]:
            part = ScoredSplit(split, length)
            if run.left_out and not force and (row := _packed_row(run, part, eval, names, spec)):
                out.append(row)
                continue
            if not rows or recipe.task in ("recall", "tagging"):  # rows are generated for each length
                rows = group.broadcast_object(list(corpus.rows(split, length)) if group.is_main_process() else None)
            lines = RunLines(run, part, rows, device, load)

            def on_done(done: int, split: str = split, total: int = len(rows)) -> None:
                if progress is not None:
                    progress(f"{run.variant} seed {run.seed}, {split}", done, total)

            out.append(evaluate_lines(lines, eval, names, spec, force=force, on_done=on_done))
    return out


def _check_lengths(run: Run, eval: EvalConfig) -> None:
    """Raise an error unless the model can read text, or generated rows, of each of `eval.lengths`."""
    if issue := length_issue(run.recipe, max(eval.lengths, default=0)):
        raise RecipeError(f"{run.path}: eval.lengths: {issue}")
    check_rows_fit(run.recipe.model_copy(update={"eval": eval}))


def _model(run: Run, device: str) -> Model:
    if device == "cpu":
        keep_freed_memory()
    return run.model(device)


def _packed_row(
    run: Run, part: ScoredSplit, eval: EvalConfig, names: Sequence[str], search: SearchConfig
) -> ScoreRow | None:
    """Return the `packed_row`; raise MissingInputError if there is none, and no outputs to compute metrics from."""
    stored_search, entries = StoredSearch.of(search), run.scores()
    row = packed_row(run, str(part), eval, names, stored_search)
    name = stored_name(entries, str(part), stored_search)
    if row is None and (name is None or entries[name].decode is None):
        run.require_weights()
    return row


def corpus_of(
    run: Run, data_dir: str | Path | None, offline: bool, *, fresh: bool = False, keep: bool = False
) -> RunCorpus:
    """Return the corpus of a finished run; arguments as in `RunCorpus`.

    Raises MissingInputError if the run is not finished, or if there is no folder `data_dir`.
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
    """Return the scores of a model's outputs and its teacher-forced scores on rows; nothing is saved.

    Args:
        search, eval: default: the recipe's; `n_best` is always 1.
        length: length of windows of running text; default: data.max_length.

    Raises:
        DataError: there are no rows, or the model returns NaN.
        UnavailableError: the package of a tokenizer is missing.
    """
    scores: dict[str, Score] = {}
    if any(is_text(name) or name in LABELS for name in metrics):
        sources = [row.source for row in rows]
        texts = list(answers(model, tokenizer, sources, recipe, one_best(search or recipe.search)))
        scores = answer_scores(metrics, texts, sources, references_of(rows), recipe, eval or recipe.eval)
    if "total-variation" in metrics:
        scores["total-variation"] = total_variation(model, tokenizer, rows, recipe)
    stream = recipe.task == "language-modeling"
    return scores | teacher_forced_scores(
        metrics,
        model,
        tokenizer,
        rows,
        max_length=(length if stream else None) or recipe.data.max_length,
        stream=stream,
        objective=objective_of(recipe),
    )


def answers(
    model: Model,
    tokenizer: Tokenizer,
    sources: Sequence[str],
    recipe: Recipe,
    search: SearchConfig,
    counts: LineCounts | None = None,
) -> Iterator[str]:
    """Return an iterator over the best output of each source, by `answer_lines`."""
    return (answer[0][0] for answer in answer_lines(model, tokenizer, sources, recipe, search, counts=counts))


def answer_scores(
    metrics: Sequence[str],
    texts: Sequence[str],
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    recipe: Recipe,
    eval: EvalConfig,
) -> dict[str, Score]:
    """Return the scores by the `metrics` that read outputs, or labels in classification; others are skipped."""
    if recipe.task != "classification":
        return score(metrics, texts, references, eval, sources)
    names = [name for name in metrics if name in LABELS]
    return label_scores(names, texts, [line[0] for line in references], recipe.data.labels)


def references_of(rows: Sequence[Row]) -> list[list[str]]:
    """Return the references of each row."""
    return [list(row.references or (row.target,)) for row in rows]


class ScoredLines(Protocol):
    """Lines of a test set, and a system that decodes and scores them."""

    system: System
    results: Results
    """Folder in which outputs and scores are saved."""
    weights: str
    """SHA-256 of the system's weights."""
    name: str
    """Name of the evaluation in storage, a `ScoredSplit` as text."""
    source: list[list[str]]
    """Rows of the texts to decode."""
    references: list[list[str]]

    def stored(self, search: SearchConfig) -> tuple[StoredSearch, bool]:
        """Return the search as it is stored, and whether it is that of the run's recipe."""

    def decode(self, search: SearchConfig, on_done: DoneCallback) -> tuple[list[str], Decoding]:
        """Return the outputs of all lines and the speed; call `on_done` with the number of outputs so far."""

    def scores(self, names: Sequence[str], saved: SavedScores, eval: EvalConfig) -> dict[str, Score]:
        """Return the scores of the saved outputs, and of the model."""

    def warnings(self, names: Sequence[str], saved: SavedScores, eval: EvalConfig) -> list[str]:
        """Return warnings about the lines and the saved outputs."""


def evaluate_lines(
    lines: ScoredLines,
    eval: EvalConfig,
    names: Sequence[str],
    search: SearchConfig,
    *,
    force: bool,
    on_done: DoneCallback,
) -> ScoreRow:
    """Decode and score lines, reuse the saved results that are still valid, and save the new ones."""
    main, results, (stored_search, of_recipe) = group.is_main_process(), lines.results, lines.stored(search)
    entry = StoredSplit(
        split=lines.name,
        weights=lines.weights,
        search=stored_search,
        scoring=scoring_of(eval),
        digests=StoredDigests(source=digest(*lines.source), references=digest(*lines.references)),
    )
    reused = main and reusable_scores(results, entry, eval, force=force, of_recipe=of_recipe)
    saved: SavedScores = group.broadcast_object(reused or None)
    stored = saved.stored
    check_available([name for name in names if name not in saved.scores], eval)
    if not saved.texts and _output_metrics(names):
        saved.texts, stored.decode = lines.decode(search, on_done)
    stored.sentences = len(lines.references)
    unknown = () if stored.decode and stored.decode.chosen else CONTEXT
    if missing := [name for name in names if name not in (*saved.scores, *unknown)]:
        saved.scores |= lines.scores(missing, saved, eval)
    stored.warnings = lines.warnings(names, saved, eval)
    if missing and not results.writable:
        stored.warnings.append("scores are not saved, because the run is not writable")
    elif missing and main:
        saved.write(results)
    return saved.row(lines.system).only(names)


def _output_metrics(names: Sequence[str]) -> list[str]:
    return [name for name in names if is_text(name) or name in (*LABELS, *CONTEXT)]


class RunLines:
    """Lines of a split, or its windows of one length, decoded and scored by a run."""

    def __init__(
        self, run: Run, part: ScoredSplit, rows: Sequence[Row], device: str, load: Callable[[], Model]
    ) -> None:
        self.run, self.part, self.rows, self.device, self.load = run, part, rows, device, load
        self.results: Results = run
        self.system, self.weights = System.of_run(run), run.weights_sha256
        self.name, self.source = str(part), [[row.source for row in rows]]
        self.references = references_of(rows)

    @cached_property
    def tokenizer(self) -> Tokenizer:
        return self.run.tokenizer()

    def stored(self, search: SearchConfig) -> tuple[StoredSearch, bool]:
        return StoredSearch.of(search), effective(search) == effective(self.run.recipe.search)

    def decode(self, search: SearchConfig, on_done: DoneCallback) -> tuple[list[str], Decoding]:
        sources = self.source[0]
        model, tokenizer, texts, counts = self.load(), self.tokenizer, list[str](), LineCounts()
        start = time.perf_counter()
        for text in answers(model, tokenizer, sources, self.run.recipe, search, counts):
            texts.append(text)
            on_done(len(texts))
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

    def scores(self, names: Sequence[str], saved: SavedScores, eval: EvalConfig) -> dict[str, Score]:
        """Also note in `saved` what the tokenizer does not know."""
        recipe, length, scores = self.run.recipe, self.part.length, dict[str, Score]()
        model_metrics = [name for name in names if name in TEACHER_FORCED]
        if not self.run.left_out:
            source, target = self.tokenizer
            saved.stored.unknown["source"] = unknown_note(source.unknown(self.source[0]))
            if model_metrics and not recipe.data.labels:  # the model reads the targets, too
                saved.stored.unknown["target"] = unknown_note(target.unknown([row.target for row in self.rows]))
        if _output_metrics(names):
            if group.is_main_process():
                scores = answer_scores(names, saved.texts, self.source[0], self.references, recipe, eval)
            scores = group.broadcast_object(scores)
        if model_metrics:
            if length and recipe.task == "language-modeling":
                encoded = encode_rows(self.rows, self.tokenizer, length, stream=True)
                check_reaches(f"{self.run.path}: {self.part.split}", len(encoded.target.ids), length)
            scores |= model_scores(model_metrics, self.load(), self.tokenizer, self.rows, recipe, length=length)
        return scores

    def warnings(self, names: Sequence[str], saved: SavedScores, eval: EvalConfig) -> list[str]:
        stored = saved.stored
        out, stored.empty_references = list(filter(None, stored.unknown.values())), 0
        if metrics := _output_metrics(names):
            stored.empty_references = empty_references(self.references)
            out += warnings(saved.texts, self.references, metrics, eval)
        decoding = stored.decode if metrics and stored.decode else Decoding()
        if decoding.truncated:
            cut = f"inputs truncated to data.max_length={self.run.recipe.data.max_length} tokens"
            out.append(f"{cut}: {decoding.truncated} of {decoding.lines}")
        if decoding.unfinished > SHARE * decoding.lines:
            out.append(
                f"{decoding.unfinished} of {decoding.lines} outputs did not end within "
                f"search.max_length={stored.search.max_length} tokens"
            )
        return out


def _metrics(eval: EvalConfig, recipe: Recipe) -> tuple[str, ...]:
    """Return the metrics, which the task must have; a language model gets word perplexity beside perplexity."""
    names, task = expand(eval.metrics), recipe.task
    check_known(names, task, metrics_of(task))
    if task not in ("language-modeling", "tagging"):
        return names
    if recipe.corrupts or not recipe.writes:
        return tuple(name for name in names if name != "word-perplexity")
    return (*names, "word-perplexity") if "perplexity" in names else names
