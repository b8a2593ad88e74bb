"""Beam search against exhaustive search and against a plain beam search without a cache."""

import itertools
import math

import pytest
import torch
from helpers.plain_search import FORBIDDEN, FixedLogits, ToyModel, exhaustive, plain_beam, random_sources
from helpers.watched_device import DEVICE, Watch
from hypothesis import given
from hypothesis import strategies as st

from attnkit.data.tokenizer import BOS, EOS, PAD, UNK
from attnkit.errors import DataError, RecipeError
from attnkit.models import build
from attnkit.recipe.schema import ModelConfig, SearchConfig
from attnkit.search import base, beam, search
from attnkit.search.base import advance, fast_topk, predict, topk

SPECS = [
    SearchConfig(beam=beam, n_best=n, length_penalty=penalty, max_length=length, **rest)
    for (beam, n), penalty, (length, rest) in itertools.product(
        [(1, 1), (3, 3), (5, 2)],
        [0.0, 1.0, -0.7],
        [(1, {}), (12, {"min_length": 4}), (10, {"no_repeat_ngram": 2, "min_length": 3})],
    )
]


def answers(found: list) -> list:
    return [(h.ids, pytest.approx(h.score, abs=1e-10), h.complete) for h in found]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("penalty", [0.0, 0.6, 1.0, 2.0, -1.0])
def test_a_beam_wider_than_all_outputs_finds_what_exhaustive_search_finds(penalty: float) -> None:
    model, source = ToyModel(size=7), random_sources(4, size=7)
    spec = SearchConfig(beam=300, n_best=40, length_penalty=penalty, max_length=5)
    found = search(model, source, spec, lines=range(4))
    for row, hypotheses in zip(source, found, strict=True):
        best = exhaustive(model, row, spec)[:40]
        assert [h.ids for h in hypotheses] == [ids for ids, _ in best]
        assert [h.score for h in hypotheses] == pytest.approx([s for _, s in best], abs=1e-10)


def test_outputs_cut_at_the_longest_length_come_after_all_complete_ones() -> None:
    model, source = ToyModel(size=6), random_sources(3, size=6)
    spec = SearchConfig(beam=64, n_best=60, max_length=4)
    for row, hypotheses in zip(source, search(model, source, spec, lines=range(3)), strict=True):
        best = exhaustive(model, row, spec)
        assert [h.ids for h in hypotheses] == [ids for ids, _ in best]
        assert [h.complete for h in hypotheses] == [len(ids) < 4 for ids, _ in best]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_beam_search_equals_a_plain_one_that_reads_the_prefix_again(spec: SearchConfig) -> None:
    model, source = ToyModel(seed=3), random_sources(9, seed=4)
    found = search(model, source, spec, lines=range(9))
    for row, hypotheses in zip(source, found, strict=True):
        assert plain_beam(model, row, spec) == answers(hypotheses)


@pytest.mark.parametrize("rest", [{}, {"min_length": 3}, {"no_repeat_ngram": 1}])
def test_a_beam_of_one_is_greedy_search(rest: dict) -> None:
    model, source = ToyModel(seed=1), random_sources(40)
    greedy = search(model, source, SearchConfig(method="greedy", **rest), lines=range(40))
    assert search(model, source, SearchConfig(beam=1, **rest), lines=range(40)) == greedy


@pytest.mark.slow
def test_long_outputs_equal_those_of_a_plain_search() -> None:
    model, source = ToyModel(), random_sources(2)
    spec = SearchConfig(beam=3, n_best=3, max_length=150, min_length=140)
    found = search(model, source, spec, lines=range(2))
    for row, hypotheses in zip(source, found, strict=True):
        assert plain_beam(model, row, spec) == answers(hypotheses)
        assert len(hypotheses[0].ids) >= 140


def test_room_is_made_as_outputs_grow_not_for_the_longest_length() -> None:
    """2^31 - 1 steps would not fit in memory; the outputs end long before."""
    model, source = FixedLogits([0.0] * 3 + [5.0] + [0.0] * 3), torch.tensor([[5, EOS]] * 3)
    for options in ({"beam": 2}, {"method": "greedy"}, {"method": "sample"}):
        spec = SearchConfig(max_length=2**31 - 1, min_length=70, **options)
        for found in search(model, source, spec, lines=range(3)):
            assert found[0].complete
            assert len(found[0].ids) >= 70


def test_a_sentence_alone_gives_what_it_gives_in_a_batch() -> None:
    model, source = ToyModel(), random_sources(20)
    spec = SearchConfig(beam=4, n_best=4, max_length=15)
    together = search(model, source, spec, lines=range(20))
    for number, row in enumerate(source):
        alone = search(model, row[row != PAD][None], spec, lines=[number])
        assert answers(alone[0]) == [(h.ids, h.score, h.complete) for h in together[number]]


def test_sentences_that_are_done_leave_the_batch_with_their_memory() -> None:
    model = ToyModel()
    search(model, random_sources(20), SearchConfig(beam=4, max_length=30), lines=range(20))
    assert model.calls[0] == (20, 20)
    assert model.calls[1][0] == 4 * model.calls[1][1]
    assert model.calls[-1][1] < 20
    assert all(rows == 4 * sentences for rows, sentences in model.calls[1:])
    left = [sentences for _, sentences in model.calls]
    assert left == sorted(left, reverse=True)


@pytest.mark.sampled(3)
def test_stopping_early_never_changes_the_n_best_list() -> None:
    """Without a penalty on length the exact bound ends searches long before K have finished."""
    model, source = ToyModel(sharpness=4.0), random_sources(10)
    spec = SearchConfig(beam=5, n_best=1, length_penalty=0.0, max_length=40)
    found = search(model, source, spec, lines=range(10))
    work = sum(rows for rows, _ in model.calls)
    for row, hypotheses in zip(source, found, strict=True):
        assert plain_beam(model, row, spec) == answers(hypotheses)
    model.calls.clear()
    search(model, source, spec.model_copy(update={"n_best": 5}), lines=range(10))
    assert work < sum(rows for rows, _ in model.calls)


def test_equal_scores_are_ordered_by_lowest_id() -> None:
    flat = FixedLogits([0.0] * 40)
    for width in (1, 4):
        spec = SearchConfig(beam=width, n_best=width, max_length=2, min_length=1)
        found = search(flat, torch.tensor([[5, EOS]]), spec, lines=[0])[0]
        assert [h.ids for h in found] == [[4], [4, 4], [4, 5], [4, 6]][:width]
    greedy = search(flat, torch.tensor([[5, EOS]]), SearchConfig(method="greedy", max_length=3), lines=[0])
    assert greedy[0][0].ids == []


def test_a_search_full_of_ties_equals_a_plain_one() -> None:
    """Three copies of every token: the plain search ranks equal ones by beam, then by id."""
    columns = [*range(7), *range(4, 7), *range(4, 7)]
    model, source = ToyModel(size=7), random_sources(6, size=13)
    model.embed = model.embed[columns]
    # copied after the product, which may round equal columns differently
    model.output.register_forward_hook(lambda _, __, logits: logits[..., columns])
    model.output.out_features = 13
    spec = SearchConfig(beam=4, n_best=4, max_length=8)
    found = search(model, source, spec, lines=range(6))
    for row, hypotheses in zip(source, found, strict=True):
        assert plain_beam(model, row, spec) == answers(hypotheses)


def test_top_breaks_ties_at_the_cut_by_lowest_id() -> None:
    scores = torch.tensor([[1.0, 3, 2, 2, 2, 0], [5, 4, 3, 2, 1, 0], [0, 0, 0, 0, 0, 0]])
    values, ids, tied = topk(scores, 2, exact=True)
    assert ids.tolist() == [[1, 2], [0, 1], [0, 1]]
    assert values.tolist() == [[3, 2], [5, 4], [0, 0]]
    assert topk(scores[:1], 2, exact=False)[2].item()  # the third equals the second
    assert not topk(scores[1:2], 2, exact=False)[2].item()


@pytest.mark.parametrize("length", [1, 40, 700, 5632, 8000, 8005])
@pytest.mark.parametrize("k", [1, 11])
@pytest.mark.parametrize("beams", [1, 3])
def test_the_highest_in_two_stages_are_those_of_one(length: int, k: int, beams: int) -> None:
    random = torch.Generator().manual_seed(length)
    scores = torch.randn((20, beams, length), generator=random)
    before = torch.randn((20, beams), generator=random)
    scores[0] = -math.inf
    scores[1, :, length // 2 :] = -math.inf
    scores[2] = scores[2].round()  # many equal ones
    most = min(k, beams * length)
    for addend in (None, before):
        whole = (scores if addend is None else scores + before[..., None]).flatten(1)
        values, places = fast_topk(scores, addend, most)
        assert torch.equal(values, whole.topk(most).values)
        assert torch.equal(whole.gather(1, places), values)
        assert all(len(set(row)) == len(row) for row in places.tolist())
    scores[3, :, -1] = math.nan
    assert fast_topk(scores, before, 1)[0][3].isnan().all()


@pytest.mark.parametrize("length", [1, 150, 4095, 4096, 4150, 8000, 8063])
@pytest.mark.parametrize("rows", [1, 20])
def test_the_best_is_the_first_of_the_highest(length: int, rows: int) -> None:
    scores = torch.randn((rows, length), generator=torch.Generator().manual_seed(length))
    for few in (scores, scores.round(), torch.zeros_like(scores)):
        few[-1, -1] = 9
        few[0, length // 2] = math.nan
        for found, expected in zip(base.row_max(few), few.max(1, keepdim=True), strict=True):
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
        for row, place in list(zip(few.tolist(), base.row_max(few)[1].tolist(), strict=True))[1:]:
            assert place == [row.index(max(row))]


def test_log_probabilities_are_those_of_torch() -> None:
    model, source = ToyModel(size=200), random_sources(5, size=200)
    ids = torch.full((5, 1), BOS)
    with torch.inference_mode():
        hidden, _ = advance(model, ids, model.start(source))
        found = predict(model, hidden)
        expected = model(source, ids)[:, -1].log_softmax(-1)
    torch.testing.assert_close(found, expected)


@given(st.lists(st.booleans(), min_size=1, max_size=300))
def test_batches_shrink_to_few_sizes_and_no_sentence_that_goes_on_is_lost(done: list[bool]) -> None:
    kept = base.compact_batch(ToyModel(), done)
    going = {sentence for sentence, ended in enumerate(done) if not ended}
    if kept is None:
        assert len(done) <= len(going) * 5 / 4
        return
    assert going <= set(kept) <= set(range(len(done)))
    assert len(kept) == len(set(kept)) < len(done)
    assert len(kept) <= len(going) * 5 / 4
    assert all(place == sentence for place, sentence in enumerate(kept) if sentence < len(kept))


@pytest.mark.parametrize(
    ("rest", "rows"),  # at most, where so many logits are made at a time: 2^n sentences
    [
        ({"beam": 3, "n_best": 3}, {1: 3, 200: 4, 350: 6, 700: 12}),
        ({"beam": 3, "n_best": 3, "no_repeat_ngram": 2, "min_length": 3}, {200: 4, 700: 12}),
        ({"method": "greedy", "no_repeat_ngram": 2}, {1: 1, 200: 4, 700: 8}),
        ({"method": "sample", "no_repeat_ngram": 2, "n_best": 3}, {200: 4, 700: 8}),
    ],
)
def test_scores_made_in_pieces_give_the_same_answers(
    rest: dict, rows: dict[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, source = ToyModel(size=50), random_sources(11, size=50)
    spec = SearchConfig(max_length=9, **rest)
    whole = search(model, source, spec, lines=range(11))
    sizes = []
    model.output.register_forward_hook(lambda _, __, y: sizes.append(y.shape[0]))
    for logits, most in rows.items():
        monkeypatch.setattr(base, "LOGITS_AT_ONCE", {"cpu": logits})
        sizes.clear()
        found = search(model, source, spec, lines=range(11))
        assert [answers(one) for one in found] == [[(h.ids, h.score, h.complete) for h in one] for one in whole]
        assert max(sizes) == most


def test_tokens_that_stand_for_no_text_are_never_produced() -> None:
    logits = [9.0 if token in FORBIDDEN else 0.0 for token in range(12)]
    for spec in (
        SearchConfig(beam=3, n_best=3, max_length=6, min_length=3),
        SearchConfig(method="greedy", max_length=6, min_length=3),
        SearchConfig(method="sample", n_best=8, max_length=6, min_length=3),
    ):
        found = search(FixedLogits(logits), torch.tensor([[5, EOS]] * 3), spec, lines=range(3))
        for hypothesis in itertools.chain(*found):
            assert not {PAD, UNK, BOS, EOS} & set(hypothesis.ids)
            assert len(hypothesis.ids) >= 3


def test_a_vocabulary_smaller_than_the_beam_gives_all_there_is() -> None:
    spec = SearchConfig(beam=8, n_best=8, max_length=3)
    found = search(FixedLogits([0, 0, 0, 0.5, 1]), torch.tensor([[4, EOS]]), spec, lines=[0])[0]
    assert sorted(h.ids for h in found) == [[], [4], [4, 4], [4, 4, 4]]


def test_scores_are_log_probability_over_length_with_the_end_counted() -> None:
    model = FixedLogits([-torch.inf, -torch.inf, -torch.inf, 0, 0])
    spec = SearchConfig(beam=4, n_best=3, max_length=3, length_penalty=2.0)
    found = search(model, torch.tensor([[4, EOS]]), spec, lines=[0])[0]
    half = torch.log(torch.tensor(0.5)).item()
    expected = {(): half, (4,): 2 * half / 4, (4, 4): 3 * half / 9}
    assert {tuple(h.ids): h.score for h in found} == pytest.approx(expected)
    assert [h.logprob for h in found] == pytest.approx([3 * half, 2 * half, half])


def test_nan_is_refused_with_the_lines_of_the_batch() -> None:
    for method in ("beam", "greedy", "sample"):
        spec = SearchConfig(method=method)
        with pytest.raises(DataError, match="outputs NaN in the batch of lines 8 to 10: its weig"):
            search(FixedLogits([float("nan")] * 9), torch.tensor([[5, EOS]] * 2), spec, lines=[9, 7])


def test_more_hypotheses_than_the_method_gives_are_refused() -> None:
    source = torch.tensor([[5, EOS]])
    with pytest.raises(RecipeError, match="search.n_best: must be at most 2 for beam search"):
        search(ToyModel(), source, SearchConfig(beam=2, n_best=3), lines=[0])
    with pytest.raises(RecipeError, match="must be at most 1 for greedy search; use a wider beam"):
        search(ToyModel(), source, SearchConfig(method="greedy", n_best=2), lines=[0])


def test_the_model_keeps_its_mode_and_answers_as_in_evaluation() -> None:
    model = ToyModel().train()
    seen = []
    model.output.register_forward_pre_hook(lambda module, _: seen.append(module.training))
    search(model, random_sources(2), SearchConfig(), lines=range(2))
    assert not any(seen)
    assert model.training


def test_the_model_s_positions_limit_the_output() -> None:
    model = ToyModel(sharpness=0.1)
    model.limit = 3
    spec = SearchConfig(method="greedy", max_length=50, min_length=40)
    assert len(search(model, random_sources(1), spec, lines=[0])[0][0].ids) == 3
    model.shape = "decoder"
    with pytest.raises(DataError, match="6 tokens, but the model has 3 positions .* shorten the input"):
        search(model, random_sources(1), spec, lines=[0])


def test_a_step_on_a_device_reads_no_values() -> None:
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


def test_an_empty_batch_has_no_answers() -> None:
    assert search(ToyModel(), random_sources(0), SearchConfig(), lines=[]) == []
