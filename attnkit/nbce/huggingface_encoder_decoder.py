"""Hugging Face's encoder-decoders as readers: a row is a source, and all outputs begin alike."""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnkit.errors import UsageError
from attnkit.huggingface import Pretrained, quiet
from attnkit.huggingface.quiet import transformers
from attnkit.nbce.huggingface_reader import TemplatedReader, copied, ends
from attnkit.nbce.prompts import Prompts
from attnkit.nbce.reader import BATCH_TOKENS, SPLIT, PromptRow


class SourceReadState(NamedTuple):
    """Where reading stands."""

    hidden: Float[Tensor, "R S D"]
    """What the encoder made of the sources."""
    valid: Bool[Tensor, "R S"]
    """False on pads."""
    cache: Any
    """An EncoderDecoderCache; its layers may be shared."""


class HuggingFaceEncoderDecoder(TemplatedReader):
    """An encoder-decoder of transformers."""

    windows = "an encoder-decoder reads each context in a source of its own"

    def __init__(self, opened: Pretrained, *, chat: bool = False, template: str = "") -> None:
        """Find out how outputs begin and end.

        Raises:
            UsageError: a chat template is asked for, or the template lacks a part.
        """
        if chat:
            raise UsageError(f"{opened.name}: an encoder-decoder takes no chat template (--chat)")
        self.model, self.name, self.limit = opened.model, opened.name, opened.limit
        self.tokenizer = opened.tokenizer
        self.prompts = Prompts(opened.tokenizer, self.name, template=template)
        self.size = self.model.get_output_embeddings().weight.shape[0]
        self.ends = ends(self.model, opened.tokenizer, self.size)
        settings, config = self.model.generation_config, self.model.config
        start = settings.decoder_start_token_id
        if start is None:
            start = getattr(config, "decoder_start_token_id", None)
        if start is None:
            raise UsageError(f"{self.name}: no decoder_start_token_id: it cannot start an output")
        forced = settings.forced_bos_token_id
        self.start = (start,) if forced is None else (start, forced)

    def row(self, context: str, prompt: str) -> PromptRow:
        """See `Reader.row`: the source is the template, with the tokenizer's special tokens."""
        if not prompt.strip():
            return PromptRow((), ())
        text = "".join(self.prompts.parts(context, prompt))
        return PromptRow(tuple(int(id_) for id_ in self.tokenizer(text)["input_ids"]), self.start)

    def excess(self, row: PromptRow, longest: int) -> int:
        """See `Reader.excess`; the output has a side of its own."""
        return 0 if self.limit is None else max(0, len(row.head) - self.limit)

    def check(self, rows: Sequence[PromptRow], longest: int, way: str = SPLIT) -> None:
        """See `Reader.check`; `limit` is that of each side."""
        for row in rows:
            if not row.head:
                raise UsageError("the prompt is empty: say what the model should answer")
            if self.excess(row, longest):
                raise UsageError(
                    f"a context and its prompt have {len(row.head):,} tokens, and {self.name} "
                    f"reads {self.limit:,} at most: {way}"
                )
        if self.limit is not None and len(self.start) + longest > self.limit:
            raise UsageError(
                f"an output of {longest:,} tokens does not fit the {self.limit:,} of {self.name}: "
                "shorten it (--max-length)"
            )

    def begin(self, rows: Sequence[PromptRow], budget: int = BATCH_TOKENS) -> SourceReadState:
        """See `Reader.begin`; equal sources are read once."""
        heads = list(dict.fromkeys(row.head for row in rows))
        longest = max(len(head) for head in heads)
        ids = torch.zeros((len(heads), longest), dtype=torch.long)
        valid = torch.zeros((len(heads), longest), dtype=torch.bool)
        for place, head in enumerate(heads):
            ids[place, : len(head)] = torch.tensor(head)
            valid[place, : len(head)] = True
        ids, valid = ids.to(self.device), valid.to(self.device)
        many, encoder = max(1, budget // longest), self.model.get_encoder()
        with torch.no_grad(), quiet():
            parts = [
                encoder(input_ids=some, attention_mask=real.long())[0]
                for some, real in zip(torch.split(ids, many), torch.split(valid, many), strict=True)
            ]
        index = {head: place for place, head in enumerate(heads)}
        places = torch.tensor([index[row.head] for row in rows], device=self.device)
        library = transformers()
        cache = library.EncoderDecoderCache(library.DynamicCache(), library.DynamicCache())
        kept = SourceReadState(torch.cat(parts)[places], valid[places], cache)
        for column in range(len(self.start) - 1):
            tokens = torch.tensor([[row.tail[column]] for row in rows], device=self.device)
            kept = self.step(tokens, kept)[1]
        return kept

    def step(
        self, ids: Int[Tensor, "R 1"], kept: SourceReadState
    ) -> tuple[Float[Tensor, "R V"], SourceReadState]:
        """See `Reader.step`."""
        cache = _copied(kept.cache)
        with torch.no_grad(), quiet():
            out = self.model(
                decoder_input_ids=ids,
                encoder_outputs=(kept.hidden,),
                attention_mask=kept.valid.long(),
                past_key_values=cache,
                use_cache=True,
            )
        return out.logits[:, -1], kept._replace(cache=out.past_key_values)

    def select(
        self, kept: SourceReadState, rows: Int[Tensor, " R"], begun: Int[Tensor, " b"] | None = None
    ) -> SourceReadState:
        """See `Reader.select`."""
        cache = _copied(kept.cache)
        cache.batch_select_indices(rows)
        return SourceReadState(kept.hidden[rows], kept.valid[rows], cache)


def _copied(cache: Any) -> Any:
    """As `copied`, of both sides."""
    new = copy.copy(cache)
    new.self_attention_cache = copied(cache.self_attention_cache)
    new.cross_attention_cache = copied(cache.cross_attention_cache)
    new.is_updated = dict(cache.is_updated)
    return new
