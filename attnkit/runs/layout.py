"""Where a run's files are, and where runs are."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from attnkit.errors import OutputPathError
from attnkit.storage import files

RECIPE, MANIFEST, LOG, LOCK = "recipe.yaml", "manifest.json", "metrics.jsonl", ".lock"
MODEL, SCORES = "model.safetensors", "scores.json"
CHECKPOINTS, OUTPUTS, TENSORBOARD = "checkpoints", "outputs", "tensorboard"
TOKENIZERS = ("tokenizer.model", "tokenizer.target.model")
RESULTS = (MODEL, SCORES, LOG, CHECKPOINTS, OUTPUTS, TENSORBOARD)


def component(part: str) -> str:
    """The part itself, if it can be the name of one file or folder.

    Raises:
        OutputPathError: it would lead elsewhere, or is empty.
    """
    if part in ("", ".", "..") or "/" in part or "\0" in part:
        raise OutputPathError(f"{part!r}: cannot be the name of a folder; rename it in the recipe")
    return part


def is_run(folder: Path) -> bool:
    """Whether a folder has what makes it a run."""
    return (folder / MANIFEST).is_file() and (folder / RECIPE).is_file()


def below(folder: Path, depth: int = 8) -> Iterator[Path]:
    """The runs in a folder, itself included, sorted by path.

    Hidden folders and links to folders are passed over.

    Raises:
        MissingInputError: a folder cannot be read.
    """
    if is_run(folder):
        yield folder
        return
    try:
        children = sorted(child for child in folder.iterdir() if child.is_dir())
    except OSError as error:
        raise files.input_error(error, folder) from error
    for child in children if depth else []:
        if not child.name.startswith(".") and not child.is_symlink():
            yield from below(child, depth - 1)


def hint(folder: Path) -> str:
    """For an error message: which runs lie close below a folder that is not one."""
    names = [str(path) for path in islice(below(folder, 3), 3)]
    return f"; there are runs in {', '.join(names)}" if names else ""
