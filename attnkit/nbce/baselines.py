"""What merging contexts is compared with: rows that hold one context, or all of them at once."""

import math
from collections.abc import Sequence
from os.path import commonprefix

import torch

from attnkit.errors import UsageError
from attnkit.nbce.reader import ContextReader, PromptRow

JOIN = "\n\n"
"""Between the contexts of one row."""


def concatenated(
    reader: ContextReader, contexts: Sequence[str], prompt: str, output: int, *, limit: int | None = None
) -> tuple[PromptRow, str]:
    """All contexts in one row, cut to what fits, and a sentence on what was cut ("": nothing).

    A row has room for `output` tokens more, and at most `limit` with them where that is less than
    the model's own (else a UsageError); the contexts lose their end, never the prompt.
    """
    if limit is not None and limit < (least := reader.row("", prompt).longest + output):
        raise UsageError(
            f"a row of {limit:,} tokens has no room for the prompt and an answer of {output:,}, "
            f"which need {least:,}: lower --max-length"
        )

    def excess(row: PromptRow) -> int:
        beyond = 0 if limit is None else row.longest + output - limit
        return max(reader.excess(row, output), beyond)

    text = JOIN.join(contexts)
    row = reader.row(text, prompt)
    if not excess(row):
        return row, ""
    ids = reader.encode(text)
    left = len(ids)
    while left and (over := excess(row)):
        left = max(0, left - over)
        # half a character at the edge of a byte-level cut would be read as another one
        row = reader.row(reader.decode(ids[:left]).strip("\ufffd"), prompt)
    return row, (
        f"the last {len(ids) - left:,} of {len(ids):,} tokens of context were cut off to fit "
        + (reader.name if limit is None else f"{limit:,} tokens, output included")
    )


def side_by_side(reader: ContextReader, contexts: Sequence[str], prompt: str) -> PromptRow:
    """One row whose windows are the contexts: parallel context windows (Ratner et al. 2023).

    What all windows begin with whatever the context, the begin token at least, is seen once.
    """
    rows = [reader.row(context, prompt) for context in contexts]
    heads = tuple(row.head for row in rows)
    once = len(commonprefix([reader.row("", prompt).head, *heads]))
    return PromptRow(heads[0], rows[0].tail, heads[1:], once)


@torch.inference_mode()
def prompt_perplexities(reader: ContextReader, rows: Sequence[PromptRow]) -> list[float]:
    """Perplexity of each row's tail behind its head; infinite where the head is empty.

    It is empty where a context is and the model has no begin token.

    Raises UsageError: a row does not fit.
    """
    reader.check(rows, 0)
    found = [math.inf] * len(rows)
    begun = [place for place, row in enumerate(rows) if row.head]
    many = max(1, reader.batch_tokens // max((rows[at].longest for at in begun), default=1))
    if not reader.shares:
        many = 1  # a row alone has no padding
    for first in range(0, len(begun), many):
        places = begun[first : first + many]
        # all tokens of the tail are scored, the first one behind the last of the head
        moved = [PromptRow(rows[at].head[:-1], (rows[at].head[-1], *rows[at].tail)) for at in places]
        for at, score in zip(places, reader.begin_scored(moved)[1].tolist(), strict=True):
            found[at] = math.exp(-score / len(rows[at].tail))
    return found
