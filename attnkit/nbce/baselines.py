"""Baselines for merging: rows with a single context, or with all contexts at once."""

import math
from collections.abc import Sequence
from os.path import commonprefix

import torch

from attnkit.errors import UsageError
from attnkit.nbce.reader import ContextReader, PromptRow

SEPARATOR = "\n\n"
"""Separator of the contexts in one row."""


def concatenate(
    reader: ContextReader, contexts: Sequence[str], prompt: str, output: int, *, limit: int | None = None
) -> tuple[PromptRow, str]:
    """Concatenate all contexts in one row, truncated to fit, and describe the truncation ("": none).

    The row leaves room for `output` tokens within the model's limit and `limit`. Only the end of the contexts is
    truncated, never the prompt. Raises UsageError if the prompt and the output alone exceed `limit`.
    """
    if limit is not None and limit < (needed := reader.row("", prompt).longest + output):
        raise UsageError(
            f"the prompt and an output of {output:,} tokens need {needed:,} tokens, but a row has at most "
            f"{limit:,}: lower --max-length"
        )

    def excess(row: PromptRow) -> int:
        return max(reader.excess(row, output), 0 if limit is None else row.longest + output - limit)

    text = SEPARATOR.join(contexts)
    row = reader.row(text, prompt)
    if not excess(row):
        return row, ""
    ids = reader.encode(text)
    kept = len(ids)
    while kept and (over := excess(row)):
        kept = max(0, kept - over)
        # a byte-level cut may split a character, which decodes to U+FFFD and would be encoded as such
        row = reader.row(reader.decode(ids[:kept]).strip("\ufffd"), prompt)
    return row, (
        f"the last {len(ids) - kept:,} of {len(ids):,} context tokens were truncated to fit "
        + (reader.name if limit is None else f"{limit:,} tokens, output included")
    )


def parallel_windows(reader: ContextReader, contexts: Sequence[str], prompt: str) -> PromptRow:
    """Build a row with one window per context (Ratner et al. 2023); their common prefix is attended to once."""
    rows = [reader.row(context, prompt) for context in contexts]
    heads = tuple(row.head for row in rows)
    shared = len(commonprefix([reader.row("", prompt).head, *heads]))
    return PromptRow(heads[0], rows[0].tail, heads[1:], shared)


@torch.inference_mode()
def prompt_perplexities(reader: ContextReader, rows: Sequence[PromptRow]) -> list[float]:
    """Compute each tail's perplexity given its head, infinite without head; raises UsageError if a row is too long."""
    reader.check(rows, 0)
    perplexities = [math.inf] * len(rows)
    with_head = [index for index, row in enumerate(rows) if row.head]  # empty without context and begin token
    batch_size = max(1, reader.batch_tokens // max((rows[index].longest for index in with_head), default=1))
    if not reader.shares_prefixes:
        batch_size = 1  # one row needs no padding
    for first in range(0, len(with_head), batch_size):
        batch = with_head[first : first + batch_size]
        # `begin_scored` skips the first token of a tail: prepend the last token of the head
        shifted = [PromptRow(rows[i].head[:-1], (rows[i].head[-1], *rows[i].tail)) for i in batch]
        for i, score in zip(batch, reader.begin_scored(shifted)[1].tolist(), strict=True):
            perplexities[i] = math.exp(-score / len(rows[i].tail))
    return perplexities
