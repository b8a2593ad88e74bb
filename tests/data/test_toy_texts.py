"""The embedded corpora of summaries and dialogues: same bytes, unseen combinations, one answer."""

import hashlib
import re
from types import ModuleType

import pytest

from attnkit.data.rows import Row
from attnkit.data.synthetic import dialogue, summarization

DIGESTS = {
    summarization: ("1b5acd4cc03a6d2e", "7e60f8eb4b07e796", "6ecc7d1e2675267f"),
    dialogue: ("1bc564b9468d23a1", "2768a2cf8c25e328", "e80fa9c92f930838"),
}


@pytest.mark.parametrize("module", DIGESTS, ids=["summarization", "dialogue"])
def test_the_same_bytes_everywhere(module: ModuleType) -> None:
    """A change of these values needs a new VERSION, or stored results compare unlike text."""
    for split, digest in zip(("train", "valid", "test"), DIGESTS[module], strict=True):
        rows = list(module.rows(split, 100, 1))
        text = "\n".join("\t".join((row.source, row.target, *row.references)) for row in rows)
        assert hashlib.sha256(text.encode()).hexdigest()[:16] == digest, split
        assert list(module.rows(split, 20, 1)) == rows[:20]
        assert list(module.rows(split, 20, 2)) != rows[:20]


@pytest.mark.slow
@pytest.mark.parametrize("module", DIGESTS, ids=["summarization", "dialogue"])
def test_held_out_rows_have_new_sources_of_known_words_and_one_answer(module: ModuleType) -> None:
    made = {split: list(module.rows(split, size, 1)) for split, size in module.SIZES.items()}
    train, *others = ({row.source for row in rows} for rows in made.values())
    assert all(train.isdisjoint(other) for other in others)
    words = [set(re.findall(r"\d|[^\W\d]+", " ".join(sources))) for sources in (train, *others)]
    assert words[1] | words[2] <= words[0]
    answers: dict[str, set[Row]] = {}
    for row in (row for rows in made.values() for row in rows):
        answers.setdefault(row.source, set()).add(row)
        assert row.source == " ".join(row.source.split())
    assert all(len(found) == 1 for found in answers.values())


def test_the_largest_amount_of_the_event_makes_the_headline() -> None:
    """Read back from the text; the larger amount of another year or city does not count."""
    larger = 0
    for row in summarization.rows("test", 400, 1):
        here = re.sub(r"(Last year|Four years ago|In another city)[^.]*\.", "", row.source)
        sentences = {int(n): part for part in here.split(". ") for n in re.findall(r"\d+", part)}
        assert len(sentences) == 3
        if "mayor of" in row.target:
            assert " ".join(row.target.split()[1:3]) in sentences[max(sentences)]
        else:
            assert re.findall(r"\d+", row.target) == [str(max(sentences))]
        larger += any(int(n) > max(sentences) for n in re.findall(r"\d+", row.source))
    assert larger > 200


def test_a_reply_is_what_the_persona_says_in_any_wording() -> None:
    for row in dialogue.rows("test", 500, 1):
        persona, turns = row.source.split(" __eop__ ")
        assert row.target == row.references[0]
        assert len(set(row.references)) == 2
        fact = row.target.split()[-2]
        assert f" {fact} " in persona
        asked = turns.split(" __eot__ ")
        if " his " in f" {row.target} {asked[-1]} ":
            assert re.search(rf"{asked[-3].split()[-2]}\b.*{fact} ", persona)
