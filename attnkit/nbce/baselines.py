"""What merging contexts is compared with: rows that hold one context, or all of them at once."""

import math
from collections.abc import Sequence
from os.path import commonprefix
from typing import cast

import torch

from attnkit.errors import UsageError
from attnkit.nbce.reader import CausalReader, ContextReader, PromptRow, padded
from attnkit.search.base import score_type

JOIN = "\n\n"
"""Between the contexts of one row."""


def concatenated(
    reader: ContextReader,
    contexts: Sequence[str],
    prompt: str,
    output: int,
    *,
    limit: int | None = None,
) -> tuple[PromptRow, str]:
    """All contexts in one row, cut to what fits, and a sentence on what was cut ("": nothing).

    A row has room for `output` tokens more, and at most `limit` with them where that is less than
    the model's own; the contexts lose their end, never the prompt.

    Raises:
        UsageError: `limit` leaves no room for the prompt and `output`.
    """
    if limit is not None and limit < (least := reader.row("", prompt).longest + output):
        raise UsageError(
            f"--limit {limit} leaves no room: the prompt and {output:,} tokens of answer need "
            f"{least:,}; raise --limit or lower --max-length"
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
    reason = f"no more fit {reader.name}"
    if limit is not None and (reader.limit is None or limit < reader.limit):
        reason = f"a row may have {limit:,} tokens, output included"
    return row, (
        f"the last {len(ids) - left:,} of {len(ids):,} tokens of context were cut off, since "
        f"{reason}"
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

    Raises:
        UsageError: a row does not fit.
    """
    reader.check(rows, 0)
    begun = [row for row in rows if row.head]
    many = max(1, reader.batch_tokens // max((row.longest for row in begun), default=1))
    parts = [begun[place : place + many] for place in range(0, len(begun), many)]
    fast = isinstance(reader, CausalReader) and reader.scores_tails
    measured = _perplexities if fast else perplexities_by_step
    found = iter([value for some in parts for value in measured(reader, some)])
    return [next(found) if row.head else math.inf for row in rows]


def _perplexities(reader: ContextReader, rows: Sequence[PromptRow]) -> list[float]:
    """`prompt_perplexities` of one batch; all tokens of a tail are scored in one pass."""
    _, scores = reader.begin_scored(
        [PromptRow(row.head[:-1], (row.head[-1], *row.tail)) for row in rows]
    )
    return [
        math.exp(-score / len(row.tail)) for score, row in zip(scores.tolist(), rows, strict=True)
    ]


def perplexities_by_step(reader: ContextReader, rows: Sequence[PromptRow]) -> list[float]:
    """The same, a token at a time, as every reader can."""
    state = reader.begin([PromptRow(row.head[:-1], row.head[-1:]) for row in rows])
    tokens, real = (
        table.to(reader.device) for table in padded([(row.head[-1], *row.tail) for row in rows])
    )
    real = real[:, 1:]
    total = torch.zeros(len(rows), dtype=torch.float64, device=reader.device)
    for column in range(real.shape[1]):
        logits, state = reader.step(tokens[:, column : column + 1], state)
        logprobs = logits.to(score_type(logits)).log_softmax(-1)
        chosen = logprobs.gather(1, tokens[:, column + 1 : column + 2])[:, 0]  # [R]
        total += chosen.double().masked_fill(~real[:, column], 0)
    return cast(list[float], (-total / real.sum(1)).exp().tolist())
