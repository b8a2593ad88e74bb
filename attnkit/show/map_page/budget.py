"""What of the maps fits into a page of a given size: everything, or the best part of it."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from attnkit.analysis.maps import AttentionMaps
from attnkit.show.colour_scale import pooled
from attnkit.show.map_page.encode import Power, Weights, encode

SIDES = (64, 48, 32, 24, 16, 8)  # sizes of thumbnails to try, in cells


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
    room -= sum(size(part["overview"]) for part in parts)
    pooled_ones = [
        (maps, part)
        for maps, part in zip(every, parts, strict=True)
        if tuple(part["overview"]["pool"]) != (1, 1)
    ]
    room = _add_means(pooled_ones, room)
    for maps, part in pooled_ones:
        for layer, head in np.ndindex(*maps.weights.shape[:2]):
            coded = encode(maps.weights[layer, head][None], 1)
            if size(coded) > room:
                return parts
            room -= size(coded)
            part["full"][f"{layer}.{head}"] = coded
    return parts


def _stack(maps: AttentionMaps) -> Weights:
    return maps.weights.reshape(-1, *maps.weights.shape[2:])


def _thumbnails(maps: AttentionMaps, side: int) -> dict[str, Any]:
    rows, columns = maps.weights.shape[2:]
    pool = -(-rows // side), -(-columns // side)
    return encode(pooled(_stack(maps), *pool), 1, pool)


def _add_means(pooled_ones: Sequence[tuple[AttentionMaps, dict[str, Any]]], room: int) -> int:
    """Add each layer's mean over heads, in full or pooled by 2, 4, ... to fit; the room left."""
    means = sum(len(maps.layers) for maps, _ in pooled_ones)
    for maps, part in pooled_ones:
        coarsest = tuple(part["overview"]["pool"])
        for layer in range(len(maps.layers)):
            mean, factor = maps.weights[layer].mean(0, keepdims=True), 1
            while True:
                pool = min(factor, coarsest[0]), min(factor, coarsest[1])
                coded = encode(pooled(mean, *pool), 1, pool)
                if size(coded) <= room // means or factor >= max(coarsest):
                    break
                factor *= 2
            part["full"][f"{layer}.mean"] = coded
            room -= size(coded)
            means -= 1
    return room
