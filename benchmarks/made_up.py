"""Simulations of attention without a trained model: noise on random scores, and the rank of untrained layers' maps.

To first order, noise on the scores of one query changes its output by

    std(o~ - o) = sqrt((e^(sigma^2) - 1) sum_i p_i^2 |v_i - o|^2),

which follows from o~ = sum e^(s + noise) v / sum e^(s + noise) by the delta method. The change decreases with the
number of keys that share the weight, 1 / sum p^2, and the law fails if that number is small.
"""

import math
from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

import torch

from attnkit.analysis.map_rank import ranks
from attnkit.attention import Mask
from attnkit.bench.plan import candidate
from attnkit.layers import MultiHead

LENGTHS, SHARPNESS = (16, 256, 4096), (1.0, 2.0, 4.0)
SETS, DRAWS, WIDTH = 8, 1000, 64
"""Sets of scores and values, draws of noise for each, and width of a value."""
MAX_NOISE = 2**21
"""Noise in memory at a time: 8 MB."""
HEADS, HEAD_WIDTH, SEEDS = 4, 64, (1, 2, 3)
"""Heads of an untrained layer, and seeds of its weights and tokens."""


def noise_rows(sigmas: Sequence[float]) -> list[dict[str, Any]]:
    """Return a row for each length, sharpness (standard deviation of the scores) and sigma."""
    return [row for length in LENGTHS for sharp in SHARPNESS for row in noise_law(length, sharp, sigmas)]


def noise_law(length: int, sharpness: float, sigmas: Sequence[float]) -> list[dict[str, Any]]:
    """Return the measured and the predicted standard deviation of the output of one query, by sigma.

    Scores are drawn from N(0, sharpness^2) and values from N(0, 1): SETS of them, each with DRAWS of noise, which are
    the same for every sigma.
    """
    generator = torch.Generator().manual_seed(1)
    squared_weights = 0.0  # sum p^2
    measured, predicted = torch.zeros(2, len(sigmas), dtype=torch.float64)
    for _ in range(SETS):
        scores = torch.randn(length, generator=generator) * sharpness
        values = torch.randn(length, WIDTH, generator=generator)
        weights = scores.softmax(-1)
        output = weights @ values
        squares = weights.double().square()
        variance = (squares @ (values - output).double().square()).mean()
        squared_weights += float(squares.sum()) / SETS
        sums, drawn = torch.zeros(2, len(sigmas), WIDTH, dtype=torch.float64), 0
        while drawn < DRAWS:
            count = min(DRAWS - drawn, max(1, MAX_NOISE // length))
            noise = torch.randn(count, length, generator=generator)
            drawn += count
            for index, sigma in enumerate(sigmas):
                change = ((scores + sigma * noise).softmax(-1) @ values - output).double()
                sums[:, index] += torch.stack([change.sum(0), change.square().sum(0)])
        means = sums / DRAWS
        measured += (means[1] - means[0].square()).mean(-1) / SETS
        predicted += torch.tensor([math.expm1(sigma**2) for sigma in sigmas], dtype=torch.float64) * variance / SETS
    row = {"length": length, "sharpness": sharpness}
    return [
        row | {"sigma": sigma, "keys": 1 / squared_weights, "measured": found, "predicted": law, "ratio": found / law}
        for sigma, found, law in zip(sigmas, measured.sqrt().tolist(), predicted.sqrt().tolist(), strict=True)
    ]


def rank_rows(words: Sequence[str], lengths: Sequence[int], causal: bool = False) -> list[dict[str, Any]]:
    """Return the ranks of the maps of untrained layers on tokens drawn from N(0, 1).

    `words` are mechanisms with options, as `attnkit bench attention` takes them.
    """
    rows = []
    for chosen in map(candidate, words):
        for length in lengths:
            maps = torch.cat([_maps(chosen.mechanism, chosen.options, length, causal, seed) for seed in SEEDS])
            effective, numerical = (found.flatten().tolist() for found in ranks(maps))
            row = {"mechanism": chosen.label, "length": length, "effective_rank": mean(effective)}
            row |= {"lowest": min(effective), "highest": max(effective), "share": mean(effective) / length}
            rows.append(row | {"numerical_rank": mean(numerical)})
    return rows


@torch.inference_mode()
def _maps(word: str, options: Mapping[str, Any], length: int, causal: bool, seed: int) -> torch.Tensor:
    """[1, HEADS, length, length]."""
    torch.manual_seed(seed)
    width = HEADS * HEAD_WIDTH
    layer = MultiHead.build(word, width, HEADS, length, causal=causal, **options).eval()
    x = torch.randn(1, length, width)
    return layer.weights(x, Mask.packed(length, x.device, causal=causal))
