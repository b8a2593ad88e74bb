"""The likeliest label against one label at a time, without padding."""

from collections.abc import Sequence

import pytest
import torch
from helpers.trained import tokenizer

from attnkit.data.tokenizer import BOS, EOS, Tokenizer
from attnkit.errors import NotFiniteError
from attnkit.models import Model, build
from attnkit.recipe import schema
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


def made(options: dict[str, object]) -> tuple[Model, Tokenizer]:
    torch.manual_seed(3)
    sizes = {"width": 16, "ff": 24, "heads": 4, "layers": {"encoder": 2, "decoder": 2}}
    model = schema.ModelConfig.model_validate(sizes | options)
    words = tokenizer().with_labels(LABELS) if model.shape == "encoder" else tokenizer()
    built = build(model, (len(words.source), len(words.target)), 24)
    for parameter in built.parameters():  # far from uniform answers
        parameter.data *= 3
    return built.double().eval(), words


def plain(model: Model, source: Sequence[int], labels: Sequence[Sequence[int]]) -> torch.Tensor:
    """Each label alone, read by one forward pass of an unpadded row."""
    read = torch.tensor([source])
    if model.shape == "encoder":
        logits = model(read, torch.tensor([[BOS]]))[0, 0]
        return torch.stack([logits[ids[0]] for ids in labels]).log_softmax(0)
    found = []
    for ids in labels:
        logs = model(read, torch.tensor([[BOS, *ids]]))[0].log_softmax(-1)
        found.append(sum(logs[place, token] for place, token in enumerate([*ids, EOS])))
    return torch.stack(found)


@pytest.mark.parametrize("options", MODELS, ids=str)
def test_labels_of_a_padded_batch_are_those_of_each_text_alone(options: dict[str, object]) -> None:
    model, words = made(options)
    labels = words.target.encode(LABELS)
    assert model.shape == "encoder" or len({len(ids) for ids in labels}) > 1
    sources = [[*ids, EOS] for ids in words.source.encode(TEXTS)]
    padded = torch.tensor([[*ids, *[0] * (30 - len(ids))][:20] for ids in sources])
    with torch.no_grad():
        expected = torch.stack([plain(model, ids, labels) for ids in sources])
        found = label_log_probs(model, padded, labels)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    answers = [one[0][0] for one in classify(model, words, TEXTS, LABELS, max_source=24, batch_tokens=60, block=3)]
    assert answers == [LABELS[int(row.argmax())] for row in expected]


def test_all_labels_are_ranked_and_a_line_without_text_has_none() -> None:
    model, words = made({})
    counts = LineCounts()
    texts = ["a dog", "", "a dog " * 30]
    first, empty, long = classify(model, words, texts, LABELS, max_source=8, batch_tokens=999, counts=counts)
    assert sorted(label for label, _ in first) == sorted(LABELS)
    assert [score for _, score in first] == sorted((s for _, s in first), reverse=True)
    assert empty == [("", 0.0)] * len(LABELS)
    assert len(long) == len(LABELS)
    assert (counts.lines, counts.empty, counts.truncated) == (3, 1, 1)


def test_a_model_that_answers_nan_is_refused() -> None:
    model, words = made({})
    model.output.weight.data.fill_(float("nan"))
    with pytest.raises(NotFiniteError, match="train again"):
        list(classify(model, words, TEXTS, LABELS, max_source=24, batch_tokens=99))
