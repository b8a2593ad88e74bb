"""Readers for attnkit's own runs: language models and encoder-decoders."""

from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnkit.attention import Attention
from attnkit.data.tokenizer import BOS, EOS, Tokenizer
from attnkit.models.base import Decode, Model
from attnkit.models.counted import CountedModel
from attnkit.nbce.reader import CausalReader, ContextReader, PromptRow, Real, SourceReader
from attnkit.recipe.capability import window_issue


class RunReader(ContextReader):
    """Base class of the readers for models trained by attnkit."""

    model: Model

    def __init__(self, model: Model, tokenizer: Tokenizer, name: str) -> None:
        self.model, self.tokenizer, self.name = model.eval(), tokenizer, name
        self.size, self.ends, self.limit = len(tokenizer.target), frozenset({EOS}), model.limit

    @property
    def device(self) -> torch.device:
        return self.model.output.weight.device

    def unknown(self, texts: Iterable[str]) -> Counter[str]:
        return self.tokenizer.source.unknown(texts)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.target.decode([ids])[0]

    def advance(
        self, ids: Int[Tensor, "R t"], state: Decode, real: Real = None, all_tokens: bool = False
    ) -> tuple[Float[Tensor, "R n V"], Decode]:
        hidden, state = self.model.advance(ids, state, real)
        return self.model.output(hidden if all_tokens else hidden[:, -1:]), state


class LanguageModelReader(RunReader, CausalReader):
    """A language model trained by attnkit, on text or on pairs of texts."""

    def __init__(
        self, model: Model, tokenizer: Tokenizer, name: str, *, pairs: bool = False, trained_length: int | None = None
    ) -> None:
        """Wrap a model; `pairs`: trained on rows of source, EOS, BOS, target, each side up to `trained_length`."""
        super().__init__(model, tokenizer, name)
        self.pairs, self.trained_length, self.scores_prompts = pairs, trained_length, not pairs
        mechanisms = (module for module in model.modules() if isinstance(module, Attention))
        issues = (window_issue(mechanism.state, mechanism.by_distance) for mechanism in mechanisms)
        self.window_refusal = next(filter(None, issues), "")
        if isinstance(model, CountedModel):
            self.window_refusal = "the model has no attention"

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.target.encode([text])[0]

    def row(self, context: str, prompt: str) -> PromptRow:
        """See `ContextReader.row`; with `pairs`, context and prompt together are the source."""
        head, tail = self.encode(context), self.encode(prompt)
        if not self.pairs:
            return PromptRow((BOS, *head), tuple(tail))
        return PromptRow(tuple(head), (*tail, EOS, BOS) if tail else ())

    def empty(self, rows: int) -> Decode:
        return self.model.start(None, rows)


class EncoderDecoderReader(RunReader, SourceReader):
    """An encoder-decoder trained by attnkit."""

    def __init__(self, model: Model, tokenizer: Tokenizer, name: str, source_limit: int) -> None:
        super().__init__(model, tokenizer, name)
        self.limit, self.source_limit = None, source_limit

    def encode(self, text: str) -> list[int]:
        return self.tokenizer.source.encode([text])[0]

    def row(self, context: str, prompt: str) -> PromptRow:
        """See `ContextReader.row`; the source is the context followed by the prompt."""
        ids = self.encode(f"{context} {prompt}") if prompt.strip() else []
        return PromptRow((*ids, EOS), (BOS,)) if ids else PromptRow((), ())

    def start(self, ids: Int[Tensor, "R S"], real: Bool[Tensor, "R S"]) -> Decode:
        return self.model.start(ids)
