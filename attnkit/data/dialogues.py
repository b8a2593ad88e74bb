"""Dialogues: the source text of a turn, and the files of ParlAI."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from attnkit.data.formats import Errors, read_lines
from attnkit.data.rows import Counts, Row
from attnkit.errors import DataError

PERSONA_END = " __eop__ "
TURN_END = " __eot__ "
HISTORY = 5
"""How many earlier turns a row has in ParlAI's format."""


def join_dialogue(persona: Sequence[str], turns: Sequence[str]) -> str:
    """One source text: persona sentences __eop__ turns joined by __eot__, oldest first."""
    history = TURN_END.join(turns)
    return (" ".join(persona) + PERSONA_END + history).strip() if persona else history


def read_parlai(path: Path, errors: Errors = "strict", counts: Counts | None = None) -> Iterator[Row]:
    """Rows of a PersonaChat file of ParlAI: each reply of the speaker with the persona.

    Lines are `N your persona: text` or `N turn TAB reply TAB ...`; N is 1 where a dialogue starts.

    Raises MissingInputError: the file is not there; DataError: a line that is neither (file:line).
    """
    persona: list[str] = []
    turns: list[str] = []
    for position, line in enumerate(read_lines(path, errors, counts), 1):
        number, _, rest = line.partition(" ")
        if number == "1":
            persona, turns = [], []
        turn, *replies = rest.split("\t")
        if turn.startswith("your persona: "):
            persona.append(turn.removeprefix("your persona: "))
            continue
        if not number.isdecimal() or not replies:
            raise DataError(f"{path}:{position}: must be a number, a turn, a tab and a reply")
        if turn != "__SILENCE__":
            turns.append(turn)
        yield Row(join_dialogue(persona, turns[-HISTORY:]), replies[0])
        turns.append(replies[0])
