"""The embedded questions: one passage answers, and no other does."""

import pytest

from attnkit.data.rows import Row
from attnkit.data.synthetic import passages
from attnkit.data.synthetic.passages import ORDER, people
from attnkit.text import holds


def rows(split: str, count: int = 60, contexts: int = 6) -> list[Row]:
    return list(passages.rows(split, count, 1, contexts))


def value(row: Row) -> str:
    """What the last words of an answer say."""
    return row.target.replace(" was ", " is ").partition(" is ")[2].rstrip(".")


@pytest.mark.parametrize("split", ["valid", "test"])
def test_one_context_of_a_question_has_its_answer(split: str) -> None:
    for row in rows(split):
        assert row.gold is not None
        assert len(row.contexts) == 6
        there = [holds(text, (row.target,)) for text in row.contexts]
        assert there == [place == row.gold for place in range(6)]


def test_more_contexts_are_asked_the_same_questions() -> None:
    few, many = rows("test", contexts=2), rows("test", contexts=32)
    assert [row.source for row in few] == [row.source for row in many]
    assert all(len(row.contexts) == 32 for row in many)
    places = [row.gold for row in many if row.gold is not None]
    assert min(places) < 8 < 24 < max(places)


def test_the_same_seed_gives_the_same_rows_and_another_gives_others() -> None:
    assert rows("test") == rows("test")
    assert list(passages.rows("test", 60, 2, 6)) != rows("test")
    assert [row.source for row in rows("test", 10)] == [row.source for row in rows("test")[:10]]


def test_people_of_valid_and_test_are_not_those_of_train() -> None:
    names = {split: set(people(split)) for split in passages.SPLITS}
    assert not names["train"] & names["valid"]
    assert not names["train"] & names["test"]
    assert not names["valid"] & names["test"]
    assert names["ordered"] == names["coupled"] == names["test"]
    for split in ("train", "test"):
        for row in rows(split):
            assert any(name in row.source for name in names[split])


def test_ordered_questions_need_the_place_of_a_chapter() -> None:
    for row in rows("ordered"):
        assert row.gold is None
        assert len(row.contexts) == len(ORDER)
        place = next(i for i, word in enumerate(ORDER) if f"{word} " in row.source)
        town = value(row)
        assert [town in text for text in row.contexts] == [n == place for n in range(len(ORDER))]


def test_coupled_questions_name_somebody_whom_only_the_other_passage_leads_to() -> None:
    for row in rows("coupled"):
        first, second = row.contexts
        asked = row.source.partition("the boss of ")[2]
        who = next(name for name in people("test") if asked.startswith(name))
        boss = first.partition(f"The boss of {who} is ")[2].partition(".")[0]
        assert boss in people("test")
        assert boss in second
        assert boss not in row.source
        assert who not in second
        asked = row.source.split()[3]
        assert f"The {asked} of {boss} is {value(row)}." in second


def test_common_answers_are_likelier_than_rare_ones() -> None:
    told = [value(row) for row in rows("train", 3000, 1)]
    towns = [told.count(town) for town in passages.TOWNS]
    assert sum(towns[:5]) > 2 * sum(towns[-5:]) > 0
