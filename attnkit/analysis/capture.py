"""Maps of texts that a trained run reads: decoded once where no target is given, then forced.

The forced pass is the same whatever the output comes from, so maps of a beam's output equal those
of the same tokens given as the target, and decoding is neither slowed nor changed.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray

from attnkit import __version__
from attnkit.analysis.axes import axis
from attnkit.analysis.inputs import InputReader, ModelInput, groups, how, portions
from attnkit.analysis.maps import AttentionMaps, Capture, Kind, Token
from attnkit.analysis.recorder import RecordedLayers, record
from attnkit.data.tokenizer import clean
from attnkit.device import pick_device
from attnkit.errors import DataError, NotFiniteError, UsageError
from attnkit.recipe.schema import SearchConfig
from attnkit.runs import Run
from attnkit.runs.layout import MODEL

BLOCK = 256
"""Texts that are decoded together."""
MOST = 2**30
"""Weights of one text, at most: 4.3 GB."""

Target = str | Sequence[int] | None
"""An output as text, or as ids without begin and end token; None: the model writes it."""


class Captor:
    """A run that is ready to read texts: its model, tokenizer, and which maps to keep."""

    def __init__(
        self,
        run: Run,
        *,
        kinds: Sequence[Kind] | None = None,
        layers: Sequence[int] = (),
        heads: Sequence[int] = (),
        reference: bool = False,
        device: str = "auto",
    ) -> None:
        """Load the model.

        Args:
            run: a finished one.
            kinds: which maps to record; all that the model has when None.
            layers, heads: numbers from 0; all when empty.
            reference: also make `Capture.reference`.
            device: auto takes a GPU where there is one.

        Raises:
            UsageError: the model has no such kind, layer or head.
            MissingInputError, DataError, UnavailableError: as `Run.model` and `pick_device`.
        """
        self.run, self.recipe = run, run.recipe
        self.kinds, self.layers, self.heads, self.reference = kinds, layers, heads, reference
        self.model = run.model(pick_device(device))
        self.tokenizer = run.tokenizer()
        self.prompts = self.recipe.task == "language-modeling"
        self.reader = InputReader(
            self.model,
            self.tokenizer,
            prompts=self.prompts,
            longest=self.recipe.data.max_length,
        )
        with self._recording() as stacks:  # refuses what is not there before anything is read
            counts = {kind: len(stack.layers) * len(stack.heads) for kind, stack in stacks.items()}
        if not counts:
            raise UsageError(f"{run.path}: this model has no attention")
        self.counts = {kind: count * (1 + reference) for kind, count in counts.items()}

    def read(
        self,
        texts: Sequence[tuple[str, Target]],
        search: SearchConfig | None = None,
        *,
        first: int = 0,
    ) -> Iterator[Capture]:
        """Captures of texts with their targets, in order.

        Texts are read in batches of similar length, as many at a time as KEPT lets.

        Args:
            texts: each with its target, or None where the model writes it.
            search: how it does; the run's own search section when None.
            first: number of the first text, from 0: seeds sampling and names texts in errors.

        Raises:
            UsageError: a text is empty, or a target is given to a model without decoder.
            DataError: a text is longer than the model reads, or its maps larger than MOST.
            NotFiniteError: the model answers NaN or infinity.
        """
        spec = search or self.recipe.search
        readings = self._readings(texts, spec, first)
        for portion in portions([self._weights(reading) for reading in readings]):
            done: dict[int, Capture] = {}
            weights = sum(self.counts.values())
            for places in groups([readings[row] for row in portion], weights):
                rows = [portion[place] for place in places]
                stacks = self._pass([readings[row] for row in rows])
                longest = max(len(readings[row].source) for row in rows)
                for place, row in enumerate(rows):
                    text, target = texts[row]
                    said = how(spec) if target is None else "given"
                    done[row] = self._capture(stacks, place, text, readings[row], longest, said)
            yield from (done.pop(row) for row in portion)

    def _recording(self) -> AbstractContextManager[dict[Kind, RecordedLayers]]:
        return record(
            self.model,
            kinds=self.kinds,
            layers=self.layers,
            heads=self.heads,
            references=self.reference,
        )

    def _readings(
        self, texts: Sequence[tuple[str, Target]], spec: SearchConfig, first: int
    ) -> list[ModelInput]:
        """What the model reads of each text."""
        alone = len(texts) == 1 and first == 0
        names = ["the text" if alone else f"text {first + i}" for i in range(1, len(texts) + 1)]
        encode = self.reader.encode
        sources = [encode(text, name) for (text, _), name in zip(texts, names, strict=True)]
        for source, name in zip(sources, names, strict=True):
            # before a search that may take long
            self._fits(
                ModelInput([], source, []) if self.prompts else ModelInput(source, [], []), name
            )
        found = {
            row: self.reader.forced(sources[row], target, names[row])
            for row, (_, target) in enumerate(texts)
            if target is not None
        }
        free = [row for row in range(len(texts)) if row not in found]
        lines = [first + row for row in free]
        answers = self.reader.answered([sources[row] for row in free], spec, lines)
        found |= dict(zip(free, answers, strict=True))
        for row, name in enumerate(names):
            self._fits(found[row], name)
        return [found[row] for row in range(len(texts))]

    def _weights(self, reading: ModelInput) -> int:
        """How many weights the maps of a text have that are kept."""
        return sum(count * self._cells(reading)[kind] for kind, count in self.counts.items())

    def _cells(self, reading: ModelInput) -> dict[Kind, int]:
        """Pairs of query and key; a decoder alone reads source and output in one row."""
        source, ids = len(reading.source), len(reading.ids)
        own = ids + source if self.reader.shape == "decoder" else ids
        return {"encoder": source**2, "decoder": own**2, "cross": source * ids}

    def _fits(self, reading: ModelInput, name: str) -> None:
        """Refuse a text whose maps would fill the memory; a layer has all its heads at first."""
        cells = self._cells(reading)
        layer = self.recipe.model.heads * max(cells[kind] for kind in self.counts)
        if max(self._weights(reading), layer) > MOST:
            needed = max(self._weights(reading), layer) * 4 / 1e9
            raise DataError(
                f"{name}: its maps would take {needed:,.1f} GB, and at most {MOST * 4 / 1e9:.1f} GB"
                " are made: shorten it, or choose some by --kind, --layer and --head"
            )

    @torch.inference_mode()
    def _pass(self, batch: Sequence[ModelInput]) -> dict[Kind, RecordedLayers]:
        """Read a batch once, as in evaluation."""
        pad = self.reader.pad
        source = pad([reading.source for reading in batch]) if batch[0].source else None
        ids = pad([reading.ids for reading in batch]) if batch[0].ids else None
        with self._recording() as stacks:
            self.model.hidden(source, ids)
        for stack in stacks.values():
            if stack.maps is None or not np.isfinite(stack.maps).all():
                raise NotFiniteError(
                    f"{self.run.path}: the model answers NaN or infinity: its weights are damaged; "
                    "train again"
                )
        return stacks

    def _capture(
        self,
        stacks: dict[Kind, RecordedLayers],
        place: int,
        text: str,
        reading: ModelInput,
        longest: int,
        how: str,
    ) -> Capture:
        """One text of a batch whose longest source has `longest` tokens."""
        axes = self._axes(reading, longest)
        made = Capture(
            source=clean(text),
            output=self.tokenizer.target.decode([reading.output])[0],
            how=how if reading.ids else "",
            model=f"{self.run.name}/{self.run.variant}/seed-{self.run.seed}",
            maps={kind: _maps(stack, place, *axes[kind]) for kind, stack in stacks.items()},
            facts=self._facts(reading),
        )
        if not self.reference:
            return made
        exact = {
            kind: _maps(stack.reference, place, *axes[kind])
            for kind, stack in stacks.items()
            if stack.reference is not None and stack.reference.layers
        }
        name = f"{made.model}, exact softmax on the same queries and keys"
        return replace(made, reference=replace(made, model=name, maps=exact))

    def _axes(self, reading: ModelInput, longest: int) -> dict[Kind, tuple["Axis", "Axis"]]:
        """Queries and keys of each kind."""
        # letters and digits that are kept whole are text; only marks stand between texts
        special = [piece for piece in self.recipe.tokenizer.special if not piece.isalnum()]
        read = (self.tokenizer.source, reading.source)
        written = (self.tokenizer.target, reading.ids)
        source = Axis.of(axis([read], special))
        target = Axis.of(axis([written], special))
        own = target
        if self.reader.shape == "decoder" and reading.source:
            # one row of both, with the pads of shorter sources between them
            columns = np.r_[source.columns, longest + target.columns]
            own = Axis(axis([read, written], special), columns)
        return {"encoder": (source, source), "decoder": (own, own), "cross": (target, source)}

    def _facts(self, reading: ModelInput) -> dict[str, str]:
        """What the maps depend on; `note` says what to warn of."""
        manifest = self.run.manifest
        hashes = manifest.get("hashes") or {}
        found = {
            "weights": (manifest.get("files") or {}).get(MODEL),
            "recipe": hashes.get("recipe"),
            "tokenizer": self.tokenizer.digest,
            "attnkit": __version__,
            "torch": torch.__version__,
            "note": self.reader.note(reading),
        }
        return {name: str(value) for name, value in found.items() if value}


class Axis(NamedTuple):
    """One axis of a text's maps, and where it lies in the batch's."""

    tokens: tuple[Token, ...]
    columns: NDArray[np.int64]

    @classmethod
    def of(cls, tokens: tuple[Token, ...]) -> "Axis":
        """Tokens from the first column on."""
        return cls(tokens, np.arange(len(tokens)))


def _maps(stack: RecordedLayers, place: int, queries: Axis, keys: Axis) -> AttentionMaps:
    """The maps of one text of a batch, without its pads."""
    assert stack.maps is not None
    weights = stack.maps[:, place]
    if weights.shape[2:] != (len(queries.tokens), len(keys.tokens)):
        weights = weights[:, :, queries.columns[:, None], keys.columns]
    layers = tuple(
        layer if layer.number not in stack.distances
        else layer._replace(distance=_mean(stack.distances[layer.number][place], queries))
        for layer in stack.layers
    )  # fmt: skip
    return AttentionMaps(
        stack.kind,
        np.ascontiguousarray(weights),
        layers,
        stack.heads,
        queries.tokens,
        keys.tokens,
    )


def _mean(rows: Float[NDArray[np.float32], "H T"], queries: Axis) -> tuple[float, ...]:
    """The mean over the queries, for each head."""
    return tuple(rows[:, queries.columns].mean(1, dtype=np.float64).tolist())


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
    device: str = "auto",
) -> Capture:
    """The maps of one text: of an encoder-decoder the source, of a language model the prompt.

    For the arguments and errors see `Captor` and `Captor.read`.
    """
    captor = Captor(
        run, kinds=kinds, layers=layers, heads=heads, reference=reference, device=device
    )
    return next(captor.read([(text, target)], search))


def captures(
    run: Run,
    texts: Iterable[tuple[str, Target]],
    *,
    search: SearchConfig | None = None,
    kinds: Sequence[Kind] | None = None,
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    reference: bool = False,
    device: str = "auto",
) -> Iterator[Capture]:
    """The maps of many texts, each with its target or None, in order; only some are in memory.

    For the arguments and errors see `Captor` and `Captor.read`.
    """
    captor = Captor(
        run, kinds=kinds, layers=layers, heads=heads, reference=reference, device=device
    )
    rest = iter(texts)
    first = 0
    while block := list(islice(rest, BLOCK)):
        yield from captor.read(block, search, first=first)
        first += len(block)
