"""Tests of mechanisms in places that they cannot serve: the error gives the reason and a remedy."""

from pathlib import Path
from typing import Any, Literal

import pytest
from helpers.recipe_texts import GOOD, check_error, error_message, parse_messages, read

from attnkit import mechanisms
from attnkit.mechanisms import MechanismSpec, Option
from attnkit.recipe import mechanism_registry

SPECS: dict[str, dict[str, Any]] = {
    "landmarks": {"causal": False, "cross": False, "why": "its landmarks average the future"},
    "table": {"limit": 100, "positions": ("alibi",)},
    "needy": {
        "options": {
            "rank": Option(int, required=True),
            "layout": Option(Literal["outer", "tile"], "outer"),
            "layers": Option(Literal[1, 2], 1),
            "factors": Option(tuple[int, int] | None),
            "scale": Option(float, 1.0),
            "mode": Option(bool | Literal["mean"], False),
        }
    },
}
"""Mechanisms with limits that no real mechanism has."""
REAL = ("dot", "linear", "scaled-dot", "synthesizer-random")
"""The real mechanisms of these tests; few, so that a new mechanism does not change messages that list all names."""


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    specs, facts = {name: MechanismSpec(name, Path(), "", **spec) for name, spec in SPECS.items()}, mechanisms.facts
    monkeypatch.setattr(mechanism_registry, "names", lambda: sorted([*specs, *REAL]))
    monkeypatch.setattr(mechanism_registry, "facts", lambda name: specs.get(name) or facts(name))


def attention(text: str) -> str:
    return f"{GOOD}model: {{attention: {text}}}\n"


UNFIT = """
synthesizer-random
  r.yaml:3:20: model.attention: synthesizer-random cannot be cross attention (its weights are a table over the
  positions of one sequence); name a mechanism for each place, with `cross: scaled-dot`
{encoder: linear, cross: synthesizer-random}
  r.yaml:3:45: model.attention.cross: synthesizer-random cannot be cross attention (its weights are a table over the
  positions of one sequence); name a mechanism for each place, with `cross: scaled-dot`
{decoder: landmarks}
  model.attention.decoder: landmarks cannot be decoder attention: it cannot hide the future (its landmarks average
  the future); causal mechanisms: dot, linear,
{encoder: linaer}
  r.yaml:3:30: model.attention.encoder: no attention mechanism is called 'linaer'; did you mean linear?
zzz
  no attention mechanism is called 'zzz'; `attnkit mechanisms` lists them
{name: landmarks, rank: 3}
  r.yaml:3:44: model.attention.rank: landmarks has no option 'rank'; it has none
{cross: {name: needy, rnak: 3}}
  r.yaml:3:48: model.attention.cross.rnak: needy has no option 'rnak'; did you mean rank?
{cross: needy}
  model.attention.cross: needy needs rank; write {name: needy, rank: ..
{cross: {name: needy, rank: 1e3}}
  r.yaml:3:48: model.attention.cross.rank: must be a whole number, got '1e3'; did
{cross: {name: needy, rank: 1, layout: tiel}}
  must be one of outer, tile, got 'tiel'; did you mean tile?
{cross: {name: needy, rank: 1, layers: 3}}
  must be one of 1, 2, got '3'
{cross: {name: needy, rank: 1, factors: [1, 2, 3]}}
  must be a list of 2: [whole number, whole number] or null, got [1, 2, 3]
{cross: {name: needy, rank: 1, scale: wide}}
  must be a number, got 'wide'; the default is 1.0
{cross: {name: needy, rank: 1, mode: maen}}
  must be true or false or mean, got 'maen'; did you mean mean?
{cross: }
  model.attention.cross: must be the name of a mechanism, or {name: NAME} with
[linear]
  model.attention: must be the name of a mechanism, or {name: NAME} with
{cross: {rank: 3}}
  must be the name of a mechanism, or {name: NAME} with options
{rank: 3}
  r.yaml:3:21: model.attention.rank: unknown key; keys under model.attention:
{name: linear, cross: dot}
  model.attention.cross: linear has no option 'cross'; it has feature_map,
"""
"""Values of `model.attention`, each followed by its error message."""


@pytest.mark.parametrize(("text", "message"), parse_messages(UNFIT))
def test_unsuitable_mechanism_or_option_raises(text: str, message: str) -> None:
    check_error(message, attention(text.rstrip()))


def test_positions_need_a_mechanism_that_supports_them() -> None:
    found = error_message(attention("{encoder: synthesizer-random}, positions: rope"))
    assert found == (
        "r.yaml:3:30: model.attention.encoder: synthesizer-random does not work with"
        " `model.positions: rope` (its weights are a table over the positions of one sequence);"
        " use sinusoidal or learned positions; rope works with dot, linear, scaled-dot"
    )
    read(attention("{cross: table}, positions: rope"), "data.max_length=9")  # rope does not reach cross attention


def test_position_limit_bounds_the_length_of_the_data() -> None:
    found = error_message(attention("{encoder: table}"))
    assert found.endswith("table reaches 100 positions, begin token included; set data.max_length to at most 99")
    read(attention("{encoder: table}"), "data.max_length=99")


def test_options_are_typed_by_their_annotations() -> None:
    place = "{name: needy, rank: 3, layers: 2, factors: [4, 5], scale: 2, mode: true}"
    options = read(attention(f"{{cross: {place}}}")).variants["base"].model.attention.cross.options()
    assert options == {"rank": 3, "layers": 2, "factors": (4, 5), "scale": 2.0, "mode": True}
    assert [type(value) for value in options.values()] == [int, int, tuple, float, bool]


def test_places_that_the_shape_lacks_are_not_checked() -> None:
    text = "task: language-modeling\ndata: {corpus: wikitext-2}\nmodel: {attention: %s}\n"
    read(text % "synthesizer-random")
    assert "cannot hide the future" in error_message(text % "landmarks")
