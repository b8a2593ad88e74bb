"""Text at the edges: made safe to show, told by token, and the nearest word for suggestions."""

import difflib
import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from os.path import commonprefix

RESERVED = ("<pad>", "<unk>", "<s>", "</s>")
"""Pieces that every vocabulary begins with."""
_VISIBLE_FORMATS = frozenset(
    # joiners, which scripts and emoji need, and the number signs, which are drawn
    [0x200C, 0x200D, *range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD]
)
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"})


class _Visible(dict[int, str | int]):
    """A `str.translate` table that fills itself."""

    def __missing__(self, code: int) -> str | int:
        self[code] = code if _harmless(code) else _escape(code)
        return self[code]


def _harmless(code: int) -> bool:
    if code in (0x09, 0x0A) or code in _VISIBLE_FORMATS:
        return True
    return unicodedata.category(chr(code)) not in _HIDDEN


def _escape(code: int) -> str:
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


_TABLE = _Visible()


def safe_text(text: str) -> str:
    r"""Text that cannot command a terminal or reorder what is around it.

    Controls (but newline and tab), bidirectional and other format controls, line and paragraph
    separators, lone surrogates and unassigned characters become visible: \x1b, \u202e.
    """
    return text if text.isascii() and text.isprintable() else text.translate(_TABLE)


def one_line(text: str) -> str:
    """Text from anywhere as safe text on one line."""
    return " ".join(safe_text(text).split())


def quoted(text: str, longest: int = 48) -> str:
    """Text for a message: safe, on one line, in single quotes, cut in the middle when long."""
    if len(text) > longest:
        text = f"{text[: longest - 12]}...{text[-9:]}"
    return "'" + safe_text(text).replace("\n", "\\n").replace("\t", "\\t") + "'"


def nearest(word: str, choices: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The choice most like `word`, case aside, or None when none is near.

    `cutoff` is the share of letters in common, from 0 to 1, that counts as near.
    """
    if not 0 < len(word) <= 64:
        return None
    folded = {choice.casefold(): choice for choice in choices}
    found = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=cutoff)
    return folded[found[0]] if found else None


def hint(word: str, choices: Iterable[str], otherwise: str | None = None) -> str:
    """What is told of a word that is none of the choices: the nearest one, else what there is."""
    known = list(choices)
    if close := nearest(word, known):
        return f"did you mean {close}?"
    return otherwise or f"there are {', '.join(known)}"


_MARKS = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def answer_words(text: str) -> list[str]:
    """The words of a short answer as SQuAD compares them: no case, punctuation or articles.

    Source: the evaluation script of SQuAD 1.1 (Rajpurkar et al. 2016).
    """
    return _ARTICLES.sub(" ", text.lower().translate(_MARKS)).split()


def contains_answer(context: str, references: Sequence[str], words: Callable[[str], list[str]] = answer_words) -> bool:
    """Whether a passage contains one of the answers, word by word, as SQuAD compares them."""
    text = f" {' '.join(words(context))} "
    answers = [" ".join(words(reference)) for reference in references]
    return any(f" {answer} " in text for answer in answers if answer)


def short_number(text: str) -> str:
    """A number as text, small ones as 3e-3; other text as it is."""
    try:
        number = float(text)
    except ValueError:
        return text
    if not 0 < abs(number) < 0.1:
        return text
    digits, _, exponent = f"{number:.11e}".partition("e")
    return f"{float(digits):.12g}e{int(exponent)}"


def token_texts(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> list[str]:
    """What each token adds to the text of all of them; one behind the other they are that text.

    A character of several tokens belongs to the one that completes it, and text that later tokens
    change (spaces before punctuation) to those that settle it.
    """
    whole = decode(ids)
    ends = [0]
    for count in range(1, len(ids)):
        settled = len(commonprefix((decode(ids[:count]), whole)))
        ends.append(max(ends[-1], settled))
    ends.append(len(whole))
    return [whole[start:end] for start, end in zip(ends, ends[1:], strict=False)][: len(ids)]
