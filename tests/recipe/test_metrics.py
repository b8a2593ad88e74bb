"""Tests of the declarations of metrics."""

from importlib import import_module
from typing import get_args

from pydantic import TypeAdapter

from attnkit.recipe import metrics
from attnkit.recipe.metrics import METRICS, ROUGE, base_metric, direction_note, metric_facts


def test_every_metric_is_valid_in_recipes_and_has_a_family() -> None:
    known = TypeAdapter(metrics.Metric)
    assert set(known.json_schema()["enum"]) == {*METRICS, "rouge"}
    assert [known.validate_python(name) for name in METRICS] == [*METRICS]
    for name, facts in METRICS.items():
        if facts.reads == "outputs":
            family = import_module(f"attnkit.scoring.metrics.{facts.family}")
            assert hasattr(family, "scores"), f"{name}: {family.__file__} needs a function scores"
    assert set(ROUGE) <= METRICS.keys()


def test_names_and_titles_are_unique() -> None:
    titles = [facts.title for facts in METRICS.values()]
    assert len(set(titles)) == len(titles)
    for name in METRICS:
        assert base_metric(name) == name
        for tokenizer in get_args(metrics.BleuTokenizer):
            assert f"{name}-{tokenizer}" not in METRICS


def test_direction_notes_and_titles() -> None:
    assert direction_note("bleu") == ""
    assert direction_note("ter") == " (lower is better)"
    assert direction_note("length-ratio") == " (neither higher nor lower is better)"
    assert direction_note("distinct-2") == " (tested over seeds alone)"
    assert metric_facts("bleu1-ja-mecab").title == "BLEU-1 (ja-mecab)"
