"""Hugging Face models that read contexts side by side against each row read alone."""

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
"""Rotary, learned and ALiBi positions that do not go by columns."""
WHOLE = ("mpt", "mistral")
"""ALiBi by columns, and a sliding window of 3."""
SINGLE = ("bloom", "mpt")
"""Their softmax is in float32 always, where the least number of float64 is minus infinity."""
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


def alone(chosen: HuggingFaceReader, row: PromptRow, output: Sequence[int] = ()) -> Tensor:
    """Logits [V] of one pass over a row by itself, without cache, mask or positions."""
    with torch.no_grad():
        return chosen.model(torch.tensor([[*row.head, *row.tail, *output]])).logits[0, -1]


def alone_all(chosen: HuggingFaceReader, row: PromptRow) -> Tensor:
    with torch.no_grad():
        return chosen.model(torch.tensor([[*row.head, *row.tail]])).logits[0]


def near(name: str) -> float:
    return 1e-4 if name in SINGLE else 1e-8


@pytest.mark.parametrize(("prefix", "budget"), [(0, 4096), (10, 12)])
@pytest.mark.parametrize("name", [*SHARING, *WHOLE])
def test_rows_side_by_side_speak_as_each_does_alone(
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
        output = [[int(i + s * 7 % SIZE) for s in range(1, step + 1)] for i in last[:, 0]]
        wanted = [alone(chosen, row, out) for row, out in zip(rows, output, strict=True)]
        torch.testing.assert_close(logits, torch.stack(wanted), atol=near(name), rtol=0)


@pytest.mark.parametrize("name", [*SHARING, *WHOLE])
def test_one_row_without_rule_is_what_generate_writes(name: str) -> None:
    chosen, (row,) = reader(name), prompt([6])
    (found,) = answers(chosen, [[row]], None, SearchConfig(method="greedy", max_length=6))
    read = torch.tensor([[*row.head, *row.tail]])
    wanted = chosen.model.generate(read, attention_mask=torch.ones_like(read), max_new_tokens=6, do_sample=False)[
        0, read.shape[1] :
    ].tolist()
    assert found.hypotheses[0].ids == [id_ for id_ in wanted if id_ not in chosen.ends]


@pytest.mark.parametrize("name", ["llama", "mpt"])
def test_beams_score_as_their_outputs_do_alone(name: str) -> None:
    chosen, prompts = reader(name), [prompt([0, 7, 2]), prompt([0, 3, 5], seed=4)]
    spec = SearchConfig(beam=3, n_best=3, max_length=4, length_penalty=0)
    rule = Rule("mean", top_p=1)
    for rows, found in zip(prompts, answers(chosen, prompts, rule, spec), strict=True):
        for one in found.hypotheses:
            total, written = 0.0, list(one.ids)
            for place in range(len(written) + one.complete):
                logits = torch.stack([alone(chosen, row, written[:place]) for row in rows])
                scores, _ = merge(logits, "mean", top_p=1)
                at_end = place == len(written)
                ends = sorted(chosen.ends) if at_end else [written[place]]
                total += float(scores[ends].logsumexp(0))
            assert one.score == pytest.approx(total, abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spec",
    [
        SearchConfig(method="greedy", max_length=8),
        SearchConfig(method="beam", beam=3, n_best=2, max_length=8),
        SearchConfig(method="sample", n_best=3, max_length=8),
    ],
    ids=lambda spec: spec.method,
)
def test_many_prompts_that_end_at_different_steps_are_answered_as_each_alone(spec: SearchConfig) -> None:
    """Draws that have ended read on while others of their prompt do."""
    chosen = HuggingFaceReader(opened("llama"))
    chosen.ends = frozenset(range(4))
    prompts = [prompt([0, 4, 2], seed) for seed in range(20)]
    found = answers(chosen, prompts, Rule("entropy"), spec)
    for line, (some, answer) in enumerate(zip(prompts, found, strict=True)):
        (one,) = answers(chosen, [some], Rule("entropy"), spec, lines=[line])
        assert [h.ids for h in answer.hypotheses] == [h.ids for h in one.hypotheses]
    assert len({len(h.ids) for answer in found for h in answer.hypotheses}) > 1


def test_any_end_token_of_the_generation_settings_ends_the_text() -> None:
    model = opened("llama")
    rows = prompt([4])
    first = int(alone(reader("llama"), rows[0]).argmax())
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
def test_a_tail_sees_all_windows_as_a_mask_and_positions_say(name: str) -> None:
    chosen = reader(name)
    assert chosen.window_refusal == ""
    heads, tail = [(*ids(2, 9), *ids(n, n)) for n in (6, 3)], ids(3, 5)
    kept = chosen.begin([PromptRow(heads[0], tail, (heads[1],), 2)])
    logits, _ = chosen.step(torch.tensor([[tail[-1]]]), kept)
    whole = torch.tensor([[*heads[0], *heads[1], *tail]])
    spans = [range(8), range(8, 13), range(13, 16)]
    places = torch.tensor([[*range(8), *range(5), *range(8, 11)]])
    seen = torch.zeros((16, 16), dtype=torch.bool)
    for query in range(16):
        own = next(span for span in spans if query in span)
        before = range(16) if own == spans[2] else own
        for key in before:
            hidden = key in (8, 9) and own == spans[2]
            seen[query, key] = key <= query and not hidden
    with torch.no_grad():
        wanted = chosen.model(whole, attention_mask=seen[None, None], position_ids=places)
    torch.testing.assert_close(logits[0], wanted.logits[0, -1], atol=1e-8, rtol=0)


@pytest.mark.parametrize(
    ("name", "why"), [("bloom", "position ids"), ("mpt", "distances"), ("mistral", "sliding window")]
)
def test_windows_are_refused_with_the_reason(name: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        reader(name).begin([PromptRow(ids(3, 1), ids(2, 2), (ids(3, 3),))])


def test_windows_longer_than_the_trial_are_known_by_the_settings() -> None:
    import transformers

    config = transformers.GPTNeoConfig(
        vocab_size=SIZE,
        hidden_size=32,
        num_layers=2,
        num_heads=4,
        max_position_embeddings=512,
        attention_types=[[["global", "local"], 1]],
        window_size=256,
    )
    made = replace(opened("gpt2"), model=transformers.GPTNeoForCausalLM(config).eval(), limit=512)
    chosen = HuggingFaceReader(made)
    assert not chosen.shares_prefixes
    assert "sliding window" in chosen.window_refusal


@pytest.mark.parametrize(
    ("name", "shares", "windows"), [("llama", True, True), ("bloom", True, False), ("mpt", False, False)]
)
def test_trials_come_out_the_same_in_half_precision(name: str, shares: bool, windows: bool) -> None:
    made = opened(name)
    chosen = HuggingFaceReader(replace(made, model=made.model.bfloat16()))
    assert (chosen.shares_prefixes, not chosen.window_refusal) == (shares, windows)
    (found,) = answers(chosen, [prompt([0, 7, 2])], Rule(), SearchConfig(method="greedy", max_length=3))
    assert math.isfinite(found.hypotheses[0].score)


def test_frequencies_that_change_behind_a_length_bound_the_rows() -> None:
    made = opened("llama")
    made.model.config.rope_parameters |= {"rope_type": "longrope", "original_max_position_embeddings": 40}
    assert HuggingFaceReader(made).limit == 40


def test_an_empty_context_without_begin_token_is_never_the_least_surprising() -> None:
    rows = [PromptRow((), ids(3, 5)), *prompt([4])]
    found = prompt_perplexities(reader("llama"), rows)
    assert found[0] == math.inf
    logits = alone_all(reader("llama"), rows[1])
    start = len(rows[1].head) - 1
    told = [float(logits[start + i].log_softmax(0)[id_]) for i, id_ in enumerate(rows[1].tail)]
    assert found[1] == pytest.approx(math.exp(-sum(told) / len(told)))


def test_models_that_keep_sums_are_refused() -> None:
    with pytest.raises(UsageError, match="jamba model keeps a recurrent state"):
        HuggingFaceReader(opened("jamba"))


@pytest.mark.parametrize("kind", ["byte-level", "metaspace"])
def test_rows_of_a_prompt_end_alike_and_spell_the_template(kind: str) -> None:
    model = opened("llama")
    made = tokenizer(kind, "<s> $A")
    chosen = HuggingFaceReader(replace(model, tokenizer=made))
    rows = [chosen.row(text, "nobody fishes") for text in ("A river.", "", "The old mill\n")]
    assert len({row.tail for row in rows}) == 1
    assert all(row.head[0] == 1 for row in rows)
    assert rows[1].head == (1,)
    spelled = chosen.decode([*rows[0].head, *rows[0].tail])
    assert spelled == chosen.decode(made("A river.\n\nnobody fishes")["input_ids"])


def test_a_chat_template_holds_context_and_prompt() -> None:
    model = opened("llama")
    with pytest.raises(UsageError, match="has no chat template"):
        HuggingFaceReader(model, chat=True)
    model.tokenizer.chat_template = CHAT
    chosen = HuggingFaceReader(model, chat=True, template="Text: {context}\nAsked: {prompt}")
    full, bare = chosen.row("A river.", "Who fishes?"), chosen.row("", "Who fishes?")
    assert full.tail == bare.tail
    both = model.tokenizer.decode([*full.head, *full.tail])
    assert both == "<s>user: Text: A river.\nAsked: Who fishes?</s>assistant:"
    assert model.tokenizer.decode([*bare.head, *bare.tail]) == ("<s>user: Asked: Who fishes?</s>assistant:")
    short = HuggingFaceReader(model, chat=True).row("A river.", "Who fishes?")
    assert model.tokenizer.decode([*short.head, *short.tail]) == (
        "<s>user: A river.\n\nQuestion: Who fishes?\nAnswer in a few words:</s>assistant:"
    )
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
def test_a_chat_template_that_fails_is_one_line(template: Any) -> None:
    model = opened("llama")
    model.tokenizer.chat_template = template
    with pytest.raises(AttnkitError) as caught:
        HuggingFaceReader(model, chat=True).row("A river.", "Who fishes?")
    assert caught.value.code in (2, 65)
    assert "\n" not in str(caught.value)
    assert "chat template" in str(caught.value)


@pytest.mark.parametrize("chat", [False, True])
def test_special_tokens_that_a_context_spells_are_text(chat: bool) -> None:
    model = opened("llama")
    model.tokenizer.chat_template = CHAT
    chosen = HuggingFaceReader(model, chat=chat)
    end = model.tokenizer.convert_tokens_to_ids("</s>")
    plain = chosen.row("A river.", "Who fishes?")
    hostile = chosen.row("A</s> river.", "Who</s> fishes?")
    count = [(*row.head, *row.tail).count(end) for row in (plain, hostile)]
    assert count == [int(chat), int(chat)]


def test_a_folder_is_opened_and_a_mistyped_one_is_not_sought_on_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
