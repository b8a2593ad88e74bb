"""Subword vocabularies by sentencepiece: train, encode, decode, sample.

Text passes through unchanged but for white space: any run of Unicode white space becomes one
space, at both ends none.  There is no NFKC (sentencepiece's default): it would rewrite the
targets (ligatures, full-width forms, superscripts, the ellipsis), and a model trained on
rewritten text cannot produce the references that sacrebleu compares with as they are.  White
space alone is no loss: the metrics' own tokenizers split on it.

sentencepiece's own mark of a space, U+2581, reads as a space; a lone surrogate reads as U+FFFD; a
character without a piece decodes to U+2047.
"""

import hashlib
import io
import json
import math
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import sentencepiece

from attnkit.data import subword_sampling
from attnkit.data.rows import Row
from attnkit.data.subword_sampling import MARK, BpeDropout, Piece, UnigramSampler
from attnkit.errors import DataError, RecipeError
from attnkit.recipe import schema
from attnkit.storage.files import atomic_write, reading, require_file
from attnkit.text import RESERVED

Item = TypeVar("Item")

PAD, UNK, BOS, EOS = 0, 1, 2, 3

LABELS_START = b'{"labels":'
"""With which a file of labels begins, and no sentencepiece model does."""
SOURCE_FILE = "tokenizer.model"
TARGET_FILE = "tokenizer.target.model"

# Training reads at most this much text, about 0.3 million lines of WMT.  A unigram model takes some
# 30 bytes of memory a character while it is trained.
TRAINING_CHARACTERS = 40_000_000

FEW = 8
"""Up to so many texts are passed one at a time: for a list SentencePiece starts a thread."""

# Words are counted without their neighbours, so that cutting long lines at spaces changes
# nothing, whereas sentencepiece takes minutes for a line of some 100 kB and fails on such a word.
_SEGMENT = 1000

_NEEDED = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")

_REPAIRABLE = re.compile("[\ud800-\udfff\u2581]")


def clean(text: str) -> str:
    """The text that pieces are made from: white space collapsed, lone surrogates as U+FFFD."""
    if not text.isascii():
        text = _REPAIRABLE.sub(lambda match: " " if match[0] == MARK else "\ufffd", text)
    return " ".join(text.split())


class Vocabulary:
    """The pieces of one sentencepiece model; ids 0 to 3 are PAD, UNK, BOS and EOS."""

    def __init__(self, model: bytes, name: str = "tokenizer") -> None:
        """Read a serialised sentencepiece model; `name` stands in error messages.

        Raises DataError: it is no sentencepiece model, or its special ids differ.
        """
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except (RuntimeError, ValueError) as error:
            raise DataError(f"{name}: not a sentencepiece model: {_reason(error)}") from error
        processor = self._processor
        ids = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
        if ids != (PAD, UNK, BOS, EOS):
            raise DataError(
                f"{name}: the ids of pad, unk, bos, eos are {', '.join(map(str, ids))}; attnkit "
                "needs 0, 1, 2, 3: train it with --pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3"
            )

    def __len__(self) -> int:
        """Number of pieces, special ones included."""
        return int(self._processor.get_piece_size())

    def __contains__(self, piece: str) -> bool:
        """Whether this very string is one piece."""
        return bool(self._processor.piece_to_id(piece) != UNK)

    def id_of(self, piece: str) -> int:
        """The id of this very string; a DataError where it is no piece."""
        if piece not in self:
            raise DataError(f"the tokenizer has no piece {piece!r}: train it with this recipe")
        return int(self._processor.piece_to_id(piece))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text, without BOS and EOS; an empty text gives an empty list."""
        cleaned = [clean(text) for text in texts]
        if len(texts) <= FEW:
            return [self._processor.encode(text, out_type=int) for text in cleaned]
        # One thread: turning ids into lists costs more than finding them.
        ids: list[list[int]] = self._processor.encode(cleaned, out_type=int, num_threads=1)
        return ids

    def sample(self, texts: Sequence[str], *, alpha: float, seed: int) -> list[list[int]]:
        """Ids of one random segmentation of each text, without BOS and EOS.

        A pure function of (texts, alpha, seed), the same in every process.

        Args:
            texts: any strings.
            alpha: a unigram model draws a segmentation with probability ~ p ** alpha (towards 0
                more varied; 1 follows the model); a BPE model leaves out each merge with this
                probability (towards 1 more varied).
            seed: any integer.

        Raises:
            RecipeError: the model has one segmentation only (words, characters), or its pieces
                reach across spaces.
        """
        pieces, special = self._pieces
        kind = UnigramSampler if self._is_unigram() else BpeDropout
        segmenter = kind(pieces, UNK, alpha)
        return subword_sampling.sample([clean(text) for text in texts], segmenter, special, seed)

    @cached_property
    def _pieces(self) -> tuple[dict[str, Piece], dict[str, int]]:
        """Pieces made from text with their scores, and user-defined symbols with their ids."""
        learned, special = {}, {}
        for id_ in range(len(RESERVED), len(self)):
            piece, score = self._processor.id_to_piece(id_), self._processor.get_score(id_)
            # Symbols score +0.0; learned pieces score below, or -0.0 (the first merge of BPE).
            if math.copysign(1.0, score) > 0:
                special[piece] = id_
            else:
                learned[piece] = Piece(id_, score)
        return learned, special

    def _is_unigram(self) -> bool:
        """Whether a model that can sample is a unigram one (then it lists the best) or BPE."""
        unigram = _available(self._processor.nbest_encode, nbest_size=2)
        if not unigram and not _available(
            self._processor.encode, enable_sampling=True, nbest_size=-1, alpha=1.0
        ):
            raise RecipeError(
                "tokenizer.sampling: only unigram and bpe models can sample; set it to 0"
            )
        if self.encode(["a a"]) != [self.encode(["a"])[0] * 2]:
            raise RecipeError(
                "tokenizer.sampling: the model does not mark the start of every word; set it to 0"
            )
        return unigram

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Text of each sequence of ids: one line each, whatever the pieces contain.

        PAD, BOS and EOS vanish, UNK becomes U+2047.

        Raises IndexError: an id is outside the vocabulary.
        """
        rows = [[int(i) for i in row] for row in ids]
        if len(rows) <= FEW:
            return [clean(self._processor.decode(row)) for row in rows]
        return [clean(text) for text in self._processor.decode(rows, num_threads=1)]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The piece of each id as the model spells it, with U+2581 at the start of a word."""
        return [str(self._processor.id_to_piece(int(i))) for i in ids]


class LabelVocabulary(Vocabulary):
    """Labels as a vocabulary: ids 0 to 3 as in every other, then an id for each label."""

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = tuple(labels)
        self.model = json.dumps({"labels": self.labels}).encode()

    def __len__(self) -> int:
        return len(RESERVED) + len(self.labels)

    def __contains__(self, piece: str) -> bool:
        return piece in self.labels

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """The id of each label; nothing for another text."""
        known = {label: id_ for id_, label in enumerate(self.labels, len(RESERVED))}
        return [[known[text]] if text in known else [] for text in texts]

    def sample(self, texts: Sequence[str], *, alpha: float, seed: int) -> list[list[int]]:
        """As `encode`: a label has one form."""
        return self.encode(texts)

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [" ".join(self.pieces([i for i in row if i >= len(RESERVED)])) for row in ids]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [(*RESERVED, *self.labels)[int(i)] for i in ids]


class Tokenizer(NamedTuple):
    """The vocabularies of both sides; the same object twice when they are shared."""

    source: Vocabulary
    target: Vocabulary

    @property
    def shared(self) -> bool:
        """Whether both sides have one vocabulary."""
        return self.source is self.target

    @property
    def digest(self) -> str:
        """SHA-256 in hexadecimal of what decides every id."""
        total = hashlib.sha256()
        for vocabulary in (self.source,) if self.shared else (self.source, self.target):
            total.update(hashlib.sha256(vocabulary.model).digest())
        return total.hexdigest()

    @classmethod
    def train(cls, spec: schema.TokenizerConfig, rows: Iterable[Row]) -> "Tokenizer":
        """Train on all given rows, or read the existing model that the recipe names.

        The result is a pure function of the recipe's section, the rows and the version of
        sentencepiece.  With few distinct words it has fewer pieces than requested.  Without any
        source text (language modelling) the target's vocabulary serves both sides.

        Raises:
            RecipeError: the size is below the alphabet, or a special token is not usable.
            DataError: the rows hold no text, or the existing model does not fit.
            MissingInputError: the existing model is not there.
        """
        if spec.model is not None:
            vocabulary = _read(Path(spec.model))
            for piece in spec.special:
                if piece not in vocabulary:
                    raise DataError(
                        f"{spec.model}: has no piece {piece!r}, which tokenizer.special lists; "
                        "take it out of the recipe or train the model with it as a user-defined "
                        "symbol"
                    )
            return cls(vocabulary, vocabulary)
        sources, targets = deque[str](), deque[str]()
        for row in rows:
            sources += _segments(row.source)
            targets += _segments(row.target)
        if spec.shared or not sources:
            sources += targets
            targets.clear()
            vocabulary = _train(spec, sources, "text")
            return cls(vocabulary, vocabulary)
        return cls(_train(spec, sources, "source text"), _train(spec, targets, "target text"))

    def with_labels(self, labels: Sequence[str]) -> "Tokenizer":
        """The source's vocabulary, and labels as that of the target."""
        return Tokenizer(self.source, LabelVocabulary(labels))

    def save(self, folder: Path) -> None:
        """Write tokenizer.model, and tokenizer.target.model where the target has its own.

        Raises OutputPathError, OutputError: a file cannot be written.
        """
        atomic_write(folder / SOURCE_FILE, self.source.model)
        if not self.shared:
            atomic_write(folder / TARGET_FILE, self.target.model)

    @classmethod
    def load(cls, folder: Path) -> "Tokenizer":
        """Read what `save` wrote.

        Raises:
            MissingInputError: there is no tokenizer.model.
            DataError: a file is damaged.
        """
        source = _read(folder / SOURCE_FILE)
        if not (folder / TARGET_FILE).exists():
            return cls(source, source)
        return cls(source, _read(folder / TARGET_FILE))


def subsample(rows: Iterable[Row], characters: int = TRAINING_CHARACTERS) -> tuple[list[Row], int]:
    """Every k-th row, with the smallest power of two k for which the text fits the budget.

    One pass, no random numbers, memory bounded by the budget: whenever the text of the sample
    outgrows it, every second row of the sample goes.

    Returns:
        The rows, and the number of all rows.
    """
    sample: list[Row] = []
    size, stride, seen = 0, 1, 0
    for index, row in enumerate(rows):
        seen += 1
        if index % stride:
            continue
        sample.append(row)
        size += len(row.source) + len(row.target)
        while size > characters and len(sample) > 1:
            del sample[1::2]
            stride *= 2
            size = sum(len(r.source) + len(r.target) for r in sample)
    return sample, seen


def _read(path: Path) -> Vocabulary:
    require_file(path)
    with reading(path):
        data = path.read_bytes()
    if not data.startswith(LABELS_START):
        return Vocabulary(data, str(path))
    try:
        return LabelVocabulary([str(label) for label in json.loads(data)["labels"]])
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: damaged list of labels ({error})") from error


def _segments(text: str) -> list[str]:
    """The cleaned text in parts of at most _SEGMENT characters, cut at spaces where possible."""
    rest = clean(text)
    parts = []
    while len(rest) > _SEGMENT:
        cut = rest.rfind(" ", 1, _SEGMENT + 1)
        if cut < 0:
            cut = _SEGMENT
        parts.append(rest[:cut])
        rest = rest[cut:].lstrip(" ")
    if rest:
        parts.append(rest)
    return parts


def drain(items: deque[Item]) -> Iterator[Item]:
    """The items in order; each is forgotten when it is handed out."""
    while items:
        yield items.popleft()


def _train(spec: schema.TokenizerConfig, lines: deque[str], what: str) -> Vocabulary:
    """A vocabulary learned from lines, which are used up."""
    if not lines:
        raise DataError(f"the tokenizer has no {what} to learn from: all training rows are empty")
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=drain(lines),
            model_writer=model,
            model_type=spec.type,
            vocab_size=spec.size,
            user_defined_symbols=list(spec.special),
            character_coverage=spec.coverage,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            normalization_rule_name="identity",
            hard_vocab_limit=False,
            # With more threads the sums of expected counts, and so the pieces, can differ.
            num_threads=1,
            # In bytes; _segments already bounds the lines.
            max_sentence_length=1 << 20,
            minloglevel=2,
        )
    except RuntimeError as error:
        if needed := _NEEDED.search(str(error)):
            raise RecipeError(
                f"tokenizer.size: {spec.size} is smaller than the alphabet of the {what}: at "
                f"least {needed[1]} is needed, or a lower tokenizer.coverage"
            ) from error
        raise DataError(f"the tokenizer cannot be trained: {_reason(error)}") from error
    return Vocabulary(model.getvalue())


def _available(method: Callable[..., Any], **options: Any) -> bool:
    """Whether a model of this kind answers this call."""
    try:
        method(["a"], out_type=int, **options)
    except RuntimeError:
        return False
    return True


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
