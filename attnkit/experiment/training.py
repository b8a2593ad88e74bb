"""All variants and seeds of a recipe: trained and scored in turn, or skipped, then compared."""

import queue
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from attnkit.data.preparation import PreparedData, check_splits, prepare
from attnkit.data.tokenizer import Tokenizer
from attnkit.device import pick_device
from attnkit.distributed import group
from attnkit.errors import AttnkitError, DivergedError, StoppedError
from attnkit.experiment import initial_weights
from attnkit.experiment.precision import PrecisionChoice
from attnkit.experiment.provenance import code_digest, machine
from attnkit.experiment.resumption import (
    Change,
    accept,
    allowed_changes,
    corpus_digest,
    needs_updates,
    other_device_note,
    recipe_of_run,
    require_same_corpus,
    require_same_data,
    rescore,
)
from attnkit.experiment.settings import TrainingSettings
from attnkit.memory import keep_freed_memory, settle_memory
from attnkit.nbce import question_sets
from attnkit.recipe import Recipe, digest
from attnkit.runs import Run, layout
from attnkit.scoring import ScoreRow, check_scorable, side_by_side
from attnkit.scoring.comparison import first_baselines
from attnkit.scoring.evaluation import evaluate
from attnkit.scoring.results import PUBLISHED, PublishedFigures, published_entry
from attnkit.scoring.saved_scores import comparison, stored_splits
from attnkit.scoring.significance import Margins
from attnkit.train import events
from attnkit.train.counting import count
from attnkit.train.events import Event, NoteEvent
from attnkit.train.fit import TrainingJob, fit
from attnkit.train.log_writers import check_installed
from attnkit.train.signals import StopSignals

NOTE_EVERY = 2.0
"""Seconds between notes on a long preparation."""
PATIENCE = 0.2
"""Seconds between two looks at the signals, while something else computes."""
GRACE = 1.0
"""Seconds that a preparation has to tidy up after a signal."""
FIRST_LOOK = 2
"""Runs that are compared while the others are trained, so that there is soon something to see."""
STOPPED_EARLY = "while preparing the data; run the same command again"


def train(
    settings: TrainingSettings, *, notice: Callable[[str], object] | None = None
) -> Generator[Event, None, None]:
    """Train unfinished runs, skip finished ones, score each; yields what happens.

    `notice` is called with the name of the first signal when it comes; see `StopSignals`.

    Raises:
        RecipeError: a run was trained by another recipe.
        StoppedError: a signal came; the state is saved.
        UnavailableError: the device, or what a metric needs, is not there.
        AttnkitError: whatever the data, the run directory or the training raise.
    """
    with StopSignals(notice) as stop:
        experiment = Experiment(settings, stop)
        experiment.keep_memory()
        planned = settings.runs()
        for variant, seed in planned if group.is_main_process() else ():
            experiment.check(variant, seed)
        for number, (variant, seed) in enumerate(planned, 1):
            yield from experiment.train(variant, seed)
            yield from experiment.evaluate(variant, seed)
            if number == FIRST_LOOK < len(planned):
                yield from experiment.compare(planned[:number], len(planned) - number)
        yield from experiment.compare(planned)


class Experiment:
    """All trainings of one command, and the steps that each of them takes."""

    def __init__(self, settings: TrainingSettings, stop: StopSignals) -> None:
        self.settings, self.stop, self.file = settings, stop, settings.file
        self.device = torch.device(pick_device(settings.device))
        self.data_from: Any = {"data_dir": settings.data_dir, "offline": settings.offline}
        self.data: dict[str, PreparedData] = {}
        self.precision = PrecisionChoice(settings, str(self.device))
        self.entries: dict[tuple[str, int], list[ScoreRow]] = {}
        """Scores of the runs that this process has evaluated."""

    def keep_memory(self) -> None:
        """Before this process trains."""
        if self.device.type == "cpu":
            keep_freed_memory()

    def run(self, variant: str, seed: int) -> Run:
        """Where the run is, or will be."""
        return Run(self.settings.folder(variant, seed))

    def recipe(self, variant: str, seed: int) -> Recipe:
        """The recipe of one run."""
        return recipe_of_run(self.file, variant, seed)

    def check(self, variant: str, seed: int) -> None:
        """Before anything is trained: whether it can be scored, and started or continued.

        Raises:
            UnavailableError: what a metric or train.log_to needs is not there.
            MissingInputError: the run that it starts from is not there.
            RecipeError, DataError: the run is damaged, or was trained by another recipe or on
                other data; or the weights that it starts from do not fit.
        """
        run, recipe = self.run(variant, seed), self.recipe(variant, seed)
        check_scorable(recipe)
        check_installed(recipe)
        if run.exists and not self.settings.fresh:
            run = Run.open(run.path)
            if not self._needs_updates(run, recipe):
                require_same_corpus(run, recipe, **self.data_from)
        self.initial(variant, seed)

    def initial(self, variant: str, seed: int) -> Run | None:
        """The run whose weights start this one, or this one itself where it has begun; else None.

        Raises:
            MissingInputError, RecipeError, DataError: as `initial_weights.initial_run`; also where
                the run began from other weights.
        """
        run, recipe = self.run(variant, seed), self.recipe(variant, seed)
        begun = Run.open(run.path) if run.exists and not self.settings.fresh else None
        if begun and begun.recipe.train.init == recipe.train.init and begun.trained:
            return begun if recipe.train.init else None
        found = initial_weights.initial_run(self.file, variant, seed, self.settings.out)
        if begun:
            initial_weights.require_same(begun, found)
        return found

    def prepare(
        self, planned: Sequence[tuple[str, int]]
    ) -> Generator[Event, None, dict[tuple[str, int], PreparedData]]:
        """The data of all trainings that are not finished, so that no worker need prepare it."""
        unfinished = {}
        for variant, seed in planned:
            run, recipe = self.run(variant, seed), self.recipe(variant, seed)
            if self.settings.fresh or not run.finished or self._needs_updates(run, recipe):
                initial = self.initial(variant, seed)
                unfinished[variant, seed] = yield from self.prepared(recipe, initial)
        return unfinished

    def choose_precision(
        self, unfinished: Mapping[tuple[str, int], PreparedData]
    ) -> Generator[Event, None, None]:
        """What `precision: auto` means for all new runs, measured at most once."""
        for (variant, seed), prepared in unfinished.items():
            run = self.run(variant, seed)
            if self.settings.fresh or not run.exists:
                yield from self.precision.of(self.recipe(variant, seed), prepared, run)

    def train(self, variant: str, seed: int) -> Iterator[Event]:
        """One variant with one seed: skipped, resumed or trained from the start."""
        run = self.run(variant, seed)
        with run.lock() if group.is_main_process() else nullcontext() as warning:
            if warning:
                yield NoteEvent(warning, variant=variant, seed=seed)
            how = self._try if variant in self.settings.trials else self._train
            for event in how(run, self.recipe(variant, seed), variant, seed):
                yield replace(event, variant=variant, seed=seed)
        settle_memory()

    def _try(self, run: Run, recipe: Recipe, variant: str, seed: int) -> Iterator[Event]:
        """A trial: one that diverges has lost, which is told once and kept."""
        try:
            yield from self._train(run, recipe, variant, seed)
        except DivergedError as error:
            if group.is_main_process():
                Run.open(run.path).update(**{layout.TRIAL: {"diverged": str(error)}})
            yield events.FailedEvent(str(error), error.code)

    def _train(self, run: Run, recipe: Recipe, variant: str, seed: int) -> Iterator[Event]:
        """The same with the run locked; its events do not say whose they are."""
        changes: list[Change] | None = None
        if group.is_main_process():
            changes = yield from self._begin(run, recipe, variant, seed)
        begun = group.broadcast_object(lambda: changes is not None)
        if not begun:
            return
        run, initial = Run.open(run.path), self.initial(variant, seed)
        prepared = yield from self.prepared(recipe, initial)
        precision: str = recipe.train.precision
        if precision == "auto":
            precision = str(run.manifest["precision"])
            self.precision.chosen = self.precision.chosen or precision
        job = self._job(run, recipe, seed, prepared, precision, initial)
        if not recipe.model.counted:
            happening = fit(job)
        elif group.is_main_process():
            happening = count(job)
        else:
            return
        started = False
        try:
            for event in happening:
                if isinstance(event, events.StartedEvent) and changes is not None:
                    started = True
                    yield from accept(run, recipe, changes, event.resumed_from)
                    run.update(
                        parameters=event.parameters, precision=precision, failed=None,
                        files={layout.LOG: None}, **self._tuned(variant),
                    )  # fmt: skip
                yield event
        except StoppedError:
            raise
        except AttnkitError as error:
            if started:
                with suppress(AttnkitError):  # such as a full disk; the cause is what must be told
                    run.update(failed=str(error))
            raise

    def _begin(
        self, run: Run, recipe: Recipe, variant: str, seed: int
    ) -> Generator[Event, None, list[Change] | None]:
        """Make the run, or see to one that is there: how its recipe changed; None if it is done.

        An existing run stays as it is until the data is at hand and, with a changed recipe, until
        the checkpoint has turned out to fit it.
        """
        resumes, initial = run.exists and not self.settings.fresh, self.initial(variant, seed)
        changes: list[Change] = []
        if resumes:
            run = Run.open(run.path)
            if run.manifest.get(layout.TRIAL, {}).get("diverged"):
                allowed_changes(run, recipe, allow=self.settings.allow_change)
                yield events.SkippedEvent("diverged before")
                return None
            changes = allowed_changes(run, recipe, allow=self.settings.allow_change)
            if run.manifest.get(PUBLISHED) != (figures := published_entry(self.file)):
                run.update(**{PUBLISHED: figures})
            if any(change.of_files for change in changes):
                require_same_data(run, (yield from self.prepared(recipe, initial)))
            if not needs_updates(run, recipe, changes):
                if not any(change.of_weights for change in changes):
                    run.update(**self._tuned(variant))
                yield from rescore(run, recipe, changes)
                return None
        prepared = yield from self.prepared(recipe, initial)
        if resumes:
            yield from self._check_resumption(run, prepared)
        else:
            yield from self._create(run, recipe, prepared, variant, seed, initial)
        return changes

    def _job(
        self, run: Run, recipe: Recipe, seed: int, prepared: PreparedData, precision: str,
        initial: Run | None,
    ) -> TrainingJob:  # fmt: skip
        start = partial(initial_weights.starting_weights, recipe, initial) if initial else None
        place = (self.device, precision, self.stop)
        return TrainingJob(recipe, prepared, run, seed, *place, start, self.settings.allow_damaged)

    def _create(
        self,
        run: Run,
        recipe: Recipe,
        prepared: PreparedData,
        variant: str,
        seed: int,
        initial: Run | None,
    ) -> Iterator[Event]:
        """A new run; with --fresh it replaces an existing one."""
        processes = 1 if recipe.model.counted else group.world_size()
        precision = yield from self.precision.of(recipe, prepared, run)
        if self.settings.fresh:
            run.clear()
        hashes = {"recipe": digest(recipe), "data": prepared.digest}
        hashes |= {"tokenizer": prepared.tokenizer.digest, "corpus": corpus_digest(prepared.corpus)}
        fields: dict[str, Any] = {
            "hashes": hashes,
            "machine": machine(),
            "code": code_digest(),
            "device": str(self.device),
            "threads": torch.get_num_threads(),
            "precision": precision,
            "parallel": recipe.train.parallel if processes > 1 else "none",
            "world_size": processes,
            "baseline": self.file.baseline,
            "variants": list(self.file.variants),
            PUBLISHED: published_entry(self.file),
        }
        if initial is not None:
            fields[initial_weights.ENTRY] = initial_weights.manifest_entry(initial)
        if trial := self.settings.trials.get(variant):
            of = {"variant": trial.row, "key": trial.key, "value": trial.value}
            fields[layout.TRIAL] = of
        fields |= self._tuned(variant)
        name = self.file.name
        run = Run.create(run.path, recipe, name=name, variant=variant, seed=seed, **fields)
        run.write_tokenizer(prepared.tokenizer)

    def _tuned(self, variant: str) -> dict[str, Any]:
        """The entry of the manifest that says by which trials a value was chosen."""
        entry = self.settings.tuned.get(variant)
        return {} if entry is None else {layout.TUNED: entry.model_dump()}

    def _needs_updates(self, run: Run, recipe: Recipe) -> bool:
        """Whether a run that is there is trained further."""
        return needs_updates(
            run, recipe, allowed_changes(run, recipe, allow=self.settings.allow_change)
        )

    def _check_resumption(self, run: Run, prepared: PreparedData) -> Iterator[Event]:
        """Refuse other data; a note where the result cannot be bit-identical."""
        require_same_data(run, prepared)
        if run.manifest["files"].get(layout.TOKENIZERS[0]) is None:  # was not written whole
            run.write_tokenizer(prepared.tokenizer)
        now = (str(self.device), torch.get_num_threads(), group.world_size())
        if note := other_device_note(run, now):
            yield NoteEvent(note)

    def prepared(self, recipe: Recipe, initial: Run | None) -> Generator[Event, None, PreparedData]:
        """The data, prepared once for all variants that share it, with notes on the progress."""
        tokenizer = initial.tokenizer().in_form(recipe.data.normalize) if initial else None
        parts = [part.model_dump_json() for part in (recipe.data, recipe.tokenizer)]
        parts += [tokenizer.digest] if tokenizer else []
        longest = str(max(recipe.eval.lengths, default=0))
        key = "\n".join((*parts, recipe.train.objective, longest, *recipe.eval.splits))
        if key not in self.data:
            self.data[key] = yield from self._prepare(recipe, tokenizer)
            yield events.PreparedEvent(tuple(self.data[key].reports))
        return self.data[key]

    def _prepare(
        self, recipe: Recipe, tokenizer: Tokenizer | None
    ) -> Generator[Event, None, PreparedData]:
        """Run `prepare` in a thread, so that progress is reported and a signal obeyed meanwhile."""
        messages: queue.Queue[Any] = queue.Queue()

        def progress(stage: str, done: int, total: int | None) -> None:
            self._obey(STOPPED_EARLY)
            messages.put(f"{stage}: {done:,}" + (f" of {total:,}" if total else ""))

        def work() -> None:
            try:
                check_splits(recipe, **self.data_from, progress=progress)
                how: Any = {**self.data_from, "progress": progress, "tokenizer": tokenizer}
                messages.put(prepare(recipe, **how))
            except BaseException as error:  # handed to the caller's thread, which raises it
                messages.put(error)

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        reported = time.monotonic()
        while True:
            try:
                message = messages.get(timeout=PATIENCE)
            except queue.Empty:
                if self.stop.requested and group.is_main_process():
                    worker.join(GRACE)  # unless a library keeps it busy
                    self._obey(STOPPED_EARLY)
                continue
            if isinstance(message, PreparedData):
                return message
            if isinstance(message, BaseException):
                raise message
            if time.monotonic() - reported > NOTE_EVERY:
                reported = time.monotonic()
                yield NoteEvent(f"preparing {message}", passing=True)

    def _obey(self, when: str) -> None:
        """Raise StoppedError where a signal has come."""
        if self.stop.requested and group.is_main_process():
            raise StoppedError(f"stopped by {self.stop.requested} {when}")

    def evaluate(self, variant: str, seed: int) -> Iterator[Event]:
        """Decode and score one run, as far as that is not done; a trial has its validations."""
        if variant in self.settings.trials:
            return
        run = Run.open(self.run(variant, seed).path)
        splits = tuple(run.recipe.eval.splits)
        yield NoteEvent(f"scoring {', '.join(splits)}", passing=True, variant=variant, seed=seed)
        self.entries[variant, seed] = self._entries(run)
        yield events.EvaluatedEvent(splits, variant=variant, seed=seed)

    def _entries(self, run: Run) -> list[ScoreRow]:
        """The scores of one run on all splits of its recipe."""

        def progress(what: str, done: int, total: int) -> None:
            self._obey("while scoring; run the same command again to score the rest")

        recipe = run.recipe
        score = question_sets.evaluate if recipe.task == "question-answering" else evaluate
        return score(
            run,
            recipe.eval.splits,
            recipe.eval,
            device=str(self.device),
            **self.data_from,
            progress=progress,
        )

    def compare(
        self, planned: Sequence[tuple[str, int]], unfinished: int = 0
    ) -> Iterator[events.ScoredEvent]:
        """Scored runs side by side, while others are `unfinished`; trials are not scored."""
        if self.settings.trials or not group.is_main_process():
            return
        runs = [Run.open(self.run(variant, seed).path) for variant, seed in planned]
        trained = {run.variant for run in runs}
        baseline = self.file.baseline if self.file.baseline in trained else None
        recipe = runs[0].recipe
        splits, metrics = stored_splits(recipe.eval), recipe.eval.metrics
        how: Any = {"resamples": recipe.eval.bootstrap, "margins": Margins.of(recipe.eval)}
        if recipe.task == "question-answering":
            entries = list[ScoreRow]()
            for key, run in zip(planned, runs, strict=True):
                entries += self.entries.get(key) or self._entries(run)
            figures = PublishedFigures.of_runs(runs)
            first = first_baselines(entries, baseline)
            result = side_by_side(entries, first, published=figures, **how)
        else:
            result = comparison(runs, splits, metrics=metrics, baseline=baseline, **how)
        yield events.ScoredEvent(result, unfinished)
