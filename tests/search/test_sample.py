"""Sampling and greedy search against plain ones, and what draws depend on."""

import math
from collections import Counter

import numpy as np
import pytest
import torch
from helpers.plain_search import FixedLogits, ToyModel, plain_sample, random_sources, waiting_times

from attnkit.data.tokenizer import EOS, PAD
from attnkit.recipe.schema import SearchConfig
from attnkit.search import search
from attnkit.search.sample import WaitingTimes, sample_tokens

SPECS = [
    {},
    {"temperature": 0.5},
    {"top_k": 3},
    {"top_k": 400},
    {"top_p": 0.7},
    {"top_p": 0.999},
    {"temperature": 3.0, "top_k": 4, "top_p": 0.8},
    {"top_p": 0.6, "no_repeat_ngram": 2, "min_length": 5, "length_penalty": 0.0},
    {"n_best": 3, "top_p": 0.9},
]


def shown(found: list) -> list:
    return [(h.ids, pytest.approx(h.score, abs=1e-10), h.complete) for h in found]


@pytest.mark.parametrize("size", [9, 200])
@pytest.mark.parametrize("options", SPECS, ids=str)
def test_samples_equal_those_of_a_plain_race(options: dict, size: int) -> None:
    model, source = ToyModel(size, sharpness=0.5), random_sources(4, size)
    spec = SearchConfig(method="sample", max_length=9, seed=5, **options)
    lines = [7, 0, 3, 1]
    numbers = waiting_times(5, lines, spec.n_best, 9, size)
    found = search(model, source, spec, lines=lines)
    for row, number, hypotheses in zip(source, numbers, found, strict=True):
        draws = [plain_sample(model, row, spec, column) for column in number]
        assert sorted(draws, key=lambda draw: -draw[1]) == shown(hypotheses)


@pytest.mark.parametrize("options", [{}, {"n_best": 3, "top_p": 0.9, "no_repeat_ngram": 3}])
def test_a_line_is_drawn_alike_alone_and_in_any_batch(options: dict) -> None:
    model, source = ToyModel(), random_sources(12)
    spec = SearchConfig(method="sample", max_length=20, **options)
    together = search(model, source, spec, lines=range(100, 112))
    back = search(model, source.flip(0), spec, lines=range(111, 99, -1))[::-1]
    for number, row in enumerate(source):
        alone = search(model, row[row != PAD][None], spec, lines=[100 + number])[0]
        assert shown(alone) == [(h.ids, h.score, h.complete) for h in together[number]]
        assert shown(alone) == [(h.ids, h.score, h.complete) for h in back[number]]


def test_clocks_are_those_of_one_generator_a_draw() -> None:
    made = WaitingTimes(1, [5, 0], 2)
    found = np.stack([made.next([1], 7).numpy() for _ in range(20)], 1)
    assert np.array_equal(found[None], waiting_times(1, [0], 2, 20, 7))
    assert found.min() > 0
    every = waiting_times(1, range(3), 2, 50, 9)
    assert len(np.unique(every)) > every.size - 3
    assert not np.isin(waiting_times(2, [0], 1, 50, 9), every).any()


@pytest.mark.slow
def test_long_outputs_equal_those_of_a_plain_race() -> None:
    model, source = ToyModel(), random_sources(2)
    spec = SearchConfig(method="sample", max_length=150, min_length=140, top_k=5)
    numbers = waiting_times(1, range(2), 1, 150, model.output.out_features)
    found = search(model, source, spec, lines=range(2))
    for row, number, hypotheses in zip(source, numbers, found, strict=True):
        assert [plain_sample(model, row, spec, number[0])] == shown(hypotheses)


def test_draws_follow_the_distribution() -> None:
    """20,000 draws: a share p is off by more than 4.5 sqrt(p (1 - p) / n) once in 10^5 runs."""
    share = {4: 0.5, 5: 0.3, 6: 0.15, 7: 0.05}
    scores = torch.full((20_000, 8), -math.inf)
    for token, p in share.items():
        scores[:, token] = math.log(p)
    times = torch.from_numpy(np.random.default_rng(0).standard_exponential((20_000, 8)))
    kept = {4: 0.5 / 0.8, 5: 0.3 / 0.8}
    for options, expected in (({}, share), ({"top_p": 0.8}, kept), ({"top_k": 2}, kept)):
        spec = SearchConfig(method="sample", **options)
        found = Counter(sample_tokens(scores, times, spec).tolist())
        assert set(found) == set(expected)
        for token, p in expected.items():
            assert abs(found[token] / 20_000 - p) < 4.5 * math.sqrt(p * (1 - p) / 20_000)


def test_a_share_met_exactly_keeps_no_further_token() -> None:
    scores = torch.tensor([[-math.inf] * 4 + [math.log(0.5), math.log(0.25), math.log(0.25)]])
    # the later a token is, the sooner its clock rings
    times = torch.tensor([[1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-7, 1e-9]])
    for share, token in ((0.4, 4), (0.5, 4), (0.6, 5), (0.75, 5), (0.76, 6)):
        spec = SearchConfig(method="sample", top_p=share)
        assert sample_tokens(scores.double(), times, spec).item() == token


@pytest.mark.parametrize("options", [{"temperature": 1e-30}, {"temperature": 1e-3}, {"top_k": 1}, {"top_p": 1e-9}])
def test_a_temperature_near_zero_and_one_kept_token_are_greedy_search(options: dict) -> None:
    model, source = ToyModel(), random_sources(10)
    cold = search(model, source, SearchConfig(method="sample", **options), lines=range(10))
    assert cold == search(model, source, SearchConfig(method="greedy"), lines=range(10))


def test_sentences_leave_when_all_their_draws_have_ended() -> None:
    model = ToyModel()
    spec = SearchConfig(method="sample", n_best=3, max_length=30)
    search(model, random_sources(20), spec, lines=range(20))
    left = [sentences for _, sentences in model.calls]
    assert left == sorted(left, reverse=True)
    assert left[0] == 20
    assert left[-1] < 20
    assert all(rows == 3 * sentences for rows, sentences in model.calls[1:])


@pytest.mark.parametrize("method", ["sample", "greedy"])
def test_nothing_left_to_choose_closes_the_output(method: str) -> None:
    model = FixedLogits([-math.inf] * 4 + [0.0])
    spec = SearchConfig(method=method, no_repeat_ngram=1)
    found = search(model, torch.tensor([[4, EOS]]), spec, lines=[0])[0]
    assert [(h.ids, h.complete) for h in found] == [([4], False)]
