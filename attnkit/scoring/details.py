"""What `attnkit eval --details` adds to scores: confidence intervals, and what they are made of."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnkit.recipe.metrics import METRICS, base_metric
from attnkit.scoring.comparison import named
from attnkit.scoring.metrics import Score
from attnkit.scoring.metrics.tokenizers import sacrebleu_metric
from attnkit.scoring.results import ScoreDetails, ScoreRow
from attnkit.scoring.significance import SEED, resampled_scores


def with_details(rows: Sequence[ScoreRow], resamples: int) -> list[ScoreRow]:
    """The same, named, with an interval over so many resamples of the sentences and parts."""
    return [
        replace(row, details={
            name: ScoreDetails(interval(score, resamples), parts(score))
            for name, score in row.scores.items()
        })
        for row in named(rows)
    ]  # fmt: skip


def interval(score: Score, resamples: int, seed: int = SEED) -> tuple[float, float] | None:
    """Percentile bootstrap over sentences, 95 %; with the resamples of sacrebleu."""
    if not resamples or not score.resampled:
        return None
    low, high = np.percentile(resampled_scores([score], resamples, seed)[0], [2.5, 97.5])
    return float(low), float(high)


def parts(score: Score) -> dict[str, float]:
    """What a score is made of, where there is more to say than the score.

    BLEU: n-gram precisions, brevity penalty, lengths in tokens; TER: edits; ROUGE: the means of
    precision and recall (outputs that were scored before they were kept have none).
    """
    name, sums = base_metric(score.metric), score.statistics.sum(0).tolist()
    family = METRICS[name].family
    if family == "rouge" and len(sums) > 2:
        return {"precision": 100 * sums[2] / sums[1], "recall": 100 * sums[3] / sums[1]}
    if name == "length-ratio":
        return {"output_length": sums[0], "reference_length": sums[1]}
    if family != "sacrebleu_scores":
        return {}
    result: Any = sacrebleu_metric(name)._compute_score_from_stats(sums)
    if name == "ter":
        return {"edits": result.num_edits, "reference_length": result.ref_length}
    if not hasattr(result, "bp"):
        return {}
    return {f"precision_{n}": value for n, value in enumerate(result.precisions, 1)} | {
        "brevity_penalty": result.bp,
        "output_length": result.sys_len,
        "reference_length": result.ref_len,
    }
