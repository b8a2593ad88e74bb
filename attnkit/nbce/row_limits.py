"""Whether rows of contexts fit a model, and with which options of `attnkit nbce` they would."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from attnkit.nbce.baselines import JOIN, concatenated
from attnkit.nbce.reader import ContextReader, PromptRow
from attnkit.recipe.schema import SearchConfig

SHORTEST = 8
"""An answer is not shortened below this to make contexts fit."""
QUARTER = 4
"""An answer of open length gets this part of the room."""
ONE_ROW = frozenset({"concat", "cad"})
"""Methods that read all contexts in one row."""

Excess = Callable[[PromptRow, int], int]
"""Tokens by which a row is too long for an answer: `ContextReader.excess` or `.beyond`."""


class LongestRow(NamedTuple):
    """The row that needs most room, with its text."""

    reader: ContextReader
    context: str
    prompt: str
    row: PromptRow

    @classmethod
    def of(
        cls, reader: ContextReader, contexts: Sequence[str], prompts: Sequence[str]
    ) -> "LongestRow":
        """The longest context with the longest prompt."""
        prompt = max(prompts, key=lambda text: reader.row("", text).longest)
        context, row = max(
            ((text, reader.row(text, prompt)) for text in contexts), key=lambda one: one[1].longest
        )
        return cls(reader, context, prompt, row)

    def answer(self, excess: Excess, spec: SearchConfig, fixed: bool) -> int:
        """Tokens to leave for an answer; `fixed`: the user set its length."""
        room = self.window(excess, 0)
        return spec.max_length if fixed else min(spec.max_length, max(SHORTEST, room // QUARTER))

    def window(self, excess: Excess, answer: int) -> int:
        """Most tokens of a context where this one is too long; below 1: the prompt alone is."""
        return len(self.reader.encode(self.context)) - excess(self.row, answer)


def answer_length(
    row: LongestRow,
    spec: SearchConfig,
    fixed: bool,
    splitting: Mapping[str, Any],
    limit: int | None = None,
) -> int:
    """Most tokens of an answer for which the longest row leaves room.

    That is the search's `max_length` where there is room for it, or where the user set it
    (`fixed`).  `splitting` says how contexts were split and packed: `window`, `unit`, `pack`.
    `limit` is that of rows that hold all contexts, which may be cut but for the prompt.

    Raises:
        UsageError: the longest row does not fit the model.
    """
    reader, length = row.reader, spec.max_length
    window = row.window(reader.excess, row.answer(reader.excess, spec, fixed))
    if reader.limit is not None and not fixed:
        length = max(SHORTEST, min(length, reader.limit - row.row.longest))
    if limit is not None and not fixed:
        room = limit - reader.row("", row.prompt).longest
        length = max(1, min(length, room, max(SHORTEST, room // QUARTER)))
    options = _windows(window, splitting)
    advice = f"split the context ({options})" if options else "shorten the prompt"
    reader.check([row.row], length, advice)
    return length


def beyond_training(
    row: LongestRow,
    contexts: Sequence[str],
    spec: SearchConfig,
    fixed: bool,
    splitting: Mapping[str, Any],
    methods: Sequence[str],
    one_row: Mapping[str, Any],
) -> str | None:
    """A warning where rows are longer than those that the model was trained on, else None.

    `row` is the longest with a single context, and `one_row` has `limit` and `cut` of the row of
    those methods that read all contexts in one; the rest is as in `answer_length`.
    """
    reader = row.reader
    if reader.trained is None:
        return None
    whole, joined = row, None
    if ONE_ROW & {*methods}:
        text = JOIN.join(contexts)
        how = {name: value for name, value in one_row.items() if name in ("limit", "cut")}
        joined = concatenated(reader, contexts, row.prompt, spec.max_length, **how)[0]
        whole = LongestRow(reader, text, row.prompt, reader.row(text, row.prompt))
    over = max((one for one in (row.row, joined) if one), key=lambda one: one.longest)
    if not reader.beyond(over, 0):
        return None
    answer = whole.answer(reader.beyond, spec, fixed)
    shared = reader.beyond(over, 1) > reader.beyond(over, 0)  # row and answer share the length
    options = []
    if reader.beyond(row.row, 0):
        options.append(_windows(row.window(reader.beyond, answer), splitting))
    if joined and reader.beyond(joined, 0):
        options.append(f"--limit {reader.trained + 1 + (0 if shared else spec.max_length)}")
    if shared and answer < spec.max_length:
        options.append(f"--max-length {answer}")
    advice = " ".join(options) if all(options) else "a shorter prompt or answer"
    return (
        f"the longest row has {over.longest - 1:,} tokens, but {reader.name} was trained on rows "
        f"of at most {reader.trained:,}: its answers may be unreliable; {advice} would fit"
    )


def _windows(size: int, splitting: Mapping[str, Any]) -> str:
    """The options that make windows of so many tokens; "" where there is no room for one."""
    if size < 1:
        return ""
    words: str = f"--window {size}" + " --unit tokens" * (splitting["unit"] != "tokens")
    return words + f" --pack {size}" * ((splitting["pack"] or 0) > size)
