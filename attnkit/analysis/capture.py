"""Maps of texts that a trained run reads: decoded where no target is given, then teacher-forced.

The teacher-forced pass is the same whatever the output comes from, so maps of a beam's output equal
those of the same tokens given as the target, and decoding is neither slowed nor changed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from attnkit import __version__
from attnkit.analysis.inputs import (
    InputBuilder,
    ModelInput,
    batches_of,
    describe_search,
    portions,
    tokens_of,
)
from attnkit.analysis.maps import AttentionMaps, Capture, Kind, Step, Token
from attnkit.analysis.recorder import RecordedLayers, choose_layers, record
from attnkit.data.text_form import clean
from attnkit.data.tokenizer import EOS
from attnkit.device import pick_device
from attnkit.errors import DataError, NotFiniteError, UsageError
from attnkit.recipe.schema import SearchConfig
from attnkit.runs import Run
from attnkit.runs.layout import MODEL
from attnkit.search.decoding import pad

BLOCK = 256
"""Texts that are decoded together."""
TEXT_WEIGHTS = 2**30
"""Attention weights of one text, at most: 4.3 GB."""

Target = str | Sequence[int] | None
"""An output as text, or as ids without begin and end token; None: the model writes it."""


class MapReader:
    """A run that is ready to read texts: its model, tokenizer, and the maps to record."""

    def __init__(
        self,
        run: Run,
        *,
        kinds: Sequence[Kind] | None = None,
        layers: Sequence[int] = (),
        heads: Sequence[int] = (),
        reference: bool = False,
        step: Step = "output",
        device: str = "auto",
    ) -> None:
        """Load the model.

        Args:
            run: a finished one.
            kinds: which maps to record; all that the model has when None.
            layers, heads: numbers from 0; all when empty.
            reference: also make `Capture.reference`.
            step: which tokens name the rows of cross attention.
            device: auto takes a GPU where there is one.

        Raises:
            UsageError: the model has no such kind, layer or head.
            MissingInputError, DataError, UnavailableError: as `Run.model` and `pick_device`.
        """
        self.run, self.recipe = run, run.recipe
        self.kinds, self.layers, self.heads, self.reference = kinds, layers, heads, reference
        self.step = step
        self.model = run.model(pick_device(device))
        self.tokenizer = run.tokenizer()
        self.prompts = self.recipe.prompts
        longest = self.recipe.data.max_length
        self.inputs = InputBuilder(
            self.model, self.tokenizer, prompts=self.prompts, longest=longest
        )
        chosen = choose_layers(self.model, kinds, layers, heads)
        if not chosen:
            raise UsageError(f"{run.path}: this model has no attention")
        self.maps_of = {  # how many maps each kind has
            kind: len(parts) * len(columns) * (1 + reference)
            for kind, (parts, columns) in chosen.items()
        }

    def read(
        self, texts: Iterable[tuple[str, Target]], search: SearchConfig | None = None
    ) -> Iterator[Capture]:
        """Captures of texts with their targets, in order; only some are in memory.

        Args:
            texts: each with its target, or None where the model writes it.
            search: how it does; the run's own search section when None.

        Raises:
            UsageError: a text is empty, or a target is given to a model without decoder.
            DataError: a text is longer than the model reads, or its maps exceed TEXT_WEIGHTS.
            NotFiniteError: the model answers NaN or infinity.
        """
        remaining, first = iter(texts), 0
        while block := list(islice(remaining, BLOCK)):
            yield from self.read_block(block, search or self.recipe.search, first)
            first += len(block)

    def read_block(
        self, texts: Sequence[tuple[str, Target]], spec: SearchConfig, first: int
    ) -> Iterator[Capture]:
        """Captures of a block of texts, read in batches of similar length.

        `first` is the number of the first text, from 0: seeds sampling and names texts in errors.
        """
        inputs = self._inputs(texts, spec, first)
        weights = sum(self.maps_of.values())
        for portion in portions([self._weights(read) for read in inputs]):
            done: dict[int, Capture] = {}
            for batch in batches_of([inputs[row] for row in portion], weights):
                rows = [portion[index] for index in batch]
                recorded = self._pass([inputs[row] for row in rows])
                longest = max(len(inputs[row].source) for row in rows)
                for place, row in enumerate(rows):
                    text, target = texts[row]
                    origin = describe_search(spec) if target is None else "given"
                    done[row] = self._capture(recorded, place, text, inputs[row], longest, origin)
            yield from (done.pop(row) for row in portion)

    def _inputs(
        self, texts: Sequence[tuple[str, Target]], spec: SearchConfig, first: int
    ) -> list[ModelInput]:
        """What the model reads of each text."""
        names = [f"text {first + number}" for number in range(1, len(texts) + 1)]
        names = ["the text"] if names == ["text 1"] else names
        encode = self.inputs.encode
        sources = [encode(text, name) for (text, _), name in zip(texts, names, strict=True)]
        alone = [ModelInput([], x, []) if self.prompts else ModelInput(x, [], []) for x in sources]
        for read, name in zip(alone, names, strict=True):
            self._check_memory(read, name)  # before a search that may take long
        if self.inputs.shape == "encoder":
            if any(target is not None for _, target in texts):
                raise UsageError(f"{self.run.path}: an encoder has no output, so give no target")
            return alone
        found = {
            row: self.inputs.with_target(sources[row], target, names[row])
            for row, (_, target) in enumerate(texts)
            if target is not None
        }
        rows = [row for row in range(len(texts)) if row not in found]
        lines = [first + row for row in rows]
        answers = self.inputs.with_search([sources[row] for row in rows], spec, lines)
        found |= dict(zip(rows, answers, strict=True))
        for row, name in enumerate(names):
            self._check_memory(found[row], name)
        return [found[row] for row in range(len(texts))]

    def _weights(self, read: ModelInput) -> int:
        """How many weights the maps of a text have together."""
        return sum(count * self._map_sizes(read)[kind] for kind, count in self.maps_of.items())

    def _map_sizes(self, read: ModelInput) -> dict[Kind, int]:
        """Pairs of query and key; a decoder alone reads source and output in one row."""
        source, ids = len(read.source), len(read.ids)
        row = ids + source if self.inputs.shape == "decoder" else ids
        return {"encoder": source**2, "decoder": row**2, "cross": source * ids}

    def _check_memory(self, read: ModelInput, name: str) -> None:
        """Refuse a text whose maps would fill the memory; a layer is made with all its heads."""
        sizes = self._map_sizes(read)
        layer = self.recipe.model.heads * max(sizes[kind] for kind in self.maps_of)
        weights = max(self._weights(read), layer)
        if weights > TEXT_WEIGHTS:
            needed, most = weights * 4 / 1e9, TEXT_WEIGHTS * 4 / 1e9
            raise DataError(
                f"{name}: its maps would take {needed:,.1f} GB, and at most {most:.1f} GB"
                " are made: shorten it, or choose some by --kind, --layer and --head"
            )

    @torch.inference_mode()
    def _pass(self, batch: Sequence[ModelInput]) -> dict[Kind, RecordedLayers]:
        """Read a batch once, as in evaluation."""
        device = self.model.output.weight.device
        source = pad([read.source for read in batch], device) if batch[0].source else None
        ids = pad([read.ids for read in batch], device) if batch[0].ids else None
        with record(
            self.model, kinds=self.kinds, layers=self.layers, heads=self.heads,
            references=self.reference,
        ) as recorded:  # fmt: skip
            self.model.hidden(source, ids)
        for layers in recorded.values():
            if layers.maps is None or not np.isfinite(layers.maps).all():
                raise NotFiniteError(
                    f"{self.run.path}: the model answers NaN or infinity: its weights are damaged; "
                    "train again"
                )
        return recorded

    def _capture(
        self,
        recorded: dict[Kind, RecordedLayers],
        place: int,
        text: str,
        read: ModelInput,
        longest: int,
        origin: str,
    ) -> Capture:
        """One text of a batch whose longest source has `longest` tokens."""
        axes = self._axes(read, longest)
        manifest = self.run.manifest
        facts = {
            "weights": (manifest.get("files") or {}).get(MODEL),
            "recipe": (manifest.get("hashes") or {}).get("recipe"),
            "tokenizer": self.tokenizer.digest,
            "attnkit": __version__,
            "torch": torch.__version__,
            "note": self.inputs.note(text, read),
        }
        captured = Capture(
            source=clean(text),
            output=self.tokenizer.target.decode([read.output])[0],
            how=origin if read.ids else "",
            model=f"{self.run.name}/{self.run.variant}/seed-{self.run.seed}",
            maps={kind: self._maps(layers, place, axes) for kind, layers in recorded.items()},
            facts={name: str(value) for name, value in facts.items() if value},
        )
        if not self.reference:
            return captured
        exact = {
            kind: self._maps(layers.reference, place, axes)
            for kind, layers in recorded.items()
            if layers.reference is not None and layers.reference.layers
        }
        name = f"{captured.model}, exact softmax on the same queries and keys"
        rest = {fact: value for fact, value in captured.facts.items() if fact != "note"}
        return replace(captured, reference=replace(captured, model=name, maps=exact, facts=rest))

    def _maps(self, recorded: RecordedLayers, place: int, axes: "Axes") -> AttentionMaps:
        """The maps of one text of a batch, without its pads."""
        step = self.step if recorded.kind == "cross" else "input"
        maps = _maps(recorded, place, *axes[recorded.kind], step)
        return replace(maps, alone=self.inputs.shape == "decoder")

    def _axes(self, read: ModelInput, longest: int) -> "Axes":
        """Queries and keys of each kind."""
        # letters and digits that are kept whole are text; only marks stand between texts
        special = [piece for piece in self.recipe.tokenizer.special if not piece.isalnum()]
        source = (self.tokenizer.source, read.source)
        target = (self.tokenizer.target, read.ids)
        sources, targets = (
            PaddedAxis(tokens_of([part], special), np.arange(len(part[1])))
            for part in (source, target)
        )
        # a tagger reads its source alone, also where it hides later tokens of it
        rows = sources if self.inputs.shape == "encoder" else targets
        if self.inputs.shape == "decoder" and read.source:
            # one row of both, with the pads of shorter sources between them
            columns = np.r_[sources.columns, longest + targets.columns]
            rows = PaddedAxis(tokens_of([source, target], special), columns)
        if self.step == "output":
            # an output that was cut ends before the prediction of its last step
            predicted = [*read.output, *([EOS] if read.complete else [])][: len(read.ids)]
            part = (self.tokenizer.target, predicted)
            targets = PaddedAxis(tokens_of([part], special), np.arange(len(predicted)))
        return {"encoder": (sources, sources), "decoder": (rows, rows), "cross": (targets, sources)}


class PaddedAxis(NamedTuple):
    """One axis of a text's maps, and its columns in the padded maps of the batch."""

    tokens: tuple[Token, ...]
    columns: NDArray[np.int64]


Axes = dict[Kind, tuple[PaddedAxis, PaddedAxis]]


def _maps(
    recorded: RecordedLayers, place: int, queries: PaddedAxis, keys: PaddedAxis, step: Step
) -> AttentionMaps:
    """Maps of the columns of a batch; distances are averaged over queries."""
    assert recorded.maps is not None
    weights = recorded.maps[:, place]
    if weights.shape[2:] != (len(queries.tokens), len(keys.tokens)):
        weights = weights[:, :, queries.columns[:, None], keys.columns]
    layers = []
    for layer in recorded.layers:
        if layer.number in recorded.distances:
            rows = recorded.distances[layer.number][place][:, queries.columns]  # [H, T]
            layer = layer._replace(distance=tuple(rows.mean(1, dtype=np.float64).tolist()))
        layers.append(layer)
    weights = np.ascontiguousarray(weights)
    heads = recorded.heads
    axes = queries.tokens, keys.tokens
    return AttentionMaps(recorded.kind, weights, tuple(layers), heads, *axes, step)


def capture(
    run: Run,
    text: str,
    *,
    target: Target = None,
    search: SearchConfig | None = None,
    kinds: Sequence[Kind] | None = None,
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    reference: bool = False,
    step: Step = "output",
    device: str = "auto",
) -> Capture:
    """The maps of one text: of an encoder-decoder the source, of a language model the prompt.

    For the arguments and errors see `MapReader` and `MapReader.read`.
    """
    reader = MapReader(
        run, kinds=kinds, layers=layers, heads=heads, reference=reference, step=step, device=device
    )
    return next(reader.read([(text, target)], search))
