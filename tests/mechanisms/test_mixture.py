"""Tests of mixtures: scores are mixed before one softmax, and capabilities are those that all parts have."""

from typing import Any

import pytest
import torch
from helpers.tensors import packed, sequences
from torch import Tensor

from attnkit import mechanisms
from attnkit.errors import UsageError
from attnkit.layers import MultiHead

WIDTH, HEADS, LONGEST = 8, 2, 12
PARTS: tuple[str | dict[str, Any], ...] = (
    "dot",
    "scaled-dot",
    "additive",
    "gaussian",
    "synthesizer-dense",
    "synthesizer-random",
    "synthesizer-factorized-dense",
    {"name": "synthesizer-factorized-random", "rank": 3},
    {"name": "synthesizer-random", "trainable": False},
)
SLICED = {"name": "synthesizer-dense", "reads": "slice"}
MASK = packed(7)


def build(*parts: str | dict[str, Any], **options: Any) -> MultiHead:
    torch.manual_seed(1)
    layer = MultiHead.build("mixture", WIDTH, HEADS, LONGEST, parts=parts, **options).double()
    with torch.no_grad():
        for parameter in layer.mechanism.parts.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return layer


def queries_and_keys() -> list[Tensor]:
    return sequences(7, *[WIDTH // HEADS] * 2, heads=HEADS)


@pytest.mark.parametrize("combine", ["softmax", "sum"])
def test_scores_of_all_parts_are_mixed(combine: str) -> None:
    mechanism = build(*PARTS, combine=combine).mechanism
    q, k = queries_and_keys()
    weights = torch.ones(len(PARTS)).double()
    if combine == "softmax":
        torch.nn.init.normal_(mechanism.logits)
        weights = mechanism.logits.softmax(0)
    scores = [part.scores(q, part.cached_keys(k), MASK).expand(2, HEADS, 7, 7) for part in mechanism.parts]
    torch.testing.assert_close(mechanism.scores(q, k, MASK), torch.stack(scores, -1) @ weights)


def test_sigmoid_moves_from_the_first_part_to_the_second() -> None:
    mechanism = build("scaled-dot", "synthesizer-random", combine="sigmoid").mechanism
    q, k = queries_and_keys()
    first, second = (part.scores(q, k, MASK) for part in mechanism.parts)
    torch.testing.assert_close(mechanism.scores(q, k, MASK), (first + second) / 2)
    for logit, share in ((-30.0, 0.0), (30.0, 1.0), (1.0, 0.731058578630005)):
        torch.nn.init.constant_(mechanism.logits, logit)
        torch.testing.assert_close(mechanism.scores(q, k, MASK), (1 - share) * first + share * second)


@pytest.mark.parametrize(("combine", "count"), [("softmax", 2), ("sigmoid", 1), ("sum", 0)])
def test_mixing_weights_are_trained(combine: str, count: int) -> None:
    layer = build("scaled-dot", "synthesizer-random", combine=combine)
    inner = sum(p.numel() for p in layer.mechanism.parts.parameters())
    assert sum(p.numel() for p in layer.mechanism.parameters()) == inner + count
    if count:
        layer(torch.randn(2, 7, WIDTH).double(), MASK).y[..., 0].sum().backward()
        assert layer.mechanism.logits.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("parts", "uses", "cross", "positions"),
    [
        (("dot", "gaussian"), "qkv", True, ("rope", "alibi", "relative")),
        (("scaled-dot", "synthesizer-random"), "qkv", False, ("alibi", "relative")),
        (("synthesizer-dense", "synthesizer-random"), "qv", False, ("alibi", "relative")),
        (("synthesizer-random",) * 2, "v", False, ("alibi", "relative")),
        ((SLICED, "scaled-dot"), "qxkv", False, ("alibi", "relative")),
    ],
)
def test_mixture_supports_what_all_its_parts_support(
    parts: tuple[Any, ...], uses: str, cross: bool, positions: tuple[str, ...]
) -> None:
    facts = mechanisms.resolve_capabilities("mixture", {"parts": parts})
    assert (facts.uses, facts.cross, facts.positions) == (uses, cross, positions)
    assert facts.limit == (None if cross else "max_length")
    layer = build(*parts)
    mechanism = layer.mechanism
    assert (mechanism.uses, mechanism.cross, mechanism.positions) == (uses, cross, positions)
    assert mechanism.limit == (None if cross else LONGEST)
    assert [name for name in "qkv" if getattr(layer, name) is not None] == list(uses.replace("x", ""))
    if not cross:
        assert "its part synthesizer-" in mechanism.why
        with pytest.raises(UsageError, match="cannot be cross attention: its part synth"):
            MultiHead.build("mixture", WIDTH, HEADS, LONGEST, cross=True, parts=parts)


def test_parts_can_have_their_own_projections() -> None:
    """Queries and keys of the parts are concatenated along the heads; slices of x come last."""
    layer: Any = build("scaled-dot", "synthesizer-dense", SLICED, "gaussian", projections="own")
    assert (layer.q.out_features, layer.k.out_features) == (3 * WIDTH, 2 * WIDTH)
    x = torch.randn(2, 7, WIDTH).double()
    q, k = (p(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for p in (layer.q, layer.k))
    slices = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    pairs = [(q[:, :2], k[:, :2]), (q[:, 2:4], None), (slices, None), (q[:, 4:], k[:, 2:])]
    scores = [part.scores(*pair, MASK) for part, pair in zip(layer.mechanism.parts, pairs, strict=True)]
    expected = torch.stack(scores).mean(0).masked_fill(~MASK.dense(), -torch.inf).softmax(-1)
    torch.testing.assert_close(layer.weights(x, MASK), expected)
