"""Tests of options that only a mechanism can check: the error names their place in the recipe."""

from pathlib import Path

import pytest
import torch

from attnkit import models
from attnkit.errors import RecipeError
from attnkit.recipe import load

START = """task: translation
data: {train: [no.en, no.de], valid: [no.en, no.de], max_length: 127}
model:
  heads: 4
  width: 64
"""
"""The files do not exist: options are checked before data is read."""


@pytest.fixture(autouse=True)
def _temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def error_of(text: str) -> str:
    Path("r.yaml").write_text(START + text)
    with pytest.raises(RecipeError) as caught:
        load("r.yaml", option_check=models.check_options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "key", "reason"),
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
def test_invalid_option_raises_with_its_line_column_and_key(options: str, key: str, reason: str) -> None:
    line = f"    encoder: {{name: {options}}}"
    message = error_of(f"  attention:\n{line}\n")
    column = line.index(f"{key}: ") + len(f"{key}: ") + 1
    assert message.startswith(f"r.yaml:7:{column}: model.attention.encoder.{key}: ")
    assert reason in message


def test_invalid_option_of_all_roles_raises_once_with_the_key_as_written() -> None:
    message = error_of("  attention: {name: scaled-dot, key_heads: 3}\n")
    assert message.startswith("r.yaml:6:44: model.attention.key_heads: ")


def test_decoder_of_both_sides_needs_factors_of_twice_the_length() -> None:
    name = "{name: synthesizer-factorized-dense, factors: [8, 16]}"
    assert "product is 256, the positions" in error_of(f"  shape: decoder\n  attention: {name}\n")


def test_valid_options_are_accepted_and_the_random_state_stays() -> None:
    name = "{name: synthesizer-factorized-dense, factors: [8, 16]}"
    Path("r.yaml").write_text(f"{START}  attention: {{encoder: {name}, decoder: performer}}\n")
    before = torch.random.get_rng_state()
    load("r.yaml", option_check=models.check_options)
    assert torch.equal(torch.random.get_rng_state(), before)
