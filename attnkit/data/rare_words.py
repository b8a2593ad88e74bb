"""Detection of texts unlike the training data by rare words, which are not pieces of the tokenizer."""

from collections import Counter
from collections.abc import Iterable
from functools import lru_cache

from attnkit.data.text_form import MARK
from attnkit.data.tokenizer import Vocabulary
from attnkit.text import quoted


def rare_words(vocabulary: Vocabulary, texts: Iterable[str]) -> Counter[str]:
    """Count the first rare word of each text that is unlike the training data.

    A word is rare if the vocabulary splits it into several pieces; a text is unlike the training data if at least half
    of its words are rare. Empty if few pieces of the vocabulary are whole words.
    """
    if not _has_words(vocabulary):
        return Counter()
    split = [text.split() for text in texts]
    distinct = list(dict.fromkeys(word for words in split for word in words))
    rare = {
        word
        for word, ids in zip(distinct, vocabulary.encode(distinct), strict=True)
        if sum(piece.strip(MARK).isalpha() for piece in vocabulary.pieces(ids)) > 1
    }
    found = [(words, [word for word in words if word in rare]) for words in split]
    return Counter(matches[0] for words, matches in found if matches and len(matches) * 2 >= len(words))


def unlike_note(found: Counter[str] | None, lines: int = 1) -> str:
    """Return a warning about the `rare_words` of some lines; an empty string if there are none."""
    if not found:
        return ""
    where = f"in {found.total():,} of {lines:,} lines, " if lines > 1 else ""
    return (
        f"{where}at least half of the words, such as {quoted(found.most_common(1)[0][0])}, are not in "
        "the vocabulary: the text differs from the training data, so results are unreliable"
    )


@lru_cache(4)
def _has_words(vocabulary: Vocabulary) -> bool:
    """Return whether at least a quarter of the pieces are or begin words of three or more letters."""
    pieces = vocabulary.pieces(range(len(vocabulary)))
    return sum(len(piece) > 3 and piece[0] == MARK for piece in pieces) >= len(pieces) / 4
