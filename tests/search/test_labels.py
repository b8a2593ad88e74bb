"""Tests of the most probable label against one label at a time, without padding."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from helpers.tiny_models import tiny_model
from helpers.trained import tokenizer

from attnkit.data.tokenizer import BOS, EOS, Tokenizer
from attnkit.errors import NotFiniteError
from attnkit.search import LineCounts
from attnkit.search.labels import classify, label_log_probs

LABELS = ("hund", "eine sehr rote katze", "zwei hunde")
TEXTS = ["a dog", "two very red cats and a dog", "cats", "a red dog and two cats"]
MODELS = [
    {},
    {"shape": "decoder"},
    {"positions": "learned", "norm": "post"},
    {"attention": {"encoder": {"name": "linear"}, "decoder": {"name": "synthesizer-random"}}},
    {"type": "recurrent", "positions": "none", "heads": 1},
    {"type": "convolutional", "positions": "learned", "heads": 1},
    {"shape": "encoder"},
    {"shape": "encoder", "attention": {"encoder": {"name": "synthesizer-dense"}}},
]


def build(**options: Any) -> tuple[Any, Tokenizer]:
    words = tokenizer().with_labels(LABELS) if options.get("shape") == "encoder" else tokenizer()
    model = tiny_model(len(words.source), len(words.target), max_length=24, seed=3, **options)
    for parameter in model.parameters():  # far from uniform probabilities
        parameter.data *= 3
    return model.double().eval(), words


def plain(model: Any, source: Sequence[int], labels: Sequence[Sequence[int]]) -> torch.Tensor:
    """Return the log-probability of each label, by one forward pass of an unpadded row."""
    row = torch.tensor([source])
    if model.shape == "encoder":
        logits = model(row, torch.tensor([[BOS]]))[0, 0]
        return torch.stack([logits[ids[0]] for ids in labels]).log_softmax(0)
    scores = []
    for ids in labels:
        logprobs = model(row, torch.tensor([[BOS, *ids]]))[0].log_softmax(-1)
        scores.append(logprobs[range(len(ids) + 1), [*ids, EOS]].sum())
    return torch.stack(scores)


@pytest.mark.parametrize("options", MODELS, ids=str)
@torch.no_grad()
def test_labels_of_a_padded_batch_equal_those_of_each_text_alone(options: dict[str, Any]) -> None:
    model, words = build(**options)
    labels = words.target.encode(LABELS)
    assert model.shape == "encoder" or len({len(ids) for ids in labels}) > 1
    sources = [[*ids, EOS] for ids in words.source.encode(TEXTS)]
    padded = torch.tensor([[*ids, *[0] * (30 - len(ids))][:20] for ids in sources])
    expected = torch.stack([plain(model, ids, labels) for ids in sources])
    torch.testing.assert_close(label_log_probs(model, padded, labels), expected, rtol=1e-12, atol=1e-12)
    ranked = classify(model, words, TEXTS, LABELS, max_source=24, batch_tokens=60, block=3)
    assert [labels[0][0] for labels in ranked] == [LABELS[int(row.argmax())] for row in expected]


def test_all_labels_are_ranked_and_an_empty_line_has_none() -> None:
    model, words = build()
    counts = LineCounts()
    texts = ["a dog", "", "a dog " * 30]
    first, empty, long = classify(model, words, texts, LABELS, max_source=8, batch_tokens=999, counts=counts)
    assert sorted(label for label, _ in first) == sorted(LABELS)
    assert [score for _, score in first] == sorted((s for _, s in first), reverse=True)
    assert empty == [("", 0.0)] * len(LABELS)
    assert len(long) == len(LABELS)
    assert (counts.lines, counts.empty, counts.truncated) == (3, 1, 1)


def test_model_that_outputs_nan_raises() -> None:
    model, words = build()
    model.output.weight.data.fill_(float("nan"))
    with pytest.raises(NotFiniteError, match="train again"):
        list(classify(model, words, TEXTS, LABELS, max_source=24, batch_tokens=99))
