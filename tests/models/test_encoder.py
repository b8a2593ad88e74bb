"""An encoder alone: pads, sizes, the names of its weights, and masked tokens."""

import pytest
import torch

from attnkit.attention import Mask
from attnkit.models import EncoderClassifier, PositionTagger, build
from attnkit.recipe import schema

WORDS = ("scaled-dot", "synthesizer-random", "linear", "nystrom", "local")


def config(shape: str, **options: object) -> schema.ModelConfig:
    sizes = {"width": 16, "ff": 24, "heads": 4, "layers": {"encoder": 2, "decoder": 2}}
    return schema.ModelConfig.model_validate(sizes | {"shape": shape} | options)


def made(word: str = "scaled-dot", **options: object) -> EncoderClassifier:
    torch.manual_seed(5)
    model = build(config("encoder", attention={"encoder": {"name": word}}, **options), (23, 7), 40)
    assert isinstance(model, EncoderClassifier)
    return model.double().eval()


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("norm", ["pre", "post"])
def test_the_pooled_head_ignores_pads(word: str, norm: str) -> None:
    model = made(word, norm=norm)
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(4, 23, (n,), generator=generator) for n in (3, 9, 1, 6)]
    padded = torch.nn.utils.rnn.pad_sequence([*rows, rows[0].repeat(5)], batch_first=True)
    with torch.no_grad():
        together = model(padded, None)
        alone = [model(row[None], None) for row in rows]
    torch.testing.assert_close(together[:4], torch.cat(alone), rtol=0, atol=1e-12)


def test_the_pooled_state_is_the_mean_over_real_tokens() -> None:
    model = made()
    source = torch.tensor([[5, 6, 7, 0, 0], [8, 9, 10, 11, 12]])
    with torch.no_grad():
        pooled = model.hidden(source, None)
        expected = []
        for row in (source[:1, :3], source[1:]):
            mask = Mask.right(row != 0)
            states, _, _ = model.encoder(model.embed_source(row, mask.q_pos), mask)
            expected.append(states.mean(1))
    expected = torch.stack(expected)
    torch.testing.assert_close(pooled, expected, rtol=0, atol=1e-12)


def test_weights_of_the_encoder_are_called_as_those_of_an_encoder_decoder() -> None:
    both = build(config("encoder-decoder"), (23, 23), 40).state_dict()
    alone = build(config("encoder"), (23, 7), 40).state_dict()
    for name, tensor in alone.items():
        assert name == "output.weight" or both[name].shape == tensor.shape
    assert {n for n in both if n.startswith(("encoder.", "embed_source."))} == set(alone) - {"output.weight"}


def test_it_writes_no_text() -> None:
    model = made()
    with pytest.raises(ValueError, match="cannot generate text"):
        model.start(torch.tensor([[5]]))


def masked_encoder(**options: object) -> PositionTagger:
    torch.manual_seed(5)
    return PositionTagger(config("encoder", **options), (23, 23), 41).double().eval()


@pytest.mark.parametrize("positions", ["sinusoidal", "rope", "alibi"])
def test_each_token_of_a_masked_encoder_has_logits_that_ignore_pads(positions: str) -> None:
    model = masked_encoder(positions=positions)
    row = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        alone = model(row, None)
        padded = model(torch.tensor([[5, 6, 7, 0, 0], [8, 9, 10, 11, 12]]), None)
    assert alone.shape == (1, 3, 23)
    torch.testing.assert_close(padded[:1, :3], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("tie", ["all", "none"])
def test_the_output_of_a_masked_encoder_may_be_its_embeddings(tie: str) -> None:
    model = masked_encoder(tie=tie)
    assert (model.output.weight is model.embed_source.tokens.weight) == (tie == "all")
