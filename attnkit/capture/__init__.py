"""Capture: the attention maps of a model on given text.

`record` hears one pass of any model; `capture` and `captures` read texts with a trained run.
"""

from attnkit.capture.record import record
from attnkit.capture.run import Captor, capture, captures

__all__ = ["Captor", "capture", "captures", "record"]
