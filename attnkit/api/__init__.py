"""What `import attnkit` offers in Python and in notebooks.

Start with `models.load` (a run, `demo` or a Hugging Face model becomes an object that generates
and shows attention) and `comparing.train` and `comparing.evaluate` (a recipe or runs become a
`comparing.ComparedRuns`). Imports `show`, `experiment`, `nbce` and what is below them.
"""

from attnkit.api.asking import contexts
from attnkit.api.comparing import ComparedRuns, evaluate, train
from attnkit.api.models import LoadedModel, TextAttention, load

__all__ = ["ComparedRuns", "LoadedModel", "TextAttention", "contexts", "evaluate", "load", "train"]
