"""Lines through a real, untrained model: order, counts, independence of batches, prompts."""

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
from attnkit.recipe.schema import AttentionConfig, DataConfig, Layers, Roles, SearchConfig
from attnkit.recipe.schema import ModelConfig as Shape
from attnkit.search import LineCounts, search, translate
from attnkit.search.decoding import MIN_SOURCE_LENGTH, batches

TEXTS = ["one red dog", "", "cats", "a very red cat and two dogs and a dog", "   ", "two cats", "a dog and a cat"]


def build(shape: Shape, seed: int = 0) -> Model:
    """An untrained model in float64, with outputs of varied lengths."""
    sizes = (len(tokenizer().source), len(tokenizer().target))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = models.build(shape, sizes, LENGTH).double().eval()
    with torch.no_grad():
        model.output.weight *= 3
        model.output.weight[EOS] *= 2
    return model


@pytest.fixture(scope="module")
def model() -> Model:
    return build(recipe(DataConfig(test="none")).model)


def read(model: Model, spec: SearchConfig, texts: list[str] = TEXTS, **options: object) -> list:
    return list(translate(model, tokenizer(), texts, spec, max_source=LENGTH, **options))


def near(answers: list) -> list:
    return [[(text, pytest.approx(score, abs=1e-9)) for text, score in some] for some in answers]


SHAPES = {
    "scaled-dot": {},
    "synthesizer-random": {"positions": "learned"},
    "linear": {"positions": "rope"},
    "post-norm": {"norm": "post", "tie": "none"},
    "decoder": {"shape": "decoder"},
    "rope": {"positions": "rope", "shape": "decoder"},
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", SHAPES)
def test_cached_search_equals_reading_the_prefix_again_on_real_models(name: str) -> None:
    word = name if name in ("synthesizer-random", "linear") else "scaled-dot"
    own = AttentionConfig(name=word)
    shape = Shape(
        width=16,
        heads=2,
        ff=32,
        layers=Layers(encoder=1, decoder=2),
        attention=Roles(encoder=own, decoder=own, cross=AttentionConfig()),
        **SHAPES[name],
    )
    model = build(shape)
    texts = [text for text in TEXTS if text.strip()]
    rows = [[*ids, EOS] for ids in tokenizer().source.encode(texts)]
    source = torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], True)
    beam = SearchConfig(beam=3, n_best=3, max_length=12)
    draws = SearchConfig(method="sample", top_p=0.9, max_length=12)
    times = waiting_times(1, range(9), 1, 12, model.output.out_features)
    found = search(model, source, beam, lines=range(len(rows)))
    drawn = search(model, source, draws, lines=range(len(rows)))
    for line, row in enumerate(rows):
        alone = torch.tensor(row)
        plain = [(ids, pytest.approx(s, abs=1e-9), c) for ids, s, c in plain_beam(model, alone, beam)]
        assert [(h.ids, h.score, h.complete) for h in found[line]] == plain
        ids, score, complete = plain_sample(model, alone, draws, times[line, 0])
        expected = (ids, pytest.approx(score, abs=1e-9), complete)
        assert [(h.ids, h.score, h.complete) for h in drawn[line]] == [expected]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("block", [1, 3, 100])
@pytest.mark.parametrize("budget", [1, 60, 8192])
def test_answers_do_not_depend_on_blocks_and_batches(model: Model, block: int, budget: int) -> None:
    for spec in (
        SearchConfig(beam=3, n_best=2, max_length=9),
        SearchConfig(method="greedy", max_length=9),
        SearchConfig(method="sample", n_best=2, top_p=0.9, max_length=9),
    ):
        together = read(model, spec)
        split = spec.model_copy(update={"batch_tokens": budget})
        assert read(model, split, block=block) == near(together)


def test_lines_come_back_in_order_one_for_one(model: Model) -> None:
    spec = SearchConfig(beam=2, max_length=8)
    answers = read(model, spec)
    assert len(answers) == len(TEXTS)
    for text, answer in zip(TEXTS, answers, strict=True):
        assert near([answer]) == (near(read(model, spec, [text])))


def test_a_line_without_text_gives_empty_lines_and_never_meets_the_model() -> None:
    spec = SearchConfig(beam=3, n_best=3)
    model = build(recipe(DataConfig(test="none")).model)
    model.register_forward_pre_hook(lambda *_: pytest.fail("the model was asked"))
    model.start = lambda *_, **__: pytest.fail("the model was asked")  # type: ignore[method-assign]
    for blank in ("", "   ", "\t\u2003\u00a0", "\u2581"):
        assert read(model, spec, [blank]) == [[("", 0.0)] * 3]


def test_there_are_always_n_best_outputs(model: Model) -> None:
    """One step has one output per token: fewer are there than a wide list asks for."""
    size = len(tokenizer().target)
    (answers,) = read(model, SearchConfig(beam=size, n_best=size, max_length=1), ["cats"])
    assert len(answers) == size
    assert [text for text, score in answers if score == -math.inf] == ["", "", ""]


def test_what_happened_to_lines_is_counted(model: Model) -> None:
    counts = LineCounts()
    texts = ["cats " * 40, "", "two cats"]
    spec = SearchConfig(max_length=3, min_length=2)
    list(translate(model, tokenizer(), texts, spec, max_source=9, counts=counts))
    assert (counts.lines, counts.empty, counts.truncated) == (3, 1, 1)
    assert counts.unfinished == sum(
        not search(model, torch.tensor([[*ids[:8], EOS]]), spec, lines=[0])[0][0].complete
        for ids in tokenizer().source.encode([texts[0], texts[2]])
    )


def test_a_long_line_is_cut_to_the_first_tokens_and_the_end(model: Model) -> None:
    text = "a dog and a cat and two dogs"
    ids = tokenizer().source.encode([text])[0]
    spec = SearchConfig(beam=2, max_length=9)
    expected = search(model, torch.tensor([[*ids[:4], EOS]]), spec, lines=[0])[0][0]
    (answer,) = list(translate(model, tokenizer(), [text], spec, max_source=5))
    assert answer[0] == (tokenizer().target.decode([expected.ids])[0], pytest.approx(expected.score, abs=1e-9))


def test_lines_are_read_a_block_at_a_time(model: Model) -> None:
    asked = []

    def endless() -> Iterator[str]:
        for number in range(1000):
            asked.append(number)
            yield "cats"

    answers = translate(model, tokenizer(), endless(), SearchConfig(max_length=2), max_source=LENGTH, block=4)
    next(answers)
    assert len(asked) == 4


def test_a_language_model_continues_its_prompts() -> None:
    model = build(recipe(DataConfig(test="none"), "language-modeling").model)
    spec = SearchConfig(method="greedy", max_length=6)
    texts = ["two", "a dog and a", "", "one red dog and a very red cat"]
    answers = read(model, spec, texts, prompts=True)
    assert answers[2] == [("", 0.0)]
    for text, answer in zip(texts, answers, strict=True):
        ids: list[int] = []
        prompt = tokenizer().target.encode([text])[0]
        while prompt and len(ids) < 6 and (not ids or ids[-1] != EOS):
            with torch.no_grad():
                logits = model(None, torch.tensor([[BOS, *prompt, *ids]]))[0, -1]
            logits[: BOS + 1] = -math.inf
            ids.append(int(logits.argmax()))
        assert answer[0][0] == tokenizer().target.decode([ids])[0]


def test_a_long_prompt_keeps_its_last_tokens() -> None:
    model = build(recipe(DataConfig(test="none"), "language-modeling").model)
    spec = SearchConfig(method="greedy", max_length=6)
    ids = tokenizer().target.encode(["a dog and a cat and two dogs"])[0]
    (answer,) = translate(model, tokenizer(), ["a dog and a cat and two dogs"], spec, max_source=5, prompts=True)
    source, first = torch.tensor([[BOS, *ids[-4:-1]]]), torch.tensor([ids[-1:]])
    expected = search(model, source, spec, lines=[0], first=first)[0][0]
    assert answer[0][0] == tokenizer().target.decode([expected.ids])[0]


def test_the_limit_of_a_decoder_is_the_same_for_short_and_long_inputs() -> None:
    shape = recipe(DataConfig(test="none"), "language-modeling").model
    model = build(shape.model_copy(update={"positions": "learned"}))
    assert model.limit == 2 * (LENGTH + 1)
    spec = SearchConfig(method="greedy", min_length=499, max_length=500)
    counts = LineCounts()
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
def test_batches_go_from_long_to_short_and_keep_the_order_of_equals(lengths: list[int]) -> None:
    order = [index for batch in batches(lengths, beams=2, budget=900) for index in batch]
    assert order == sorted(order, key=lambda index: (-lengths[index], index))
