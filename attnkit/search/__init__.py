"""Search: from a model's start and step to text, by beam, greedily, or by sampling."""

from attnkit.search.base import Hypothesis
from attnkit.search.decoding import LineCounts, search, search_all, translate

__all__ = ["Hypothesis", "LineCounts", "search", "search_all", "translate"]
