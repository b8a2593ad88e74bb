"""Search: from a model's start and step to text, by beam, greedily, or by sampling.

`search` takes a batch of ids, `translate` a stream of lines.
"""

from attnkit.search.base import Hypothesis
from attnkit.search.lines import Tally, translate
from attnkit.search.sentences import search

__all__ = ["Hypothesis", "Tally", "search", "translate"]
