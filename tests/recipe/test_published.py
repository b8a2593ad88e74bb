"""Tests of published figures in a recipe file: reading, inheritance and errors."""

import pytest
import yaml
from helpers.recipe_texts import GOOD, check_error, error_message, write

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
    assert read(VARIANTS + FIGURES) == Published(
        source='Tay et al. 2021, "Synthesizer", table 1',
        comparable=False,
        why="another corpus",
        scores={"vanilla": {"bleu": 27.67}, "random": {"bleu": 27.0}},
    )


@pytest.mark.parametrize("text", ["", "published: null\n", "published:\n"])
def test_figures_are_optional(text: str) -> None:
    assert read(VARIANTS + text) is None


def test_figures_do_not_change_the_digests_of_variants() -> None:
    def digests(text: str) -> dict[str, str]:
        return {name: digest(recipe) for name, recipe in load(write(text)).variants.items()}

    assert digests(VARIANTS + FIGURES) == digests(VARIANTS)


def test_figures_are_not_inherited() -> None:
    """A file that extends another one may have other data, with which the figures do not compare."""
    write(VARIANTS + FIGURES, "base.yaml")
    assert read("extends: base.yaml\n", "child.yaml") is None
    assert read("extends: base.yaml\n" + FIGURES, "child.yaml").scores["vanilla"] == {"bleu": 27.67}


def test_split_of_comparable_figures_defaults_to_the_only_split() -> None:
    assert read(VARIANTS + FIGURES.replace("false", "true")).split == "test"


SCORES = "scores: {vanilla: {bleu: 27.67}, random: {bleu: 27}}"


MISTAKES = [
    ("vanilla: {bleu", "vanila: {bleu", "8:11: published.scores: no variant 'vanila'; did you mean vanilla?"),
    ("{bleu: 27.67}", "{blue: 27.67}", "8:11: published.scores: no metric 'blue'; did you mean bleu?"),
    ("{bleu: 27.67}", "{rouge: 27.67}", "published.scores: no metric 'rouge'; did you mean rouge"),
    ("27.67", "high", "8:11: published.scores: must be a non-empty mapping, each a non-empty mapping"),
    ("27.67", ".nan", "non-empty mapping, each a number, got {vanilla: {bleu: .nan}, random:"),
    ("{bleu: 27.67}", "27.67", "published.scores: must be a non-empty mapping, each a non-empty mapping"),
    (SCORES, "scores: []", "published.scores: must be a non-empty mapping, each a non-empty mapping"),
    (SCORES, "scores: {}", "each a non-empty mapping, each a number, got {}"),
    ("{bleu: 27.67}", "{}", "each a non-empty mapping, each a number, got {vanilla: {}, random: {bleu: 27}}"),
    ("  why: another corpus\n", "", "5:3: published.why: is missing; say why the figures are not comparable"),
    ("comparable: false", "comparable: no", "published.comparable: must be true or false"),
    ("  comparable: false\n", "", "5:3: published.comparable: is missing"),
    ("  source:", "  sauce:", "5:3: published.sauce: unknown key; did you mean source?"),
    ('Tay et al. 2021, "Synthesizer", table 1', '""', "published.source: must not be empty"),
    ("  why", "  split: tset\n  why", "7:10: published.split: eval.splits has no split 'tset'; did you mean test?"),
]


@pytest.mark.parametrize(("before", "after", "message"), MISTAKES)
def test_mistake_raises_with_its_position(before: str, after: str, message: str) -> None:
    text = VARIANTS + FIGURES
    assert before in text
    check_error(message, text.replace(before, after))


def test_comparable_figures_must_name_one_of_several_splits() -> None:
    text = VARIANTS + "eval: {splits: [test, valid]}\n" + FIGURES.replace("false", "true")
    with pytest.raises(RecipeError, match=r"published.split: is missing; choose the split .* test, valid"):
        read(text)
    assert read(text + "  split: valid\n").split == "valid"


@pytest.mark.parametrize("override", ["published=null", "published.source=x"])
def test_command_line_does_not_set_figures(override: str) -> None:
    assert "published" in error_message(VARIANTS + FIGURES, override, kind=RecipeError)


EN_DE = {"vanilla": 27.67, "fixed-random": 23.89, "random": 27.27, "dense": 27.43}
EN_DE |= {"random+dense": 27.68, "random+vanilla": 28.47}
EN_FR = {"vanilla": 41.57, "fixed-random": 38.31, "random": 41.12, "dense": 41.39, "random+vanilla": 41.85}


@pytest.mark.parametrize(("name", "figures"), [("multi30k", EN_DE), ("wmt14-en-de", EN_DE), ("wmt14-en-fr", EN_FR)])
def test_figures_of_shipped_recipes_equal_the_source(name: str, figures: dict[str, float]) -> None:
    """Rows of the table that no available source gives, or that two sources give differently, are absent."""
    published = load(f"translation/{name}").published
    assert {variant: scores["bleu"] for variant, scores in published.scores.items()} == figures
    assert not published.comparable


def test_every_metric_can_be_published() -> None:
    figures = yaml.safe_dump({"vanilla": dict.fromkeys(METRICS, 1.0)}, default_flow_style=True)
    text = FIGURES.partition("  scores:")[0] + f"  scores: {figures}"
    assert set(read(VARIANTS + text).scores["vanilla"]) == set(METRICS)
