"""What a recipe can be exported to, and what it is told."""

from typing import Any

import pytest
from helpers.export_models import recipe

from attnkit.recipe import Recipe
from attnkit.recipe.export_rules import TARGETS, export_issue, notes, refusal
from attnkit.recipe.schema import AttentionConfig, ModelConfig, Roles
from attnkit.recipe.schema import TokenizerConfig as Pieces


def able(chosen: Recipe) -> list[str]:
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
def test_the_architecture_decides(options: dict[str, Any], expected: str) -> None:
    assert able(recipe(**options)) == expected.split()


def with_options(**options: Any) -> Recipe:
    chosen = recipe()
    one = AttentionConfig(name="scaled-dot", **options)
    roles = Roles(encoder=one, decoder=one, cross=one)
    model = chosen.model.model_copy(update={"attention": roles})
    return chosen.model_copy(update={"model": model})


def test_options_that_act_only_in_training_are_no_obstacle() -> None:
    assert able(with_options(attention_dropout=0.1, score_noise=0.5, key_heads=2)) == [*TARGETS]
    for options in ({"key_norm": True}, {"key_heads": 1}, {"residual_scores": "mean"}):
        assert able(with_options(**options)) == ["onnx"], options
        (name,) = options
        assert export_issue(with_options(**options), "ctranslate2") == f"scaled-dot with {name}"


def test_a_part_of_a_composite_can_be_the_obstacle() -> None:
    chosen = AttentionConfig(name="interleaved", parts=["scaled-dot", "gated-delta"])
    model = ModelConfig(shape="decoder", attention=Roles(decoder=chosen))
    assert export_issue(recipe().model_copy(update={"model": model}), "onnx") == ("gated-delta in the decoder")


def test_words_as_pieces_are_not_for_transformers() -> None:
    words = recipe().model_copy(update={"tokenizer": Pieces(type="word")})
    assert able(words) == ["ctranslate2", "onnx"]
    assert refusal(words, "huggingface") == (
        "tokenizer.type: word cannot be exported to transformers; use --to ctranslate2 or onnx"
    )


def test_several_contexts_are_not_exported() -> None:
    asked = recipe("decoder").model_copy(update={"task": "question-answering"})
    assert refusal(asked, "onnx") == ("task: question-answering cannot be exported to ONNX, nor to any other format")


def test_notes_say_why_where_variants_are_alike() -> None:
    plain, random, post = recipe(), recipe("decoder", "synthesizer-random"), recipe(norm="post")
    assert [*notes([("a", plain)])] == ["export: huggingface (Pegasus), ctranslate2, onnx"]
    given = plain.tokenizer.model_copy(update={"model": "other.model"})
    (note,) = notes([("a", plain.model_copy(update={"tokenizer": given}))])
    assert "(Pegasus) unless tokenizer.model has byte fallback" in note
    assert [*notes([("a", random), ("b", random)])] == [
        "export: onnx; not huggingface (synthesizer-random); not ctranslate2 (model.shape: decoder)"
    ]
    assert [*notes([("a", plain), ("b", random), ("c", post)])] == [
        "export of a: huggingface (Pegasus), ctranslate2, onnx",
        "export of b: onnx",
        "export of c: huggingface (Marian), ctranslate2, onnx",
    ]


def test_an_option_that_is_the_obstacle_is_named() -> None:
    chosen = recipe(attention={"decoder": {"name": "linear", "feature_map": "softmax"}})
    assert export_issue(chosen, "onnx") == "linear with feature_map: softmax in the decoder"
