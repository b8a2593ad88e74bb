"""The decoder of a Transformer with dot-product attention, for searches on a CPU.

It answers as `Transformer.advance`, the plain form, up to rounding, with less work: queries, keys
and values are one product, and caches stay where they are while beams swap.  The tokens of all
hypotheses of a sentence lie in one row, in the order of the steps, and each hypothesis has a row of
biases, 0 at the tokens of its own past and -inf elsewhere; only these are reordered.

On one core with AVX2, 40 sentences of a model as in `recipes/quickstart.yaml` (width 64) take 1.3
times as long without it by greedy search and 1.5 times with a beam of 5.  A model as in
`recipes/translation/multi30k.yaml` takes 1.1 times as long by greedy search, 1.16 to 1.25 times
with a beam of 5.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.profiler import record_function

from attnkit.layers import Block, MultiHead
from attnkit.mechanisms.dot import Dot
from attnkit.mechanisms.scaled_dot import ScaledDot
from attnkit.models.base import Model
from attnkit.models.transformer import Stack, Transformer
from attnkit.ops.fast_cpu import PRODUCT, usable
from attnkit.ops.onednn import Linear, quick_product
from attnkit.recipe.score_options import ScoreOptions

VECTOR = 16
"""Keys are read in multiples of this: a softmax over part of a vector is several times slower."""

Cache = tuple[Float[Tensor, "B H S D"], Float[Tensor, "B H S D"]]
"""Keys and values."""


class FastState:
    """Where decoding stands; unlike a `Decode` it is used up by the next step, which writes it."""

    def __init__(self, own: list[Cache], memory: list[Cache], pads: Float[Tensor, "B S"]) -> None:
        self.own, self.memory, self.pads = own, memory, pads
        self.past = pads.new_empty((len(pads), 0))
        """Biases of a hypothesis [R, S], S the tokens read for all those of its sentence."""
        self.length = 0
        """Tokens of each hypothesis."""

    def add_rows(self) -> slice:
        """Make room for a token of each hypothesis; the columns that they get."""
        sentences, (rows, used) = len(self.pads), self.past.shape
        beams = rows // sentences
        new = self.past.new_full((beams, beams), -torch.inf).fill_diagonal_(0)
        self.past = torch.cat((self.past, new.repeat(sentences, 1)), 1)
        self.length += 1
        if used + beams > self.own[0][0].shape[2]:
            more = (0, 0, 0, VECTOR * beams)
            self.own = [(F.pad(keys, more), F.pad(values, more)) for keys, values in self.own]
        return slice(used, used + beams)

    @record_function("attnkit: reordering")
    def select(self, rows: Int[Tensor, " n"], stay: Int[Tensor, " b"] | None) -> Self:
        """As `Decode.select`."""
        self.past = self.past.index_select(0, rows)
        if stay is not None:
            self.pads = self.pads.index_select(0, stay)
            places = (stay != torch.arange(len(stay))).nonzero().squeeze(1)
            moved, size = stay[places], len(stay)
            for part in (part for cache in (*self.own, *self.memory) for part in cache):
                part.index_copy_(0, places, part.index_select(0, moved))
            self.own, self.memory = (
                [(keys[:size], values[:size]) for keys, values in caches]
                for caches in (self.own, self.memory)
            )
        return self


class Product:
    """x W^T + b, of one linear layer or of several that read the same, one behind the other."""

    def __init__(self, *layers: Linear | None) -> None:
        self.weight, self.bias, self.scale = (
            self.joined([getattr(layer, name) for layer in layers if layer is not None])
            for name in ("weight", "bias", "scale")
        )

    @staticmethod
    def joined(parts: list[Tensor | None]) -> Any:
        """A field of all layers; None where they have none."""
        there = [part.detach() for part in parts if part is not None]
        return torch.cat(there) if there[1:] else next(iter(there), None)

    @property
    def out_features(self) -> int:
        """O."""
        return len(self.weight)

    def __call__(self, x: Float[Tensor, "R I"]) -> Float[Tensor, "R O"]:
        return quick_product(x, self.weight, self.bias, self.scale)


class FastAttention:
    """Attention of a layer to the past of its rows, or to their sources."""

    def __init__(self, layer: MultiHead) -> None:
        self.input = Product(layer.q, *(() if layer.cross else (layer.k, layer.v)))
        self.output = Product(layer.o)
        self.heads, self.rotary = layer.heads, layer.rotary
        self.scale = cast("Dot", layer.mechanism).scale

    def project(self, x: Float[Tensor, "R W"], step: "Step") -> tuple[Tensor, ...]:
        """Queries, and of the past keys and values, each [B, H, K, D]."""
        shape = (step.sentences, -1, len(self.input.weight) // x.shape[1], self.heads,
                 x.shape[1] // self.heads)  # fmt: skip
        return self.input(x).view(shape).permute(2, 0, 3, 1, 4).unbind()

    def mix(
        self, q: Float[Tensor, "B H K D"], cache: Cache, biases: Float[Tensor, "n k S"]
    ) -> Float[Tensor, "R W"]:
        """Attend to as many keys as there are biases; n is B x H, k is K or 1."""
        size = biases.shape[2]
        keys, values = (part[:, :, :size].flatten(0, 1) for part in cache)
        scores = torch.baddbmm(
            biases,
            q.reshape(biases.shape[0], -1, q.shape[3]),
            keys.transpose(1, 2),
            alpha=self.scale,
        )
        return self.merge(torch.bmm(scores.softmax(2), values).view(q.shape))

    def merge(self, y: Float[Tensor, "B H K D"]) -> Float[Tensor, "R W"]:
        """The heads of each row side by side, projected back."""
        return self.output(y.permute(0, 2, 1, 3).reshape(-1, self.heads * y.shape[3]))


class FastBlock:
    """A block of the decoder."""

    def __init__(self, block: Block) -> None:
        assert block.cross is not None
        assert block.norm_cross is not None
        self.own, self.cross = FastAttention(block.attention), FastAttention(block.cross)
        forward = block.feed_forward
        assert forward is not None
        self.up, self.down = Product(forward.up), Product(forward.down)
        self.gate = None if forward.gate is None else Product(forward.gate)
        self.function, self.before = forward.function, block.before
        norms = (block.norm_attention, block.norm_cross, block.norm_feed_forward)
        self.norms = [
            (norm.normalized_shape, norm.weight, norm.bias, norm.eps)
            for norm in norms
            if isinstance(norm, nn.LayerNorm)
        ]

    def __call__(
        self, x: Float[Tensor, "R W"], past: Cache, source: Cache, step: "Step"
    ) -> Float[Tensor, "R W"]:
        """The new x; the cache of the past gets the keys and values of these tokens."""
        parts: Sequence[Callable[[Tensor], Tensor]] = (
            lambda y: self.attend_past(y, past, step),
            lambda y: self.cross.mix(self.cross.project(y, step)[0], source, step.pads),
            self.feed_forward,
        )
        for norm, part in zip(self.norms, parts, strict=True):
            if self.before:
                x = x + part(torch.layer_norm(x, *norm))
            else:
                x = torch.layer_norm(x + part(x), *norm)
        return x

    def attend_past(self, x: Float[Tensor, "R W"], cache: Cache, step: "Step") -> Tensor:
        """Self-attention [R, W]."""
        q, k, v = self.own.project(x, step)
        if self.own.rotary is not None:
            q, k = self.own.rotary(q, step.place), self.own.rotary(k, step.place)
        cache[0][:, :, step.new], cache[1][:, :, step.new] = k, v
        return self.own.mix(q, cache, step.past)

    def feed_forward(self, x: Float[Tensor, "R W"]) -> Float[Tensor, "R W"]:
        """As `FeedForward`, without dropout."""
        inner = self.up(x)
        inner = self.function(inner) if self.gate is None else self.function(self.gate(x)) * inner
        return self.down(inner)


class Step(NamedTuple):
    """What all layers share in one step."""

    sentences: int
    place: Int[Tensor, "1 1"]
    """The position of the tokens."""
    new: slice
    """Their columns in the caches."""
    past: Float[Tensor, "n K S"]
    pads: Float[Tensor, "n 1 S"]
    """Biases of both attentions; n is B x H."""


class FastDecoder:
    """What a search reads instead of a model that has this form."""

    def __init__(self, model: Transformer, decoder: Stack) -> None:
        self.model, self.embedding = model, model.embed_target
        self.output = Product(cast("Linear", model.output))
        self.layers = [block for block in decoder.blocks if isinstance(block, Block)]
        self.blocks, self.norm = [FastBlock(block) for block in self.layers], decoder.norm

    @classmethod
    def of(cls, model: Model) -> Self | None:
        """The fast form; None where there is none, or where hooks would miss their calls."""
        if not isinstance(model, Transformer) or model.encoder is None:
            return None
        decoder = model.decoder
        if not isinstance(decoder, Stack) or decoder.bias is not None:
            return None
        hooked = any(
            part._forward_hooks or part._forward_pre_hooks
            for part in (*decoder.modules(), model.output)
        )
        plain = all(
            type(layer.mechanism) in (Dot, ScaledDot)
            and layer.plain
            and layer.key_heads == layer.heads
            and layer.mechanism.modifiers == ScoreOptions()
            and not layer.mechanism.evaluation_noise
            for layer in decoder.modules()
            if isinstance(layer, MultiHead)
        )
        plain = plain and all(
            block.feed_forward is not None and isinstance(block.norm_attention, nn.LayerNorm)
            for block in decoder.blocks
            if isinstance(block, Block)
        )
        if hooked or not plain or not usable(model.output.weight, operators=(PRODUCT,)):
            return None
        return cls(model, decoder)

    def start(self, source: Int[Tensor, "B S"], rows: int | None = None) -> FastState:
        """As `Model.start`; the memory is padded to whole vectors."""
        states, valid = self.model.encode(source)
        spare = -source.shape[1] % VECTOR
        states, valid = F.pad(states, (0, 0, 0, spare)), F.pad(valid, (0, spare))
        own, memory = [], []
        for layer in self.layers:
            assert layer.cross is not None
            k, v = (
                torch.unflatten(part(states), 2, (layer.cross.heads, -1)).transpose(1, 2)
                for part in (layer.cross.k, layer.cross.v)
                if part is not None
            )
            memory.append((k.contiguous(), v.contiguous()))
            empty = k.new_zeros((*k.shape[:2], VECTOR, k.shape[3]))
            own.append((empty, empty.clone()))
        pads = states.new_zeros(valid.shape).masked_fill_(~valid, -torch.inf)
        return FastState(own, memory, pads)

    def advance(
        self, ids: Int[Tensor, "R 1"], state: FastState
    ) -> tuple[Float[Tensor, "R 1 W"], FastState]:
        """As `Model.advance`."""
        place = torch.tensor([[state.length]])
        x = self.embedding(ids, place)[:, 0]
        new, sentences, heads = state.add_rows(), len(state.pads), self.blocks[0].own.heads
        past = F.pad(state.past, (0, -new.stop % VECTOR), value=-torch.inf)
        past, pads = (
            part.view(sentences, 1, -1, part.shape[1]).expand(-1, heads, -1, -1).flatten(0, 1)
            for part in (past, state.pads)
        )
        step = Step(sentences, place, new, past, pads)
        for block, past_cache, source_cache in zip(
            self.blocks, state.own, state.memory, strict=True
        ):
            x = block(x, past_cache, source_cache, step)
        return self.norm(x)[:, None], state
