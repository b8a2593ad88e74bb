"""Python API, exported by `import attnkit`.

Start with `models.load` (opens a run, `demo` or a Hugging Face model) and `comparing.train` and `comparing.evaluate`
(return a `comparing.ComparedRuns`). Imports `show`, `experiment`, `nbce` and the layers below them.
"""

from attnkit.api.asking import contexts
from attnkit.api.comparing import ComparedRuns, evaluate, train
from attnkit.api.models import LoadedModel, TextAttention, load

__all__ = ["ComparedRuns", "LoadedModel", "TextAttention", "contexts", "evaluate", "load", "train"]
