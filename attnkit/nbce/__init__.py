"""Naive-Bayes context extension: contexts in separate rows, their next-token distributions merged at each step.

Start with `merge.merge` (merges the distributions of one step), `reader.ContextReader` (the interface to a model)
and `answer.ask` (answers prompts). Imports `search`, `huggingface`, `runs` and the layers below them.
"""

from attnkit.nbce.merge import POOLS as POOLS
from attnkit.nbce.merge import Rule as Rule
from attnkit.nbce.merge import merge as merge
from attnkit.nbce.opening import open_model as open_model
