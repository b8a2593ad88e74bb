"""How far a model's next-token distributions are from those that the text was drawn from."""

from collections.abc import Sequence

import numpy as np
import torch

from attnkit import __version__
from attnkit.data.rows import Row
from attnkit.data.synthetic.known_source import END, SOURCES
from attnkit.data.tokenizer import EOS, Tokenizer
from attnkit.models.base import Model
from attnkit.recipe.schema import Recipe
from attnkit.scoring.metrics import Score
from attnkit.scoring.teacher_forced import encode_rows, hidden_states

METRIC = "total-variation"


@torch.inference_mode()
def total_variation(model: Model, tokenizer: Tokenizer, rows: Sequence[Row], recipe: Recipe) -> Score:
    """Half the sum of |p - q| over the vocabulary, averaged over the tokens of the text.

    p is the model's distribution of a token given those of its block before, q that of the source
    given the same.  Statistics are per block.

    Args:
        model: a language model, read as in evaluation.
        tokenizer: each word is one token.
        rows: lines of an embedded corpus whose source is known (`line_tokens` of its card).
        recipe: names the corpus and the length of blocks.
    """
    source, block = SOURCES[str(recipe.data.corpus)], recipe.data.max_length
    encoded = encode_rows(rows, tokenizer, block, stream=True)
    ids, words = {END: EOS}, {EOS: END}
    for word in source.next_words(()):
        (ids[word],) = tokenizer.target.encode([word])[0]
        words[ids[word]] = word
    out = np.zeros((len(encoded), 2))
    for rows_of_tokens, targets, hidden in hidden_states(model, encoded):
        found = model.output(hidden).double().softmax(-1).cpu().numpy()  # [tokens, vocabulary]
        for row in np.unique(rows_of_tokens):
            own = rows_of_tokens == row
            text, p = [words[i] for i in targets.numpy(force=True)[own].tolist()], found[own]
            q = np.zeros_like(p)
            for place in range(len(text)):
                shares = source.next_tokens(text[:place], block)
                q[place, [ids[word] for word in shares]] = list(shares.values())
            out[row] = np.abs(p - q).sum() / 2, len(text)
    signature = f"nrefs:1|unit:token|blocks:{block}|version:attnkit-{__version__}"
    return Score.of(METRIC, out, signature)
