"""Tests of n-gram models against Kneser-Ney smoothing with dictionaries."""

from collections import Counter
from typing import Any

import pytest
import torch
from helpers.tiny_models import tiny_model
from torch.testing import assert_close

from attnkit.data.batch import Batch
from attnkit.models.ngram import WITHOUT_COUNTS, discount

SIZE = 12
ROWS = torch.randint(3, SIZE, (7, 19), generator=torch.Generator().manual_seed(4)) % 8 + 3
BEGIN = torch.full((7, 1), 2)
TEXT = Batch(None, torch.cat((BEGIN, ROWS[:, :-1]), 1), ROWS, torch.arange(7).numpy(), 0)


def make(order: int) -> Any:
    """Return a model without counts."""
    return tiny_model(SIZE, type="n-gram", shape="decoder", order=order).double().eval()


def counted(order: int) -> Any:
    model = make(order)
    model.count([TEXT])
    return model


def formula(order: int, context: tuple[int, ...]) -> list[float]:
    """Return p(c | context) for every c, by the formula of interpolated Kneser-Ney."""
    grams: list[Counter[tuple[int, ...]]] = []
    for length in (1, 2, 3):
        found: Counter[tuple[int, ...]] = Counter()
        for row in ROWS.tolist():
            tokens = [0, 2, *row]
            found.update(tuple(tokens[end - length : end]) for end in range(3, len(tokens) + 1))
        grams.append(found)
    tables = [grams[order - 1]]
    for length in range(order - 1, 0, -1):  # the number of contexts of each n-gram
        kinds = Counter(gram[1:] for gram in grams[length])
        if length == 2:  # one context only: the begin of a block
            kinds.update({g: n - 1 for g, n in grams[1].items() if g[0] == 2})
        tables.insert(0, kinds)
    shares = [1 / SIZE] * SIZE
    for length, table in enumerate(tables, 1):
        before = context[len(context) - length + 1 :] if length > 1 else ()
        once = sum(n == 1 for n in table.values())
        off = once / (once + 2 * sum(n == 2 for n in table.values())) if once else 0.5
        counts = {gram[-1]: n for gram, n in table.items() if gram[:-1] == before}
        total = sum(counts.values())
        if total:
            rest = off * len(counts) / total
            shares = [max(counts.get(c, 0) - off, 0) / total + rest * share for c, share in enumerate(shares)]
    return shares


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("ids", [[2], [2, 5], [2, 5, 7], [2, 7, 3, 9], [2, 11, 11]])
def test_probabilities_equal_the_formula_and_sum_to_1(order: int, ids: list[int]) -> None:
    out = counted(order).hidden(None, torch.tensor([ids]))[0, -1].exp()
    assert_close(out, torch.tensor(formula(order, tuple([0, *ids][-2:])), dtype=torch.float64))
    assert_close(out.sum(), torch.ones((), dtype=torch.float64))


@pytest.mark.parametrize("order", [1, 2, 3])
def test_steps_after_padded_prompts_equal_one_pass(order: int) -> None:
    model, ids = counted(order), ROWS[:3, :6]
    whole = model.hidden(None, ids)
    state = model.start(torch.nn.functional.pad(ids[:, :2], (0, 3)))
    for column in range(2, 6):
        out, state = model.step(ids[:, column : column + 1], state)
        assert_close(out[:, 0], whole[:, column])


def test_stored_trigrams_can_be_loaded_into_a_new_model() -> None:
    model, other = counted(3), make(3)
    other.make_room(model.state_dict())
    other.load_state_dict(model.state_dict())
    assert torch.equal(other.hidden(None, ROWS), model.hidden(None, ROWS))


@pytest.mark.parametrize(("counts", "expected"), [([1, 1, 2, 5], 0.5), ([1, 4, 4], 1.0), ([3, 4], WITHOUT_COUNTS)])
def test_discount_depends_on_the_numbers_of_ones_and_twos(counts: list[int], expected: float) -> None:
    assert discount(torch.tensor(counts)) == expected
