"""The trained model that comes with attnkit: the word `demo`, wherever a run is named."""

import re
import shutil
from contextlib import suppress
from pathlib import Path

from attnkit.errors import DataError, OutputError, OutputPathError
from attnkit.runs import json_files, layout
from attnkit.storage import files
from attnkit.storage.cache import cache_dir, read_or_build

DEMO = "demo"
SHIPPED = Path(__file__).parents[1] / "_demo"
"""A run of recipes/quickstart.yaml with weights in half precision; benchmarks/demo_model.py makes it."""
_DIGITS = 12


def located(name: str | Path) -> Path:
    """The path that a name leads to: itself, but for `demo` where nothing here is called so.

    The demo's folder is a copy in the cache, since scores are written beside the weights; where no
    cache can be written, it is the folder of the package.
    """
    path = Path(name)
    if path != Path(DEMO) or path.exists():
        return path
    digest = files.sha256_file(SHIPPED / "manifest.json")[:_DIGITS]
    with suppress(OutputPathError, OutputError):
        return read_or_build(cache_dir() / DEMO / digest, _require, _copy)
    return SHIPPED


def named(text: str) -> str:
    """A text in which the folder of the demo has its name."""
    return re.sub(re.escape(str(cache_dir() / DEMO)) + f"/[0-9a-f]{{{_DIGITS}}}", DEMO, text)


def _require(folder: Path) -> Path:
    """The folder, if its files are those of the package; scores may have been added."""
    manifest = folder / layout.MANIFEST
    json_files.opened(files.read_json(manifest), json_files.Manifest, str(manifest))
    for name, digest in json_files.read(SHIPPED / layout.MANIFEST, json_files.Manifest).files.items():
        if files.sha256_file(folder / name) != digest:
            raise DataError(f"{folder / name}: is not the file of the package")
    return folder


def _copy(folder: Path) -> None:
    shutil.copytree(SHIPPED, folder, dirs_exist_ok=True)
