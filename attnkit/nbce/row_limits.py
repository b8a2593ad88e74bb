"""Whether rows of contexts fit a model, and with which options of `attnkit nbce` they would."""

from collections.abc import Sequence

from attnkit.nbce.baselines import concatenated
from attnkit.nbce.reader import ContextReader, PromptRow
from attnkit.recipe.schema import SearchConfig

SHORTEST = 8
"""An answer is not shortened below this to make contexts fit."""
QUARTER = 4
"""An answer of open length gets this part of the room."""


def longest_row(
    reader: ContextReader, contexts: Sequence[str], prompts: Sequence[str]
) -> tuple[str, PromptRow]:
    """The longest row of one context, with its prompt."""
    prompt = max(prompts, key=lambda text: reader.row("", text).longest)
    return prompt, max((reader.row(text, prompt) for text in contexts), key=lambda row: row.longest)


def answer_length(
    reader: ContextReader,
    prompt: str,
    row: PromptRow,
    spec: SearchConfig,
    limit: int | None,
    fixed: bool,
) -> int:
    """Most tokens of an answer: `spec.max_length` if it is `fixed`, else what rows leave room for.

    `row` is the longest of one context; `limit` that of rows that hold all contexts, which may be
    cut but for the prompt.

    Raises:
        UsageError: the row does not fit the model.
    """
    length = spec.max_length
    bare = reader.row("", prompt).longest
    if reader.limit is not None and not fixed:
        length = max(SHORTEST, min(length, reader.limit - row.longest))
    if limit is not None and not fixed:
        room = limit - bare
        length = max(1, min(length, room, max(SHORTEST, room // QUARTER)))
    answer = length if fixed else SHORTEST
    window = row.longest - bare - reader.excess(row, answer)
    advice = f"split the context (--window {window})" if window > 0 else "shorten the prompt"
    reader.check([row], length, advice)
    return length


def beyond_training(
    reader: ContextReader,
    prompt: str,
    row: PromptRow,
    spec: SearchConfig,
    joined: Sequence[str],
    limit: int | None,
    fixed: bool,
) -> str | None:
    """A warning where rows are longer than those that the model was trained on, else None.

    `joined` are the contexts that a method reads in one row of at most `limit` tokens; empty where
    no method does.
    """
    if reader.trained is None:
        return None
    output, rows = spec.max_length, [row]
    if joined:
        rows += concatenated(reader, joined, prompt, output, limit=limit)[:1]
    over = [reader.beyond(one, 0) > 0 for one in rows]
    if not any(over):
        return None
    bare = reader.row("", prompt).longest
    shared = reader.beyond(rows[-1], 1) > reader.beyond(rows[-1], 0) if over[-1] else True
    answer = output if fixed else min(output, max(SHORTEST, (reader.trained - bare) // QUARTER))
    window = row.longest - bare - reader.beyond(row, answer)
    options = [f"--window {window}"] if over[0] else []
    if joined and over[-1]:
        options.append(f"--limit {reader.trained + 1 + (0 if shared else output)}")
    if shared and answer < output:
        options.append(f"--max-length {answer}")
    fits = window > 0 or not over[0]
    longest = max(one.longest for one in rows) - 1
    return (
        f"the longest row has {longest:,} tokens, but {reader.name} was trained on rows of at most "
        f"{reader.trained:,}: its answers may be unreliable; "
        f"{' '.join(options) if fits else 'a shorter prompt or answer'} would fit"
    )
