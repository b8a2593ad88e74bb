"""All variants and seeds of a recipe: trained in turn, resumed or skipped, then scored together."""

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from attnkit import models
from attnkit.data.batch import collate
from attnkit.data.preparation import PreparedData, check_splits, prepare
from attnkit.device import pick_device
from attnkit.errors import AttnkitError, DataError, RecipeError, StoppedError
from attnkit.nbce import question_sets
from attnkit.recipe import Recipe, RecipeFile, difference, digest
from attnkit.runs import Run, plugins
from attnkit.scoring import Entry, side_by_side
from attnkit.scoring.evaluation import baselines, comparison, evaluate
from attnkit.train import events
from attnkit.train.batch_stream import BatchStream
from attnkit.train.events import Event, NoteEvent, SkippedEvent
from attnkit.train.fit import TrainingJob, fit
from attnkit.train.memory import give_back_freed_memory, keep_freed_memory
from attnkit.train.precision import choose
from attnkit.train.signals import Stop

AFTERWARDS = ("eval.", "search.", "contexts.")
"""Keys of a recipe that may change after training: scores are made anew, weights are not."""
NOTE_EVERY = 2.0
"""Seconds between notes on a long preparation."""


@dataclass
class Session:
    """What all trainings of one command share."""

    file: RecipeFile
    out: Path
    device: torch.device
    data_dir: Path | None
    offline: bool
    fresh: bool
    allow_change: bool
    stop: Stop
    data: dict[str, PreparedData] = field(default_factory=dict)
    precision: str | None = None


def train(
    file: RecipeFile,
    *,
    variants: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    out: Path,
    fresh: bool = False,
    allow_change: bool = False,
    device: str = "auto",
    data_dir: Path | None = None,
    offline: bool = False,
    notice: Callable[[str], object] | None = None,
) -> Iterator[Event]:
    """Train what is unfinished, skip what is done, score everything, and yield what happens.

    Args:
        file: a loaded recipe.
        variants: some of its variants; all when None.
        seeds: instead of the recipe's seeds.
        out: root of the run directories.
        fresh: start over where there is a run.
        allow_change: go on with a run whose recipe has changed.
        device: auto, cpu, cuda, cuda:1, ...
        data_dir: where corpora are; $ATTNKIT_DATA when None.
        offline: never download.
        notice: told the name of the first signal when it comes; see `Stop`.

    Raises:
        RecipeError: a run was trained by another recipe.
        StoppedError: a signal came; what was reached is saved.
        AttnkitError: whatever the data, the run directory or the training raise.
    """
    with Stop(notice) as stop:
        place = torch.device(pick_device(device))
        if place.type == "cpu":
            keep_freed_memory()
        session = Session(file, out, place, data_dir, offline, fresh, allow_change, stop)
        runs = []
        for name, recipe in file.variants.items():
            if variants is not None and name not in variants:
                continue
            for seed in dict.fromkeys(seeds or recipe.train.seeds):
                one = recipe.model_copy(
                    update={"train": recipe.train.model_copy(update={"seeds": (seed,)})}
                )
                run = Run(Run.find(out, file.name, name, seed))
                with run.lock() as warning:
                    if warning:
                        yield NoteEvent(warning, variant=name, seed=seed)
                    for event in _one(session, run, one, name, seed):
                        yield replace(event, variant=name, seed=seed)
                runs.append(run)
                give_back_freed_memory()
        yield from _score(session, runs)


def _one(session: Session, run: Run, recipe: Recipe, name: str, seed: int) -> Iterator[Event]:
    """One variant with one seed: skipped, resumed or trained from the start.

    What is there stays as it is until the data is at hand and, with a changed recipe, until the
    checkpoint has turned out to fit it.
    """
    known = run.exists and not session.fresh
    changes: list[str] = []
    if known:
        run = Run.open(run.path)
        changes = _changes(session, run, recipe)
        if run.finished and not _of_training(changes):
            yield from _accept(run, recipe, changes)
            yield SkippedEvent("already trained")
            return
    prepared = yield from _data(session, recipe)
    if known:
        _same_data(run, prepared)
        yield from _same_machine(session, run)
    else:
        yield from _begin(session, run, recipe, prepared, name, seed)
        run = Run.open(run.path)
    precision = _arithmetic(run, recipe)
    if recipe.train.precision == "auto":
        session.precision = session.precision or precision
    job = TrainingJob(recipe, prepared, run, seed, session.device, precision, session.stop)
    for event in fit(job):
        if isinstance(event, events.StartedEvent):
            yield from _accept(run, recipe, changes)
            run.update(parameters=event.parameters, precision=precision)
        yield event


def _begin(
    session: Session, run: Run, recipe: Recipe, prepared: PreparedData, name: str, seed: int
) -> Iterator[Event]:
    """Make a new run, in place of any that is there where that was asked for."""
    precision = yield from _precision(session, prepared, recipe, run)
    if session.fresh:
        run.clear()
    Run.create(
        run.path,
        recipe,
        name=session.file.name,
        variant=name,
        seed=seed,
        hashes={
            "recipe": digest(recipe),
            "data": prepared.digest,
            "tokenizer": prepared.tokenizer.digest,
        },
        device=str(session.device),
        threads=torch.get_num_threads(),
        precision=precision,
        baseline=session.file.baseline,
    )
    Run.open(run.path).write_tokenizer(prepared.tokenizer)


def _changes(session: Session, run: Run, recipe: Recipe) -> list[str]:
    """How the recipe differs from that of an existing run.

    Raises:
        RecipeError: so that it would train another model, and that was not allowed.
    """
    changes = difference(run.recipe, recipe) + plugins.changed(run.manifest)
    training = _of_training(changes)
    if training and not session.allow_change:
        raise RecipeError(
            f"{run.path}: was trained by another recipe ({'; '.join(training)}); use --fresh to"
            " start over, --allow-change to go on with it, or another --out"
        )
    return changes


def _of_training(changes: Sequence[str]) -> list[str]:
    """The changes that concern weights, not scores alone."""
    return [line for line in changes if not line.startswith(AFTERWARDS)]


def _accept(run: Run, recipe: Recipe, changes: Sequence[str]) -> Iterator[Event]:
    """Store a changed recipe in its run."""
    if not changes:
        return
    run.replace_recipe(recipe)
    run.update(hashes={"recipe": digest(recipe)})
    if now := plugins.update(run.manifest, recipe):
        run.update(plugins=now)
    if _of_training(changes):
        run.update(finished=None)
    yield NoteEvent(f"{run.path}: recipe changed: {'; '.join(changes)}")


def _arithmetic(run: Run, recipe: Recipe) -> str:
    """What a run computes in: what its recipe says, else what was chosen when it began."""
    said = recipe.train.precision
    return str(run.manifest["precision"]) if said == "auto" else said


def _same_data(run: Run, prepared: PreparedData) -> None:
    known = run.manifest.get("hashes", {}).get("data")
    if known != prepared.digest:
        raise DataError(
            f"{run.path}: the data or the tokenizer is not what this run began with; restore it,"
            " or start over with --fresh"
        )


def _same_machine(session: Session, run: Run) -> Iterator[Event]:
    """A note where a resumed training cannot be bit-identical."""
    threads = torch.get_num_threads()
    before = (run.manifest.get("device"), run.manifest.get("threads"))
    if before != (str(session.device), threads):
        yield NoteEvent(
            f"began on {before[0]} with {before[1]} threads, goes on on {session.device} with"
            f" {threads}: the result will not be bit-identical to an uninterrupted training"
        )


def _precision(
    session: Session, prepared: PreparedData, recipe: Recipe, run: Run
) -> Generator[Event, None, str]:
    """The arithmetic of a new run: what the recipe says, other runs of it use, or is faster."""
    if recipe.train.precision != "auto":
        return recipe.train.precision
    if session.precision is None:
        session.precision = _settled(session, run)
    if session.precision is None:
        sizes = (len(prepared.tokenizer.source), len(prepared.tokenizer.target))
        model = models.build(recipe.model, sizes, recipe.data.max_length).to(session.device)
        stream = BatchStream(lambda _: prepared.train, recipe.train.batch_tokens, seed=0)
        moved = []
        for rows in stream.batches[:2]:
            batch = collate(prepared.train, rows)
            source = None if batch.source is None else batch.source.to(session.device)
            moved.append((source, batch.input.to(session.device), batch.output.to(session.device)))
        session.precision, why = choose(model, moved)
        yield NoteEvent(f"precision: {session.precision} ({why})")
    return session.precision


def _settled(session: Session, new: Run) -> str | None:
    """The precision that other, earlier runs of this recipe chose on such a device."""
    root = session.out.joinpath(*session.file.name.split("/"))
    for path in sorted(root.glob("*/seed-*/manifest.json")):
        if path.parent == new.path:
            continue
        with suppress(AttnkitError):
            manifest = Run.open(path.parent).manifest
            same = manifest.get("device") == str(session.device)
            recipe = session.file.variants.get(str(manifest.get("variant")))
            if same and recipe is not None and recipe.train.precision == "auto":
                return str(manifest["precision"])
    return None


def _data(session: Session, recipe: Recipe) -> Generator[Event, None, PreparedData]:
    """Prepare the data once for all variants that share it, reporting while it goes on."""
    parts = [part.model_dump_json() for part in (recipe.data, recipe.tokenizer)]
    key = "\n".join((*parts, *recipe.eval.splits))
    if key not in session.data:
        session.data[key] = yield from _preparation(session, recipe)
        yield events.PreparedEvent(tuple(session.data[key].reports))
    return session.data[key]


def _preparation(session: Session, recipe: Recipe) -> Generator[Event, None, PreparedData]:
    """Run `prepare` in a thread, so that progress can be told and a signal obeyed meanwhile."""
    news: queue.Queue[Any] = queue.Queue()

    def tell(stage: str, done: int, total: int | None) -> None:
        if session.stop.requested:
            raise StoppedError(
                f"stopped by {session.stop.requested} while preparing the data; run the same"
                " command again"
            )
        news.put(f"{stage}: {done:,}" + (f" of {total:,}" if total else ""))

    def work() -> None:
        try:
            where: Any = {"data_dir": session.data_dir, "offline": session.offline}
            check_splits(recipe, **where, progress=tell)
            news.put(prepare(recipe, **where, progress=tell))
        except BaseException as error:  # handed to the caller's thread, which raises it
            news.put(error)

    threading.Thread(target=work, daemon=True).start()
    told = time.monotonic()
    while True:
        item = news.get()
        if isinstance(item, PreparedData):
            return item
        if isinstance(item, BaseException):
            raise item
        if time.monotonic() - told > NOTE_EVERY:
            told = time.monotonic()
            yield NoteEvent(f"preparing {item}", passing=True)


def _score(session: Session, runs: Sequence[Run]) -> Iterator[Event]:
    """Decode and score every run, and put them side by side."""

    def tell(what: str, done: int, total: int) -> None:
        if session.stop.requested:
            raise StoppedError(
                f"stopped by {session.stop.requested} while scoring; the trainings are done; run"
                " the same command again to score"
            )

    runs, entries = [Run.open(run.path) for run in runs], list[Entry]()
    for run in runs:
        recipe = run.recipe
        text = f"scoring {', '.join(recipe.eval.splits)}"
        yield NoteEvent(text, passing=True, variant=run.variant, seed=run.seed)
        score = question_sets.evaluate if recipe.task == "question-answering" else evaluate
        entries += score(
            run,
            recipe.eval.splits,
            recipe.eval,
            device=str(session.device),
            data_dir=session.data_dir,
            offline=session.offline,
            progress=tell,
        )
    trained = {run.variant for run in runs}
    baseline = session.file.baseline if session.file.baseline in trained else None
    settings = runs[0].recipe.eval
    if runs[0].recipe.task == "question-answering":
        told = side_by_side(entries, baselines(entries, baseline), resamples=settings.bootstrap)
        yield events.ScoredEvent(**told)
        return
    found = comparison(
        runs,
        settings.splits,
        metrics=settings.metrics,
        baseline=baseline,
        resamples=settings.bootstrap,
    )
    yield events.ScoredEvent(**found)
