"""Multi-head attention around a mechanism: project, mix in every head, merge, project back.

Dimension letters as in `attention.base`, with W for the model width, and R for the rows of x: B, or B K in cross
attention with K beams per row of the memory.
"""

from typing import Any, NamedTuple, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit import mechanisms
from attnkit.attention import Attention, Mask, Out, Scored, Shape, State, real_keys
from attnkit.attention.cache import batch_size
from attnkit.errors import UsageError
from attnkit.layers.positions import Rotary
from attnkit.layers.short_convolution import ShortConvolution
from attnkit.ops.grouped_heads import repeat_heads
from attnkit.ops.onednn import Linear
from attnkit.recipe.score_options import LayerOptions, ScoreOptions, score_options


class Projected(NamedTuple):
    """Queries, keys, values and gates of a call, and the tokens that short convolutions keep."""

    q: Float[Tensor, "R H T D"] | None
    k: Float[Tensor, "B H S D"] | None
    v: Float[Tensor, "B H S D"] | None
    gates: Float[Tensor, "R H T n"] | None
    kept: State


class MultiHead(nn.Module):
    """Multi-head attention: projections, a mechanism in every head, and the output projection.

    Projections that the mechanism does not use are None. `build` creates a layer from a recipe word.
    """

    q: Linear | None
    k: Linear | None
    v: Linear | None
    g: Linear | None

    def __init__(
        self,
        width: int,
        mechanism: Attention,
        rotary: Rotary | None = None,
        bias: bool = True,
        options: LayerOptions = LayerOptions(),  # noqa: B008 (immutable)
    ) -> None:
        super().__init__()
        self.heads, self.cross = mechanism.shape.heads, mechanism.shape.cross
        self.key_heads = mechanism.key_heads
        head_width, depth = width // self.heads, mechanism.shape.depth
        key_width = head_width * self.key_heads
        sizes = {
            "q": width * mechanism.query_sets,
            "k": key_width * mechanism.key_sets,
            "v": key_width * mechanism.value_sets,
            "g": self.heads * mechanism.gates,
        }
        for name, size in sizes.items():
            used = name in mechanism.uses
            setattr(self, name, Linear(width, size, bias) if used else None)
        self.o = Linear(width, width, bias)
        gates = {"head": self.heads, "element": width}
        gate = options.output_gate
        self.gate = None if gate is None else Linear(width, gates[gate], bias)
        self.mechanism = mechanism
        self.rotary = rotary
        self.q_norm = self.k_norm = None
        if isinstance(mechanism, Scored) and mechanism.modifiers.qk_norm:
            self.q_norm, self.k_norm = (nn.RMSNorm(head_width, eps=1e-6) for _ in "qk")
        self.output_norm = None if options.output_norm is None else nn.RMSNorm(head_width, eps=1e-5)
        self.convolutions = nn.ModuleDict(
            {
                name: ShortConvolution(sizes[name], options.short_conv)
                for name in "qkv"
                if name in mechanism.uses and options.short_conv
            }
        )
        # initialized to 0, which is the layer without them
        self.exclusion = self.value_gate = None
        if options.exclusive:
            self.exclusion = nn.Parameter(torch.zeros(self.heads))
        if options.value_residual and depth > 0:
            self.value_gate = nn.Parameter(torch.zeros(self.key_heads * mechanism.value_sets))
        for layer in (self.q, self.k, self.v, self.g, self.gate, self.o):
            if layer is not None:
                nn.init.xavier_uniform_(layer.weight)
                if bias:
                    nn.init.zeros_(layer.bias)

    @classmethod
    def build(
        cls,
        word: str,
        width: int,
        heads: int,
        max_length: int,
        cross: bool = False,
        depth: int = 0,
        causal: bool | None = None,
        *,
        rotary: Rotary | None = None,
        biases: bool = True,
        **options: Any,
    ) -> Self:
        """Return a layer with the mechanism that a recipe calls `word`.

        Args:
            causal: True if the layer will hide the future, False if it will attend in both directions; None: unknown.
            biases: Whether the projections have biases.
            options: Options of the mechanism and of the layer, as in a recipe.

        Raises:
            UsageError: If heads do not divide width, the word or an option is unknown (the nearest is named), or the
                mechanism cannot have this role.
        """
        if heads < 1 or width < 1 or width % heads:
            raise UsageError(f"heads must divide width, got width {width} and heads {heads}")
        options = mechanisms.checked_options(word, options)
        capabilities = mechanisms.resolve_capabilities(word, options)
        for role, wanted, supported in (
            ("causal", causal, capabilities.causal),
            ("an encoder", causal is False and not cross, capabilities.encoder),
            ("cross attention", cross, capabilities.cross),
        ):
            if wanted and not supported:
                raise UsageError(f"{word} cannot be {role}: {capabilities.why}")
        schedule = mechanisms.layer_schedule(word, options)
        word, part_options = schedule[depth % len(schedule)]
        options = dict(part_options)
        layer_options = LayerOptions(**{name: options.pop(name) for name in LayerOptions._fields if name in options})
        score_values = {name: options.pop(name) for name in ScoreOptions._fields if name in options}
        shape = Shape(heads, width // heads, max_length, cross, causal, depth)
        mechanism = mechanisms.create(word, shape, options)
        if isinstance(mechanism, Scored):
            mechanism.modifiers = score_options(score_values, mechanism.uses)
        if layer_options.short_conv:
            mechanism.by_distance = True  # type: ignore[misc]  # it reads the tokens before
        return cls(width, mechanism, rotary, biases, layer_options)

    @property
    def plain(self) -> bool:
        """Whether there is nothing but projections around the mechanism."""
        parts = (self.gate, self.q_norm, self.output_norm, self.exclusion, self.value_gate)
        return not self.convolutions and all(part is None for part in parts)

    def forward(
        self,
        x: Float[Tensor, "R T W"],
        mask: Mask,
        memory: Float[Tensor, "B S W"] | None = None,
        state: State = None,
        prior: Float[Tensor, "R H T S"] | None = None,
        bias: Float[Tensor, "b H T S"] | None = None,
        values: Float[Tensor, "B S W"] | None = None,
        first: Float[Tensor, "R H T D"] | None = None,
    ) -> Out:
        """Return the output, with y [R, T, W], and the new state.

        Args:
            memory: Sequence that cross attention attends to; may be omitted once a state exists. x may have K rows
                (beams) for each row of memory or state: queries are folded, keys are never copied.
            values: Sequence from which values are projected in place of the memory.
            first: Values of the first layer of self-attention, for the option `value_residual`.

        Raises:
            ValueError: If the mask does not fit the tokens, or the memory is missing or not expected.
            UsageError: If the mechanism does not support the mask.
        """
        rows = self._check(x, mask, memory, state)
        kept = None
        if self.convolutions and state is not None:
            state, kept = state
        q, k, v, gates, kept = self.project(x, mask, memory, values, kept, first)
        if not self.cross:
            out = self.mechanism(q, k, v, mask, state, prior, bias, gates)
            state = (out.state, kept) if self.convolutions else out.state
            first_values = v if self.mechanism.shape.depth == 0 else None  # for value_residual
            return Out(self.merged(out.y, x, v), state, out.scores, first_values)
        beams = x.shape[0] // max(1, rows)
        if not torch.is_grad_enabled():
            # every later step reads them: contiguous is faster than strided
            k, v = (part if part is None else part.contiguous() for part in (k, v))
        if beams > 1:
            q, prior = self._fold(q, beams), self._fold(prior, beams)
            mask = Mask.cross(mask.valid, beams * x.shape[1])  # the beams of a row become its queries
        out = self.mechanism(q, k, v, mask, state, prior, bias)
        if beams == 1:
            return Out(self.merged(out.y, x), out.state, out.scores)
        y, scores = self._unfold(out.y, beams), out.scores
        scores = None if scores is None else self._unfold(scores, beams)
        return Out(self.merged(y, x), out.state, scores)

    def weights(
        self,
        x: Float[Tensor, "B T W"],
        mask: Mask,
        memory: Float[Tensor, "B S W"] | None = None,
        prior: Float[Tensor, "B H T S"] | None = None,
        bias: Float[Tensor, "b H T S"] | None = None,
        first: Float[Tensor, "R H T D"] | None = None,
    ) -> Float[Tensor, "B H T S"]:
        """Return the matrix that multiplies the values in every head, in evaluation mode."""
        self._check(x, mask, memory)
        q, k, v, gates, _ = self.project(x, mask, memory, first=first)
        if v is None:
            raise UsageError("the weights of cross attention need memory")
        return self.mechanism.weights(q, k, v, mask, prior, bias, gates)

    def project(
        self,
        x: Tensor,
        mask: Mask,
        memory: Tensor | None = None,
        values: Tensor | None = None,
        kept: State = None,
        first: Tensor | None = None,
    ) -> Projected:
        """Project queries from x, and keys and values from x or the memory (None if only the state has them).

        Slices of x, if the mechanism reads them, are the last heads of the queries. `kept` are the tokens that the
        short convolutions kept from the previous call.
        """
        source, mechanism = memory if self.cross else x, self.mechanism
        projected = {}
        for name, inputs in (("q", x), ("k", source), ("v", source if values is None else values)):
            layer = getattr(self, name)
            projected[name] = None if layer is None or inputs is None else layer(inputs)
        real = real_keys(mask, x[:, None]) if self.convolutions else None  # x as keys: [R, 1, T, W]
        kept, ends = kept or (None,) * len(self.convolutions), []
        for (name, convolution), before in zip(self.convolutions.items(), kept, strict=True):
            projected[name], end = convolution(projected[name], real, before)
            ends.append(end)
        q = self._split(projected["q"], self.heads * mechanism.query_sets)
        k = self._split(projected["k"], self.key_heads * mechanism.key_sets)
        v = self._split(projected["v"], self.key_heads * mechanism.value_sets)
        if self.value_gate is not None and v is not None:
            if first is None or first.shape[1] != v.shape[1]:
                raise UsageError(
                    "value_residual: the first layer must return values with the same number of heads as this "
                    "layer; use the same mechanism in all layers"
                )
            v = v + self.value_gate.to(v.dtype)[:, None, None] * first
        if self.q_norm is not None and self.k_norm is not None:
            q, k = (part if part is None else norm(part) for part, norm in ((q, self.q_norm), (k, self.k_norm)))
        if self.rotary is not None and q is not None and k is not None:
            parts = mechanism.rotary_parts
            q = self.rotary(q, mask.q_pos, parts)
            k = self.rotary(k, mask.k_pos[:, -x.shape[1] :], parts)  # cached keys are rotated already
        if "x" in mechanism.uses:
            slices = torch.unflatten(x, -1, (self.heads, -1)).transpose(1, 2)  # [B, H, T, D]
            q = slices if q is None else torch.cat((q, slices), 1)
        gates = None if self.g is None or self.cross else self._split(self.g(x), self.heads)
        return Projected(q, k, v, gates, tuple(ends))

    @staticmethod
    def _split(x: Tensor | None, heads: int) -> Tensor | None:
        if x is None:
            return None
        return torch.unflatten(x, -1, (heads, -1)).transpose(1, 2)  # [B, H, T, D]

    def merged(
        self, y: Float[Tensor, "B H T D"], x: Float[Tensor, "B T W"], v: Float[Tensor, "B H T D"] | None = None
    ) -> Float[Tensor, "B T W"]:
        """Apply the layer options to the outputs of the heads and project back; `v` is for the option `exclusive`."""
        if self.exclusion is not None and v is not None:
            v = repeat_heads(v[:, -self.key_heads :], self.heads)
            unit = F.normalize(v, dim=-1)
            along = (y * unit).sum(-1, keepdim=True) * self.exclusion.tanh()[:, None, None]
            y = y - (along * unit).to(y.dtype)
        y = y.transpose(1, 2)  # [B, T, H, D]
        if self.output_norm is not None:
            y = self.output_norm(y)
        if self.gate is not None:
            y = y * torch.unflatten(self.gate(x).sigmoid(), -1, (self.heads, -1)).to(y.dtype)
        projected: Tensor = self.o(y.flatten(2))
        return projected

    def _check(self, x: Tensor, mask: Mask, memory: Tensor | None, state: State = None) -> int:
        """Raise unless the mask fits x and the memory: some mechanisms would silently read part of it.

        Returns the number of rows attended to: of x, or in cross attention of the memory.
        """
        name = type(self.mechanism).__name__
        if mask.causal and not self.mechanism.causal and not self.cross:
            raise UsageError(f"{name} cannot be causal: {self.mechanism.why}")
        if not mask.causal and not self.mechanism.encoder and not self.cross:
            raise UsageError(f"{name} needs a causal mask: {self.mechanism.why}")
        if memory is not None and not self.cross:
            raise ValueError("memory is for cross attention: build the layer with cross=True")
        if memory is None and self.cross and state is None:
            raise ValueError("cross attention needs a memory, or the state of a call that had one")
        (mask_rows, keys), queries = mask.valid.shape, mask.q_pos.shape[1]
        if queries != x.shape[1]:
            raise ValueError(f"the mask is for {queries} queries, but x has {x.shape[1]} tokens")
        source = memory if self.cross else x if state is None else None
        if source is not None and keys != source.shape[1]:
            raise ValueError(f"the mask is for {keys} keys, but there are {source.shape[1]} keys")
        rows = x.shape[0]
        if self.cross:
            rows = batch_size(state) if memory is None else memory.shape[0]
        if mask_rows not in (1, rows) or x.shape[0] % max(1, rows):
            suffix = f" and the memory {rows}" if self.cross else ""
            raise ValueError(f"the mask is for {mask_rows} rows, but x has {x.shape[0]}{suffix}")
        return rows

    @staticmethod
    def _fold(x: Tensor | None, beams: int) -> Tensor | None:
        """[B K, H, T, D] -> [B, H, K T, D]."""
        if x is None:
            return None
        return torch.unflatten(x, 0, (-1, beams)).transpose(1, 2).flatten(2, 3)

    @staticmethod
    def _unfold(x: Tensor, beams: int) -> Tensor:
        """[B, H, K T, D] -> [B K, H, T, D]."""
        return torch.unflatten(x, 2, (beams, -1)).transpose(1, 2).flatten(0, 1)
