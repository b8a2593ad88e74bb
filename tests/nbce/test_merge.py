"""Tests of the merge of several contexts against values computed by hand and a reference implementation."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnkit.errors import UsageError
from attnkit.nbce import POOLS, merge
from attnkit.nbce.merge import Rule, merge_rows, nucleus

P0, P1, P2 = (0.4, 0.3, 0.2, 0.1), (0.7, 0.1, 0.1, 0.1), (0.25, 0.25, 0.25, 0.25)


def log(*rows: tuple[float, ...]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


def filtered(row: Tensor, top_p: float) -> Tensor:
    """Return the row filtered by definition: tokens in order until their mass reaches top_p."""
    order = sorted(range(len(row)), key=lambda i: (-row[i].item(), i))
    out, mass = torch.full_like(row, -math.inf), 0.0
    for rank, i in enumerate(order):
        if rank and mass >= top_p and top_p < 1:
            break
        out[i], mass = row[i], mass + row[i].exp().item()
    return out


def reference(
    logits: Tensor, pool: str, beta: float, eta: float, top_p: float, last: int | None, weights: list[float] | None
) -> tuple[Tensor, int | None]:
    """Return the published step, computed by token."""
    whole = torch.log_softmax(logits, -1)
    rows = [filtered(row, top_p) for row in whole]
    entropies = [-sum(math.exp(value) * max(value, -100.0) for value in row.tolist()) for row in rows[1:]]
    chosen = None
    if pool == "entropy":
        scored = [h - eta * (i == last) for i, h in enumerate(entropies)]
        chosen = scored.index(min(scored))
    if weights is None:
        shares = [1.0 if pool == "mean" else math.exp(-h) for h in entropies]
        weights = [share / sum(shares) for share in shares]

    def merged(rows: list[Tensor], token: int) -> float:
        without, others = rows[0][token].item(), [row[token].item() for row in rows[1:]]
        if chosen is not None:
            pooled = others[chosen]
        elif pool == "max":
            pooled = max(others)
        else:
            pooled = sum(w * value for w, value in zip(weights, others, strict=True) if w > 0)
        return pooled if without == -math.inf else (1 + beta) * pooled - beta * without

    size = logits.shape[1]
    out = [merged(rows, token) for token in range(size)]
    if all(value == -math.inf for value in out):
        union = [
            any(row[t] > -math.inf for row, w in zip(rows[1:], weights, strict=True) if w > 0) for t in range(size)
        ]
        out = [merged(list(whole), t) if union[t] else -math.inf for t in range(size)]
    return torch.log_softmax(logits.new_tensor(out), 0), chosen


@pytest.mark.parametrize(
    ("options", "context", "expected"),
    [
        ({}, 0, [0.755843, 0.071334, 0.078944, 0.093880]),
        # the product of both, divided by the prior
        ({"pool": "mean", "beta": 1}, None, [0.488372, 0.093023, 0.139535, 0.279070]),
    ],
)
def test_merge_by_hand(options: dict[str, Any], context: int | None, expected: list[float]) -> None:
    merged, chosen = merge(log(P0, P1, P2), **options, top_p=1)
    assert chosen == context
    assert merged.exp().tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("top_p", [0.95, 1.0])
@pytest.mark.parametrize("pool", POOLS)
def test_beta_of_minus_one_is_the_model_without_context(pool: str, top_p: float) -> None:
    logits = torch.randn(5, 50, dtype=torch.float64)
    merged, _ = merge(logits, pool, beta=-1, top_p=top_p)
    without = filtered(torch.log_softmax(logits[0], 0), top_p)
    torch.testing.assert_close(merged, without.log_softmax(0), atol=1e-12, rtol=0)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_one_context_is_context_aware_decoding(pool: str, alpha: float) -> None:
    logits = torch.randn(2, 50, dtype=torch.float64)
    merged, _ = merge(logits, pool, beta=alpha, top_p=1)
    expected = torch.log_softmax((1 + alpha) * logits[1] - alpha * logits[0], 0)
    torch.testing.assert_close(merged, expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_mean_with_beta_of_n_minus_one_is_naive_bayes(n: int) -> None:
    logits = torch.randn(n + 1, 50, dtype=torch.float64)
    merged, _ = merge(logits, "mean", beta=n - 1, top_p=1)
    rows = torch.log_softmax(logits, -1)
    expected = torch.log_softmax(rows[1:].sum(0) - (n - 1) * rows[0], 0)
    torch.testing.assert_close(merged, expected, atol=1e-12, rtol=0)


def test_entropies_are_of_filtered_rows_that_are_not_renormalized() -> None:
    rows = log(P0, (0.9, 0.06, 0.03, 0.01))
    merged = merge_rows(rows[None], Rule(), torch.tensor([-1]))
    assert merged.entropies.item() == pytest.approx(0.263629, abs=1e-6)


@pytest.mark.parametrize(("eta", "chosen"), [(0.1, 0), (0.04, 1)])
def test_eta_favours_the_previous_context(eta: float, chosen: int) -> None:
    def row(entropy: float) -> tuple[float, float]:
        low, high = 0.5, 1.0
        for _ in range(60):
            p = (low + high) / 2
            h = -p * math.log(p) - (1 - p) * math.log(1 - p)
            low, high = (p, high) if h > entropy else (low, p)
        return p, 1 - p

    logits = log((0.5, 0.5), row(0.50), row(0.45))
    assert merge(logits, eta=eta, top_p=1, previous=0)[1] == chosen


def test_tokens_with_probability_zero_in_all_rows() -> None:
    logits = torch.tensor([[0.0, -math.inf, 1.0], [1.0, -math.inf, 0.0], [0.5, -math.inf, 0.5]])
    for pool in POOLS:
        merged, _ = merge(logits, pool)
        assert merged[1] == -math.inf
        assert not merged.isnan().any()
        assert merged.exp().sum().item() == pytest.approx(1)


@pytest.mark.parametrize("pool", ["mean", "weighted"])
def test_disjoint_nuclei_are_merged_over_their_union(pool: str) -> None:
    rows = log((0.25,) * 4, (0.97, 0.01, 0.01, 0.01), (0.01, 0.97, 0.01, 0.01))
    merged = merge_rows(rows[None], Rule(pool), torch.tensor([-1]))  # type: ignore[arg-type]
    assert merged.logprobs[0].exp().tolist() == pytest.approx([0.5, 0.5, 0, 0], abs=1e-7)


@pytest.mark.parametrize("pool", POOLS)
@given(
    seed=st.integers(0, 2**32),
    contexts=st.integers(1, 6),
    size=st.integers(1, 12),
    beta=st.floats(-0.9, 5),
    eta=st.floats(0, 2),
    top_p=st.sampled_from([0.0, 0.3, 0.8, 0.95, 0.999, 1.0]),
    spread=st.sampled_from([0.1, 1.0, 10.0]),
    own=st.booleans(),
)
def test_merge_equals_the_reference(
    pool: str, seed: int, contexts: int, size: int, beta: float, eta: float, top_p: float, spread: float, own: bool
) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(contexts + 1, size, generator=draw, dtype=torch.float64)
    last = None if seed % 3 == 0 else seed % contexts
    weights = None
    if pool == "weighted" and own:
        drawn = torch.rand(contexts, generator=draw, dtype=torch.float64)
        drawn[seed % contexts] = 1
        drawn = drawn * (drawn > 0.3)
        weights = (drawn / drawn.sum()).tolist()
    found, chosen = merge(logits, pool, beta, eta, top_p, last, weights)
    expected, expected_context = reference(logits, pool, beta, eta, top_p, last, weights)
    assert chosen == expected_context
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-9)


@pytest.mark.slow
def test_nucleus_of_a_large_vocabulary_equals_that_of_a_full_sort() -> None:
    logits = torch.stack([scale * torch.randn(30_000) for scale in (0.0, 0.01, 1, 3, 8)])
    rows = torch.log_softmax(logits.double(), -1)
    for top_p in (0.5, 0.95):
        expected = torch.stack([filtered(row, top_p) > -math.inf for row in rows])
        assert torch.equal(nucleus(rows, top_p)[0], expected)


@pytest.mark.parametrize("pool", POOLS)
def test_hypotheses_are_merged_independently(pool: Any) -> None:
    logits, previous = torch.randn(4, 6, 40), torch.tensor([-1, 0, 3, 4])
    together = merge_rows(logits, Rule(pool), previous)
    for row in range(4):
        alone = merge_rows(logits[row : row + 1], Rule(pool), previous[row : row + 1])
        for found, expected in zip(together, alone, strict=True):
            torch.testing.assert_close(found[row], expected[0])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_precision_is_merged_in_float32(dtype: torch.dtype) -> None:
    merged, _ = merge(torch.randn(3, 9).to(dtype))
    assert merged.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pool": "entropi"}, "did you mean entropy"),
        ({"beta": -2.0}, "beta must be at least -1, got -2"),
        ({"beta": math.nan}, "beta must be"),
        ({"eta": -0.1}, "eta must be at least 0"),
        ({"top_p": 1.5}, "top_p must be from 0 to 1, got 1.5"),
        ({"previous": 2}, "previous must be a context from 0 to 1, got 2"),
        ({"weights": [0.5, 0.5]}, "weights are for pool 'weighted'"),
        ({"pool": "weighted", "weights": [1.0]}, "weights: got 1 for 2 contexts"),
        ({"pool": "weighted", "weights": [0.7, 0.7]}, "sum to 1"),
    ],
)
def test_invalid_arguments_raise(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        merge(torch.randn(3, 9), **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("pool", POOLS)
def test_logits_with_gradients(pool: str) -> None:
    logits = torch.randn(3, 9)
    found, _ = merge(logits.clone().requires_grad_(), pool)
    assert torch.equal(found, merge(logits, pool)[0])
    assert not found.requires_grad


def test_logits_of_the_wrong_shape_raise() -> None:
    with pytest.raises(UsageError, match="no context"):
        merge(torch.randn(1, 9))
    with pytest.raises(UsageError, match=r"\[contexts \+ 1, vocabulary\]"):
        merge(torch.randn(9))


@pytest.mark.parametrize("pool", POOLS)
def test_nan_raises(pool: str) -> None:
    logits = torch.randn(3, 9)
    logits[2, 4] = math.nan
    with pytest.raises(UsageError, match="NaN"):
        merge(logits, pool, beta=0.25)
