"""The tokens of an axis: ids as their vocabulary spells them, grouped in words."""

from collections.abc import Collection, Sequence

from attnkit.analysis.maps import Token
from attnkit.data.subword_sampling import MARK
from attnkit.data.tokenizer import BOS, EOS, PAD, Vocabulary

MARKS = frozenset({PAD, BOS, EOS})
"""Ids that stand for no text."""


def axis(
    parts: Sequence[tuple[Vocabulary, Sequence[int]]], special: Collection[str]
) -> tuple[Token, ...]:
    """The tokens of ids, each part in its own vocabulary, one part after the other.

    A piece that begins with U+2581 begins a word, and so does one behind a special token; others go
    on with the word.  `special` are pieces that stand between texts, such as turn separators.
    """
    tokens: list[Token] = []
    word = -1
    inside = False
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
