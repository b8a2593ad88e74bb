"""Validation: loss over the encoded split, and a metric of decoded outputs if `train.monitor` names one."""

import copy
import math
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from attnkit.data.preparation import PreparedData
from attnkit.models import Model
from attnkit.recipe import schema
from attnkit.recipe.metrics import METRICS
from attnkit.scoring.evaluation import model_scores
from attnkit.scoring.teacher_forced import teacher_forced

BATCH_TOKENS = 8192
"""Maximum number of tokens in a decoding batch during training."""


class TeacherForcedSums(NamedTuple):
    """Teacher-forced sums over the target tokens of a split."""

    nll: float
    """Plain cross-entropy in nats."""
    correct: float
    tokens: float

    @property
    def loss(self) -> float:
        """Plain cross-entropy in nats per token."""
        return self.nll / max(1.0, self.tokens)

    @property
    def perplexity(self) -> float:
        """exp(loss), or infinity if that overflows."""
        return math.exp(self.loss) if self.loss < 700 else math.inf  # e^710 overflows a float


class MonitoredScore(NamedTuple):
    """Rank of a validation: the monitored value, then the loss in nats per token."""

    value: float
    loss: float

    def better_than(self, other: "MonitoredScore", monitor: str) -> bool:
        """Return whether the value is better, or equal with a lower loss.

        The loss breaks ties because a metric may stay at 0 for the first validations while the loss falls.
        """
        if self.value == other.value:
            return self.loss < other.loss
        lower = monitor == "loss" or METRICS[monitor].better == "lower"
        return self.value < other.value if lower else self.value > other.value


class Validator:
    """Measurement of candidate weights on the validation split, in float32.

    Outputs are decoded by greedy search, which ranks candidates as beam search does, in a fraction of the time.
    """

    def __init__(self, recipe: schema.Recipe, model: Model, prepared: PreparedData) -> None:
        self.recipe, self.tokenizer, self.encoded = recipe, prepared.tokenizer, prepared.valid
        self.model = copy.deepcopy(model).eval().requires_grad_(False)  # to load candidates into
        self.monitor = recipe.train.monitor
        decodes = self.monitor not in ("loss", "accuracy")
        self.rows = list(prepared.corpus.rows("valid")) if decodes else []

    def record(self, sums: TeacherForcedSums, value: float, seconds: float) -> dict[str, float | str]:
        """Return the log record of a validation, without the step; `seconds` is the time spent on updates."""
        return {
            "valid_loss": sums.loss,
            "valid_perplexity": sums.perplexity,
            "monitor": self.monitor,
            "value": value,
            "valid_seconds": seconds,
        }

    def measure(self, weights: Mapping[str, Tensor]) -> tuple[TeacherForcedSums, float]:
        """Return the teacher-forced sums and the monitored value of these weights."""
        self.model.load_state_dict(weights, strict=False)
        sums = TeacherForcedSums(*teacher_forced(self.model, self.encoded)[:, :3].sum(0).tolist())
        if self.monitor == "loss":
            return sums, sums.loss
        if self.monitor == "accuracy":
            return sums, 100 * sums.correct / max(1.0, sums.tokens)
        greedy = self.recipe.search.model_copy(update={"method": "greedy", "batch_tokens": BATCH_TOKENS})
        metrics, rows = [self.monitor], self.rows
        scores = model_scores(metrics, self.model, self.tokenizer, rows, self.recipe, search=greedy)
        return sums, scores[self.monitor].value
