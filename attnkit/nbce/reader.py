"""What reading many contexts needs of a model; rows are batched, and shared text is read once."""

import copy
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from os.path import commonprefix
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from attnkit.errors import UsageError
from attnkit.models.base import CachePositions, Decode
from attnkit.recipe.schema import SearchConfig
from attnkit.search.base import score_type

SHORTEST_PREFIX = 8
"""Shorter prefixes are read again in every row: a pass of their own would cost more."""

LOGITS_AT_ONCE = 2**26
"""Most logits that are held while prompts are scored: 256 MB in float32."""

WATCHED = 2048
"""Tokens read in one pass where progress is shown."""

Real = Bool[Tensor, "R t"] | None
"""Where ids are tokens, not pads; None: everywhere."""

SHORTEST = 8
"""An answer is not shortened below this to make contexts fit."""

SPLIT = "split the context (--window)"


class PromptRow(NamedTuple):
    """One row of ids: the text with its context, and what all rows of a prompt end with."""

    head: tuple[int, ...]
    """Begin token, template and context; of an encoder-decoder the source."""
    tail: tuple[int, ...]
    """The question, at least one token; of an encoder-decoder what every output starts with."""
    beside: tuple[tuple[int, ...], ...] = ()
    """Heads of further windows, each read alone; the tail sees them all (`CausalReader.gather`)."""
    once: int = 0
    """How many tokens all windows begin with that the tail sees once only."""

    @property
    def longest(self) -> int:
        """Tokens up to the end of the tail, which begins behind the longest window."""
        return max(map(len, (self.head, *self.beside))) + len(self.tail)


class ContextReader(ABC):
    """A model that continues R rows of ids, whatever library it comes from.

    A reader makes rows of text (`row`), reads them (`begin`, `step`), and rearranges what was read
    (`select`, `join`): a `Decode` whose tensors have one row each.
    """

    name: str
    size: int
    """Tokens of the vocabulary."""
    ends: frozenset[int]
    """Tokens that end a text."""
    limit: int | None
    """Most tokens of a row, output included; None where nothing bounds it."""
    trained: int | None = None
    """Most tokens of the rows that it was trained on, begin token aside; None: unknown."""
    special: int = 0
    """A search's ids are the reader's plus this: its first four are PAD, UNK, BOS and EOS, which
    vocabularies from elsewhere have in other places."""
    model: Any
    """The network, a torch module."""
    batch_tokens: int = 16384
    """Tokens that are read in one pass; what is cached of them is not counted."""
    window_refusal: str = ""
    """Why its caches of several contexts cannot be seen by one row; "" where they can."""
    scores_prompts: bool = False
    """Whether it has learned to predict prompts, so that their probability says something."""
    shares: bool = True
    """Whether padding between tokens does no harm, so that rows can share what was read of them."""
    progress: Callable[[int, int], object] | None = None
    """Called with the rows read so far and all of them, where they are read in several passes."""
    keep_contexts: bool = False
    """Contexts that were read stay in memory for the next prompt; causal models only."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The ids of some text, without any special token."""

    def encode_answer(self, text: str) -> list[int]:
        """The ids of a text as an answer, behind the tail of a row."""
        return self.encode(text)

    def unknown(self, texts: Iterable[str]) -> Counter[str]:
        """What the tokenizer does not know of some texts; nothing where it knows all bytes."""
        return Counter()

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids."""

    @abstractmethod
    def row(self, context: str, prompt: str) -> PromptRow:
        """The row of a prompt with a context before it; context "" is the row without one.

        Context and prompt are encoded separately, so that rows can share heads.
        """

    @abstractmethod
    def begin(self, rows: Sequence[PromptRow]) -> Decode:
        """Read all rows but for the last token of each."""

    @abstractmethod
    def advance(
        self, ids: Int[Tensor, "R t"], state: Decode, real: Real = None, every: bool = False
    ) -> tuple[Float[Tensor, "R n V"], Decode]:
        """Read further tokens; logits behind the last of them, or behind every one.

        Only causal readers may be given pads; R is a multiple of the rows begun with.
        """

    def step(self, ids: Int[Tensor, "R 1"], state: Decode) -> tuple[Float[Tensor, "R V"], Decode]:
        """Logits of the next token of every row."""
        logits, state = self.advance(ids, state)
        return logits[:, -1], state

    def select(self, state: Decode, rows: Int[Tensor, " R"], begun: Int[Tensor, " b"] | None = None) -> Decode:
        """Rows take the places of others; `begun`: of the rows begun with these remain."""
        return state.select(rows, begun)

    def join(self, parts: Sequence[Decode]) -> Decode:
        """Rows of several parts, which have read as many columns, as one."""
        return Decode(*(mapped(torch.cat, *part) for part in zip(*parts, strict=True)))

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return cast(torch.device, next(self.model.parameters()).device)

    def excess(self, row: PromptRow, output: int) -> int:
        """Tokens by which a row is too long for an output of `output` tokens; 0 where it fits."""
        return 0 if self.limit is None else max(0, row.longest + output - self.limit)

    def check(self, rows: Sequence[PromptRow], output: int, advice: str = SPLIT) -> None:
        """Raise UsageError for rows that are empty or leave no room for `output` tokens.

        `advice` is for contexts that are too long.
        """
        for row in rows:
            if not row.tail:
                raise UsageError("the prompt is empty: say what the model should continue")
            if self.excess(row, output):
                raise UsageError(
                    f"a context of {row.longest - len(row.tail):,} tokens, a prompt of "
                    f"{len(row.tail):,} and an output of {output:,} (--max-length) do not fit the "
                    f"{self.limit:,} positions of {self.name}: {advice}"
                )

    def begin_scored(self, rows: Sequence[PromptRow]) -> tuple[Decode, Float[Tensor, " R"]]:
        """`begin`, and the log-probability (nats) of each tail but for its first token."""
        return self.begin(rows), torch.zeros(len(rows), dtype=torch.float64)

    def _indices(self, numbers: Iterable[int]) -> Int[Tensor, " n"]:
        return torch.tensor(list(numbers), dtype=torch.long, device=self.device)


class CausalReader(ContextReader):
    """A reader without a source: rows are padded on the left, and shared text is read once."""

    _kept: tuple[list[tuple[int, ...]], Decode] | None = None
    """The heads of the last prompt, and what was read of them."""

    @abstractmethod
    def empty(self, rows: int) -> Decode:
        """Rows that have read nothing."""

    def begin_scored(self, rows: Sequence[PromptRow]) -> tuple[Decode, Float[Tensor, " R"]]:
        if not self.shares and len(rows) > 1:
            return super().begin_scored(rows)
        state = self.begin([row._replace(tail=row.tail[:1]) for row in rows])
        if all(len(row.tail) == 1 for row in rows):
            return state, torch.zeros(len(rows), dtype=torch.float64)
        ids, real = (t.to(self.device) for t in padded([r.tail[:-1] for r in rows], left=True))
        next_ids = padded([row.tail[1:] for row in rows], left=True)[0].to(self.device)
        many = max(1, LOGITS_AT_ONCE // (ids.shape[1] * self.size))
        parts, scores = [], []
        for batch in torch.split(self._indices(range(len(rows))), many):
            logits, part = self.advance(ids[batch], self.select(state, batch), real[batch], every=True)
            wide = logits.to(score_type(logits)).log_softmax(-1)
            logprobs = wide.gather(2, next_ids[batch][..., None])[..., 0]
            scores.append(logprobs.double().masked_fill(~real[batch], 0).sum(1))
            parts.append(part)
        return self.join(parts), torch.cat(scores)

    def begin(self, rows: Sequence[PromptRow]) -> Decode:
        """See `ContextReader.begin`: equal heads are read once.

        Raises UsageError: rows have several windows, which the model cannot see at once.
        """
        heads, tails = [row.head for row in rows], [row.tail[:-1] for row in rows]
        if any(row.beside for row in rows):  # every window alone, then all tails behind theirs
            if self.window_refusal:
                raise UsageError(f"{self.name} cannot see several windows at once: {self.window_refusal}")
            windows = [head for row in rows for head in (row.head, *row.beside)]
            state = self.begin([PromptRow(head, (0,)) for head in windows])
            state = gather(state, len(windows) // len(rows), [row.once for row in rows])
            return self._append(tails, state)
        whole = [(*head, *tail) for head, tail in zip(heads, tails, strict=True)]
        if not self.shares:
            heads, tails = whole, [()] * len(rows)
        distinct = list(dict.fromkeys(heads))
        if self.keep_contexts:
            if self._kept is None or self._kept[0] != distinct:
                self._kept = distinct, self._read(distinct)
            state = self._kept[1]
        elif len(distinct) == len(rows):
            return self._read(whole)
        else:
            state = self._read(distinct)
        index = {head: place for place, head in enumerate(distinct)}
        return self._append(tails, self.select(state, self._indices(index[one] for one in heads)))

    def _read(self, rows: Sequence[tuple[int, ...]]) -> Decode:
        """Read rows from their beginning; what all begin with is read once."""
        shared = tuple(commonprefix(rows))
        wanted = self.shares and len(rows) > 1 and len(shared) >= SHORTEST_PREFIX
        prefix = len(shared) if wanted else 0
        state = self._append([shared[:prefix]], self.empty(1))
        state = self.select(state, self._indices([0] * len(rows)))
        return self._append([row[prefix:] for row in rows], state)

    def _append(self, rows: Sequence[tuple[int, ...]], state: Decode) -> Decode:
        """Read these ids behind what was read, some rows at a time."""
        ids, real = (table.to(self.device) for table in padded(rows, left=True))
        if not ids.shape[1]:
            return state
        # a pass of `WATCHED` tokens already uses a processor fully
        tokens = self.batch_tokens if self.progress is None else min(self.batch_tokens, WATCHED)
        many = max(1, tokens // ids.shape[1])
        if many >= len(rows):
            return self.advance(ids, state, real)[1]
        parts = []
        for batch in torch.split(self._indices(range(len(rows))), many):
            parts.append(self.advance(ids[batch], self.select(state, batch), real[batch])[1])
            if self.progress is not None:
                self.progress(int(batch[-1]) + 1, len(rows))
        return self.join(parts)


class SourceReader(ContextReader):
    """An encoder-decoder: the head of a row is its source, and all outputs start alike."""

    window_refusal = "an encoder-decoder reads each context in a source of its own"
    source_limit: int | None
    """Most tokens of a source; None where nothing bounds it."""

    @abstractmethod
    def start(self, ids: Int[Tensor, "R S"], real: Bool[Tensor, "R S"]) -> Decode:
        """Encode sources padded on the right; `real` is False on pads."""

    def excess(self, row: PromptRow, output: int) -> int:
        """See `ContextReader.excess`; the output has a side of its own."""
        return 0 if self.source_limit is None else max(0, len(row.head) - self.source_limit)

    def check(self, rows: Sequence[PromptRow], output: int, advice: str = SPLIT) -> None:
        """See `ContextReader.check`; sources and outputs have limits of their own."""
        super().check([row for row in rows if not row.tail], output)
        for row in rows:
            if self.excess(row, output):
                raise UsageError(
                    f"a context and its prompt have {len(row.head):,} tokens, and {self.name} "
                    f"reads {self.source_limit:,} at most: {advice}"
                )
            if self.limit is not None and len(row.tail) + output > self.limit:
                raise UsageError(
                    f"an output of {output:,} tokens does not fit the {self.limit:,} of "
                    f"{self.name}: shorten it (--max-length)"
                )

    def begin(self, rows: Sequence[PromptRow]) -> Decode:
        """See `ContextReader.begin`; equal sources are read once."""
        index = {head: place for place, head in enumerate(dict.fromkeys(row.head for row in rows))}
        ids, real = (table.to(self.device) for table in padded(list(index)))
        many = max(1, self.batch_tokens // ids.shape[1])
        batches = zip(torch.split(ids, many), torch.split(real, many), strict=True)
        parts = [self.start(*batch) for batch in batches]
        chosen = self._indices(index[row.head] for row in rows)
        state = self.select(self.join(parts), chosen, chosen)
        if len(rows[0].tail) > 1:
            begun = padded([row.tail[:-1] for row in rows])[0].to(self.device)
            state = self.advance(begun, state)[1]
        return state


def fitted(
    reader: ContextReader, contexts: Sequence[str], prompts: Sequence[str], spec: SearchConfig, fixed: bool
) -> tuple[SearchConfig, list[str]]:
    """The search, with answers shortened to what rows leave room for unless their length is fixed.

    Also sentences on that, and on rows longer than those that the model was trained on.

    Raises UsageError: a row does not fit the model.
    """
    prompt = max(prompts, key=lambda text: reader.row("", text).longest)
    row = max((reader.row(text, prompt) for text in contexts), key=lambda row: row.longest)
    bare, length, notes = reader.row("", prompt).longest, spec.max_length, list[str]()
    if not fixed and reader.limit is not None:
        length = max(SHORTEST, min(length, reader.limit - row.longest))
    answer = length if fixed else SHORTEST
    window = row.longest - bare - reader.excess(row, answer)
    advice = f"split the context (--window {window})" if window > 0 else "shorten the prompt"
    reader.check([row], length, advice)
    if length < spec.max_length:
        notes.append(f"--max-length is {length}: there is no room for longer answers")
    if reader.trained is not None and row.longest - 1 > reader.trained:
        window = reader.trained + 1 - answer - bare
        advice = f"--window {window}" if window > 0 else "a shorter prompt"
        notes.append(
            f"the longest row has {row.longest - 1:,} tokens, but {reader.name} was trained on "
            f"rows of at most {reader.trained:,}: its answers may be unreliable; {advice} would fit"
        )
    return spec.model_copy(update={"max_length": length}), notes


def padded(rows: Sequence[Sequence[int]], left: bool = False) -> tuple[Int[Tensor, "R t"], Bool[Tensor, "R t"]]:
    """Rows of ids in one table, padded on the right or left with 0, and where they are real."""
    side = "left" if left else "right"
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    real = [torch.ones_like(row, dtype=torch.bool) for row in ids]
    return pad_sequence(ids, True, 0, side), pad_sequence(real, True, 0, side)


def gather(state: Decode, windows: int, once: Sequence[int]) -> Decode:
    """Rows that were read alone become windows of one row; what is read next sees them all.

    Of R x `windows` rows, window by window, R remain.  The tokens keep their positions, and the
    next token of a row stands behind the last position of its longest window.  The first
    `once[r]` tokens of every window but the first are hidden; columns that all rows hide are
    dropped.  Source: Ratner et al. 2023, "Parallel context windows for large language models".
    """
    caches, seen = state.moving
    if not isinstance(seen, CachePositions):
        seen = CachePositions.of(seen)
    hidden = torch.tensor(once, device=seen.valid.device).repeat_interleave(windows)
    hidden[::windows] = 0
    valid = (seen.valid & (seen.positions >= hidden[:, None])).view(len(once), -1)
    columns = valid.any(0).nonzero()[:, 0]

    def beside(some: list[Tensor]) -> Tensor:
        """Keys or values [R windows, H, S, D] as [R, H, columns, D]."""
        many = torch.unflatten(some[0], 0, (-1, windows)).transpose(1, 2)  # [R, H, windows, S, D]
        return many.flatten(2, 3).index_select(2, columns)

    positions = seen.positions.view(len(once), -1)[:, columns]
    return Decode((mapped(beside, caches), CachePositions(valid[:, columns], positions)), ())


def mapped(change: Callable[[list[Tensor]], Tensor], *states: Any) -> Any:
    """Nested tuples and caches of tensors, each made of those in its place in all states."""
    first = states[0]
    if isinstance(first, Tensor):
        return change(list(states))
    if isinstance(first, tuple):
        parts = [mapped(change, *some) for some in zip(*states, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    if first is None:
        return None
    new = copied(first)
    for place, layer in enumerate(new.layers):
        for name in ("keys", "values"):
            if getattr(layer, name, None) is not None:
                some = [getattr(state.layers[place], name) for state in states]
                setattr(layer, name, change(some))
    return new


def copied(cache: Any) -> Any:
    """A DynamicCache with the same tensors, which transformers replaces and never writes to."""
    new = copy.copy(cache)
    new.layers = [copy.copy(layer) for layer in cache.layers]
    return new
