"""Search: from a model's start and step to text, by beam, greedily, by sampling, or to a label.

Start with `decoding.translate` (lines in, lines out, in order), `beam.beam_search` (a batch) and
`base.Hypothesis`. Imports `models` and what is below them.
"""

from attnkit.search.base import Hypothesis
from attnkit.search.decoding import LineCounts, search, search_all, translate
from attnkit.search.labels import answer_lines

__all__ = ["Hypothesis", "LineCounts", "answer_lines", "search", "search_all", "translate"]
