"""A run and its files."""

import hashlib
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attnkit
from attnkit.errors import AttnkitError, DataError, MissingInputError, OutputPathError
from attnkit.runs import json_files, layout, plugins
from attnkit.runs.demo import located
from attnkit.runs.json_files import Manifest
from attnkit.runs.log import Log
from attnkit.runs.results import Results
from attnkit.storage import files
from attnkit.storage.files import DISK
from attnkit.storage.lock import exclusive, held, is_held, is_lost

if TYPE_CHECKING:
    from torch import Tensor

    from attnkit.data.tokenizer import Tokenizer
    from attnkit.models import Model
    from attnkit.recipe import Recipe

MAKES_RUNS = "; `attnkit train RECIPE` makes one"
"""How to create runs, for messages about missing ones."""
_REMEDY = {layout.SCORES: "replace it by `attnkit eval --fresh`", layout.DATA: "remove it to read the corpus again"}
"""Remedy for a damaged file or folder, if it is not another training."""


class Run(Results):
    """A training of one variant with one seed; `Run(path)` is a location, `open` checks it, `create` makes it."""

    creates_folder = False  # a run that was moved must not reappear as an empty folder

    @cached_property
    def log(self) -> Log:
        """The training log."""
        packed = None if self.packed is None else self.packed.get(layout.LOG, b"")
        return Log(self.path / layout.LOG, packed)

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """Open a run, finished or not, or a results file; `demo` is the shipped run.

        Raises:
            MissingInputError, DataError: If there is no run, or its manifest, recipe or results file is damaged.
        """
        run = cls(located(path))
        if run.packed is None:
            files.require_folder(run.path, "run", MAKES_RUNS)
        for name in (layout.MANIFEST, layout.RECIPE):
            if not run.has(name):
                reason = f"not a run: {name} is missing{layout.runs_hint(run.path)}"
                if run.in_training:
                    reason = f"is being trained; {name} is not written yet"
                raise MissingInputError(f"{run.path}: {reason}")
        run.check_file(layout.RECIPE)
        return run

    @classmethod
    def create(cls, path: str | Path, recipe: "Recipe", *, name: str, variant: str, seed: int, **fields: Any) -> "Run":
        """Create a run: write recipe.yaml, then manifest.json (with `fields`), whose presence makes the folder a run.

        Raises:
            OutputPathError: If the folder holds a run or parts of a run, or cannot be created.
        """
        run = cls(path)
        run.check_free()
        files.make_folder(run.path)
        identity = {"recipe": name, "variant": variant, "seed": seed}
        manifest: dict[str, Any] = {
            "attnkit": attnkit.__version__,
            "python": platform.python_version(),
            "torch": version("torch"),
            **identity,
            "files": {layout.RECIPE: run._write_recipe(recipe, identity)},
        }
        plugin_entries = plugins.entries(recipe, {})
        run._write_manifest(manifest | ({"plugins": plugin_entries} if plugin_entries else {}) | fields)
        return run

    def check_free(self) -> None:
        """Raise OutputPathError if the folder holds a run or parts of a run."""
        for part in (layout.MANIFEST, *layout.RESULTS):
            if (self.path / part).exists():
                raise OutputPathError(f"{self.path}: already holds {part} of another run; --fresh removes it")

    def _write_recipe(self, recipe: "Recipe", identity: Mapping[str, Any]) -> str:
        """Write the recipe, with a comment that names its run, and return its SHA-256."""
        from attnkit.recipe import dump, relative_to

        recipe = relative_to(recipe, self.path)  # so that runs and data can be moved together
        text = dump(recipe, {key: str(value) for key, value in identity.items()}).encode("utf-8")
        files.atomic_write(self.path / layout.RECIPE, text)
        return hashlib.sha256(text).hexdigest()

    def clear(self) -> None:
        """Remove the run's files only, manifest.json first so that no partial run remains; requires the lock."""
        with files.writing(self.path):
            for name in (layout.MANIFEST, *layout.RESULTS, *layout.TOKENIZERS, layout.RECIPE):
                path = self.path / name
                if path.exists() or path.is_symlink():
                    files.remove(path)
        self.refresh()
        self.__dict__.pop("recipe", None)

    @contextmanager
    def lock(self) -> Iterator[str | None]:
        """Lock the run against a second training, and remove leftovers of an interrupted training.

        Creates the folder, and removes it again if nothing is written. Yields None, or a warning if the file system
        does not support locks.

        Raises:
            OutputPathError: If another process trains this run (names the process), no file can be created, or the
                folder has disappeared when an error occurs inside.
        """
        with files.writing(self.path):
            created = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
        files.make_folder(self.path)
        with held(self.path / layout.LOCK, str(self.path)) as warning:
            for folder in (self.path, self.path / layout.OUTPUTS, self.path / layout.DATA):
                files.remove_leftovers(folder)
            try:
                yield warning
            except AttnkitError:
                self.require_locked()
                raise
            finally:
                self._remove_if_empty(created)

    def _remove_if_empty(self, created: Sequence[Path]) -> None:
        """Remove the folders that `lock` created, innermost first, if the run holds nothing but its lock."""
        with suppress(OSError):
            if created and [path.name for path in self.path.iterdir()] == [layout.LOCK]:
                (self.path / layout.LOCK).unlink()
                for folder in created:
                    folder.rmdir()  # an error if another run was created in it meanwhile

    def require_locked(self) -> None:
        """Raise OutputPathError if a folder that this process locked no longer exists."""
        if is_lost(self.path / layout.LOCK):
            raise OutputPathError(
                f"{self.path}: was moved or removed while it was being trained; move it back and "
                "run the same command again to resume from its last checkpoint"
            )

    @cached_property
    def recipe(self) -> "Recipe":
        """The resolved recipe. Raises DataError if recipe.yaml was changed, MissingInputError without a plug-in."""
        return self.changed_recipe(())

    def changed_recipe(self, overrides: Sequence[str]) -> "Recipe":
        """Return the resolved recipe with KEY=VALUE overrides. Raises the errors of `recipe`, and RecipeError."""
        from attnkit.recipe import load_resolved

        plugins.require(self.path, self.manifest.plugins)
        self.check_file(layout.RECIPE)
        return load_resolved(self.path / layout.RECIPE, overrides, self.read(layout.RECIPE))

    def replace_recipe(self, recipe: "Recipe") -> None:
        """Store a changed recipe (--allow-change), and the plug-ins that it uses."""
        identity = {"recipe": self.name, "variant": self.variant, "seed": self.seed}
        self.update(files={layout.RECIPE: None})
        self.update(files={layout.RECIPE: self._write_recipe(recipe, identity)})
        if plugin_entries := plugins.entries(recipe, self.manifest.plugins):
            self.update(plugins=plugin_entries)
        self.__dict__.pop("recipe", None)

    @cached_property
    def manifest(self) -> Manifest:
        """Versions, hashes, settings and results. Raises MissingInputError, DataError if missing or damaged."""
        try:
            return json_files.validate_manifest(
                self.read_json(layout.MANIFEST), Manifest, str(self.path / layout.MANIFEST)
            )
        except DataError as error:
            raise DataError(f"{error}; restore it from a copy, or train again with --fresh") from error

    @property
    def sealed(self) -> bool:
        """Whether manifest.json includes its own SHA-256."""
        return self.manifest.sha256 is not None

    def update(self, **fields: Any) -> None:
        """Set entries of the manifest, merging mappings; entries that other processes wrote meanwhile are kept."""
        self.require_locked()
        with exclusive(self.path):
            self.refresh()
            manifest, entries = self.manifest, self.read_json(layout.MANIFEST)
            if manifest.sha256 is None:  # version 0.1.0 recorded fewer files
                kept = filter(self.has, (layout.LOG, layout.SCORES) if self.finished else ())
                entries["files"] = {name: self.sha256(name) for name in kept} | entries["files"]
            for key, value in fields.items():
                old = entries.get(key)
                if isinstance(old, Mapping) and isinstance(value, Mapping):
                    value = {**old, **value}
                entries[key] = value
            self._write_manifest(entries)

    def _write_manifest(self, entries: dict[str, Any]) -> None:
        files.atomic_write(self.path / layout.MANIFEST, files.json_text(json_files.seal(entries)))
        self.refresh()

    def record(self, name: str, digest: str | None) -> None:
        self.update(files={name: digest})

    def recorded(self, name: str) -> bool:
        """Return whether the manifest has a file's SHA-256, or is of version 0.1.0, which recorded few files."""
        hashes = self.manifest.files
        return hashes.get(name) is not None or not (self.sealed or name in hashes)

    def refresh(self) -> None:
        """Drop the cached manifest, because another process may have written it."""
        self.__dict__.pop("manifest", None)

    def check_file(self, name: str) -> bool:
        """Compare a file with its SHA-256 in the manifest; return False if there is none or the file was left out.

        Raises:
            DataError, MissingInputError: If they differ, or the file is missing.
        """
        path = self.path / name
        for read_again in (False, True):
            if read_again:  # another process may have written both in the meantime
                self.refresh()
            expected = self.manifest.files.get(name)
            if expected is None or name in self.left_out:
                return False
            if self.sha256(name) == expected:
                return True
        remedy = _REMEDY.get(name.partition("/")[0], "train again with --fresh")
        raise DataError(f"{path}: was changed (its SHA-256 differs from {layout.MANIFEST}); restore it, or {remedy}")

    def require_recorded(self, name: str) -> None:
        """Call `check_file` for an essential file. Raises DataError if its SHA-256 is not recorded."""
        if not self.check_file(name):
            raise DataError(f"{self.path / layout.MANIFEST}: the SHA-256 of {name} is missing")

    @property
    def weights_sha256(self) -> str:
        """SHA-256 of the selected weights; empty if none is recorded, so that they are not used."""
        return self.manifest.files.get(layout.MODEL) or ""

    def verify(self) -> None:
        """Call `check_file` for every file in the manifest; scores and data may be missing."""
        for name in self.manifest.files:
            if self.has(name) or name.partition("/")[0] not in _REMEDY:
                self.check_file(name)

    @property
    def name(self) -> str:
        """Name of the recipe (translation/multi30k)."""
        return self.manifest.recipe

    @property
    def variant(self) -> str:
        return self.manifest.variant

    @property
    def seed(self) -> int:
        return self.manifest.seed

    @property
    def exists(self) -> bool:
        return self.packed is not None or (self.path / layout.MANIFEST).is_file()

    @property
    def finished(self) -> bool:
        """Whether training has ended, and the weights exist or were left out."""
        ended = self.exists and self.manifest.finished is not None
        return ended and (layout.MODEL in self.left_out or (self.path / layout.MODEL).is_file())

    @property
    def left_out(self) -> tuple[str, ...]:
        """Files that `attnkit runs pack --results` left out, such as weights and tokenizer; otherwise empty."""
        left_out = self.manifest.left_out
        return () if left_out is None else tuple(left_out.files)

    def require_weights(self) -> None:
        """Raise MissingInputError for a results file, which has no weights."""
        if layout.MODEL in self.left_out:
            raise MissingInputError(
                f"{self.path}: results have no weights; name their run, or train it "
                f"again: attnkit train {self.name} --variant {self.variant} --seed {self.seed}"
            )

    @property
    def trained(self) -> bool:
        """Whether the run has weights of its own: selected weights, or a checkpoint."""
        return self.finished or bool(self.checkpoint_steps())

    @property
    def in_training(self) -> bool:
        """Whether a process is training the run."""
        return is_held(self.path / layout.LOCK)

    def require_finished(self) -> None:
        """Raise MissingInputError if the run has no selected weights yet."""
        if not self.finished:
            reason = "training is not finished; run `attnkit train` again to resume it"
            if self.in_training:
                reason = "is being trained; its weights are selected at the end"
            raise MissingInputError(f"{self.path}: {reason}")

    @property
    def outcome(self) -> json_files.Finished:
        """Outcome of the training. Raises MissingInputError if it is not finished."""
        self.require_finished()
        assert self.manifest.finished is not None
        return self.manifest.finished

    def write_tokenizer(self, tokenizer: "Tokenizer") -> None:
        """Store the tokenizer, in place of any other, and record its hashes."""
        self.update(files=dict.fromkeys(layout.TOKENIZERS))
        paths = [self.path / name for name in layout.TOKENIZERS]
        with files.writing(self.path):
            for path in paths:
                if path.exists():
                    DISK.unlink(path)
        tokenizer.save(self.path)
        self.update(files={p.name: files.sha256_file(p) for p in paths if p.is_file()})

    def tokenizer(self) -> "Tokenizer":
        """Load the tokenizer. Raises MissingInputError without one, DataError if it is not that of the training."""
        self.require_weights()
        from attnkit.data.tokenizer import Tokenizer

        separate = self.manifest.files.get(layout.TOKENIZERS[1]) is not None
        files.check_file(self.path / layout.TOKENIZERS[0])
        for name in layout.TOKENIZERS[: 1 + separate]:
            self.require_recorded(name)
        return Tokenizer.load(self.path, self.recipe.data.normalize, shared=not separate)

    def finish(self, weights: Mapping[str, "Tensor"], *, step: int, seconds: float, **more: Any) -> None:
        """Store the selected weights (tied weights once), and record the end of training.

        `seconds` were spent on updates; `more` are further facts, such as the reason. Scores of earlier weights are
        removed, and the log is synced to disk.
        """
        from attnkit.storage import tensors

        self.log.flush()
        with self.changing():
            self.update(finished=None, files={layout.MODEL: None})
            self.remove_scores()
            with files.replacing(self.path / layout.MODEL) as prepared:
                _, digest = tensors.write(prepared, tensors.unique(weights), {"step": str(step)})
            done = {"step": step, "seconds": round(seconds, 3)}
            self.update(files={layout.MODEL: digest, layout.LOG: self.log.sha256()}, finished=done | more)

    def weights(self) -> dict[str, "Tensor"]:
        """Load the selected weights into main memory, in float32 if stored in half precision.

        Raises:
            MissingInputError, DataError: If training is not finished, or the file is missing or damaged.
        """
        from attnkit.storage import tensors

        self.require_finished()
        self.require_weights()
        self.require_recorded(layout.MODEL)
        return tensors.read(self.path / layout.MODEL, widen=True)

    def model(self, device: str = "cpu") -> "Model":
        """Return the trained float32 model in evaluation mode. Raises as `weights`; keeps the global random state."""
        weights = self.weights()
        model = self.untrained()
        self.load(model, self.path / layout.MODEL, weights)
        return model.to(device).eval()

    def untrained(self) -> "Model":
        """Return the float32 model before training. Raises as `recipe`, `tokenizer`; keeps the global random state."""
        import torch

        from attnkit import models

        recipe, tokenizer = self.recipe, self.tokenizer()
        for path, _, _ in plugins.changes(self.manifest.plugins):
            warnings.warn(f"{self.path}: {path} has changed since this run was trained", stacklevel=3)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return models.build_for(recipe, tokenizer.sizes).float()

    def load(self, model: "Model", path: Path, weights: "Mapping[str, Tensor]") -> None:
        """Load weights from the file `path` into the model. Raises DataError if their names or shapes differ."""
        from attnkit.storage import tensors

        model.make_room(weights)
        state = model.state_dict()
        tensors.check(path, weights, tensors.unique(state) | {n: state[n] for n in weights if n in state})
        model.load_state_dict(weights, strict=False)

    def checkpoint_steps(self) -> list[int]:
        """Return the steps of all checkpoints, whole or damaged, newest first."""
        with files.reading(self.checkpoints):
            inside = self.checkpoints.iterdir() if self.checkpoints.is_dir() else ()
            found = [layout.STEP.fullmatch(entry.name) for entry in inside]
        return sorted((int(match[1]) for match in found if match), reverse=True)

    @property
    def checkpoints(self) -> Path:
        return self.path / layout.CHECKPOINTS
