"""Files of attention maps: npz and safetensors for programs, csv for tables.

An npz or safetensors file holds an array of float32 [layers, heads, queries, keys] for each kind
(encoder, decoder, cross; `reference.` before those of a reference) and one JSON object, in an npz
the UTF-8 bytes of the array `capture`, in safetensors the entry `capture` of the metadata:

    {"format": "attnkit-maps", "version": 1,
     "source": ..., "output": ..., "how": ..., "model": ..., "facts": {...}, "reference": null,
     "maps": {kind: {"layers": [{"number": 0, "mechanism": ..., "exact": ..., "static": ...,
                                 "distance": null}, ...],
                     "heads": [0, ...],
                     "queries": [[text, id, word, special], ...], "keys": [...]}}}

The same maps give the same bytes, nothing in them is code, and reading gives back what was saved.
A csv has a row for each weight and cannot be read back; its tokens are made safe to open (`_cell`).
"""

import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit.analysis.maps import KINDS, AttentionMaps, Capture, Kind, MapLayer, Token
from attnkit.errors import DataError, UsageError
from attnkit.storage.files import (
    DISK,
    Filesystem,
    atomic_write,
    input_error,
    parse_object,
    require_file,
)
from attnkit.text import quoted, safe_text

FORMAT, VERSION = "attnkit-maps", 1
SUFFIXES = (".npz", ".safetensors", ".csv")
JSON = "capture"
"""Where the description is."""
HEADER = "kind,layer,head,query,key,query_token,key_token,weight\n"
_REFERENCE = "reference."
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_LONGEST_HEADER = 16 << 20
_MALFORMED = (
    DataError, ValueError, TypeError, LookupError, EOFError, zipfile.BadZipFile,
    NotImplementedError, OverflowError, MemoryError, AttributeError,
)  # fmt: skip

Arrays = dict[str, Float[NDArray[np.float32], "L H T S"]]


def check_suffix(path: Path, suffixes: tuple[str, ...] = SUFFIXES) -> str:
    """The suffix of a file that can be written, in small letters.

    Raises:
        UsageError: it is another one.
    """
    suffix = path.suffix.lower()
    if suffix not in suffixes:
        known = f"{', '.join(suffixes[:-1])} or {suffixes[-1]}"
        raise UsageError(f"{path}: suffix {quoted(path.suffix)} is not known; use {known}")
    return suffix


def save(path: Path, capture: Capture, fs: Filesystem = DISK) -> None:
    """Write all maps of a capture to a file of the kind that its suffix names, whole or not at all.

    Raises:
        UsageError: the suffix is none of SUFFIXES.
        OutputPathError, OutputError: the file cannot be written.
    """
    suffix = check_suffix(path)
    if suffix == ".csv":
        atomic_write(path, _table(capture), fs)
        return
    arrays = _arrays(capture)
    text = json.dumps({"format": FORMAT, "version": VERSION} | _description(capture))
    if suffix == ".npz":
        packed = io.BytesIO()
        named: dict[str, Any] = {JSON: np.frombuffer(text.encode("ascii"), np.uint8), **arrays}
        np.savez(packed, **named)
        atomic_write(path, packed.getvalue(), fs)
    else:
        from safetensors.numpy import save as serialised

        atomic_write(path, serialised(arrays, {JSON: text}), fs)


def load(path: Path) -> Capture:
    """Read what `save` wrote, npz or safetensors.

    Raises:
        UsageError: the suffix is neither.
        MissingInputError: there is no such file.
        DataError: it is damaged, of a later version, or no file of maps.
    """
    from safetensors import SafetensorError

    suffix = check_suffix(path, SUFFIXES[:2])
    require_file(path)
    try:
        text, arrays = _read_npz(path) if suffix == ".npz" else _read_safetensors(path)
        plain = parse_object(text, JSON)
        if plain.get("format") != FORMAT or plain.get("version") != VERSION:
            raise ValueError(
                f"format {plain.get('format')!r}, version {plain.get('version')!r}; "
                f"this attnkit reads {FORMAT}, version {VERSION}"
            )
        return _capture(plain, arrays, "")
    except (*_MALFORMED, SafetensorError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"{path}: not a valid file of attention maps: {reason}") from error
    except OSError as error:
        raise input_error(error, path) from error


def _arrays(capture: Capture, prefix: str = "") -> Arrays:
    """The weights by their names in a file."""
    found = {
        f"{prefix}{kind}": np.ascontiguousarray(maps.weights) for kind, maps in capture.maps.items()
    }
    if capture.reference is not None:
        found |= _arrays(capture.reference, _REFERENCE)
    return found


def _description(capture: Capture) -> dict[str, Any]:
    """All but the weights, as JSON has it."""
    plain = {f.name: getattr(capture, f.name) for f in fields(capture)}
    plain["maps"] = {
        kind: {
            "layers": [layer._asdict() for layer in maps.layers],
            "heads": maps.heads,
            "queries": maps.queries,
            "keys": maps.keys,
        }
        for kind, maps in capture.maps.items()
    }
    if capture.reference is not None:
        plain["reference"] = _description(capture.reference)
    return plain


def _read_npz(path: Path) -> tuple[bytes, Arrays]:
    """The description and the weights."""
    with zipfile.ZipFile(path) as archive:
        # stored as they are, so that a small file cannot become a large array
        if any(member.compress_type != zipfile.ZIP_STORED for member in archive.infolist()):
            raise ValueError("it is compressed")
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    text = arrays.pop(JSON)
    return text.astype(np.uint8, casting="equiv").tobytes(), arrays


def _read_safetensors(path: Path) -> tuple[bytes, Arrays]:
    """The description and the weights."""
    from safetensors import safe_open

    with open(path, "rb") as file:
        if int.from_bytes(file.read(8), "little") > _LONGEST_HEADER:
            raise ValueError(f"a header of more than {_LONGEST_HEADER} bytes")
    with safe_open(path, framework="np") as opened:
        names = opened.keys()
        return (opened.metadata() or {})[JSON].encode(), {n: opened.get_tensor(n) for n in names}


def _capture(plain: Mapping[str, Any], arrays: Arrays, prefix: str) -> Capture:
    """A capture from its description and weights."""
    texts = {name: _text(plain[name]) for name in ("source", "output", "how", "model")}
    facts = {_text(name): _text(value) for name, value in plain["facts"].items()}
    maps = {
        kind: _maps(kind, plain["maps"][kind], arrays[f"{prefix}{kind}"])
        for kind in KINDS
        if kind in plain["maps"]
    }
    if unknown := plain["maps"].keys() - maps.keys():
        raise ValueError(f"attention of kind {sorted(unknown)[0]!r}")
    other = plain["reference"]
    reference = None if other is None else _capture(other, arrays, _REFERENCE)
    return Capture(**texts, maps=maps, facts=facts, reference=reference)


def _maps(kind: Kind, plain: Mapping[str, Any], weights: NDArray[Any]) -> AttentionMaps:
    """The maps of one kind."""
    if weights.dtype != np.float32 or weights.ndim != 4 or not np.isfinite(weights).all():
        raise ValueError(f"the weights {kind} are no finite numbers of float32 in four axes")
    layers = []
    for layer in plain["layers"]:
        far = layer["distance"]
        distance = None if far is None else tuple(float(value) for value in far)
        if distance is not None and len(distance) != len(plain["heads"]):
            raise ValueError("a layer has not one distance for each head")
        word, exact, static = _text(layer["mechanism"]), layer["exact"], layer["static"]
        layers.append(
            MapLayer(_number(layer["number"]), word, exact is True, static is True, distance)
        )
    heads = tuple(_number(head) for head in plain["heads"])
    queries, keys = (tuple(map(_token, plain[axis])) for axis in ("queries", "keys"))
    return AttentionMaps(kind, weights, tuple(layers), heads, queries, keys)


def _token(plain: Any) -> Token:
    text, id_, word, special = plain
    return Token(
        _text(text), _number(id_), None if word is None else _number(word), special is True
    )


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _number(value: Any) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def _table(capture: Capture) -> Iterator[bytes]:
    """A csv in pieces, one for each query; in words, `cross` and then `cross-reference`."""
    yield HEADER.encode()
    for one, suffix in ((capture, ""), (capture.reference, "-reference")):
        for kind, maps in one.maps.items() if one is not None else ():
            yield from _rows(f"{kind}{suffix}", maps)


def _rows(kind: str, maps: AttentionMaps) -> Iterator[bytes]:
    """The rows of one kind."""
    queries, keys = ([_cell(token.text) for token in axis] for axis in (maps.queries, maps.keys))
    numbered = list(enumerate(keys))
    for layer, of_layer in zip(maps.layers, maps.weights, strict=True):
        for head, of_head in zip(maps.heads, of_layer, strict=True):
            for row, weights in enumerate(of_head.astype(str)):
                start = f"{kind},{layer.number},{head},{row},"
                lines = (
                    f"{start}{column},{queries[row]},{key},{weight}\n"
                    for (column, key), weight in zip(numbered, weights, strict=True)
                )
                yield "".join(lines).encode()


def _cell(text: str) -> str:
    """A token as a csv has it: controls visible, quoted where needed, never a formula.

    A spreadsheet would run what begins with = + - @ (or their full-width forms), so those tokens
    get an apostrophe before them; npz and safetensors have them as they are.
    """
    shown = safe_text(text).replace("\n", "\\n").replace("\t", "\\t")
    if shown.lstrip().startswith(_FORMULA):
        shown = f"'{shown}"
    if any(sign in shown for sign in ',"'):
        return '"' + shown.replace('"', '""') + '"'
    return shown
