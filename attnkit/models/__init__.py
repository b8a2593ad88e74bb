"""Models: one type a file; `build` gives the one that a recipe describes.

Start with `base.Model` (the verbs `start` and `step`), `base.Decode` (the state between steps)
and `transformer.Transformer`. Imports `layers` and what is below them.
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
"""`model.type` -> class."""


def build(model: schema.ModelConfig, sizes: tuple[int, int], max_length: int, *, tagger: bool = False) -> Model:
    """A freshly initialised model; a `tagger` predicts a token for positions of its source.

    `sizes` are the source and target vocabularies; that of an encoder alone are its labels.
    `max_length` is the longest sequence that the data section allows.  One more position is for the
    begin token; a decoder that reads a source before its target has room for both.
    """
    make = EncoderClassifier if model.shape == "encoder" else TYPES[model.type]
    made = (PositionTagger if tagger else make)(model, sizes, _positions(model, max_length))
    if model.init_std is not None:
        initialize_normal(made, model.init_std)
    return made


def build_for(recipe: schema.Recipe, sizes: tuple[int, int]) -> Model:
    """The freshly initialised model of a recipe; `sizes` are the source and target vocabularies."""
    return build(recipe.model, sizes, recipe.data.max_length, tagger=not recipe.writes)


def check_options(recipe: schema.Recipe, role: str, options: Mapping[str, Any]) -> None:
    """Build the attention of a role (encoder, decoder, cross) with these options, without storage.

    Any failure but a refusal is left to `build`: a mechanism from outside may not know tensors without storage.

    Raises UsageError: the mechanism refuses the options.
    """
    model = recipe.model
    word = getattr(model.attention, role).name
    length = _positions(model, recipe.data.max_length)
    cross, causal = role == "cross", role == "decoder"
    with torch.device("meta"), torch.random.fork_rng(devices=[]):  # global RNG as before
        try:
            for depth in range(len(mechanisms.layer_schedule(word, options))):
                MultiHead.build(word, model.width, model.heads, length, cross, depth, causal, **options)
        except UsageError:
            raise
        except Exception:
            return


def _positions(model: schema.ModelConfig, max_length: int) -> int:
    """Positions that the model needs."""
    return 2 * (max_length + 1) if model.shape == "decoder" else max_length + 1
