"""Packing the results of a run without its weights: see `attnkit.runs.results_file`.

A results file differs from its run in this:

- weights, tokenizer, checkpoints and the rows that were scored are left out;
- metrics.jsonl is thinned to `MOST` intervals and as many validations;
- whole numbers of outputs/<split>.stats.npz are stored as integers, which changes no value.

The entry `left_out` of manifest.json says so; `files` keeps the SHA-256 of the files that were left
out, and has that of the thinned log.  The same run gives the same bytes.
"""

import hashlib
import io
import lzma
import tarfile
from collections.abc import Sequence
from pathlib import Path

from attnkit.errors import DataError, MissingInputError, OutputPathError
from attnkit.runs import layout
from attnkit.runs.archive import member
from attnkit.runs.results import json_text
from attnkit.runs.results_file import INSIDE, LARGEST, LARGEST_FILE
from attnkit.runs.run import Run
from attnkit.storage import files

PRESET = 6
"""Of xz: it packs 8 MB at a time, which takes 100 MB of memory, and 9 MB to unpack."""
MOST = 100
"""Intervals of the log that are kept, at most, and validations."""


def pack_results(run: Run, folder: Path) -> Path:
    """Write the results file of a scored run below a folder, whole or not at all.

    Returns:
        <folder>/<recipe>/<variant>/seed-<k>.results.tar.xz.

    Raises:
        MissingInputError: the run is not finished or not scored, or lacks a file.
        DataError: a file of the run is damaged, or all of them are too large.
        OutputPathError, OutputError: the file cannot be written.
    """
    run.require_finished()
    run.verify()
    if not run.scores():
        raise MissingInputError(f"{run.path}: not scored yet: run `attnkit eval {run.path}` first")
    target, name = results_path(run, folder), Run.find("", run.name, run.variant, run.seed)
    if target.resolve().is_relative_to(run.path.resolve()) and run.path.is_dir():
        raise OutputPathError(f"{target}: is inside the run that is packed; write it elsewhere")
    packed = io.BytesIO()
    with tarfile.open(mode="w", fileobj=packed, format=tarfile.PAX_FORMAT) as archive:
        for inside, content in sorted(_contents(run).items()):
            added = member(f"{name.as_posix()}/{inside}", len(content))
            archive.addfile(added, io.BytesIO(content))
    content = lzma.compress(packed.getvalue(), preset=PRESET)
    if packed.tell() > LARGEST or len(content) > LARGEST_FILE:
        raise DataError(
            f"{run.path}: its outputs and statistics take {packed.tell() / 1e6:,.0f} MB; a results "
            f"file holds {LARGEST >> 20} MB at most: score fewer splits"
        )
    files.make_folder(target.parent)
    files.atomic_write(target, content)
    return target


def results_path(run: Run, folder: Path) -> Path:
    """The results file of a run below a folder."""
    layout.refuse_trial(run.path, run.manifest)
    return Path(f"{Run.find(folder, run.name, run.variant, run.seed)}{layout.RESULTS_FILE}")


def _contents(run: Run) -> dict[str, bytes]:
    """The files that are kept, by name."""
    scores, manifest = run.scores(), dict(run.manifest)
    hashes = {name: value for name, value in manifest["files"].items() if value is not None}
    notes = [name for name in hashes if INSIDE.fullmatch(name) and name.startswith(layout.DATA)]
    found = {name: run.read(name) for name in (layout.RECIPE, *notes) if run.has(name)}
    for name, entry in scores.items():
        path = run.output_path(name)
        digests = entry.get("digests", {})
        for kind, file in (("outputs", path), ("statistics", _statistics(path))):
            inside = file.relative_to(run.path).as_posix()
            content = run.read(inside)
            if hashlib.sha256(content).hexdigest() != digests.get(kind):
                raise DataError(
                    f"{file}: is not the file that was written (its SHA-256 differs from "
                    f"{layout.SCORES}): score again with `attnkit eval --fresh`"
                )
            found[inside] = content
            if kind == "statistics":
                found[inside] = content = _smaller(content, file)
                digests["statistics"] = hashlib.sha256(content).hexdigest()
    found[layout.SCORES] = json_text(scores).encode("utf-8")
    log, left_out = _thinned(run), manifest.get(layout.LEFT_OUT)
    if log:
        found[layout.LOG] = log
    for name in (layout.SCORES, layout.LOG):
        hashes.pop(name, None)
        if name in found:
            hashes[name] = hashlib.sha256(found[name]).hexdigest()
    missing = [name for name in hashes if name not in found]
    manifest["files"] = {name: hashes[name] for name in sorted(hashes)}
    manifest[layout.LEFT_OUT] = left_out or {
        "files": sorted(missing),
        "log_records": len(run.log.records()),
        "log_sha256": run.log.sha256(),
    }
    sealed = manifest | {"sha256": files.sha256_json(manifest)}
    return found | {layout.MANIFEST: json_text(sealed).encode("utf-8")}


def _statistics(outputs: Path) -> Path:
    """The statistics a line beside outputs."""
    return outputs.with_name(outputs.name.removesuffix(".hyp.txt") + ".stats.npz")


def _smaller(content: bytes, path: Path) -> bytes:
    """The same arrays, whole numbers as the smallest integers that hold them; not compressed."""
    import numpy as np

    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            tables = dict(arrays)
    except (ValueError, OSError, EOFError, KeyError) as error:
        raise DataError(f"{path}: is damaged ({error}): score again with --fresh") from error
    for name, table in tables.items():
        if table.size and np.isfinite(table).all() and np.abs(table).max() < 2**53:
            ends = (int(table.min()), int(table.max()))
            whole = table.astype(np.result_type(*map(np.min_scalar_type, ends)))
            if np.array_equal(whole, table):
                tables[name] = whole
    packed = io.BytesIO()
    np.savez(packed, **tables)
    return packed.getvalue()


def _thinned(run: Run) -> bytes:
    """The log with `MOST` intervals and validations, and what curves need beside these.

    The first and the last ones are among them, and the validation of the chosen weights; before a
    validation stands the interval that says how many tokens had been seen.
    """
    content = run.log.content()
    if run.left_out:
        return content
    lines, records = content.split(b"\n")[:-1], run.log.records()
    validations = [place for place, record in enumerate(records) if "value" in record]
    intervals = [place for place, record in enumerate(records) if "value" not in record]
    kept = {*_spread(intervals), *_spread(validations)}
    kept |= {at for at in validations if records[at]["step"] == run.manifest["finished"]["step"]}
    for place in kept.intersection(validations):
        kept |= {*[at for at in intervals if at < place][-1:]}
    return b"".join(lines[place] + b"\n" for place in sorted(kept))


def _spread(items: Sequence[int]) -> list[int]:
    """At most `MOST` of the items, at equal distances, the first and the last among them."""
    if len(items) <= MOST:
        return [*items]
    return [items[round(place * (len(items) - 1) / (MOST - 1))] for place in range(MOST)]
