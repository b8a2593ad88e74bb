"""Attention without a trained model: noise on drawn scores, and the rank of new layers' maps.

Noise on the scores of one query moves its output by, to first order,

    std(o~ - o) = sqrt((e^(sigma^2) - 1) sum_i p_i^2 |v_i - o|^2),

which follows from o~ = sum e^(s + noise) v / sum e^(s + noise) by the delta method.  It shrinks
with the number of keys that share the weight, 1 / sum p^2, and fails where few do.
"""

import math
from collections.abc import Sequence
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
AT_ONCE = 2**21
"""Noise held at a time: 8 MB."""
HEADS, HEAD_WIDTH, SEEDS = 4, 64, (1, 2, 3)
"""Of a layer before training, and its draws of weights and tokens."""


def noise_rows(sigmas: Sequence[float]) -> list[dict[str, Any]]:
    """A row for each length, sharpness (standard deviation of the scores) and sigma."""
    return [row for length in LENGTHS for sharp in SHARPNESS for row in noise_law(length, sharp, sigmas)]


def noise_law(length: int, sharpness: float, sigmas: Sequence[float]) -> list[dict[str, Any]]:
    """Measured and predicted standard deviation of the output of one query, by sigma.

    Scores are from N(0, sharpness^2) and values from N(0, 1): SETS of them, DRAWS of noise each,
    the same for every sigma.
    """
    generator = torch.Generator().manual_seed(1)
    spread = 0.0  # sum p^2
    measured, predicted = torch.zeros(2, len(sigmas), dtype=torch.float64)
    for _ in range(SETS):
        scores = torch.randn(length, generator=generator) * sharpness
        values = torch.randn(length, WIDTH, generator=generator)
        weights = scores.softmax(-1)
        output = weights @ values
        squares = weights.double().square()
        apart = (squares @ (values - output).double().square()).mean()
        spread += float(squares.sum()) / SETS
        sums, many = torch.zeros(2, len(sigmas), WIDTH, dtype=torch.float64), 0
        while many < DRAWS:
            count = min(DRAWS - many, max(1, AT_ONCE // length))
            noise = torch.randn(count, length, generator=generator)
            many += count
            for place, sigma in enumerate(sigmas):
                moved = ((scores + sigma * noise).softmax(-1) @ values - output).double()
                sums[:, place] += torch.stack([moved.sum(0), moved.square().sum(0)])
        means = sums / DRAWS
        measured += (means[1] - means[0].square()).mean(-1) / SETS
        for place, sigma in enumerate(sigmas):
            predicted[place] += math.expm1(sigma**2) * apart / SETS
    numbers = zip(sigmas, measured.sqrt().tolist(), predicted.sqrt().tolist(), strict=True)
    return [
        {
            "length": length,
            "sharpness": sharpness,
            "sigma": sigma,
            "keys": 1 / spread,
            "measured": found,
            "predicted": law,
            "ratio": found / law,
        }
        for sigma, found, law in numbers
    ]


def rank_rows(words: Sequence[str], lengths: Sequence[int], causal: bool = False) -> list[dict[str, Any]]:
    """Ranks of the maps of new layers that read tokens drawn from N(0, 1).

    `words` are mechanisms with options, as `attnkit bench attention` takes them.
    """
    rows = []
    for one in map(candidate, words):
        for length in lengths:
            maps = torch.cat([_maps(one.mechanism, one.options, length, causal, s) for s in SEEDS])
            effective, numerical = (found.flatten().tolist() for found in ranks(maps))
            rows.append(
                {
                    "mechanism": one.label,
                    "length": length,
                    "effective_rank": mean(effective),
                    "lowest": min(effective),
                    "highest": max(effective),
                    "share": mean(effective) / length,
                    "numerical_rank": mean(numerical),
                }
            )
    return rows


@torch.inference_mode()
def _maps(word: str, options: Any, length: int, causal: bool, seed: int) -> torch.Tensor:
    """[1, HEADS, length, length]."""
    torch.manual_seed(seed)
    width = HEADS * HEAD_WIDTH
    layer = MultiHead.build(word, width, HEADS, length, causal=causal, **options).eval()
    x = torch.randn(1, length, width)
    return layer.weights(x, Mask.packed(length, x.device, causal=causal))
