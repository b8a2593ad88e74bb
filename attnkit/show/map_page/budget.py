"""What of the maps fits into a page of a given size: everything, or the best part of it."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from attnkit.analysis.maps import AttentionMaps
from attnkit.show.colour_scale import pooled
from attnkit.show.map_page.encode import Power, Weights, encode

SIDES = (64, 48, 32, 24, 16, 8)  # sizes of thumbnails to try, in cells


class Room:
    """Characters left on the page."""

    def __init__(self, left: int) -> None:
        self.left = left

    def take(self, coded: dict[str, Any]) -> bool:
        """Whether it still fits; then it is counted."""
        if size(coded) > self.left:
            return False
        self.left -= size(coded)
        return True


def size(coded: dict[str, Any]) -> int:
    """Characters that a coded stack of maps takes in the page, about."""
    return len(coded["data"]) + 160


def fitted(every: Sequence[AttentionMaps], room: int) -> list[dict[str, Any]]:
    """For each Maps its `overview`, all layers and heads, and `full`, some in more detail.

    Names in `full` are "layer.head" or "layer.mean", by place and not by number.  Everything is in
    full where that takes no more than `room` characters.  Else the overview is pooled, and each
    layer's mean over heads comes as finely as its share of the room allows, then single heads in
    full, in the order given, until the next one does not fit.
    """
    if sum(maps.weights.size for maps in every) <= 4 * room:
        powers: tuple[Power, ...] = (2, 1)
        for power in powers:
            whole = [encode(_stack(maps), power) for maps in every]
            if sum(map(size, whole)) <= room:
                return [{"overview": coded, "full": {}} for coded in whole]
    parts: list[dict[str, Any]] = []
    for side in SIDES:
        parts = [{"overview": _thumbnails(maps, side), "full": {}} for maps in every]
        if sum(size(part["overview"]) for part in parts) <= 0.5 * room:
            break
    left = Room(room - sum(size(part["overview"]) for part in parts))
    _add_means(every, parts, left)
    for maps, part, layer, head in _heads(every, parts):
        coded = encode(maps.weights[layer, head][None], 1)
        if not left.take(coded):
            break
        part["full"][f"{layer}.{head}"] = coded
    return parts


def _stack(maps: AttentionMaps) -> Weights:
    return maps.weights.reshape(-1, *maps.weights.shape[2:])


def _factors(maps: AttentionMaps, side: int) -> tuple[int, int]:
    rows, columns = maps.weights.shape[2:]
    return -(-rows // side), -(-columns // side)


def _thumbnails(maps: AttentionMaps, side: int) -> dict[str, Any]:
    pool = _factors(maps, side)
    return encode(pooled(_stack(maps), *pool), 1, pool)


def _add_means(every: Sequence[AttentionMaps], parts: list[dict[str, Any]], left: Room) -> None:
    """The mean over heads of each layer: in full, or pooled by 2, 4, ... until it fits."""
    means = sum(len(maps.layers) for maps in every)
    for maps, part in zip(every, parts, strict=True):
        coarsest = tuple(part["overview"]["pool"])
        if coarsest == (1, 1):
            means -= len(maps.layers)
            continue
        for layer in range(len(maps.layers)):
            mean = maps.weights[layer].mean(0, keepdims=True)
            part["full"][f"{layer}.mean"] = coded = _finest(mean, coarsest, left.left // means)
            left.left -= size(coded)
            means -= 1


def _finest(mean: Weights, coarsest: tuple[int, ...], room: int) -> dict[str, Any]:
    factor = 1
    while True:
        pool = min(factor, coarsest[0]), min(factor, coarsest[1])
        coded = encode(pooled(mean, *pool), 1, pool)
        if size(coded) <= room or factor >= max(coarsest):
            return coded
        factor *= 2


def _heads(
    every: Sequence[AttentionMaps], parts: list[dict[str, Any]]
) -> Iterator[tuple[AttentionMaps, dict[str, Any], int, int]]:
    """Heads that the overview does not show in full."""
    for maps, part in zip(every, parts, strict=True):
        if tuple(part["overview"]["pool"]) != (1, 1):
            for layer, head in np.ndindex(*maps.weights.shape[:2]):
                yield maps, part, layer, head
