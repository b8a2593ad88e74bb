"""Mixtures: scores are mixed before one softmax, and a mixture can do what all its parts can."""

from typing import Any

import pytest
import torch
from torch import Tensor

from attnkit import mechanisms
from attnkit.attention.mask import Mask
from attnkit.errors import UsageError
from attnkit.layers import MultiHead

WIDTH, HEADS, LONGEST = 8, 2, 12
EVERY: tuple[str | dict[str, Any], ...] = (
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


def build(*parts: str | dict[str, Any], **options: Any) -> MultiHead:
    torch.manual_seed(1)
    layer = MultiHead.build("mixture", WIDTH, HEADS, LONGEST, parts=parts, **options).double()
    with torch.no_grad():
        for parameter in layer.mechanism.parts.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return layer


def inputs() -> tuple[Tensor, Tensor, Mask]:
    made = torch.Generator().manual_seed(5)
    q, k = (torch.randn(2, HEADS, 7, WIDTH // HEADS, generator=made).double() for _ in range(2))
    return q, k, Mask.packed(7, torch.device("cpu"), causal=True)


@pytest.mark.parametrize("combine", ["softmax", "sum"])
def test_any_parts_are_mixed_by_their_scores(combine: str) -> None:
    mechanism = build(*EVERY, combine=combine).mechanism
    q, k, mask = inputs()
    weights = torch.ones(len(EVERY)).double()
    if combine == "softmax":
        with torch.no_grad():
            mechanism.logits.copy_(torch.randn(len(EVERY)))
        weights = mechanism.logits.softmax(0)
    scores = [part.scores(q, part.cached_keys(k), mask) for part in mechanism.parts]
    each = [one.expand(2, HEADS, 7, 7) for one in scores]
    expected = torch.stack(each, -1) @ weights
    torch.testing.assert_close(mechanism.scores(q, k, mask), expected)


def test_a_sigmoid_moves_from_the_first_part_to_the_second() -> None:
    mechanism = build("scaled-dot", "synthesizer-random", combine="sigmoid").mechanism
    q, k, mask = inputs()
    first, second = (part.scores(q, k, mask) for part in mechanism.parts)
    torch.testing.assert_close(mechanism.scores(q, k, mask), (first + second) / 2)
    for logit, share in ((-30.0, 0.0), (30.0, 1.0), (1.0, 0.731058578630005)):
        with torch.no_grad():
            mechanism.logits.fill_(logit)
        mixed = (1 - share) * first + share * second
        torch.testing.assert_close(mechanism.scores(q, k, mask), mixed)


@pytest.mark.parametrize(("combine", "own"), [("softmax", 2), ("sigmoid", 1), ("sum", 0)])
def test_the_mixing_weights_are_a_few_numbers_a_layer_that_learn(combine: str, own: int) -> None:
    layer = build("scaled-dot", "synthesizer-random", combine=combine)
    inner = sum(p.numel() for p in layer.mechanism.parts.parameters())
    assert sum(p.numel() for p in layer.mechanism.parameters()) == inner + own
    layer(torch.randn(2, 5, WIDTH).double(), Mask.packed(5, torch.device("cpu"), causal=True)).y[
        ..., 0
    ].sum().backward()
    if own:
        assert layer.mechanism.logits.grad.abs().sum() > 0


@pytest.mark.parametrize(
    ("parts", "uses", "cross", "limit", "positions"),
    [
        (("dot", "gaussian"), "qkv", True, None, ("rope", "alibi", "relative")),
        (("scaled-dot", "synthesizer-random"), "qkv", False, LONGEST, ("alibi", "relative")),
        (("synthesizer-dense", "synthesizer-random"), "qv", False, LONGEST, ("alibi", "relative")),
        (("synthesizer-random",) * 2, "v", False, LONGEST, ("alibi", "relative")),
        (
            ({"name": "synthesizer-dense", "reads": "slice"}, "scaled-dot"),
            "qxkv",
            False,
            LONGEST,
            ("alibi", "relative"),
        ),
    ],
)
def test_a_mixture_can_do_what_all_its_parts_can(
    parts: tuple[Any, ...], uses: str, cross: bool, limit: int | None, positions: tuple[str, ...]
) -> None:
    facts = mechanisms.resolve_capabilities("mixture", {"parts": parts})
    assert (facts.uses, facts.cross, facts.positions) == (uses, cross, positions)
    assert facts.limit == (None if limit is None else "max_length")
    layer = build(*parts)
    own = layer.mechanism
    assert (own.uses, own.cross, own.limit, own.positions) == (uses, cross, limit, positions)
    assert [name for name in "qkv" if getattr(layer, name) is not None] == list(uses.replace("x", ""))
    if not cross:
        assert "its part synthesizer-" in own.why
        with pytest.raises(UsageError, match="cannot be cross attention: its part synth"):
            MultiHead.build("mixture", WIDTH, HEADS, LONGEST, cross=True, parts=parts)


def test_parts_may_have_projections_of_their_own() -> None:
    """Queries and keys of the parts follow each other along the heads; slices of x come last."""
    sliced = {"name": "synthesizer-dense", "reads": "slice"}
    layer = build("scaled-dot", "synthesizer-dense", sliced, "gaussian", projections="own")
    assert layer.q.out_features == 3 * WIDTH
    assert layer.k.out_features == 2 * WIDTH
    x, mask = torch.randn(2, 7, WIDTH).double(), inputs()[2]
    q, k = (p(x).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for p in (layer.q, layer.k))
    slices = x.unflatten(-1, (HEADS, -1)).transpose(1, 2)
    given = [(q[:, :2], k[:, :2]), (q[:, 2:4], None), (slices, None), (q[:, 4:], k[:, 2:])]
    parts = layer.mechanism.parts
    each = [part.scores(*pair, mask) for part, pair in zip(parts, given, strict=True)]
    expected = torch.stack(each).mean(0)
    expected = expected.masked_fill(~mask.dense(), -torch.inf).softmax(-1)
    torch.testing.assert_close(layer.weights(x, mask), expected)
