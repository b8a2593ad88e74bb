"""Hugging Face models as readers, by the public interface of transformers only.

Rows of causal models are padded on the left and positions given, so that a row reads as it does
alone.  Text that rows share is read once where a model allows padding behind it too: not where
attention depends on columns, as in a sliding window or MPT's ALiBi; such models read whole rows.
"""

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnkit.attention import Attention
from attnkit.errors import AttnkitError, UsageError, out_of_memory
from attnkit.huggingface import Pretrained, quiet
from attnkit.huggingface.opening import one_line
from attnkit.huggingface.quiet import transformers
from attnkit.nbce.reader import CausalReader, PromptRow, SourceReader, gathered, visible_columns
from attnkit.nbce.templated_reader import TemplatedReader
from attnkit.recipe.capability import window_obstacle

GROWING = ("DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer")
"""Layers of a cache that are a list of keys and values; others keep sums, or more than that."""
FROM_MASK = ("bloom",)
"""Models that take no positions but count them in the mask, pads aside."""
SPANS = ("sliding_window", "window_size", "local_attention", "attention_chunk_size")
"""Settings of attention to the last columns only."""
HOLE = 64
"""Pads between two tokens of the trial, at most."""
NEAR = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Largest difference of logits that are the same, in standard deviations of theirs."""
NEAR_HALF = 0.3


class CachedRows(NamedTuple):
    """The rows that were read."""

    cache: Any
    """A DynamicCache; its layers may be shared, and so are never changed in place."""
    valid: Bool[Tensor, "R S"]
    """False on pads, and on what is hidden from further tokens."""
    last: Int[Tensor, " R"]
    """Position of the last token; -1 before the first."""


class HuggingFaceReader(TemplatedReader, CausalReader):
    """A causal model of transformers."""

    def __init__(self, opened: Pretrained, *, chat: bool = False, template: str = "") -> None:
        """Try out how the model reads padded rows.

        Raises:
            UsageError: it is no causal model, has a memory that cannot be divided by rows, or reads
                padded rows otherwise than single ones; or the template does not fit.
        """
        if opened.shape != "decoder":
            raise UsageError(
                f"{opened.name}: a model of shape {opened.shape} continues no text: use a causal "
                "language model or an encoder-decoder"
            )
        super().__init__(opened, chat=chat, template=template)
        self.limit, self.kind = _limit(opened), f"a {self.model.config.model_type} model"
        known = inspect.signature(self.model.forward).parameters
        self.takes = {"position_ids", "logits_to_keep"} & set(known)
        if "past_key_values" not in known:
            raise UsageError(
                f"{self.name}: {self.kind} takes no key-value cache, which reading needs: "
                "use another model"
            )
        layers = self.empty(1).cache.layers
        other = sorted({type(layer).__name__ for layer in layers} - set(GROWING))
        if other or not layers:
            what = f" ({', '.join(other)})" if other else ""
            raise UsageError(
                f"{self.name}: {self.kind} keeps a running state of what it has read"
                f"{what}, which includes padding and cannot be split by rows: use a model whose "
                "layers all attend to cached keys and values"
            )
        try:
            self.size, self.shares, self.window_refusal = self._try_padding()
        except Exception as error:
            if isinstance(error, AttnkitError) or out_of_memory(error):
                raise
            raise UsageError(
                f"{self.name}: {self.kind} cannot read several rows at once: {one_line(error)}"
            ) from error
        self.ends = self.end_ids(self.size)

    def begin(self, rows: Sequence[PromptRow]) -> CachedRows:
        """See `CausalReader.begin`; whole rows where padding may only be at the start."""
        if self.shares or any(row.beside for row in rows):
            return super().begin(rows)  # type: ignore[no-any-return]
        whole = [(*row.head, *row.tail[:-1]) for row in rows]
        index = {ids: place for place, ids in enumerate(dict.fromkeys(whole))}
        state = self._append(list(index), self.empty(len(index)))
        return self.select(state, self._indices(index[ids] for ids in whole))

    def empty(self, rows: int) -> CachedRows:
        cache = transformers().DynamicCache(config=self.model.config)
        nothing = torch.zeros((rows, 0), dtype=torch.bool, device=self.device)
        return CachedRows(cache, nothing, torch.full((rows,), -1, device=self.device))

    def read(
        self, ids: Int[Tensor, "R t"], real: Bool[Tensor, "R t"], state: CachedRows
    ) -> CachedRows:
        return self._forward(ids, real, state)[1]

    def step(
        self, ids: Int[Tensor, "R 1"], state: CachedRows
    ) -> tuple[Float[Tensor, "R V"], CachedRows]:
        return self._forward(ids, torch.ones_like(ids, dtype=torch.bool), state)

    def select(
        self, state: CachedRows, rows: Int[Tensor, " R"], begun: Int[Tensor, " b"] | None = None
    ) -> CachedRows:
        count = len(state.valid)
        if len(rows) == count and torch.equal(rows, torch.arange(count, device=rows.device)):
            return state
        cache = _copied(state.cache)
        cache.batch_select_indices(rows)
        return CachedRows(cache, state.valid[rows], state.last[rows])

    def join(self, parts: Sequence[CachedRows]) -> CachedRows:
        caches, valid, last = zip(*parts, strict=True)
        return CachedRows(_changed(caches, torch.cat), torch.cat(valid), torch.cat(last))

    def gather(self, state: CachedRows, windows: int, once: Sequence[int]) -> CachedRows:
        positions = state.valid.long().cumsum(1) - 1
        valid, columns = visible_columns(state.valid, positions, windows, once)
        cache = state.cache
        if state.valid.shape[1]:
            cache = _changed([cache], lambda some: gathered(some[0], windows, columns))
        return CachedRows(cache, valid, state.last.view(len(once), -1).amax(1))

    def _forward(
        self, ids: Int[Tensor, "R t"], real: Bool[Tensor, "R t"], state: CachedRows, shift: int = 0
    ) -> tuple[Float[Tensor, "R V"], CachedRows]:
        """Logits behind the last column.  `shift` is added to positions."""
        valid = torch.cat((state.valid, real), 1)
        places = state.last[:, None] + real.long().cumsum(1)
        positions = (places + shift).masked_fill(~real, 0)
        given = {"position_ids": positions, "logits_to_keep": 1}
        with torch.no_grad(), quiet():
            out = self.model(
                input_ids=ids,
                attention_mask=valid.long(),
                past_key_values=_copied(state.cache),
                use_cache=True,
                **{name: value for name, value in given.items() if name in self.takes},
            )
        return out.logits[:, -1], CachedRows(out.past_key_values, valid, places[:, -1])

    def _try_padding(self) -> tuple[int, bool, str]:
        """Size of the vocabulary; whether pads behind tokens do no harm; `window_refusal`.

        Raises:
            UsageError: pads before tokens change what the model says.
        """
        size = self.model.get_input_embeddings().weight.shape[0]
        limit = self.limit if self.limit is not None else 2 * HOLE
        count = max(2, min(8, limit // 4))
        ids = (torch.arange(2 * count, device=self.device).view(2, count) * 37 + 5) % size
        real = torch.ones_like(ids, dtype=torch.bool)
        alone = self._forward(ids, real, self.empty(2))[0]
        near = NEAR.get(alone.dtype, NEAR_HALF) * float(alone.double().std(unbiased=False))

        def same(other: Tensor) -> bool:
            return float((alone[0] - other[0]).abs().double().max()) <= near

        wide = max(1, min(HOLE, limit // 2))
        pads = torch.zeros((2, wide), dtype=torch.long, device=self.device)
        hole = torch.tensor([[False], [True]], device=self.device).expand(2, wide)
        first, last, empty = ids[:, :-1], ids[:, -1:], self.empty(2)
        before = torch.cat((hole, real[:, 1:]), 1)
        state = self.read(torch.cat((pads, first), 1), before, empty)
        if not same(self.step(last, state)[0]):
            raise UsageError(
                f"{self.name}: {self.kind} gives a row other logits with padding before it, "
                "so contexts of different lengths cannot be read side by side"
            )
        config = self.model.config.get_text_config()  # the trial may be too short to show a window
        if any(empty.cache.is_sliding) or any(getattr(config, name, None) for name in SPANS):
            return alone.shape[1], False, "its attention has a sliding window, which counts columns"
        started = self.read(first, real[:, 1:], empty)
        counts = "position_ids" in self.takes or self.model.config.model_type in FROM_MASK
        if not counts or not same(self.step(last, self.read(pads, hole, started))[0]):
            return alone.shape[1], False, "its attention depends on the distance of columns"
        parts = (part for part in self.model.modules() if isinstance(part, Attention))
        if any(part.by_distance for part in parts):  # of a converted model; its cache keeps keys
            return alone.shape[1], True, window_obstacle("", by_distance=True)
        ones = real[:, -1:]
        here, moved = (self._forward(last, ones, started, shift=by)[0] for by in (0, count))
        why = "its positions cannot be set: it counts the tokens that it sees"
        return alone.shape[1], True, why if torch.equal(here, moved) else ""


class EncodedSources(NamedTuple):
    """The sources that were read, and the outputs so far."""

    hidden: Float[Tensor, "R S D"]
    """The encoder's last hidden states."""
    valid: Bool[Tensor, "R S"]
    """False on pads."""
    cache: Any
    """An EncoderDecoderCache; its layers may be shared."""


class HuggingFaceEncoderDecoder(TemplatedReader, SourceReader):
    """An encoder-decoder of transformers."""

    def __init__(self, opened: Pretrained, *, chat: bool = False, template: str = "") -> None:
        """Find out how outputs start and end.

        Raises:
            UsageError: a chat template is asked for, or the template lacks a part.
        """
        if chat:
            raise UsageError(f"{opened.name}: an encoder-decoder takes no chat template (--chat)")
        super().__init__(opened, chat=False, template=template)
        self.limit = self.source_limit = opened.limit
        self.size = self.model.get_output_embeddings().weight.shape[0]
        self.ends = self.end_ids(self.size)
        settings, config = self.model.generation_config, self.model.config
        starts = (getattr(one, "decoder_start_token_id", None) for one in (settings, config))
        start = next((one for one in starts if one is not None), None)
        if start is None:
            raise UsageError(f"{self.name}: no decoder_start_token_id: it cannot start an output")
        forced = settings.forced_bos_token_id
        self.output_start = (start,) if forced is None else (start, forced)

    def row(self, context: str, prompt: str) -> PromptRow:
        """See `ContextReader.row`: the template is the source, with the usual special tokens."""
        if not prompt.strip():
            return PromptRow((), self.output_start)
        ids = self.tokenizer("".join(self.texts(context, prompt)))["input_ids"]
        return PromptRow(tuple(int(id_) for id_ in ids), self.output_start)

    def start(self, ids: Int[Tensor, "R S"], real: Bool[Tensor, "R S"]) -> EncodedSources:
        library = transformers()
        with torch.no_grad(), quiet():
            hidden = self.model.get_encoder()(input_ids=ids, attention_mask=real.long())[0]
        cache = library.EncoderDecoderCache(library.DynamicCache(), library.DynamicCache())
        return EncodedSources(hidden, real, cache)

    def step(
        self, ids: Int[Tensor, "R 1"], state: EncodedSources
    ) -> tuple[Float[Tensor, "R V"], EncodedSources]:
        with torch.no_grad(), quiet():
            out = self.model(
                decoder_input_ids=ids,
                encoder_outputs=(state.hidden,),
                attention_mask=state.valid.long(),
                past_key_values=_copied(state.cache),
                use_cache=True,
            )
        return out.logits[:, -1], state._replace(cache=out.past_key_values)

    def select(
        self,
        state: EncodedSources,
        rows: Int[Tensor, " R"],
        begun: Int[Tensor, " b"] | None = None,
    ) -> EncodedSources:
        cache = _copied(state.cache)
        cache.batch_select_indices(rows)
        return EncodedSources(state.hidden[rows], state.valid[rows], cache)

    def join(self, parts: Sequence[EncodedSources]) -> EncodedSources:
        """See `ContextReader.join`, before the first step."""
        hidden, valid, caches = zip(*parts, strict=True)
        return EncodedSources(torch.cat(hidden), torch.cat(valid), caches[0])


def _limit(opened: Pretrained) -> int | None:
    """Most tokens of a row; frequencies that change behind a length would change for all rows."""
    config = opened.model.config.get_text_config()
    rotary = getattr(config, "rope_parameters", None) or {}
    key, first = "original_max_position_embeddings", None
    if rotary.get("rope_type") == "longrope":
        first = rotary.get(key) or getattr(config, key, None)
    return min(
        (limit for limit in (opened.limit, first or None) if limit is not None), default=None
    )


def _copied(cache: Any) -> Any:
    """A cache of its own with the same tensors, which transformers replaces and never writes to."""
    new = copy.copy(cache)
    if hasattr(cache, "is_updated"):  # an EncoderDecoderCache: one for each side
        new.self_attention_cache = _copied(cache.self_attention_cache)
        new.cross_attention_cache = _copied(cache.cross_attention_cache)
        new.is_updated = dict(cache.is_updated)
    else:
        new.layers = [copy.copy(layer) for layer in cache.layers]
    return new


def _changed(caches: Sequence[Any], change: Callable[[list[Tensor]], Tensor]) -> Any:
    """A cache whose keys and values are made of those of others, [R, H, S, D] each."""
    new = _copied(caches[0])
    for place, layer in enumerate(new.layers):
        if getattr(layer, "keys", None) is not None:
            layer.keys = change([cache.layers[place].keys for cache in caches])
            layer.values = change([cache.layers[place].values for cache in caches])
    return new
