"""Values of options that only a mechanism can judge are refused with the recipe, at their place."""

from pathlib import Path

import pytest

from attnkit import models
from attnkit.errors import RecipeError
from attnkit.recipe import load

START = """task: translation
data: {train: [no.en, no.de], valid: [no.en, no.de], max_length: 127}
model:
  heads: 4
  width: 64
"""
"""The files are not there: whatever is refused is refused before data is looked for."""


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def complaint(text: str, *overrides: str) -> str:
    Path("r.yaml").write_text(START + text)
    with pytest.raises(RecipeError) as caught:
        load("r.yaml", overrides, option_check=models.check_options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "blamed", "reason"),
    [
        (
            "synthesizer-factorized-dense, factors: [8, 15]",
            "factors",
            "factors must be two numbers whose product is 128, the positions of the layer, such as [8, 16]",
        ),
        ("scaled-dot, key_heads: 3", "key_heads", "key_heads must divide heads (4), got 3"),
        ("local, window: -1", "window", "got -1"),
        ("mixture, parts: [scaled-dot, {name: additive, hidden: 0}]", "parts", "hidden must be at least 1"),
        ("synthesizer-random, key_norm: true", "key_norm", "key_norm needs keys"),
        ("gaussian, score_noise: -1", "score_noise", "must be a number >= 0, got '-1'"),
        ("dot, attention_dropout: 1", "attention_dropout", "must be a number >= 0 and < 1, got '1'"),
    ],
)
def test_a_value_that_a_mechanism_refuses_is_told_with_place_and_key(options: str, blamed: str, reason: str) -> None:
    text = f"  attention:\n    encoder: {{name: {options}}}\n"
    line, *more = complaint(text).splitlines()
    column = text.splitlines()[1].index(f"{blamed}: ") + len(f"{blamed}: ") + 1
    assert not more
    assert line.startswith(f"r.yaml:7:{column}: model.attention.encoder.{blamed}: ")
    assert reason in line


def test_a_value_for_all_places_is_refused_once_under_the_key_as_written() -> None:
    line, *more = complaint("  attention: {name: scaled-dot, key_heads: 3}\n").splitlines()
    assert not more
    assert line.startswith("r.yaml:6:44: model.attention.key_heads: ")


def test_a_decoder_that_reads_both_sides_needs_factors_of_twice_the_length() -> None:
    name = "{name: synthesizer-factorized-dense, factors: [8, 16]}"
    assert "product is 256, the positions" in complaint(f"  shape: decoder\n  attention: {name}\n")


def test_values_that_fit_are_taken_and_the_random_state_stays() -> None:
    import torch

    name = "{name: synthesizer-factorized-dense, factors: [8, 16]}"
    Path("r.yaml").write_text(f"{START}  attention: {{encoder: {name}, decoder: performer}}\n")
    before = torch.random.get_rng_state()
    load("r.yaml", option_check=models.check_options)
    assert torch.equal(torch.random.get_rng_state(), before)
