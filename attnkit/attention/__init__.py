"""The contract of a mechanism: masks, states, and the families that share one form.

Start with `base.Attention` (what a mechanism is), `scored.Scored` (mechanisms that form scores)
and `mask.Mask` (which keys each query may see). Imports `ops` and what is below them.
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
