"""Tests of decoding lines with an untrained model: order, counts, independence of batches, prompts."""

import math
from collections.abc import Iterator

import pytest
import torch
from helpers.plain_search import plain_beam, plain_sample, waiting_times
from helpers.trained import LENGTH, recipe, tokenizer
from hypothesis import given
from hypothesis import strategies as st

from attnkit import models
from attnkit.data.tokenizer import BOS, EOS
from attnkit.models import Model
from attnkit.recipe.schema import AttentionConfig, DataConfig, Layers, ModelConfig, Roles, SearchConfig
from attnkit.search import LineCounts, search, translate
from attnkit.search.decoding import MIN_SOURCE_LENGTH, batches

TEXTS = ["one red dog", "", "cats", "a very red cat and two dogs and a dog", "   ", "two cats", "a dog and a cat"]
LANGUAGE_MODEL = recipe(DataConfig(test="none"), "language-modeling").model


@torch.no_grad()
def build(config: ModelConfig) -> Model:
    """Return an untrained model in float64, with outputs of varied lengths."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = models.build(config, (len(tokenizer().source), len(tokenizer().target)), LENGTH).double().eval()
    model.output.weight *= 3
    model.output.weight[EOS] *= 2
    return model


@pytest.fixture(scope="module")
def model() -> Model:
    return build(recipe(DataConfig(test="none")).model)


def read(model: Model, spec: SearchConfig, texts: list[str] = TEXTS, **options: object) -> list:
    return list(translate(model, tokenizer(), texts, spec, **{"max_source": LENGTH, **options}))


def approx(rows: list) -> list:
    return [[(text, pytest.approx(score, abs=1e-9)) for text, score in row] for row in rows]


CONFIGS = {
    "scaled-dot": {},
    "synthesizer-random": {"positions": "learned"},
    "linear": {"positions": "rope"},
    "post-norm": {"norm": "post", "tie": "none"},
    "decoder": {"shape": "decoder"},
    "rope": {"positions": "rope", "shape": "decoder"},
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", CONFIGS)
def test_cached_search_equals_plain_search_with_real_models(name: str) -> None:
    attention = AttentionConfig(name=name if name in ("synthesizer-random", "linear") else "scaled-dot")
    roles = Roles(encoder=attention, decoder=attention, cross=AttentionConfig())
    layers = Layers(encoder=1, decoder=2)
    model = build(ModelConfig(width=16, heads=2, ff=32, layers=layers, attention=roles, **CONFIGS[name]))
    rows = [torch.tensor([*ids, EOS]) for ids in tokenizer().source.encode([t for t in TEXTS if t.strip()])]
    source = torch.nn.utils.rnn.pad_sequence(rows, True)
    beam = SearchConfig(beam=3, n_best=3, max_length=12)
    sample = SearchConfig(method="sample", top_p=0.9, max_length=12)
    times = waiting_times(1, range(9), 1, 12, model.output.out_features)
    found, drawn = (search(model, source, spec, lines=range(len(rows))) for spec in (beam, sample))
    for line, row in enumerate(rows):
        for hypotheses, expected in (
            (found[line], plain_beam(model, row, beam)),
            (drawn[line], [plain_sample(model, row, sample, times[line, 0])]),
        ):
            assert [(h.ids, pytest.approx(h.score, abs=1e-9), h.complete) for h in hypotheses] == expected


@pytest.mark.sampled(5)
@pytest.mark.parametrize("block", [1, 3, 100])
@pytest.mark.parametrize("budget", [1, 60, 8192])
def test_outputs_do_not_depend_on_blocks_and_batches(model: Model, block: int, budget: int) -> None:
    for spec in (
        SearchConfig(beam=3, n_best=2, max_length=9),
        SearchConfig(method="greedy", max_length=9),
        SearchConfig(method="sample", n_best=2, top_p=0.9, max_length=9),
    ):
        split = spec.model_copy(update={"batch_tokens": budget})
        assert read(model, split, block=block) == approx(read(model, spec))


def test_lines_are_returned_in_order(model: Model) -> None:
    spec = SearchConfig(beam=2, max_length=8)
    assert approx(read(model, spec)) == [read(model, spec, [text])[0] for text in TEXTS]


def test_line_without_text_gives_empty_outputs_without_a_model() -> None:
    model = build(recipe(DataConfig(test="none")).model)
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model was called"))
    model.start = lambda *_, **__: pytest.fail("the model was called")  # type: ignore[method-assign]
    for blank in ("", "   ", "\t\u2003\u00a0", "\u2581"):
        assert read(model, SearchConfig(beam=3, n_best=3), [blank]) == [[("", 0.0)] * 3]


def test_there_are_always_n_best_outputs(model: Model) -> None:
    """One step has one output per token: fewer than a large beam asks for."""
    size = len(tokenizer().target)
    (outputs,) = read(model, SearchConfig(beam=size, n_best=size, max_length=1), ["cats"])
    assert len(outputs) == size
    assert [text for text, score in outputs if score == -math.inf] == ["", "", ""]


def test_empty_truncated_and_unfinished_lines_are_counted(model: Model) -> None:
    counts, texts = LineCounts(), ["cats " * 40, "", "two cats"]
    spec = SearchConfig(max_length=3, min_length=2)
    read(model, spec, texts, max_source=9, counts=counts)
    assert (counts.lines, counts.empty, counts.truncated) == (3, 1, 1)
    assert counts.unfinished == sum(
        not search(model, torch.tensor([[*ids[:8], EOS]]), spec, lines=[0])[0][0].complete
        for ids in tokenizer().source.encode([texts[0], texts[2]])
    )


def test_long_line_is_cut_to_its_first_tokens_and_the_end(model: Model) -> None:
    text, spec = "a dog and a cat and two dogs", SearchConfig(beam=2, max_length=9)
    ids = tokenizer().source.encode([text])[0]
    expected = search(model, torch.tensor([[*ids[:4], EOS]]), spec, lines=[0])[0][0]
    (outputs,) = read(model, spec, [text], max_source=5)
    assert outputs[0] == (tokenizer().target.decode([expected.ids])[0], pytest.approx(expected.score, abs=1e-9))


def test_lines_are_read_a_block_at_a_time(model: Model) -> None:
    lines_read = []

    def lines() -> Iterator[str]:
        for number in range(1000):
            lines_read.append(number)
            yield "cats"

    next(translate(model, tokenizer(), lines(), SearchConfig(max_length=2), max_source=LENGTH, block=4))
    assert len(lines_read) == 4


@torch.no_grad()
def test_language_model_continues_its_prompts() -> None:
    model = build(LANGUAGE_MODEL)
    texts = ["two", "a dog and a", "", "one red dog and a very red cat"]
    outputs = read(model, SearchConfig(method="greedy", max_length=6), texts, prompts=True)
    assert outputs[2] == [("", 0.0)]
    for text, output in zip(texts, outputs, strict=True):
        ids: list[int] = []
        prompt = tokenizer().target.encode([text])[0]
        while prompt and len(ids) < 6 and (not ids or ids[-1] != EOS):
            logits = model(None, torch.tensor([[BOS, *prompt, *ids]]))[0, -1]
            logits[: BOS + 1] = -math.inf
            ids.append(int(logits.argmax()))
        assert output[0][0] == tokenizer().target.decode([ids])[0]


def test_long_prompt_keeps_its_last_tokens() -> None:
    model, spec = build(LANGUAGE_MODEL), SearchConfig(method="greedy", max_length=6)
    text = "a dog and a cat and two dogs"
    ids = tokenizer().target.encode([text])[0]
    (outputs,) = read(model, spec, [text], max_source=5, prompts=True)
    source, first = torch.tensor([[BOS, *ids[-4:-1]]]), torch.tensor([ids[-1:]])
    expected = search(model, source, spec, lines=[0], first=first)[0][0]
    assert outputs[0][0] == tokenizer().target.decode([expected.ids])[0]


def test_limit_of_a_decoder_is_the_same_for_short_and_long_inputs() -> None:
    model = build(LANGUAGE_MODEL.model_copy(update={"positions": "learned"}))
    assert model.limit == 2 * (LENGTH + 1)
    counts, spec = LineCounts(), SearchConfig(method="greedy", min_length=499, max_length=500)
    read(model, spec, ["cats", "one red dog and a very red cat"], counts=counts)
    assert counts.unfinished == 2


@given(st.lists(st.integers(1, 300), max_size=200), st.integers(1, 12), st.integers(1, 20_000))
def test_every_sentence_is_in_one_batch_within_the_budget(lengths: list[int], beams: int, budget: int) -> None:
    plan = list(batches(lengths, beams=beams, budget=budget))
    assert sorted(index for batch in plan for index in batch) == list(range(len(lengths)))
    for batch in plan:
        longest = max(lengths[index] for index in batch)
        assert len(batch) == 1 or len(batch) * beams * max(longest, MIN_SOURCE_LENGTH) <= budget


@given(st.lists(st.integers(1, 300), max_size=100))
def test_batches_are_sorted_by_decreasing_length_then_position(lengths: list[int]) -> None:
    order = [index for batch in batches(lengths, beams=2, budget=900) for index in batch]
    assert order == sorted(order, key=lambda index: (-lengths[index], index))
