"""Fast decoder of a Transformer with dot-product attention, for search on a CPU.

It is equal to `Transformer.advance`, the plain implementation, up to rounding, with less work: queries, keys and
values are one product, and caches are not reordered with the beams. The tokens of all hypotheses of a sentence are in
one row of the cache, in the order of the steps, and each hypothesis has a row of biases, 0 at its own tokens and -inf
elsewhere; only the biases are reordered.

On one core with AVX2, decoding 40 sentences by a model as in `recipes/translation/multi30k.yaml` takes 1.4 times as
long without it, by greedy search and with a beam of 5.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Self, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit.layers import Block, MultiHead
from attnkit.layers.positions import Rotary
from attnkit.mechanisms.dot import Dot
from attnkit.mechanisms.scaled_dot import ScaledDot
from attnkit.models.base import Model
from attnkit.models.transformer import Stack, Transformer
from attnkit.ops.fast_cpu import PACK, PRODUCT, operator, usable
from attnkit.ops.onednn import WIDER, Linear, onednn_product, quick_product
from attnkit.recipe.score_options import ScoreOptions

VECTOR = 16
"""Numbers of keys are multiples of this: a softmax over part of a vector is several times slower."""

INITIAL_POSITIONS = 64
"""Initial number of precomputed position embeddings; doubled when exceeded."""

MIN_PACKED_WEIGHTS = 2**17
"""Minimum number of weights of the output layer for oneDNN's own layout."""

Cache = tuple[Float[Tensor, "n D S"], Float[Tensor, "n S D"]]
"""Keys (transposed) and values of a layer; n is B x H."""


class FastState:
    """State of decoding; unlike a `Decode`, it is modified in place by the next step."""

    def __init__(self, memory: Float[Tensor, "L 2 B H S D"], memory_biases: Float[Tensor, "B S"]) -> None:
        self.past = memory.new_zeros((*memory.shape[:4], VECTOR, memory.shape[5]))
        """Self-attention keys and values of all layers, with room for further tokens [L, 2, B, H, room, D]."""
        self.memory, self.memory_biases, self.heads = memory, memory_biases, memory.shape[3]
        self.past_biases = memory_biases.new_full((memory_biases.shape[0], VECTOR), -torch.inf)
        """Biases of each hypothesis [R, room] over the tokens of all hypotheses of its sentence."""
        self.columns = self.steps = 0
        """Number of cached tokens of a sentence, and of tokens of a hypothesis."""
        self.past_caches, self.size = list[Cache](), 0
        self.memory_caches = caches(memory)
        self.memory_biases_of_heads = for_heads(memory_biases[:, None], self.heads)

    def add_tokens(self) -> tuple[Sequence[Tensor], list[Cache], Float[Tensor, "n K S"]]:
        """Make room for a token of each hypothesis, K per sentence.

        Returns views for the new keys and values of each layer [2, B, H, K, D], the caches to read, and their biases.
        """
        sentences, (rows, capacity) = self.memory_biases.shape[0], self.past_biases.shape
        beams, first = rows // sentences, self.columns
        self.columns, self.steps = first + beams, self.steps + 1
        if self.columns > capacity:
            extra = VECTOR * beams  # for VECTOR further steps
            self.past, self.size = F.pad(self.past, (0, 0, 0, extra)), 0  # 0: views of the old tensor are stale
            self.past_biases = F.pad(self.past_biases, (0, extra), value=-torch.inf)
        biases = self.past_biases.view(sentences, beams, -1)  # [B, K, room]
        biases.diagonal(first, 1, 2).zero_()  # each hypothesis sees its own token
        size = self.columns + -self.columns % VECTOR  # whole vectors; unused columns have biases of -inf
        if size != self.size:
            self.past_caches, self.size = caches(self.past[..., :size, :]), size
        new_tokens = self.past[..., first : self.columns, :].unbind()
        return new_tokens, self.past_caches, for_heads(biases[..., :size], self.heads)

    def select(self, rows: Int[Tensor, " n"], stay: Int[Tensor, " b"] | None) -> Self:
        """Select hypotheses as `Decode.select`, in place."""
        self.past_biases = self.past_biases.index_select(0, rows)
        if stay is not None:
            self.memory_biases = self.memory_biases.index_select(0, stay)
            moved, size = (stay != torch.arange(len(stay))).nonzero().squeeze(1), len(stay)  # others are not copied
            for part in (self.past, self.memory):
                part.index_copy_(2, moved, part.index_select(2, stay[moved]))
            self.past, self.memory = self.past[:, :, :size], self.memory[:, :, :size]
            self.memory_caches, self.size = caches(self.memory), 0  # 0: views of `past` are stale
            self.memory_biases_of_heads = for_heads(self.memory_biases[:, None], self.heads)
        return self


def caches(both: Float[Tensor, "L 2 B H S D"]) -> list[Cache]:
    """Return views of the keys and values of each layer."""
    keys, values = both.flatten(2, 3).unbind(1)  # [L, B H, S, D] each
    return list(zip(keys.transpose(2, 3).unbind(), values.unbind(), strict=True))


def for_heads(biases: Float[Tensor, "B k S"], heads: int) -> Float[Tensor, "n k S"]:
    """Return biases repeated for each head; a single sentence broadcasts (n = 1)."""
    if biases.shape[0] == 1:
        return biases
    return biases[:, None].expand(-1, heads, -1, -1).flatten(0, 1)


def product_of(*layers: Linear | None) -> Callable[[Tensor], Tensor]:
    """Return the function x W^T + b of linear layers with the same input, whose outputs are concatenated."""
    weight, bias = (
        concatenated([getattr(layer, field) for layer in layers if layer is not None]) for field in ("weight", "bias")
    )
    if weight.dtype == torch.float32 and not WIDER:  # as `quick_product` then does
        return partial(F.linear, weight=weight, bias=bias)
    return partial(quick_product, weight=weight, bias=bias)


def concatenated(tensors: list[Tensor | None]) -> Any:
    """Return the concatenated weights or biases of several layers; None if all are None."""
    present = [tensor.detach() for tensor in tensors if tensor is not None]
    return torch.cat(present) if present[1:] else next(iter(present), None)


class VocabularyProduct:
    """x W^T + b with a matrix that exceeds the caches of a core.

    oneDNN would copy the weights to its own layout for each product; here the copy is kept. A single row needs no such
    layout and reads the matrix itself.
    """

    packed: Tensor | None = None

    def __init__(self, layer: Linear) -> None:
        self.weight, self.bias, self.out_features = layer.weight, layer.bias, layer.out_features
        self.plain = product_of(layer)
        large = layer.weight.numel() >= MIN_PACKED_WEIGHTS and layer.weight.dtype == torch.float32
        self.uses_packed = large and usable(operators=(PACK,))

    def __call__(self, x: Float[Tensor, "R I"]) -> Float[Tensor, "R O"]:
        if not self.uses_packed:
            return self.plain(x)
        if x.shape[0] == 1:  # a matrix-vector product
            return onednn_product(x, self.weight, self.bias)
        if self.packed is None:
            self.packed = operator(PACK)(self.weight)
        return onednn_product(x, self.packed, self.bias)


class FastAttention:
    """Self-attention or cross-attention of a layer."""

    def __init__(self, layer: MultiHead) -> None:
        self.input = product_of(layer.q, *(() if layer.cross else (layer.k, layer.v)))
        self.output = product_of(layer.o)
        self.heads, self.parts = layer.heads, 1 if layer.cross else 3
        self.scale = cast("Dot", layer.mechanism).scale

    def project(self, x: Float[Tensor, "R W"], sentences: int) -> Float[Tensor, "P B H K D"]:
        """Return queries (P = 1), in self-attention queries, keys and values (P = 3)."""
        shape = sentences, -1, self.parts, self.heads, x.shape[1] // self.heads
        return self.input(x).view(shape).permute(2, 0, 3, 1, 4)

    def mix(self, q: Float[Tensor, "B H K D"], cache: Cache, biases: Float[Tensor, "n k S"]) -> Float[Tensor, "R W"]:
        """Return attention to the keys of a cache; n is B x H or 1, k is K or 1."""
        keys, values = cache
        queries = q.reshape(values.shape[0], -1, q.shape[3])  # [n, K, D]
        scores = torch.baddbmm(biases, queries, keys, alpha=self.scale)
        y = torch.bmm(scores.softmax(2), values).view(q.shape)
        return self.output(y.transpose(1, 2).reshape(-1, self.heads * y.shape[3]))


class FastBlock:
    """A decoder block."""

    def __init__(self, depth: int, block: Block) -> None:
        self.depth = depth
        assert block.cross is not None
        assert block.norm_cross is not None
        self.self_attention, self.cross = FastAttention(block.attention), FastAttention(block.cross)
        forward = block.feed_forward
        assert forward is not None
        self.up, self.down = product_of(forward.up), product_of(forward.down)
        self.gate = None if forward.gate is None else product_of(forward.gate)
        self.function, self.norm_first = forward.function, block.norm_first
        if self.function is F.relu:
            self.function = torch.relu_  # in place: the product is not used elsewhere
        norms = (block.norm_attention, block.norm_cross, block.norm_feed_forward)
        self.norms = [
            (norm.normalized_shape, norm.weight, norm.bias, norm.eps)
            for norm in norms
            if isinstance(norm, nn.LayerNorm)
        ]

    def __call__(self, x: Float[Tensor, "R W"], step: "Step") -> Float[Tensor, "R W"]:
        """Return the new x, and write the keys and values of these tokens to the cache."""
        sublayers = self.attend_past, self.attend_source, self.feed_forward
        for norm, sublayer in zip(self.norms, sublayers, strict=True):
            if self.norm_first:
                x = x + sublayer(torch.layer_norm(x, *norm), step)
            else:
                x = torch.layer_norm(x + sublayer(x, step), *norm)
        return x

    def attend_past(self, x: Float[Tensor, "R W"], step: "Step") -> Float[Tensor, "R W"]:
        """Return self-attention."""
        qkv = self.self_attention.project(x, step.sentences)
        if step.rotations is not None:
            qkv = torch.cat((Rotary.rotate(qkv[:2], *step.rotations), qkv[2:]))
        step.new_tokens[self.depth].copy_(qkv[1:])  # a view of the cache
        return self.self_attention.mix(qkv[0], step.caches[self.depth], step.past_biases)

    def attend_source(self, x: Float[Tensor, "R W"], step: "Step") -> Float[Tensor, "R W"]:
        """Return cross-attention."""
        (q,) = self.cross.project(x, step.sentences)
        return self.cross.mix(q, step.memory[self.depth], step.memory_biases)

    def feed_forward(self, x: Float[Tensor, "R W"], _: "Step") -> Float[Tensor, "R W"]:
        """Return the output of `FeedForward`, without dropout."""
        hidden = self.up(x)
        hidden = self.function(hidden) if self.gate is None else self.function(self.gate(x)) * hidden
        return self.down(hidden)


class Step(NamedTuple):
    """Tensors of a step, for all layers."""

    sentences: int
    rotations: tuple[Tensor, Tensor] | None
    """Cosines and sines of rotary positions, see `Rotary.cos_sin`."""
    new_tokens: Sequence[Float[Tensor, "2 B H K D"]]
    """Views of the cache of each layer for the keys and values of these tokens."""
    caches: list[Cache]
    past_biases: Float[Tensor, "n K S"]
    memory: list[Cache]
    memory_biases: Float[Tensor, "n 1 S"]
    """Biases of cross-attention, as `past_biases` of self-attention; n is B x H, or 1 for a single sentence."""


def has_fast_form(layer: MultiHead) -> bool:
    """Return whether a layer is plain dot-product attention without options."""
    mechanism = layer.mechanism
    return (
        type(mechanism) in (Dot, ScaledDot)
        and layer.plain
        and layer.key_heads == layer.heads
        and mechanism.modifiers == ScoreOptions()
        and not mechanism.evaluation_noise
    )


class FastDecoder:
    """Replacement of a model in search; see the module's docstring."""

    def __init__(self, model: Transformer, decoder: Stack) -> None:
        self.model, self.embedding = model, model.embed_target
        self.output = VocabularyProduct(cast("Linear", model.output))
        self.layers = [block for block in decoder.blocks if isinstance(block, Block)]
        self.blocks = [FastBlock(depth, block) for depth, block in enumerate(self.layers)]
        self.norm, self.rotary = decoder.norm, self.layers[0].attention.rotary
        cross_layers = [block.cross for block in self.layers if block.cross is not None]
        self.memory = product_of(*(projection for layer in cross_layers for projection in (layer.k, layer.v)))
        table = self.embedding.table
        self.positions = self.embedding.added(torch.arange(INITIAL_POSITIONS)) if table is None else table.weight

    @classmethod
    def of(cls, model: Model) -> Self | None:
        """Return the fast decoder of a model; None if the model is not supported or has hooks, which would not run."""
        if not isinstance(model, Transformer) or model.encoder is None:
            return None
        decoder = model.decoder
        if not isinstance(decoder, Stack) or decoder.bias is not None:
            return None
        for part in (*decoder.modules(), *model.embed_target.modules(), model.output):
            if part._forward_hooks or part._forward_pre_hooks:
                return None
            if isinstance(part, MultiHead) and not has_fast_form(part):
                return None
            if isinstance(part, Block) and (
                part.feed_forward is None or not isinstance(part.norm_attention, nn.LayerNorm)
            ):
                return None
        if not usable(model.output.weight, operators=(PRODUCT,)):
            return None
        return cls(model, decoder)

    def start(self, source: Int[Tensor, "B S"], rows: int | None = None) -> FastState:
        """Read the source as `Model.start`; the memory is padded to multiples of VECTOR."""
        states, valid = self.model.encode(source)
        missing = -source.shape[1] % VECTOR
        states, valid = F.pad(states, (0, 0, 0, missing)), F.pad(valid, (0, missing))
        shape = *valid.shape, len(self.blocks), 2, self.blocks[0].self_attention.heads, -1
        memory = self.memory(states).view(shape).permute(2, 3, 0, 4, 1, 5).contiguous()
        return FastState(memory, states.new_zeros(valid.shape).masked_fill_(~valid, -torch.inf))

    def advance(self, ids: Int[Tensor, "R 1"], state: FastState) -> tuple[Float[Tensor, "R 1 W"], FastState]:
        """Read a further token of each hypothesis as `Model.advance`."""
        position = state.steps
        x = self.embed(ids[:, 0], position)
        rotations = None
        if self.rotary is not None:
            rotations = self.rotary.cos_sin(state.past, torch.tensor([[position]]))
        cached = *state.add_tokens(), state.memory_caches, state.memory_biases_of_heads
        step = Step(state.memory_biases.shape[0], rotations, *cached)
        for block in self.blocks:
            x = block(x, step)
        return self.norm(x)[:, None], state

    def embed(self, ids: Int[Tensor, " R"], position: int) -> Float[Tensor, "R W"]:
        """Return the output of `Embedding`, with position embeddings from a table."""
        embedding = self.embedding
        x = F.embedding(ids, embedding.tokens.weight) * embedding.scale
        if self.positions is None:
            return x
        if position == self.positions.shape[0]:
            self.positions = embedding.added(torch.arange(2 * position))
            assert self.positions is not None
        return x + self.positions[position].to(x.dtype)
