"""Text helpers: safe display, text per token, comparison of answers, and suggestions."""

import difflib
import re
import string
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from os.path import commonprefix

RESERVED = ("<pad>", "<unk>", "<s>", "</s>")
"""First pieces of every vocabulary."""
_VISIBLE_FORMATS = frozenset(
    # joiners, which scripts and emoji need, and visible number signs
    [0x200C, 0x200D, *range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD]
)
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Cn", "Zl", "Zp"})


class _Visible(dict[int, str | int]):
    """Translation table for `str.translate` that is filled on demand."""

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
    r"""Return text that can neither control a terminal nor reorder the text around it.

    Controls (except newline and tab), bidirectional and other format controls, line and paragraph separators, lone
    surrogates and unassigned characters become visible escapes: \x1b, \u202e.
    """
    return text if text.isascii() and text.isprintable() else text.translate(_TABLE)


def one_line(text: str) -> str:
    """Return any text as safe text on one line."""
    return " ".join(safe_text(text).split())


def quoted(text: str, longest: int = 48) -> str:
    """Return text for a message: safe, on one line, in single quotes, long text cut in the middle."""
    if len(text) > longest:
        text = f"{text[: longest - 12]}...{text[-9:]}"
    return "'" + safe_text(text).replace("\n", "\\n").replace("\t", "\\t") + "'"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, which is plural unless the number is 1: 1,200 tokens."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def nearest(word: str, choices: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the choice most similar to `word`, ignoring case; None below `cutoff`, a share of common letters."""
    if not 0 < len(word) <= 64:
        return None
    folded = {choice.casefold(): choice for choice in choices}
    found = difflib.get_close_matches(word.casefold(), folded, n=1, cutoff=cutoff)
    return folded[found[0]] if found else None


def hint(word: str, choices: Iterable[str], otherwise: str | None = None) -> str:
    """Return a suggestion for an unknown word: the nearest choice, otherwise `otherwise` or all choices."""
    known = list(choices)
    if close := nearest(word, known):
        return f"did you mean {close}?"
    return otherwise or f"choose from {', '.join(known)}"


_MARKS = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")


def answer_words(text: str) -> list[str]:
    """Split a short answer into words as SQuAD compares them: without case, punctuation and articles.

    Source: the evaluation script of SQuAD 1.1 (Rajpurkar et al. 2016).
    """
    return _ARTICLES.sub(" ", text.lower().translate(_MARKS)).split()


def contains_answer(context: str, references: Sequence[str], words: Callable[[str], list[str]] = answer_words) -> bool:
    """Return whether a passage contains a reference answer, compared word by word as in SQuAD."""
    text = f" {' '.join(words(context))} "
    answers = [" ".join(words(reference)) for reference in references]
    return any(f" {answer} " in text for answer in answers if answer)


def short_number(text: str) -> str:
    """Return text that is a number in short form, below 0.1 as 3e-3; return other text unchanged."""
    try:
        number = float(text)
    except ValueError:
        return text
    if not 0 < abs(number) < 0.1:
        return text
    digits, _, exponent = f"{number:.11e}".partition("e")
    return f"{float(digits):.12g}e{int(exponent)}"


def token_texts(decode: Callable[[Sequence[int]], str], ids: Sequence[int]) -> list[str]:
    """Return the text that each token adds; concatenated, they are the text of all tokens.

    A character of several tokens belongs to the last of them. Text that later tokens change (spaces before
    punctuation) belongs to the token that fixes it.
    """
    whole = decode(ids)
    ends = [0]
    for count in range(1, len(ids)):
        settled = len(commonprefix((decode(ids[:count]), whole)))
        ends.append(max(ends[-1], settled))
    ends.append(len(whole))
    return [whole[start:end] for start, end in zip(ends, ends[1:], strict=False)][: len(ids)]
