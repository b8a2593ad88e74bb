"""The embedded questions: one passage answers, and no other does."""

import pytest

from attnkit.data.rows import Row
from attnkit.data.synthetic import passages
from attnkit.data.synthetic.passages import ORDER, people
from attnkit.text import contains_answer


def rows(split: str, count: int = 60, contexts: int = 6) -> list[Row]:
    return list(passages.rows(split, count, 1, contexts))


@pytest.mark.parametrize("split", ["valid", "test"])
def test_one_context_of_a_question_has_its_answer(split: str) -> None:
    for row in rows(split):
        assert row.gold is not None
        assert len(row.contexts) == 6
        there = [contains_answer(text, (row.target,)) for text in row.contexts]
        assert there == [place == row.gold for place in range(6)]


def test_more_contexts_are_asked_the_same_questions() -> None:
    few, many = rows("test", contexts=2), rows("test", contexts=32)
    assert [row.source for row in few] == [row.source for row in many]
    assert all(len(row.contexts) == 32 for row in many)
    places = [row.gold for row in many if row.gold is not None]
    assert min(places) < 8 < 24 < max(places)


def test_people_of_valid_and_test_are_not_those_of_train() -> None:
    names = {split: set(people(split)) for split in passages.SIZES}
    assert not names["train"] & names["valid"]
    assert not names["train"] & names["test"]
    assert not names["valid"] & names["test"]
    assert names["ordered"] == names["coupled"] == names["test"]
    for split in ("train", "test"):
        for row in rows(split):
            assert any(name in row.source for name in names[split])


def test_the_right_passage_tells_the_same_kind_of_thing_of_others() -> None:
    for row in rows("test"):
        relation, _, who = row.source.rstrip("?").partition(" of ")
        assert row.gold is not None
        told = [entry.partition(": ") for entry in row.contexts[row.gold].rstrip(".").split(". ")]
        rivals = [value for key, _, value in told if key.startswith(f"{relation} of ")]
        assert len(told) == 4
        assert len(set(rivals)) == 3
        assert (f"{relation} of {who}", ": ", row.target) in told
        others = [text for place, text in enumerate(row.contexts) if place != row.gold]
        assert not any(who in text for text in others)


def test_half_of_the_other_passages_and_more_tell_the_asked_kind_of_thing() -> None:
    like = [
        row.source.partition(" of ")[0] in text
        for row in rows("test")
        for place, text in enumerate(row.contexts)
        if place != row.gold
    ]
    assert 0.5 < sum(like) / len(like) < 0.8


def test_ordered_questions_need_the_place_of_a_chapter() -> None:
    for row in rows("ordered"):
        assert row.gold is None
        assert len(row.contexts) == len(ORDER)
        place = ORDER.index(row.source.split()[0])
        assert [row.target in text for text in row.contexts] == [n == place for n in range(3)]
        assert len({text.partition(":")[0] for text in row.contexts}) == 1


def test_coupled_questions_need_a_room_that_only_the_other_passage_tells() -> None:
    for row in rows("coupled"):
        first, second = row.contexts
        relation, _, who = row.source.rstrip("?").partition(" of the room of ")
        room = first.partition(f"Room of {who}: ")[2].partition(".")[0]
        assert room in passages.RELATIONS["Room"]
        assert room not in row.source
        assert who not in second
        assert f"{relation} of {room}: {row.target}." in second
        assert second.count(f"{relation} of ") == 2
