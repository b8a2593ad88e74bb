"""Tests of beam search against exhaustive search and against a plain beam search without a cache."""

import itertools
import math

import pytest
import torch
from helpers.plain_search import FORBIDDEN, FixedLogits, ToyModel, exhaustive, plain_beam, random_sources
from helpers.watched_device import DEVICE, Watch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnkit.data.tokenizer import BOS, EOS, PAD
from attnkit.errors import DataError, RecipeError
from attnkit.models import build
from attnkit.recipe.schema import ModelConfig, SearchConfig
from attnkit.search import base, beam, search
from attnkit.search.base import advance, fast_topk, predict, topk

SPECS = [
    SearchConfig(beam=beam, n_best=n, length_penalty=penalty, max_length=length, **options)
    for (beam, n), penalty, (length, options) in itertools.product(
        [(1, 1), (3, 3), (5, 2)],
        [0.0, 1.0, -0.7],
        [(1, {}), (12, {"min_length": 4}), (10, {"no_repeat_ngram": 2, "min_length": 3})],
    )
]
ONE_TOKEN = torch.tensor([[5, EOS]])


def approx(hypotheses: list) -> list:
    return [(h.ids, pytest.approx(h.score, abs=1e-10), h.complete) for h in hypotheses]


def assert_equals_plain_search(model: ToyModel, sources: Tensor, spec: SearchConfig) -> list:
    """Check the hypotheses of each source against a plain search; return them."""
    found = search(model, sources, spec, lines=range(len(sources)))
    for source, hypotheses in zip(sources, found, strict=True):
        assert plain_beam(model, source, spec) == approx(hypotheses)
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0, -1.0])
def test_wide_beam_equals_exhaustive_search(penalty: float) -> None:
    model, sources = ToyModel(size=7), random_sources(4, size=7)
    spec = SearchConfig(beam=300, n_best=40, length_penalty=penalty, max_length=5)
    for source, hypotheses in zip(sources, search(model, sources, spec, lines=range(4)), strict=True):
        best = exhaustive(model, source, spec)[:40]
        assert [h.ids for h in hypotheses] == [ids for ids, _ in best]
        assert [h.score for h in hypotheses] == pytest.approx([s for _, s in best], abs=1e-10)


def test_outputs_cut_at_the_maximum_length_follow_all_complete_ones() -> None:
    model, sources = ToyModel(size=6), random_sources(3, size=6)
    spec = SearchConfig(beam=64, n_best=60, max_length=4)
    for source, hypotheses in zip(sources, search(model, sources, spec, lines=range(3)), strict=True):
        best = exhaustive(model, source, spec)
        assert [(h.ids, h.complete) for h in hypotheses] == [(ids, len(ids) < 4) for ids, _ in best]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_search_equals_a_plain_search_without_a_cache(spec: SearchConfig) -> None:
    assert_equals_plain_search(ToyModel(seed=3), random_sources(9, seed=4), spec)


@pytest.mark.slow
def test_search_of_long_outputs_equals_a_plain_search() -> None:
    spec = SearchConfig(beam=3, n_best=3, max_length=150, min_length=140)
    for hypotheses in assert_equals_plain_search(ToyModel(), random_sources(2), spec):
        assert len(hypotheses[0].ids) >= 140


@pytest.mark.parametrize("options", [{}, {"min_length": 3}, {"no_repeat_ngram": 1}])
def test_beam_of_one_is_greedy_search(options: dict) -> None:
    model, sources = ToyModel(seed=1), random_sources(40)
    greedy = search(model, sources, SearchConfig(method="greedy", **options), lines=range(40))
    assert search(model, sources, SearchConfig(beam=1, **options), lines=range(40)) == greedy


@pytest.mark.parametrize("options", [{"beam": 2}, {"method": "greedy"}, {"method": "sample"}])
def test_memory_grows_with_the_outputs_and_not_with_the_maximum_length(options: dict) -> None:
    """2^31 - 1 steps would not fit in memory; the outputs end long before."""
    model, sources = FixedLogits([0.0] * 3 + [5.0] + [0.0] * 3), torch.tensor([[5, EOS]] * 3)
    spec = SearchConfig(max_length=2**31 - 1, min_length=70, **options)
    for hypotheses in search(model, sources, spec, lines=range(3)):
        assert hypotheses[0].complete
        assert len(hypotheses[0].ids) >= 70


def test_sentence_alone_equals_itself_in_a_batch() -> None:
    model, sources = ToyModel(), random_sources(20)
    spec = SearchConfig(beam=4, n_best=4, max_length=15)
    batch = search(model, sources, spec, lines=range(20))
    for number, source in enumerate(sources):
        alone = search(model, source[source != PAD][None], spec, lines=[number])
        assert approx(alone[0]) == [(h.ids, h.score, h.complete) for h in batch[number]]


def test_finished_sentences_are_removed_from_the_batch() -> None:
    model = ToyModel()
    search(model, random_sources(20), SearchConfig(beam=4, max_length=30), lines=range(20))
    assert model.calls[0] == (20, 20)
    assert all(rows == 4 * sentences for rows, sentences in model.calls[1:])
    sentences = [sentences for _, sentences in model.calls]
    assert sentences == sorted(sentences, reverse=True)
    assert sentences[-1] < 20


@pytest.mark.sampled(3)
def test_early_stopping_does_not_change_the_n_best_list() -> None:
    """Without a length penalty the exact bound ends searches long before K hypotheses have finished."""
    model, sources = ToyModel(sharpness=4.0), random_sources(10)
    spec = SearchConfig(beam=5, n_best=1, length_penalty=0.0, max_length=40)
    assert_equals_plain_search(model, sources, spec)
    rows = []
    for n_best in (1, 5):
        model.calls.clear()
        search(model, sources, spec.model_copy(update={"n_best": n_best}), lines=range(10))
        rows.append(sum(rows for rows, _ in model.calls))
    assert rows[0] < rows[1]


def test_equal_scores_are_ordered_by_id() -> None:
    flat = FixedLogits([0.0] * 40)
    for width in (1, 4):
        spec = SearchConfig(beam=width, n_best=width, max_length=2, min_length=1)
        hypotheses = search(flat, ONE_TOKEN, spec, lines=[0])[0]
        assert [h.ids for h in hypotheses] == [[4], [4, 4], [4, 5], [4, 6]][:width]
    assert search(flat, ONE_TOKEN, SearchConfig(method="greedy", max_length=3), lines=[0])[0][0].ids == []


def test_search_with_many_ties_equals_a_plain_search() -> None:
    """Three copies of every token: the plain search orders equal ones by beam, then by id."""
    columns = [*range(7), *range(4, 7), *range(4, 7)]
    model = ToyModel(size=7)
    model.embed = model.embed[columns]
    # copied after the product, which may round equal columns differently
    model.output.register_forward_hook(lambda _, __, logits: logits[..., columns])
    model.output.out_features = 13
    assert_equals_plain_search(model, random_sources(6, size=13), SearchConfig(beam=4, n_best=4, max_length=8))


def test_topk_breaks_ties_at_the_cut_by_id() -> None:
    scores = torch.tensor([[1.0, 3, 2, 2, 2, 0], [5, 4, 3, 2, 1, 0], [0, 0, 0, 0, 0, 0]])
    values, ids, _ = topk(scores, 2, exact=True)
    assert ids.tolist() == [[1, 2], [0, 1], [0, 1]]
    assert values.tolist() == [[3, 2], [5, 4], [0, 0]]
    assert topk(scores[:1], 2, exact=False)[2].item()  # the third equals the second
    assert not topk(scores[1:2], 2, exact=False)[2].item()


@pytest.mark.parametrize("length", [1, 40, 700, 5632, 8000, 8005])
@pytest.mark.parametrize("k", [1, 11])
@pytest.mark.parametrize("beams", [1, 3])
def test_topk_in_two_stages_equals_one_stage(length: int, k: int, beams: int) -> None:
    random = torch.Generator().manual_seed(length)
    scores = torch.randn((20, beams, length), generator=random)
    before = torch.randn((20, beams), generator=random)
    scores[0] = -math.inf
    scores[1, :, length // 2 :] = -math.inf
    scores[2] = scores[2].round()  # many equal ones
    k = min(k, beams * length)
    for addend in (None, before):
        whole = (scores if addend is None else scores + before[..., None]).flatten(1)
        values, places = fast_topk(scores, addend, k)
        assert torch.equal(values, whole.topk(k).values)
        assert torch.equal(whole.gather(1, places), values)
        assert all(len(set(row)) == len(row) for row in places.tolist())
    scores[3, :, -1] = math.nan
    assert fast_topk(scores, before, 1)[0][3].isnan().all()


@pytest.mark.parametrize("length", [1, 150, 4095, 4096, 4150, 8000, 8063])
@pytest.mark.parametrize("rows", [1, 20])
def test_row_max_is_the_first_of_equal_scores(length: int, rows: int) -> None:
    random = torch.randn((rows, length), generator=torch.Generator().manual_seed(length))
    for scores in (random, random.round(), torch.zeros_like(random)):
        scores[-1, -1] = 9
        scores[0, length // 2] = math.nan
        values, places = base.row_max(scores)
        expected = scores.max(1, keepdim=True)
        torch.testing.assert_close((values, places), tuple(expected), rtol=0, atol=0, equal_nan=True)
        for row, place in list(zip(scores.tolist(), places.tolist(), strict=True))[1:]:
            assert place == [row.index(max(row))]


@torch.inference_mode()
def test_log_probabilities_equal_those_of_torch() -> None:
    model, sources, ids = ToyModel(size=200), random_sources(5, size=200), torch.full((5, 1), BOS)
    hidden, _ = advance(model, ids, model.start(sources))
    expected = model(sources, ids)[:, -1].log_softmax(-1)
    torch.testing.assert_close(predict(model, hidden), expected)


@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_compact_batch_keeps_every_unfinished_sentence(done: list[bool]) -> None:
    kept = base.compact_batch(ToyModel(), done)
    unfinished = {sentence for sentence, ended in enumerate(done) if not ended}
    if kept is None:
        assert len(done) <= len(unfinished) * 5 / 4
        return
    assert unfinished <= set(kept) <= set(range(len(done)))
    assert len(kept) == len(set(kept)) < len(done)
    assert len(kept) <= len(unfinished) * 5 / 4
    assert all(place == sentence for place, sentence in enumerate(kept) if sentence < len(kept))


@pytest.mark.parametrize(
    ("options", "rows"),  # the maximum number of rows (2^n sentences) for each number of logits at once
    [
        ({"beam": 3, "n_best": 3}, {1: 3, 200: 4, 350: 6, 700: 12}),
        ({"beam": 3, "n_best": 3, "no_repeat_ngram": 2, "min_length": 3}, {200: 4, 700: 12}),
        ({"method": "greedy", "no_repeat_ngram": 2}, {1: 1, 200: 4, 700: 8}),
        ({"method": "sample", "no_repeat_ngram": 2, "n_best": 3}, {200: 4, 700: 8}),
    ],
)
def test_scores_computed_in_parts_give_the_same_hypotheses(
    options: dict, rows: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, sources, sizes = ToyModel(size=50), random_sources(11, size=50), []
    spec = SearchConfig(max_length=9, **options)
    expected = [approx(hypotheses) for hypotheses in search(model, sources, spec, lines=range(11))]
    model.output.register_forward_hook(lambda _, __, y: sizes.append(y.shape[0]))
    for logits, most in rows.items():
        monkeypatch.setattr(base, "LOGITS_AT_ONCE", {"cpu": logits})
        sizes.clear()
        found = search(model, sources, spec, lines=range(11))
        assert [[(h.ids, h.score, h.complete) for h in hypotheses] for hypotheses in found] == expected
        assert max(sizes) == most


@pytest.mark.parametrize(
    "options", [{"beam": 3, "n_best": 3}, {"method": "greedy"}, {"method": "sample", "n_best": 8}], ids=str
)
def test_special_tokens_are_never_produced(options: dict) -> None:
    model = FixedLogits([9.0 if token in FORBIDDEN else 0.0 for token in range(12)])
    spec = SearchConfig(max_length=6, min_length=3, **options)
    for hypothesis in itertools.chain(*search(model, ONE_TOKEN.expand(3, 2), spec, lines=range(3))):
        assert not {*FORBIDDEN, EOS} & set(hypothesis.ids)
        assert len(hypothesis.ids) >= 3


def test_vocabulary_smaller_than_the_beam_gives_all_outputs() -> None:
    spec = SearchConfig(beam=8, n_best=8, max_length=3)
    hypotheses = search(FixedLogits([0, 0, 0, 0.5, 1]), torch.tensor([[4, EOS]]), spec, lines=[0])[0]
    assert sorted(h.ids for h in hypotheses) == [[], [4], [4, 4], [4, 4, 4]]


def test_scores_are_divided_by_the_length_with_the_end() -> None:
    model = FixedLogits([-torch.inf, -torch.inf, -torch.inf, 0, 0])
    spec = SearchConfig(beam=4, n_best=3, max_length=3, length_penalty=2.0)
    hypotheses = search(model, torch.tensor([[4, EOS]]), spec, lines=[0])[0]
    half = math.log(0.5)
    expected = {(): half, (4,): 2 * half / 4, (4, 4): 3 * half / 9}
    assert {tuple(h.ids): h.score for h in hypotheses} == pytest.approx(expected)
    assert [h.logprob for h in hypotheses] == pytest.approx([3 * half, 2 * half, half])


@pytest.mark.parametrize("method", ["beam", "greedy", "sample"])
def test_nan_raises_with_the_lines_of_the_batch(method: str) -> None:
    with pytest.raises(DataError, match="outputs NaN in the batch of lines 8 to 10: its weig"):
        search(FixedLogits([math.nan] * 9), ONE_TOKEN.expand(2, 2), SearchConfig(method=method), lines=[9, 7])


def test_more_hypotheses_than_beams_raise() -> None:
    with pytest.raises(RecipeError, match="search.n_best: must be at most 2 for beam search"):
        search(ToyModel(), ONE_TOKEN, SearchConfig(beam=2, n_best=3), lines=[0])
    with pytest.raises(RecipeError, match="must be at most 1 for greedy search; use a wider beam"):
        search(ToyModel(), ONE_TOKEN, SearchConfig(method="greedy", n_best=2), lines=[0])


def test_search_uses_evaluation_mode_and_restores_the_mode() -> None:
    model, training = ToyModel().train(), []
    model.output.register_forward_pre_hook(lambda module, _: training.append(module.training))
    search(model, random_sources(2), SearchConfig(), lines=range(2))
    assert not any(training)
    assert model.training


def test_positions_of_the_model_limit_the_output() -> None:
    model, sources = ToyModel(sharpness=0.1), random_sources(1)
    model.limit = 3
    spec = SearchConfig(method="greedy", max_length=50, min_length=40)
    assert len(search(model, sources, spec, lines=[0])[0][0].ids) == 3
    model.shape = "decoder"
    with pytest.raises(DataError, match="6 tokens, but the model has 3 positions .* shorten the input"):
        search(model, sources, spec, lines=[0])


def test_step_on_a_device_reads_no_values() -> None:
    model = build(ModelConfig(width=16, ff=24, heads=2), (8000, 8000), 40).to(DEVICE).eval()
    spec, ids = SearchConfig(beam=4), torch.zeros(3, 1, dtype=torch.long, device=DEVICE)
    with torch.no_grad(), Watch():
        state, active = model.start(ids.expand(3, 9)), torch.arange(3, device=DEVICE)
        hidden, state = advance(model, ids, state)
        live = hidden.new_zeros((3, 1))
        trellis = beam.Trellis(3, spec, 40, live)
        finished = trellis.finished
        for step in range(3):
            best = beam.candidates(model, hidden, live, spec, step, None, exact=False)
            live, place, finished, status = beam.split_candidates(best, 8000, finished, step + 1, 40, spec)
            trellis.steps.append((active, place))
            rows = active[:, None] * (1 if step == 0 else 4) + place // 8000
            token = (place % 8000).view(-1, 1)
            hidden, state = advance(model, token, state.select(rows.flatten(), None))
        assert status.device == DEVICE


def test_empty_batch_has_no_hypotheses() -> None:
    assert search(ToyModel(), random_sources(0), SearchConfig(), lines=[]) == []
