"""Baselines for merging: rows with a single context, or with all contexts at once."""

import math
from collections.abc import Sequence
from os.path import commonprefix

import torch

from attnkit.errors import UsageError
from attnkit.nbce.reader import ContextReader, PromptRow

JOIN = "\n\n"
"""Separator of the contexts in one row."""


def concatenated(
    reader: ContextReader, contexts: Sequence[str], prompt: str, output: int, *, limit: int | None = None
) -> tuple[PromptRow, str]:
    """Concatenate all contexts in one row, truncated to fit, and describe the truncation ("": none).

    The row leaves room for `output` tokens within the model's limit and `limit`. Only the end of the contexts is
    truncated, never the prompt. Raises UsageError if the prompt and the output alone exceed `limit`.
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
        # a byte-level cut may split a character, which decodes to U+FFFD and would be encoded as such
        row = reader.row(reader.decode(ids[:left]).strip("\ufffd"), prompt)
    return row, (
        f"the last {len(ids) - left:,} of {len(ids):,} tokens of context were cut off to fit "
        + (reader.name if limit is None else f"{limit:,} tokens, output included")
    )


def side_by_side(reader: ContextReader, contexts: Sequence[str], prompt: str) -> PromptRow:
    """Build a row with one window per context (Ratner et al. 2023); their common prefix is attended to once."""
    rows = [reader.row(context, prompt) for context in contexts]
    heads = tuple(row.head for row in rows)
    once = len(commonprefix([reader.row("", prompt).head, *heads]))
    return PromptRow(heads[0], rows[0].tail, heads[1:], once)


@torch.inference_mode()
def prompt_perplexities(reader: ContextReader, rows: Sequence[PromptRow]) -> list[float]:
    """Compute each tail's perplexity given its head, infinite without head; raises UsageError if a row is too long."""
    reader.check(rows, 0)
    found = [math.inf] * len(rows)
    begun = [place for place, row in enumerate(rows) if row.head]  # empty without context and begin token
    many = max(1, reader.batch_tokens // max((rows[at].longest for at in begun), default=1))
    if not reader.shares:
        many = 1  # one row needs no padding
    for first in range(0, len(begun), many):
        places = begun[first : first + many]
        # `begin_scored` skips the first token of a tail: prepend the last token of the head
        moved = [PromptRow(rows[at].head[:-1], (rows[at].head[-1], *rows[at].tail)) for at in places]
        for at, score in zip(places, reader.begin_scored(moved)[1].tolist(), strict=True):
            found[at] = math.exp(-score / len(rows[at].tail))
    return found
