"""Words of any script: runs of letters and digits; characters where no spaces stand between words.

Tibetan has a mark between syllables, so that these are its words.
"""

import regex

UNSPACED = r"\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
"""Scripts without spaces between words, for a set of `regex`."""
_CHARACTER = rf"[[{UNSPACED}]&&\p{{L}}]"
_PIECES = regex.compile(rf"(?V1){_CHARACTER}\p{{M}}*|[^\s{_CHARACTER}]+")
_NO_WORD = regex.compile("[^\\p{L}\\p{M}\\p{N}\u200c\u200d]+")  # joiners are part of spellings


def split_unspaced(text: str) -> list[str]:
    """A text cut at white space, and into characters, each with its marks, in such scripts."""
    return list(_PIECES.findall(text))


def unicode_words(text: str) -> list[str]:
    """The words in lower case, without punctuation and symbols."""
    return split_unspaced(_NO_WORD.sub(" ", text.lower()))
