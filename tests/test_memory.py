"""Tests of memory between two trainings."""

import gc
import weakref

from attnkit.memory import settle_memory


class Cycle:
    """An object that only the garbage collector frees."""

    def __init__(self) -> None:
        self.me = self


def test_garbage_is_collected_and_the_rest_is_frozen() -> None:
    lost, kept = weakref.ref(Cycle()), Cycle()
    before = gc.get_freeze_count()
    try:
        settle_memory()
        assert lost() is None
        assert gc.get_freeze_count() > before
        assert not any(tracked is kept for tracked in gc.get_objects())
    finally:
        gc.unfreeze()
