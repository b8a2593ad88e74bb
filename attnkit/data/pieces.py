"""Encoding and decoding of text by one sentencepiece model, in runs and in their exports.

A text is encoded in parts between special symbols, each of which is always one piece. sentencepiece alone prefers, in
a unigram model, a more probable segmentation without them.
"""

import math
import re
from collections.abc import Sequence
from functools import cached_property

import sentencepiece

from attnkit.data.text_form import MARK, NormalForm, clean, from_model, normal_form, to_model

FEW = 8
"""Maximum number of texts passed one at a time: for a list, sentencepiece starts a thread."""


class Pieces:
    """Sentencepiece model, and the normal form in which it reads and writes text."""

    def __init__(self, model: bytes, form: NormalForm = "none") -> None:
        """Load a serialized model. Raises RuntimeError or ValueError if it is not a sentencepiece model."""
        self.model, self.form = model, form
        self._processor = sentencepiece.SentencePieceProcessor()
        self._processor.LoadFromSerializedProto(model)
        self.spelled(range(len(self)))  # raises now, instead of in `decode`, if a piece is not UTF-8

    def __len__(self) -> int:
        """Return the number of pieces, special pieces included."""
        return int(self._processor.get_piece_size())

    def text(self, text: str) -> str:
        """Return a text as the model reads it: in its normal form, white space collapsed."""
        return clean(normal_form(text, self.form))

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without BOS and EOS; an empty text gives an empty list."""
        texts = [to_model(self.text(text)) for text in texts]
        if not self._keeps_leading_space:
            return self._encode(texts)
        symbols = self.symbols
        if not symbols:
            return self._encode([text and f" {text}" for text in texts])
        rows = [self.special.split(f" {text}") if text else [] for text in texts]
        ids = iter(self._encode([part for row in rows for part in row[::2]]))  # even parts: text between symbols
        return [[i for n, part in enumerate(row) for i in ([symbols[part]] if n % 2 else next(ids))] for row in rows]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence of ids, always on one line.

        PAD, BOS and EOS vanish, UNK becomes U+2047. Raises IndexError if an id is outside the vocabulary.
        """
        rows = [[int(i) for i in row] for row in ids]
        if len(rows) <= FEW:
            texts = [self._processor.decode(row) for row in rows]
        else:
            texts = self._processor.decode(rows, num_threads=1)
        return [self.text(from_model(text)) for text in texts]

    def spelled(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces of ids as the model spells them, a different string for each id."""
        return [str(self._processor.id_to_piece(int(i))) for i in ids]

    def _encode(self, texts: Sequence[str]) -> list[list[int]]:
        if len(texts) <= FEW:
            return [self._processor.encode(text, out_type=int) for text in texts]
        # One thread: converting ids to lists costs more than computing them.
        ids: list[list[int]] = self._processor.encode(texts, out_type=int, num_threads=1)
        return ids

    @cached_property
    def _keeps_leading_space(self) -> bool:
        """Whether a text keeps its leading space, as in models trained by attnkit.

        Other models put a space before every text, so that parts of a text cannot be encoded.
        """
        spelled = ["".join(self._processor.encode(text, out_type=str)) for text in (" a", "a")]
        return spelled == [f"{MARK}a", "a"]

    @cached_property
    def symbols(self) -> dict[str, int]:
        """Special symbols of the model, as text, and their ids."""
        # Symbols score +0.0; learned pieces score below, or -0.0 (the first merge of BPE).
        scores = enumerate(map(self._processor.get_score, range(4, len(self))), 4)
        ids = [i for i, score in scores if math.copysign(1.0, score) > 0 and i not in self.reserved]
        symbols = (piece.replace(MARK, " ") for piece in self.spelled(ids))
        return dict(zip(symbols, ids, strict=True))

    @cached_property
    def reserved(self) -> frozenset[int]:
        """Ids that text never encodes to: control tokens, bytes, unused pieces."""
        kinds = (self._processor.is_control, self._processor.is_byte, self._processor.is_unused)
        return frozenset(i for i in range(len(self)) if any(kind(i) for kind in kinds))

    @cached_property
    def special(self) -> re.Pattern[str]:
        """Pattern of the special symbols, longest first; without symbols it matches nothing."""
        names = sorted(map(re.escape, self.symbols), key=len, reverse=True)
        return re.compile(f"({'|'.join(names) or '(?!)'})")
