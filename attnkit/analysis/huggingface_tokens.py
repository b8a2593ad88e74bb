"""Tokens of any Hugging Face tokenizer as readable pieces grouped into words, whatever marks its vocabulary uses.

The text of a token is what it adds to the decoded text of the tokens before it, with U+2581 for a space. A character
that is split into several tokens belongs to the last of them.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from attnkit.analysis.maps import Token
from attnkit.data.text_form import MARK
from attnkit.text import token_texts

STRETCH, BESIDE = 256, 8
"""Number of tokens decoded at once, and of context tokens on each side: keeps the time linear in the length of the
text."""
OUTSIDE = ("unk_token_id", "mask_token_id")
"""Special tokens that stand for words of the text."""


def encode(tokenizer: Any, text: str, *, target: bool = False) -> list[int]:
    """Return ids with the special tokens that the model expects; with `target`, as the output of a decoder."""
    read = tokenizer(text_target=text) if target else tokenizer(text)
    return [int(number) for number in read["input_ids"]]


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Return ids without text of the user: begin, end, separators, padding, languages."""
    special = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
    marks = {getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad", "sep", "cls")}
    text = {getattr(tokenizer, name) for name in OUTSIDE} - marks
    return frozenset({*tokenizer.all_special_ids, *special} - text)


def tokens_of(tokenizer: Any, ids: Sequence[int]) -> tuple[Token, ...]:
    """Return the tokens of ids, including special tokens, grouped into words by white space."""

    def decode(some: Sequence[int]) -> str:
        return str(tokenizer.decode(list(some), clean_up_tokenization_spaces=False))

    special = special_ids(tokenizer)
    tokens: list[Token] = []
    word = -1
    for marked, group in groupby(ids, special.__contains__):
        some = list(group)
        if marked:
            names = tokenizer.convert_ids_to_tokens(some)
            tokens += [Token(str(name), id_, None, True) for id_, name in zip(some, names, strict=True)]
            continue
        before = "\n"
        texts: list[str] = []
        for start in range(0, len(some), STRETCH):
            first = max(0, start - BESIDE)
            around = token_texts(decode, some[first : start + STRETCH + BESIDE])
            texts += around[start - first :][:STRETCH]
        for id_, text in zip(some, texts, strict=True):
            # a space token begins the next word, a line break does not
            word += text[:1].isspace() or before in ("\n", "\r", "\t")
            tokens.append(Token(text.replace(" ", MARK), id_, word))
            before = text[-1:]
    return tuple(tokens)
