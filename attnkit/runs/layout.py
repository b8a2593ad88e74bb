"""Names of a run's files, and the folders that hold runs."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from attnkit.errors import AttnkitError, OutputPathError
from attnkit.storage import files

RECIPE, MANIFEST, LOG, LOCK = "recipe.yaml", "manifest.json", "metrics.jsonl", ".lock"
MODEL, SCORES = "model.safetensors", "scores.json"
CHECKPOINTS, OUTPUTS, DATA = "checkpoints", "outputs", "data"
TENSORBOARD, WANDB = "tensorboard", "wandb"  # copies of the log
TUNE = "tune"  # beside the runs of a variant, the folder of the trials that chose its values
TRIAL, TUNED = "trial", "tuned"  # entries of the manifest: of a trial; of a run that trials chose
STEP = re.compile(r"step-(0|[1-9][0-9]{0,17})", re.ASCII)  # names of checkpoints
WINDOWS = re.compile(r"(.+)\.length-(\d+)", re.ASCII)  # names of scores in windows: split, tokens
TOKENIZERS = ("tokenizer.model", "tokenizer.target.model")
RESULTS = (MODEL, SCORES, LOG, CHECKPOINTS, OUTPUTS, TENSORBOARD, WANDB, DATA)
OWN = (RECIPE, MANIFEST, LOCK, *RESULTS, *TOKENIZERS)


def windows_name(split: str, length: int) -> str:
    """Under what name the scores of a split are stored that was cut in windows of this length."""
    return f"{split}.length-{length}"


def component(part: str) -> str:
    """The part itself, if it can be the name of one file or folder.

    Raises:
        OutputPathError: it would lead elsewhere, or is empty.
    """
    if part in ("", ".", "..") or "/" in part or "\0" in part:
        raise OutputPathError(f"{part!r}: cannot be the name of a folder; rename it in the recipe")
    return part


def refuse_part_of_run(path: Path) -> None:
    """Keep an output of a command from replacing a file of a run.

    Raises:
        OutputPathError: the path is one of a run's own.
    """
    whole = path.resolve()
    for folder in whole.parents:
        name = whole.relative_to(folder).parts[0]
        if name in OWN and (folder / MANIFEST).is_file() and (folder / RECIPE).is_file():
            raise OutputPathError(f"{path}: belongs to the run in {folder}; choose another name")


def run_folders(folder: Path, *, trials: bool = False) -> Iterator[Path]:
    """The folders of runs in a folder, itself included, sorted by path.

    Hidden folders and links to folders are passed over, and so are trials (see `TUNE`), unless they
    are asked for or the folder is one of a trial, of a value or of all trials of a variant.

    Raises:
        MissingInputError: a folder cannot be read.
    """
    for path in _runs_below(folder, 8):
        near = path, path.parent, path.parent.parent
        if trials or folder in near or not _is_trial(path):
            yield path


def _is_trial(path: Path) -> bool:
    """Whether a run is a trial; a variant may be called so as well."""
    if path.parent.parent.name != TUNE:
        return False
    with suppress(AttnkitError):
        return TRIAL in files.read_json(path / MANIFEST)
    return False


def _runs_below(folder: Path, depth: int) -> Iterator[Path]:
    """The folders of runs in a folder, so many folders down."""
    if (folder / MANIFEST).is_file() and (folder / RECIPE).is_file():
        yield folder
        return
    with files.reading(folder):
        children = sorted(child for child in folder.iterdir() if child.is_dir())
    for child in children if depth else []:
        if not child.name.startswith(".") and not child.is_symlink():
            yield from _runs_below(child, depth - 1)


def checkpoint_folders(run: Path) -> list[Path]:
    """The checkpoints of a run: whole, damaged or left by an interrupted save; none behind a link.

    Raises:
        MissingInputError: the folder cannot be read.
    """
    folder = run / CHECKPOINTS
    if folder.is_symlink() or not folder.is_dir():
        return []
    with files.reading(folder):
        return sorted(path for path in folder.iterdir() if path.name.startswith("step-"))


def size_of(path: Path) -> int:
    """Bytes of a file, or of all files below a folder; links are not followed."""
    with suppress(OSError):  # removed meanwhile
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        return sum(map(size_of, path.iterdir()))
    return 0
