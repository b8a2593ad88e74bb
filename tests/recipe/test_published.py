"""Published figures in a recipe file: read, inherited, and refused where they stand."""

import pytest
import yaml
from helpers.recipe_texts import GOOD, error_message, write

from attnkit.errors import RecipeError
from attnkit.recipe import digest, load
from attnkit.recipe.metrics import METRICS
from attnkit.recipe.published import Published

VARIANTS = GOOD + "variants: {vanilla: {}, random: {}}\n"
FIGURES = """published:
  source: Tay et al. 2021, "Synthesizer", table 1
  comparable: false
  why: another corpus
  scores: {vanilla: {bleu: 27.67}, random: {bleu: 27}}
"""


def read(text: str, name: str = "r.yaml") -> Published | None:
    return load(write(text, name)).published


def test_figures_are_read_by_variant_and_metric() -> None:
    found = read(VARIANTS + FIGURES)
    assert found == Published(
        source='Tay et al. 2021, "Synthesizer", table 1',
        comparable=False,
        why="another corpus",
        scores={"vanilla": {"bleu": 27.67}, "random": {"bleu": 27.0}},
    )


@pytest.mark.parametrize("text", ["", "published: null\n", "published:\n"])
def test_most_recipes_have_none(text: str) -> None:
    assert read(VARIANTS + text) is None


def test_they_are_no_part_of_a_recipe_that_is_trained() -> None:
    read(VARIANTS)
    without = {name: digest(recipe) for name, recipe in load("r.yaml").variants.items()}
    read(VARIANTS + FIGURES)
    assert without == {name: digest(recipe) for name, recipe in load("r.yaml").variants.items()}


def test_they_are_not_inherited() -> None:
    """A file that extends another may have other data, and says itself what compares with it."""
    read(VARIANTS + FIGURES, "base.yaml")
    assert read("extends: base.yaml\n", "child.yaml") is None
    own = read("extends: base.yaml\n" + FIGURES, "child.yaml")
    assert own is not None
    assert own.scores["vanilla"] == {"bleu": 27.67}


def test_the_only_split_is_that_of_comparable_figures() -> None:
    found = read(VARIANTS + FIGURES.replace("false", "true"))
    assert found is not None
    assert found.split == "test"


MISTAKES = [
    ("vanilla: {bleu", "vanila: {bleu", "8:11: published.scores: no variant 'vanila'; did you mean vanilla?"),
    ("{bleu: 27.67}", "{blue: 27.67}", "8:11: published.scores: no metric 'blue'; did you mean bleu?"),
    ("{bleu: 27.67}", "{rouge: 27.67}", "published.scores: no metric 'rouge'; did you mean rouge"),
    ("27.67", "high", "8:11: published.scores: must be a non-empty mapping, each a non-empty mapping"),
    ("27.67", ".nan", "non-empty mapping, each a number, got {vanilla: {bleu: .nan}, random:"),
    ("{bleu: 27.67}", "27.67", "published.scores: must be a non-empty mapping, each a non-empty mapping"),
    (
        "scores: {vanilla: {bleu: 27.67}, random: {bleu: 27}}",
        "scores: []",
        "published.scores: must be a non-empty mapping, each a non-empty mapping",
    ),
    (
        "scores: {vanilla: {bleu: 27.67}, random: {bleu: 27}}",
        "scores: {}",
        "each a non-empty mapping, each a number, got {}",
    ),
    ("{bleu: 27.67}", "{}", "each a non-empty mapping, each a number, got {vanilla: {}, random: {bleu: 27}}"),
    ("  why: another corpus\n", "", "5:3: published.why: is missing; say why the figures are not comparable"),
    ("comparable: false", "comparable: no", "published.comparable: must be true or false"),
    ("  comparable: false\n", "", "5:3: published.comparable: is missing"),
    ("  source:", "  sauce:", "5:3: published.sauce: unknown key; did you mean source?"),
    ('Tay et al. 2021, "Synthesizer", table 1', '""', "published.source: must not be empty"),
    ("  why", "  split: tset\n  why", "7:10: published.split: eval.splits has no split 'tset'; did you mean test?"),
]


@pytest.mark.parametrize(("before", "after", "message"), MISTAKES)
def test_what_is_wrong_is_told_in_one_line_where_it_stands(before: str, after: str, message: str) -> None:
    text = VARIANTS + FIGURES
    assert before in text
    found = error_message(text.replace(before, after), kind=RecipeError)
    assert message in found
    assert "\n" not in found


def test_comparable_figures_of_one_of_several_splits_must_name_it() -> None:
    text = VARIANTS + "eval: {splits: [test, valid]}\n" + FIGURES.replace("false", "true")
    with pytest.raises(RecipeError, match=r"published.split: is missing; choose the split .* test, valid"):
        read(text)
    found = read(text + "  split: valid\n")
    assert found is not None
    assert found.split == "valid"


@pytest.mark.parametrize("override", ["published=null", "published.source=x"])
def test_the_command_line_does_not_set_them(override: str) -> None:
    assert "published" in error_message(VARIANTS + FIGURES, override, kind=RecipeError)


EN_DE = {
    "vanilla": 27.67,
    "fixed-random": 23.89,
    "random": 27.27,
    "dense": 27.43,
    "random+dense": 27.68,
    "random+vanilla": 28.47,
}
EN_FR = {"vanilla": 41.57, "fixed-random": 38.31, "random": 41.12, "dense": 41.39, "random+vanilla": 41.85}


@pytest.mark.parametrize(("name", "figures"), [("multi30k", EN_DE), ("wmt14-en-de", EN_DE), ("wmt14-en-fr", EN_FR)])
def test_figures_of_shipped_recipes_are_those_that_could_be_found(name: str, figures: dict[str, float]) -> None:
    """Rows of the table that no source at hand gives, or that two give differently, are absent."""
    found = load(f"translation/{name}").published
    assert found is not None
    assert {variant: one["bleu"] for variant, one in found.scores.items()} == figures
    assert not found.comparable


def test_every_metric_of_one_number_can_be_published() -> None:
    figures = yaml.safe_dump({"vanilla": dict.fromkeys(METRICS, 1.0)}, default_flow_style=True)
    text = FIGURES.partition("  scores:")[0] + f"  scores: {figures}"
    found = read(VARIANTS + text)
    assert found is not None
    assert set(found.scores["vanilla"]) == set(METRICS)
