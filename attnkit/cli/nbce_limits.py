"""Whether the rows of `attnkit nbce` fit the model, and with which options they would."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from attnkit.cli import console

if TYPE_CHECKING:
    from attnkit.cli.nbce_output import NbceRequest
    from attnkit.nbce.reader import ContextReader, PromptRow
    from attnkit.recipe.schema import SearchConfig

SHORTEST = 8
"""An answer is not shortened below this to make contexts fit."""
QUARTER = 4
"""An answer whose length is open has this part of the room."""
ONE_ROW = frozenset({"concat", "cad"})
"""Methods that read all contexts in one row."""

Excess = Callable[["PromptRow", int], int]
"""How many tokens too long a row is for an answer: `Reader.excess` or `Reader.beyond`."""


class Longest(NamedTuple):
    """The row that needs most room, with its text."""

    reader: "ContextReader"
    context: str
    prompt: str
    row: "PromptRow"

    def answer(self, excess: Excess, spec: "SearchConfig", fixed: bool) -> int:
        """Tokens that are to be left for an answer; `fixed`: its length was asked for."""
        room = self.window(excess, 0)
        return spec.max_length if fixed else min(spec.max_length, max(SHORTEST, room // QUARTER))

    def window(self, excess: Excess, answer: int) -> int:
        """Most tokens of a context where this one is too long; below 1: the prompt alone is."""
        return len(self.reader.encode(self.context)) - excess(self.row, answer)


def longest(reader: "ContextReader", contexts: Sequence[str], prompts: Sequence[str]) -> Longest:
    """The longest context with the longest prompt."""
    prompt = max(prompts, key=lambda text: reader.row("", text).longest)
    rows = [reader.row(text, prompt) for text in contexts]
    place = max(range(len(rows)), key=lambda number: rows[number].longest)
    return Longest(reader, contexts[place], prompt, rows[place])


def fitted(
    row: Longest, spec: "SearchConfig", fixed: bool, splitting: Mapping[str, Any]
) -> "SearchConfig":
    """The search, whose answers are as long as the longest row leaves room for.

    Args:
        row: the longest.
        spec: as asked for.
        fixed: whether the length of answers was asked for; then it stays.
        splitting: how contexts were split and packed.

    Raises:
        UsageError: the longest row does not fit the model.
    """
    reader, size = row.reader, row.row.longest
    window = row.window(reader.excess, row.answer(reader.excess, spec, fixed))
    if reader.limit is not None and not fixed:
        room = max(SHORTEST, min(spec.max_length, reader.limit - size))
        if room < spec.max_length:
            console.say(f"answers have at most {room} tokens: the contexts leave no more room")
        spec = spec.model_copy(update={"max_length": room})
    words = _windows(window, splitting)
    way = f"split the context ({words})" if words else "shorten the prompt"
    reader.check([row.row], spec.max_length, way)
    return spec


def warn(asked: "NbceRequest", row: Longest, fixed: bool, splitting: Mapping[str, Any]) -> None:
    """Warn where rows are longer than those that the model was trained on.

    Args:
        asked: with the methods, of which some may read all contexts in one row.
        row: the longest with a single context.
        fixed, splitting: as `fitted`.
    """
    reader = asked.reader
    whole, joined = _joined(asked, row) or (row, None)
    over = max((one for one in (row.row, joined) if one), key=lambda one: one.longest)
    if reader.trained is None or not reader.beyond(over, 0):
        return
    answer = whole.answer(reader.beyond, asked.spec, fixed)
    shared = reader.beyond(over, 1) > reader.beyond(over, 0)  # with the answer, in one row
    words = []
    if reader.beyond(row.row, 0):
        words.append(_windows(row.window(reader.beyond, answer), splitting))
    if joined and reader.beyond(joined, 0):
        words.append(f"--limit {reader.trained + 1 + (0 if shared else asked.spec.max_length)}")
    if shared and answer < asked.spec.max_length:
        words.append(f"--max-length {answer}")
    way = " ".join(words) if all(words) else "a shorter prompt or answer"
    console.warn(
        f"the longest row has {over.longest - 1:,} tokens, and {reader.name} was trained on rows "
        f"of {reader.trained:,} at most: do not rely on its answers; {way} would fit"
    )


def _joined(asked: "NbceRequest", row: Longest) -> "tuple[Longest, PromptRow] | None":
    """All contexts in one row, and what is read of it; None where no method does so."""
    from attnkit.nbce.baselines import JOIN, concatenated

    if not ONE_ROW & {*asked.methods}:
        return None
    texts = [one.text for one in asked.contexts]
    how = {name: value for name, value in asked.against.items() if name in ("limit", "cut")}
    whole = JOIN.join(texts)
    read = concatenated(asked.reader, texts, row.prompt, asked.spec.max_length, **how)[0]
    return Longest(asked.reader, whole, row.prompt, asked.reader.row(whole, row.prompt)), read


def _windows(size: int, splitting: Mapping[str, Any]) -> str:
    """The options that make windows of so many tokens; "" where there is no room for one."""
    if size < 1:
        return ""
    words: str = f"--window {size}" + " --unit tokens" * (splitting["unit"] != "tokens")
    return words + f" --pack {size}" * ((splitting["pack"] or 0) > size)
