"""Memory between two trainings."""

import gc
import weakref

from attnkit.memory import settle_memory


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.me = self


def test_garbage_is_collected_and_what_is_left_is_not_looked_through_again() -> None:
    lost, kept = weakref.ref(Cycle()), Cycle()
    before = gc.get_freeze_count()
    try:
        settle_memory()
        assert lost() is None
        assert gc.get_freeze_count() > before
        assert not any(found is kept for found in gc.get_objects())
    finally:
        gc.unfreeze()
