"""The merge of several contexts against hand-calculated numbers and a plain reference."""

import math

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
    """One row cut by the definition: tokens in order until their mass reaches top_p."""
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
    """The published step, token by token in Python numbers."""
    whole = torch.log_softmax(logits, -1)
    rows = [filtered(row, top_p) for row in whole]
    entropies = [-sum(math.exp(value) * max(value, -100.0) for value in row.tolist()) for row in rows[1:]]
    chosen = None
    if pool == "entropy":
        scored = [h - eta * (i == last) for i, h in enumerate(entropies)]
        chosen = scored.index(min(scored))
    if weights is None:
        n = len(entropies)
        total = sum(math.exp(-h) for h in entropies)
        mean = pool == "mean"
        weights = [1 / n if mean else math.exp(-h) / total for h in entropies]

    def merged(rows: list[Tensor], token: int) -> float:
        alone, others = rows[0][token].item(), [row[token].item() for row in rows[1:]]
        if chosen is not None:
            pooled = others[chosen]
        elif pool == "max":
            pooled = max(others)
        else:
            pooled = sum(w * value for w, value in zip(weights, others, strict=True) if w > 0)
        return pooled if alone == -math.inf else (1 + beta) * pooled - beta * alone

    size = logits.shape[1]
    out = [merged(rows, token) for token in range(size)]
    if all(value == -math.inf for value in out):
        union = [
            any(row[t] > -math.inf for row, w in zip(rows[1:], weights, strict=True) if w > 0) for t in range(size)
        ]
        out = [merged(list(whole), t) if union[t] else -math.inf for t in range(size)]
    return torch.log_softmax(logits.new_tensor(out), 0), chosen


def test_the_row_of_least_entropy_speaks() -> None:
    merged, chosen = merge(log(P0, P1, P2), top_p=1)
    assert chosen == 0
    wanted = torch.tensor([0.755843, 0.071334, 0.078944, 0.093880], dtype=torch.float64)
    torch.testing.assert_close(merged.exp(), wanted, atol=1e-6, rtol=0)


def test_the_mean_divided_once_is_the_product_of_both_over_the_prior() -> None:
    merged, chosen = merge(log(P0, P1, P2), "mean", beta=1, top_p=1)
    assert chosen is None
    wanted = torch.tensor([0.488372, 0.093023, 0.139535, 0.279070], dtype=torch.float64)
    torch.testing.assert_close(merged.exp(), wanted, atol=1e-6, rtol=0)


@pytest.mark.parametrize("top_p", [0.95, 1.0])
@pytest.mark.parametrize("pool", POOLS)
def test_beta_of_minus_one_gives_what_the_model_says_without_context(pool: str, top_p: float) -> None:
    logits = torch.randn(5, 50, dtype=torch.float64)
    merged, _ = merge(logits, pool, beta=-1, top_p=top_p)
    alone = filtered(torch.log_softmax(logits[0], 0), top_p)
    torch.testing.assert_close(merged, alone.log_softmax(0), atol=1e-12, rtol=0)


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_one_context_is_context_aware_decoding(pool: str, alpha: float) -> None:
    logits = torch.randn(2, 50, dtype=torch.float64)
    merged, _ = merge(logits, pool, beta=alpha, top_p=1)
    wanted = torch.log_softmax((1 + alpha) * logits[1] - alpha * logits[0], 0)
    torch.testing.assert_close(merged, wanted, atol=1e-12, rtol=0)


@pytest.mark.parametrize("n", [1, 2, 7, 64])
def test_beta_of_n_minus_one_with_the_mean_is_exact_naive_bayes(n: int) -> None:
    logits = torch.randn(n + 1, 50, dtype=torch.float64)
    merged, _ = merge(logits, "mean", beta=n - 1, top_p=1)
    rows = torch.log_softmax(logits, -1)
    wanted = torch.log_softmax(rows[1:].sum(0) - (n - 1) * rows[0], 0)
    torch.testing.assert_close(merged, wanted, atol=1e-12, rtol=0)


def test_entropies_are_those_of_the_cut_rows_without_normalising_again() -> None:
    rows = log(P0, (0.9, 0.06, 0.03, 0.01))
    merged = merge_rows(rows[None], Rule(), torch.tensor([-1]))
    assert merged.entropies.item() == pytest.approx(0.263629, abs=1e-6)


@pytest.mark.parametrize(("eta", "chosen"), [(0.1, 0), (0.04, 1)])
def test_the_context_that_spoke_goes_on_unless_another_is_clearly_surer(eta: float, chosen: int) -> None:
    def row(entropy: float) -> tuple[float, float]:
        low, high = 0.5, 1.0
        for _ in range(60):
            p = (low + high) / 2
            h = -p * math.log(p) - (1 - p) * math.log(1 - p)
            low, high = (p, high) if h > entropy else (low, p)
        return p, 1 - p

    logits = log((0.5, 0.5), row(0.50), row(0.45))
    assert merge(logits, eta=eta, top_p=1, previous=0)[1] == chosen


def test_tokens_impossible_everywhere_stay_impossible() -> None:
    logits = torch.tensor([[0.0, -math.inf, 1.0], [1.0, -math.inf, 0.0], [0.5, -math.inf, 0.5]])
    for pool in POOLS:
        merged, _ = merge(logits, pool)
        assert merged[1] == -math.inf
        assert not merged.isnan().any()
        assert merged.exp().sum().item() == pytest.approx(1)


@pytest.mark.parametrize("pool", ["mean", "weighted"])
def test_kept_sets_that_do_not_meet_are_merged_over_their_union(pool: str) -> None:
    rows = log((0.25,) * 4, (0.97, 0.01, 0.01, 0.01), (0.01, 0.97, 0.01, 0.01))
    merged = merge_rows(rows[None], Rule(pool), torch.tensor([-1]))  # type: ignore[arg-type]
    wanted = torch.tensor([0.5, 0.5, 0, 0], dtype=torch.float64)
    torch.testing.assert_close(merged.logprobs[0].exp(), wanted)


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
def test_every_option_agrees_with_a_plain_reference(
    pool: str, seed: int, contexts: int, size: int, beta: float, eta: float, top_p: float, spread: float, own: bool
) -> None:
    draw = torch.Generator().manual_seed(seed)
    logits = spread * torch.randn(contexts + 1, size, generator=draw, dtype=torch.float64)
    last = None if seed % 3 == 0 else seed % contexts
    weights = None
    if pool == "weighted" and own:
        some = torch.rand(contexts, generator=draw, dtype=torch.float64)
        some[seed % contexts] = 1
        some = some * (some > 0.3)
        weights = (some / some.sum()).tolist()
    found, chosen = merge(logits, pool, beta, eta, top_p, last, weights)
    wanted, speaks = reference(logits, pool, beta, eta, top_p, last, weights)
    assert chosen == speaks
    torch.testing.assert_close(found, wanted, atol=1e-6, rtol=1e-9)


@pytest.mark.slow
def test_rows_of_a_large_vocabulary_keep_what_a_whole_sort_keeps() -> None:
    logits = torch.stack([scale * torch.randn(30_000) for scale in (0.0, 0.01, 1, 3, 8)])
    rows = torch.log_softmax(logits.double(), -1)
    for top_p in (0.5, 0.95):
        wanted = torch.stack([filtered(row, top_p) > -math.inf for row in rows])
        assert torch.equal(nucleus(rows, top_p)[0], wanted)


def test_hypotheses_are_merged_each_by_itself() -> None:
    logits, previous = torch.randn(4, 6, 40), torch.tensor([-1, 0, 3, 4])
    for pool in POOLS:
        rule = Rule(pool)  # type: ignore[arg-type]
        together = merge_rows(logits, rule, previous)
        for row, last in enumerate(previous.tolist()):
            alone = merge_rows(logits[row : row + 1], rule, previous[row : row + 1])
            for one, all_ in zip(alone, together, strict=True):
                torch.testing.assert_close(one[0], all_[row])
            assert last >= -1


@pytest.mark.parametrize("type_", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_half_precision_is_merged_in_float32(type_: torch.dtype) -> None:
    merged, _ = merge(torch.randn(3, 9).to(type_))
    assert merged.dtype == (torch.float64 if type_ == torch.float64 else torch.float32)


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
def test_wrong_values_are_refused_by_name(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        merge(torch.randn(3, 9), **options)  # type: ignore[arg-type]


def test_logits_that_need_gradients_are_merged() -> None:
    logits = torch.randn(3, 9)
    for pool in POOLS:
        wanted, found = (merge(each, pool)[0] for each in (logits, logits.clone().requires_grad_()))
        assert torch.equal(wanted, found)
        assert not found.requires_grad


def test_no_context_and_nan_are_refused() -> None:
    with pytest.raises(UsageError, match="no context"):
        merge(torch.randn(1, 9))
    with pytest.raises(UsageError, match=r"\[contexts \+ 1, vocabulary\]"):
        merge(torch.randn(9))
    for pool in POOLS:
        bad = torch.randn(3, 9)
        bad[2, 4] = math.nan
        with pytest.raises(UsageError, match="NaN"):
            merge(bad, pool, beta=0.25)
