"""What a validation measures: loss over the encoded split, and a decoded metric where wanted."""

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
"""Budget of a decoding batch while training."""


class TeacherForcedSums(NamedTuple):
    """Sums over the target tokens of a split, each predicted from the reference before it."""

    nll: float
    """Plain cross-entropy in nats."""
    correct: float
    tokens: float

    @property
    def loss(self) -> float:
        """Nats a token."""
        return self.nll / max(1.0, self.tokens)

    @property
    def perplexity(self) -> float:
        """exp(loss); infinite where that is no float."""
        return math.exp(self.loss) if self.loss < 700 else math.inf  # e^710 is no float


class MonitoredScore(NamedTuple):
    """What one validation is ranked by: the monitored value, then the loss in nats a token."""

    value: float
    loss: float

    def better_than(self, other: "MonitoredScore", monitor: str) -> bool:
        """Whether the value is better, or the same with a lower loss.

        A metric may stay at 0 for the first validations while the loss falls.
        """
        if self.value == other.value:
            return self.loss < other.loss
        lower = monitor == "loss" or METRICS[monitor].better == "lower"
        return self.value < other.value if lower else self.value > other.value


class Validator:
    """Measures candidate weights on the validation split, in float32.

    A decoded metric comes from greedy search: it ranks candidates as beam search does, at a fraction of the time.
    """

    def __init__(self, recipe: schema.Recipe, model: Model, prepared: PreparedData) -> None:
        self.recipe, self.tokenizer, self.encoded = recipe, prepared.tokenizer, prepared.valid
        self.model = copy.deepcopy(model).eval().requires_grad_(False)  # to load candidates into
        self.monitor = recipe.train.monitor
        decodes = self.monitor not in ("loss", "accuracy")
        self.rows = list(prepared.corpus.rows("valid")) if decodes else []

    def record(self, sums: TeacherForcedSums, value: float, seconds: float) -> dict[str, float | str]:
        """What the log says of a validation after so many seconds of updates, beside the step."""
        return {
            "valid_loss": sums.loss,
            "valid_perplexity": sums.perplexity,
            "monitor": self.monitor,
            "value": value,
            "valid_seconds": seconds,
        }

    def measure(self, weights: Mapping[str, Tensor]) -> tuple[TeacherForcedSums, float]:
        """The teacher-forced sums and the monitored value of these weights."""
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
