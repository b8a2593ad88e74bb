"""What merging contexts is compared with: rows that hold one context, or all of them at once."""

import math
from collections.abc import Iterator, Sequence
from os.path import commonprefix
from typing import Literal

import torch
from torch import Tensor

from attnkit.errors import UsageError
from attnkit.nbce.reader import BATCH_TOKENS, CausalReader, ContextReader, PromptRow
from attnkit.search.base import score_type

Cut = Literal["end", "start"]
JOIN = "\n\n"
"""Between the contexts of one row."""


def concatenated(
    reader: ContextReader,
    contexts: Sequence[str],
    prompt: str,
    longest: int,
    *,
    limit: int | None = None,
    cut: Cut = "end",
) -> tuple[PromptRow, str]:
    """All contexts in one row, cut to what fits, and a sentence on what was cut ("": nothing).

    Args:
        reader: the model.
        contexts: in the order in which they are read.
        prompt: what is asked behind them; never cut.
        longest: tokens of the output.
        limit: most tokens of a row, output included, where it is to be less than the model's.
        cut: the end of the contexts that goes.
    """
    text = JOIN.join(contexts)
    row = reader.row(text, prompt)
    over = _over(reader, row, longest, limit)
    if not over:
        return row, ""
    ids = reader.encode(text)
    kept = len(ids)
    while over and kept:
        kept = max(0, kept - over)
        some = ids[:kept] if cut == "end" else ids[len(ids) - kept :]
        # half a character at the edge of a byte-level cut would be read as another one
        row = reader.row(reader.decode(some).strip("\ufffd"), prompt)
        over = _over(reader, row, longest, limit)
    which = "last" if cut == "end" else "first"
    return row, (
        f"the {which} {len(ids) - kept:,} of {len(ids):,} tokens of context were cut off, since "
        f"{_bound(reader, limit)}"
    )


def _over(reader: ContextReader, row: PromptRow, longest: int, limit: int | None) -> int:
    """How many tokens must go."""
    own = reader.excess(row, longest)
    return own if limit is None else max(own, row.longest + longest - limit)


def _bound(reader: ContextReader, limit: int | None) -> str:
    if limit is not None and (reader.limit is None or limit < reader.limit):
        return f"a row may have {limit:,} tokens, output included"
    return f"no more fit {reader.name}"


def side_by_side(reader: ContextReader, contexts: Sequence[str], prompt: str) -> PromptRow:
    """One row whose windows are the contexts: parallel context windows (Ratner et al. 2023).

    What all windows begin with whatever the context, the begin token at least, is seen once.

    Raises:
        UsageError: the model cannot see several windows at once.
    """
    if reader.windows:
        raise UsageError(
            f"method window is not for {reader.name}: {reader.windows}; choose another method"
        )
    rows = [reader.row(context, prompt) for context in contexts]
    heads = tuple(row.head for row in rows)
    once = len(commonprefix([reader.row("", prompt).head, *heads]))
    return PromptRow(heads[0], rows[0].tail, heads[1:], once)


@torch.inference_mode()
def surprises(
    reader: ContextReader, rows: Sequence[PromptRow], budget: int = BATCH_TOKENS
) -> list[float]:
    """Perplexity of each row's tail behind its head; infinite where there is no head to start from.

    Args:
        reader: a model without a source.
        rows: of any lengths; a head is empty where a context is and the model has no begin token.
        budget: tokens read in one pass.

    Raises:
        UsageError: the model reads contexts and prompts in a source, or a row does not fit.
    """
    if not isinstance(reader, CausalReader):
        raise UsageError(
            f"method retrieval is not for {reader.name}: an encoder-decoder reads the prompt in "
            "its source and gives it no probability; choose another method"
        )
    reader.check(rows, 0)
    begun = [row for row in rows if row.head]
    found = [value for some in _parts(begun, budget) for value in _surprises(reader, some, budget)]
    values = iter(found)
    return [next(values) if row.head else math.inf for row in rows]


def _surprises(reader: ContextReader, rows: Sequence[PromptRow], budget: int) -> list[float]:
    """`surprises` of a few rows at once, a token at a time, as every reader can."""
    kept = reader.begin([PromptRow(row.head[:-1], row.head[-1:]) for row in rows], budget)
    longest = max(len(row.tail) for row in rows)
    tokens = torch.zeros((len(rows), 1 + longest), dtype=torch.long)
    real = torch.zeros((len(rows), longest), dtype=torch.bool)
    for place, row in enumerate(rows):
        tokens[place, : 1 + len(row.tail)] = torch.tensor((row.head[-1], *row.tail))
        real[place, : len(row.tail)] = True
    tokens, real = tokens.to(reader.device), real.to(reader.device)
    found: list[Tensor] = []
    for column in range(longest):
        logits, kept = reader.step(tokens[:, column : column + 1], kept)
        logprobs = logits.to(score_type(logits)).log_softmax(-1)
        found.append(logprobs.gather(1, tokens[:, column + 1 : column + 2])[:, 0])
    told = torch.stack(found, 1).double().masked_fill(~real, 0).sum(1)
    values: list[float] = (-told / real.sum(1)).exp().tolist()
    return values


def _parts(rows: Sequence[PromptRow], budget: int) -> Iterator[Sequence[PromptRow]]:
    """Rows in turn, as many at a time as fit the budget."""
    many = max(1, budget // max((row.longest for row in rows), default=1))
    for place in range(0, len(rows), many):
        yield rows[place : place + many]
