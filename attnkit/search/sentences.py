"""Search over one batch of encoded sentences."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from attnkit.data.tokenizer import BOS
from attnkit.errors import RecipeError
from attnkit.models.base import Model
from attnkit.recipe.schema import SearchConfig
from attnkit.search import base
from attnkit.search.base import Hypothesis
from attnkit.search.beam import beam_search
from attnkit.search.sample import step_by_step


@torch.inference_mode()
def search(
    model: Model,
    source: Int[Tensor, "B S"],
    spec: SearchConfig,
    *,
    lines: Sequence[int],
    first: Int[Tensor, "B 1"] | None = None,
) -> list[list[Hypothesis]]:
    """The n best outputs for each sentence, best first: spec.n_best, or fewer if there are no more.

    A sentence's answer does not depend on the rest of the batch, up to the rounding of the model's
    matrix products.  The model answers as in evaluation, whatever its mode.

    Args:
        model: an encoder-decoder or a decoder.
        source: rows that end with EOS, padded with PAD on the right.
        spec: method and limits.
        lines: 0-based number of each sentence in the input; seeds sampling and names it in errors.
        first: the token that the output follows; BOS unless a language model continues a prompt,
            whose last token it then is, the source being the tokens before it.

    Raises:
        RecipeError: more hypotheses are asked for than the method gives.
        DataError: the model answers NaN, or has no position left for an output.
    """
    check(spec)
    if not len(source):
        return []
    training = model.training
    model.eval()
    try:
        longest = base.steps(model, source, spec.max_length)
        ids = source.new_full((len(source), 1), BOS) if first is None else first
        state = model.start(source, rows=len(source))
        method = beam_search if spec.method == "beam" else step_by_step
        return method(model, state, ids, spec, longest, lines)
    finally:
        model.train(training)


def check(spec: SearchConfig) -> None:
    """Refuse a number of hypotheses that the method cannot give.

    Raises:
        RecipeError: n_best exceeds the beam, or greedy search is asked for more than one.
    """
    most = {"greedy": 1, "beam": spec.beam, "sample": spec.n_best}[spec.method]
    if spec.n_best > most:
        raise RecipeError(
            f"search.n_best: {spec.n_best} hypotheses are asked for, but search.method "
            f"{spec.method} gives at most {most}; use a beam of {spec.n_best}, or sample"
        )
