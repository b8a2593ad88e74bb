"""Hugging Face's encoder-decoders: rows that differ in the source."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor

pytest.importorskip("transformers")

from helpers import pretrained
from helpers.pretrained import random_model, tokenizer

from attnkit.errors import UsageError
from attnkit.huggingface import Pretrained
from attnkit.nbce import merge, open_model
from attnkit.nbce.huggingface_reader import HuggingFaceEncoderDecoder, HuggingFaceReader
from attnkit.nbce.merge import Rule
from attnkit.nbce.merged_search import answers
from attnkit.nbce.reader import PromptRow
from attnkit.recipe.schema import SearchConfig

NAMES = ("bart", "t5", "marian")
TEXTS = ("A small river runs behind the old mill.", "", "Nobody fishes.", "Nobody fishes.")


@cache
def reader(name: str) -> HuggingFaceEncoderDecoder:
    made = tokenizer("byte-level", "$A </s>")
    model = random_model(name).double()
    return HuggingFaceEncoderDecoder(Pretrained(name, "encoder-decoder", model, made, torch.device("cpu"), 64, Path()))


def alone(chosen: HuggingFaceEncoderDecoder, row: PromptRow, output: Sequence[int] = ()) -> Tensor:
    with torch.no_grad():
        return chosen.model(
            input_ids=torch.tensor([row.head]), decoder_input_ids=torch.tensor([[*row.tail, *output]])
        ).logits[0, -1]


@pytest.mark.parametrize("budget", [30, 4096])
@pytest.mark.parametrize("name", NAMES)
def test_sources_side_by_side_answer_as_each_does_alone(
    name: str, budget: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = reader(name)
    monkeypatch.setattr(chosen, "batch_tokens", budget)
    rows = [chosen.row(text, "The animal?") for text in TEXTS]
    spec = SearchConfig(method="greedy", max_length=5)
    (found,) = answers(chosen, [rows], Rule(), spec)
    output: list[int] = []
    last: int | None = None
    for step in found.steps:
        logits = torch.stack([alone(chosen, row, output) for row in rows])
        scores, last = merge(logits, previous=last)
        assert step.chosen == last
        if int(scores.argmax()) in chosen.ends:
            break
        output.append(int(scores.argmax()))
    assert found.hypotheses[0].ids == output


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_beams_of_several_prompts_score_as_their_outputs_do_alone(name: str) -> None:
    chosen = reader(name)
    prompts = [[chosen.row(text, ask) for text in TEXTS] for ask in ("The animal?", "Who?")]
    spec = SearchConfig(beam=3, n_best=3, max_length=4, length_penalty=0)
    rule = Rule("mean", top_p=1)
    for rows, found in zip(prompts, answers(chosen, prompts, rule, spec), strict=True):
        for one in found.hypotheses:
            total, ids = 0.0, list(one.ids)
            for place in range(len(ids) + one.complete):
                logits = torch.stack([alone(chosen, row, ids[:place]) for row in rows])
                scores, _ = merge(logits, "mean", top_p=1)
                wanted = sorted(chosen.ends) if place == len(ids) else [ids[place]]
                total += float(scores[wanted].logsumexp(0))
            assert one.score == pytest.approx(total, abs=1e-5)


def test_an_output_that_generation_begins_with_a_language_begins_so() -> None:
    model = random_model("bart")
    model.generation_config.forced_bos_token_id = 7
    opened = Pretrained("x", "encoder-decoder", model, tokenizer(), torch.device("cpu"), 64, Path())
    chosen = HuggingFaceEncoderDecoder(opened)
    row = chosen.row("", "The animal")
    assert row.tail == (2, 7)
    (found,) = answers(chosen, [[row]], None, SearchConfig(method="greedy", max_length=4))
    wanted = model.generate(torch.tensor([row.head]), max_new_tokens=5, do_sample=False)[0]
    assert found.hypotheses[0].ids == [id_ for id_ in wanted.tolist()[2:] if id_ != 2]


def test_sources_that_are_too_long_empty_or_of_no_decoder_are_refused(tmp_path: Path) -> None:
    chosen = reader("bart")
    spec = SearchConfig(max_length=4)
    with pytest.raises(UsageError, match="reads at most 64: split"):
        answers(chosen, [[chosen.row("river " * 90, "Who?")]], None, spec)
    with pytest.raises(UsageError, match="prompt is empty"):
        answers(chosen, [[chosen.row("river", " ")]], None, spec)
    with pytest.raises(UsageError, match="output of 64 tokens does not fit"):
        answers(chosen, [[chosen.row("river", "Who?")]], None, SearchConfig(max_length=64))
    pretrained.save_pretrained(tmp_path / "bart", "bart")
    opened = open_model(tmp_path / "bart", device="cpu")
    assert isinstance(opened, HuggingFaceEncoderDecoder)
    encoder = Pretrained("bert", "encoder", random_model("bert"), tokenizer(), torch.device("cpu"), 64, Path())
    with pytest.raises(UsageError, match="shape encoder cannot generate text"):
        HuggingFaceReader(encoder)
