"""The contract of a mechanism: masks, states, and the base classes of the mechanism families.

Start with `base.Attention` (the interface of a mechanism), `scored.Scored` (mechanisms with a score matrix) and
`mask.Mask` (which keys each query may attend to). Imports `ops` and the packages below it.
"""

from attnkit.attention.base import Attention, AttentionCall, Out, Shape, Unscored, one_head
from attnkit.attention.cache import State, append, reorder
from attnkit.attention.linear_family import Kernel, real_keys
from attnkit.attention.mask import Mask
from attnkit.attention.options import above, at_least
from attnkit.attention.scored import Scored, visible_softmax
from attnkit.ops.grouped_heads import dot_scores, mix

__all__ = ["Attention", "AttentionCall", "Kernel", "Mask", "Out", "Scored", "Shape", "State", "Unscored"]
__all__ += ["above", "append", "at_least", "dot_scores", "mix", "one_head", "real_keys"]
__all__ += ["reorder", "visible_softmax"]
