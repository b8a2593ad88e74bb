"""What a validation measures: loss over the encoded split, and a decoded metric where wanted."""

import copy
import math
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from attnkit.data.encoded import Encoded
from attnkit.data.rows import Row
from attnkit.data.tokenizer import Tokenizer
from attnkit.models import Model
from attnkit.recipe import schema
from attnkit.scoring.evaluation import model_scores
from attnkit.scoring.teacher_forced import teacher_forced

BATCH_TOKENS = 8192
"""Budget of a decoding batch while training."""


class Forced(NamedTuple):
    """Sums over the target tokens of a split when the right prefix is given."""

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
        return math.exp(self.loss) if self.loss < 700 else math.inf


class Validator:
    """Measures candidate weights on the validation split, in float32.

    A decoded metric comes from greedy search: it ranks candidates as beam search does, at a
    fraction of the time.
    """

    def __init__(
        self, recipe: schema.Recipe, model: Model, tokenizer: Tokenizer, encoded: Encoded
    ) -> None:
        self.recipe, self.tokenizer, self.encoded = recipe, tokenizer, encoded
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self.monitor = recipe.train.monitor
        self.rows: list[Row] = []

    @property
    def needs_rows(self) -> bool:
        """Whether the monitor is decoded text, for which `rows` must be set."""
        return self.monitor not in ("loss", "accuracy")

    @property
    def lower_is_better(self) -> bool:
        """Which way the monitored value improves."""
        return self.monitor in ("loss", "ter")

    def measure(self, weights: Mapping[str, Tensor]) -> tuple[Forced, float]:
        """The forced sums and the monitored value of these weights."""
        self.model.load_state_dict(weights, strict=False)
        result = Forced(*teacher_forced(self.model, self.encoded).sum(0).tolist())
        if self.monitor == "loss":
            return result, result.loss
        if self.monitor == "accuracy":
            return result, 100 * result.correct / max(1.0, result.tokens)
        greedy = self.recipe.search.model_copy(
            update={"method": "greedy", "batch_tokens": BATCH_TOKENS}
        )
        metrics, rows = [self.monitor], self.rows
        scores = model_scores(metrics, self.model, self.tokenizer, rows, self.recipe, search=greedy)
        return result, scores[self.monitor].value
