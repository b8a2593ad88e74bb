"""Results files: what a run came to, in one file without its weights.

    <recipe>/<variant>/seed-<k>.results.tar.xz

is an archive of the run's folder with recipe.yaml, manifest.json, metrics.jsonl, scores.json,
outputs/ and the notes of data/, at most; `attnkit.runs.results_pack` writes it.  A `Run` opens it
like a folder: nothing is unpacked to the disk.
"""

import io
import json
import lzma
import re
import tarfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from attnkit.errors import DataError
from attnkit.runs import layout
from attnkit.storage import files

LARGEST_FILE, LARGEST, MOST_FILES = 64 << 20, 256 << 20, 1000
"""Bytes of a results file, of all files in it, and their number, at most."""
MEMORY = 128 << 20
"""Bytes that unpacking may take beside the content; any preset of xz takes less."""
INSIDE = re.compile(
    r"recipe\.yaml|manifest\.json|metrics\.jsonl|scores\.json"
    r"|outputs/[^/]+\.(hyp\.txt|stats\.npz)|data/[^/]+\.json"
)
"""Names of files in it."""
MALFORMED = (lzma.LZMAError, tarfile.TarError, ValueError, LookupError, OverflowError,
             RecursionError)  # fmt: skip
"""What reading a damaged archive raises."""


def read_results(path: Path) -> dict[str, bytes]:
    """The files of a results file by their names in the run.

    Nothing is written, and no more than the limits above is read; links, devices and names that a
    run does not have are refused.

    Raises:
        MissingInputError: there is no such regular file.
        DataError: it is damaged, or no results file.
    """
    with files.open_file(path) as file, files.reading(path):
        packed = file.read(LARGEST_FILE + 1)
    try:
        return dict(_members(_unpacked(packed)))
    except MALFORMED as error:
        raise DataError(
            f"{path}: is damaged or no results file ({error}); restore it from a copy, or write "
            "it again with `attnkit runs pack RUN --results`"
        ) from error


def _unpacked(packed: bytes) -> bytes:
    """The archive without its compression."""
    if len(packed) > LARGEST_FILE:
        raise ValueError(f"larger than {LARGEST_FILE >> 20} MB")
    unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
    content = unpacker.decompress(packed, LARGEST + 1)
    if len(content) > LARGEST:
        raise ValueError(f"holds more than {LARGEST >> 20} MB")
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("cut off" if not unpacker.eof else "something follows it")
    return content


def _members(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Names in the run, and contents; a ValueError about what does not belong there."""
    names = set[str]()
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        members = list(islice(archive, MOST_FILES + 1))
        if len(members) > MOST_FILES:
            raise ValueError(f"more than {MOST_FILES} files")
        manifests = [one.name for one in members if one.name.endswith(f"/{layout.MANIFEST}")]
        if len(manifests) != 1:
            raise ValueError(f"{len(manifests)} files {layout.MANIFEST}, should be one")
        folder = manifests[0].removesuffix(layout.MANIFEST)
        for one in members:
            name = one.name.removeprefix(folder)
            shown = json.dumps(one.name[:100])
            if one.type != tarfile.REGTYPE or one.issparse():
                raise ValueError(f"{shown} is no plain file")
            if not one.name.startswith(folder) or not INSIDE.fullmatch(name) or name in names:
                raise ValueError(f"{shown} does not belong in it")
            file = archive.extractfile(one)
            data = b"" if file is None else file.read()
            if len(data) != one.size:
                raise ValueError(f"{shown} is cut off")
            names.add(name)
            yield name, data
