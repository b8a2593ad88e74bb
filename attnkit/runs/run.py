"""One run and its files."""

import hashlib
import platform
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attnkit
from attnkit.errors import DataError, MissingInputError, OutputPathError
from attnkit.runs import layout, plugins
from attnkit.runs.log import Log
from attnkit.runs.manifest import Manifest
from attnkit.runs.results import Results
from attnkit.storage import files
from attnkit.storage.files import DISK, Filesystem
from attnkit.storage.lock import held

if TYPE_CHECKING:
    from torch import Tensor

    from attnkit.data.tokenizer import Tokenizer
    from attnkit.models import Model
    from attnkit.recipe import Recipe


class Run(Results):
    """One training of one variant with one seed, on disk.

    `Run(path)` only names a place; `open` checks one that is there, `create` begins a new one.
    """

    def __init__(self, path: str | Path, fs: Filesystem = DISK) -> None:
        super().__init__(path, fs)
        self._manifest = Manifest(self.path / layout.MANIFEST, fs)
        self._log = Log(self.path / layout.LOG, fs)

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @staticmethod
    def find(out: str | Path, name: str, variant: str, seed: int) -> Path:
        """The folder of a run: <out>/<recipe name>/<variant>/seed-<seed>; never outside `out`.

        Raises:
            OutputPathError: a name would leave `out` (..), or cannot be a folder's name.
        """
        parts = [*name.split("/"), variant, f"seed-{seed}"]
        return Path(out).joinpath(*map(layout.component, parts))

    @classmethod
    def open(cls, path: str | Path) -> "Run":
        """A run that is there, finished or not.

        Raises:
            MissingInputError: there is no run; says which part is missing.
            DataError: manifest.json or recipe.yaml is damaged.
        """
        run = cls(path)
        if not run.path.is_dir():
            raise MissingInputError(f"{run.path}: no such run; `attnkit train RECIPE` makes one")
        for name in (layout.MANIFEST, layout.RECIPE):
            if not (run.path / name).is_file():
                found = layout.hint(run.path)
                raise MissingInputError(f"{run.path}: not a run: {name} is missing{found}")
        run._manifest.verify(layout.RECIPE)
        return run

    @classmethod
    def create(
        cls,
        path: str | Path,
        recipe: "Recipe",
        *,
        name: str,
        variant: str,
        seed: int,
        fs: Filesystem = DISK,
        **fields: Any,
    ) -> "Run":
        """Begin a run: write recipe.yaml, then manifest.json, whose presence makes it a run.

        `fields` are further entries of the manifest (hashes, device, threads, precision, ...).

        Raises:
            OutputPathError: the folder holds a run or parts of one, or cannot be made.
        """
        from attnkit.recipe import dump

        run = cls(path, fs)
        if found := [
            part for part in (layout.MANIFEST, *layout.RESULTS) if (run.path / part).exists()
        ]:
            raise OutputPathError(
                f"{run.path}: already holds {found[0]} of another run; --fresh removes it"
            )
        files.make_folder(run.path, fs)
        header = {"recipe": name, "variant": variant, "seed": str(seed)}
        text = dump(recipe, header).encode("utf-8")
        files.atomic_write(run.path / layout.RECIPE, text, fs)
        manifest: dict[str, Any] = {
            "attnkit": attnkit.__version__,
            "python": platform.python_version(),
            "torch": _installed("torch"),
            "recipe": name,
            "variant": variant,
            "seed": seed,
            "files": {layout.RECIPE: hashlib.sha256(text).hexdigest()},
        }
        if brought := plugins.used(recipe):
            manifest["plugins"] = brought
        run._manifest.write(manifest | fields)
        return run

    def clear(self) -> None:
        """Remove the run's files, and only those; manifest.json first, so that no half run is left.

        Call it holding the lock.
        """
        with files.writing(self.path):
            for name in (layout.MANIFEST, *layout.RESULTS, *layout.TOKENIZERS, layout.RECIPE):
                path = self.path / name
                if path.exists() or path.is_symlink():
                    files.remove(path, self.fs)
        self._manifest.forget()
        self.__dict__.pop("recipe", None)

    @contextmanager
    def lock(self) -> Iterator[str | None]:
        """Hold the run against a second training, and clean up after an interrupted one.

        Makes the folder.  Gives None, or a warning where the file system knows no locks.

        Raises:
            OutputPathError: another process trains this run (says which), or no file can be made.
        """
        files.make_folder(self.path, self.fs)
        with held(self.path / layout.LOCK, str(self.path)) as warning:
            for folder in (self.path, self.path / layout.OUTPUTS):
                files.remove_leftovers(folder, self.fs)
            yield warning

    @cached_property
    def recipe(self) -> "Recipe":
        """The resolved recipe.

        Raises:
            DataError: recipe.yaml is not the one that was trained.
            MissingInputError: the plug-in of one of its mechanisms is not there.
        """
        from attnkit.recipe import load_resolved

        plugins.require(self.path, self.manifest)
        self._manifest.verify(layout.RECIPE)
        return load_resolved(self.path / layout.RECIPE)

    def changes(self, recipe: "Recipe") -> list[str]:
        """What differs from the stored recipe, one line a key; empty when nothing does."""
        from attnkit.recipe import difference

        return difference(self.recipe, recipe)

    def replace_recipe(self, recipe: "Recipe") -> None:
        """Store a changed recipe (--allow-change)."""
        from attnkit.recipe import dump

        header = {key: str(self.manifest[key]) for key in ("recipe", "variant", "seed")}
        text = dump(recipe, header).encode("utf-8")
        self._manifest.record({layout.RECIPE: None})
        files.atomic_write(self.path / layout.RECIPE, text, self.fs)
        self._manifest.record({layout.RECIPE: hashlib.sha256(text).hexdigest()})
        self.__dict__.pop("recipe", None)

    @property
    def manifest(self) -> Mapping[str, Any]:
        """What is known of the run; change it by `update`."""
        return self._manifest.entries

    def update(self, **fields: Any) -> None:
        """Set entries of the manifest; an object is merged into the one that is there."""
        self._manifest.update(fields)

    @property
    def name(self) -> str:
        """Name of the recipe (translation/multi30k)."""
        return str(self._manifest.entry("recipe", str))

    @property
    def variant(self) -> str:
        """Name of the variant."""
        return str(self._manifest.entry("variant", str))

    @property
    def seed(self) -> int:
        """Seed of the training."""
        return int(self._manifest.entry("seed", int))

    @property
    def exists(self) -> bool:
        """Whether a run has been created here."""
        return (self.path / layout.MANIFEST).is_file()

    @property
    def finished(self) -> bool:
        """Whether training came to its end and the weights are there."""
        return (
            self.exists
            and self.manifest.get("finished") is not None
            and (self.path / layout.MODEL).is_file()
        )

    def write_tokenizer(self, tokenizer: "Tokenizer") -> None:
        """Store the tokenizer, in place of any other, and note its hashes."""
        self._manifest.record(dict.fromkeys(layout.TOKENIZERS))
        paths = [self.path / name for name in layout.TOKENIZERS]
        with files.writing(self.path):
            for path in paths:
                if path.exists():
                    self.fs.unlink(path)
        tokenizer.save(self.path)
        self._manifest.record(
            {path.name: files.sha256_file(path) for path in paths if path.is_file()}
        )

    def tokenizer(self) -> "Tokenizer":
        """The tokenizer.

        Raises:
            MissingInputError: there is none yet.
            DataError: it is not the one that was trained.
        """
        from attnkit.data.tokenizer import Tokenizer

        files.require_file(self.path / layout.TOKENIZERS[0])
        for name in layout.TOKENIZERS:
            self._manifest.verify(name)
        return Tokenizer.load(self.path)

    def finish(
        self,
        weights: Mapping[str, "Tensor"],
        *,
        step: int,
        seconds: float,
        reason: str,
        **more: Any,
    ) -> None:
        """Store the chosen weights (tied ones once) and the fact that training ended.

        Scores of earlier weights are removed; the log is forced to the disk.
        """
        from attnkit.storage import tensors

        self.flush_log()
        self.update(finished=None, files={layout.MODEL: None})
        self.remove_scores()
        with files.replacing(self.path / layout.MODEL, self.fs) as prepared:
            only = tensors.unique(weights)
            _, digest = tensors.write(prepared, only, {"step": str(step)}, self.fs)
        done = {"step": step, "seconds": round(seconds, 3), "reason": reason}
        self.update(files={layout.MODEL: digest}, finished=done | more)

    def weights(self) -> dict[str, "Tensor"]:
        """The chosen weights, in main memory.

        Raises:
            MissingInputError: training has not come to its end.
            DataError: the file is damaged, or holds NaN or infinities.
        """
        from attnkit.storage import tensors

        if not self.finished:
            raise MissingInputError(
                f"{self.path}: training is not finished; run `attnkit train` again to go on"
            )
        if not self._manifest.verify(layout.MODEL):
            raise DataError(
                f"{self.path / layout.MANIFEST}: the SHA-256 of {layout.MODEL} is missing"
            )
        return tensors.read(self.path / layout.MODEL)

    def model(self, device: str = "cpu") -> "Model":
        """The trained model in float32 and evaluation mode.

        The global random state is left as it was.

        Raises:
            MissingInputError, DataError: as `weights` and `tokenizer`; also weights of other
                names or shapes than the recipe asks for.
        """
        import torch

        from attnkit import models
        from attnkit.storage import tensors

        recipe, tokenizer, weights = self.recipe, self.tokenizer(), self.weights()
        for text in plugins.changed(self.manifest):
            warnings.warn(f"{self.path}: {text} since this run was trained", stacklevel=2)
        sizes = (len(tokenizer.source), len(tokenizer.target))
        with torch.random.fork_rng(devices=[]):
            model = models.build(recipe.model, sizes, max_length=recipe.data.max_length).float()
        own = model.state_dict()
        expected = tensors.unique(own) | {name: own[name] for name in weights if name in own}
        tensors.check(self.path / layout.MODEL, weights, expected)
        model.load_state_dict(weights, strict=False)
        return model.to(device).eval()

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints."""
        return self.path / layout.CHECKPOINTS

    def log(self, record: Mapping[str, Any]) -> None:
        """Append one record to metrics.jsonl (see `Log.append`).

        Log all that belongs to a step before its checkpoint is saved.
        """
        self._log.append(record)

    def flush_log(self) -> None:
        """Force the log to the disk; a checkpoint does so before it is saved."""
        self._log.flush()

    def records(self) -> list[dict[str, Any]]:
        """The log (see `Log.records`)."""
        return self._log.records()

    def truncate_log(self, step: int | None) -> None:
        """Drop the records after `step` (None: all), before the first new one of a resumed run."""
        self._log.truncate(step)

    def log_digest(self) -> str:
        """SHA-256 of the repeatable part of the log, equal for a resumed and an unbroken run."""
        return self._log.digest()


def _installed(package: str) -> str | None:
    """The version of an installed package, found without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None
