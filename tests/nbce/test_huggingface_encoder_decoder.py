"""Tests of reading contexts with Hugging Face encoder-decoders: one source per context."""

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
    parts = random_model(name).double(), tokenizer("byte-level", "$A </s>")
    return HuggingFaceEncoderDecoder(Pretrained(name, "encoder-decoder", *parts, torch.device("cpu"), 64, Path()))


def row_logits(chosen: HuggingFaceEncoderDecoder, row: PromptRow, output: Sequence[int] = ()) -> Tensor:
    """Return the logits [V] of one pass over a single row."""
    source, target = torch.tensor([row.head]), torch.tensor([[*row.tail, *output]])
    with torch.no_grad():
        return chosen.model(input_ids=source, decoder_input_ids=target).logits[0, -1]


@pytest.mark.parametrize("budget", [30, 4096])
@pytest.mark.parametrize("name", NAMES)
def test_answer_equals_that_of_single_rows(name: str, budget: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = reader(name)
    monkeypatch.setattr(chosen, "batch_tokens", budget)
    rows = [chosen.row(text, "The animal?") for text in TEXTS]
    spec = SearchConfig(method="greedy", max_length=5)
    (found,) = answers(chosen, [rows], Rule(), spec)
    output: list[int] = []
    last: int | None = None
    for step in found.steps:
        logits = torch.stack([row_logits(chosen, row, output) for row in rows])
        scores, last = merge(logits, previous=last)
        assert step.chosen == last
        if int(scores.argmax()) in chosen.ends:
            break
        output.append(int(scores.argmax()))
    assert found.hypotheses[0].ids == output


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", NAMES)
def test_scores_of_beams_equal_those_of_single_rows(name: str) -> None:
    chosen = reader(name)
    prompts = [[chosen.row(text, ask) for text in TEXTS] for ask in ("The animal?", "Who?")]
    spec = SearchConfig(beam=3, n_best=3, max_length=4, length_penalty=0)
    rule = Rule("mean", top_p=1)
    for rows, found in zip(prompts, answers(chosen, prompts, rule, spec), strict=True):
        for hypothesis in found.hypotheses:
            total, ids = 0.0, hypothesis.ids
            for place in range(len(ids) + hypothesis.complete):
                logits = torch.stack([row_logits(chosen, row, ids[:place]) for row in rows])
                scores, _ = merge(logits, "mean", top_p=1)
                tokens = sorted(chosen.ends) if place == len(ids) else [ids[place]]
                total += float(scores[tokens].logsumexp(0))
            assert hypothesis.score == pytest.approx(total, abs=1e-5)


def test_output_begins_with_the_forced_token() -> None:
    model = random_model("bart")
    model.generation_config.forced_bos_token_id = 7
    opened = Pretrained("x", "encoder-decoder", model, tokenizer(), torch.device("cpu"), 64, Path())
    chosen = HuggingFaceEncoderDecoder(opened)
    row = chosen.row("", "The animal")
    assert row.tail == (2, 7)
    (found,) = answers(chosen, [[row]], None, SearchConfig(method="greedy", max_length=4))
    expected = model.generate(torch.tensor([row.head]), max_new_tokens=5, do_sample=False)[0]
    assert found.hypotheses[0].ids == [id_ for id_ in expected.tolist()[2:] if id_ != 2]


@pytest.mark.parametrize(
    ("context", "prompt", "max_length", "message"),
    [
        ("river " * 90, "Who?", 4, "reads at most 64: split"),
        ("river", " ", 4, "prompt is empty"),
        ("river", "Who?", 64, "output of 64 tokens does not fit"),
    ],
)
def test_too_long_and_empty_texts_raise(context: str, prompt: str, max_length: int, message: str) -> None:
    chosen = reader("bart")
    with pytest.raises(UsageError, match=message):
        answers(chosen, [[chosen.row(context, prompt)]], None, SearchConfig(max_length=max_length))


def test_shape_of_an_opened_model(tmp_path: Path) -> None:
    pretrained.save_pretrained(tmp_path / "bart", "bart")
    assert isinstance(open_model(tmp_path / "bart", device="cpu"), HuggingFaceEncoderDecoder)
    encoder = Pretrained("bert", "encoder", random_model("bert"), tokenizer(), torch.device("cpu"), 64, Path())
    with pytest.raises(UsageError, match="shape encoder cannot generate text"):
        HuggingFaceReader(encoder)
