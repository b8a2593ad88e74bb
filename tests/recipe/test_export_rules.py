"""Tests of the rules that decide to which formats a recipe can be exported, and of their notes."""

from typing import Any

import pytest
from helpers.export_models import recipe

from attnkit.recipe import Recipe
from attnkit.recipe.export_rules import TARGETS, export_issue, notes, refusal
from attnkit.recipe.schema import TokenizerConfig as Pieces


def targets(chosen: Recipe) -> list[str]:
    return [target for target in TARGETS if not export_issue(chosen, target)]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "huggingface ctranslate2 onnx"),
        ({"attention": "dot", "norm": "post", "tie": "none"}, "huggingface ctranslate2 onnx"),
        ({"shape": "decoder"}, "huggingface onnx"),
        ({"positions": "rope"}, "ctranslate2 onnx"),
        ({"positions": "alibi"}, "onnx"),
        ({"activation": "geglu"}, "ctranslate2 onnx"),
        ({"attention": "synthesizer-random", "shape": "decoder"}, "onnx"),
        ({"attention": "performer", "shape": "decoder"}, ""),
        ({"attention": {"encoder": "performer"}}, "onnx"),
        ({"attention": "block-topk", "shape": "decoder"}, ""),
        ({"attention": {"decoder": {"name": "linear", "feature_map": "exp"}}}, ""),
        ({"attention": {"encoder": {"name": "linear", "feature_map": "exp"}}}, "onnx"),
        ({"attention": {"encoder": {"name": "nystrom", "pinv": "exact"}}}, ""),
        ({"attention": {"decoder": "gated-delta"}}, ""),
        ({"attention": {"encoder": "gated-delta"}}, ""),
        ({"attention": "decay", "shape": "decoder"}, ""),
        ({"shape": "encoder"}, "onnx"),
        ({"type": "recurrent"}, ""),
    ],
)
def test_architecture_decides_the_formats(options: dict[str, Any], expected: str) -> None:
    assert targets(recipe(**options)) == expected.split()


def with_options(**options: Any) -> Recipe:
    attention = {"name": "scaled-dot", **options}
    return recipe(attention=dict.fromkeys(("encoder", "decoder", "cross"), attention))


def test_options_that_act_only_in_training_do_not_prevent_an_export() -> None:
    assert targets(with_options(attention_dropout=0.1, score_noise=0.5, key_heads=2)) == [*TARGETS]
    for options in ({"key_norm": True}, {"key_heads": 1}, {"residual_scores": "mean"}):
        assert targets(with_options(**options)) == ["onnx"], options
        (name,) = options
        assert export_issue(with_options(**options), "ctranslate2") == f"scaled-dot with {name}"


@pytest.mark.parametrize(
    ("attention", "issue"),
    [
        ({"name": "interleaved", "parts": ["scaled-dot", "gated-delta"]}, "gated-delta in the decoder"),
        ({"name": "linear", "feature_map": "softmax"}, "linear with feature_map: softmax in the decoder"),
    ],
)
def test_issue_names_the_part_or_the_option(attention: dict[str, Any], issue: str) -> None:
    assert export_issue(recipe("decoder", {"decoder": attention}), "onnx") == issue


def test_whole_words_are_not_exported_to_transformers() -> None:
    words = recipe().model_copy(update={"tokenizer": Pieces(type="word")})
    assert targets(words) == ["ctranslate2", "onnx"]
    assert refusal(words, "huggingface") == (
        "tokenizer.type: word cannot be exported to transformers; use --to ctranslate2 or onnx"
    )


def test_question_answering_is_not_exported() -> None:
    questions = recipe("decoder").model_copy(update={"task": "question-answering"})
    assert refusal(questions, "onnx") == "task: question-answering cannot be exported to ONNX, nor to any other format"


def test_notes_give_reasons_if_variants_are_alike() -> None:
    plain, random, post = recipe(), recipe("decoder", "synthesizer-random"), recipe(norm="post")
    assert [*notes([("a", plain)])] == ["export: huggingface (Pegasus), ctranslate2, onnx"]
    trained = plain.tokenizer.model_copy(update={"model": "other.model"})
    (note,) = notes([("a", plain.model_copy(update={"tokenizer": trained}))])
    assert "(Pegasus) unless tokenizer.model has byte fallback" in note
    assert [*notes([("a", random), ("b", random)])] == [
        "export: onnx; not huggingface (synthesizer-random); not ctranslate2 (model.shape: decoder)"
    ]
    assert [*notes([("a", plain), ("b", random), ("c", post)])] == [
        "export of a: huggingface (Pegasus), ctranslate2, onnx",
        "export of b: onnx",
        "export of c: huggingface (Marian), ctranslate2, onnx",
    ]
