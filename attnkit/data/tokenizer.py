"""Subword vocabularies by sentencepiece: train, encode, decode, sample.

Text is read in the normal form of the recipe (`data.normalize`) and in the form of `text_form`; no text is read as a
control token. Control tokens start with two space marks, which no text has. A character without a piece decodes to
U+2047.
"""

import hashlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import sentencepiece

from attnkit.data import subword_sampling
from attnkit.data.pieces import Pieces
from attnkit.data.rows import Row
from attnkit.data.subword_sampling import BpeDropout, UnigramSampler
from attnkit.data.text_form import MARK, NormalForm, clean, from_model, normal_form, to_model
from attnkit.errors import DataError, RecipeError
from attnkit.recipe import schema
from attnkit.storage.files import atomic_write, check_file, reading
from attnkit.text import RESERVED, counted, quoted

PAD, UNK, BOS, EOS = 0, 1, 2, 3

LABELS_START = b'{"labels":'
"""Beginning of a file of labels, which no sentencepiece model has."""
SOURCE_FILE = "tokenizer.model"
TARGET_FILE = "tokenizer.target.model"
TRAINING_VERSION = 2
"""Version of the training; increased when the same text and settings would give another model."""

# Maximum text for training, about 0.3 million lines of WMT. A unigram model takes about 30 bytes of memory per
# character during training.
TRAINING_CHARACTERS = 40_000_000

UNKNOWN_WORD = RESERVED[UNK]
"""Word that replaces rare words in some published corpora."""

# sentencepiece takes minutes for a line of about 100 kB and fails on such a word. It counts words without context, so
# cutting long lines at spaces changes nothing.
_SEGMENT = 1000

_NEEDED = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")


def control(name: str) -> str:
    """Return the spelling of a control token in a model: no text has two space marks in a row."""
    return MARK * 2 + name


class Vocabulary(Pieces):
    """Pieces of one sentencepiece model; ids 0 to 3 are PAD, UNK, BOS and EOS."""

    def __init__(self, model: bytes, name: str = "tokenizer", form: NormalForm = "none") -> None:
        """Load a serialized sentencepiece model; `name` is used in error messages, `form` is the normal form of text.

        Raises DataError if it is not a sentencepiece model, or has other special ids.
        """
        try:
            super().__init__(model, form)
        except (RuntimeError, ValueError) as error:
            raise DataError(f"{name}: not a sentencepiece model: {_reason(error)}") from error
        processor = self._processor
        ids = (processor.pad_id(), processor.unk_id(), processor.bos_id(), processor.eos_id())
        if ids != (PAD, UNK, BOS, EOS):
            raise DataError(
                f"{name}: the ids of pad, unk, bos, eos are {', '.join(map(str, ids))}; attnkit needs 0, 1, "
                "2, 3: train the model with --pad_id=0 --unk_id=1 --bos_id=2 --eos_id=3"
            )

    def __contains__(self, piece: str) -> bool:
        """Return whether a string is one piece, or the name of a control token."""
        return self._id(piece) is not None

    def id_of(self, piece: str) -> int:
        """Return the id of a piece or of a control token. Raises DataError if there is none."""
        if (id_ := self._id(piece)) is None:
            raise DataError(f"the tokenizer has no piece {piece!r}: train the tokenizer with this recipe")
        return id_

    def _id(self, piece: str) -> int | None:
        plain = to_model(piece)  # spelling of control tokens in earlier versions and other models
        for spelled in (control(piece), plain, *([MARK + plain] if self._is_words else [])):
            if (id_ := int(self._processor.piece_to_id(spelled))) != UNK:
                return id_
        return None

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Return the piece of each id, with U+2581 at the start of a word; control tokens by name."""
        return [from_model(piece.removeprefix(control(""))) for piece in self.spelled(ids)]

    def unknown(self, texts: Iterable[str]) -> Counter[str]:
        """Count the characters without a piece in texts; with a model of words, the words without a piece."""
        units = Counter[str]()
        for text in texts:
            rest = self.special.sub(" ", f" {to_model(self.text(text))}")
            units.update(rest.split() if self._is_words else rest.replace(" ", ""))
        found = {unit: n for unit, n in units.items() if UNK in self._encode([f" {unit}"])[0]}
        return Counter({from_model(unit): n for unit, n in found.items()})

    def sample(self, texts: Sequence[str], *, alpha: float, seed: int) -> list[list[int]]:
        """Return the ids of one random segmentation of each text, without BOS and EOS.

        A pure function of (texts, alpha, seed), the same in every process. A unigram model draws a segmentation with
        probability ~ p ** alpha (towards 0 more varied; 1 follows the model); a BPE model skips each merge with
        probability alpha (towards 1 more varied).

        Raises RecipeError if the model has only one segmentation (words, characters), or its pieces cross spaces.
        """
        segmenter = self._sampler()(self._learned, UNK, alpha)
        texts = [to_model(self.text(text)) for text in texts]
        special = {symbol.replace(" ", MARK): id_ for symbol, id_ in self.symbols.items()}
        return subword_sampling.sample(texts, segmenter, special, seed)

    @cached_property
    def _is_words(self) -> bool:
        """Whether the pieces are whole words: then the space mark alone is not a piece."""
        return bool(self._processor.piece_to_id(MARK) == UNK)

    @cached_property
    def _learned(self) -> dict[str, tuple[int, float]]:
        """Pieces learned from text, with their ids and scores."""
        special = {*self.symbols.values(), *self.reserved}
        ids = [id_ for id_ in range(len(RESERVED), len(self)) if id_ not in special]
        scores = map(self._processor.get_score, ids)
        return dict(zip(self.spelled(ids), zip(ids, scores, strict=True), strict=True))

    def _sampler(self) -> type[UnigramSampler | BpeDropout]:
        """Return the sampler for this kind of model; only unigram models have n-best lists."""
        kind: type[UnigramSampler | BpeDropout] = UnigramSampler
        try:
            self._processor.nbest_encode("a", out_type=int, nbest_size=2)
        except RuntimeError:
            kind = BpeDropout
        try:
            self._processor.encode("a", out_type=int, enable_sampling=True, nbest_size=-1, alpha=1)
        except RuntimeError as error:
            raise RecipeError("tokenizer.sampling: only unigram and bpe models can sample; set it to 0") from error
        if self.encode(["a a"]) != [self.encode(["a"])[0] * 2]:
            raise RecipeError("tokenizer.sampling: the model does not mark the start of every word; set it to 0")
        return kind


class LabelVocabulary(Vocabulary):
    """Labels as a vocabulary: ids 0 to 3 as in every vocabulary, then one id per label."""

    form: NormalForm = "none"

    def __init__(self, labels: Sequence[str]) -> None:
        self.labels = tuple(labels)
        self.model = json.dumps({"labels": self.labels}).encode()

    def __len__(self) -> int:
        return len(RESERVED) + len(self.labels)

    def __contains__(self, piece: str) -> bool:
        return piece in self.labels

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the id of each label; an empty list for any other text."""
        known = {label: id_ for id_, label in enumerate(self.labels, len(RESERVED))}
        return [[known[text]] if text in known else [] for text in texts]

    def unknown(self, texts: Iterable[str]) -> Counter[str]:
        """Return an empty counter: texts other than labels are not input."""
        return Counter()

    def sample(self, texts: Sequence[str], *, alpha: float, seed: int) -> list[list[int]]:
        """Return the same as `encode`: a label has one segmentation."""
        return self.encode(texts)

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        return [" ".join(self.pieces([i for i in row if i >= len(RESERVED)])) for row in ids]

    def pieces(self, ids: Sequence[int]) -> list[str]:
        return [(*RESERVED, *self.labels)[int(i)] for i in ids]


class Tokenizer(NamedTuple):
    """Vocabularies of both sides; the same object twice if shared."""

    source: Vocabulary
    target: Vocabulary

    @property
    def sizes(self) -> tuple[int, int]:
        """Number of pieces in each vocabulary."""
        return len(self.source), len(self.target)

    @property
    def shared(self) -> bool:
        """Whether both sides have the same vocabulary."""
        return self.source is self.target

    @property
    def digest(self) -> str:
        """SHA-256 in hexadecimal of the models, which determine all ids."""
        total = hashlib.sha256()
        for vocabulary in (self.source,) if self.shared else self:
            total.update(hashlib.sha256(vocabulary.model).digest())
        return total.hexdigest()

    @classmethod
    def train(
        cls,
        spec: schema.TokenizerConfig,
        rows: Iterable[Row],
        *,
        controls: Sequence[str] = (),
        form: NormalForm = "none",
    ) -> "Tokenizer":
        """Train on all rows, or load the existing model in the recipe.

        The result is a pure function of the arguments and the version of sentencepiece. With few distinct words it has
        fewer pieces than requested. Without any source text (language modeling) the target's vocabulary serves both
        sides. `controls` are names of control tokens beside PAD, UNK, BOS and EOS.

        Raises:
            RecipeError: The size is below the alphabet, or a special token is not usable.
            DataError: The rows hold no text, or the existing model does not fit.
            MissingInputError: The existing model does not exist.
        """
        if spec.model is not None:
            vocabulary = _read(Path(spec.model), form)
            for piece in (*spec.special, *controls):
                if normal_form(piece, form) not in vocabulary:
                    raise DataError(
                        f"{spec.model}: has no piece {piece!r}, which the recipe needs (tokenizer.special, "
                        "train.objective); train the model with this piece as a user-defined symbol"
                    )
            return cls(vocabulary, vocabulary)
        sources, targets = list[str](), list[str]()
        for row in rows:
            sources += _segments(row.source, form)
            targets += _segments(row.target, form)
        if spec.shared or not sources:
            vocabulary = _train(spec, sources + targets, "text", controls, form)
            return cls(vocabulary, vocabulary)
        return cls(
            _train(spec, sources, "source text", controls, form), _train(spec, targets, "target text", controls, form)
        )

    def with_labels(self, labels: Sequence[str]) -> "Tokenizer":
        """Return the source's vocabulary with labels as the target's vocabulary."""
        return Tokenizer(self.source, LabelVocabulary(labels))

    def in_form(self, form: NormalForm) -> "Tokenizer":
        """Return the same vocabularies with another normal form of text."""
        source = Vocabulary(self.source.model, form=form)
        if self.shared:
            return Tokenizer(source, source)
        if isinstance(self.target, LabelVocabulary):
            return Tokenizer(source, self.target)
        return Tokenizer(source, Vocabulary(self.target.model, form=form))

    def save(self, folder: Path) -> None:
        """Write tokenizer.model and, unless shared, tokenizer.target.model. Raises OutputPathError or OutputError."""
        atomic_write(folder / SOURCE_FILE, self.source.model)
        if not self.shared:
            atomic_write(folder / TARGET_FILE, self.target.model)

    @classmethod
    def load(cls, folder: Path, form: NormalForm = "none", shared: bool | None = None) -> "Tokenizer":
        """Load a saved tokenizer; `form` is the recipe's normal form (`data.normalize`).

        `shared` says whether both sides have the same vocabulary; None: detected from the files in the folder.

        Raises MissingInputError if there is no tokenizer.model, DataError if a file is damaged.
        """
        source = _read(folder / SOURCE_FILE, form)
        if shared is None:
            shared = not (folder / TARGET_FILE).exists()
        if shared:
            return cls(source, source)
        return cls(source, _read(folder / TARGET_FILE, form))


def unknown_note(found: Counter[str]) -> str:
    """Return a warning about the result of `Vocabulary.unknown`; an empty string if it is empty."""
    if not found:
        return ""
    unit, times = found.most_common(1)[0]
    noun = "character" if max(map(len, found)) == 1 else "word"
    code = f" (U+{ord(unit):04X})" if len(unit) == 1 else ""
    example = f": {quoted(unit)}{code}"
    if len(found) > 1:
        example = f", most often {quoted(unit)}{code}, {counted(times, 'time')}"
    return f"the tokenizer has no piece for {counted(found.total(), noun)} of the input{example}"


def subsample(rows: Iterable[Row], characters: int = TRAINING_CHARACTERS) -> tuple[list[Row], int]:
    """Return every k-th row, and the number of all rows; k is the minimum power of two whose text fits the budget.

    One pass, no random numbers, memory bounded by the budget: whenever the text of the sample outgrows it, every
    second row of the sample is removed.
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


def _read(path: Path, form: NormalForm) -> Vocabulary:
    check_file(path)
    with reading(path):
        data = path.read_bytes()
    if not data.startswith(LABELS_START):
        return Vocabulary(data, str(path), form)
    try:
        return LabelVocabulary([str(label) for label in json.loads(data)["labels"]])
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}: damaged list of labels ({error})") from error


def _segments(text: str, form: NormalForm) -> list[str]:
    """Split text into parts of at most _SEGMENT characters, cut before spaces if possible."""
    rest = to_model(clean(normal_form(text, form)))
    rest, parts = rest and f" {rest}", []
    while len(rest) > _SEGMENT:
        space = rest.rfind(" ", 1, _SEGMENT + 1)
        cut = _SEGMENT if space < 0 else space
        parts.append(rest[:cut])
        rest = rest[cut:]
    if rest:
        parts.append(rest)
    return parts


def _train(
    spec: schema.TokenizerConfig, lines: list[str], what: str, controls: Sequence[str], form: NormalForm
) -> Vocabulary:
    if not lines:
        raise DataError(f"the tokenizer cannot be trained: the {what} is empty in all training rows")
    special = [to_model(normal_form(piece, form)) for piece in spec.special]
    if spec.type == "word":
        # User-defined symbols would also match inside other words. As a word, each is in the vocabulary if it is
        # among the `size` most frequent words; `repeats` exceeds the maximum frequency of the last of these.
        repeats = 1 + sum(line.count(" ") for line in lines) // spec.size
        for word in special:
            lines = [*lines, *[f" {word.removeprefix(MARK)}"] * repeats]
        special = []
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=spec.type,
            vocab_size=spec.size,
            user_defined_symbols=[*special, *map(control, controls)],
            character_coverage=spec.coverage,
            pad_id=PAD,
            unk_id=UNK,
            bos_id=BOS,
            eos_id=EOS,
            pad_piece=control(RESERVED[PAD]),
            unk_piece=control(RESERVED[UNK]),
            bos_piece=control(RESERVED[BOS]),
            eos_piece=control(RESERVED[EOS]),
            normalization_rule_name="identity",
            # `encode` puts the space before the first word itself, so that parts of a text that begin inside a word
            # can be encoded.
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            hard_vocab_limit=False,
            # With more threads the sums of expected counts, and thus the pieces, can differ.
            num_threads=1,
            # In bytes; `_segments` already limits the lines.
            max_sentence_length=1 << 20,
            minloglevel=2,
        )
    except RuntimeError as error:
        if needed := _NEEDED.search(str(error)):
            raise RecipeError(
                f"tokenizer.size: {spec.size} is smaller than the alphabet of the {what}: use at least "
                f"{needed[1]}, or lower tokenizer.coverage"
            ) from error
        if "character_coverage" in str(error):
            text = f"tokenizer.coverage: must be from 0.98 to 1 to train a tokenizer, got {spec.coverage:g}"
            raise RecipeError(text) from error
        raise DataError(f"the tokenizer cannot be trained: {_reason(error)}") from error
    return Vocabulary(model.getvalue(), form=form)


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
