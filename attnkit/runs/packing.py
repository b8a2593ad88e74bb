"""Results files: the outcome of a run in one file, without its weights.

A results file (`pack_results`),

    <recipe>/<variant>/seed-<k>.results.tar.xz

is an archive of the run's folder with at most recipe.yaml, manifest.json, metrics.jsonl, scores.json, outputs/ and the
JSON files of data/. `Run` opens it like a folder, without unpacking it to disk. It differs from its run:

- weights, tokenizer, checkpoints and the rows that were scored are omitted;
- metrics.jsonl is thinned to `MAX_RECORDS` intervals and as many validations;
- outputs/<split>.stats.npz is stored without its own compression.

The entry `left_out` of manifest.json records this; `files` keeps the SHA-256 of omitted files and has that of the
thinned log. The same run gives the same bytes.
"""

import hashlib
import io
import json
import lzma
import re
import tarfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from attnkit.errors import DataError, MissingInputError, OutputPathError
from attnkit.runs import json_files, layout
from attnkit.storage import files

if TYPE_CHECKING:
    from attnkit.runs.run import Run

MAX_FILE_BYTES, MAX_BYTES, MAX_FILES = 64 << 20, 256 << 20, 1000
"""Maximum bytes of a results file, of all files in it, and their maximum number."""
MEMORY = 128 << 20
"""Maximum bytes of memory for unpacking, besides the content; every preset of xz needs less."""
PACKED = re.compile(
    r"recipe\.yaml|manifest\.json|metrics\.jsonl|scores\.json"
    r"|outputs/[^/]+\.(hyp\.txt|stats\.npz)|data/[^/]+\.json"
)
"""Names of files in a results file."""
PRESET = 6
"""Preset of xz: blocks of 8 MB, for which packing needs 100 MB of memory and unpacking 9 MB."""
MAX_RECORDS = 100
"""Maximum number of log intervals that are kept, and of validations."""
MTIME = 315532800
"""Modification time of every file in an archive: 1980-01-01, which no tar considers implausible."""
_DAMAGE = (lzma.LZMAError, tarfile.TarError, ValueError, LookupError, OverflowError, RecursionError)


def read_results(path: Path) -> dict[str, bytes]:
    """Return the files of a results file by their names in the run.

    Nothing is written, and no more than the limits above is read; links, devices and names that a run does not have
    are rejected.

    Raises:
        MissingInputError: If there is no such regular file.
        DataError: If the file is damaged, or not a results file.
    """
    with files.open_file(path) as file, files.reading(path):
        packed = file.read(MAX_FILE_BYTES + 1)
    try:
        if len(packed) > MAX_FILE_BYTES:
            raise ValueError(f"larger than {MAX_FILE_BYTES >> 20} MB")
        unpacker = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MEMORY)
        content = unpacker.decompress(packed, MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise ValueError(f"holds more than {MAX_BYTES >> 20} MB")
        if not unpacker.eof or unpacker.unused_data:
            raise ValueError("cut off" if not unpacker.eof else "data after its end")
        return dict(_members(content))
    except _DAMAGE as error:
        raise DataError(
            f"{path}: is damaged or not a results file ({error}); restore it from a copy, or write "
            "it again with `attnkit runs pack RUN --results`"
        ) from error


def _members(content: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield names in the run and contents. Raises ValueError for anything that does not belong there."""
    names = set[str]()
    with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as archive:
        members = list(islice(archive, MAX_FILES + 1))
        if len(members) > MAX_FILES:
            raise ValueError(f"more than {MAX_FILES} files")
        manifests = [member.name for member in members if member.name.endswith(f"/{layout.MANIFEST}")]
        if len(manifests) != 1:
            raise ValueError(f"{len(manifests)} files {layout.MANIFEST} instead of one")
        folder = manifests[0].removesuffix(layout.MANIFEST)
        for member in members:
            name = member.name.removeprefix(folder)
            quoted = json.dumps(member.name[:100])
            if member.type != tarfile.REGTYPE or member.issparse():
                raise ValueError(f"{quoted} is not a regular file")
            if not member.name.startswith(folder) or not PACKED.fullmatch(name) or name in names:
                raise ValueError(f"{quoted} is unexpected")
            file = archive.extractfile(member)
            data = b"" if file is None else file.read()
            if len(data) != member.size:
                raise ValueError(f"{quoted} is cut off")
            names.add(name)
            yield name, data


def pack_results(run: "Run", folder: Path) -> Path:
    """Write the results file of a scored run below a folder, atomically, and return its path (see `results_path`).

    Raises:
        MissingInputError: If the run is not finished or not scored, or lacks a file.
        DataError: If a file of the run is damaged, or all of them are too large.
        OutputPathError, OutputError: If the file cannot be written.
    """
    run.require_finished()
    run.verify()
    if not run.scores():
        raise MissingInputError(f"{run.path}: not scored yet: run `attnkit eval {run.path}` first")
    target, root = results_path(run, folder), layout.run_path("", run.name, run.variant, run.seed)
    if layout.is_inside(target, run.path) and run.path.is_dir():
        raise OutputPathError(f"{target}: is inside the run that is packed; write it elsewhere")
    packed = io.BytesIO()
    with run.unchanged(), tarfile.open(mode="w", fileobj=packed, format=tarfile.PAX_FORMAT) as archive:
        for name, content in sorted(_contents(run).items()):
            info = tarfile.TarInfo(f"{root.as_posix()}/{name}")
            info.size, info.mtime, info.mode = len(content), MTIME, 0o644
            archive.addfile(info, io.BytesIO(content))
    content = lzma.compress(packed.getvalue(), preset=PRESET)
    if packed.tell() > MAX_BYTES or len(content) > MAX_FILE_BYTES:
        raise DataError(
            f"{run.path}: its outputs and statistics take {packed.tell() / 1e6:,.0f} MB; a results "
            f"file holds at most {MAX_BYTES >> 20} MB: score fewer splits"
        )
    files.make_folder(target.parent)
    files.write_output(target, content)
    return target


def results_path(run: "Run", folder: Path) -> Path:
    """Return <folder>/<recipe>/<variant>/seed-<k>.results.tar.xz of a run. Raises OutputPathError for a trial."""
    if trial := run.manifest.trial:
        raise OutputPathError(
            f"{run.path}: is a trial of {trial.key}; pack the runs of its variant, whose manifests hold the "
            "result of each trial"
        )
    return Path(f"{layout.run_path(folder, run.name, run.variant, run.seed)}{layout.RESULTS_FILE}")


def _contents(run: "Run") -> dict[str, bytes]:
    """Return the files to pack, by name."""
    stored, scores = run.read_scores()
    hashes = {name: value for name, value in run.manifest.files.items() if value is not None}
    notes = [name for name in hashes if PACKED.fullmatch(name) and name.startswith(layout.DATA)]
    contents = {name: run.read(name) for name in (layout.RECIPE, *notes) if run.has(name)}
    for name, entry in scores.items():
        path, statistics, digests = run.output_path(name), run.statistics_path(name), entry.digests
        for file, digest in ((path, digests.outputs), (statistics, digests.statistics)):
            packed_name = file.relative_to(run.path).as_posix()
            content = run.read(packed_name)
            if hashlib.sha256(content).hexdigest() != digest:
                raise DataError(
                    f"{file}: was changed (its SHA-256 differs from {layout.SCORES}): score again with "
                    "`attnkit eval --fresh`"
                )
            contents[packed_name] = content
            if file == statistics:
                contents[packed_name] = content = _uncompressed(content, file)
                stored[name]["digests"]["statistics"] = hashlib.sha256(content).hexdigest()
    contents[layout.SCORES] = files.json_text(stored).encode("utf-8")
    if log := _thinned(run):
        contents[layout.LOG] = log
    for name in (layout.SCORES, layout.LOG):
        hashes.pop(name, None)
        if name in contents:
            hashes[name] = hashlib.sha256(contents[name]).hexdigest()
    missing = [name for name in hashes if name not in contents]
    manifest = run.read_json(layout.MANIFEST)
    manifest["files"] = {name: hashes[name] for name in sorted(hashes)}
    if run.manifest.left_out is None:
        manifest["left_out"] = {
            "files": sorted(missing),
            "log_records": len(run.log.records()),
            "log_sha256": run.log.sha256(),
        }
    return contents | {layout.MANIFEST: files.json_text(json_files.seal(manifest)).encode("utf-8")}


def _uncompressed(content: bytes, path: Path) -> bytes:
    """Return the same arrays uncompressed: xz packs them better than their own compression."""
    import numpy as np

    packed = io.BytesIO()
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            np.savez(packed, **arrays)
    except (ValueError, OSError, EOFError, KeyError) as error:
        raise DataError(f"{path}: is damaged ({error}): score again with --fresh") from error
    return packed.getvalue()


def _thinned(run: "Run") -> bytes:
    """Return the log with `MAX_RECORDS` intervals and validations, and the records that curves need besides.

    The first and the last ones are kept, and the validation of the selected weights; before each validation, the
    interval that has its number of tokens.
    """
    content = run.log.content()
    if run.left_out:
        return content
    lines, records = content.split(b"\n")[:-1], run.log.records()
    validations = [index for index, record in enumerate(records) if "value" in record]
    intervals = [index for index, record in enumerate(records) if "value" not in record]
    kept = {*_spread(intervals), *_spread(validations)}
    kept |= {index for index in validations if records[index]["step"] == run.outcome.step}
    for validation in kept.intersection(validations):
        kept.update([index for index in intervals if index < validation][-1:])
    return b"".join(lines[index] + b"\n" for index in sorted(kept))


def _spread(items: Sequence[int]) -> list[int]:
    """Return at most `MAX_RECORDS` items at equal distances, including the first and the last."""
    if len(items) <= MAX_RECORDS:
        return [*items]
    return [items[round(index * (len(items) - 1) / (MAX_RECORDS - 1))] for index in range(MAX_RECORDS)]
