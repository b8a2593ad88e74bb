"""Whether rows of contexts fit a model, and with which options of `attnkit nbce` they would."""

from collections.abc import Sequence
from typing import NamedTuple

from attnkit.nbce.baselines import JOIN, concatenated
from attnkit.nbce.reader import ContextReader, PromptRow
from attnkit.recipe.schema import SearchConfig

SHORTEST = 8
"""An answer is not shortened below this to make contexts fit."""
QUARTER = 4
"""An answer of open length gets this part of the room."""


class LongestRow(NamedTuple):
    """The row that needs most room, and how long the answer to it may be."""

    reader: ContextReader
    context: str
    prompt: str
    row: PromptRow
    spec: SearchConfig
    fixed: bool
    """The user set the length of answers."""

    @classmethod
    def of(
        cls,
        reader: ContextReader,
        contexts: Sequence[str],
        prompts: Sequence[str],
        spec: SearchConfig,
        fixed: bool,
    ) -> "LongestRow":
        """The longest context with the longest prompt."""
        prompt = max(prompts, key=lambda text: reader.row("", text).longest)
        rows = ((text, reader.row(text, prompt)) for text in contexts)
        context, row = max(rows, key=lambda one: one[1].longest)
        return cls(reader, context, prompt, row, spec, fixed)

    def window(self, excess: int) -> int:
        """Tokens of its context without so many; below 1: the prompt alone is too long."""
        return len(self.reader.encode(self.context)) - excess

    def answer(self, room: int) -> int:
        """Tokens to leave for an answer, where context and answer have `room` together."""
        most = self.spec.max_length
        return most if self.fixed else min(most, max(SHORTEST, room // QUARTER))

    def answer_length(self, limit: int | None) -> int:
        """Most tokens of an answer: as the user set it, else what the row leaves room for.

        `limit` is that of rows that hold all contexts, which may be cut but for the prompt.

        Raises:
            UsageError: the row does not fit the model.
        """
        reader, length = self.reader, self.spec.max_length
        answer = self.answer(self.window(reader.excess(self.row, 0)))
        window = self.window(reader.excess(self.row, answer))
        if reader.limit is not None and not self.fixed:
            length = max(SHORTEST, min(length, reader.limit - self.row.longest))
        if limit is not None and not self.fixed:
            room = limit - reader.row("", self.prompt).longest
            length = max(1, min(length, room, max(SHORTEST, room // QUARTER)))
        advice = f"split the context (--window {window})" if window > 0 else "shorten the prompt"
        reader.check([self.row], length, advice)
        return length

    def beyond_training(self, contexts: Sequence[str], limit: int | None) -> str | None:
        """A warning where rows are longer than those that the model was trained on, else None.

        `contexts` are those that a method reads in one row of at most `limit` tokens; empty where
        no method does.
        """
        reader, spec = self.reader, self.spec
        if reader.trained is None:
            return None
        whole, rows, options = self, [self.row], list[str]()
        if contexts:
            text = JOIN.join(contexts)
            whole = self._replace(context=text, row=reader.row(text, self.prompt))
            rows += concatenated(reader, contexts, self.prompt, spec.max_length, limit=limit)[:1]
        over = max(rows, key=lambda row: row.longest)
        if not reader.beyond(over, 0):
            return None
        answer = whole.answer(whole.window(reader.beyond(whole.row, 0)))
        shared = reader.beyond(over, 1) > reader.beyond(over, 0)  # row and answer share the length
        window = self.window(reader.beyond(self.row, answer))
        if reader.beyond(self.row, 0):
            options.append(f"--window {window}")
        if contexts and reader.beyond(rows[1], 0):
            options.append(f"--limit {reader.trained + 1 + (0 if shared else spec.max_length)}")
        if shared and answer < spec.max_length:
            options.append(f"--max-length {answer}")
        fits = window > 0 or not reader.beyond(self.row, 0)
        advice = " ".join(options) if fits else "a shorter prompt or answer"
        return (
            f"the longest row has {over.longest - 1:,} tokens, but {reader.name} was trained on "
            f"rows of at most {reader.trained:,}: its answers may be unreliable; {advice} would fit"
        )
