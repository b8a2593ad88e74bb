"""The form of text that a tokenizer reads, and the spelling of it that sentencepiece can take.

White space is collapsed: any run of it becomes one space, at both ends none.  U+2581, with which
sentencepiece marks a space, is white space too.  A lone surrogate becomes U+FFFD.

sentencepiece leaves a line out of its training that has NUL or U+2585 in it.  Both are spelled as
noncharacters for it, which Unicode reserves for such use inside a program (The Unicode Standard,
section 23.7); noncharacters of that block in a text become U+FFFD.
"""

import re
import unicodedata
from typing import Literal

MARK = "\u2581"
"""What sentencepiece writes for a space, here at the start of every word."""

NOTHING = "_"
"""In a target of the task tagging: a position of the source where nothing is predicted."""

NormalForm = Literal["nfc", "nfkc", "none"]

NONCHARACTERS = "[\ufdd0-\ufdef]"
CARRIED = {"\0": "\ufdd0", "\u2585": "\ufdd1"}
"""Characters that sentencepiece does not take, and how they are spelled for it."""

_REPAIRED = re.compile(f"[\ud800-\udfff{MARK}]|{NONCHARACTERS}")


def clean(text: str) -> str:
    """The text with white space collapsed and U+FFFD for what is no character."""
    if not text.isascii():
        text = _REPAIRED.sub(lambda match: " " if match[0] == MARK else "\ufffd", text)
    return " ".join(text.split())


def normal_form(text: str, form: NormalForm) -> str:
    """The text in a normal form of Unicode (UAX 15)."""
    if form == "none" or text.isascii():
        return text
    return unicodedata.normalize("NFC" if form == "nfc" else "NFKC", text)


def to_model(text: str) -> str:
    """Clean text as sentencepiece takes it."""
    for character, spelled in CARRIED.items():
        text = text.replace(character, spelled)
    return text


def from_model(text: str) -> str:
    """What sentencepiece gives, as text: the inverse of `to_model`."""
    for character, spelled in CARRIED.items():
        text = text.replace(spelled, character)
    return text
