"""Tests of traces of answers, and of texts of tokens that do not split characters."""

import json
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from attnkit.nbce.contexts import Context
from attnkit.nbce.merge import Rule
from attnkit.nbce.merged_search import TracedToken
from attnkit.nbce.sources import Source
from attnkit.nbce.trace import FORMAT, VERSION, Trace, trace
from attnkit.text import token_texts

TEXTS = st.text(st.characters(exclude_characters="\ufffd", codec="utf-8"), max_size=12)
TEXTS |= st.sampled_from(("na\u00efve \u6f22\u5b57", "\U0001f469\u200d\U0001f467"))


def bytewise(ids: Sequence[int]) -> str:
    """Decode bytes, of which a character beyond ASCII has several."""
    return bytes(ids).decode("utf-8", "replace")


def tidied(ids: Sequence[int]) -> str:
    """Decode words, with the spaces before punctuation removed."""
    words = ("a", "b", ",", "n't", " ")
    return " ".join(words[i] for i in ids).replace(" ,", ",").replace(" n't", "n't")


def make_trace(pool: str, steps: Sequence[TracedToken]) -> Trace:
    ids = list(b"abcdefgh"[: len(steps) - 1])
    contexts = [Context(f"text {at}", f"{at}.txt") for at in range(3)]
    rule = Rule(pool)  # type: ignore[arg-type]
    return trace("m", "why?", contexts, rule, ids, steps, Source(0, (1 / 3,) * 3), bytewise)


STEPS = (
    TracedToken("", 1, (0.9, 0.5, 0.7)),
    TracedToken("", 1, (0.45, 0.5, 0.7)),
    TracedToken("", 2, (0.9, 0.5, 0.1)),
    TracedToken("", 0, (0.1, 0.5, 0.2)),
)
MIXED = tuple(step._replace(chosen=None) for step in STEPS)


@given(TEXTS)
def test_pieces_join_to_the_text_and_do_not_split_characters(text: str) -> None:
    ids = list(text.encode())
    found = token_texts(bytewise, ids)
    assert len(found) == len(ids)
    assert "".join(found) == text
    ends = [sum(map(len, found[: at + 1])) for at in range(len(ids))]
    assert all(len(text[:end].encode()) <= at + 1 for at, end in enumerate(ends))


def test_character_belongs_to_the_token_that_completes_it() -> None:
    assert token_texts(bytewise, list("a\u6f22b".encode())) == ["a", "", "", "\u6f22", "b"]
    assert token_texts(bytewise, []) == []
    assert "".join(token_texts(bytewise, list("\ufffd".encode()))) == "\ufffd"


def test_text_changed_by_later_tokens_belongs_to_the_last_of_them() -> None:
    assert token_texts(tidied, [0, 2, 1]) == ["a", ",", " b"]
    assert "".join(token_texts(tidied, [0, 4, 2, 3])) == tidied([0, 4, 2, 3])


def test_selected_contexts_of_a_trace() -> None:
    found = make_trace("entropy", STEPS)
    assert found.answer == "abc"
    assert [token.text for token in found.text_tokens] == ["a", "b", "c"]
    assert found.tokens[-1].end
    assert found.selected_contexts() == [1, 2]
    assert [token.main_context for token in found.tokens] == [1, 1, 2, 0]
    assert [token["context"] for token in found.json()["tokens"]] == [2, 2, 3, 1]  # from 1


def test_json_of_a_trace() -> None:
    found = make_trace("weighted", MIXED).json()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert (found["format"], found["version"]) == (FORMAT, VERSION)
    assert [token["context"] for token in found["tokens"]] == [None] * 4
    assert found["tokens"][0]["entropies"] == [0.9, 0.5, 0.7]
    assert found["contexts"][2] | {"share": 0} == {
        "number": 3,
        "name": "2.txt",
        "text": "text 2",
        "share": 0,
        "parts": [{"name": "2.txt", "start": 0, "end": 6}],
    }


def test_empty_answer_has_its_end_token() -> None:
    found = make_trace("entropy", STEPS[:1])
    assert found.answer == ""
    assert [token.end for token in found.tokens] == [True]
