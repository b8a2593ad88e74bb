"""Reading files of attention maps with numpy and JSON alone, as other programs would."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from attnkit.analysis.maps import AttentionMaps, Capture, MapLayer, Token


def load(path: Path) -> Capture:
    """Read the capture of an npz file."""
    with np.load(path, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    facts = json.loads(arrays.pop("capture").tobytes())
    assert (facts.pop("format"), facts.pop("version")) == ("attnkit-maps", 1)
    return capture(facts, arrays, "")


def capture(facts: dict[str, Any], arrays: dict[str, Any], prefix: str) -> Capture:
    other = facts.pop("reference")
    maps = {kind: _maps(kind, entry, arrays[f"{prefix}{kind}"]) for kind, entry in facts.pop("maps").items()}
    reference = None if other is None else capture(other, arrays, "reference.")
    return Capture(**facts, maps=maps, reference=reference)


def _maps(kind: Any, facts: dict[str, Any], weights: np.ndarray) -> AttentionMaps:
    layers = tuple(
        MapLayer(**{**layer, "distance": layer["distance"] and tuple(layer["distance"])}) for layer in facts["layers"]
    )
    queries, keys, hidden = (tuple(Token(*token) for token in facts[axis]) for axis in ("queries", "keys", "hidden"))
    heads = tuple(facts["heads"])
    return AttentionMaps(kind, weights, layers, heads, queries, keys, facts["step"], hidden=hidden)
