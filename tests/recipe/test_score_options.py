"""Tests of the options of all scored mechanisms: running scores, entropy factor, noise, key norm, key heads."""

import math

import pytest
import torch
from torch import Tensor

from attnkit import mechanisms
from attnkit.attention import Mask, Scored, reorder
from attnkit.layers import MultiHead

WIDTH, HEADS = 16, 4
SCORED = [
    word
    for word in mechanisms.names()
    if issubclass(mechanisms.load(word), Scored)
    and not any(option.required for option in mechanisms.facts(word).options.values())
]
SOFTMAX = [
    word
    for word in SCORED
    if mechanisms.load(word).normalize is Scored.normalize and word not in ("forgetting", "path", "selective")
]
"""Mechanisms whose weights are the softmax of `scores(q, k, mask)`."""
WITH_KEYS = [word for word in SCORED if "k" in mechanisms.facts(word).uses]


def layer(word: str, depth: int = 0, **options: object) -> MultiHead:
    torch.manual_seed(depth)
    attention = MultiHead.build(word, WIDTH, HEADS, 64, depth=depth, **options)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.mul_(3)
    return attention.double()


def inputs(rows: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randn(rows, length, WIDTH, generator=generator, dtype=torch.float64)


def self_mask(length: int, causal: bool = True, rows: int = 1) -> Mask:
    return Mask.of(torch.ones(rows, length, dtype=torch.bool), length, causal)


def softmax(scores: Tensor, mask: Mask, allowed: Tensor | None) -> Tensor:
    """Return the softmax of scores over the keys that are allowed."""
    return scores.masked_fill(~(mask.dense() if allowed is None else allowed), -torch.inf).softmax(-1)


def scores_of(attention: MultiHead, x: Tensor, mask: Mask) -> Tensor:
    """Return the scores of one layer without those of previous layers."""
    q, k, *_ = attention.project(x, mask)
    return attention.mechanism.scores(q, None if k is None else attention.mechanism.cached_keys(k), mask)


@pytest.mark.parametrize("word", SOFTMAX)
def test_weights_are_the_softmax_of_the_running_sum(word: str) -> None:
    """The sum itself is passed on without the mask."""
    x, mask = inputs(2, 7), self_mask(7, rows=2)
    prior, total = None, torch.zeros((), dtype=torch.float64)
    for depth in range(3):
        attention = layer(word, depth, residual_scores=True)
        total = total + scores_of(attention, x, mask)
        maps = attention.weights(x, mask, prior=prior)
        prior = attention(x, mask, prior=prior).scores
        torch.testing.assert_close(prior, total.expand_as(prior))
        assert prior.isfinite().all()
        torch.testing.assert_close(maps, softmax(total, mask, attention.mechanism.allowed(mask)).expand_as(maps))


def test_worked_numbers_of_running_scores() -> None:
    """Scores (0, ln 2), (0, ln 3), (0, 0) of three layers: their sum gives (1/7, 6/7) from layer 2 on."""
    scores = torch.tensor([[0, math.log(2)], [0, math.log(3)], [0, 0]], dtype=torch.float64)
    expected = {True: (1 / 7, 6 / 7, 1 / 7), "mean": (0.289898, 0.710102, 1 / (1 + 6 ** (1 / 3)))}
    q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
    identity = torch.eye(2, dtype=torch.float64).view(1, 1, 2, 2)
    mask = Mask.cross(torch.ones(1, 2, dtype=torch.bool), 1)
    for form, (left, right, last) in expected.items():
        prior = None
        for depth, row in enumerate(scores):
            attention = MultiHead.build("dot", 2, 1, 8, depth=depth, residual_scores=form).mechanism
            out = attention(q, row.view(1, 1, 2, 1), identity, mask, prior=prior)
            prior, weights = out.scores, out.y.flatten()
            if depth == 1:
                torch.testing.assert_close(weights, weights.new_tensor([left, right]), atol=1e-6, rtol=0)
        assert weights[0].item() == pytest.approx(last, abs=1e-6)


@pytest.mark.parametrize("form", [True, "mean"])
@pytest.mark.parametrize("word", SCORED)
def test_running_scores_of_steps_equal_those_of_the_whole_row(word: str, form: object) -> None:
    layers = [layer(word, depth, residual_scores=form) for depth in range(2)]
    x = inputs(3, 6)
    valid = torch.ones(3, 6, dtype=torch.bool)

    def forward(x: Tensor, mask: Mask, states: list[object]) -> tuple[Tensor, list[object]]:
        prior, new_states = None, []
        for attention, state in zip(layers, states, strict=True):
            out = attention(x, mask, state=state, prior=prior)
            x, prior = x + out.y, out.scores
            new_states.append(out.state)
        return x, new_states

    whole, _ = forward(x, Mask.of(valid, 6, True), [None, None])
    rows = torch.tensor([2, 0, 1])
    first, states = forward(x[:, :3], Mask.of(valid[:, :3], 3, True), [None, None])
    torch.testing.assert_close(first, whole[:, :3])
    states = [reorder(state, rows) for state in states]
    for t in range(3, 6):
        y, states = forward(x[rows, t : t + 1], Mask.of(valid[:, : t + 1], 1, True, t), states)
        torch.testing.assert_close(y, whole[rows, t : t + 1])


@pytest.mark.parametrize("word", [w for w in SCORED if mechanisms.facts(w).cross])
def test_running_scores_of_cross_attention_are_correct_with_folded_beams(word: str) -> None:
    layers = [layer(word, depth, residual_scores=True, cross=True) for depth in range(2)]
    memory, valid = inputs(2, 5), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    x, mask = inputs(6, 1), Mask.cross(valid, 1)
    first = [attention(inputs(2, 1), mask, memory=memory) for attention in layers]
    folded = layers[0](x, mask, state=first[0].state)
    folded = layers[1](x, mask, state=first[1].state, prior=folded.scores)
    memory, mask = memory.repeat_interleave(3, 0), Mask.cross(valid.repeat_interleave(3, 0), 1)
    repeated = layers[0](x, mask, memory=memory)
    repeated = layers[1](x, mask, memory=memory, prior=repeated.scores)
    torch.testing.assert_close(folded.y, repeated.y)
    torch.testing.assert_close(folded.scores, repeated.scores)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("word", SOFTMAX)
def test_entropy_factor_is_the_logarithm_of_the_number_of_allowed_keys(word: str, causal: bool) -> None:
    if causal and not mechanisms.facts(word).causal:
        pytest.skip(f"{word} cannot be causal")
    attention, x = layer(word, entropy_scale=True), inputs(2, 9)
    mask = Mask.of(torch.tensor([[True] * 9, [False] * 4 + [True] * 5]), 9, causal)
    allowed = attention.mechanism.allowed(mask)
    factor = allowed.sum(-1, keepdim=True).clamp_min(1).double().log() / math.log(512)
    expected = softmax(scores_of(attention, x, mask) * factor, mask, allowed).nan_to_num(0)
    maps = attention.weights(x, mask)
    hint = f"\n{word}: homogeneous = True needs scores proportional to q" if attention.mechanism.homogeneous else ""
    torch.testing.assert_close(maps, expected.expand_as(maps), msg=lambda text: text + hint)


@pytest.mark.parametrize("length", [8, 64, 512])
def test_entropy_factor_of_the_fused_path_equals_that_of_scores(length: int) -> None:
    """Running scores exclude the fused path, and those of the first layer do not change its weights."""
    x, mask = torch.randn(1, length, WIDTH), self_mask(length)
    fused = layer("scaled-dot", entropy_scale=True).float()
    scored = layer("scaled-dot", entropy_scale=True, residual_scores=True).float()
    torch.testing.assert_close(fused(x, mask).y, scored(x, mask).y)
    assert fused.mechanism.keys_seen(mask)[0, 0].tolist() == list(range(1, length + 1))


@pytest.mark.parametrize(
    ("options", "keys", "training", "factor"),
    [
        (True, 8, False, 1 / 3),
        (True, 4096, False, 4 / 3),
        ({"base": 64}, 8, False, 0.5),
        ({"floor": 64}, 8, False, 2 / 3),
        ({"test_only": True}, 8, False, 1.0),
        ({"test_only": True}, 4096, False, 4 / 3),
        ({"test_only": True}, 4096, True, None),
    ],
)
def test_worked_entropy_factors(options: object, keys: int, training: bool, factor: object) -> None:
    attention = MultiHead.build("dot", 2, 1, 8, entropy_scale=options).mechanism.train(training)
    found = attention._factor(Mask.cross(torch.ones(1, keys, dtype=torch.bool), 1), torch.float64)
    assert (found if found is None else found.item()) == (factor if factor is None else pytest.approx(factor))


@pytest.mark.parametrize("word", WITH_KEYS)
def test_length_of_keys_has_no_effect_with_key_norm(word: str) -> None:
    attention = layer(word, key_norm=True)
    torch.nn.init.zeros_(attention.k.bias)
    x, mask = inputs(2, 6), self_mask(6, rows=2)
    before = attention.weights(x, mask)
    with torch.no_grad():
        attention.k.weight.mul_(7)
    torch.testing.assert_close(attention.weights(x, mask), before)


@pytest.mark.parametrize("word", ["dot", "scaled-dot"])
def test_score_with_key_norm_is_q_times_the_normalized_k(word: str) -> None:
    attention = layer(word, key_norm=True)
    x, mask = inputs(1, 5), self_mask(5, causal=False)
    q, k, *_ = attention.project(x, mask)
    expected = (q @ (k / k.norm(dim=-1, keepdim=True)).transpose(-1, -2)).softmax(-1)
    torch.testing.assert_close(attention.weights(x, mask), expected)


def test_noise_is_added_to_outputs_in_training_only() -> None:
    attention = layer("scaled-dot", score_noise=0.5)
    x, mask = inputs(1, 6), self_mask(6)
    assert not torch.equal(attention(x, mask).y, attention(x, mask).y)
    torch.testing.assert_close(attention.weights(x, mask), attention.weights(x, mask))
    attention.eval()
    torch.testing.assert_close(attention(x, mask).y, layer("scaled-dot").eval()(x, mask).y)


def test_noise_of_outputs_equals_the_first_order_law() -> None:
    """std(noisy - clean) is about sqrt((e^(s^2) - 1) sum p^2 (v - o)^2) for many keys of similar weight."""
    sigma, keys, draws = 0.5, 256, 400
    attention = MultiHead.build("dot", 1, 1, 8, score_noise=sigma).mechanism
    generator = torch.Generator().manual_seed(1)
    k, v = (torch.randn(1, 1, keys, 1, generator=generator) for _ in range(2))
    mask = Mask.cross(torch.ones(1, keys, dtype=torch.bool), draws)
    torch.manual_seed(2)
    noisy = attention(torch.ones(1, 1, draws, 1), k, v, mask).y.flatten()
    p, v = k.flatten().softmax(0), v.flatten()
    clean = (p * v).sum()
    law = ((math.exp(sigma**2) - 1) * (p**2 * (v - clean) ** 2).sum()).sqrt()
    assert (noisy - clean).square().mean().sqrt().item() == pytest.approx(law.item(), rel=0.15)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("word", ["dot", "scaled-dot"])
@pytest.mark.parametrize("length", [5, 300])
def test_grouped_keys_equal_repeated_keys(word: str, key_heads: int, length: int) -> None:
    grouped, repeated = layer(word, key_heads=key_heads), layer(word)
    weights = dict(grouped.state_dict())
    for name in ("k.weight", "k.bias", "v.weight", "v.bias"):
        heads = weights[name].unflatten(0, (key_heads, -1))
        weights[name] = heads.repeat_interleave(HEADS // key_heads, 0).flatten(0, 1)
    repeated.load_state_dict(weights)
    x, mask = inputs(2, length), self_mask(length, rows=2)
    expected = repeated(x, mask).y
    torch.testing.assert_close(grouped(x, mask).y, expected)
    torch.testing.assert_close(grouped.weights(x, mask), repeated.weights(x, mask))
    state = grouped(x[:, :4], self_mask(4, rows=2)).state
    assert state[0].shape[1] == key_heads
    step = grouped(x[:, 4:5], Mask.of(torch.ones(2, 5, dtype=torch.bool), 1, True, 4), state=state)
    torch.testing.assert_close(step.y, expected[:, 4:5])
