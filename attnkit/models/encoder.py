"""Encoder-only models: sequence classification and prediction of masked tokens."""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnkit.attention import Mask
from attnkit.data.tokenizer import PAD
from attnkit.layers import Dropout
from attnkit.layers.positions import Rotary
from attnkit.models.base import Decode, Model
from attnkit.models.embedding import Embedding, token_tables, vocabulary_output
from attnkit.models.transformer import Stack
from attnkit.ops.onednn import Linear
from attnkit.recipe import schema


class EncoderModel(Model):
    """The encoder of a Transformer (the causal decoder if `model.shape` is decoder), with the same parameter names."""

    shape = "encoder"

    def __init__(self, model: schema.ModelConfig, tokens: int, max_length: int) -> None:
        super().__init__()
        table, _ = token_tables((tokens, 0), model.width, True, model.width**-0.5)
        rotary = Rotary(model.width // model.heads) if model.positions == "rope" else None
        self.embed_source = Embedding(table, model.positions, max_length, model.dropout)
        stack = Stack(model, model.shape, max_length, rotary, cross=False)
        self.encoder = stack if model.shape == "encoder" else None
        self.decoder = stack if model.shape == "decoder" else None

    def states(self, source: Int[Tensor, "B S"] | None) -> tuple[Float[Tensor, "B S W"], Bool[Tensor, "B S"]]:
        """Return the last hidden states and a mask that is False on padding."""
        if source is None:
            raise ValueError("a model of shape encoder needs a source")
        valid = source != PAD
        if self.encoder is not None:
            stack, mask = self.encoder, Mask.right(valid)
        else:
            assert self.decoder is not None
            stack = self.decoder
            mask = Mask.packed(source.shape[1], source.device, causal=True)
        states, _, _ = stack(self.embed_source(source, mask.q_pos), mask)
        return states, valid

    def start(self, source: Int[Tensor, "B S"] | None, rows: int | None = None) -> Decode:
        raise ValueError("a model of shape encoder cannot generate text")

    def advance(
        self, ids: Int[Tensor, "R t"], state: Decode, real: Bool[Tensor, "R t"] | None = None
    ) -> tuple[Float[Tensor, "R t W"], Decode]:
        raise ValueError("a model of shape encoder cannot generate text")


class EncoderClassifier(EncoderModel):
    """A linear classifier of the mean of the hidden states, without those of padding.

    The labels are the target vocabulary (`LabelVocabulary`): a label is the only token predicted after the begin
    token.
    """

    def __init__(self, model: schema.ModelConfig, sizes: tuple[int, int], max_length: int) -> None:
        super().__init__(model, sizes[0], max_length)
        self.dropout = Dropout(model.dropout)
        self.output = Linear(model.width, sizes[1], bias=False)
        nn.init.normal_(self.output.weight, std=model.width**-0.5)

    def hidden(self, source: Int[Tensor, "B S"] | None, ids: Int[Tensor, "B T"] | None) -> Float[Tensor, "B 1 W"]:
        """Return the pooled states; `ids` is ignored."""
        states, valid = self.states(source)
        weights = valid.to(states.dtype)[:, None]  # [B, 1, S]
        pooled = weights @ states.masked_fill(~valid[:, :, None], 0) / weights.sum(2, keepdim=True)
        y: Tensor = self.dropout(pooled)
        return y


class PositionTagger(EncoderModel):
    """A linear output layer for each hidden state, optionally tied to the embedding (`model.tie`).

    It predicts tokens at masked or marked positions of its source (`data.objectives`).
    """

    def __init__(self, model: schema.ModelConfig, sizes: tuple[int, int], max_length: int) -> None:
        super().__init__(model, sizes[0], max_length)
        self.output = vocabulary_output(model, self.embed_source.tokens, sizes[1])

    def hidden(self, source: Int[Tensor, "B S"] | None, ids: Int[Tensor, "B T"] | None) -> Float[Tensor, "B S W"]:
        """Return the hidden states; `ids` is ignored."""
        return self.states(source)[0]
