"""attnkit's own runs as readers: language models, and encoder-decoders whose sources differ."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnkit.attention import Attention, State
from attnkit.data.tokenizer import BOS, EOS, PAD, Tokenizer
from attnkit.errors import UsageError
from attnkit.models.base import CachePositions, Decode, Model
from attnkit.nbce.reader import BATCH_TOKENS, SPLIT, CausalReader, ContextReader, Kept, PromptRow
from attnkit.recipe.capability import window_obstacle

if TYPE_CHECKING:
    from attnkit.runs import Run

GAP = " "
"""Between context and prompt: white space is one space to the tokenizer."""


def open_run(run: "Run", device: str = "cpu") -> ContextReader:
    """The reader of a finished run."""
    model, tokenizer = run.model(device), run.tokenizer()
    name = str(run.path)
    if model.shape == "decoder":
        pairs = run.recipe.task != "language-modeling"
        return LanguageModelReader(
            model, tokenizer, name, pairs=pairs, trained=run.recipe.data.max_length
        )
    return EncoderDecoderReader(model, tokenizer, name, run.recipe.data.max_length)


class RunReader(ContextReader):
    """What readers of both kinds of models share."""

    model: Model

    @property
    def device(self) -> torch.device:
        """See `Reader.device`."""
        return self.model.output.weight.device

    def step(self, ids: Int[Tensor, "R 1"], kept: Decode) -> tuple[Float[Tensor, "R V"], Decode]:
        """See `Reader.step`."""
        logits, kept = self.model.step(ids, kept, last=True)
        return logits[:, -1], kept


class LanguageModelReader(RunReader, CausalReader):
    """A language model trained by attnkit, on text or on pairs of texts."""

    def __init__(
        self,
        model: Model,
        tokenizer: Tokenizer,
        name: str,
        *,
        pairs: bool = False,
        trained: int | None = None,
    ) -> None:
        """`pairs`: it was trained on rows of source, EOS, BOS and target.

        `trained` is the length of what it was trained on, of pairs that of each side.
        """
        self.model, self.vocabulary, self.name = model.eval(), tokenizer.target, name
        self.pairs, self.trained = pairs, trained
        self.size, self.ends, self.limit = len(tokenizer.target), frozenset({EOS}), model.limit
        self.windows = _apart(model)

    def encode(self, text: str) -> list[int]:
        """See `Reader.encode`."""
        return self.vocabulary.encode([text])[0]

    def decode(self, ids: Sequence[int]) -> str:
        """See `Reader.decode`."""
        return self.vocabulary.decode([ids])[0]

    def row(self, context: str, prompt: str) -> PromptRow:
        """See `Reader.row`; context and prompt are encoded apart, so heads can be shared.

        A model of pairs is asked for the target of the source that both make.
        """
        head, tail = self.encode(context), self.encode(prompt)
        if not self.pairs:
            return PromptRow((BOS, *head), tuple(tail))
        return PromptRow(tuple(head), (*tail, EOS, BOS) if tail else ())

    def beyond(self, row: PromptRow, longest: int) -> int:
        """See `Reader.beyond`; targets of pairs have a length of their own."""
        return super().beyond(row, 0 if self.pairs else longest)

    def empty(self, rows: int) -> Decode:
        """See `Causal.empty`."""
        return self.model.start(None, rows)

    def read(self, ids: Int[Tensor, "R t"], real: Bool[Tensor, "R t"], kept: Decode) -> Decode:
        """See `Causal.read`."""
        return self.model.advance(ids, kept, real)[1]

    def select(
        self, kept: Decode, rows: Int[Tensor, " R"], begun: Int[Tensor, " b"] | None = None
    ) -> Decode:
        """See `Reader.select`."""
        return kept.select(rows, None)

    def join(self, parts: Sequence[Kept]) -> Decode:
        """See `Causal.join`."""
        return Decode(_joined([part.moving for part in parts]), ())

    def gather(self, kept: Decode, windows: int, once: Sequence[int]) -> Decode:
        """See `Reader.gather`; columns that all rows hide are dropped."""
        if self.windows:
            return super().gather(kept, windows, once)  # type: ignore[no-any-return]
        states, valid = kept.moving
        seen = CachePositions.of(valid)
        hidden = torch.tensor(once, device=valid.device).repeat_interleave(windows)
        hidden[::windows] = 0
        valid = (seen.valid & (seen.positions >= hidden[:, None])).view(len(once), -1)
        columns = valid.any(0).nonzero()[:, 0]
        positions = seen.positions.view(len(once), -1)
        moved = _beside(states, windows, columns)
        return Decode((moved, CachePositions(valid[:, columns], positions[:, columns])), ())


def _apart(model: Model) -> str:
    """Why its caches of several contexts cannot be seen by one row; "" where they can."""
    for part in model.modules():
        if isinstance(part, Attention) and (why := window_obstacle(part)):
            return why
    return ""


class EncoderDecoderReader(RunReader):
    """An encoder-decoder trained by attnkit: a row is a source, and all outputs begin alike."""

    windows = "an encoder-decoder reads each context in a source of its own"

    def __init__(self, model: Model, tokenizer: Tokenizer, name: str, longest: int) -> None:
        self.model, self.tokenizer, self.name = model.eval(), tokenizer, name
        self.size, self.ends = len(tokenizer.target), frozenset({EOS})
        self.limit, self.longest = None, longest

    def encode(self, text: str) -> list[int]:
        """See `Reader.encode`."""
        return self.tokenizer.source.encode([text])[0]

    def decode(self, ids: Sequence[int]) -> str:
        """See `Reader.decode`."""
        return self.tokenizer.target.decode([ids])[0]

    def row(self, context: str, prompt: str) -> PromptRow:
        """See `Reader.row`: the source is the context and the prompt behind it."""
        return PromptRow((*self.encode(f"{context}{GAP}{prompt}"), EOS), (BOS,))

    def excess(self, row: PromptRow, longest: int) -> int:
        """See `Reader.excess`; outputs have room of their own."""
        return max(0, len(row.head) - self.longest)

    def check(self, rows: Sequence[PromptRow], longest: int, way: str = SPLIT) -> None:
        """See `Reader.check`; the encoder's sources are bounded by the recipe."""
        for row in rows:
            if len(row.head) == 1:
                raise UsageError("the prompt is empty: say what the model should answer")
            if self.excess(row, longest):
                raise UsageError(
                    f"a context and its prompt have {len(row.head):,} tokens, and {self.name} was "
                    f"trained for {self.longest:,}: {way}"
                )

    def begin(self, rows: Sequence[PromptRow], budget: int = BATCH_TOKENS) -> Decode:
        """See `Reader.begin`; equal sources are read once."""
        heads = list(dict.fromkeys(row.head for row in rows))
        longest = max(len(head) for head in heads)
        padded = torch.tensor([[*head, *[PAD] * (longest - len(head))] for head in heads])
        many = max(1, budget // longest)
        parts = [self.model.start(part.to(self.device)) for part in torch.split(padded, many)]
        index = {head: place for place, head in enumerate(heads)}
        places = torch.tensor([index[row.head] for row in rows], device=self.device)
        joined = Decode(*(_joined(list(part)) for part in zip(*parts, strict=True)))
        return joined.select(places, places)

    def select(
        self, kept: Decode, rows: Int[Tensor, " R"], begun: Int[Tensor, " b"] | None = None
    ) -> Decode:
        """See `Reader.select`."""
        return kept.select(rows, begun)


def _joined(parts: Sequence[State]) -> State:
    """Nested tuples of batch-first tensors, one behind the other."""
    first = parts[0]
    if len(parts) == 1 or first is None:
        return first
    if isinstance(first, Tensor):
        return torch.cat(list(parts))
    inner = [_joined(list(some)) for some in zip(*parts, strict=True)]
    return type(first)(*inner) if hasattr(first, "_fields") else tuple(inner)


def _beside(state: State, windows: int, columns: Int[Tensor, " n"]) -> State:
    """Caches [R windows, H, S, D] as [R, H, n, D]: these of the windows' columns, in order."""
    if state is None:
        return None
    if isinstance(state, Tensor):
        many = torch.unflatten(state, 0, (-1, windows)).transpose(1, 2)  # [R, H, windows, S, D]
        return many.flatten(2, 3).index_select(2, columns)
    inner = [_beside(part, windows, columns) for part in state]
    return type(state)(*inner) if hasattr(state, "_fields") else tuple(inner)
