"""The contract of a mechanism: masks, states, and the families that share one form."""

from attnkit.attention.base import Attention as Attention
from attnkit.attention.base import Out as Out
from attnkit.attention.base import Shape as Shape
from attnkit.attention.base import Unscored as Unscored
from attnkit.attention.base import one_head as one_head
from attnkit.attention.cache import State as State
from attnkit.attention.cache import append as append
from attnkit.attention.cache import reorder as reorder
from attnkit.attention.linear_family import Kernel as Kernel
from attnkit.attention.linear_family import real_keys as real_keys
from attnkit.attention.mask import Mask as Mask
from attnkit.attention.options import at_least as at_least
from attnkit.attention.options import one_of as one_of
from attnkit.attention.scored import Scored as Scored
from attnkit.attention.scored import dot_scores as dot_scores
from attnkit.attention.scored import mix as mix
from attnkit.attention.scored import visible_softmax as visible_softmax
