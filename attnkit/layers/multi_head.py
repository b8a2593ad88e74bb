"""Multi-head attention around a mechanism: project, mix in every head, merge, project back."""

from typing import Any, Self

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnkit import mechanisms
from attnkit.attention import Attention, Mask, Out, Scored, Shape, State, one_of
from attnkit.attention.cache import rows_of
from attnkit.errors import UsageError
from attnkit.layers.positions import Rotary
from attnkit.ops.onednn import Linear
from attnkit.recipe.score_options import LayerOptions, ScoreOptions, score_options


class MultiHead(nn.Module):
    """Project, mix by a mechanism in every head, merge the heads, project back.

    Only the projections that the mechanism uses exist; the others are None.
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
        output_gate: str | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.cross = mechanism.shape.heads, mechanism.shape.cross
        self.key_heads = mechanism.key_heads
        values = width // self.heads * self.key_heads
        sizes = {"q": width * mechanism.query_sets, "k": values * mechanism.key_sets, "v": values,
                 "g": self.heads * mechanism.gates}  # fmt: skip
        for name, size in sizes.items():
            used = name in mechanism.uses
            setattr(self, name, Linear(width, size, bias) if used else None)
        self.o = Linear(width, width, bias)
        gates = {"head": self.heads, "element": width}
        self.gate = None if output_gate is None else Linear(width, gates[output_gate], bias)
        self.mechanism = mechanism
        self.rotary = rotary
        self.q_norm = self.k_norm = None
        if isinstance(mechanism, Scored) and mechanism.modifiers.qk_norm:
            self.q_norm, self.k_norm = (nn.RMSNorm(width // self.heads, eps=1e-6) for _ in "qk")
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
        """A layer with the mechanism that a recipe calls `word`.

        `causal=True` says that it will hide the future, `False` that it will look both ways; a
        mechanism that cannot is refused.  `biases` are those of the projections.
        Raises UsageError for an unknown word or option (naming the nearest) and an impossible role.
        """
        if heads < 1 or width < 1 or width % heads:
            raise UsageError(f"heads must divide width, got width {width} and heads {heads}")
        options = mechanisms.checked_options(word, options)
        able = mechanisms.resolve_capabilities(word, options)
        for role, wanted, fits in (
            ("causal", causal, able.causal),
            ("an encoder", causal is False and not cross, able.encoder),
            ("cross attention", cross, able.cross),
        ):
            if wanted and not fits:
                raise UsageError(f"{word} cannot be {role}: {able.why}")
        schedule = mechanisms.layer_schedule(word, options)
        word, chosen = schedule[depth % len(schedule)]
        options = dict(chosen)
        gate = {name: options.pop(name) for name in LayerOptions._fields if name in options}
        output_gate = LayerOptions(**gate).output_gate
        if output_gate is not None:
            one_of(word, "output_gate", output_gate, "head", "element")
        shared = {name: options.pop(name) for name in ScoreOptions._fields if name in options}
        shape = Shape(heads, width // heads, max_length, cross, causal, depth)
        mechanism = mechanisms.create(word, shape, options)
        if isinstance(mechanism, Scored):
            mechanism.modifiers = score_options(shared, mechanism.uses)
        return cls(width, mechanism, rotary, biases, output_gate)

    def forward(
        self,
        x: Float[Tensor, "R T W"],
        mask: Mask,
        memory: Float[Tensor, "B S W"] | None = None,
        state: State = None,
        prior: Float[Tensor, "R H T S"] | None = None,
        bias: Float[Tensor, "b H T S"] | None = None,
        values: Float[Tensor, "B S W"] | None = None,
    ) -> Out:
        """Attend; Out.y is [R, T, W].

        In cross attention `memory` may be omitted once a state exists, and x may have K rows for
        each row of memory or state (beams): queries are folded, keys are never copied.  `values`,
        beside the memory, is what values are projected from instead of it.
        """
        rows = self._check(x, mask, memory, state)
        q, k, v = self._project(x, mask, memory, values)
        if not self.cross:
            gates = self._split(self.g, x, self.heads)
            out = self.mechanism(q, k, v, mask, state, prior, bias, gates)
            return Out(self.merged(out.y, x), out.state, out.scores)
        beams = x.shape[0] // max(1, rows)
        if not torch.is_grad_enabled():
            # later steps read them again and again: better whole than strided
            k, v = (part if part is None else part.contiguous() for part in (k, v))
        if beams > 1:
            q, prior = self._fold(q, beams), self._fold(prior, beams)
            mask = Mask.cross(mask.valid, beams * x.shape[1])
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
    ) -> Float[Tensor, "B H T S"]:
        """The matrix that multiplies the values in every head, as in evaluation."""
        self._check(x, mask, memory)
        q, k, v = self._project(x, mask, memory)
        if v is None:
            raise UsageError("weights of cross attention need the memory")
        gates = self._split(self.g, x, self.heads)
        return self.mechanism.weights(q, k, v, mask, prior, bias, gates)

    def _project(
        self, x: Tensor, mask: Mask, memory: Tensor | None, values: Tensor | None = None
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        """Queries of x; keys and values of x or of the memory (None: only the state has them).

        Slices of x, where the mechanism reads them, are the last heads of the queries.
        """
        source, mechanism = memory if self.cross else x, self.mechanism
        q = self._split(self.q, x, self.heads * mechanism.query_sets)
        k = self._split(self.k, source, self.key_heads * mechanism.key_sets)
        v = self._split(self.v, source if values is None else values, self.key_heads)
        if self.q_norm is not None and self.k_norm is not None:
            q, k = (part if part is None else norm(part)
                    for part, norm in ((q, self.q_norm), (k, self.k_norm)))  # fmt: skip
        if self.rotary is not None and q is not None and k is not None:
            parts = mechanism.rotary_parts
            q = self.rotary(q, mask.q_pos, parts)
            k = self.rotary(k, mask.k_pos[:, -x.shape[1] :], parts)
        if "x" in mechanism.uses:
            slices = torch.unflatten(x, -1, (self.heads, -1)).transpose(1, 2)  # [B, H, T, D]
            q = slices if q is None else torch.cat((q, slices), 1)
        return q, k, v

    @staticmethod
    def _split(layer: Linear | None, x: Tensor | None, heads: int) -> Tensor | None:
        if layer is None or x is None:
            return None
        return torch.unflatten(layer(x), -1, (heads, -1)).transpose(1, 2)  # [B, H, T, D]

    def merged(
        self, y: Float[Tensor, "B H T D"], x: Float[Tensor, "B T W"]
    ) -> Float[Tensor, "B T W"]:
        """The heads' answers to x, gated where the layer has an output gate, projected back."""
        y = y.transpose(1, 2)  # [B, T, H, D]
        if self.gate is not None:
            y = y * torch.unflatten(self.gate(x).sigmoid(), -1, (self.heads, -1)).to(y.dtype)
        projected: Tensor = self.o(y.flatten(2))
        return projected

    def _check(self, x: Tensor, mask: Mask, memory: Tensor | None, state: State = None) -> int:
        """Refuse a mask of other tokens: some mechanisms would read a part of it.

        Answers how many rows are attended to: those of x, or in cross attention of the memory.
        """
        if mask.causal and not self.mechanism.causal and not self.cross:
            kind = type(self.mechanism).__name__
            raise UsageError(f"{kind} cannot be causal: {self.mechanism.why}")
        if not mask.causal and not self.mechanism.encoder and not self.cross:
            kind = type(self.mechanism).__name__
            raise UsageError(f"{kind} needs a causal mask: {self.mechanism.why}")
        if memory is not None and not self.cross:
            raise ValueError("memory is for layers of cross attention: build with cross=True")
        if memory is None and self.cross and state is None:
            raise ValueError("cross attention needs a memory, or the state of a call that had one")
        (of_mask, keys), queries = mask.valid.shape, mask.q_pos.shape[1]
        if queries != x.shape[1]:
            raise ValueError(f"the mask is for {queries} queries, but x has {x.shape[1]} tokens")
        source = memory if self.cross else x if state is None else None
        if source is not None and keys != source.shape[1]:
            raise ValueError(f"the mask is for {keys} keys, but there are {source.shape[1]}")
        rows = x.shape[0]
        if self.cross:
            rows = rows_of(state) if memory is None else memory.shape[0]
        if of_mask not in (1, rows) or x.shape[0] % max(1, rows):
            more = f" and the memory {rows}" if self.cross else ""
            raise ValueError(f"the mask is for {of_mask} rows, but x has {x.shape[0]}{more}")
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
