"""Resumption of existing runs, which are refused, skipped, resumed or scored again."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from attnkit.data.corpus import Corpus
from attnkit.data.preparation import PreparedData
from attnkit.errors import AttnkitError, DataError, OutputPathError, RecipeError
from attnkit.recipe import Recipe, RecipeFile, digest
from attnkit.recipe.dumping import changed_keys
from attnkit.recipe.settings import AFTER_TRAINING
from attnkit.runs import Run, plugins
from attnkit.storage.files import sha256_json
from attnkit.train import events
from attnkit.train.checkpoint import record_change
from attnkit.train.events import Emit, NoteEvent

FILES = ("data.train", "data.valid", "data.test", "tokenizer.model", "train.init")
"""Keys of files that may have moved, if their contents are the same."""
FILE = "file "
"""Prefix of `Change.key` for the file of a mechanism, before its path."""
READ = ("train", "valid")
"""Splits that a training reads."""


class Change(NamedTuple):
    """A changed key of a run's recipe, or a changed file of a mechanism."""

    key: str
    old: str
    new: str

    @property
    def text(self) -> str:
        """Description of the change, without the hashes of a file."""
        if self.key.startswith(FILE):
            return f"{self.key.removeprefix(FILE)} has changed"
        return f"{self.key}: {self.old} -> {self.new}"

    @property
    def of_weights(self) -> bool:
        """Whether the change affects the weights, not only the scores."""
        return not (self.of_files or self.key == "train.log_to" or self.key.startswith(AFTER_TRAINING))

    @property
    def of_files(self) -> bool:
        """Whether the key is a path that may have moved."""
        return self.key in FILES


class RunState(NamedTuple):
    """What training would do with a run."""

    state: str
    """new, begun, done or refused."""
    step: int | None = None
    """Step from which a begun run resumes."""
    error: AttnkitError | None = None

    @property
    def text(self) -> str:
        """Short description of the state."""
        if self.state == "begun":
            return f"resumes at {self.step or 0:,}"
        if self.state == "done":
            return "skipped: done"
        if self.state != "refused":
            return self.state
        reasons = {RecipeError: "recipe changed", OutputPathError: "in use", DataError: "damaged"}
        reason = reasons.get(type(self.error), "see below") if self.error else ""
        return f"refused: {'train.init' if 'train.init: ' in str(self.error) else reason}"


def recipe_of_run(file: RecipeFile, variant: str, seed: int) -> Recipe:
    """Return the recipe of one training: that of the variant with a single seed."""
    recipe = file.variants[variant]
    return recipe.model_copy(update={"train": recipe.train.model_copy(update={"seeds": (seed,)})})


def describe(changes: Sequence[Change]) -> str:
    return "; ".join(change.text for change in changes)


def allowed_changes(run: Run, recipe: Recipe, *, allow: bool) -> list[Change]:
    """Return how a recipe differs from that of an existing run.

    Raises RecipeError if a change would affect the weights and `allow` is false.
    """
    changes = [Change(*change) for change in changed_keys(run.recipe, recipe)]
    changes += [Change(FILE + path, *hashes) for path, *hashes in plugins.changes(run.manifest.plugins)]
    refused = [change for change in changes if change.of_weights]
    if refused and not allow:
        effect = "resume it" if needs_updates(run, recipe, changes) else "keep it as it is"
        raise RecipeError(
            f"{run.path}: was trained with another recipe ({describe(refused)}); use --fresh to"
            f" start over, --allow-change to {effect}, or another --out"
        )
    return changes


def needs_updates(run: Run, recipe: Recipe, changes: Sequence[Change]) -> bool:
    """Return whether a run needs updates: it is not finished, or its changed recipe trains longer."""
    if not run.finished:
        return True
    outcome, patience = run.outcome, recipe.train.patience
    longer = recipe.train.steps > outcome.last
    if outcome.reason == "patience":
        longer = longer and (patience == 0 or patience > run.recipe.train.patience)
    return longer and any(change.of_weights for change in changes)


def with_new_scoring(run: Run, recipe: Recipe) -> Recipe:
    """Return the run's recipe with the search, scoring, log writers and file paths of `recipe`."""
    sections: dict[str, Any] = {"search": recipe.search, "eval": recipe.eval, "contexts": recipe.contexts}
    for key in (*FILES, "train.log_to"):
        section, name = key.split(".")
        config = sections.get(section, getattr(run.recipe, section))
        value = getattr(getattr(recipe, section), name)
        sections[section] = config.model_copy(update={name: value})
    return run.recipe.model_copy(update=sections)


def require_same_data(run: Run, prepared: PreparedData) -> None:
    """Raise DataError if the data or the tokenizer differs from that of the run."""
    if run.manifest.hashes.get("data") != prepared.digest:
        raise DataError(
            f"{run.path}: the data or the tokenizer has changed since this run started; restore"
            " it, or start over with --fresh"
        )


def require_same_corpus(run: Run, recipe: Recipe, **options: Any) -> None:
    """Raise DataError if the corpus differs from that of a finished run; a missing corpus is no error.

    `options` are `data_dir` and `offline` of `Corpus.open`.
    """
    recorded = current = run.manifest.hashes.get("corpus")
    with suppress(AttnkitError):
        corpus = Corpus.open(recipe.data, recipe.task, **options)
        if recorded and all(map(corpus.available, READ)):
            current = corpus_digest(corpus)
    if current != recorded:
        raise DataError(
            f"{run.path}: the training data has changed since this run was trained; restore it, start"
            " over with --fresh, or use another --out"
        )


def corpus_digest(corpus: Corpus) -> str:
    """Return the SHA-256 of the rows that a training reads, independent of its tokenizer."""
    return sha256_json([corpus.fingerprint(split) for split in READ])


def rescore(run: Run, recipe: Recipe, changes: Sequence[Change], emit: Emit) -> None:
    """Record the new scoring of a finished run, and skip its training; its weights and their settings are kept."""
    run.verify()
    scoring = [change for change in changes if not change.of_weights]
    record_changes(run, with_new_scoring(run, recipe), scoring, None, emit)
    ignored = [change for change in changes if change.of_weights]
    note = f"; not changed: {describe(ignored)} (--fresh trains with the new values)" if ignored else ""
    emit(events.SkippedEvent(f"already trained{note}"))


def record_changes(run: Run, recipe: Recipe, changes: Sequence[Change], step: int | None, emit: Emit) -> None:
    """Store a changed recipe in its run, and the step after which training changed."""
    if not changes:
        return
    run.replace_recipe(recipe)
    run.update(hashes={"recipe": digest(recipe)})
    if of_weights := [change for change in changes if change.of_weights]:
        run.update(finished=None)
        if step is None:  # the training starts from the beginning
            run.update(changes=[])
        else:
            for change in of_weights:
                record_change(run, step, *change)
    emit(NoteEvent(f"{run.path}: recipe changed: {describe(changes)}"))


def other_device_note(run: Run, now: tuple[str, int, int]) -> str:
    """Return a note if a training resumes with other (device, threads, processes), otherwise ""."""
    before = (run.manifest.device, run.manifest.threads, run.manifest.world_size)
    if before == now:
        return ""
    old, new = (
        f"{device} with {threads} thread{'s' * (threads != 1)}" + f" in each of {ranks} processes" * (ranks > 1)
        for device, threads, ranks in (before, now)
    )
    return f"started on {old}, resumes on {new}: the result will not be bit-identical to an uninterrupted training"
