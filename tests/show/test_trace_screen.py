"""Tests of traces of answers on terminals: text, widths, colors, hostile text."""

from dataclasses import replace

import numpy as np
import pytest
from helpers.colors import lab, simulated_lab
from helpers.screens import COLORS, TEXTS, WIDTHS, render, render_checked
from helpers.traces import context, make_trace
from hypothesis import given
from hypothesis import strategies as st

from attnkit.nbce.trace import TracedToken
from attnkit.show.color import CONTEXT_COLORS
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
def test_text_of_the_screen(width: int, expected: str) -> None:
    lines = render(TraceScreen(make_trace()), width).splitlines()
    assert [line.rstrip() for line in lines] == expected.splitlines()


def test_colors_do_not_change_the_text() -> None:
    for color in COLORS:
        assert render_checked(TraceScreen(make_trace()), 80, color) == render_checked(TraceScreen(make_trace()), 80)
    assert "48;2;119;170;221m" in render(TraceScreen(make_trace()), 80, "truecolor")
    assert "[4" not in render(TraceScreen(make_trace()), 80, "standard")


def test_mixtures_have_shares_only() -> None:
    for pool in ("weighted", "max"):
        shown = render(TraceScreen(make_trace(pool)), 80)
        assert "never selected" not in shown
        assert "60.0% 3 paris.txt" in shown


def test_tokens_independent_of_the_contexts_are_grey_and_dotted() -> None:
    trace = make_trace()
    tokens = tuple(token._replace(agreed=at in (1, 3, 5)) for at, token in enumerate(trace.tokens))
    trace = replace(trace, tokens=tokens)
    lines = render_checked(TraceScreen(trace), 80).splitlines()
    assert lines[1] == "[A]Paris [.]lies [B]on [.]the [A]Seine"
    assert lines[-1].startswith("gray [.]: 2 of 5 tokens, which the model would also generate without")
    assert "\x1b[2m[.]lies" in render(TraceScreen(trace), 80, "truecolor")


def test_empty_answer_has_a_note() -> None:
    shown = render(TraceScreen(replace(make_trace(), tokens=make_trace().tokens[-1:], answer="")), 60)
    assert "the answer is empty: the first token is the end token" in shown


def test_more_contexts_than_letters_share_a_sign() -> None:
    numbers = range(len(LETTERS) + 2)
    contexts = tuple(context(f"{at}.txt", "x") for at in numbers)
    tokens = tuple(TracedToken("w", at, tuple(float(at != other) for other in numbers)) for at in numbers)
    marks = context_marks(replace(make_trace(), contexts=contexts, tokens=tokens))
    assert [mark.letter for mark in marks.values()] == [*LETTERS, OTHERS, OTHERS]


@pytest.mark.parametrize("sight", ["trichromat", "protanopia", "deuteranopia"])
def test_colors_of_contexts_differ_for_color_blind_readers(sight: str) -> None:
    """8 is several times a noticeable difference."""
    colors = np.array([list(bytes.fromhex(color)) for color in CONTEXT_COLORS], np.uint8)
    places = simulated_lab(colors, sight)
    gaps = np.linalg.norm(places[:, None] - places[None], axis=-1)
    assert gaps[~np.eye(len(places), dtype=bool)].min() > 8
    assert lab(colors)[:, 0].min() > 60  # black text stays readable


@given(
    st.lists(st.tuples(TEXTS, st.integers(0, 2), st.floats(0, 9)), max_size=12),
    TEXTS,
    TEXTS,
    WIDTHS,
    st.sampled_from(COLORS),
    st.sampled_from(("entropy", "mean", "max", "weighted")),
)
def test_hostile_text_fits_all_widths(
    pieces: list[tuple[str, int, float]], name: str, text: str, width: int, color: str | None, pool: str
) -> None:
    tokens = tuple(
        TracedToken(piece, at if pool == "entropy" else None, (entropy, 1.0, 2.0), at == 1)
        for piece, at, entropy in pieces
    )
    plain, contexts = make_trace(pool), (context(name, text),) * 3
    hostile = replace(plain, model=name, prompt=text, contexts=contexts, tokens=(*tokens, *plain.tokens[-1:]))
    render_checked(TraceScreen(hostile), width, color)
