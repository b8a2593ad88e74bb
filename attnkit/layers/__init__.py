"""The parts of a model around a mechanism: projections, positions, feed-forward, blocks."""

from attnkit.layers.block import Block as Block
from attnkit.layers.block import Carried as Carried
from attnkit.layers.block import Memory as Memory
from attnkit.layers.dropout import Dropout as Dropout
from attnkit.layers.dropout import keep_mask as keep_mask
from attnkit.layers.feed_forward import FeedForward as FeedForward
from attnkit.layers.multi_head import MultiHead as MultiHead
