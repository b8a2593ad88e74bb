"""Models: one family a file; `build` makes the one that a recipe describes."""

from attnkit.models.base import Decode, Model
from attnkit.models.transformer import Transformer
from attnkit.recipe import schema

__all__ = ["Decode", "Model", "Transformer", "build"]


def build(model: schema.Model, sizes: tuple[int, int], max_length: int) -> Model:
    """A freshly initialised model.

    `sizes` are the source and target vocabularies; `max_length` is the longest sequence that the
    data section allows.  One more position is for the begin token; a decoder that reads a source
    before its target has room for both.
    """
    places = 2 * (max_length + 1) if model.shape == "decoder" else max_length + 1
    return Transformer(model, sizes, places)
