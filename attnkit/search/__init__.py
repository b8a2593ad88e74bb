"""Decoding: beam search, greedy search, sampling, and ranking of labels.

Start with `decoding.translate` (lines of text), `beam.beam_search` (one batch) and `base.Hypothesis`.
Imports `models` and the layers below it.
"""

from attnkit.search.base import Hypothesis
from attnkit.search.decoding import LineCounts, search, search_all, translate
from attnkit.search.labels import answer_lines

__all__ = ["Hypothesis", "LineCounts", "answer_lines", "search", "search_all", "translate"]
