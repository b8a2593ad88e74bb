"""Files of attention maps as another program would read them: by numpy and JSON."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from attnkit.analysis.maps import AttentionMaps, Capture, MapLayer, Token


def load(path: Path) -> Capture:
    """The capture that was saved to an npz file."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    plain = json.loads(arrays.pop("capture").tobytes())
    assert (plain.pop("format"), plain.pop("version")) == ("attnkit-maps", 1)
    return capture(plain, arrays, "")


def capture(plain: dict[str, Any], arrays: dict[str, Any], prefix: str) -> Capture:
    other = plain.pop("reference")
    maps = {kind: one(kind, d, arrays[f"{prefix}{kind}"]) for kind, d in plain.pop("maps").items()}
    reference = None if other is None else capture(other, arrays, "reference.")
    return Capture(**plain, maps=maps, reference=reference)


def one(kind: Any, plain: dict[str, Any], weights: np.ndarray) -> AttentionMaps:
    layers = tuple(
        MapLayer(**{**layer, "distance": layer["distance"] and tuple(layer["distance"])}) for layer in plain["layers"]
    )
    queries, keys = (tuple(Token(*token) for token in plain[axis]) for axis in ("queries", "keys"))
    return AttentionMaps(
        kind,
        weights,
        layers,
        tuple(plain["heads"]),
        queries,
        keys,
        plain["step"],
        hidden=tuple(Token(*token) for token in plain["hidden"]),
    )
