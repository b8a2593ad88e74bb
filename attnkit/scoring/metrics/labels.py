"""Metrics of classification.

The statistics of a line are its cell of the confusion matrix, so that the bootstrap resamples Matthews correlation and
F1 as functions of summed counts. An answer that is no label counts as a separate class, which is never correct.
"""

from collections.abc import Sequence

import numpy as np

from attnkit.scoring.metrics.base import VERSION, Score


def label_scores(
    names: Sequence[str], answers: Sequence[str], targets: Sequence[str], labels: Sequence[str]
) -> dict[str, Score]:
    """Score answers against the true labels `targets`; `labels` in the order of data.labels."""
    average = f"|positive:{labels[-1]}" if len(labels) == 2 else "|average:macro"
    indices = {label: index for index, label in enumerate(labels)}
    matrices = np.zeros((len(answers), len(labels), len(labels) + 1))
    for matrix, answer, target in zip(matrices, answers, targets, strict=True):
        matrix[indices[target], indices.get(answer, len(labels))] = 1
    out = {}
    for name in names:
        signature = f"labels:{','.join(labels)}{average if name == 'f1' else ''}|{VERSION}"
        if name == "label-accuracy":
            out[name] = Score.mean(name, [float(a == b) for a, b in zip(answers, targets, strict=True)], signature)
        else:
            out[name] = Score.of(name, matrices.reshape(len(answers), -1), signature)
    return out
