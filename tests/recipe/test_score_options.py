"""What every scored mechanism can do besides: running scores, entropy factor, noise, key norm."""

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
    if mechanisms.load(word).normalise is Scored.normalise and word not in ("forgetting", "path", "selective")
]
"""Those whose weights are a softmax of `scores(q, k, mask)` and of nothing else."""
WITH_KEYS = [word for word in SCORED if "k" in mechanisms.facts(word).uses]


def layer(word: str, depth: int = 0, **options: object) -> MultiHead:
    torch.manual_seed(depth)
    made = MultiHead.build(word, WIDTH, HEADS, 64, depth=depth, **options)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(3)
    return made.double()


def inputs(rows: int, length: int) -> Tensor:
    generator = torch.Generator().manual_seed(length)
    return torch.randn(rows, length, WIDTH, generator=generator, dtype=torch.float64)


def mask(length: int, causal: bool = True, rows: int = 1) -> Mask:
    return Mask.of(torch.ones(rows, length, dtype=torch.bool), length, causal)


def by_hand(own: Tensor, seen: Mask, allowed: Tensor | None) -> Tensor:
    """Softmax of scores over what may be seen."""
    visible = seen.dense() if allowed is None else allowed
    return own.masked_fill(~visible, -torch.inf).softmax(-1)


def own_scores(made: MultiHead, x: Tensor, seen: Mask) -> Tensor:
    q, k, *_ = made.project(x, seen)
    assert isinstance(made.mechanism, Scored)
    return made.mechanism.scores(q, None if k is None else made.mechanism.cached_keys(k), seen)


@pytest.mark.parametrize("word", SOFTMAX)
def test_the_running_sum_is_carried_without_a_mask_and_decides_the_weights(word: str) -> None:
    layers = [layer(word, depth, residual_scores=True) for depth in range(3)]
    x, seen = inputs(2, 7), mask(7, rows=2)
    carried = None
    total = torch.zeros((), dtype=torch.float64)
    for made in layers:
        total = total + own_scores(made, x, seen)
        maps = made.weights(x, seen, prior=carried)
        out = made(x, seen, prior=carried)
        carried = out.scores
        torch.testing.assert_close(carried, total.expand_as(carried))
        assert carried.isfinite().all()
        assert isinstance(made.mechanism, Scored)
        torch.testing.assert_close(maps, by_hand(total, seen, made.mechanism.allowed(seen)).expand_as(maps))


def test_the_worked_numbers_of_running_scores() -> None:
    """Own scores (0, ln 2), (0, ln 3), (0, 0): the sum gives (1/7, 6/7) from layer 2 on."""
    own = torch.tensor([[0, math.log(2)], [0, math.log(3)], [0, 0]], dtype=torch.float64)
    expected = {True: (1 / 7, 6 / 7, 1 / 7), "mean": (0.289898, 0.710102, 1 / (1 + 6 ** (1 / 3)))}
    for form, (left, right, last) in expected.items():
        carried = None
        for depth, row in enumerate(own):
            made = MultiHead.build("dot", 2, 1, 8, depth=depth, residual_scores=form).mechanism
            q = torch.ones(1, 1, 1, 1, dtype=torch.float64)
            keys = row.view(1, 1, 2, 1)
            seen = Mask.cross(torch.ones(1, 2, dtype=torch.bool), 1)
            identity = torch.eye(2, dtype=torch.float64).view(1, 1, 2, 2)
            out = made(q, keys, identity, seen, prior=carried)
            carried = out.scores
            if depth == 1:
                found = out.y.flatten()
                torch.testing.assert_close(found, found.new_tensor([left, right]), atol=1e-6, rtol=0)
        assert out.y.flatten()[0].item() == pytest.approx(last, abs=1e-6)


@pytest.mark.parametrize("form", [True, "mean"])
@pytest.mark.parametrize("word", SCORED)
def test_running_scores_of_steps_are_those_of_the_whole(word: str, form: object) -> None:
    layers = [layer(word, depth, residual_scores=form) for depth in range(2)]
    x = inputs(3, 6)
    valid = torch.ones(3, 6, dtype=torch.bool)

    def through(part: Tensor, seen: Mask, states: list[object]) -> tuple[Tensor, list[object]]:
        carried, kept = None, []
        for made, state in zip(layers, states, strict=True):
            out = made(part, seen, state=state, prior=carried)
            part, carried = part + out.y, out.scores
            kept.append(out.state)
        return part, kept

    whole, _ = through(x, Mask.of(valid, 6, True), [None, None])
    rows = torch.tensor([2, 0, 1])
    first, states = through(x[:, :3], Mask.of(valid[:, :3], 3, True), [None, None])
    torch.testing.assert_close(first, whole[:, :3])
    states = [reorder(state, rows) for state in states]
    for t in range(3, 6):
        seen = Mask.of(valid[:, : t + 1], 1, True, t)
        y, states = through(x[rows, t : t + 1], seen, states)
        torch.testing.assert_close(y, whole[rows, t : t + 1])


@pytest.mark.parametrize("word", [w for w in SCORED if mechanisms.facts(w).cross])
def test_running_scores_of_cross_attention_are_right_under_folded_beams(word: str) -> None:
    layers = [layer(word, depth, residual_scores=True, cross=True) for depth in range(2)]
    memory, valid = inputs(2, 5), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    x = inputs(6, 1)
    repeated, each = memory.repeat_interleave(3, 0), valid.repeat_interleave(3, 0)
    first = [made(inputs(2, 1), Mask.cross(valid, 1), memory=memory) for made in layers]
    folded = layers[0](x, Mask.cross(valid, 1), state=first[0].state)
    folded = layers[1](x, Mask.cross(valid, 1), state=first[1].state, prior=folded.scores)
    plain = layers[0](x, Mask.cross(each, 1), memory=repeated)
    plain = layers[1](x, Mask.cross(each, 1), memory=repeated, prior=plain.scores)
    torch.testing.assert_close(folded.y, plain.y)
    torch.testing.assert_close(folded.scores, plain.scores)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("word", SOFTMAX)
def test_the_entropy_factor_is_the_logarithm_of_the_allowed_keys(word: str, causal: bool) -> None:
    if causal and not mechanisms.facts(word).causal:
        pytest.skip(f"{word} cannot be causal")
    made = layer(word, entropy_scale=True)
    x = inputs(2, 9)
    valid = torch.tensor([[True] * 9, [False] * 4 + [True] * 5])
    seen = Mask.of(valid, 9, causal)
    assert isinstance(made.mechanism, Scored)
    allowed = made.mechanism.allowed(seen)
    assert allowed is not None
    factor = allowed.sum(-1, keepdim=True).clamp_min(1).double().log() / math.log(512)
    expected = by_hand(own_scores(made, x, seen) * factor, seen, allowed).nan_to_num(0)
    maps = made.weights(x, seen)
    told = f"{word}: homogeneous = True needs scores proportional to q"
    more = f"\n{told}" if made.mechanism.homogeneous else ""
    torch.testing.assert_close(maps, expected.expand_as(maps), msg=lambda text: text + more)


@pytest.mark.parametrize("length", [8, 64, 512])
def test_the_entropy_factor_is_folded_into_the_fused_path(length: int) -> None:
    x = torch.randn(1, length, WIDTH)
    folded = layer("scaled-dot", entropy_scale=True).float()
    noisy = layer("scaled-dot", entropy_scale=True, attention_dropout=0.5).float().eval()
    seen = mask(length)
    torch.testing.assert_close(folded(x, seen).y, noisy(x, seen).y)
    assert folded.mechanism.keys_seen(seen)[0, 0].tolist() == list(range(1, length + 1))


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
def test_the_worked_factors(options: object, keys: int, training: bool, factor: object) -> None:
    made = MultiHead.build("dot", 2, 1, 8, entropy_scale=options).mechanism.train(training)
    assert isinstance(made, Scored)
    seen = Mask.cross(torch.ones(1, keys, dtype=torch.bool), 1)
    found = made._factor(seen, torch.float64)
    assert (found if found is None else found.item()) == (factor if factor is None else pytest.approx(factor))


@pytest.mark.parametrize("word", WITH_KEYS)
def test_the_length_of_keys_counts_for_nothing_with_key_norm(word: str) -> None:
    made = layer(word, key_norm=True)
    assert made.k is not None
    torch.nn.init.zeros_(made.k.bias)
    x, seen = inputs(2, 6), mask(6, rows=2)
    before = made.weights(x, seen)
    with torch.no_grad():
        made.k.weight.mul_(7)
    torch.testing.assert_close(made.weights(x, seen), before)


@pytest.mark.parametrize("word", ["dot", "scaled-dot"])
def test_with_key_norm_a_score_is_q_times_the_direction_of_k(word: str) -> None:
    made = layer(word, key_norm=True)
    x, seen = inputs(1, 5), mask(5, causal=False)
    q, k, *_ = made.project(x, seen)
    assert q is not None
    assert k is not None
    expected = (q @ (k / k.norm(dim=-1, keepdim=True)).transpose(-1, -2)).softmax(-1)
    torch.testing.assert_close(made.weights(x, seen), expected)


def test_noise_is_added_in_training_only_and_changes_the_answer() -> None:
    made = layer("scaled-dot", score_noise=0.5)
    x, seen = inputs(1, 6), mask(6)
    assert not torch.equal(made(x, seen).y, made(x, seen).y)
    torch.testing.assert_close(made.weights(x, seen), made.weights(x, seen))
    made.eval()
    torch.testing.assert_close(made(x, seen).y, layer("scaled-dot").eval()(x, seen).y)


def test_noise_moves_the_answer_as_much_as_the_first_order_law_says() -> None:
    """std(noisy - clean) is about sqrt((e^(s^2) - 1) sum p^2 (v - o)^2) for many even keys."""
    sigma, keys, draws = 0.5, 256, 400
    made = MultiHead.build("dot", 1, 1, 8, score_noise=sigma).mechanism
    generator = torch.Generator().manual_seed(1)
    k, v = (torch.randn(1, 1, keys, 1, generator=generator) for _ in range(2))
    seen = Mask.cross(torch.ones(1, keys, dtype=torch.bool), draws)
    torch.manual_seed(2)
    noisy = made(torch.ones(1, 1, draws, 1), k, v, seen).y.flatten()
    p = k.flatten().softmax(0)
    clean = (p * v.flatten()).sum()
    law = ((math.exp(sigma**2) - 1) * (p**2 * (v.flatten() - clean) ** 2).sum()).sqrt()
    assert (noisy - clean).square().mean().sqrt().item() == pytest.approx(law.item(), rel=0.15)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
@pytest.mark.parametrize("word", ["dot", "scaled-dot"])
@pytest.mark.parametrize("length", [5, 300])
def test_grouped_keys_equal_repeated_keys(word: str, key_heads: int, length: int) -> None:
    made = layer(word, key_heads=key_heads)
    whole = layer(word)
    for name in "qkvo":
        mine, theirs = getattr(made, name), getattr(whole, name)
        with torch.no_grad():
            for part in ("weight", "bias"):
                small = getattr(mine, part)
                if name in "kv":
                    small = small.unflatten(0, (key_heads, -1))
                    small = small.repeat_interleave(HEADS // key_heads, 0).flatten(0, 1)
                getattr(theirs, part).copy_(small)
    x, seen = inputs(2, length), mask(length, rows=2)
    torch.testing.assert_close(made(x, seen).y, whole(x, seen).y)
    torch.testing.assert_close(made.weights(x, seen), whole.weights(x, seen))
    state = made(x[:, :4], mask(4, rows=2)).state
    assert state[0].shape[1] == key_heads
    step = made(x[:, 4:5], Mask.of(torch.ones(2, 5, dtype=torch.bool), 1, True, 4), state=state)
    torch.testing.assert_close(step.y, whole(x, seen).y[:, 4:5])
