"""Metrics of classification.

The statistics of a line are its cell of the confusion matrix, so that the bootstrap resamples Matthews correlation and
F1 as functions of summed counts. An answer that is no label counts as a separate class, which is never correct.
"""

from collections.abc import Sequence

import numpy as np

from attnkit.scoring.metrics.base import VERSION, Score


def label_scores(
    names: Sequence[str], answers: Sequence[str], right: Sequence[str], labels: Sequence[str]
) -> dict[str, Score]:
    """Score answers against the true labels `right`; `labels` in the order of data.labels."""
    known = f"labels:{','.join(labels)}"
    average = f"positive:{labels[-1]}" if len(labels) == 2 else "average:macro"
    signatures = {"f1": f"{known}|{average}"}
    places = {label: place for place, label in enumerate(labels)}
    cells = np.zeros((len(answers), len(labels), len(labels) + 1))
    for cell, answer, label in zip(cells, answers, right, strict=True):
        cell[places[label], places.get(answer, len(labels))] = 1
    out = {}
    for name in names:
        signature = f"{signatures.get(name, known)}|{VERSION}"
        if name == "label-accuracy":
            out[name] = Score.mean(name, [float(a == b) for a, b in zip(answers, right, strict=True)], signature)
        else:
            out[name] = Score.of(name, cells.reshape(len(answers), -1), signature)
    return out
