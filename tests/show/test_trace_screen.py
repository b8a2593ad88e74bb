"""A trace on the terminal: exact at two widths, of any width, and harmless whatever it holds."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.colours import lab, simulated_lab
from helpers.screens import COLOURS, TEXTS, WIDTHS, render, render_checked
from helpers.traces import context, make_trace
from hypothesis import given
from hypothesis import strategies as st

from attnkit.nbce.trace import TracedToken
from attnkit.show.colour import CONTEXT_COLOURS
from attnkit.show.trace_screen import LETTERS, OTHERS, TraceScreen, context_marks

WIDE = """\
3 contexts, pool entropy, beta 0.25, eta 0.1, top-p 0.95
[A]Paris lies [B]on the [A]Seine

A 60.0% 3 paris.txt: Paris is the capital of France, and it lies on the Seine.
B 40.0% 1 rome.txt: Rome lies on the Tiber, said \\x1b[31mLivy.
source: context 3 paris.txt (60%)
never selected: 1 of 3 contexts
"""
NARROW = """\
3 contexts, pool entropy, beta 0.25, eta
0.1, top-p 0.95
[A]Paris lies [B]on the [A]Seine

A 60.0% 3 paris.txt: Paris is the capit…
B 40.0% 1 rome.txt: Rome lies on the Ti…
source: context 3 paris.txt (60%)
never selected: 1 of 3 contexts
"""


@pytest.mark.parametrize(("width", "expected"), [(80, WIDE), (40, NARROW)])
def test_the_screen_is_exact(width: int, expected: str) -> None:
    lines = render(TraceScreen(make_trace()), width).splitlines()
    assert [line.rstrip() for line in lines] == expected.splitlines()


def test_colours_change_no_character() -> None:
    for colour in COLOURS:
        assert render_checked(TraceScreen(make_trace()), 80, colour) == render_checked(TraceScreen(make_trace()), 80)
    assert "48;2;119;170;221m" in render(TraceScreen(make_trace()), 80, "truecolor")
    assert "[4" not in render(TraceScreen(make_trace()), 80, "standard")


def test_a_mixture_has_no_speaker_but_shares() -> None:
    for pool in ("weighted", "max"):
        shown = render(TraceScreen(make_trace(pool)), 80)
        assert "never selected" not in shown
        assert "60.0% 3 paris.txt" in shown


def test_tokens_that_need_no_context_are_grey_and_dotted() -> None:
    shown = make_trace()
    tokens = tuple(token._replace(agreed=at in (1, 3, 5)) for at, token in enumerate(shown.tokens))
    trace = replace(shown, tokens=tokens)
    lines = render_checked(TraceScreen(trace), 80).splitlines()
    assert lines[1] == "[A]Paris [.]lies [B]on [.]the [A]Seine"
    assert lines[-1].startswith("grey [.]: 2 of 5 tokens, which the model would also generate without")
    assert "\x1b[2m[.]lies" in render(TraceScreen(trace), 80, "truecolor")


def test_an_empty_answer_says_so() -> None:
    end = make_trace().tokens[-1:]
    shown = render(TraceScreen(replace(make_trace(), tokens=end, answer="")), 60)
    assert "the answer is empty: the first token is the end token" in shown


def test_more_contexts_than_letters_share_a_sign() -> None:
    count = len(LETTERS) + 2
    many = tuple(context(f"{at}.txt", "x") for at in range(count))
    tokens = tuple(
        TracedToken("w", at, tuple(0.0 if at == other else 1.0 for other in range(count))) for at in range(count)
    )
    marks = context_marks(replace(make_trace(), contexts=many, tokens=tokens))
    assert [mark.letter for mark in marks.values()] == [*LETTERS, OTHERS, OTHERS]


@pytest.mark.parametrize("sight", ["trichromat", "protanopia", "deuteranopia"])
def test_colours_of_speakers_differ_for_every_common_sight(sight: str) -> None:
    """8 is several times a noticeable difference."""
    colours = np.array([list(bytes.fromhex(one)) for one in CONTEXT_COLOURS], np.uint8)
    places = simulated_lab(colours, sight)
    gaps = np.linalg.norm(places[:, None] - places[None], axis=-1)
    assert gaps[~np.eye(len(places), dtype=bool)].min() > 8
    assert lab(colours)[:, 0].min() > 60  # black text stays readable


@given(
    st.lists(st.tuples(TEXTS, st.integers(0, 2), st.floats(0, 9)), max_size=12),
    TEXTS,
    TEXTS,
    WIDTHS,
    st.sampled_from(COLOURS),
    st.sampled_from(("entropy", "mean", "max", "weighted")),
)
def test_hostile_tokens_do_no_harm_at_any_width(
    said: list[tuple[str, int, float]], name: str, text: str, width: int, colour: str | None, pool: str
) -> None:
    tokens = tuple(
        TracedToken(piece, at if pool == "entropy" else None, (entropy, 1.0, 2.0), at == 1)
        for piece, at, entropy in said
    )
    some = tuple(context(name, text) for _ in range(3))
    hostile = replace(
        make_trace(pool), model=name, prompt=text, contexts=some, tokens=(*tokens, *make_trace(pool).tokens[-1:])
    )
    render_checked(TraceScreen(hostile), width, colour)
