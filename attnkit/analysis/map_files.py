"""Files of attention maps: npz for programs, csv for tables.

An npz file has a float32 array [layers, heads, queries, keys] for each kind (encoder, decoder, cross; those of a
reference begin with `reference.`), the texts of the tokens as arrays (`cross.queries` and `cross.keys` for `cross`),
and as `capture` the UTF-8 bytes of one JSON object:

    {"format": "attnkit-maps", "version": 1,
     "source": ..., "output": ..., "how": ..., "model": ..., "facts": {...}, "reference": null,
     "maps": {kind: {"layers": [{"number": 0, "mechanism": ..., "exact": ..., "static": ...,
                                 "distance": null}, ...],
                     "heads": [0, ...], "step": "output" or "input" (tokens that label cross rows),
                     "queries": [[text, id, word, special], ...], "keys": [...],
                     "hidden": [] or, if the first column is omitted, [its key]}}}

The same maps give the same bytes, and the file contains no code. A csv has one row per weight; keys are numbered from
1 if the first is omitted, and a spreadsheet runs no token as a formula (`_cell`).
"""

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit.analysis.maps import Capture
from attnkit.errors import UsageError
from attnkit.storage.files import write_output
from attnkit.text import quoted, safe_text

FORMAT, VERSION = "attnkit-maps", 1
SUFFIXES = (".npz", ".csv")
JSON = "capture"
"""Name of the description in an npz file."""
HEADER = "kind,layer,head,query,key,query_token,key_token,weight,step\n"
_REFERENCE = "reference."
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")

Arrays = dict[str, Float[NDArray[np.float32], "L H T S"]]


def check_suffix(path: Path, known: Sequence[str] = SUFFIXES) -> str:
    """Return the suffix of a path in lower case. Raises UsageError if it is not in `known`."""
    suffix = path.suffix.lower()
    if suffix not in known:
        names = ", ".join(known)
        raise UsageError(f"{path}: unknown suffix {quoted(path.suffix)}; choose from {names}")
    return suffix


def save(path: Path, capture: Capture) -> None:
    """Write all maps atomically. Raises UsageError for the suffix, OutputPathError or OutputError if not writable."""
    if check_suffix(path) == ".csv":
        write_output(path, _table(capture))
        return
    text = json.dumps({"format": FORMAT, "version": VERSION} | _description(capture))
    named: dict[str, Any] = {JSON: np.frombuffer(text.encode("ascii"), np.uint8)}
    named |= _arrays(capture)
    for kind, maps in capture.maps.items():
        for axis in ("queries", "keys"):
            named[f"{kind}.{axis}"] = np.array([token.text for token in getattr(maps, axis)])
    packed = io.BytesIO()
    np.savez(packed, **named)
    write_output(path, packed.getvalue())


def _arrays(capture: Capture, prefix: str = "") -> Arrays:
    """Return the weights by their names in a file."""
    found = {f"{prefix}{kind}": np.ascontiguousarray(maps.weights) for kind, maps in capture.maps.items()}
    if capture.reference is not None:
        found |= _arrays(capture.reference, _REFERENCE)
    return found


def _description(capture: Capture) -> dict[str, Any]:
    """Return everything but the weights, for JSON."""
    plain = {f.name: getattr(capture, f.name) for f in fields(capture)}
    plain["maps"] = {
        kind: {
            "layers": [layer._asdict() for layer in maps.layers],
            "heads": maps.heads,
            "step": maps.step,
            "queries": maps.queries,
            "keys": maps.keys,
            "hidden": maps.hidden,
        }
        for kind, maps in capture.maps.items()
    }
    if capture.reference is not None:
        plain["reference"] = _description(capture.reference)
    return plain


def _table(capture: Capture) -> Iterator[bytes]:
    """Yield a csv in pieces, one per query; kinds of the reference are named like `cross-reference`."""
    yield HEADER.encode()
    for part, suffix in ((capture, ""), (capture.reference, "-reference")):
        for kind, maps in part.maps.items() if part is not None else ():
            queries = [_cell(token.text) for token in maps.queries]
            keys = list(enumerate((_cell(token.text) for token in maps.keys), len(maps.hidden)))
            heads = [(layer.number, head) for layer in maps.layers for head in maps.heads]
            tables = maps.weights.reshape(len(heads), *maps.weights.shape[2:])
            for (layer, head), table in zip(heads, tables, strict=True):
                for row, weights in enumerate(table.astype(str)):
                    start = f"{kind}{suffix},{layer},{head},{row},"
                    lines = (
                        f"{start}{column},{queries[row]},{key},{weight},{maps.step}\n"
                        for (column, key), weight in zip(keys, weights, strict=True)
                    )
                    yield "".join(lines).encode()


def _cell(text: str) -> str:
    """Return a token for a csv: control characters visible, quoted if needed, never a formula.

    A spreadsheet would run a text that begins with = + - @ (or their full-width forms), so such tokens get an
    apostrophe in front; an npz has them unchanged.
    """
    shown = safe_text(text).replace("\n", "\\n").replace("\t", "\\t")
    if shown.lstrip().startswith(_FORMULA):
        shown = f"'{shown}"
    if any(char in shown for char in ',"'):
        return '"' + shown.replace('"', '""') + '"'
    return shown
