"""Attention maps of texts read by a trained run: output decoded unless given, then one teacher-forced pass.

The teacher-forced pass does not depend on the origin of the output: maps of a beam's output equal those of the same
tokens as a given target, and decoding is neither slowed down nor changed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from attnkit import __version__
from attnkit.analysis.inputs import InputBuilder, ModelInput, describe_search, tokens_of
from attnkit.analysis.maps import AttentionMaps, Capture, Kind, MapLayer, Step, Token, check_weights
from attnkit.analysis.recorder import LayerMaps, choose_layers, half_l1_distance, record
from attnkit.data.text_form import clean
from attnkit.data.tokenizer import EOS
from attnkit.device import pick_device
from attnkit.errors import NotFiniteError, UsageError
from attnkit.recipe.schema import SearchConfig
from attnkit.runs import Run
from attnkit.search.decoding import pad

BATCH_WEIGHTS = 2**24
"""Maximum number of attention weights in a batch of texts: 64 MB."""
BATCH_TOKENS = 4096
"""Maximum of rows x longest side in a batch."""
REFERENCE = "scaled-dot"
"""Mechanism name in reference layers."""

Array = NDArray[np.float32]


class RecordedLayer(NamedTuple):
    """Maps of one layer for a batch."""

    layer: MapLayer
    maps: Float[Array, "B H T S"]
    distances: Float[Array, "B H T"] | None = None
    """Half L1 distance from exact softmax, if the map is effective."""
    exact: "RecordedLayer | None" = None
    """Reference, if requested: exact softmax on the same queries and keys, where the layer has both."""


class PaddedAxis(NamedTuple):
    """One axis of a text's maps, with its columns in the padded maps of the batch."""

    tokens: tuple[Token, ...]
    columns: NDArray[np.int64]


Axes = tuple[PaddedAxis, PaddedAxis]
"""Queries and keys."""


class MapReader:
    """Model and tokenizer of a run, with the selection of maps to record."""

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
        """Load the model of a finished run; kinds None, or empty layers or heads, select all of them.

        Args:
            reference: whether to compute `Capture.reference`.
            step: which tokens label the rows of cross attention.

        Raises:
            UsageError: If the model has no such kind, layer or head.
            MissingInputError, DataError, UnavailableError: As `Run.model` and `pick_device`.
        """
        self.run, self.recipe, self.reference, self.step = run, run.recipe, reference, step
        self.model, self.tokenizer = run.model(pick_device(device)), run.tokenizer()
        self.inputs = InputBuilder(self.model, self.tokenizer, self.recipe)
        self.selection = {"kinds": kinds, "layers": layers, "heads": heads}
        chosen = choose_layers(self.model, kinds, layers, heads)
        self.heads = {kind: columns for kind, (_, columns) in chosen.items()}
        self.map_counts = {  # number of maps of each kind
            kind: len(parts) * len(columns) * (1 + reference) for kind, (parts, columns) in chosen.items()
        }

    def read(self, text: str, target: str | None = None, search: SearchConfig | None = None) -> Capture:
        """Return the maps of a text with its target, or with the model's output if the target is None.

        Raises:
            UsageError: If the text is empty, or a target is given to a model without decoder.
            DataError: If the text exceeds the length limit of the model, or its maps exceed `TEXT_WEIGHTS`.
            NotFiniteError: If the model produces NaN or infinity.
        """
        search = search or self.recipe.search
        source = self.inputs.encode(text, "the text")
        self._check_memory(source, "the text")  # before a possibly long search
        if self.inputs.shape == "encoder":
            if target is not None:
                raise UsageError(f"{self.run.path}: a model of shape encoder has no output; remove the target")
            model_input = source
        elif target is None:
            model_input = self.inputs.with_search(source, search)
        else:
            model_input = self.inputs.with_target(source, target, "the text")
        self._check_memory(model_input, "the text")
        how = ("given" if target is not None else describe_search(search)) if model_input.ids else ""
        return next(self._captures([(text, model_input)], how))

    def read_pairs(self, pairs: Iterable[tuple[str, str]]) -> Iterator[Capture]:
        """Yield the maps of (source, target) pairs in order, one batch in memory at a time. Raises as `read`."""
        batch: list[tuple[str, ModelInput]] = []
        longest = 0
        for number, (source, target) in enumerate(pairs, 1):
            name = f"text {number}"
            model_input = self.inputs.with_target(self.inputs.encode(source, name), target, name)
            self._check_memory(model_input, name)
            longest = max(longest, len(model_input.source), len(model_input.ids))
            tokens = (len(batch) + 1) * longest
            weights = tokens * longest * sum(self.map_counts.values())
            if batch and (tokens > BATCH_TOKENS or weights > BATCH_WEIGHTS):
                yield from self._captures(batch, "given")
                batch, longest = [], max(len(model_input.source), len(model_input.ids))
            batch.append((source, model_input))
        if batch:
            yield from self._captures(batch, "given")

    def _check_memory(self, model_input: ModelInput, name: str) -> None:
        """Raise DataError if the maps of a text would take too much memory; a layer computes all its heads."""
        source, ids = len(model_input.source), len(model_input.ids)
        # a decoder-only model reads source and output in one row
        row = ids + source if self.inputs.shape == "decoder" else ids
        sizes: dict[Kind, int] = {"encoder": source**2, "decoder": row**2, "cross": source * ids}
        layer = self.recipe.model.heads * max(sizes[kind] for kind in self.map_counts)
        weights = max(sum(count * sizes[kind] for kind, count in self.map_counts.items()), layer)
        check_weights(weights, name, "shorten the text, or select maps by --kind, --layer and --head")

    @torch.inference_mode()
    def _pass(self, batch: Sequence[ModelInput]) -> dict[Kind, list[RecordedLayer]]:
        """Record the maps of a batch in one pass in evaluation mode."""
        recorded: dict[Kind, list[RecordedLayer]] = {kind: [] for kind in self.heads}

        def keep(maps: LayerMaps) -> None:
            exact = maps.exact() if self.reference or not maps.layer.exact else None
            distances = reference = None
            if exact is not None and not maps.layer.exact:
                distances = _array(half_l1_distance(maps.weights, exact))
            if exact is not None and self.reference:
                reference = RecordedLayer(MapLayer(maps.layer.number, REFERENCE), _array(exact))
            recorded[maps.kind].append(RecordedLayer(maps.layer, _array(maps.weights), distances, reference))

        device = self.model.output.weight.device
        source = pad([model_input.source for model_input in batch], device) if batch[0].source else None
        ids = pad([model_input.ids for model_input in batch], device) if batch[0].ids else None
        with record(self.model, keep, **self.selection):
            self.model.hidden(source, ids)
        if not all(np.isfinite(layer.maps).all() for layers in recorded.values() for layer in layers):
            raise NotFiniteError(
                f"{self.run.path}: the model outputs NaN or infinity: its weights are damaged; train again"
            )
        return recorded

    def _captures(self, batch: Sequence[tuple[str, ModelInput]], how: str) -> Iterator[Capture]:
        """Yield the captures of the texts in a batch."""
        recorded = self._pass([model_input for _, model_input in batch])
        longest = max(len(model_input.source) for _, model_input in batch)
        model = f"{self.run.name}/{self.run.variant}/seed-{self.run.seed}"
        versions = {
            "weights": self.run.weights_sha256,
            "recipe": self.run.manifest.hashes.get("recipe"),
            "tokenizer": self.tokenizer.digest,
            "attnkit": __version__,
            "torch": torch.__version__,
        }
        facts = {name: value for name, value in versions.items() if value}
        for row, (text, model_input) in enumerate(batch):
            axes = self._axes(model_input, longest)
            maps = {kind: self._maps(layers, kind, row, axes[kind]) for kind, layers in recorded.items()}
            output = self.tokenizer.target.decode([model_input.output])[0]
            note = self.inputs.note(text, model_input)
            noted = facts | ({"note": note} if note else {})
            result = Capture(clean(text), output, how, model, maps, noted)
            if self.reference:
                exact = {
                    kind: self._maps(exact_layers, kind, row, axes[kind])
                    for kind, layers in recorded.items()
                    if (exact_layers := [layer.exact for layer in layers if layer.exact is not None])
                }
                name = f"{model}, exact softmax on the same queries and keys"
                result = replace(result, reference=replace(result, model=name, maps=exact, facts=facts))
            yield result

    def _maps(self, recorded: Sequence[RecordedLayer], kind: Kind, row: int, axes: Axes) -> AttentionMaps:
        """Return the maps of one text in a batch without padding; distances are averaged over queries."""
        queries, keys = axes
        weights = np.stack([layer_maps.maps[row] for layer_maps in recorded])
        if weights.shape[2:] != (len(queries.tokens), len(keys.tokens)):
            weights = weights[:, :, queries.columns[:, None], keys.columns]
        layers = []
        for layer, _, distances, _ in recorded:
            if distances is not None:
                means = distances[row][:, queries.columns].mean(1, dtype=np.float64)
                layer = layer._replace(distance=tuple(means.tolist()))
            layers.append(layer)
        return AttentionMaps(
            kind,
            weights,
            tuple(layers),
            self.heads[kind],
            queries.tokens,
            keys.tokens,
            self.step if kind == "cross" else "input",
            alone=self.inputs.shape == "decoder",
        )

    def _axes(self, model_input: ModelInput, longest: int) -> dict[Kind, Axes]:
        """Return queries and keys of each kind; `longest` is the maximum number of source tokens in the batch."""
        # special pieces of letters and digits are text; only marks separate texts
        special = [piece for piece in self.recipe.tokenizer.special if not piece.isalnum()]
        source = (self.tokenizer.source, model_input.source)
        target = (self.tokenizer.target, model_input.ids)
        sources, targets = (
            PaddedAxis(tokens_of([part], special), np.arange(len(part[1]))) for part in (source, target)
        )
        # a tagger reads only its source, even with causal attention
        rows = sources if self.inputs.shape == "encoder" else targets
        if self.inputs.shape == "decoder" and model_input.source:
            # one row of both, with the padding of shorter sources between them
            rows = PaddedAxis(tokens_of([source, target], special), np.r_[sources.columns, longest + targets.columns])
        if self.step == "output":
            # a cut output has no prediction of the last step
            predicted = [*model_input.output, *([EOS] if model_input.complete else [])][: len(model_input.ids)]
            part = (self.tokenizer.target, predicted)
            targets = PaddedAxis(tokens_of([part], special), np.arange(len(predicted)))
        return {"encoder": (sources, sources), "decoder": (rows, rows), "cross": (targets, sources)}


def _array(x: Tensor) -> Array:
    return cast(Array, x.float().cpu().numpy())


def capture(
    run: Run, text: str, *, target: str | None = None, search: SearchConfig | None = None, **options: Any
) -> Capture:
    """Return the maps of one text: the source of an encoder-decoder, or the prompt of a language model.

    `options` are arguments of `MapReader`; the other arguments and the errors are those of `MapReader.read`.
    """
    return MapReader(run, **options).read(text, target, search)
