"""Tests of the generated questions, each of which one of its passages answers."""

import pytest

from attnkit.data.rows import Row
from attnkit.data.synthetic import passages
from attnkit.data.synthetic.passages import ORDER, people
from attnkit.text import contains_answer


def rows(split: str, count: int = 60, contexts: int = 6) -> list[Row]:
    return list(passages.rows(split, count, 1, contexts))


@pytest.mark.parametrize("split", ["valid", "test"])
def test_only_the_gold_context_has_the_answer(split: str) -> None:
    for row in rows(split):
        assert row.gold is not None
        assert len(row.contexts) == 6
        answers = [contains_answer(text, (row.target,)) for text in row.contexts]
        assert answers == [place == row.gold for place in range(6)]


def test_questions_do_not_depend_on_the_number_of_contexts() -> None:
    few, many = rows("test", contexts=2), rows("test", contexts=32)
    assert [row.source for row in few] == [row.source for row in many]
    assert all(len(row.contexts) == 32 for row in many)
    places = [row.gold for row in many if row.gold is not None]
    assert min(places) < 8 < 24 < max(places)


def test_splits_are_about_different_people() -> None:
    names = {split: set(people(split)) for split in passages.SIZES}
    assert not names["train"] & names["valid"]
    assert not names["train"] & names["test"]
    assert not names["valid"] & names["test"]
    assert names["ordered"] == names["coupled"] == names["test"]
    for split in ("train", "test"):
        assert all(any(name in row.source for name in names[split]) for row in rows(split))


def test_gold_passage_has_the_same_relation_of_other_people() -> None:
    for row in rows("test"):
        relation, _, who = row.source.rstrip("?").partition(" of ")
        assert row.gold is not None
        facts = [entry.partition(": ") for entry in row.contexts[row.gold].rstrip(".").split(". ")]
        assert len(facts) == 4
        assert len({value for key, _, value in facts if key.startswith(f"{relation} of ")}) == 3
        assert (f"{relation} of {who}", ": ", row.target) in facts
        assert not any(who in text for place, text in enumerate(row.contexts) if place != row.gold)


def test_most_other_passages_have_the_relation_of_the_question() -> None:
    same_relation = [
        row.source.partition(" of ")[0] in text
        for row in rows("test")
        for place, text in enumerate(row.contexts)
        if place != row.gold
    ]
    assert 0.5 < sum(same_relation) / len(same_relation) < 0.8


def test_ordered_questions_need_the_number_of_the_chapter() -> None:
    for row in rows("ordered"):
        assert row.gold is None
        assert len(row.contexts) == len(ORDER)
        chapter = ORDER.index(row.source.split()[0])
        assert [row.target in text for text in row.contexts] == [n == chapter for n in range(3)]
        assert len({text.partition(":")[0] for text in row.contexts}) == 1


def test_coupled_questions_need_a_room_from_the_other_passage() -> None:
    for row in rows("coupled"):
        first, second = row.contexts
        relation, _, who = row.source.rstrip("?").partition(" of the room of ")
        room = first.partition(f"Room of {who}: ")[2].partition(".")[0]
        assert room in passages.RELATIONS["Room"]
        assert room not in row.source
        assert who not in second
        assert f"{relation} of {room}: {row.target}." in second
        assert second.count(f"{relation} of ") == 2
