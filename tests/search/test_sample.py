"""Tests of sampling and greedy search against plain loops, and of what draws depend on."""

import math
from collections import Counter
from collections.abc import Sequence

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


def approx(hypotheses: list) -> list:
    return [(h.ids, pytest.approx(h.score, abs=1e-10), h.complete) for h in hypotheses]


def assert_samples_equal_plain_loop(size: int, sharpness: float, lines: Sequence[int], spec: SearchConfig) -> None:
    model, sources = ToyModel(size, sharpness=sharpness), random_sources(len(lines), size)
    times = waiting_times(spec.seed, lines, spec.n_best, spec.max_length, size)
    rows = search(model, sources, spec, lines=lines)
    for source, draws, hypotheses in zip(sources, times, rows, strict=True):
        expected = [plain_sample(model, source, spec, draw) for draw in draws]
        assert sorted(expected, key=lambda hypothesis: -hypothesis[1]) == approx(hypotheses)


@pytest.mark.parametrize("size", [9, 200])
@pytest.mark.parametrize("options", SPECS, ids=str)
def test_samples_equal_those_of_a_plain_loop(options: dict, size: int) -> None:
    spec = SearchConfig(method="sample", max_length=9, seed=5, **options)
    assert_samples_equal_plain_loop(size, 0.5, [7, 0, 3, 1], spec)


@pytest.mark.slow
def test_long_samples_equal_those_of_a_plain_loop() -> None:
    spec = SearchConfig(method="sample", max_length=150, min_length=140, top_k=5)
    assert_samples_equal_plain_loop(9, 2.0, range(2), spec)


@pytest.mark.parametrize("options", [{}, {"n_best": 3, "top_p": 0.9, "no_repeat_ngram": 3}])
def test_draws_of_a_line_do_not_depend_on_the_batch(options: dict) -> None:
    model, source = ToyModel(), random_sources(12)
    spec = SearchConfig(method="sample", max_length=20, **options)
    batch = search(model, source, spec, lines=range(100, 112))
    reverse = search(model, source.flip(0), spec, lines=range(111, 99, -1))[::-1]
    for number, row in enumerate(source):
        alone = search(model, row[row != PAD][None], spec, lines=[100 + number])[0]
        for other in (batch[number], reverse[number]):
            assert approx(alone) == [(h.ids, h.score, h.complete) for h in other]


def test_waiting_times_are_those_of_one_generator_per_draw() -> None:
    times = WaitingTimes(1, [5, 0], 2)
    found = np.stack([times.next([1], 7).numpy() for _ in range(20)], 1)
    assert np.array_equal(found[None], waiting_times(1, [0], 2, 20, 7))
    assert found.min() > 0
    seed_1 = waiting_times(1, range(3), 2, 50, 9)
    assert len(np.unique(seed_1)) > seed_1.size - 3
    assert not np.isin(waiting_times(2, [0], 1, 50, 9), seed_1).any()


def test_draws_follow_the_distribution() -> None:
    """20,000 draws: a share p is off by more than 4.5 sqrt(p (1 - p) / n) once in 10^5 runs."""
    share = {4: 0.5, 5: 0.3, 6: 0.15, 7: 0.05}
    scores = torch.full((20_000, 8), -math.inf)
    for token, p in share.items():
        scores[:, token] = math.log(p)
    times = torch.from_numpy(np.random.default_rng(0).standard_exponential((20_000, 8)))
    kept = {4: 0.5 / 0.8, 5: 0.3 / 0.8}
    for options, expected in (({}, share), ({"top_p": 0.8}, kept), ({"top_k": 2}, kept)):
        found = Counter(sample_tokens(scores, times, SearchConfig(method="sample", **options)).tolist())
        assert set(found) == set(expected)
        for token, p in expected.items():
            assert abs(found[token] / 20_000 - p) < 4.5 * math.sqrt(p * (1 - p) / 20_000)


@pytest.mark.parametrize(("top_p", "token"), [(0.4, 4), (0.5, 4), (0.6, 5), (0.75, 5), (0.76, 6)])
def test_top_p_that_is_met_exactly_keeps_no_further_token(top_p: float, token: int) -> None:
    scores = torch.tensor([[-math.inf] * 4 + [math.log(0.5), math.log(0.25), math.log(0.25)]])
    # the later a token is, the shorter it waits
    times = torch.tensor([[1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-7, 1e-9]])
    assert sample_tokens(scores.double(), times, SearchConfig(method="sample", top_p=top_p)).item() == token


@pytest.mark.parametrize("options", [{"temperature": 1e-30}, {"temperature": 1e-3}, {"top_k": 1}, {"top_p": 1e-9}])
def test_temperature_near_zero_or_one_kept_token_is_greedy_search(options: dict) -> None:
    model, source = ToyModel(), random_sources(10)
    sampled = search(model, source, SearchConfig(method="sample", **options), lines=range(10))
    assert sampled == search(model, source, SearchConfig(method="greedy"), lines=range(10))


def test_sentences_are_removed_when_all_their_draws_have_ended() -> None:
    model = ToyModel()
    search(model, random_sources(20), SearchConfig(method="sample", n_best=3, max_length=30), lines=range(20))
    sentences = [sentences for _, sentences in model.calls]
    assert sentences == sorted(sentences, reverse=True)
    assert sentences[0] == 20
    assert sentences[-1] < 20
    assert all(rows == 3 * sentences for rows, sentences in model.calls[1:])


@pytest.mark.parametrize("method", ["sample", "greedy"])
def test_output_without_a_valid_token_is_cut(method: str) -> None:
    model = FixedLogits([-math.inf] * 4 + [0.0])
    spec = SearchConfig(method=method, no_repeat_ngram=1)
    hypotheses = search(model, torch.tensor([[4, EOS]]), spec, lines=[0])[0]
    assert [(h.ids, h.complete) for h in hypotheses] == [([4], False)]
