"""Interface of models that read many contexts: rows are batched, shared prefixes computed once."""

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

MIN_PREFIX = 8
"""Minimum length of a shared prefix that is computed once; for a shorter prefix the extra pass costs more."""
MAX_LOGITS = 2**26
"""Maximum number of logits held while prompts are scored: 256 MB in float32."""
PROGRESS_TOKENS = 2048
"""Maximum number of tokens per pass if progress is reported."""
Real = Bool[Tensor, "R t"] | None
"""Mask that is True on tokens and False on pads; None: no pads."""
MIN_ANSWER = 8
"""Minimum answer length, in tokens, to which `fit_max_length` reduces the maximum length."""
SPLIT_ADVICE = "split the context (--window)"


class PromptRow(NamedTuple):
    """A row of token ids: a head with the context, and a tail that all rows of a prompt share."""

    head: tuple[int, ...]
    """Begin token, template and context; for an encoder-decoder the source."""
    tail: tuple[int, ...]
    """The prompt, at least one token; for an encoder-decoder the tokens that start every output."""
    other_heads: tuple[tuple[int, ...], ...] = ()
    """Heads of further windows, each encoded alone; the tail attends to all of them (`join_windows`)."""
    shared: int = 0
    """Length of the prefix shared by all windows, to which the tail attends only once."""

    @property
    def longest(self) -> int:
        """Number of tokens up to the end of the tail, which is positioned after the longest window."""
        return max(map(len, (self.head, *self.other_heads))) + len(self.tail)


class ContextReader(ABC):
    """Interface of a model of any library that continues R rows of token ids.

    It builds rows from texts (`row`), computes their cache (`begin`, `step`), and rearranges it (`select`, `join`).
    """

    name: str
    size: int
    """Vocabulary size."""
    ends: frozenset[int]
    """Ids of the end tokens."""
    limit: int | None
    """Maximum number of tokens in a row, output included; None: unlimited."""
    trained_length: int | None = None
    """Maximum number of tokens per row in training, without the begin token; None: unknown."""
    id_offset: int = 0
    """Search ids minus the reader's ids: the first four search ids are PAD, UNK, BOS and EOS, which vocabularies of
    other libraries place elsewhere."""
    model: Any
    """The torch module."""
    batch_tokens: int = 16384
    """Maximum number of tokens per forward pass, cached tokens not counted."""
    window_refusal: str = ""
    """Reason why one row cannot attend to the caches of several contexts; "" if it can."""
    scores_prompts: bool = False
    """Whether the model was trained to predict prompts, so that their probability is meaningful."""
    shares_prefixes: bool = True
    """Whether pads between tokens leave the output unchanged, so that rows can share the cache of a prefix."""
    progress: Callable[[int, int], object] | None = None
    """Callback for reading in several passes: number of rows read, and total."""
    keep_contexts: bool = False
    """Whether the caches of contexts are kept for the next prompt; causal models only."""

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Encode a text without special tokens."""

    def encode_answer(self, text: str) -> list[int]:
        """Encode a text as an answer, which follows the tail of a row."""
        return self.encode(text)

    def unknown(self, texts: Iterable[str]) -> Counter[str]:
        """Count the characters or words that the tokenizer does not know; none for byte-level tokenizers."""
        return Counter()

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """Decode token ids to text."""

    @abstractmethod
    def row(self, context: str, prompt: str) -> PromptRow:
        """Build the row of a context ("": none) and a prompt, encoded separately so that rows can share heads."""

    @abstractmethod
    def begin(self, rows: Sequence[PromptRow]) -> Decode:
        """Read all rows except the last token of each."""

    @abstractmethod
    def advance(
        self, ids: Int[Tensor, "R t"], state: Decode, real: Real = None, all_tokens: bool = False
    ) -> tuple[Float[Tensor, "R n V"], Decode]:
        """Read further tokens and return the logits after the last token, or after all tokens.

        Only causal readers accept pads. R is a multiple of the number of rows passed to `begin`.
        """

    def step(self, ids: Int[Tensor, "R 1"], state: Decode) -> tuple[Float[Tensor, "R V"], Decode]:
        """Read one token per row and return the logits of the next token."""
        logits, state = self.advance(ids, state)
        return logits[:, -1], state

    def select(self, state: Decode, rows: Int[Tensor, " R"], begun: Int[Tensor, " b"] | None = None) -> Decode:
        """Select rows of the cache; `begun` selects from the rows that were passed to `begin` (None: all)."""
        return state.select(rows, begun)

    def join(self, parts: Sequence[Decode]) -> Decode:
        """Concatenate the rows of several states with equal numbers of columns."""
        return Decode(*(map_states(torch.cat, *part) for part in zip(*parts, strict=True)))

    @property
    def device(self) -> torch.device:
        return cast(torch.device, next(self.model.parameters()).device)

    def excess(self, row: PromptRow, output: int) -> int:
        """Return the number of tokens by which a row with `output` further tokens exceeds the limit; 0 if it fits."""
        return 0 if self.limit is None else max(0, row.longest + output - self.limit)

    def check(self, rows: Sequence[PromptRow], output: int, advice: str = SPLIT_ADVICE) -> None:
        """Raise UsageError if a row is empty or has no room for `output` tokens; `advice` ends the message."""
        for row in rows:
            if not row.tail:
                raise UsageError("prompt is empty")
            if self.excess(row, output):
                raise UsageError(
                    f"a context of {row.longest - len(row.tail):,} tokens, a prompt of "
                    f"{len(row.tail):,} and an output of {output:,} (--max-length) do not fit the "
                    f"{self.limit:,} positions of {self.name}: {advice}"
                )

    def begin_scored(self, rows: Sequence[PromptRow]) -> tuple[Decode, Float[Tensor, " R"]]:
        """Run `begin`, and return the log-probability (nats) of each tail except its first token."""
        return self.begin(rows), torch.zeros(len(rows), dtype=torch.float64)

    def _indices(self, numbers: Iterable[int]) -> Int[Tensor, " n"]:
        return torch.tensor(list(numbers), dtype=torch.long, device=self.device)


class CausalReader(ContextReader):
    """Reader of decoder-only models: rows are padded on the left, shared prefixes computed once."""

    _context_cache: tuple[list[tuple[int, ...]], Decode] | None = None
    """Heads of the last prompt, and their cache."""

    @abstractmethod
    def empty(self, rows: int) -> Decode:
        """Return an empty cache."""

    def begin_scored(self, rows: Sequence[PromptRow]) -> tuple[Decode, Float[Tensor, " R"]]:
        if not self.shares_prefixes and len(rows) > 1:
            return super().begin_scored(rows)
        state = self.begin([row._replace(tail=row.tail[:1]) for row in rows])
        if all(len(row.tail) == 1 for row in rows):
            return state, torch.zeros(len(rows), dtype=torch.float64)
        ids, real = (t.to(self.device) for t in pad_rows([r.tail[:-1] for r in rows], left=True))
        next_ids = pad_rows([row.tail[1:] for row in rows], left=True)[0].to(self.device)
        batch_size = max(1, MAX_LOGITS // (ids.shape[1] * self.size))
        parts, scores = [], []
        for batch in torch.split(self._indices(range(len(rows))), batch_size):
            logits, part = self.advance(ids[batch], self.select(state, batch), real[batch], all_tokens=True)
            logprobs = logits.to(score_type(logits)).log_softmax(-1)
            logprobs = logprobs.gather(2, next_ids[batch][..., None])[..., 0]
            scores.append(logprobs.double().masked_fill(~real[batch], 0).sum(1))
            parts.append(part)
        return self.join(parts), torch.cat(scores)

    def begin(self, rows: Sequence[PromptRow]) -> Decode:
        """See `ContextReader.begin`; equal heads are computed once. Raises UsageError for unsupported windows."""
        heads, tails = [row.head for row in rows], [row.tail[:-1] for row in rows]
        if any(row.other_heads for row in rows):  # each window alone, then each tail after all its windows
            if self.window_refusal:
                raise UsageError(f"{self.name} cannot attend to several windows: {self.window_refusal}")
            windows = [head for row in rows for head in (row.head, *row.other_heads)]
            state = self.begin([PromptRow(head, (0,)) for head in windows])
            state = join_windows(state, len(windows) // len(rows), [row.shared for row in rows])
            return self._append(tails, state)
        full_rows = [(*head, *tail) for head, tail in zip(heads, tails, strict=True)]
        if not self.shares_prefixes:
            heads, tails = full_rows, [()] * len(rows)
        distinct = list(dict.fromkeys(heads))
        if self.keep_contexts:
            if self._context_cache is None or self._context_cache[0] != distinct:
                self._context_cache = distinct, self._read(distinct)
            state = self._context_cache[1]
        elif len(distinct) == len(rows):
            return self._read(full_rows)
        else:
            state = self._read(distinct)
        index = {head: i for i, head in enumerate(distinct)}
        return self._append(tails, self.select(state, self._indices(index[head] for head in heads)))

    def _read(self, rows: Sequence[tuple[int, ...]]) -> Decode:
        """Read rows from the start; their common prefix is computed once."""
        prefix = tuple(commonprefix(rows))
        if not self.shares_prefixes or len(rows) == 1 or len(prefix) < MIN_PREFIX:
            prefix = ()
        state = self._append([prefix], self.empty(1))
        state = self.select(state, self._indices([0] * len(rows)))
        return self._append([row[len(prefix) :] for row in rows], state)

    def _append(self, rows: Sequence[tuple[int, ...]], state: Decode) -> Decode:
        """Append ids to the cache, in batches of at most `batch_tokens`."""
        ids, real = (t.to(self.device) for t in pad_rows(rows, left=True))
        if not ids.shape[1]:
            return state
        # `PROGRESS_TOKENS` per pass already saturate a CPU
        tokens = self.batch_tokens if self.progress is None else min(self.batch_tokens, PROGRESS_TOKENS)
        batch_size = max(1, tokens // ids.shape[1])
        if batch_size >= len(rows):
            return self.advance(ids, state, real)[1]
        parts = []
        for batch in torch.split(self._indices(range(len(rows))), batch_size):
            parts.append(self.advance(ids[batch], self.select(state, batch), real[batch])[1])
            if self.progress is not None:
                self.progress(int(batch[-1]) + 1, len(rows))
        return self.join(parts)


class SourceReader(ContextReader):
    """Reader of encoder-decoders: the head of a row is its source, the tail starts every output."""

    window_refusal = "an encoder-decoder reads each context in a separate source"
    source_limit: int | None
    """Maximum number of tokens in a source; None: unlimited."""

    @abstractmethod
    def start(self, ids: Int[Tensor, "R S"], real: Bool[Tensor, "R S"]) -> Decode:
        """Run the encoder on sources padded on the right; `real` is False on pads."""

    def excess(self, row: PromptRow, output: int) -> int:
        """See `ContextReader.excess`; the output does not count, since it is on the target side."""
        return 0 if self.source_limit is None else max(0, len(row.head) - self.source_limit)

    def check(self, rows: Sequence[PromptRow], output: int, advice: str = SPLIT_ADVICE) -> None:
        """See `ContextReader.check`; sources and outputs have separate limits."""
        super().check([row for row in rows if not row.tail], output)
        for row in rows:
            if self.excess(row, output):
                raise UsageError(
                    f"a context with its prompt has {len(row.head):,} tokens, but {self.name} reads at most "
                    f"{self.source_limit:,}: {advice}"
                )
            if self.limit is not None and len(row.tail) + output > self.limit:
                raise UsageError(
                    f"an output of {output:,} tokens does not fit the {self.limit:,} positions of {self.name}: "
                    "lower --max-length"
                )

    def begin(self, rows: Sequence[PromptRow]) -> Decode:
        """See `ContextReader.begin`; equal sources are encoded once."""
        index = {head: i for i, head in enumerate(dict.fromkeys(row.head for row in rows))}
        ids, real = (t.to(self.device) for t in pad_rows(list(index)))
        batch_size = max(1, self.batch_tokens // ids.shape[1])
        batches = zip(torch.split(ids, batch_size), torch.split(real, batch_size), strict=True)
        parts = [self.start(*batch) for batch in batches]
        sources = self._indices(index[row.head] for row in rows)
        state = self.select(self.join(parts), sources, sources)
        if len(rows[0].tail) > 1:
            prefix = pad_rows([row.tail[:-1] for row in rows])[0].to(self.device)
            state = self.advance(prefix, state)[1]
        return state


def fit_max_length(
    reader: ContextReader, contexts: Sequence[str], prompts: Sequence[str], spec: SearchConfig, fixed: bool
) -> tuple[SearchConfig, list[str]]:
    """Reduce `spec.max_length` to the room left by the longest row unless `fixed`; raises UsageError without room.

    Also returns notes on a reduced length and on rows longer than the rows in training.
    """
    prompt = max(prompts, key=lambda text: reader.row("", text).longest)
    row = max((reader.row(text, prompt) for text in contexts), key=lambda row: row.longest)
    without_context, length, notes = reader.row("", prompt).longest, spec.max_length, list[str]()
    if not fixed and reader.limit is not None:
        length = max(MIN_ANSWER, min(length, reader.limit - row.longest))
    answer = length if fixed else MIN_ANSWER
    window = row.longest - without_context - reader.excess(row, answer)
    advice = f"split the context (--window {window})" if window > 0 else "shorten the prompt"
    reader.check([row], length, advice)
    if length < spec.max_length:
        notes.append(f"--max-length is reduced to {length}: a longer output does not fit")
    if reader.trained_length is not None and row.longest - 1 > reader.trained_length:
        window = reader.trained_length + 1 - answer - without_context
        advice = f"--window {window}" if window > 0 else "a shorter prompt"
        notes.append(
            f"the longest row has {row.longest - 1:,} tokens, but {reader.name} was trained on rows of at "
            f"most {reader.trained_length:,}: the answers may be unreliable; use {advice}"
        )
    return spec.model_copy(update={"max_length": length}), notes


def pad_rows(rows: Sequence[Sequence[int]], left: bool = False) -> tuple[Int[Tensor, "R t"], Bool[Tensor, "R t"]]:
    """Pad rows of ids with 0 into one tensor, and return it with the mask of the tokens."""
    side = "left" if left else "right"
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    real = [torch.ones_like(row, dtype=torch.bool) for row in ids]
    return pad_sequence(ids, True, 0, side), pad_sequence(real, True, 0, side)


def join_windows(state: Decode, windows: int, shared: Sequence[int]) -> Decode:
    """Join the caches of each `windows` consecutive rows into one row, so that later tokens attend to all of them.

    Tokens keep their positions, and the next token of a row follows the last position of its longest window. The first
    `shared[r]` tokens of all windows but the first are masked; columns that are masked in all rows are dropped.
    Source: Ratner et al. 2023, "Parallel context windows for large language models".
    """
    caches, cached = state.moving
    if not isinstance(cached, CachePositions):
        cached = CachePositions.of(cached)
    hidden = torch.tensor(shared, device=cached.valid.device).repeat_interleave(windows)
    hidden[::windows] = 0
    valid = (cached.valid & (cached.positions >= hidden[:, None])).view(len(shared), -1)
    columns = valid.any(0).nonzero()[:, 0]

    def join(tensors: list[Tensor]) -> Tensor:
        """Reshape keys or values [R * windows, H, S, D] to [R, H, columns, D]."""
        split = torch.unflatten(tensors[0], 0, (-1, windows)).transpose(1, 2)  # [R, H, windows, S, D]
        return split.flatten(2, 3).index_select(2, columns)

    positions = cached.positions.view(len(shared), -1)[:, columns]
    return Decode((map_states(join, caches), CachePositions(valid[:, columns], positions)), ())


def map_states(change: Callable[[list[Tensor]], Tensor], *states: Any) -> Any:
    """Apply `change` to the corresponding tensors of several states: nested tuples and caches of transformers."""
    first = states[0]
    if isinstance(first, Tensor):
        return change(list(states))
    if isinstance(first, tuple):
        parts = [map_states(change, *members) for members in zip(*states, strict=True)]
        return type(first)(*parts) if hasattr(first, "_fields") else tuple(parts)
    if first is None:
        return None
    new = copy_cache(first)
    for i, layer in enumerate(new.layers):
        for name in ("keys", "values"):
            if getattr(layer, name, None) is not None:
                setattr(layer, name, change([getattr(state.layers[i], name) for state in states]))
    return new


def copy_cache(cache: Any) -> Any:
    """Copy a DynamicCache but share its tensors, which transformers replaces and never modifies in place."""
    new = copy.copy(cache)
    new.layers = [copy.copy(layer) for layer in cache.layers]
    return new
