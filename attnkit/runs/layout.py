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
TUNE = "tune"  # folder of the trials of a variant, beside its runs
EXPORTED = "export.json"  # file of an exported model, which has a recipe too
SEED = re.compile(r"seed-\d+", re.ASCII)  # names of runs
STEP = re.compile(r"step-(0|[1-9][0-9]{0,17})", re.ASCII)  # names of checkpoints
TOKENIZERS = ("tokenizer.model", "tokenizer.target.model")
RESULTS = (MODEL, SCORES, LOG, CHECKPOINTS, OUTPUTS, TENSORBOARD, WANDB, DATA)
RESULTS_FILE = ".results.tar.xz"
"""Suffix of results files, which are runs without weights; see attnkit.runs.packing."""
RUN_FILES = (RECIPE, MANIFEST, LOCK, *RESULTS, *TOKENIZERS)
_OF_LENGTH = re.compile(r"(.+)\.length-(\d+)", re.ASCII)
_OF_QUESTIONS = re.compile(r"(.+?)\.([a-z-]+(?:,[a-z_]+=[^,]+)*)\.(\d+)")


class ScoredSplit(NamedTuple):
    """What outputs and scores belong to; as a string, the name under which they are stored."""

    split: str
    length: int | None = None
    """Length of generated rows, or of the windows of a text."""
    method: str | None = None
    """Method that answered the questions."""
    contexts: int | None = None
    """Number of contexts per question."""

    @classmethod
    def of(cls, name: str) -> "ScoredSplit":
        """Parse the name under which outputs and scores are stored."""
        if match := _OF_LENGTH.fullmatch(name):
            return cls(match[1], int(match[2]))
        if match := _OF_QUESTIONS.fullmatch(name):
            return cls(match[1], None, match[2], int(match[3]))
        return cls(name)

    def __str__(self) -> str:
        if self.length is not None:
            return f"{self.split}.length-{self.length}"
        return self.split if self.method is None else f"{self.split}.{self.method}.{self.contexts}"


def component(part: str) -> str:
    """Return the name of a single file or folder. Raises OutputPathError if it is empty or leads elsewhere."""
    if part in ("", ".", "..") or "/" in part or "\0" in part:
        raise OutputPathError(f"{part!r}: cannot be the name of a folder; rename it in the recipe")
    return part


def run_path(out: str | Path, recipe: str, variant: str, seed: int) -> Path:
    """Return <out>/<recipe>/<variant>/seed-<seed>, always inside `out`. Raises OutputPathError for an invalid name."""
    parts = [*recipe.split("/"), variant, f"seed-{seed}"]
    return Path(out).joinpath(*map(component, parts))


def without_path(error: Exception, path: Path) -> str:
    """Return the message of an error without the path of the run or file that is displayed beside it."""
    return str(error).replace(f"{path}: ", "").replace(f"{path}/", "")


def is_inside(path: Path, folder: Path) -> bool:
    """Return whether a path leads into a folder, after links are resolved."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def refuse_part_of_run(path: Path) -> None:
    """Raise OutputPathError if the output of a command would replace a file of a run."""
    real_path = Path(os.path.realpath(path))  # accepts loops of links
    for folder in real_path.parents:
        name = real_path.relative_to(folder).parts[0]
        if name in RUN_FILES and (folder / MANIFEST).is_file() and (folder / RECIPE).is_file():
            raise OutputPathError(f"{path}: belongs to the run in {folder}; choose another name")


def is_results_file(path: Path) -> bool:
    """Return whether a path is named like a results file."""
    return path.name.endswith(RESULTS_FILE)


def require_runs(path: Path, hint: str) -> None:
    """Raise MissingInputError, with a hint, unless the path is a folder or a results file."""
    if not is_results_file(path) or path.is_dir():
        files.require_folder(path, "folder of runs", hint)
    else:
        files.check_file(path)


class FoundPath(NamedTuple):
    """A run folder (whole or damaged), a results file, or a path that hides runs."""

    path: Path
    fault: str = ""
    """Why the path cannot be opened, if its location alone tells."""


def run_paths(path: Path, *, trials: bool = False) -> Iterator[FoundPath]:
    """Yield the runs and results files in a folder, including the folder itself, sorted by path; damaged ones too.

    Hidden folders and results files beside their runs are skipped. So are trials (see `TUNE`), unless `trials` is set
    or the folder is that of a trial, a value, or all trials of a variant. Links to folders are not followed: a dead
    link, or a link to a run that is not found elsewhere, is a fault.
    """
    links, real = list[Path](), set[Path]()
    for found in _runs_below(path, 8, links):
        folders = found.path, found.path.parent, found.path.parent.parent
        real.add(found.path.resolve())
        if trials or path in folders or not _is_trial(found.path):
            yield found
    for link in links:
        runs = (found.path for found in _runs_below(link, 4, []) if link.exists() and not found.fault)
        if not link.exists() or any(run.resolve() not in real for run in runs):
            yield FoundPath(link, "is a symbolic link, which is not followed; name its target")


def runs_hint(path: Path) -> str:
    """Return a hint at the runs below a folder that is not a run, for messages; empty if there are none."""
    found = [below.path for below in run_paths(path) if below.path != path]
    runs = [below for below in found if not is_results_file(below)]
    kind = "runs" if runs else "results, which have no weights,"
    text = ", ".join(map(str, (runs or found)[:3]))
    return f"; there are {kind} in {text}" if text else ""


def _is_trial(path: Path) -> bool:
    """Return whether a run is a trial, by its manifest: a variant may have the name `TUNE` as well."""
    if path.parent.parent.name != TUNE:
        return False
    with suppress(AttnkitError):
        return "trial" in files.read_json(path / MANIFEST)
    return False


def _runs_below(path: Path, depth: int, links: list[Path]) -> Iterator[FoundPath]:
    """Yield the runs down to a depth; add links to folders, and dead links named as runs, to `links`."""
    if is_results_file(path) and path.is_file():
        yield FoundPath(path)
        return
    try:
        names = sorted(os.listdir(path))
        os.stat(os.path.join(path, "."))  # permission to list a folder is not permission to enter it
    except OSError as error:
        yield FoundPath(path, f"cannot be read: {error.strerror}")
        return
    if _looks_like_run(path.name, names):
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


def _looks_like_run(name: str, entries: list[str]) -> bool:
    """Return whether a folder with this name and these files is a run, or what is left of a run."""
    run_files = {*entries} & {*RUN_FILES} - {LOCK}
    main_files = {*entries} & {RECIPE, MANIFEST, MODEL, LOG, SCORES, CHECKPOINTS, TOKENIZERS[0]}
    if EXPORTED in entries:
        return {RECIPE, MANIFEST} <= main_files
    return len(main_files) > 1 or bool(run_files and SEED.fullmatch(name))


def checkpoint_folders(run: Path) -> list[Path]:
    """Return the checkpoints of a run, with damaged ones and leftovers of interrupted saves; none behind a link.

    Raises MissingInputError if the folder cannot be read.
    """
    folder = run / CHECKPOINTS
    if folder.is_symlink() or not folder.is_dir():
        return []
    with files.reading(folder):
        return sorted(path for path in folder.iterdir() if path.name.startswith("step-"))


def size_of(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder; links are not followed."""
    with suppress(OSError):  # removed in the meantime
        if path.is_symlink() or not path.is_dir():
            return path.lstat().st_size
        return sum(map(size_of, path.iterdir()))
    return 0


def files_below(folder: Path) -> Iterator[Path]:
    """Yield files and links below a folder, sorted, without hidden files, copies of the log and leftovers."""
    with files.reading(folder):
        children = sorted(folder.iterdir())
    for child in children:
        if child.name.startswith(".") or child.name in (TENSORBOARD, WANDB) or files.owner(child) is not None:
            continue
        if child.is_dir() and not child.is_symlink():
            yield from files_below(child)
        else:
            yield child
