"""Rows of which marked positions are predicted: a target, or nothing, for each source token."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from attnkit.data.encoded import Encoded, Ragged
from attnkit.data.text_form import NOTHING
from attnkit.data.tokenizer import PAD, Vocabulary
from attnkit.errors import DataError


class MarkedTargets(Ragged):
    """Targets side by side with their source, PAD where nothing is predicted and at its end."""

    def last(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """PAD: the end of a source is no position."""
        return np.full(len(rows), PAD)


def mark(encoded: Encoded, vocabulary: Vocabulary) -> Encoded:
    """Rows whose targets are read as the answers at each position of the source."""
    assert isinstance(encoded.target, Ragged)
    ids = np.array(encoded.target.ids)
    if NOTHING in vocabulary:
        ids[ids == vocabulary.id_of(NOTHING)] = PAD
    return replace(encoded, target=MarkedTargets(ids, encoded.target.offsets))


def check_marked(encoded: Encoded, vocabulary: Vocabulary, name: str) -> None:
    """Raise DataError where there is nothing to learn, or a target does not fit its source."""
    assert encoded.source is not None
    uneven = np.flatnonzero(encoded.source.lengths != encoded.target.lengths + 1)
    if len(uneven):
        row = int(uneven[0])
        tokens = int(encoded.source.lengths[row]) - 1
        raise DataError(
            f"{name}: row {row + 1} has {tokens} tokens and {int(encoded.target.lengths[row])} "
            f"targets; give one for each token, {NOTHING} where nothing is predicted"
        )
    if NOTHING not in vocabulary:
        return
    answers = np.unique(encoded.target.ids[encoded.target.ids != vocabulary.id_of(NOTHING)])
    if not len(answers):
        raise DataError(f"{name}: no row marks a position; all targets are {NOTHING}")
    if len(answers) == 1:
        only = vocabulary.pieces([int(answers[0])])[0].strip("\u2581 ")
        raise DataError(f"{name}: all marked positions have the same answer, {only}: there is nothing to learn")
