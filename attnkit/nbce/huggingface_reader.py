"""Readers for Hugging Face models; only the public API of transformers is used.

Rows of causal models are padded on the left and have explicit position ids, so that each row gives the same logits as
alone. Prefixes that rows share are computed once if the model also allows padding after them. It does not if attention
depends on columns, as with sliding windows or MPT's ALiBi; such models read whole rows.
"""

import inspect
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnkit.attention import Attention
from attnkit.errors import AttnkitError, DataError, UsageError, out_of_memory
from attnkit.huggingface import Pretrained, quiet
from attnkit.huggingface.opening import error_line
from attnkit.huggingface.quiet import transformers
from attnkit.models.base import CachePositions, Decode
from attnkit.nbce.reader import CausalReader, ContextReader, PromptRow, Real, SourceReader, copy_cache, map_states
from attnkit.recipe.capability import window_issue

TEMPLATE = "{context}\n\n{prompt}"
"""Default template; without a context, only the part after it is used."""
CHAT_TEMPLATE = "{context}\n\nQuestion: {prompt}\nAnswer in a few words:"
"""Default template of the user message in a chat; it asks for brevity, since chat models answer in paragraphs."""
KEY_VALUE_LAYERS = ("DynamicLayer", "DynamicSlidingWindowLayer", "DummyLayer")
"""Classes of cache layers that hold only keys and values of tokens; others have a recurrent state."""
FROM_MASK = ("bloom",)
"""Model types that derive positions from the attention mask, without counting pads."""
WINDOW_KEYS = ("sliding_window", "window_size", "local_attention", "attention_chunk_size")
"""Config keys of attention restricted to the last columns."""
MAX_PADS = 64
"""Maximum number of pads between two tokens in `_try_padding`."""
TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-6}
"""Tolerance for equal logits, in standard deviations of the logits; for half precision `HALF_TOLERANCE`."""
HALF_TOLERANCE = 0.3


class TemplatedReader(ContextReader):
    """Base class for models of transformers: a template joins context and prompt."""

    id_offset = 4

    def __init__(self, opened: Pretrained, *, chat: bool, template: str) -> None:
        """Parse the template, and determine the tokens that the tokenizer puts before every text.

        Args:
            chat: use context and prompt as the user message of the model's chat template.
            template: text with {context} and, after it, {prompt}; "": `TEMPLATE`, or `CHAT_TEMPLATE` in a chat.

        Raises:
            UsageError: The model has no chat template, or `template` lacks a part.
        """
        self.model, self.tokenizer = opened.model, opened.tokenizer
        self.name, self.chat = opened.name, chat
        if chat and not getattr(self.tokenizer, "chat_template", None):
            raise UsageError(f"{self.name} has no chat template; remove --chat")
        self.template = template or (CHAT_TEMPLATE if chat else TEMPLATE)
        parts = self.template.split("{context}")
        if len(parts) != 2 or "{prompt}" not in parts[1] or "{prompt}" in parts[0]:
            raise UsageError(
                "a template needs {context} once, and {prompt} after {context}, as in "
                r"'{context}\n\n{prompt}'"
            )
        self.prefix, rest = parts
        self.suffix = rest.lstrip()
        self.separator = rest[: len(rest) - len(self.suffix)]
        added = getattr(self.tokenizer, "added_tokens_decoder", {}).values()
        special = {str(token) for token in added if token.special} | {*self.tokenizer.all_special_tokens}
        self.special_tokens = tuple(sorted(token for token in special if len(token) > 1))
        bare, full = self.encode("a"), [int(id_) for id_ in self.tokenizer("a")["input_ids"]]
        offsets = range(len(full) - len(bare) + 1)
        start = next((i for i in offsets if full[i : i + len(bare)] == bare), 0)
        self.begin_ids = () if chat else tuple(full[:start])

    def end_ids(self, size: int) -> frozenset[int]:
        """Return the end tokens of the generation config, otherwise of the tokenizer, that are below `size`."""
        ends = self.model.generation_config.eos_token_id if self.model.can_generate() else None
        if ends is None:
            ends = self.tokenizer.eos_token_id
        ids = ends if isinstance(ends, list | tuple) else [ends]
        return frozenset(int(id_) for id_ in ids if id_ is not None and 0 <= id_ < size)

    def encode(self, text: str) -> list[int]:
        return [int(id_) for id_ in self.tokenizer(text, add_special_tokens=False)["input_ids"]]

    def decode(self, ids: Sequence[int]) -> str:
        """See `ContextReader.decode`; special tokens are skipped."""
        text: str = self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def select(self, state: Decode, rows: Int[Tensor, " R"], begun: Int[Tensor, " b"] | None = None) -> Decode:
        cached = state.moving[-1]
        count = len(cached.valid if isinstance(cached, CachePositions) else cached)
        if len(rows) == count and torch.equal(rows, torch.arange(count, device=rows.device)):
            return state
        return Decode(map_states(lambda tensors: tensors[0][rows], state.moving), ())

    def texts(self, context: str, prompt: str) -> tuple[str, str]:
        """Fill the template; returns the text up to the end of the context, and the text that all rows share."""
        head = f"{self.prefix}{self._escape(context)}{self.separator}" if context else ""
        tail = self.suffix.replace("{prompt}", self._escape(prompt))
        if not self.chat:
            return head, tail
        message = [{"role": "user", "content": head + tail}]
        try:
            text: str = self.tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        except Exception as error:  # the template is a program that comes with the model
            raise DataError(f"{self.name}: the chat template fails: {error_line(error)}; remove --chat") from error
        start = text.rfind(tail.strip())
        if start < 0:
            raise UsageError("the chat template changes the prompt; remove --chat")
        return text[:start], text[start:]

    def row(self, context: str, prompt: str) -> PromptRow:
        if not prompt.strip():
            return PromptRow((), ())
        head, tail = self.texts(context, prompt)
        ids = self._encode_after("\n\n", tail)
        return PromptRow((*self.begin_ids, *self.encode(head)), tuple(ids))

    def _encode_after(self, lead: str, text: str) -> list[int]:
        """Encode a text as the continuation of `lead`, since some tokenizers mark the start of a text."""
        prefix, ids = self.encode(lead), self.encode(lead + text)
        if ids[: len(prefix)] == prefix and len(ids) > len(prefix):
            return ids[len(prefix) :]
        return self.encode(text.removeprefix(" "))

    def _escape(self, text: str) -> str:
        """Break up spellings of special tokens, with which a context could end the user's turn and fake another."""
        for token in self.special_tokens:
            text = text.replace(token, f"{token[0]} {token[1:]}")
        return text


class HuggingFaceReader(TemplatedReader, CausalReader):
    """A causal model of transformers."""

    def __init__(self, opened: Pretrained, *, chat: bool = False, template: str = "") -> None:
        """Test how the model handles padded rows.

        Raises UsageError if the model is not causal, its cache cannot be split by rows, or padding changes its logits.
        """
        if opened.shape != "decoder":
            raise UsageError(
                f"{opened.name}: a model of shape {opened.shape} cannot generate text: use a causal language "
                "model or an encoder-decoder"
            )
        super().__init__(opened, chat=chat, template=template)
        self.limit, self.kind = _limit(opened), f"a {self.model.config.model_type} model"
        parameters = inspect.signature(self.model.forward).parameters
        self.optional_arguments = {"position_ids", "logits_to_keep"} & set(parameters)
        layers = self.empty(1).moving[0].layers if "past_key_values" in parameters else []
        if not layers or {type(layer).__name__ for layer in layers} - {*KEY_VALUE_LAYERS}:
            raise UsageError(
                f"{self.name}: {self.kind} keeps a recurrent state, which includes padding and cannot be "
                "split by rows: use a model with a key-value cache in all layers"
            )
        try:
            self.size, self.shares_prefixes, self.window_refusal = self._try_padding()
        except Exception as error:
            if isinstance(error, AttnkitError) or out_of_memory(error):
                raise
            raise UsageError(
                f"{self.name}: {self.kind} cannot read a batch of several rows: {error_line(error)}"
            ) from error
        self.ends = self.end_ids(self.size)
        self.scores_prompts = self.shares_prefixes

    def encode_answer(self, text: str) -> list[int]:
        """See `ContextReader.encode_answer`; the answer follows a space, in a chat a line break."""
        if self.chat:
            return self._encode_after("\n", text)
        return self._encode_after("a", f" {text}")

    def empty(self, rows: int) -> Decode:
        valid = torch.zeros((rows, 0), dtype=torch.bool, device=self.device)
        cache = transformers().DynamicCache(config=self.model.config)
        return Decode((cache, CachePositions(valid, valid.long())), ())

    def advance(
        self, ids: Int[Tensor, "R t"], state: Decode, real: Real = None, all_tokens: bool = False, shift: int = 0
    ) -> tuple[Float[Tensor, "R n V"], Decode]:
        """See `ContextReader.advance`; `shift` is added to the position ids."""
        real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
        cache, cached = state.moving
        cached = cached.add(real) if cached.valid.shape[1] else CachePositions.of(real)
        positions = (cached.positions[:, -ids.shape[1] :] + shift).masked_fill(~real, 0)
        optional = {"position_ids": positions, "logits_to_keep": 0 if all_tokens else 1}
        with torch.no_grad(), quiet():
            out = self.model(
                input_ids=ids,
                attention_mask=cached.valid.long(),
                past_key_values=copy_cache(cache),
                use_cache=True,
                **{name: value for name, value in optional.items() if name in self.optional_arguments},
            )
        return out.logits, Decode((out.past_key_values, cached), ())

    def _try_padding(self) -> tuple[int, bool, str]:
        """Return the vocabulary size, `shares_prefixes` and `window_refusal`.

        Raises UsageError if left padding changes the logits.
        """
        size = self.model.get_input_embeddings().weight.shape[0]
        limit = self.limit if self.limit is not None else 2 * MAX_PADS
        count = max(2, min(8, limit // 4))
        ids = (torch.arange(2 * count, device=self.device).view(2, count) * 37 + 5) % size
        real = torch.ones_like(ids, dtype=torch.bool)
        alone = self.step(ids, self.empty(2))[0]
        tolerance = TOLERANCE.get(alone.dtype, HALF_TOLERANCE) * float(alone.double().std(unbiased=False))

        def same(other: Tensor) -> bool:
            return float((alone[0] - other[0]).abs().double().max()) <= tolerance

        num_pads = max(1, min(MAX_PADS, limit // 2))
        pads = torch.zeros((2, num_pads), dtype=torch.long, device=self.device)
        # row 0 has pads, row 1 has tokens of id 0 in their place
        pads_real = torch.tensor([[False], [True]], device=self.device).expand(2, num_pads)
        first, last, empty = ids[:, :-1], ids[:, -1:], self.empty(2)
        left_padded = torch.cat((pads_real, real[:, 1:]), 1)
        state = self.advance(torch.cat((pads, first), 1), empty, left_padded)[1]
        if not same(self.step(last, state)[0]):
            raise UsageError(
                f"{self.name}: left padding changes the logits of {self.kind}, so contexts of different "
                "lengths cannot be in one batch"
            )
        config = self.model.config.get_text_config()  # the test rows may be shorter than a window
        if any(empty.moving[0].is_sliding) or any(getattr(config, name, None) for name in WINDOW_KEYS):
            return alone.shape[1], False, "its attention has a sliding window of cached tokens, not of positions"
        prefix = self.advance(first, empty)[1]
        skips_pads = "position_ids" in self.optional_arguments or self.model.config.model_type in FROM_MASK
        if not skips_pads or not same(self.step(last, self.advance(pads, prefix, pads_real)[1])[0]):
            return alone.shape[1], False, "its attention depends on distances in the cache, not on positions"
        parts = (part for part in self.model.modules() if isinstance(part, Attention))
        if any(part.by_distance for part in parts):  # a converted model; its cache keeps keys, whatever `state` is
            return alone.shape[1], True, window_issue("", by_distance=True)
        unshifted, shifted = (self.advance(last, prefix, shift=shift)[0] for shift in (0, count))
        refusal = "its position ids cannot be set"
        return alone.shape[1], True, refusal if torch.equal(unshifted, shifted) else ""


class HuggingFaceEncoderDecoder(TemplatedReader, SourceReader):
    """An encoder-decoder of transformers."""

    def __init__(self, opened: Pretrained, *, chat: bool = False, template: str = "") -> None:
        """Determine start and end tokens; raises UsageError if there is no start token, or for a chat template."""
        if chat:
            raise UsageError(f"{opened.name}: an encoder-decoder does not support --chat; remove --chat")
        super().__init__(opened, chat=False, template=template)
        self.limit = self.source_limit = opened.limit
        self.size = self.model.get_output_embeddings().weight.shape[0]
        self.ends = self.end_ids(self.size)
        configs = self.model.generation_config, self.model.config
        starts = (getattr(config, "decoder_start_token_id", None) for config in configs)
        start = next((id_ for id_ in starts if id_ is not None), None)
        if start is None:
            raise UsageError(f"{self.name}: the configuration has no decoder_start_token_id")
        forced = self.model.generation_config.forced_bos_token_id
        self.output_start = (start,) if forced is None else (start, forced)

    def row(self, context: str, prompt: str) -> PromptRow:
        """See `ContextReader.row`; the source is the filled template, with the tokenizer's special tokens."""
        if not prompt.strip():
            return PromptRow((), ())
        ids = self.tokenizer("".join(self.texts(context, prompt)))["input_ids"]
        return PromptRow(tuple(int(id_) for id_ in ids), self.output_start)

    def start(self, ids: Int[Tensor, "R S"], real: Bool[Tensor, "R S"]) -> Decode:
        """Return two empty caches of the decoder, the encoder's hidden states [R, S, D], and `real`."""
        with torch.no_grad(), quiet():
            hidden = self.model.get_encoder()(input_ids=ids, attention_mask=real.long())[0]
        library = transformers()
        return Decode((library.DynamicCache(), library.DynamicCache(), hidden, real), ())

    def advance(
        self, ids: Int[Tensor, "R t"], state: Decode, real: Real = None, all_tokens: bool = False
    ) -> tuple[Float[Tensor, "R n V"], Decode]:
        self_cache, cross_cache, hidden, valid = state.moving
        with torch.no_grad(), quiet():
            out = self.model(
                decoder_input_ids=ids,
                encoder_outputs=(hidden,),
                attention_mask=valid.long(),
                past_key_values=transformers().EncoderDecoderCache(copy_cache(self_cache), copy_cache(cross_cache)),
                use_cache=True,
            )
        cache = out.past_key_values
        moving = cache.self_attention_cache, cache.cross_attention_cache, hidden, valid
        return out.logits, Decode(moving, ())


def _limit(opened: Pretrained) -> int | None:
    """Return the maximum row length; for LongRoPE the original one, beyond which frequencies change for all rows."""
    config = opened.model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    key, original = "original_max_position_embeddings", None
    if rope.get("rope_type") == "longrope":
        original = rope.get(key) or getattr(config, key, None)
    return min((limit for limit in (opened.limit, original or None) if limit is not None), default=None)
