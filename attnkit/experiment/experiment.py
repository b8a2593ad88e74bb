"""The runs of an experiment: created, resumed or skipped, trained, scored and compared.

All ranks take the same steps: rank 0 creates the runs and decides, and all prepare data, train and decode together.
"""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from attnkit.data.preparation import PreparedData, check_rows_fit, check_splits, prepare
from attnkit.device import pick_device
from attnkit.distributed import group
from attnkit.errors import AttnkitError, DivergedError, StoppedError
from attnkit.experiment import cost, initial_weights
from attnkit.experiment.provenance import code_digest, machine
from attnkit.experiment.resumption import (
    Change,
    RunState,
    allowed_changes,
    corpus_digest,
    needs_updates,
    other_device_note,
    recipe_of_run,
    record_changes,
    require_same_corpus,
    require_same_data,
    rescore,
)
from attnkit.experiment.settings import TrainingSettings
from attnkit.memory import keep_freed_memory, settle_memory
from attnkit.nbce.question_sets import evaluate_run
from attnkit.recipe import Recipe, digest
from attnkit.runs import Run, layout
from attnkit.scoring import Comparison, ScoreRow, check_scorable, side_by_side
from attnkit.scoring.comparison import first_baselines
from attnkit.scoring.results import PublishedFigures, published_entry
from attnkit.storage.lock import held
from attnkit.train import events
from attnkit.train.counting import count
from attnkit.train.events import Emit, Event, NoteEvent
from attnkit.train.fit import TrainingJob, fit
from attnkit.train.log_writers import check_installed
from attnkit.train.signals import StopSignals

NOTE_EVERY = 2.0
"""Minimum number of seconds between progress notes while preparing data."""
STOPPED = " while preparing the data; run the same command again"
POLL = 0.2
"""Number of seconds between two checks for signals."""
GRACE = 1.0
"""Number of seconds to clean up the preparation of data after a signal."""
Result = TypeVar("Result")

Key = tuple[str, int]
"""Variant and seed."""


class Experiment:
    """All trainings of one command and their shared data; `checked`: another process has checked the splits."""

    def __init__(self, settings: TrainingSettings, stop: StopSignals, emit: Emit, *, checked: bool = False) -> None:
        self.settings, self.stop, self.file, self.emit = settings, stop, settings.file, emit
        self.checked = checked
        self.device = torch.device(pick_device(settings.device))
        self.data_options: Any = {"data_dir": settings.data_dir, "offline": settings.offline}
        self.precision = settings.precision
        """Precision that `precision: auto` stands for in all runs, trials included; None: not yet chosen."""
        self._prepared: dict[str, PreparedData] = {}

    def keep_memory(self) -> None:
        """Let the allocator keep freed memory, before this process trains on the CPU."""
        if self.device.type == "cpu":
            keep_freed_memory()

    def runs(self) -> list["RunTraining"]:
        """Return the training of each run."""
        return [RunTraining(self, *key) for key in self.settings.runs()]

    def prepared(self, recipe: Recipe, initial: Run | None, emit: Emit) -> PreparedData:
        """Return the data of a training, prepared once for all trainings that share it.

        A training that starts from the weights of a run, `initial`, uses the tokenizer of that run.

        Raises StoppedError if a signal arrives, and errors of `prepare` and `check_splits`.
        """
        tokenizer = initial.tokenizer().in_form(recipe.data.normalize) if initial else None
        parts = [part.model_dump_json() for part in (recipe.data, recipe.tokenizer)]
        parts += [tokenizer.digest] if tokenizer else []
        max_length = str(max(recipe.eval.lengths, default=0))
        key = "\n".join((*parts, recipe.train.objective, max_length, *recipe.eval.splits))
        if key not in self._prepared:
            reported = time.monotonic()

            def progress(stage: str, done: int, total: int | None) -> None:
                nonlocal reported
                self.stop.obey(STOPPED)
                if time.monotonic() - reported > NOTE_EVERY:
                    reported = time.monotonic()
                    emit(NoteEvent(f"preparing {stage}: {done:,}" + (f" of {total:,}" if total else ""), passing=True))

            def work() -> PreparedData:
                if not self.checked:
                    check_splits(recipe, progress=progress, **self.data_options)
                return prepare(recipe, tokenizer=tokenizer, progress=progress, **self.data_options)

            self._prepared[key] = interruptible(work, self.stop)
            emit(events.PreparedEvent(tuple(self._prepared[key].reports)))
        return self._prepared[key]

    def precision_of(self, recipe: Recipe, prepared: PreparedData, run: Path, emit: Emit) -> str:
        """Return the precision of a new run: the recipe's, otherwise that of its other runs, otherwise the faster."""
        if recipe.model.count_based:
            return "fp32"
        if recipe.train.precision != "auto":
            return recipe.train.precision
        self.precision = self.precision or self._precision_of_others(run)
        if self.precision is None:
            self.precision, why = cost.choose_precision(recipe, prepared, str(self.device))
            emit(NoteEvent(f"precision: {self.precision} ({why})"))
        return self.precision

    def _precision_of_others(self, run: Path) -> str | None:
        """Return the precision chosen by other runs or trials of this recipe on the same device, or None."""
        trials, root = self.settings.trials, self.settings.out.joinpath(*self.file.name.split("/"))
        rows = {trials[name].row if name in trials else name: recipe for name, recipe in self.file.variants.items()}
        seeds = "seed-*/manifest.json"
        for path in sorted([*root.glob(f"*/{seeds}"), *root.glob(f"*/{layout.TUNE}/*/{seeds}")]):
            with suppress(AttnkitError):
                manifest = Run.open(path.parent).manifest
                recipe = rows.get((manifest.trial or manifest).variant)
                if recipe is None or recipe.model.count_based or path.parent == run:
                    continue
                if recipe.train.precision == "auto" and manifest.device == str(self.device):
                    return manifest.precision
        return None

    def scores(self, run: Run, recipe: Recipe | None = None) -> list[ScoreRow]:
        """Return the scores of a run on all splits of its recipe, or of `recipe` if given."""

        def progress(stage: str, done: int, total: int) -> None:
            self.stop.obey(" while scoring; run the same command again to score the remaining runs")

        return evaluate_run(run, recipe, device=str(self.device), progress=progress, **self.data_options)

    def compare(self, planned: Sequence[Key], rows: Sequence[ScoreRow]) -> Comparison | None:
        """Compare scored runs; None on other ranks than 0 and for trials, which are not scored."""
        if self.settings.trials or not group.is_main_process():
            return None
        variants = {variant for variant, _ in planned}
        baseline = self.file.baseline if self.file.baseline in variants else None
        eval_config = self.file.variants[planned[0][0]].eval
        figures = PublishedFigures.of_file(self.file)
        result = side_by_side(rows, first_baselines(rows, baseline), eval_config, published=figures)
        self.emit(events.ScoredEvent(result))
        return result


def interruptible(work: Callable[[], Result], stop: StopSignals) -> Result:
    """Run `work` in a thread and return its result, since Python handles no signals while a library computes.

    Raises StoppedError if a signal arrives.
    """
    result = Future[Result]()

    def run() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    worker = threading.Thread(target=run, daemon=True)
    worker.start()
    while worker.is_alive():
        worker.join(POLL)
        if stop.requested and group.is_main_process():
            worker.join(GRACE)
            stop.obey(STOPPED)
    return result.result()


class BegunTraining(NamedTuple):
    """A run and all that its training needs."""

    run: Run
    initial: Run | None = None
    prepared: PreparedData | None = None
    """None if the run needs no updates."""
    changes: Sequence[Change] = ()
    """Changes of its recipe since the run began."""


class RunTraining:
    """Training and evaluation of one variant with one seed."""

    def __init__(self, experiment: Experiment, variant: str, seed: int) -> None:
        self.experiment, self.settings, self.file = experiment, experiment.settings, experiment.file
        self.key = self.variant, self.seed = variant, seed
        self.recipe = recipe_of_run(self.file, variant, seed)
        self.path = self.settings.folder(variant, seed)

    def emit(self, event: Event) -> None:
        """Emit an event with this variant and seed."""
        self.experiment.emit(replace(event, variant=self.variant, seed=self.seed))

    def existing(self) -> Run | None:
        """Return the existing run, or None if there is none or it is to be replaced."""
        return Run.open(self.path) if Run(self.path).exists and not self.settings.fresh else None

    def state(self) -> RunState:
        """Return what training would do with the run, without changing anything."""
        try:
            if (self.path / layout.LOCK).exists():
                with held(self.path / layout.LOCK, str(self.path)):
                    pass
            run = self.existing()
            if run and not needs_updates(run, self.recipe, self._changes(run)):
                require_same_corpus(run, self.recipe, **self.experiment.data_options)
                return RunState("done")
            if not run and not self.settings.fresh:
                Run(self.path).check_free()
            self.initial(run)
            if run:
                return RunState("begun", max(run.checkpoint_steps(), default=None))
            return RunState("new")
        except AttnkitError as error:
            return RunState("refused", error=error)

    def check(self) -> RunState:
        """Check, before any training, that the run can be scored, and started or resumed; return its state.

        Raises:
            UnavailableError: If a package for a metric or for train.log_to is missing.
            MissingInputError: If the run with the initial weights is missing.
            RecipeError, DataError: If the run is damaged, or was trained with another recipe or other data; or if the
                initial weights or rows of `eval.lengths` do not fit.
            OutputPathError: If another process is training the run.
        """
        check_scorable(self.recipe)
        check_installed(self.recipe)
        check_rows_fit(self.recipe)
        state = self.state()
        if state.error:
            raise state.error
        return state

    def initial(self, begun: Run | None) -> Run | None:
        """Return the run with the initial weights, this run itself if it is already trained, or None without any.

        Raises MissingInputError, RecipeError or DataError as `initial_weights.initial_run`, and if the run began from
        other weights.
        """
        init = self.recipe.train.init
        if begun and begun.recipe.train.init == init and begun.trained:
            return begun if init else None
        initial = initial_weights.initial_run(self.file, *self.key, self.settings.out)
        if begun:
            initial_weights.require_same(begun, initial)
        return initial

    def prepared(self, emit: Emit | None = None) -> PreparedData:
        """Return the data of the training."""
        return self.experiment.prepared(self.recipe, self.initial(self.existing()), emit or self.emit)

    def train(self) -> Run:
        """Train the run from the start, resume it or skip it, and return it."""
        main, begun = group.is_main_process(), None
        with Run(self.path).lock() if main else nullcontext() as warning:
            if warning:
                self.emit(NoteEvent(warning))
            try:
                begun = self._begin() if main else None
                if group.broadcast_object(begun and begun.prepared is not None):
                    begun = begun or self._open_begun()
                    self._update(begun)
            except DivergedError as error:
                if self.variant not in self.settings.trials:
                    raise
                # a diverged trial is not an error: it is recorded in its manifest
                if main and begun:
                    begun.run.update(trial={"diverged": str(error)})
                self.emit(events.FailedEvent(str(error), error.code))
        settle_memory()
        group.barrier()
        return begun.run if main and begun else Run.open(self.path)

    def _update(self, begun: BegunTraining) -> None:
        run, recipe, initial = begun.run, self.recipe, begun.initial
        precision: str = recipe.train.precision
        if precision == "auto":
            assert run.manifest.precision is not None
            precision = run.manifest.precision
            self.experiment.precision = self.experiment.precision or precision
        started = False

        def on_event(event: Event) -> None:
            nonlocal started
            if isinstance(event, events.StartedEvent) and group.is_main_process():
                started = True
                record_changes(run, recipe, begun.changes, event.resumed_from, self.emit)
                run.update(
                    parameters=event.parameters,
                    precision=precision,
                    failed=None,
                    files={layout.LOG: None},
                    **self._tuned_entry(),
                )
            self.emit(event)

        assert begun.prepared is not None
        job = TrainingJob(
            recipe,
            begun.prepared,
            run,
            self.seed,
            self.experiment.device,
            precision,
            self.experiment.stop,
            partial(initial_weights.starting_weights, recipe, initial) if initial else None,
            on_event,
        )
        try:
            if not recipe.model.count_based:
                fit(job)
            elif group.is_main_process():
                count(job)
        except StoppedError:
            raise
        except AttnkitError as error:
            if started:
                with suppress(AttnkitError):  # such as a full disk; the original error must be raised
                    run.update(failed=str(error))
            raise

    def _open_begun(self) -> BegunTraining:
        """Open, on other ranks, the run that the main process has begun."""
        run = Run.open(self.path)
        initial = self.initial(run)
        return BegunTraining(run, initial, self.experiment.prepared(self.recipe, initial, self.emit))

    def _begin(self) -> BegunTraining:
        """Create the run, or prepare an existing one to be resumed or skipped.

        An existing run is not changed before the data is available and, with a changed recipe, the checkpoint is known
        to fit it.
        """
        run, changes = self.existing(), list[Change]()
        initial = self.initial(run)

        def prepare() -> PreparedData:
            return self.experiment.prepared(self.recipe, initial, self.emit)

        if run:
            changes = self._changes(run)
            if run.manifest.trial and run.manifest.trial.diverged:
                self.emit(events.SkippedEvent("diverged before"))
                return BegunTraining(run)
            if run.manifest.published != (figures := published_entry(self.file)):
                run.update(published=figures)
            if any(change.of_files for change in changes):
                require_same_data(run, prepare())
            if not needs_updates(run, self.recipe, changes):
                if not any(change.of_weights for change in changes):
                    run.update(**self._tuned_entry())
                rescore(run, self.recipe, changes, self.emit)
                return BegunTraining(run)
        prepared = prepare()
        if not run:
            return BegunTraining(self._create(prepared, initial), initial, prepared)
        require_same_data(run, prepared)
        if run.manifest.files.get(layout.TOKENIZERS[0]) is None:  # was not completely written
            run.write_tokenizer(prepared.tokenizer)
        now = (str(self.experiment.device), torch.get_num_threads(), group.world_size())
        if note := other_device_note(run, now):
            self.emit(NoteEvent(note))
        return BegunTraining(run, initial, prepared, changes)

    def _create(self, prepared: PreparedData, initial: Run | None) -> Run:
        recipe, device = self.recipe, str(self.experiment.device)
        processes = 1 if recipe.model.count_based else group.world_size()
        precision = self.experiment.precision_of(recipe, prepared, self.path, self.emit)
        if self.settings.fresh:
            Run(self.path).clear()
        hashes = {"recipe": digest(recipe), "data": prepared.digest}
        hashes |= {"tokenizer": prepared.tokenizer.digest, "corpus": corpus_digest(prepared.corpus)}
        fields: dict[str, Any] = {
            "hashes": hashes,
            "machine": machine(device),
            "code": code_digest(),
            "device": device,
            "threads": torch.get_num_threads(),
            "precision": precision,
            "parallel": recipe.train.parallel if processes > 1 else "none",
            "world_size": processes,
            "baseline": self.file.baseline,
            "variants": list(self.file.variants),
            "published": published_entry(self.file),
        }
        if initial is not None:
            fields["init"] = initial_weights.manifest_entry(initial)
        if trial := self.settings.trials.get(self.variant):
            fields["trial"] = {"variant": trial.row, "key": trial.key, "value": trial.value}
        fields |= self._tuned_entry() | prepared.corpus.recorded
        run = Run.create(self.path, recipe, name=self.file.name, variant=self.variant, seed=self.seed, **fields)
        run.write_tokenizer(prepared.tokenizer)
        return run

    def _tuned_entry(self) -> dict[str, Any]:
        """Return the manifest entry about the trials by which a value was chosen, if there were any."""
        entry = self.settings.tuned.get(self.variant)
        return {} if entry is None else {"tuned": entry.model_dump()}

    def _changes(self, run: Run) -> list[Change]:
        """Return how the recipe differs from the run's.  Raises RecipeError if a change is not allowed."""
        return allowed_changes(run, self.recipe, allow=self.settings.allow_change)

    def evaluate(self, run: Run) -> list[ScoreRow]:
        """Decode and score the splits that are not yet scored; trials are not scored."""
        if self.variant in self.settings.trials:
            return []
        splits = tuple(run.recipe.eval.splits)
        self.emit(NoteEvent(f"scoring {', '.join(splits)}", passing=True))
        rows = self.experiment.scores(run)
        self.emit(events.EvaluatedEvent(splits))
        return rows
