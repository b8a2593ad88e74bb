"""Form of text that a tokenizer reads, and its spelling for sentencepiece.

White space is collapsed: any run of it becomes one space, and none is left at the ends. U+2581, with which
sentencepiece marks a space, is white space, too. A lone surrogate becomes U+FFFD.

sentencepiece skips lines with NUL or U+2585 in training. Both are spelled for it as noncharacters, which Unicode
reserves for internal use (The Unicode Standard, section 23.7); noncharacters of that block in a text become U+FFFD.
"""

import re
import unicodedata
from typing import Literal

MARK = "\u2581"
"""Symbol of sentencepiece for a space, here at the start of every word."""

NOTHING = "_"
"""Target in tagging for a source position without a prediction."""

NormalForm = Literal["nfc", "nfkc", "none"]

NONCHARACTERS = "[\ufdd0-\ufdef]"
SUBSTITUTES = {"\0": "\ufdd0", "\u2585": "\ufdd1"}
"""Characters that sentencepiece does not accept, and their spellings for it."""

_REPAIRED = re.compile(f"[\ud800-\udfff{MARK}]|{NONCHARACTERS}")


def clean(text: str) -> str:
    """Return the text with white space collapsed, and U+FFFD for invalid characters."""
    if not text.isascii():
        text = _REPAIRED.sub(lambda match: " " if match[0] == MARK else "\ufffd", text)
    return " ".join(text.split())


def normal_form(text: str, form: NormalForm) -> str:
    """Return the text in a normal form of Unicode (UAX 15)."""
    if form == "none" or text.isascii():
        return text
    return unicodedata.normalize("NFC" if form == "nfc" else "NFKC", text)


def to_model(text: str) -> str:
    """Return clean text as spelled for sentencepiece."""
    for character, spelled in SUBSTITUTES.items():
        text = text.replace(character, spelled)
    return text


def from_model(text: str) -> str:
    """Return output of sentencepiece as text: the inverse of `to_model`."""
    for character, spelled in SUBSTITUTES.items():
        text = text.replace(spelled, character)
    return text
