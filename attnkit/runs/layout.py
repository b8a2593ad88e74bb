"""Names of a run's files, and the folders that hold runs."""

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from attnkit.errors import AttnkitError, OutputPathError
from attnkit.storage import files

RECIPE, MANIFEST, LOG, LOCK = "recipe.yaml", "manifest.json", "metrics.jsonl", ".lock"
MODEL, SCORES = "model.safetensors", "scores.json"
CHECKPOINTS, OUTPUTS, DATA = "checkpoints", "outputs", "data"
TENSORBOARD, WANDB = "tensorboard", "wandb"  # copies of the log
TUNE = "tune"  # beside the runs of a variant, the folder of the trials that chose its values
EXPORTED = "export.json"  # of an exported model, which has a recipe too
SEED = re.compile(r"seed-\d+", re.ASCII)  # names of runs
STEP = re.compile(r"step-(0|[1-9][0-9]{0,17})", re.ASCII)  # names of checkpoints
TOKENIZERS = ("tokenizer.model", "tokenizer.target.model")
RESULTS = (MODEL, SCORES, LOG, CHECKPOINTS, OUTPUTS, TENSORBOARD, WANDB, DATA)
RESULTS_FILE = ".results.tar.xz"
"""End of the name of a results file: a run without weights; see attnkit.runs.packing."""
OWN = (RECIPE, MANIFEST, LOCK, *RESULTS, *TOKENIZERS)
_OF_LENGTH = re.compile(r"(.+)\.length-(\d+)", re.ASCII)
_OF_QUESTIONS = re.compile(r"(.+?)\.([a-z-]+(?:,[a-z_]+=[^,]+)*)\.(\d+)")


class ScoredSplit(NamedTuple):
    """What outputs and scores are of; as a text, the name under which they are stored."""

    split: str
    length: int | None = None
    """Of generated rows, or of the windows of a text."""
    method: str | None = None
    """By which questions were answered."""
    contexts: int | None = None
    """How many each question had."""

    @classmethod
    def of(cls, name: str) -> "ScoredSplit":
        """By the name."""
        if found := _OF_LENGTH.fullmatch(name):
            return cls(found[1], int(found[2]))
        if found := _OF_QUESTIONS.fullmatch(name):
            return cls(found[1], None, found[2], int(found[3]))
        return cls(name)

    def __str__(self) -> str:
        if self.length is not None:
            return f"{self.split}.length-{self.length}"
        return self.split if self.method is None else f"{self.split}.{self.method}.{self.contexts}"


def component(part: str) -> str:
    """The part itself, if it can be the name of one file or folder.

    Raises OutputPathError: it would lead elsewhere, or is empty.
    """
    if part in ("", ".", "..") or "/" in part or "\0" in part:
        raise OutputPathError(f"{part!r}: cannot be the name of a folder; rename it in the recipe")
    return part


def run_path(out: str | Path, recipe: str, variant: str, seed: int) -> Path:
    """The folder of a run: <out>/<recipe name>/<variant>/seed-<seed>; never outside `out`.

    Raises OutputPathError: a name would leave `out` (..), or cannot be a folder's name.
    """
    parts = [*recipe.split("/"), variant, f"seed-{seed}"]
    return Path(out).joinpath(*map(component, parts))


def without_path(error: Exception, path: Path) -> str:
    """What was wrong, without the path of the run or file that it is told beside."""
    return str(error).replace(f"{path}: ", "").replace(f"{path}/", "")


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path leads into a folder, through links or not."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def refuse_part_of_run(path: Path) -> None:
    """Keep an output of a command from replacing a file of a run.

    Raises OutputPathError: the path is one of a run's own.
    """
    whole = Path(os.path.realpath(path))  # which takes loops of links
    for folder in whole.parents:
        name = whole.relative_to(folder).parts[0]
        if name in OWN and (folder / MANIFEST).is_file() and (folder / RECIPE).is_file():
            raise OutputPathError(f"{path}: belongs to the run in {folder}; choose another name")


def is_results_file(path: Path) -> bool:
    """Whether a path has the name of a results file."""
    return path.name.endswith(RESULTS_FILE)


def require_runs(path: Path, hint: str) -> None:
    """Raise MissingInputError, with a hint, where neither a folder nor a results file is."""
    if not is_results_file(path) or path.is_dir():
        files.require_folder(path, "folder of runs", hint)
    else:
        files.check_file(path)


class FoundPath(NamedTuple):
    """A folder that is a run or was one, a results file, or what hides runs."""

    path: Path
    fault: str = ""
    """Why it is not opened, where its place alone tells."""


def run_paths(path: Path, *, trials: bool = False) -> Iterator[FoundPath]:
    """The runs and results files in a folder, itself included, sorted by path; damaged ones too.

    Hidden folders are passed over, and results files beside their runs.  So are trials (see
    `TUNE`), unless they are asked for or the folder is one of a trial, of a value or of all trials
    of a variant.  Links to folders are not followed: one with a run that is not found elsewhere is
    a fault.
    """
    links, real = list[Path](), set[Path]()
    for found in _runs_below(path, 8, links):
        near = found.path, found.path.parent, found.path.parent.parent
        real.add(found.path.resolve())
        if trials or path in near or not _is_trial(found.path):
            yield found
    for link in links:
        runs = (one.path for one in _runs_below(link, 4, []) if link.exists() and not one.fault)
        if not link.exists() or any(run.resolve() not in real for run in runs):
            yield FoundPath(link, "is a symbolic link, which is not followed; name it itself")


def near(path: Path) -> str:
    """Where there are runs in a folder that is none, for messages; "" where there are none."""
    found = [one.path for one in run_paths(path) if one.path != path]
    runs = [one for one in found if not is_results_file(one)]
    what = "runs" if runs else "results, which have no weights,"
    text = ", ".join(map(str, (runs or found)[:3]))
    return f"; there are {what} in {text}" if text else ""


def _is_trial(path: Path) -> bool:
    """Whether a run is a trial; a variant may be called so as well."""
    if path.parent.parent.name != TUNE:
        return False
    with suppress(AttnkitError):
        return "trial" in files.read_json(path / MANIFEST)
    return False


def _runs_below(path: Path, depth: int, links: list[Path]) -> Iterator[FoundPath]:
    """What is in a folder, so many folders down; links to folders and dead ones go to `links`."""
    if is_results_file(path) and path.is_file():
        yield FoundPath(path)
        return
    try:
        names = sorted(os.listdir(path))
        os.stat(os.path.join(path, "."))  # one may be allowed to list a folder, not to enter it
    except OSError as error:
        yield FoundPath(path, f"cannot be read: {error.strerror}")
        return
    if _was_run(path.name, names):
        yield FoundPath(path)
        return
    for child in (path / name for name in names if depth and not name.startswith(".")):
        if child.is_symlink() and (child.is_dir() or SEED.fullmatch(child.name)):
            links.append(child)
        elif child.is_dir():
            yield from _runs_below(child, depth - 1, links)
        elif is_results_file(child) and child.is_file():
            run = path / child.name.removesuffix(RESULTS_FILE)
            if not (run / MANIFEST).is_file():
                yield FoundPath(child)


def _was_run(name: str, inside: list[str]) -> bool:
    """Whether a folder of this name, with these in it, is a run or what is left of one."""
    parts = {*inside} & {*OWN} - {LOCK}
    most = {*inside} & {RECIPE, MANIFEST, MODEL, LOG, SCORES, CHECKPOINTS, TOKENIZERS[0]}
    if EXPORTED in inside:
        return {RECIPE, MANIFEST} <= most
    return len(most) > 1 or bool(parts and SEED.fullmatch(name))


def checkpoint_folders(run: Path) -> list[Path]:
    """The checkpoints of a run: whole, damaged or left by an interrupted save; none behind a link.

    Raises MissingInputError: the folder cannot be read.
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


def files_below(folder: Path) -> Iterator[Path]:
    """What is in a folder, sorted, but for hidden files, copies of the log and leftovers.

    Links to folders are not followed, but named.
    """
    with files.reading(folder):
        children = sorted(folder.iterdir())
    for child in children:
        if child.name.startswith(".") or child.name in (TENSORBOARD, WANDB) or files.owner(child) is not None:
            continue
        if child.is_dir() and not child.is_symlink():
            yield from files_below(child)
        else:
            yield child
