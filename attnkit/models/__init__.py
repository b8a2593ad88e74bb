"""Models, one type per file, and `build`, which creates the model of a recipe.

Start with `base.Model` (the interface: `start` and `step`), `base.Decode` (the state of decoding) and
`transformer.Transformer`. Imports `layers` and the packages below it.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from attnkit import mechanisms
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.models.base import Decode, Model
from attnkit.models.convolutional import ConvolutionalModel
from attnkit.models.counted import CountedModel
from attnkit.models.encoder import EncoderClassifier, PositionTagger
from attnkit.models.initialization import initialize_normal
from attnkit.models.naive_bayes import NaiveBayes
from attnkit.models.naive_bayes_attention import NaiveBayesAttention
from attnkit.models.ngram import NGram
from attnkit.models.recurrent import RecurrentModel
from attnkit.models.transformer import Transformer
from attnkit.recipe import schema

__all__ = [
    "ConvolutionalModel",
    "CountedModel",
    "Decode",
    "EncoderClassifier",
    "PositionTagger",
    "Model",
    "NGram",
    "NaiveBayes",
    "NaiveBayesAttention",
    "RecurrentModel",
    "Transformer",
    "build",
    "build_for",
    "check_options",
]

TYPES: dict[str, Callable[[schema.ModelConfig, tuple[int, int], int], Model]] = {
    "transformer": Transformer,
    "recurrent": RecurrentModel,
    "convolutional": ConvolutionalModel,
    "n-gram": NGram,
    "naive-bayes": NaiveBayes,
    "naive-bayes-attention": NaiveBayesAttention,
}
"""Classes by `model.type`."""


def build(model: schema.ModelConfig, sizes: tuple[int, int], max_length: int, *, tagger: bool = False) -> Model:
    """Return a newly initialized model.

    Args:
        model: Section `model` of a recipe.
        sizes: Sizes of the source and target vocabularies; labels are the target vocabulary of an encoder.
        max_length: Maximum length of a sequence in the data, without the begin token.
        tagger: Whether the model predicts tokens at positions of its source.
    """
    model_class = EncoderClassifier if model.shape == "encoder" else TYPES[model.type]
    built = (PositionTagger if tagger else model_class)(model, sizes, _positions(model, max_length))
    if model.init_std is not None:
        initialize_normal(built, model.init_std)
    return built


def build_for(recipe: schema.Recipe, sizes: tuple[int, int]) -> Model:
    """Return the newly initialized model of a recipe; `sizes` are those of the source and target vocabularies."""
    return build(recipe.model, sizes, recipe.data.max_length, tagger=not recipe.writes)


def check_options(recipe: schema.Recipe, role: str, options: Mapping[str, Any]) -> None:
    """Raise UsageError if the mechanism of a role (encoder, decoder, cross) rejects these options.

    The layers are built on the meta device, which mechanisms of other packages may not support: other exceptions are
    left to `build`.
    """
    model = recipe.model
    name = getattr(model.attention, role).name
    length = _positions(model, recipe.data.max_length)
    cross, causal = role == "cross", role == "decoder"
    with torch.device("meta"), torch.random.fork_rng(devices=[]):  # keeps the global RNG
        try:
            for depth in range(len(mechanisms.layer_schedule(name, options))):
                MultiHead.build(name, model.width, model.heads, length, cross, depth, causal, **options)
        except UsageError:
            raise
        except Exception:
            return


def _positions(model: schema.ModelConfig, max_length: int) -> int:
    # with the begin token; a decoder reads a source before its target
    return 2 * (max_length + 1) if model.shape == "decoder" else max_length + 1
