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

CHUNK, CONTEXT = 256, 8
"""Number of tokens decoded at once, and of context tokens on each side: keeps the time linear in the length of the
text."""
TEXT_TOKENS = ("unk_token_id", "mask_token_id")
"""Special tokens that stand for words of the text."""


def encode(tokenizer: Any, text: str, *, target: bool = False) -> list[int]:
    """Return ids with the special tokens that the model expects; with `target`, as the output of a decoder."""
    read = tokenizer(text_target=text) if target else tokenizer(text)
    return [int(number) for number in read["input_ids"]]


def special_ids(tokenizer: Any) -> frozenset[int]:
    """Return ids without text of the user: begin, end, separators, padding, languages."""
    special = {id_ for id_, token in tokenizer.added_tokens_decoder.items() if token.special}
    marks = {getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad", "sep", "cls")}
    text_ids = {getattr(tokenizer, name) for name in TEXT_TOKENS} - marks
    return frozenset({*tokenizer.all_special_ids, *special} - text_ids)


def tokens_of(tokenizer: Any, ids: Sequence[int]) -> tuple[Token, ...]:
    """Return the tokens of ids, including special tokens, grouped into words by white space."""

    def decode(ids: Sequence[int]) -> str:
        return str(tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))

    special = special_ids(tokenizer)
    tokens: list[Token] = []
    word = -1
    for is_special, group in groupby(ids, special.__contains__):
        group_ids = list(group)
        if is_special:
            names = tokenizer.convert_ids_to_tokens(group_ids)
            tokens += [Token(str(name), id_, None, True) for id_, name in zip(group_ids, names, strict=True)]
            continue
        previous = "\n"
        texts: list[str] = []
        for start in range(0, len(group_ids), CHUNK):
            first = max(0, start - CONTEXT)
            around = token_texts(decode, group_ids[first : start + CHUNK + CONTEXT])
            texts += around[start - first :][:CHUNK]
        for id_, text in zip(group_ids, texts, strict=True):
            # a space token begins the next word, a line break does not
            word += text[:1].isspace() or previous in ("\n", "\r", "\t")
            tokens.append(Token(text.replace(" ", MARK), id_, word))
            previous = text[-1:]
    return tuple(tokens)
