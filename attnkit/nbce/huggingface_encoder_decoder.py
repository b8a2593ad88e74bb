"""Hugging Face's encoder-decoders as readers: a row is a source, and all outputs start alike."""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnkit.errors import UsageError
from attnkit.huggingface import Pretrained, quiet
from attnkit.huggingface.quiet import transformers
from attnkit.nbce.huggingface_reader import copied
from attnkit.nbce.reader import PromptRow, SourceReader
from attnkit.nbce.templated_reader import TemplatedReader


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
        start = settings.decoder_start_token_id
        if start is None:
            start = getattr(config, "decoder_start_token_id", None)
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
        hidden, valid = (torch.cat([part[place] for part in parts]) for place in (0, 1))
        return EncodedSources(hidden, valid, parts[0].cache)


def _copied(cache: Any) -> Any:
    """As `copied`, of both sides."""
    new = copy.copy(cache)
    new.self_attention_cache = copied(cache.self_attention_cache)
    new.cross_attention_cache = copied(cache.cross_attention_cache)
    new.is_updated = dict(cache.is_updated)
    return new
