"""Checkpoints: the whole state of a training, saved atomically.

    checkpoints/step-<n>/tensors.safetensors    model.<name>, optimizer.<name>.exp_avg, rng.cpu, ...
                         state.json             everything that is not a tensor
                         manifest.json          sizes and SHA-256 of both files, SHA-256 of the log, versions

A save writes step-<n>.tmp-<process>/, syncs every file and the folder to disk, renames the folder and syncs the
rename; only then are older checkpoints removed. The newest checkpoint is found by listing the folder, never by a
pointer. Nothing is pickled.
"""

import hashlib
import json
import platform
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

import attnkit
from attnkit.errors import AttnkitError, DataError, DivergedError
from attnkit.runs import json_files, layout
from attnkit.storage import files, tensors
from attnkit.storage.files import DISK

if TYPE_CHECKING:
    from attnkit.runs import Run

_TENSORS, _STATE, _MANIFEST = "tensors.safetensors", "state.json", "manifest.json"


class Checkpoint(NamedTuple):
    """The newest valid checkpoint; `messages` report damaged ones and the number of steps lost."""

    step: int
    path: Path
    messages: tuple[str, ...] = ()
    log: str | None = None
    """SHA-256 of the log up to this step; None in checkpoints of earlier versions."""


def save(
    run: "Run", step: int, values: Mapping[str, Tensor], state: Mapping[str, Any], keep: Collection[int] = ()
) -> Path:
    """Save the state after `step` updates and return the checkpoint's folder.

    The log of the run is synced to disk first, so that a checkpoint is never ahead of the log. The new checkpoint,
    the one before it and the steps in `keep` are kept; older checkpoints are removed.

    Raises:
        DivergedError: If a tensor holds NaN or infinity; nothing is written.
        OutputPathError, OutputError: If writing fails; older checkpoints are unchanged.
        TypeError, ValueError: If `state` does not survive JSON (tuples, integer keys, NaN) or is too large, or
            safetensors does not support the dtype of a tensor.
    """
    text = json.dumps(state, allow_nan=False, indent=1, sort_keys=True).encode("utf-8")
    if json.loads(text) != state or len(text) > files.JSON_LIMIT:  # e.g. tuples, integer keys
        raise TypeError("the state of a checkpoint must be plain JSON of at most 4 MiB")
    if (bad := tensors.not_finite(values)) is not None:
        raise DivergedError(f"step {step}: tensor {bad} holds NaN or infinity; it was not saved")
    run.log.flush()
    final = run.checkpoints / f"step-{step}"
    temporary = files.temporary(final)
    files.make_folder(run.checkpoints, parents=False)
    previous = next((old for old, _ in _steps(run) if old < step), step)  # kept as a fallback
    with files.writing(final):
        try:
            if temporary.exists():
                files.remove(temporary)
            _write(temporary, step, values, text, run.log.sha256())
            DISK.rename(temporary, final)
            DISK.fsync_path(final.parent)
        except OSError:
            with suppress(OSError):
                files.remove(temporary)
            raise
        for old, path in _steps(run):
            if old < step and old != previous and old not in keep:
                leftover = files.temporary(path)
                if leftover.exists():
                    files.remove(leftover)
                DISK.rename(path, leftover)  # a partly removed checkpoint must not look complete
                files.remove(leftover)
    return final


def _write(folder: Path, step: int, values: Mapping[str, Tensor], state: bytes, log: str | None) -> None:
    DISK.mkdir(folder)
    size, digest = tensors.write(folder / _TENSORS, values)
    files.write_synced(folder / _STATE, state)
    manifest = {
        "step": step,
        "attnkit": attnkit.__version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "files": {
            _TENSORS: {"size": size, "sha256": digest},
            _STATE: {"size": len(state), "sha256": hashlib.sha256(state).hexdigest()},
        },
        "log": log,
    }
    files.write_synced(folder / _MANIFEST, files.json_text(json_files.seal(manifest)))
    DISK.fsync_path(folder)


def latest(run: "Run") -> Checkpoint | None:
    """Return the newest checkpoint whose files have the recorded hashes, or None if there is no checkpoint.

    Leftovers of interrupted saves are removed. Damaged newer checkpoints are renamed to step-<n>.damaged and reported
    in `messages`. The caller must hold `run.lock()`.

    Raises DataError if all checkpoints are damaged; they are not changed.
    """
    files.remove_leftovers(run.checkpoints, dead_only=False)
    damaged: list[tuple[Path, str]] = []
    for step, path in _steps(run):
        if (fault := fault_of(path)) is not None:
            damaged.append((path, fault))
            continue
        messages = []
        for other, fault in damaged:
            new_name = set_aside(run, other)
            lost = int(other.name.removeprefix("step-")) - step
            messages.append(
                f"{other}: damaged checkpoint ({fault}), renamed to {new_name}; "
                f"resuming from step {step} and repeating {lost} step{'s' * (lost != 1)}"
            )
        return Checkpoint(step, path, tuple(messages), _manifest(path).log)
    if damaged:
        reasons = "; ".join(f"{path.name}: {fault}" for path, fault in damaged)
        raise DataError(
            f"{run.checkpoints}: no valid checkpoint ({reasons}); restore one from a copy, or start over with --fresh"
        )
    return None


def set_aside(run: "Run", path: Path) -> str:
    """Rename a damaged checkpoint, so that it is no longer found, and return its new name."""
    new_name, number = f"{path.name}.damaged", 1
    while path.with_name(new_name).exists():
        number += 1
        new_name = f"{path.name}.damaged-{number}"
    with files.writing(path):
        DISK.rename(path, path.with_name(new_name))
        DISK.fsync_path(path.parent)
    return new_name


def load(path: Path, *, prefix: str = "") -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the tensors of a checkpoint whose names begin with `prefix`, and its state.

    Sizes and hashes are checked before anything is parsed.

    Raises DataError, with the path and the reason, if anything is missing, damaged or not finite.
    """
    if (fault := fault_of(path)) is not None:
        raise DataError(f"{path}: damaged checkpoint: {fault}")
    return tensors.read(path / _TENSORS, prefix=prefix), files.read_json(path / _STATE)


def _steps(run: "Run") -> list[tuple[int, Path]]:
    """Return step and path of all checkpoints, newest first, damaged ones included."""
    return [(step, run.checkpoints / f"step-{step}") for step in run.checkpoint_steps()]


def fault_of(path: Path) -> str | None:
    """Return how a checkpoint differs from its manifest, or None if it is valid."""
    try:
        manifest = _manifest(path)
        if layout.STEP.fullmatch(path.name) and path.name != f"step-{manifest.step}":
            return f"{_MANIFEST}: belongs to step {manifest.step}"
        for name, entry in manifest.files.items():
            files.check_file(path / name)
            if (size := (path / name).stat().st_size) != entry.size:
                return f"{name}: must have {entry.size} bytes, got {size}"
            if files.sha256_file(path / name) != entry.sha256:
                return f"{name}: its SHA-256 differs from {_MANIFEST}"
    except (AttnkitError, OSError) as error:
        return str(error).removeprefix(f"{path}/")
    return None


def file_names(path: Path) -> set[str]:
    """Return the file names of a valid checkpoint."""
    return {_MANIFEST, *_manifest(path).files}


def _manifest(path: Path) -> json_files.CheckpointManifest:
    """Read the manifest of a checkpoint.  Raises MissingInputError or DataError if it is missing or damaged."""
    file = path / _MANIFEST
    return json_files.validate_manifest(files.read_json(file), json_files.CheckpointManifest, str(file))


def check_log(run: "Run") -> bool:
    """Compare the log of a stopped run with the hash in its newest valid checkpoint; return False if there is none.

    Raises DataError if the log was changed.
    """
    for step, path in _steps(run):
        if fault_of(path) is None:
            recorded = _manifest(path).log
            if recorded is not None and run.log.until(step)[1].hexdigest() != recorded:
                raise DataError(f"{run.log.path}: the records until step {step} were changed")
            return recorded is not None
    return False


def record_change(run: "Run", step: int, key: str, old: object, new: object) -> None:
    """Record in the run's manifest that the value of a key changed after `step` updates."""
    earlier = [change.model_dump() for change in run.manifest.changes]
    run.update(changes=[*earlier, {"step": step, "key": key, "old": str(old), "new": str(new)}])
