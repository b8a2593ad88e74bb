"""Tests of encoders alone: padding, pooling, the names of weights, masked tokens."""

from typing import Any

import pytest
import torch
from helpers.tiny_models import tiny_model
from torch import Tensor

from attnkit.attention import Mask
from attnkit.models import PositionTagger
from attnkit.recipe.schema import ModelConfig

PADDED = torch.tensor([[5, 6, 7, 0, 0], [8, 9, 10, 11, 12]])


def build(word: str = "scaled-dot", **options: object) -> Any:
    return tiny_model(23, 7, shape="encoder", attention={"encoder": {"name": word}}, **options).double().eval()


@pytest.mark.parametrize("word", ["scaled-dot", "synthesizer-random", "linear", "nystrom", "local"])
@pytest.mark.parametrize("norm", ["pre", "post"])
@torch.no_grad()
def test_pooled_output_ignores_padding(word: str, norm: str) -> None:
    model, generator = build(word, norm=norm), torch.Generator().manual_seed(1)
    rows = [torch.randint(4, 23, (n,), generator=generator) for n in (3, 9, 1, 6)]
    padded = torch.nn.utils.rnn.pad_sequence([*rows, rows[0].repeat(5)], batch_first=True)
    expected = torch.cat([model(row[None], None) for row in rows])
    torch.testing.assert_close(model(padded, None)[:4], expected, rtol=0, atol=1e-12)


@torch.no_grad()
def test_pooled_state_is_the_mean_over_real_tokens() -> None:
    model = build()

    def mean(row: Tensor) -> Tensor:
        mask = Mask.right(row != 0)
        return model.encoder(model.embed_source(row, mask.q_pos), mask)[0].mean(1)  # type: ignore[no-any-return]

    expected = torch.stack([mean(PADDED[:1, :3]), mean(PADDED[1:])])
    torch.testing.assert_close(model.hidden(PADDED, None), expected, rtol=0, atol=1e-12)


def test_weights_have_the_names_of_an_encoder_decoder() -> None:
    both, alone = tiny_model(23).state_dict(), tiny_model(23, 7, shape="encoder").state_dict()
    for name, tensor in alone.items():
        assert name == "output.weight" or both[name].shape == tensor.shape
    assert {n for n in both if n.startswith(("encoder.", "embed_source."))} == set(alone) - {"output.weight"}


def test_generating_text_raises() -> None:
    with pytest.raises(ValueError, match="cannot generate text"):
        build().start(torch.tensor([[5]]))


def masked_encoder(**options: object) -> PositionTagger:
    torch.manual_seed(5)
    config = ModelConfig.model_validate({"shape": "encoder", "width": 16, "ff": 24, "heads": 4, **options})
    return PositionTagger(config, (23, 23), 41).double().eval()


@pytest.mark.parametrize("positions", ["sinusoidal", "rope", "alibi"])
@torch.no_grad()
def test_logits_of_a_masked_encoder_ignore_padding(positions: str) -> None:
    model = masked_encoder(positions=positions)
    alone = model(PADDED[:1, :3], None)
    assert alone.shape == (1, 3, 23)
    torch.testing.assert_close(model(PADDED, None)[:1, :3], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tie", ["all", "none"])
def test_output_of_a_masked_encoder_can_be_tied_to_its_embeddings(tie: str) -> None:
    model = masked_encoder(tie=tie)
    assert (model.output.weight is model.embed_source.tokens.weight) == (tie == "all")
