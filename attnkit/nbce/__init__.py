"""More context than a model was trained for: many contexts read side by side, merged at each token.

`merge` is the rule for one token; what runs it over a model is beside it.

Start with `merge.merge` (the distributions of one token), `reader.ContextReader` (a model that
reads many contexts) and `answer.ask` (a prompt becomes an answer). Imports `search`,
`huggingface`, `runs` and what is below them.
"""

from attnkit.nbce.merge import POOLS as POOLS
from attnkit.nbce.merge import Rule as Rule
from attnkit.nbce.merge import merge as merge
from attnkit.nbce.opening import open_model as open_model
