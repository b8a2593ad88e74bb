"""Scoring models: decode a split, score it, save what was measured.

Outputs go to outputs/<split>.hyp.txt, their per-sentence statistics to outputs/<split>.stats.npz
and everything that is reported to scores.json.  What the same weights gave under the same search
settings on the same lines is not computed again.
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

NOT_KEPT = "scores are not kept, as the run cannot be written"
Tell = Callable[[int], object]
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
        DataError: a split has no rows, or fewer tokens than one of `eval.lengths`; or generated rows of
            such a length do not fit the model.
        UsageError: a metric that the task does not have, such as one of output text for a language model.
        RecipeError: a length that the model cannot read.
        UnavailableError: the device, or what a metric or tokenizer needs, is missing.
    """
    recipe, names = run.recipe, _metrics(eval, run.recipe)
    _check_lengths(run, eval)
    corpus = corpus_of(run, data_dir, offline, fresh=force, keep=group.is_main_process())
    spec, out = one_best(search or recipe.search), list[ScoreRow]()
    device, what = pick_device(device), f"{run.variant} seed {run.seed}"
    load = cache(partial(_model, run, device))
    for split in splits:
        rows = list[Row]()
        for length in eval.lengths or [None]:
            part = ScoredSplit(split, length)
            if run.left_out and not force and (found := _packed(run, part, eval, names, spec)):
                out.append(found)
                continue
            if not rows or recipe.task in ("recall", "tagging"):  # of every length its own
                read = list(corpus.rows(split, length)) if group.is_main_process() else None
                rows = group.broadcast_object(read)
            lines = RunLines(run, part, rows, device, load)

            def tell(done: int, split: str = split, of: int = len(rows)) -> None:
                if progress is not None:
                    progress(f"{what}, {split}", done, of)

            out.append(evaluate_lines(lines, eval, names, spec, force=force, tell=tell))
    return out


def _check_lengths(run: Run, eval: EvalConfig) -> None:
    """Refuse lengths of text, or of generated rows, that the model cannot read."""
    if why := length_issue(run.recipe, max(eval.lengths, default=0)):
        raise RecipeError(f"{run.path}: eval.lengths: {why}")
    check_rows_fit(run.recipe.model_copy(update={"eval": eval}))


def _model(run: Run, device: str) -> Model:
    if device == "cpu":
        keep_freed_memory()
    return run.model(device)


def _packed(
    run: Run, part: ScoredSplit, eval: EvalConfig, names: Sequence[str], search: SearchConfig
) -> ScoreRow | None:
    """As `packed_row`; MissingInputError where there are no outputs either, from which metrics could be computed."""
    how, known = StoredSearch.of(search), run.scores()
    found, name = packed_row(run, str(part), eval, names, how), stored_name(known, str(part), how)
    if found is None and (name is None or known[name].decode is None):
        run.require_weights()
    return found


def corpus_of(
    run: Run, data_dir: str | Path | None, offline: bool, *, fresh: bool = False, keep: bool = False
) -> RunCorpus:
    """The corpus of a finished run; arguments as of `RunCorpus`.

    Raises MissingInputError: the run is not finished, or there is no folder `data_dir`.
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
        texts = list(answers(model, tokenizer, sources, recipe, one_best(search or recipe.search)))
        found = answer_scores(metrics, texts, sources, references_of(rows), recipe, eval or recipe.eval)
    if "total-variation" in metrics:
        found["total-variation"] = total_variation(model, tokenizer, rows, recipe)
    stream = recipe.task == "language-modeling"
    return found | teacher_forced_scores(
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
    """The best output of each source, by `answer_lines`."""
    return (answer[0][0] for answer in answer_lines(model, tokenizer, sources, recipe, search, counts=counts))


def answer_scores(
    metrics: Sequence[str],
    texts: Sequence[str],
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    recipe: Recipe,
    eval: EvalConfig,
) -> dict[str, Score]:
    """The metrics of outputs and labels among the given ones."""
    if recipe.task != "classification":
        return score(metrics, texts, references, eval, sources)
    names = [name for name in metrics if name in LABELS]
    return label_scores(names, texts, [line[0] for line in references], recipe.data.labels)


def references_of(rows: Sequence[Row]) -> list[list[str]]:
    """All references of each row."""
    return [list(row.references or (row.target,)) for row in rows]


class ScoredLines(Protocol):
    """Lines of a test set, and what one system makes of them."""

    system: System
    results: Results
    """Where outputs and scores are stored."""
    weights: str
    """SHA-256 of those of the system."""
    name: str
    """What the scores are of, as `ScoredSplit` writes it."""
    source: list[list[str]]
    """What is decoded, in rows of texts."""
    references: list[list[str]]

    def stored(self, search: SearchConfig) -> tuple[StoredSearch, bool]:
        """How the lines are decoded, as it is stored; and whether that is the way of the run's recipe."""

    def decode(self, search: SearchConfig, tell: Tell) -> tuple[list[str], Decoding]:
        """Outputs of all lines, and how fast they came.

        `tell` is called with how many there are so far.
        """

    def scores(self, names: Sequence[str], saved: SavedScores, eval: EvalConfig) -> dict[str, Score]:
        """Metrics of the saved outputs and of the model."""

    def warnings(self, names: Sequence[str], saved: SavedScores, eval: EvalConfig) -> list[str]:
        """What looks wrong about the lines and the saved outputs."""


def evaluate_lines(
    lines: ScoredLines, eval: EvalConfig, names: Sequence[str], search: SearchConfig, *, force: bool, tell: Tell
) -> ScoreRow:
    """Decode and score lines, or take what is known, and save what was not."""
    main, results, (how, own) = group.is_main_process(), lines.results, lines.stored(search)
    digests = StoredDigests(source=digest(*lines.source), references=digest(*lines.references))
    entry = StoredSplit(split=lines.name, weights=lines.weights, search=how, scoring=scoring_of(eval), digests=digests)
    known = main and reusable_scores(results, entry, eval, force=force, own=own)
    saved: SavedScores = group.broadcast_object(known or None)
    stored = saved.stored
    check_available([name for name in names if name not in saved.scores], eval)
    if not saved.texts and _of_outputs(names):
        saved.texts, stored.decode = lines.decode(search, tell)
    stored.sentences = len(lines.references)
    unknown = () if stored.decode and stored.decode.chosen else CONTEXT
    if missing := [name for name in names if name not in (*saved.scores, *unknown)]:
        saved.scores |= lines.scores(missing, saved, eval)
    stored.warnings = lines.warnings(names, saved, eval)
    if missing and not results.writable:
        stored.warnings.append(NOT_KEPT)
    elif missing and main:
        saved.write(results)
    return saved.row(lines.system).only(names)


def _of_outputs(names: Sequence[str]) -> list[str]:
    """The metrics that read outputs."""
    return [name for name in names if is_text(name) or name in (*LABELS, *CONTEXT)]


class RunLines:
    """Lines of a split, or of its windows of a length, and what a run makes of them."""

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

    def decode(self, search: SearchConfig, tell: Tell) -> tuple[list[str], Decoding]:
        sources = self.source[0]
        model, tokenizer, texts, counts = self.load(), self.tokenizer, list[str](), LineCounts()
        start = time.perf_counter()
        for text in answers(model, tokenizer, sources, self.run.recipe, search, counts):
            texts.append(text)
            tell(len(texts))
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
        """Of what the tokenizer does not know, `saved` is told as well."""
        recipe, length, found = self.run.recipe, self.part.length, dict[str, Score]()
        measured = [name for name in names if name in TEACHER_FORCED]
        if not self.run.left_out:
            source, target = self.tokenizer
            saved.stored.unknown["source"] = unknown_note(source.unknown(self.source[0]))
            if measured and not recipe.data.labels:  # the model reads targets, too
                saved.stored.unknown["target"] = unknown_note(target.unknown([row.target for row in self.rows]))
        if _of_outputs(names):
            main = group.is_main_process()
            made = main and answer_scores(names, saved.texts, self.source[0], self.references, recipe, eval)
            found = group.broadcast_object(made or {})
        if measured and length and recipe.task == "language-modeling":
            encoded = encode_rows(self.rows, self.tokenizer, length, stream=True)
            check_reaches(f"{self.run.path}: {self.part.split}", len(encoded.target.ids), length)
        if measured:
            found |= model_scores(measured, self.load(), self.tokenizer, self.rows, recipe, length=length)
        return found

    def warnings(self, names: Sequence[str], saved: SavedScores, eval: EvalConfig) -> list[str]:
        stored = saved.stored
        out, stored.empty_references = list(filter(None, stored.unknown.values())), 0
        if text := _of_outputs(names):
            stored.empty_references = empty_references(self.references)
            out += warnings(saved.texts, self.references, text, eval)
        decoding = stored.decode if text and stored.decode else Decoding()
        if decoding.truncated:
            cut = f"inputs cut to data.max_length={self.run.recipe.data.max_length} tokens"
            out.append(f"{cut}: {decoding.truncated} of {decoding.lines}")
        if decoding.unfinished > SHARE * decoding.lines:
            out.append(
                f"{decoding.unfinished} of {decoding.lines} outputs did not end within "
                f"search.max_length={stored.search.max_length} tokens"
            )
        return out


def _metrics(eval: EvalConfig, recipe: Recipe) -> tuple[str, ...]:
    """Metrics that the task can have; a language model gets word perplexity beside perplexity."""
    names, task = expand(eval.metrics), recipe.task
    check_known(names, task, metrics_of(task))
    if task not in ("language-modeling", "tagging"):
        return names
    if recipe.corrupts or not recipe.writes:
        return tuple(name for name in names if name != "word-perplexity")
    return (*names, "word-perplexity") if "perplexity" in names else names
