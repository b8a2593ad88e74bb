"""Tests of the total variation distance between a model and the known source of its text."""

import math

import pytest
import torch

from attnkit.data.rows import Row
from attnkit.data.synthetic.known_source import END, SOURCES, KnownSource
from attnkit.data.tokenizer import BOS, EOS, PAD, Tokenizer
from attnkit.models import Model, build
from attnkit.recipe import load
from attnkit.recipe.schema import Recipe
from attnkit.scoring.teacher_forced import total_variation

BLOCK = 8


Parts = tuple[Recipe, KnownSource, Tokenizer, Model]


@pytest.fixture(params=["toy-topics", "toy-chains"])
def parts(request: pytest.FixtureRequest) -> Parts:
    """Return a recipe, its source, a tokenizer of its words and an untrained model."""
    overrides = [f"data.corpus={request.param}", f"data.max_length={BLOCK}"]
    recipe = load("language-modeling/tailr", overrides).variants["cross-entropy"]
    source = SOURCES[request.param]
    rows = [Row("", " ".join(source.next_words(())))] * 3
    tokenizer = Tokenizer.train(recipe.tokenizer, rows)
    torch.manual_seed(1)
    sizes = (len(tokenizer.source), len(tokenizer.target))
    return recipe, source, tokenizer, build(recipe.model, sizes, BLOCK).eval()


@pytest.mark.sampled(5)
def test_score_is_half_the_l1_distance(parts: Parts) -> None:
    recipe, source, tokenizer, model = parts
    rows = list(source.rows("test", 1, 1))
    score = total_variation(model, tokenizer, rows, recipe)
    words = [*rows[0].target.split(), END]
    assert len(words) % BLOCK == 1  # the last block is a token alone
    total = 0.0
    for place in range(len(words)):
        before = words[place - place % BLOCK : place]
        ids = [tokenizer.target.encode([word])[0][0] if word else EOS for word in before]
        with torch.inference_mode():
            p = model(None, torch.tensor([[BOS, *ids]]))[0, -1].double().softmax(-1).tolist()
        q = [0.0] * len(p)
        for word, share in source.next_tokens(before, BLOCK).items():
            q[tokenizer.target.encode([word])[0][0] if word else EOS] = share
        total += sum(abs(a - b) for a, b in zip(p, q, strict=True)) / 2
    assert score.value == pytest.approx(100 * total / len(words), rel=1e-5)
    assert score.statistics[:, 1].sum() == len(words)


def test_model_equal_to_the_source_scores_zero(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe, source, tokenizer, model = parts

    def log_probabilities(_: None, ids: torch.Tensor) -> torch.Tensor:
        """Return the log-probabilities of the source in place of hidden states."""
        out = torch.full((*ids.shape, len(tokenizer.target)), -math.inf)
        for row, line in enumerate(ids.tolist()):
            words = [END if i == EOS else tokenizer.target.decode([[i]])[0] for i in line[1:] if i != PAD]
            for place in range(len(words) + 1):
                for word, share in source.next_tokens(words[:place], BLOCK).items():
                    token = tokenizer.target.encode([word])[0][0] if word else EOS
                    out[row, place, token] = math.log(share)
        return out

    output = torch.nn.Identity()
    output.weight = torch.nn.Parameter(torch.zeros(1))
    monkeypatch.setattr(model, "hidden", log_probabilities)
    monkeypatch.setattr(model, "output", output)
    rows = list(source.rows("test", 1, 1))
    assert total_variation(model, tokenizer, rows, recipe).value == pytest.approx(0, abs=1e-4)
