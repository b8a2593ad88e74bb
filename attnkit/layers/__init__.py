"""Parts of a model around a mechanism: projections, positions, feed-forward networks, blocks.

Start with `multi_head.MultiHead` (projections around a mechanism), `block.Block` (attention and feed-forward with
norms) and `positions` (rotary, ALiBi, relative). Imports `mechanisms` and the packages below it.
"""

from attnkit.layers.block import Block, Carried, Memory, make_norm
from attnkit.layers.dropout import Dropout
from attnkit.layers.feed_forward import FeedForward
from attnkit.layers.multi_head import MultiHead

__all__ = ["Block", "Carried", "Dropout", "FeedForward", "Memory", "MultiHead"]
__all__ += ["make_norm"]
