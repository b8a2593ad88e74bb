"""One run and its files."""

import hashlib
import platform
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
"""Where a run, or a folder of them, comes from, for messages."""
_REMEDY = {layout.SCORES: "replace it by `attnkit eval --fresh`", layout.DATA: "remove it to read the corpus again"}
"""By file or folder, what to do where that is not training."""


class Run(Results):
    """The directory of one training: one variant with one seed.

    `Run(path)` only names a place; `open` checks an existing run, `create` begins a new one.
    """

    may_be_made = False  # one that was moved away must not come back empty

    @cached_property
    def log(self) -> Log:
        """The log of its training."""
        packed = None if self.packed is None else self.packed.get(layout.LOG, b"")
        return Log(self.path / layout.LOG, packed)

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """An existing run, finished or not; or a results file; `demo` is the one that is shipped.

        Raises MissingInputError: there is no run; says which part is missing; DataError:
        manifest.json, recipe.yaml or the results file is damaged.
        """
        run = cls(located(path))
        if run.packed is None:
            files.require_folder(run.path, "run", MAKES_RUNS)
        for name in (layout.MANIFEST, layout.RECIPE):
            if not run.has(name):
                why = f"not a run: {name} is missing{layout.near(run.path)}"
                if run.in_training:
                    why = f"is being trained; {name} is not written yet"
                raise MissingInputError(f"{run.path}: {why}")
        run.check_file(layout.RECIPE)
        return run

    @classmethod
    def create(cls, path: str | Path, recipe: "Recipe", *, name: str, variant: str, seed: int, **fields: Any) -> "Run":
        """Begin a run: write recipe.yaml, then manifest.json, whose presence makes it a run.

        `fields` are further entries of the manifest (hashes, device, threads, precision, ...).

        Raises OutputPathError: the folder holds a run or parts of one, or cannot be made.
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
        used = plugins.entries(recipe, {})
        run._write_manifest(manifest | ({"plugins": used} if used else {}) | fields)
        return run

    def check_free(self) -> None:
        """Refuse a folder that holds a run or parts of one.  Raises OutputPathError."""
        for part in (layout.MANIFEST, *layout.RESULTS):
            if (self.path / part).exists():
                raise OutputPathError(f"{self.path}: already holds {part} of another run; --fresh removes it")

    def _write_recipe(self, recipe: "Recipe", identity: Mapping[str, Any]) -> str:
        """Store the recipe under a comment that says whose it is; its SHA-256."""
        from attnkit.recipe import dump, relative_to

        recipe = relative_to(recipe, self.path)  # so that runs and data can be moved together
        text = dump(recipe, {key: str(value) for key, value in identity.items()}).encode("utf-8")
        files.atomic_write(self.path / layout.RECIPE, text)
        return hashlib.sha256(text).hexdigest()

    def clear(self) -> None:
        """Remove the run's files, and only those; manifest.json first, so that no half run is left.

        Call it holding the lock.
        """
        with files.writing(self.path):
            for name in (layout.MANIFEST, *layout.RESULTS, *layout.TOKENIZERS, layout.RECIPE):
                path = self.path / name
                if path.exists() or path.is_symlink():
                    files.remove(path)
        self.refresh()
        self.__dict__.pop("recipe", None)

    @contextmanager
    def lock(self) -> Iterator[str | None]:
        """Hold the run against a second training, and clean up after an interrupted one.

        Makes the folder.  Gives None, or a warning where the file system knows no locks.

        Raises OutputPathError: another process trains this run (says which), or no file can be
        made; or the folder is no longer there when something fails inside.
        """
        files.make_folder(self.path)
        with held(self.path / layout.LOCK, str(self.path)) as warning:
            for folder in (self.path, self.path / layout.OUTPUTS, self.path / layout.DATA):
                files.remove_leftovers(folder)
            try:
                yield warning
            except AttnkitError:
                self.require_locked()
                raise

    def require_locked(self) -> None:
        """Refuse (OutputPathError) where a folder that this process locked is no longer."""
        if is_lost(self.path / layout.LOCK):
            raise OutputPathError(
                f"{self.path}: was moved or removed while it was being trained; move it back and "
                "run the same command again to resume from its last checkpoint"
            )

    @cached_property
    def recipe(self) -> "Recipe":
        """The resolved recipe.

        Raises DataError: recipe.yaml is not the one that was trained; MissingInputError: the
        plug-in of one of its mechanisms is missing.
        """
        return self.changed_recipe(())

    def changed_recipe(self, overrides: Sequence[str]) -> "Recipe":
        """The resolved recipe with KEY=VALUE words; raises as `recipe`, and RecipeError."""
        from attnkit.recipe import load_resolved

        plugins.require(self.path, self.manifest.plugins)
        self.check_file(layout.RECIPE)
        return load_resolved(self.path / layout.RECIPE, overrides, self.read(layout.RECIPE))

    def replace_recipe(self, recipe: "Recipe") -> None:
        """Store a changed recipe (--allow-change), and the plug-ins that it uses."""
        identity = {"recipe": self.name, "variant": self.variant, "seed": self.seed}
        self.update(files={layout.RECIPE: None})
        self.update(files={layout.RECIPE: self._write_recipe(recipe, identity)})
        if used := plugins.entries(recipe, self.manifest.plugins):
            self.update(plugins=used)
        self.__dict__.pop("recipe", None)

    @cached_property
    def manifest(self) -> Manifest:
        """Versions, hashes, settings and results of the run; change them by `update`.

        Raises MissingInputError, DataError: the file is missing or damaged.
        """
        try:
            return json_files.opened(self.read_json(layout.MANIFEST), Manifest, str(self.path / layout.MANIFEST))
        except DataError as error:
            raise DataError(f"{error}; restore it from a copy, or train again with --fresh") from error

    @property
    def sealed(self) -> bool:
        """Whether manifest.json has a SHA-256 of itself."""
        return self.manifest.sha256 is not None

    def update(self, **fields: Any) -> None:
        """Set entries of the manifest; an object is merged into an existing one.

        What other processes have written meanwhile stays.
        """
        self.require_locked()
        with exclusive(self.path):
            self.refresh()
            known, entries = self.manifest, self.read_json(layout.MANIFEST)
            if known.sha256 is None:  # of version 0.1.0, which recorded fewer files
                kept = filter(self.has, (layout.LOG, layout.SCORES) if self.finished else ())
                entries["files"] = {name: self.sha256(name) for name in kept} | entries["files"]
            for key, value in fields.items():
                old = entries.get(key)
                if isinstance(old, Mapping) and isinstance(value, Mapping):
                    value = {**old, **value}
                entries[key] = value
            self._write_manifest(entries)

    def _write_manifest(self, entries: dict[str, Any]) -> None:
        files.atomic_write(self.path / layout.MANIFEST, files.json_text(json_files.sealed(entries)))
        self.refresh()

    def record(self, name: str, digest: str | None) -> None:
        """Note the SHA-256 of one of its files; None while it is being written."""
        self.update(files={name: digest})

    def recorded(self, name: str) -> bool:
        """Whether the manifest has the SHA-256 of a file; what it does not know is not used.

        Those of version 0.1.0 have it of a few files only: there the others are used.
        """
        hashes = self.manifest.files
        return hashes.get(name) is not None or not (self.sealed or name in hashes)

    def refresh(self) -> None:
        """Read the manifest again: another process may have written it."""
        self.__dict__.pop("manifest", None)

    def check_file(self, name: str) -> bool:
        """Compare a file with its SHA-256 in the manifest; False where it has none or is left out.

        Raises DataError: they differ; MissingInputError: the file is missing.
        """
        path = self.path / name
        for read_again in (False, True):
            if read_again:  # another process may have written both meanwhile
                self.refresh()
            expected = self.manifest.files.get(name)
            if expected is None or name in self.left_out:
                return False
            if self.sha256(name) == expected:
                return True
        remedy = _REMEDY.get(name.partition("/")[0], "train again with --fresh")
        raise DataError(
            f"{path}: is not the file that was written (its SHA-256 differs from "
            f"{layout.MANIFEST}); restore it, or {remedy}"
        )

    def require_recorded(self, name: str) -> None:
        """`check_file` for what a run cannot do without.  Raises DataError where it has no hash."""
        if not self.check_file(name):
            raise DataError(f"{self.path / layout.MANIFEST}: the SHA-256 of {name} is missing")

    @property
    def weights_sha256(self) -> str:
        """That of the chosen weights; empty where none is recorded, so that they are not used."""
        return self.manifest.files.get(layout.MODEL) or ""

    def verify(self) -> None:
        """`check_file` for every file in the manifest; scores need not be there."""
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
        """Whether training came to its end, and the weights are there or were left out."""
        ended = self.exists and self.manifest.finished is not None
        return ended and (layout.MODEL in self.left_out or (self.path / layout.MODEL).is_file())

    @property
    def left_out(self) -> tuple[str, ...]:
        """Files that `attnkit runs pack --results` left out: weights and tokenizer; else empty."""
        left_out = self.manifest.left_out
        return () if left_out is None else tuple(left_out.files)

    def require_weights(self) -> None:
        """Refuse packed results.  Raises MissingInputError."""
        if layout.MODEL in self.left_out:
            raise MissingInputError(
                f"{self.path}: results without weights; name the run that they are of, or train it "
                f"again: attnkit train {self.name} --variant {self.variant} --seed {self.seed}"
            )

    @property
    def trained(self) -> bool:
        """Whether it has weights of its own: chosen ones, or a checkpoint."""
        return self.finished or bool(self.checkpoint_steps())

    @property
    def in_training(self) -> bool:
        """Whether a process trains it now."""
        return is_held(self.path / layout.LOCK)

    def require_finished(self) -> None:
        """Refuse a run that has no chosen weights yet.  Raises MissingInputError."""
        if not self.finished:
            what = "training is not finished; run `attnkit train` again to resume it"
            if self.in_training:
                what = "is being trained; its weights are chosen at the end"
            raise MissingInputError(f"{self.path}: {what}")

    @property
    def outcome(self) -> json_files.Finished:
        """What its training came to.  Raises MissingInputError: it is not finished."""
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
        """The tokenizer.

        Raises MissingInputError: there is none yet, or it was left out; DataError: it is not the one that was trained.
        """
        self.require_weights()
        from attnkit.data.tokenizer import Tokenizer

        both = self.manifest.files.get(layout.TOKENIZERS[1]) is not None
        files.check_file(self.path / layout.TOKENIZERS[0])
        for name in layout.TOKENIZERS[: 1 + both]:
            self.require_recorded(name)
        return Tokenizer.load(self.path, self.recipe.data.normalize, shared=not both)

    def finish(self, weights: Mapping[str, "Tensor"], *, step: int, seconds: float, **more: Any) -> None:
        """Store the chosen weights (tied ones once) and the fact that training ended.

        `more` are further facts, such as the reason; `seconds` were spent on updates.
        Scores of earlier weights are removed; the log is forced to the disk.
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
        """The chosen weights, in main memory; those in half precision as float32.

        Raises MissingInputError, DataError: the end of training or the file is missing or damaged.
        """
        from attnkit.storage import tensors

        self.require_finished()
        self.require_weights()
        self.require_recorded(layout.MODEL)
        return tensors.read(self.path / layout.MODEL, widen=True)

    def model(self, device: str = "cpu") -> "Model":
        """The trained model in float32 and evaluation mode.

        The global random state is left as it was.

        Raises MissingInputError, DataError: as `weights`, `untrained` and `load`.
        """
        weights = self.weights()
        model = self.untrained()
        self.load(model, self.path / layout.MODEL, weights)
        return model.to(device).eval()

    def untrained(self) -> "Model":
        """The model as training began with it, in float32; the global random state stays.

        Raises MissingInputError, DataError: as `recipe` and `tokenizer`.
        """
        import torch

        from attnkit import models

        recipe, tokenizer = self.recipe, self.tokenizer()
        for path, _, _ in plugins.changes(self.manifest.plugins):
            warnings.warn(f"{self.path}: {path} has changed since this run was trained", stacklevel=3)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            return models.build_for(recipe, tokenizer.sizes).float()

    def load(self, model: "Model", path: Path, weights: "Mapping[str, Tensor]") -> None:
        """Put weights of this run into its model; `path` is the file that they come from.

        Raises DataError: they have other names or shapes than the recipe asks for.
        """
        from attnkit.storage import tensors

        model.make_room(weights)
        state = model.state_dict()
        tensors.check(path, weights, tensors.unique(state) | {n: state[n] for n in weights if n in state})
        model.load_state_dict(weights, strict=False)

    def checkpoint_steps(self) -> list[int]:
        """The steps that have a checkpoint, the newest first; whole or damaged."""
        with files.reading(self.checkpoints):
            inside = self.checkpoints.iterdir() if self.checkpoints.is_dir() else ()
            found = [layout.STEP.fullmatch(entry.name) for entry in inside]
        return sorted((int(match[1]) for match in found if match), reverse=True)

    @property
    def checkpoints(self) -> Path:
        return self.path / layout.CHECKPOINTS
