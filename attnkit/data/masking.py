"""Masked tokens, the objective of BERT (Devlin et al. 2019, section 3.1).

15 % of the tokens of a text are to be predicted.  The model sees the mask in place of 80 % of
them, a random token in place of 10 %, and the token itself in the other 10 %.  Each token is drawn
by itself, whatever windows the text is cut in: windows of every length have the same tokens hidden.
"""

from dataclasses import replace

import numpy as np

from attnkit.data.encoded import Blocks, Encoded, Ids, Ragged
from attnkit.data.large_array import CHUNK, large_array
from attnkit.data.span_corruption import FIXED, corrupted
from attnkit.data.tokenizer import EOS, PAD, Vocabulary
from attnkit.text import RESERVED

MASK = "<mask>"
DENSITY, HIDDEN, RANDOM = 0.15, 0.8, 0.1
SIGNATURE = f"masked:{DENSITY}"
_PURPOSE = 3
"""Tells these draws from those of `batch_plan` and `span_corruption`, which have 0 to 2."""


def masked(
    stream: Encoded, vocabulary: Vocabulary, length: int, noise: tuple[int, int] = FIXED
) -> Encoded:
    """A stream as windows of `length` tokens: what the model sees, and what is hidden.

    The source of a row is its window with noise; its target is the window with PAD in place of all
    tokens that are not to be predicted.  The last window may be shorter.  The ends of paragraphs
    are never hidden.  A pure function of its arguments.

    Args:
        stream: encoded for language modelling.
        vocabulary: has the `MASK`.
        length: in tokens.
        noise: seed and epoch; other tokens in every epoch.
    """
    ids: Ids = stream.target.ids
    mask, pieces = vocabulary.id_of(MASK), np.uint64(len(vocabulary) - len(RESERVED))
    draws, others = (np.random.PCG64((*noise, _PURPOSE)) for _ in range(2))
    others.advance(len(ids))
    seen, hidden = (large_array(len(ids), ids.dtype) for _ in range(2))
    for start in range(0, len(ids), CHUNK):
        here = slice(start, start + CHUNK)
        part = ids[here]
        draw = draws.random_raw(len(part)) / 2.0**64 / DENSITY  # below 1: to be predicted
        chosen = (draw < 1) & (part != EOS)
        other = others.random_raw(len(part)) % pieces + np.uint64(len(RESERVED))
        seen[here] = np.where(chosen & (draw < HIDDEN + RANDOM), other.astype(ids.dtype), part)
        seen[here][chosen & (draw < HIDDEN)] = mask
        hidden[here] = np.where(chosen, part, ids.dtype.type(PAD))
    target = Blocks(hidden, length)
    offsets = np.append(target.starts, len(ids))
    return replace(stream, source=Ragged(seen, offsets), target=target)


def with_noise(
    stream: Encoded,
    vocabulary: Vocabulary,
    objective: str,
    length: int,
    noise: tuple[int, int] = FIXED,
) -> Encoded:
    """Rows as a model reads them whose `train.objective` this is: with noise, or as they are."""
    if objective == "span-corruption":
        return corrupted(stream, vocabulary, length, noise)
    return masked(stream, vocabulary, length, noise) if objective == "masked" else stream
