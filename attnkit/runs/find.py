"""Finding runs in folders."""

from collections.abc import Callable, Iterable
from pathlib import Path

from attnkit.errors import MissingInputError
from attnkit.runs.layout import MANIFEST, run_folders
from attnkit.runs.run import Run

CONFIG = "config.json"
"""What a folder with a Hugging Face model holds."""


def is_run(name: str) -> bool:
    """Whether a model named on the command line is a run; else it is a Hugging Face model.

    Raises:
        MissingInputError: it is a folder of neither, or a path below a folder that exists.
    """
    path = Path(name)
    if (path / MANIFEST).exists():
        return True
    if path.is_dir() and not (path / CONFIG).exists():
        raise MissingInputError(
            f"{name}: neither a finished run ({MANIFEST}) nor a Hugging Face model ({CONFIG}) is "
            "here; a run is a seed-N folder"
        )
    if not path.exists() and len(path.parts) > 1 and Path(path.parts[0]).exists():
        raise MissingInputError(f"{name}: no such folder")
    return False


def find_runs(
    paths: Iterable[str | Path], *, note: Callable[[str], object] | None = None
) -> list[Run]:
    """The finished runs in run folders, variant folders, recipe folders or roots of runs.

    Sorted by recipe, variant and seed.  Unfinished ones are skipped, and `note` is called with a
    sentence about each.

    Raises:
        MissingInputError: a path does not exist, or no finished run is in any of them.
        DataError: a manifest is damaged.
    """
    finished: dict[Path, Run] = {}
    unfinished = []
    folders = [Path(path) for path in paths]
    for folder in folders:
        if not folder.is_dir():
            raise MissingInputError(f"{folder}: no such folder of runs")
        for path in run_folders(folder):
            run = Run.open(path)
            if run.finished:
                finished.setdefault(path.resolve(), run)
            else:
                unfinished.append(f"{path}: training is not finished; skipped")
    if not finished:
        where = ", ".join(map(str, folders)) or "no folder given"
        why = f"{len(unfinished)} unfinished" if unfinished else "`attnkit train RECIPE` makes one"
        raise MissingInputError(f"{where}: no finished run is here ({why})")
    if note is not None:
        for text in unfinished:
            note(text)
    return sorted(finished.values(), key=lambda run: (run.name, run.variant, run.seed))
