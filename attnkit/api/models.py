"""Trained models and Hugging Face models as objects that generate text and attention maps."""

import html
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit.analysis.maps import Capture, Kind
from attnkit.api.calls import Plugins, plug_in, text_list
from attnkit.device import pick_device
from attnkit.errors import UsageError
from attnkit.recipe.schema import SearchConfig
from attnkit.recipe.search_settings import search_settings
from attnkit.runs import Run, is_run

if TYPE_CHECKING:
    from attnkit.huggingface import Pretrained
    from attnkit.models import Model
    from attnkit.nbce.reader import ContextReader

SEARCH = (
    "beam",
    "top_p",
    "top_k",
    "temperature",
    "seed",
    "batch_tokens",
    "max_length",
    "min_length",
    "length_penalty",
    "no_repeat_ngram",
)
"""Options of `generate` besides `sample`."""
FRAME_HEIGHT = 720
"""Height of the attention page in a notebook, in pixels."""


class TokenAxes(NamedTuple):
    """Tokens on the axes of the maps of one kind of attention."""

    queries: list[str]
    keys: list[str]


class TextAttention:
    """Attention maps of a model for one text.

    `maps["encoder" | "decoder" | "cross"]` are arrays [layers, heads, queries, keys], so that `maps["cross"][0, 1]` is
    the matrix of layer 0, head 1; `tokens` has the tokens of both axes of each kind. A notebook shows the page of
    `attnkit visualize-attn --save maps.html`.
    """

    def __init__(self, capture: Capture) -> None:
        self.capture = capture
        """Maps with layer numbers, mechanisms and token ids."""
        self.source, self.output = capture.source, capture.output

    @property
    def maps(self) -> dict[Kind, Float[NDArray[np.float32], "L H T S"]]:
        """Attention weights of each kind."""
        return {kind: maps.weights for kind, maps in self.capture.maps.items()}

    @property
    def tokens(self) -> dict[Kind, TokenAxes]:
        """Token texts of each kind; a space is U+2581."""
        return {
            kind: TokenAxes([token.text for token in maps.queries], [token.text for token in maps.keys])
            for kind, maps in self.capture.maps.items()
        }

    def words(self) -> "TextAttention":
        """Merge subwords: attention to the tokens of a word is summed, attention from them is averaged."""
        maps = {kind: maps.by_word() for kind, maps in self.capture.maps.items()}
        return TextAttention(replace(self.capture, maps=maps))

    def save(self, path: str | Path) -> None:
        """Write a page (.html) or the weights (.npz, .csv)."""
        from attnkit.analysis import map_files
        from attnkit.storage.files import write_output

        if Path(path).suffix.lower() == ".html":
            write_output(Path(path), self._page())
            return
        map_files.check_suffix(Path(path), (".html", *map_files.SUFFIXES))
        map_files.save(Path(path), self.capture)

    def _page(self) -> bytes:
        from attnkit.show.map_page import page

        return page([self.capture])

    def __repr__(self) -> str:
        shapes = ", ".join(f"{kind} {weights.shape}" for kind, weights in self.maps.items())
        return f"<attention of {self.capture.model}: {shapes}>"

    def _repr_html_(self) -> str:
        text = html.escape(self._page().decode("utf-8"))
        style = f"width: 100%; height: {FRAME_HEIGHT}px; border: 0"
        return f'<iframe srcdoc="{text}" style="{style}" title="attention maps"></iframe>'


class LoadedModel(ABC):
    """A model returned by `attnkit.load`, which generates text and attention maps."""

    def __init__(self, name: str, device: str) -> None:
        self.name, self.device = name, device

    def generate(self, texts: str | Sequence[str], *, sample: bool = False, **search: Any) -> list[str]:
        """Generate the best output for each text, in order.

        Args:
            texts: one text or several.
            sample: sample instead of searching; with top_p, top_k, temperature, seed.
            search: beam, max_length, min_length, length_penalty, no_repeat_ngram, batch_tokens; defaults are the
                settings of the run's recipe, and greedy search for a Hugging Face model.

        Raises:
            UsageError: An option does not exist or is out of range.
        """
        return self._generate(text_list(texts), self._search(search, sample))

    def attention(self, text: str, target: str | None = None, *, sample: bool = False, **search: Any) -> TextAttention:
        """Compute the attention maps of a text and its output: `target`, otherwise the model's output.

        A Hugging Face decoder reads only the text unless a target or a search option is given.

        Raises:
            UsageError: The text or target is empty.
            DataError: The text or target is too long for the model.
        """
        (text,) = text_list([text], "the text")
        if target is not None:
            (target,) = text_list([target], "the target")
        spec = self._search(search, sample) if search or sample else None
        capture = self._capture(text, target, spec)
        if note := capture.facts.get("note"):
            warnings.warn(note, stacklevel=2)
        return TextAttention(capture)

    def _search(self, options: dict[str, Any], sample: bool) -> SearchConfig:
        if unknown := [name for name in options if name not in SEARCH]:
            raise UsageError(f"generate has no option {unknown[0]}; choose from sample, {', '.join(SEARCH)}")
        return search_settings(self._default_search(), options, sample)

    @abstractmethod
    def _default_search(self) -> SearchConfig: ...

    @abstractmethod
    def _generate(self, texts: list[str], spec: SearchConfig) -> list[str]: ...

    @abstractmethod
    def _capture(self, text: str, target: str | None, spec: SearchConfig | None) -> Capture: ...

    @abstractmethod
    def reader(self, chat: bool, template: str) -> "ContextReader":
        """Return a reader of several contexts for this model."""

    def __repr__(self) -> str:
        return f"<attnkit model {self.name}>"


class RunModel(LoadedModel):
    """The model of a finished run."""

    def __init__(self, run: Run, device: str) -> None:
        super().__init__(f"{run.name}/{run.variant}/seed-{run.seed}", device)
        self.run = run
        self.recipe = run.recipe
        run.require_finished()

    @cached_property
    def module(self) -> "Model":
        """The torch module."""
        return self.run.model(pick_device(self.device))

    def _default_search(self) -> SearchConfig:
        return self.recipe.search

    def _generate(self, texts: list[str], spec: SearchConfig) -> list[str]:
        from attnkit.data.rare_words import unlike_note
        from attnkit.search import LineCounts, answer_lines

        if self.recipe.masks:
            raise UsageError(f"{self.name}: the model predicts masked tokens and writes no text")
        tokenizer, counts = self.run.tokenizer(), LineCounts(rare=Counter())
        outputs = answer_lines(self.module, tokenizer, texts, self.recipe, spec, counts=counts)
        best = [hypotheses[0][0] for hypotheses in outputs]
        if note := unlike_note(counts.rare, counts.lines):
            warnings.warn(note, stacklevel=3)  # points to the caller of `generate`
        return best

    def _capture(self, text: str, target: str | None, spec: SearchConfig | None) -> Capture:
        from attnkit.analysis.capture import capture

        return capture(self.run, text, target=target, search=spec, device=self.device)

    def reader(self, chat: bool, template: str) -> "ContextReader":
        from attnkit.nbce.opening import open_run

        return open_run(self.run, pick_device(self.device))


class PretrainedModel(LoadedModel):
    """A Hugging Face model."""

    def __init__(self, opened: "Pretrained", device: str) -> None:
        super().__init__(opened.name, device)
        self.opened = opened

    @property
    def module(self) -> Any:
        """The torch module."""
        return self.opened.model

    def _default_search(self) -> SearchConfig:
        return SearchConfig(method="greedy")

    def _generate(self, texts: list[str], spec: SearchConfig) -> list[str]:
        from attnkit.analysis.huggingface_capture import written

        return [written(self.opened, text, spec) if text.strip() else "" for text in texts]

    def _capture(self, text: str, target: str | None, spec: SearchConfig | None) -> Capture:
        from attnkit.analysis.huggingface_capture import capture

        return capture(self.opened, text, target=target, search=spec)

    def reader(self, chat: bool, template: str) -> "ContextReader":
        from attnkit.nbce.opening import pretrained_reader

        return pretrained_reader(self.opened, chat=chat, template=template)


def load(model: str | Path, *, device: str = "auto", offline: bool = False, plugins: Plugins = ()) -> LoadedModel:
    """Open a finished run, `demo`, or a Hugging Face model.

    Args:
        model: folder of a run (seed-N), "demo", or name or folder of a Hugging Face model.
        device: auto, cpu, cuda, cuda:N or mps.
        offline: forbid downloads.
        plugins: Python files with custom mechanisms or metrics.

    Raises:
        MissingInputError: The model does not exist, or a plug-in of the run is missing.
        DataError: The model's files are damaged.
        UnavailableError: The device or transformers is not available.
    """
    plug_in(plugins)
    if is_run(str(model)):
        return RunModel(Run.open(model), device)
    from attnkit.huggingface import open_model

    return PretrainedModel(open_model(model, device=device, offline=offline), device)
