"""toy-dialogue: personas with facts, and conversations that ask for them.

The source is a persona, ` __eop__ `, and the last turns joined by ` __eot__ `; the target is the
reply.  Which fact it needs depends on the question, and often on an earlier turn: `what is his
name ?` asks for the relative who came up last.  Replies have several wordings, all of them
references.  Valid and test use only combinations (two facts; name with relation and job; question
and answer) that train never shows; `draw.split_of` says which.
"""

from collections.abc import Iterator
from itertools import combinations
from typing import Any, NamedTuple

from attnkit.data.dialogues import join_dialogue
from attnkit.data.draw import Draw, split_of
from attnkit.data.rows import Row
from attnkit.data.synthetic import word_tables

VERSION = 2
SIZES = {"train": 12000, "valid": 300, "test": 500}
WORDS = word_tables("dialogue")
TOPICS: dict[str, dict[str, Any]] = WORDS["topics"]
"""Kinds of facts: their values, how the speaker says them, how the partner asks for them."""
RETURNED = ("and you ?", "what about you ?")
"""How the partner asks after having told the same."""
Combination = tuple[str, ...]


class FamilyMember(NamedTuple):
    """A relative of the speaker."""

    kind: str
    name: str
    job: str
    he: str
    his: str


class ConversationWriter:
    """Makes the conversations of one split, from combinations that this split owns."""

    def __init__(self, split: str, draw: Draw) -> None:
        self._split, self._draw = split, draw
        facts = [(name, value) for name, topic in TOPICS.items() for value in topic["values"]]
        self._facts = [
            (one, two) for one, two in combinations(facts, 2)
            if one[0] != two[0] and self._owns("self", *one, *two)
        ]  # fmt: skip
        self._relatives = [
            FamilyMember(kind, name, job, he, his)
            for he, his in (("she", "her"), ("he", "his")) for kind in WORDS["relatives"][he]
            for name in WORDS["names"][he] for job in TOPICS["job"]["values"]
            if self._owns("relative", kind, name) and self._owns("relative", name, job)
        ]  # fmt: skip

    def _owns(self, *combination: str) -> bool:
        return split_of("dialogue", *combination) == self._split

    def row(self) -> Row:
        """A persona, a conversation so far, and the reply."""
        draw, facts = self._draw, self._draw.choice(self._facts)
        one = draw.choice(self._relatives)
        two = draw.choice([
            other for other in self._relatives
            if not {other.kind, other.name, other.job} & {one.kind, one.name, one.job}
        ])  # fmt: skip
        persona = [draw.choice(TOPICS[name]["wordings"]).format(value) for name, value in facts]
        persona += [draw.choice(WORDS["told"]).format(**being._asdict()) for being in (one, two)]
        asked = [
            (name, question, value) for name, value in facts
            for question in (*TOPICS[name]["questions"], *RETURNED)
            if self._owns("asked", name, question, value)
        ]  # fmt: skip
        turns = list(draw.choice(WORDS["greetings"])) if draw.chance(0.3) else []
        if asked and draw.chance(0.5):
            name, question, value = draw.choice(asked)
            wordings = TOPICS[name]["wordings"]
            if question in RETURNED:
                other = draw.choice([other for other in TOPICS[name]["values"] if other != value])
                question = f"{draw.choice(wordings).format(other)} {question}"
            replies = [wording.format(value) for wording in wordings]
        else:
            about = draw.choice(WORDS["about"])
            turns += [f"do you have a {one.kind} ?", f"yes , i have a {one.kind} ."]
            question = draw.choice(about["questions"]).format(**one._asdict())
            replies = [reply.format(**one._asdict()) for reply in about["replies"]]
        source = join_dialogue(draw.sample(persona), [*turns, question])
        return Row(source, replies[0], tuple(replies))


def rows(split: str, size: int, seed: int) -> Iterator[Row]:
    """`size` rows of a split (train, valid or test); the same seed gives the same rows."""
    writer = ConversationWriter(split, Draw(f"{VERSION}/{split}/{seed}"))
    for _ in range(size):
        yield writer.row()
