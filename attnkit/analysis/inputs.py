"""Texts as the ids that a run's model reads: encoded, completed by search, checked, batched."""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from attnkit.analysis.maps import Token
from attnkit.analysis.recorder import attention_layers
from attnkit.attention import Attention
from attnkit.data.rare_words import rare_words, unlike_note
from attnkit.data.text_form import MARK
from attnkit.data.tokenizer import BOS, EOS, PAD, Tokenizer, Vocabulary
from attnkit.errors import DataError, UsageError
from attnkit.models.base import Model
from attnkit.recipe.schema import SearchConfig
from attnkit.search import search_all
from attnkit.search.decoding import clamp_max_length

BATCH_WEIGHTS = 2**24
"""Attention weights of a batch: 64 MB, unless one text has more."""
BATCH_TOKENS = 8192
"""Rows x longest side of a batch, at most."""
HELD_WEIGHTS = 2**26
"""Attention weights of all texts in memory: 256 MB, unless one text has more."""
MARKS = frozenset({PAD, BOS, EOS})
"""Ids that stand for no text."""


class ModelInput(NamedTuple):
    """What the model reads of one text, and its output."""

    source: list[int]
    """With EOS; empty where the model has no source."""
    ids: list[int]
    """What the decoder reads: BOS, and the output (of a language model behind its prompt)."""
    output: list[int]
    """The output alone, without BOS and EOS."""
    complete: bool = True
    """Whether the output ends with EOS, rather than at the maximum length."""


def describe_search(spec: SearchConfig) -> str:
    """A search in words: greedy, beam 5, sampled, seed 1."""
    if spec.method == "beam" and spec.beam > 1:
        return f"beam {spec.beam}"
    return f"sampled, seed {spec.seed}" if spec.method == "sample" else "greedy"


class InputBuilder:
    """Builds the inputs of one model from texts."""

    def __init__(self, model: Model, tokenizer: Tokenizer, *, prompts: bool, longest: int) -> None:
        """`prompts`: the model continues texts; `longest`: the data.max_length of its training."""
        self.model, self.tokenizer = model, tokenizer
        self.prompts, self.longest = prompts, longest
        self.shape = str(model.shape)
        self.source_limit = source_limit(model)

    def encode(self, text: str, name: str) -> list[int]:
        """Source ids with EOS, or a prompt with BOS.

        Raises:
            UsageError: there is no text.
            DataError: it is longer than the model reads.
        """
        vocabulary = self.tokenizer.target if self.prompts else self.tokenizer.source
        ids = vocabulary.encode([text])[0]
        if not ids:
            raise UsageError(f"{name} is empty: give at least one word")
        ids = [BOS, *ids] if self.prompts else [*ids, EOS]
        if self.shape == "decoder":
            _check_length(len(ids) + (not self.prompts), self.model.limit, name)
        else:
            _check_length(len(ids), self.source_limit, name)
        return ids

    def with_target(self, source: list[int], target: str | Sequence[int], name: str) -> ModelInput:
        """The input with a given output, as text or as ids without BOS and EOS.

        Raises:
            UsageError: the target is empty.
            DataError: it is longer than the model reads.
        """
        vocabulary = self.tokenizer.target
        output = [*map(int, vocabulary.encode([target])[0] if isinstance(target, str) else target)]
        if not output:
            raise UsageError(f"the target of {name} is empty: give at least one word")
        if outside := [id_ for id_ in output if not 0 <= id_ < len(vocabulary)]:
            raise UsageError(
                f"the target of {name}: id {outside[0]} is not below {len(vocabulary)}"
            )
        read = self._input(source, output, complete=True)
        length = self._row_offset(source) + len(read.ids)
        _check_length(length, self.model.limit, f"{name} with its target")
        return read

    def with_search(
        self, sources: Sequence[list[int]], spec: SearchConfig, lines: Sequence[int]
    ) -> list[ModelInput]:
        """The inputs with the best output that the search finds for each source.

        Raises:
            UsageError: a search ends without an output.
            DataError: the model answers NaN, or has no position left for an output.
        """
        spec = clamp_max_length(self.model, spec.model_copy(update={"n_best": 1}), self.longest)
        found = search_all(self.model, sources, spec, lines=lines, prompts=self.prompts)
        if not all(found):
            raise UsageError("the search found no output: loosen its constraints")
        return [
            self._input(source, best.ids, best.complete)
            for source, (best,) in zip(sources, found, strict=True)
        ]

    def _row_offset(self, source: list[int]) -> int:
        """Where the output begins in the one row of a decoder that reads a source before it."""
        return len(source) if self.shape == "decoder" and not self.prompts else 0

    def _input(self, source: list[int], output: list[int], complete: bool) -> ModelInput:
        """An output behind what the model reads before it."""
        ids = [*source, *output] if self.prompts else [BOS, *output]
        if not complete and self.model.limit is not None:
            # the last token that a model has room to write is one that it never reads
            ids = ids[: self.model.limit - self._row_offset(source)]
        return ModelInput([] if self.prompts else source, ids, output, complete)

    def note(self, text: str, read: ModelInput) -> str:
        """What to warn of: an input unlike the training's or longer, or an output that was cut."""
        longest = max(len(read.source), len(read.ids) - 1)
        vocabulary = self.tokenizer.target if self.prompts else self.tokenizer.source
        unlike = unlike_note(rare_words(vocabulary, [text]))
        notes = [unlike] if unlike else []
        if longest > self.longest:
            notes.append(
                f"a side has {longest} tokens, and training had at most {self.longest}"
                " (data.max_length)"
            )
        if not read.complete:
            notes.append(f"the output was cut at {len(read.output)} tokens")
        return "; ".join(notes)


def _check_length(tokens: int, limit: int | None, name: str) -> None:
    if limit is not None and tokens > limit:
        raise DataError(
            f"{name}: {tokens} tokens, special ones included, but the model reads at most "
            f"{limit}: shorten it, or train with a longer data.max_length"
        )


def source_limit(model: Model) -> int | None:
    """The most tokens that an encoder reads, where weights are tied to positions."""
    layers = attention_layers(model).get("encoder", [])
    parts = (part for layer in layers for part in layer.modules())
    limits = [part.limit for part in parts if isinstance(part, Attention)]
    table = getattr(getattr(model, "embed_source", None), "table", None)
    if table is not None:
        limits.append(table.num_embeddings)
    return min((limit for limit in limits if isinstance(limit, int)), default=None)


def tokens_of(
    parts: Sequence[tuple[Vocabulary, Sequence[int]]], special: Collection[str]
) -> tuple[Token, ...]:
    """The tokens of ids grouped in words, each part in its own vocabulary, one after the other.

    A piece that begins with U+2581 begins a word, and so does one behind a special token; others
    continue the word.  `special` are pieces that stand between texts, such as turn separators.
    """
    tokens: list[Token] = []
    word, inside = -1, False
    for vocabulary, ids in parts:
        for id_, piece in zip(ids, vocabulary.pieces(ids), strict=True):
            if id_ in MARKS or piece in special:
                tokens.append(Token(piece, id_, None, special=True))
                inside = False
                continue
            word += piece.startswith(MARK) or not inside
            inside = True
            tokens.append(Token(piece, id_, word))
    return tuple(tokens)


def portions(sizes: Sequence[int]) -> Iterator[list[int]]:
    """Indices in order, with at most HELD_WEIGHTS weights together, but always one text."""
    portion: list[int] = []
    total = 0
    for index, size in enumerate(sizes):
        if portion and total + size > HELD_WEIGHTS:
            yield portion
            portion, total = [], 0
        portion.append(index)
        total += size
    if portion:
        yield portion


def batches_of(inputs: Sequence[ModelInput], weights: int) -> Iterator[list[int]]:
    """Indices of inputs of similar length that are read together, longest first.

    `weights` is how many weights each pair of tokens has: layers x heads of all kinds.
    """
    sizes = [max(len(read.source), len(read.ids)) for read in inputs]
    order = sorted(range(len(sizes)), key=lambda index: -sizes[index])
    start = 0
    while start < len(order):
        longest = max(1, sizes[order[start]])
        rows = max(1, min(BATCH_TOKENS // longest, BATCH_WEIGHTS // (longest**2 * weights)))
        yield order[start : start + rows]
        start += rows
