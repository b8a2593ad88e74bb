"""The stream of training batches, whose position can be saved and restored."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from torch.profiler import record_function

from attnkit.data.batch import Batch, collate, plan
from attnkit.data.encoded import Encoded
from attnkit.mechanisms import facts
from attnkit.recipe import Recipe, places


def score_budget(recipe: Recipe) -> int | None:
    """Return `train.batch_scores` if a mechanism of the recipe takes T x S time, otherwise None."""
    quadratic = any(facts(name).quadratic for name in places(recipe).values())
    return recipe.train.batch_scores or None if quadratic else None


@dataclass
class BatchStream:
    """Endless stream of batches, epoch after epoch; (epoch, position) is its whole state.

    `encoded(epoch)` returns the rows of an epoch, which differ between epochs under subword sampling.
    """

    encoded: Callable[[int], Encoded]
    batch_tokens: int
    seed: int
    attention_budget: int | None = None
    epoch: int = 0
    position: int = 0

    def __post_init__(self) -> None:
        self._open()

    def _open(self) -> None:
        self.rows = self.encoded(self.epoch)
        self.batches = plan(
            None if self.rows.source is None else self.rows.source.lengths,
            self.rows.target.lengths,
            batch_tokens=self.batch_tokens,
            seed=self.seed,
            epoch=self.epoch,
            attention_budget=self.attention_budget,
        )

    @record_function("attnkit: data")
    def take(self, count: int, rank: int = 0, ranks: int = 1) -> list[Batch]:
        """Return the next `count` batches of a rank, possibly across the end of an epoch.

        Batches are dealt to the ranks in turn, so every row is used once per epoch, and no rank runs out of batches
        before the others.
        """
        taken = []
        for number in range(count * ranks):
            if self.position >= len(self.batches):
                self.epoch, self.position = self.epoch + 1, 0
                del self.batches  # room for the next ones
                self._open()
            if number % ranks == rank:
                place = self.seed, self.epoch, self.position
                batch = collate(self.rows, self.batches[self.position])
                taken.append(batch._replace(place=place))
            self.position += 1
        return taken

    def digest(self) -> str:
        """Return the SHA-256 of the plan of the current epoch."""
        digest = hashlib.sha256()
        for array in (self.batches.order, self.batches.ends, self.batches.turns):
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()
