"""Variants of equal size: the widths that --match chooses."""

from pathlib import Path

import pytest

from attnkit.errors import RecipeError
from attnkit.experiment import cost, matching
from attnkit.recipe import RecipeFile, load

RECIPE = """
task: translation
data: {corpus: toy-translation, size: 200, max_length: 96}
tokenizer: {size: 300}
model: {width: 64, ff: 128, layers: 2, heads: 2}
train: {batch_tokens: 512, steps: 20, precision: fp32}
variants:
  random: {model.attention: {encoder: synthesizer-random, decoder: synthesizer-random}}
  vanilla: {}
  small: {model.ff: 32}
  fixed: {model.attention: {encoder: {name: synthesizer-random, trainable: false}}}
baseline: vanilla
"""


@pytest.fixture
def file(tmp_path: Path) -> RecipeFile:
    return of(tmp_path)


def of(folder: Path, *overrides: str) -> RecipeFile:
    (folder / "r.yaml").write_text(RECIPE)
    return load(folder / "r.yaml", overrides)


def total(file: RecipeFile, name: str) -> int:
    return cost.parameters(file.variants[name], (300, 300)).total


def test_every_variant_has_the_parameters_of_the_baseline(file: RecipeFile, tmp_path: Path) -> None:
    before = {name: total(file, name) for name in file.variants}
    found = list(matching.match_parameters(file, list(file.variants)))
    assert [one.variant for one in found] == ["random", "small", "fixed"]
    words = [word for one in found for word in one.overrides]
    matched = of(tmp_path, *words)
    assert matched.variants["vanilla"] == file.variants["vanilla"]
    for one in found:
        ratio = total(matched, one.variant) / before["vanilla"]
        assert total(matched, one.variant) != before[one.variant]
        assert ratio == pytest.approx(one.ratio)
        assert abs(ratio - 1) < 0.02  # 8 columns of the feed-forward sublayers are 2 %


@pytest.mark.parametrize("kind", ["recurrent", "convolutional"])
def test_models_without_feed_forward_sublayers_change_their_width_alone(
    kind: str, tmp_path: Path
) -> None:
    text = f"variants.random={{model: {{type: {kind}, ff: 1024, heads: 1, width: 16}}}}"
    file = of(tmp_path, "variants.random.model.attention=dot", text)
    (found,) = matching.match_parameters(file, ["random"])
    assert found.before[1] == found.after[1] == 1024
    matched = of(tmp_path, "variants.random.model.attention=dot", text, *found.overrides)
    assert total(matched, "random") / total(file, "vanilla") == pytest.approx(found.ratio)
    assert abs(found.ratio - 1) < 0.04  # steps of two columns


def test_widths_keep_heads_of_even_width(tmp_path: Path) -> None:
    """A model with another layer becomes narrower; rotary positions need even heads."""
    plain = (
        "variants.fixed.model.attention=scaled-dot",
        "variants.random.model.attention=scaled-dot",
    )
    words = ["model.heads=4", "model.positions=rope", *plain, "variants.random.model.layers=4"]
    file = of(tmp_path, *words)
    (one,) = matching.match_parameters(file, ["random"])
    matched = of(tmp_path, *words, *one.overrides)
    assert one.after[0] < 64
    assert one.after[0] % 8 == 0
    assert total(matched, "random") == pytest.approx(total(file, "vanilla"), rel=0.01)


def test_a_variant_that_cannot_be_matched_is_refused(tmp_path: Path) -> None:
    file = of(tmp_path, "variants.random.data.max_length=4000")
    with pytest.raises(RecipeError, match="variant random cannot be matched to vanilla"):
        list(matching.match_parameters(file, ["random"]))
