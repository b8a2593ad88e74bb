"""Tokens of any tokenizer as readable pieces in words, whatever marks its vocabulary uses.

Vocabularies mark what begins a word (U+2581 of sentencepiece, U+0120 of byte-level BPE), what
continues one (## of WordPiece), what ends one (</w>) or what does not (@@).  Here every piece
that has a space before it begins with U+2581, and bytes that are whole characters are text again.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from attnkit.analysis.maps import Token
from attnkit.data.text_form import MARK

BYTE_MARK = "\u0120"
"""How byte-level BPE writes a space."""
PREFIXES = (MARK, BYTE_MARK, "##")
SUFFIXES = ("</w>", "@@")
CHARACTERS = "characters"
PLAIN = ""
RARE = 0.01
"""A mark in a smaller share of the vocabulary is an ordinary piece."""
OUTSIDE = ("unk_token_id", "mask_token_id")
"""Special tokens that stand for words of the text."""
_PARTIAL = re.compile("[\udc80-\udcff]")
"""Bytes of no whole character, as the error handler surrogateescape has them."""


class TokenSpan(NamedTuple):
    """Where a token lies in its text, as a tokenizer of the tokenizers library reports."""

    word: int | None
    """Number of its word; there punctuation is a word of its own."""
    spaced: bool
    """Whether white space is before it."""


def encode(tokenizer: Any, text: str, *, target: bool = False) -> list[int]:
    """Ids with the special tokens that the model expects; `target`: as a decoder's output."""
    read = tokenizer(text_target=text) if target else tokenizer(text)
    return [int(number) for number in read["input_ids"]]


class Speller:
    """Spells the tokens of one tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        """Find out how its vocabulary marks words, and which ids stand for no text."""
        self.tokenizer = tokenizer
        self.style = _style(tokenizer.get_vocab())
        added = tokenizer.added_tokens_decoder
        special = {id_ for id_, token in added.items() if token.special}
        names = ("bos", "eos", "pad", "sep", "cls")
        marks = {getattr(tokenizer, f"{name}_token_id") for name in names}
        text = {getattr(tokenizer, name) for name in OUTSIDE} - marks
        self.special = frozenset({*tokenizer.all_special_ids, *special} - text)
        """Ids that stand for no text of the user's: begin, end, separators, padding, languages."""

    def tokens_of(
        self, ids: Sequence[int], text: str | None = None, *, target: bool = False
    ) -> tuple[Token, ...]:
        """The tokens of ids, special ones included, grouped in words.

        `text`, which they spell, says where spaces and words are if encoding it (as a decoder's
        output where it is the `target`) gives these ids.
        """
        spans = self._spans(ids, text, target) if text is not None else {}
        tokens: list[Token] = []
        word, before = -1, PreviousToken()
        pieces = self.tokenizer.convert_ids_to_tokens(list(ids))
        for place, (id_, raw) in enumerate(zip(ids, pieces, strict=True)):
            piece = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
            if id_ in self.special:
                tokens.append(Token(piece, id_, None, special=True))
                before = PreviousToken()
                continue
            span = spans.get(place)
            text_word = span.word if span else None
            spelled, begins = self._spell(piece, before, span)
            word += begins or before.first or text_word != before.word
            tokens.append(Token(spelled, id_, word))
            before = PreviousToken(piece, text_word, first=False)
        return tuple(tokens)

    def _spans(self, ids: Sequence[int], text: str, target: bool) -> dict[int, TokenSpan]:
        """The span of each place of ids; empty where encoding the text gives other ids."""
        if not self.tokenizer.is_fast:
            return {}
        named = {"text_target": text} if target else {"text": text}
        read = self.tokenizer(**named, return_offsets_mapping=True)
        columns = (read["input_ids"], read.word_ids(0), read["offset_mapping"])
        rows = [row for row in zip(*columns, strict=True) if row[0] not in self.special]
        places = [place for place, id_ in enumerate(ids) if id_ not in self.special]
        if [id_ for id_, *_ in rows] != [ids[place] for place in places]:
            return {}
        return {
            place: TokenSpan(word, start > 0 and text[start - 1].isspace())
            for place, (_, word, (start, _)) in zip(places, rows, strict=True)
        }

    def _spell(
        self, piece: str, before: "PreviousToken", span: TokenSpan | None
    ) -> tuple[str, bool]:
        """A piece without marks but U+2581 for a space before it, and whether it begins a word."""
        if self.style == MARK:
            return piece, piece.startswith(MARK)
        if self.style == BYTE_MARK:
            text = readable(piece)
            # a lone space belongs to the word behind it, a line break does not
            broken = span is None and readable(before.piece)[-1:] in ("\n", "\r", "\t")
            return text.replace(" ", MARK), broken or text[:1].isspace()
        if self.style == CHARACTERS:
            return piece.replace(" ", MARK), piece.isspace()
        text, joined = piece, False
        if self.style == "##":
            text, joined = piece.removeprefix("##"), piece.startswith("##")
        if self.style in SUFFIXES:  # "@@": the word goes on; "</w>": it ends
            text = piece.removesuffix(self.style)
            joined = before.piece.endswith(self.style) == (self.style == "@@")
        continues = joined and not before.first
        spaced = span.spaced if span else not before.first
        return (MARK + text if spaced and not continues else text), not continues


class PreviousToken(NamedTuple):
    """The token before."""

    piece: str = ""
    word: int | None = None
    first: bool = True
    """Whether there is none, or a special one."""


def readable(piece: str) -> str:
    """A piece of byte-level BPE as text; bytes that are no whole character as <0xE4>."""
    known = _bytes()
    if any(character not in known for character in piece):
        return piece  # an added token, spelled as it is
    raw = bytes(known[character] for character in piece)
    text = raw.decode("utf-8", "surrogateescape")
    return _PARTIAL.sub(lambda found: f"<0x{ord(found[0]) - 0xDC00:02X}>", text)


@cache
def _bytes() -> dict[str, int]:
    """The byte that each character of byte-level BPE stands for.

    Printable characters of Latin-1 stand for themselves, the others are counted up from U+0100.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    shifted = {chr(0x100 + place): byte for place, byte in enumerate(others)}
    return {chr(byte): byte for byte in printable} | shifted


def _style(vocabulary: dict[str, int]) -> str:
    """The mark that most pieces carry."""
    pieces = [piece for piece in vocabulary if isinstance(piece, str)]
    counts = {mark: sum(piece.startswith(mark) for piece in pieces) for mark in PREFIXES}
    counts |= {mark: sum(piece.endswith(mark) for piece in pieces) for mark in SUFFIXES}
    best = max(counts, key=lambda mark: counts[mark])
    if counts[best] > RARE * len(pieces):
        return best
    single = sum(len(piece) == 1 for piece in pieces)
    return CHARACTERS if 2 * single > len(pieces) else PLAIN
