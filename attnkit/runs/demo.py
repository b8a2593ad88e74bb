"""The trained model that is shipped with attnkit: `demo`, wherever a run is named."""

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
"""Run of recipes/quickstart.yaml with weights in half precision, made by benchmarks/demo_model.py."""
_DIGITS = 12


def located(name: str | Path) -> Path:
    """Return a path unchanged, except `demo`, which is the shipped run unless such a path exists.

    The demo's folder is a copy in the cache, because scores are written beside the weights; if no cache is writable,
    it is the package's own folder.
    """
    path = Path(name)
    if path != Path(DEMO) or path.exists():
        return path
    digest = files.sha256_file(SHIPPED / "manifest.json")[:_DIGITS]
    with suppress(OutputPathError, OutputError):
        return read_or_build(cache_dir() / DEMO / digest, _require, _copy)
    return SHIPPED


def named(text: str) -> str:
    """Return a text in which the demo's cache folder is replaced by `demo`."""
    return re.sub(re.escape(str(cache_dir() / DEMO)) + f"/[0-9a-f]{{{_DIGITS}}}", DEMO, text)


def _require(folder: Path) -> Path:
    """Return the folder if its files equal the package's; scores may have been added."""
    manifest = folder / layout.MANIFEST
    json_files.validate_manifest(files.read_json(manifest), json_files.Manifest, str(manifest))
    for name, digest in json_files.read(SHIPPED / layout.MANIFEST, json_files.Manifest).files.items():
        if files.sha256_file(folder / name) != digest:
            raise DataError(f"{folder / name}: differs from the file of the package")
    return folder


def _copy(folder: Path) -> None:
    shutil.copytree(SHIPPED, folder, dirs_exist_ok=True)
