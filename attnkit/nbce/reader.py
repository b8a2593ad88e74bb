"""What reading many contexts asks of a model, and how rows that share text are read once."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from os.path import commonprefix
from typing import Any, NamedTuple, TypeAlias

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from attnkit.errors import UsageError

BATCH_TOKENS = 16384
"""Tokens read in one pass; what is kept of them is not counted."""
SHARED = 8
"""Shorter prefixes are read again in every row: a pass of their own would cost more."""

SPLIT = "split the context (--window)"

Kept: TypeAlias = Any
"""What a reader keeps of the rows that it has read: its own affair."""


class PromptRow(NamedTuple):
    """One row of ids: the text with its context, and what all rows of a prompt end with."""

    head: tuple[int, ...]
    """Begin token, template and context."""
    tail: tuple[int, ...]
    """The question; at least one token."""
    beside: tuple[tuple[int, ...], ...] = ()
    """Heads of further windows, each read alone; the tail sees them all (see `Reader.gather`)."""
    once: int = 0
    """How many tokens all windows begin with that the tail sees once only."""

    @property
    def longest(self) -> int:
        """Tokens up to the end of the tail, which begins behind the longest window."""
        return max(map(len, (self.head, *self.beside))) + len(self.tail)


class ContextReader(ABC):
    """A model that continues R rows of ids, whatever library it comes from."""

    name: str
    size: int
    """Tokens of the vocabulary."""
    ends: frozenset[int]
    """Tokens that end a text."""
    limit: int | None
    """Most tokens of a row, output included; None where nothing bounds it."""
    trained: int | None = None
    """Most tokens of the rows that it was trained on, begin token aside; None: nobody knows."""
    special: int = 0
    """How far its ids are moved up for the search, whose first four are PAD, UNK, BOS and EOS."""
    model: Any
    """The network, a torch module."""
    windows: str = ""
    """Why its caches of several contexts cannot be seen by one row; "" where they can."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of some text, without any special token."""

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids."""

    @abstractmethod
    def row(self, context: str, prompt: str) -> PromptRow:
        """The row of a prompt with a context before it; context "" is the row without one."""

    @abstractmethod
    def begin(self, rows: Sequence[PromptRow], budget: int = BATCH_TOKENS) -> Kept:
        """Read all rows but for the last token of each, `budget` tokens at a time."""

    @abstractmethod
    def step(self, ids: Int[Tensor, "R 1"], kept: Kept) -> tuple[Float[Tensor, "R V"], Kept]:
        """Logits of the next token of every row.  R is a multiple of the rows begun with."""

    @abstractmethod
    def select(
        self, kept: Kept, rows: Int[Tensor, " R"], begun: Int[Tensor, " b"] | None = None
    ) -> Kept:
        """Rows take the places of others; `begun`: of the rows begun with these remain."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where the model is."""

    def gather(self, kept: Kept, windows: int, once: Sequence[int]) -> Kept:
        """Rows that were read alone become windows of one row; what is read next sees them all.

        Of R x `windows` rows, window by window, R remain.  The tokens keep their positions, and the
        next token of a row stands behind the last position of its longest window.  The first
        `once[r]` tokens of every window but the first are hidden.  Source: Ratner et al. 2023,
        "Parallel context windows for large language models".

        Raises:
            UsageError: the model cannot, for the reason in `windows`.
        """
        reason = self.windows or "its reader has no way to join caches"
        raise UsageError(f"{self.name} cannot see several windows at once: {reason}")

    def excess(self, row: PromptRow, longest: int) -> int:
        """How many tokens too long a row is for an output of `longest` tokens; 0 where it fits."""
        return 0 if self.limit is None else max(0, row.longest + longest - self.limit)

    def beyond(self, row: PromptRow, longest: int) -> int:
        """As `excess`, of the length that it was trained for; 0 where nobody knows it."""
        return 0 if self.trained is None else max(0, row.longest - 1 + longest - self.trained)

    def check(self, rows: Sequence[PromptRow], longest: int, way: str = SPLIT) -> None:
        """Refuse rows that leave no room for `longest` tokens of output.

        Args:
            rows: with their prompts.
            longest: tokens.
            way: what to do about a context that is too long, for the message.

        Raises:
            UsageError: a row is empty or too long.
        """
        for row in rows:
            if not row.tail:
                raise UsageError("the prompt is empty: say what the model should continue")
            if self.excess(row, longest):
                size = row.longest - len(row.tail)
                raise UsageError(
                    f"a context of {size:,} tokens, a prompt of {len(row.tail):,} and an "
                    f"output of {longest:,} do not fit the {self.limit:,} positions of {self.name}"
                    f": {way}, or shorten the output (--max-length)"
                )


class CausalReader(ContextReader):
    """A reader without a source: rows are padded on the left, and shared text is read once."""

    @abstractmethod
    def empty(self, rows: int) -> Kept:
        """Rows that have read nothing."""

    @abstractmethod
    def read(self, ids: Int[Tensor, "R t"], real: Bool[Tensor, "R t"], kept: Kept) -> Kept:
        """Read further tokens of every row; `real` is False on pads."""

    @abstractmethod
    def join(self, parts: Sequence[Kept]) -> Kept:
        """Rows of several parts, which have read as many columns, as one."""

    def begin(self, rows: Sequence[PromptRow], budget: int = BATCH_TOKENS) -> Kept:
        """See `Reader.begin`: what all heads begin with is read once, and equal heads once."""
        if any(row.beside for row in rows):
            return self._side_by_side(rows, budget)
        heads = list(dict.fromkeys(row.head for row in rows))
        shared = tuple(commonprefix(heads))
        prefix = len(shared) if len(heads) > 1 and len(shared) >= SHARED else 0
        kept = self._append([shared[:prefix]], self.empty(1), budget)
        kept = self.select(kept, self._places([0] * len(heads)))
        if len(heads) == len(rows):
            whole = [row.head[prefix:] + row.tail[:-1] for row in rows]
            return self._append(whole, kept, budget)
        kept = self._append([head[prefix:] for head in heads], kept, budget)
        index = {head: place for place, head in enumerate(heads)}
        kept = self.select(kept, self._places([index[row.head] for row in rows]))
        return self._append([row.tail[:-1] for row in rows], kept, budget)

    def _side_by_side(self, rows: Sequence[PromptRow], budget: int) -> Kept:
        """Read every window alone, then all tails behind their windows; equally many a row."""
        heads = [head for row in rows for head in (row.head, *row.beside)]
        kept = self.begin([PromptRow(head, (0,)) for head in heads], budget)
        kept = self.gather(kept, len(heads) // len(rows), [row.once for row in rows])
        return self._append([row.tail[:-1] for row in rows], kept, budget)

    def _append(self, rows: Sequence[tuple[int, ...]], kept: Kept, budget: int) -> Kept:
        """Read these ids behind what is kept, rows padded to one length, some rows at a time."""
        longest = max(len(row) for row in rows)
        if not longest:
            return kept
        ids = torch.zeros((len(rows), longest), dtype=torch.long)
        real = torch.zeros((len(rows), longest), dtype=torch.bool)
        for place, row in enumerate(rows):
            if row:
                ids[place, -len(row) :] = torch.tensor(row)
                real[place, -len(row) :] = True
        ids, real = ids.to(self.device), real.to(self.device)
        many = max(1, budget // longest)
        if many >= len(rows):
            return self.read(ids, real, kept)
        parts = []
        for place in range(0, len(rows), many):
            some = self._places(range(place, min(place + many, len(rows))))
            parts.append(self.read(ids[some], real[some], self.select(kept, some)))
        return self.join(parts)

    def _places(self, numbers: Sequence[int]) -> Int[Tensor, " n"]:
        return torch.tensor(list(numbers), dtype=torch.long, device=self.device)
