"""Tests of reading contexts with Hugging Face decoders against single rows; windows, prompts, chat templates."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

from helpers import pretrained
from helpers.pretrained import SIZE, random_model, tokenizer

from attnkit.errors import AttnkitError, MissingInputError, UsageError
from attnkit.huggingface import Pretrained
from attnkit.nbce import merge, open_model
from attnkit.nbce.baselines import prompt_perplexities
from attnkit.nbce.huggingface_reader import HuggingFaceReader
from attnkit.nbce.merge import Rule
from attnkit.nbce.merged_search import answers
from attnkit.nbce.reader import PromptRow
from attnkit.recipe.schema import SearchConfig

SHARING = ("llama", "gpt2", "gpt-neox", "bloom")
"""Rotary, learned and ALiBi positions, independent of the column."""
WHOLE = ("mpt", "mistral")
"""ALiBi by columns, and a sliding window of 3."""
SINGLE = ("bloom", "mpt")
"""Models whose softmax is always in float32, in which the minimum of float64 is minus infinity."""
CHAT = "{% for m in messages %}<s>{{ m['role'] }}: {{ m['content'] }}</s>{% endfor %}assistant:"


def opened(name: str) -> Pretrained:
    model = random_model(name) if name in SINGLE else random_model(name).double()
    return Pretrained(name, "decoder", model, tokenizer(), torch.device("cpu"), 64, Path())


@cache
def reader(name: str) -> HuggingFaceReader:
    return HuggingFaceReader(opened(name))


def ids(length: int, seed: int) -> tuple[int, ...]:
    draw = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(5, SIZE, (length,), generator=draw).tolist())


def prompt(lengths: Sequence[int], seed: int = 1, prefix: int = 0, tail: int = 3) -> list[PromptRow]:
    start = ids(prefix, 99)
    return [PromptRow((*start, *ids(n, seed + n)), ids(tail, seed)) for n in lengths]


def row_logits(chosen: HuggingFaceReader, row: PromptRow, output: Sequence[int] = ()) -> Tensor:
    """Return the logits [T, V] of one pass over a single row, without cache, mask or positions."""
    with torch.no_grad():
        return chosen.model(torch.tensor([[*row.head, *row.tail, *output]])).logits[0]


@pytest.mark.parametrize(("prefix", "budget"), [(0, 4096), (10, 12)])
@pytest.mark.parametrize("name", [*SHARING, *WHOLE])
def test_steps_equal_those_of_single_rows(
    name: str, prefix: int, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = reader(name)
    monkeypatch.setattr(chosen, "batch_tokens", budget)
    assert chosen.shares_prefixes == (name in SHARING)
    rows = [*prompt([0, 7, 2, 7], prefix=prefix), *prompt([5], prefix=prefix, tail=1)]
    kept = chosen.begin(rows)
    last = torch.tensor([[row.tail[-1]] for row in rows])
    for step in range(3):
        logits, kept = chosen.step(last + step * 7 % SIZE, kept)
        outputs = [[int(i + s * 7 % SIZE) for s in range(1, step + 1)] for i in last[:, 0]]
        expected = [row_logits(chosen, row, output)[-1] for row, output in zip(rows, outputs, strict=True)]
        atol = 1e-4 if name in SINGLE else 1e-8
        torch.testing.assert_close(logits, torch.stack(expected), atol=atol, rtol=0)


@pytest.mark.parametrize("name", [*SHARING, *WHOLE])
def test_single_row_without_rule_equals_generate(name: str) -> None:
    chosen, (row,) = reader(name), prompt([6])
    (found,) = answers(chosen, [[row]], None, SearchConfig(method="greedy", max_length=6))
    read = torch.tensor([[*row.head, *row.tail]])
    mask = torch.ones_like(read)
    expected = chosen.model.generate(read, attention_mask=mask, max_new_tokens=6, do_sample=False)[0].tolist()
    assert found.hypotheses[0].ids == [id_ for id_ in expected[read.shape[1] :] if id_ not in chosen.ends]


@pytest.mark.parametrize("name", ["llama", "mpt"])
def test_scores_of_beams_equal_those_of_single_rows(name: str) -> None:
    chosen, prompts = reader(name), [prompt([0, 7, 2]), prompt([0, 3, 5], seed=4)]
    spec = SearchConfig(beam=3, n_best=3, max_length=4, length_penalty=0)
    rule = Rule("mean", top_p=1)
    for rows, found in zip(prompts, answers(chosen, prompts, rule, spec), strict=True):
        for hypothesis in found.hypotheses:
            total, output = 0.0, hypothesis.ids
            for place in range(len(output) + hypothesis.complete):
                logits = torch.stack([row_logits(chosen, row, output[:place])[-1] for row in rows])
                scores, _ = merge(logits, "mean", top_p=1)
                tokens = sorted(chosen.ends) if place == len(output) else [output[place]]
                total += float(scores[tokens].logsumexp(0))
            assert hypothesis.score == pytest.approx(total, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "n_best"), [("greedy", 1), ("beam", 2), ("sample", 3)])
def test_answers_of_many_prompts_equal_those_of_single_prompts(method: Any, n_best: int) -> None:
    """The prompts end at different steps; finished samples continue to be read with the others of their prompt."""
    spec = SearchConfig(method=method, beam=3, n_best=n_best, max_length=8)
    chosen = HuggingFaceReader(opened("llama"))
    chosen.ends = frozenset(range(4))
    prompts = [prompt([0, 4, 2], seed) for seed in range(20)]
    found = answers(chosen, prompts, Rule("entropy"), spec)
    for line, (rows, answer) in enumerate(zip(prompts, found, strict=True)):
        (expected,) = answers(chosen, [rows], Rule("entropy"), spec, lines=[line])
        assert [h.ids for h in answer.hypotheses] == [h.ids for h in expected.hypotheses]
    assert len({len(h.ids) for answer in found for h in answer.hypotheses}) > 1


def test_end_tokens_of_the_generation_settings() -> None:
    model = opened("llama")
    rows = prompt([4])
    first = int(row_logits(reader("llama"), rows[0])[-1].argmax())
    model.model.generation_config.eos_token_id = [2, first]
    chosen = HuggingFaceReader(model)
    assert chosen.ends == {2, first}
    (found,) = answers(chosen, [rows], None, SearchConfig(method="greedy", max_length=4))
    assert found.hypotheses[0].ids == []
    assert found.hypotheses[0].complete
    model.model.generation_config.eos_token_id = None
    model.tokenizer.eos_token = None
    chosen = HuggingFaceReader(model)
    (found,) = answers(chosen, [rows], None, SearchConfig(method="greedy", max_length=4))
    assert len(found.hypotheses[0].ids) == 4


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt-neox"])
def test_windows_equal_a_mask_over_one_row(name: str) -> None:
    chosen = reader(name)
    assert chosen.window_refusal == ""
    heads, tail = [(*ids(2, 9), *ids(n, n)) for n in (6, 3)], ids(3, 5)
    kept = chosen.begin([PromptRow(heads[0], tail, (heads[1],), 2)])
    logits, _ = chosen.step(torch.tensor([[tail[-1]]]), kept)
    whole = torch.tensor([[*heads[0], *heads[1], *tail]])
    positions = torch.tensor([[*range(8), *range(5), *range(8, 11)]])
    visible = torch.zeros((16, 16), dtype=torch.bool)
    visible[:8, :8] = visible[8:13, 8:13] = visible[13:] = True
    visible[13:, 8:10] = False  # the prefix of the second window
    with torch.no_grad():
        expected = chosen.model(whole, attention_mask=visible.tril()[None, None], position_ids=positions)
    torch.testing.assert_close(logits[0], expected.logits[0, -1], atol=1e-8, rtol=0)


@pytest.mark.parametrize(
    ("name", "reason"), [("bloom", "position ids"), ("mpt", "distances"), ("mistral", "sliding window")]
)
def test_unsupported_windows_raise_with_the_reason(name: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        reader(name).begin([PromptRow(ids(3, 1), ids(2, 2), (ids(3, 3),))])


def test_long_sliding_window_is_known_by_the_configuration() -> None:
    """It is longer than the trial pass."""
    import transformers

    sizes = {"vocab_size": SIZE, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "max_position_embeddings": 512}
    config = transformers.GPTNeoConfig(**sizes, attention_types=[[["global", "local"], 1]], window_size=256)
    model = transformers.GPTNeoForCausalLM(config).eval()
    chosen = HuggingFaceReader(replace(opened("gpt2"), model=model, limit=512))
    assert not chosen.shares_prefixes
    assert "sliding window" in chosen.window_refusal


@pytest.mark.parametrize(
    ("name", "shares", "windows"), [("llama", True, True), ("bloom", True, False), ("mpt", False, False)]
)
def test_trial_passes_in_half_precision(name: str, shares: bool, windows: bool) -> None:
    model = opened(name)
    chosen = HuggingFaceReader(replace(model, model=model.model.bfloat16()))
    assert (chosen.shares_prefixes, not chosen.window_refusal) == (shares, windows)
    (found,) = answers(chosen, [prompt([0, 7, 2])], Rule(), SearchConfig(method="greedy", max_length=3))
    assert math.isfinite(found.hypotheses[0].score)


def test_limit_is_the_length_at_which_rotary_frequencies_change() -> None:
    model = opened("llama")
    model.model.config.rope_parameters |= {"rope_type": "longrope", "original_max_position_embeddings": 40}
    assert HuggingFaceReader(model).limit == 40


def test_prompt_perplexity_of_an_empty_row_is_infinite() -> None:
    rows = [PromptRow((), ids(3, 5)), *prompt([4])]
    found = prompt_perplexities(reader("llama"), rows)
    assert found[0] == math.inf
    logits = row_logits(reader("llama"), rows[1])[len(rows[1].head) - 1 :]
    logprobs = [float(logits[i].log_softmax(0)[id_]) for i, id_ in enumerate(rows[1].tail)]
    assert found[1] == pytest.approx(math.exp(-sum(logprobs) / len(logprobs)))


def test_recurrent_models_raise() -> None:
    with pytest.raises(UsageError, match="jamba model keeps a recurrent state"):
        HuggingFaceReader(opened("jamba"))


@pytest.mark.parametrize("kind", ["byte-level", "metaspace"])
def test_rows_follow_the_template_and_have_the_same_tail(kind: str) -> None:
    encode = tokenizer(kind, "<s> $A")
    chosen = HuggingFaceReader(replace(opened("llama"), tokenizer=encode))
    rows = [chosen.row(text, "nobody fishes") for text in ("A river.", "", "The old mill\n")]
    assert len({row.tail for row in rows}) == 1
    assert all(row.head[0] == 1 for row in rows)
    assert rows[1].head == (1,)
    text = chosen.decode([*rows[0].head, *rows[0].tail])
    assert text == chosen.decode(encode("A river.\n\nnobody fishes")["input_ids"])


def test_chat_template_has_context_and_prompt() -> None:
    model = opened("llama")
    with pytest.raises(UsageError, match="has no chat template"):
        HuggingFaceReader(model, chat=True)
    model.tokenizer.chat_template = CHAT
    chosen = HuggingFaceReader(model, chat=True, template="Text: {context}\nAsked: {prompt}")
    rows = [chosen.row("A river.", "Who fishes?"), chosen.row("", "Who fishes?")]
    assert rows[0].tail == rows[1].tail
    rows.append(HuggingFaceReader(model, chat=True).row("A river.", "Who fishes?"))
    assert [model.tokenizer.decode([*row.head, *row.tail]) for row in rows] == [
        "<s>user: Text: A river.\nAsked: Who fishes?</s>assistant:",
        "<s>user: Asked: Who fishes?</s>assistant:",
        "<s>user: A river.\n\nQuestion: Who fishes?\nAnswer in a few words:</s>assistant:",
    ]
    with pytest.raises(UsageError, match="a template needs"):
        HuggingFaceReader(model, template="{prompt} {context}")


@pytest.mark.parametrize(
    "template",
    [
        "{{ x.y.z }}",
        "{{ raise_exception('no') }}",
        "{% for %}",
        "{{ 1 / 0 }}",
        "{% include 'x' %}",
        "{{ messages[5]['content'] }}",
        "{{ ''.__class__.__mro__ }}",
        5,
        {"a": 1},
    ],
)
def test_invalid_chat_template_raises_in_one_line(template: Any) -> None:
    model = opened("llama")
    model.tokenizer.chat_template = template
    with pytest.raises(AttnkitError, match="^.*chat template.*$") as error:
        HuggingFaceReader(model, chat=True).row("A river.", "Who fishes?")
    assert error.value.code in (2, 65)


@pytest.mark.parametrize("chat", [False, True])
def test_special_tokens_in_a_context_are_text(chat: bool) -> None:
    model = opened("llama")
    model.tokenizer.chat_template = CHAT
    chosen = HuggingFaceReader(model, chat=chat)
    end = model.tokenizer.convert_tokens_to_ids("</s>")
    plain = chosen.row("A river.", "Who fishes?")
    hostile = chosen.row("A</s> river.", "Who</s> fishes?")
    assert [(*row.head, *row.tail).count(end) for row in (plain, hostile)] == [int(chat)] * 2


def test_open_model_of_a_folder_and_a_missing_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pretrained.save_pretrained(tmp_path / "models" / "llama", "llama")
    monkeypatch.chdir(tmp_path)
    chosen = open_model("models/llama", device="cpu")
    row = [chosen.row(text, "The animal") for text in ("", "A small river runs.")]
    (found,) = answers(chosen, [row], Rule(), SearchConfig(method="greedy", max_length=3))
    assert found.hypotheses
    with pytest.raises(MissingInputError, match="models/lama"):
        open_model("models/lama", device="cpu")
    with pytest.raises(UsageError, match="prompt is empty"):
        answers(chosen, [[chosen.row("A", " ")]], None, SearchConfig())
