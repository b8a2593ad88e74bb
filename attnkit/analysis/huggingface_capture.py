"""Maps of a text that a Hugging Face model reads, in the same form as those of our own runs.

The model writes as it was opened; then one pass with plain ("eager") attention gives the weights.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from attnkit.analysis.huggingface_tokens import encode, tokens_of
from attnkit.analysis.inputs import describe_search
from attnkit.analysis.maps import AttentionMaps, Capture, Kind, MapLayer, Step, Token, check_weights, indices_of
from attnkit.errors import AttnkitError, DataError, MemoryLimitError, NotFiniteError, UsageError, out_of_memory
from attnkit.huggingface import Pretrained, quiet
from attnkit.huggingface.opening import one_line
from attnkit.recipe.schema import SearchConfig

FIELDS: dict[str, dict[Kind, str]] = {
    "encoder-decoder": {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"},
    "decoder": {"decoder": "attentions"},
    "encoder": {"encoder": "attentions"},
}
"""Fields of the model's output that hold the weights of each kind, by its shape."""
Axes = tuple[tuple[Token, ...], tuple[Token, ...]]
"""Queries and keys."""
WITH_WEIGHTS = ("full_attention", "sliding_attention", "chunked_attention")
"""Types of layers that have weights, as configurations call them."""
GREEDY = SearchConfig(method="greedy")
"""The default search of an encoder-decoder."""
HIGHEST_WEIGHT = 1.01
"""Above 1 by more than bfloat16 rounds."""


class HuggingFaceInput(NamedTuple):
    """What the model reads, and where its output comes from."""

    source: list[int]
    """What an encoder reads; empty for a decoder."""
    ids: list[int]
    """What a decoder reads: start token and output, or prompt and output; empty for an encoder."""
    output: str = ""
    how: str = ""
    cut: int = 0
    """Tokens of an output that has no end."""

    @property
    def start(self) -> "HuggingFaceInput":
        """The first token of each side alone."""
        return HuggingFaceInput(self.source[:1], self.ids[:1])


def capture(
    model: Pretrained,
    text: str,
    *,
    target: str | None = None,
    search: SearchConfig | None = None,
    kinds: Sequence[Kind] | None = None,
    layers: Sequence[int] = (),
    heads: Sequence[int] = (),
    step: Step = "output",
) -> Capture:
    """The maps of one text: of an encoder-decoder the source, of a decoder the prompt.

    Args:
        model: an opened one.
        text: as it is; chat templates are not applied.
        target: the output; behind a prompt it follows after a space, unless there is white space.
        search: how the model writes the output where there is no target; None: an
            encoder-decoder greedily, a decoder not at all: then the maps are those of the text.
        kinds: which maps; all that the model has when None.
        layers, heads: numbers from 0; all when empty.  Layers without attention have numbers too.
        step: which tokens name the rows of cross attention.

    Raises:
        UsageError: no text, a target or search for an encoder, or no such kind, layer or head; which is
            seen by the first token, before the text is read and an output written.
        DataError: the text is longer than the model reads, its maps exceed `maps.TEXT_WEIGHTS`, or
            the model gives no weights.
        NotFiniteError: the weights are NaN or infinite.
        MemoryLimitError: the maps do not fit.
    """
    fields = FIELDS[model.shape]
    if other := [kind for kind in kinds or () if kind not in fields]:
        raise UsageError(f"--kind {other[0]}: this model has {' and '.join(fields)} attention only")
    builder = _HuggingFaceInputBuilder(model)
    with quiet(), _transformers_errors(model), torch.inference_mode():
        source = builder.source(text)
        every = {  # the heads of each layer that has weights
            kind: [one.shape[1] for one in some]
            for kind, some in _pass(model, builder.arguments(source.start)).items()
        }
        chosen = {
            kind: _choose(model, kind, every[kind], layers, heads) for kind in every if kinds is None or kind in kinds
        }
        read = builder.with_output(source, text, target, search)
        axes = builder.axes(read, step)
        weights = sum(sum(every[kind]) * len(axes[kind][0]) * len(axes[kind][1]) for kind in every)
        check_weights(weights, "the text", "shorten it")
        found = _pass(model, builder.arguments(read))
    maps = {kind: _maps(model, kind, found[kind], one, axes[kind], step) for kind, one in chosen.items()}
    note = {"note": f"the output was cut at {read.cut} tokens"} if read.cut else {}
    return Capture(text, read.output, read.how, model.name, maps, model.facts | note)


class ChosenLayers(NamedTuple):
    """What is shown of one kind."""

    layers: dict[int, int]
    """By number, the place among those that have weights."""
    heads: list[int]


def _pass(model: Pretrained, inputs: dict[str, Tensor]) -> dict[Kind, list[Tensor]]:
    """One pass without language modelling head; weights [1, H, T, S] of each layer, by kind."""
    options = {} if model.shape == "encoder" else {"use_cache": False}
    with model.eager():
        output = model.model.base_model(
            **inputs,
            attention_mask=torch.ones_like(inputs["input_ids"]),
            output_attentions=True,
            return_dict=True,
            **options,
        )
    return {
        kind: [maps for maps in output.get(field) or () if maps is not None]
        for kind, field in FIELDS[model.shape].items()
    }


def _choose(
    model: Pretrained, kind: Kind, found: Sequence[int], layers: Sequence[int], heads: Sequence[int]
) -> ChosenLayers:
    """The chosen layers and heads of a kind; `found` are the heads of each layer."""
    if not found:
        raise DataError(
            f"{model.name}: {type(model.model).__name__} gives no weights of {kind} attention, "
            "also with attn_implementation eager"
        )
    types = getattr(model.model.config.get_text_config(), "layer_types", None) or ()
    numbers = [at for at, name in enumerate(types) if name in WITH_WEIGHTS]
    if len(numbers) != len(found):
        numbers = list(range(len(found)))
    rows = sorted(indices_of("layer", numbers, layers, f"{kind} attention"))
    counts = {found[row] for row in rows}
    if len(counts) > 1:
        raise UsageError(f"{kind} attention: layers have different numbers of heads: add --layer")
    columns = sorted(indices_of("head", range(counts.pop()), heads, f"{kind} attention"))
    return ChosenLayers({numbers[row]: row for row in rows}, columns)


def written(model: Pretrained, text: str, search: SearchConfig) -> str:
    """What the model writes for a text, or behind a prompt; raises as `capture`."""
    builder = _HuggingFaceInputBuilder(model)
    with quiet(), _transformers_errors(model), torch.inference_mode():
        return builder.with_output(builder.source(text), text, None, search).output


def _maps(
    model: Pretrained, kind: Kind, found: Sequence[Tensor], chosen: ChosenLayers, axes: Axes, step: Step
) -> AttentionMaps:
    """The maps of a kind, unless they are no weights: some models call other numbers so."""
    name, (queries, keys) = type(model.model).__name__, axes
    for shape in (one.shape[1:] for one in found):
        # an output that was cut has no name for its last row
        if shape[2] != len(keys) or shape[1] not in (len(queries), len(queries) + 1):
            raise DataError(
                f"{model.name}: {kind} attention gives weights of shape {list(shape)}, not "
                f"(heads, {len(queries)} queries, {len(keys)} keys): {name} is not supported"
            )
    maps = np.stack([found[place][0, chosen.heads].float().cpu().numpy() for place in chosen.layers.values()])
    if not np.isfinite(maps).all():
        raise NotFiniteError(f"{model.name}: the model answers NaN or infinity")
    if maps.min() < 0 or maps.max() > HIGHEST_WEIGHT:
        raise DataError(
            f"{model.name}: {name} gives numbers from {maps.min():.3g} to {maps.max():.3g} as "
            f"{kind} attention, so these are no weights"
        )
    return AttentionMaps(
        kind,
        maps[:, :, : len(queries)],
        tuple(MapLayer(number, "softmax") for number in chosen.layers),
        tuple(chosen.heads),
        *axes,
        step=step if kind == "cross" else "input",
        alone=model.shape == "decoder",
    )


@contextmanager
def _transformers_errors(model: Pretrained) -> Iterator[None]:
    """Errors inside transformers as errors of one line."""
    try:
        yield
    except AttnkitError:
        raise
    except (RuntimeError, IndexError, ValueError, TypeError, MemoryError) as error:
        if out_of_memory(error):
            raise MemoryLimitError(f"{model.name}: no memory left: shorten the text") from error
        reason = one_line(error)
        raise DataError(f"{model.name}: transformers could not run the model: {reason}") from error


class _HuggingFaceInputBuilder:
    """Texts as the ids that the model reads."""

    def __init__(self, model: Pretrained) -> None:
        self.model = model

    def source(self, text: str) -> HuggingFaceInput:
        """The text alone.  Raises UsageError or DataError: there is none, or it is too long."""
        ids = self._encode(text, "the text")
        if self.model.shape == "decoder":
            return HuggingFaceInput([], ids)
        return HuggingFaceInput(ids, [self._start()] if self.model.shape != "encoder" else [])

    def with_output(
        self, source: HuggingFaceInput, text: str, target: str | None, search: SearchConfig | None
    ) -> HuggingFaceInput:
        """The text with its output, given or written by the model."""
        if self.model.shape == "encoder":
            if target is not None or search is not None:
                raise UsageError("an encoder writes nothing: leave target and search out")
            return source
        if target is None:
            if search is None and self.model.shape == "decoder":
                return source
            return self._with_search(source, search or GREEDY)
        if not target.strip():
            raise UsageError("the target is empty: give at least one word")
        if self.model.shape == "decoder":
            space = "" if text[-1:].isspace() or target[:1].isspace() else " "
            ids = self._encode(text + space + target, "the text with its target")
            return HuggingFaceInput([], ids, target, "given")
        ids = self._without_end(self._encode(target, "the target", target=True))
        ids = [self._start(), *ids]
        self._fits(ids, "the target")
        return HuggingFaceInput(source.source, ids, target, "given")

    def arguments(self, read: HuggingFaceInput) -> dict[str, Tensor]:
        """The arguments of a pass."""
        if not read.source:
            return {"input_ids": self._row(read.ids)}
        inputs = {"input_ids": self._row(read.source)}
        return inputs | ({"decoder_input_ids": self._row(read.ids)} if read.ids else {})

    def axes(self, read: HuggingFaceInput, step: Step) -> dict[Kind, Axes]:
        """Queries and keys of each kind."""
        source, target = (tokens_of(self.model.tokenizer, ids) for ids in (read.source, read.ids))
        named = target
        if step == "output" and read.source and read.ids:
            end = [] if read.cut else self._ends()[:1]  # what follows a cut output is not known
            named = tokens_of(self.model.tokenizer, [*read.ids[1:], *end])
        return {"encoder": (source, source), "decoder": (target, target), "cross": (named, source)}

    def _encode(self, text: str, name: str, *, target: bool = False) -> list[int]:
        if not text.strip():
            raise UsageError(f"{name} is empty: give at least one word")
        if any("\ud800" <= sign <= "\udfff" for sign in text):
            raise DataError(f"{name} has lone surrogates, which no tokenizer reads")
        ids = encode(self.model.tokenizer, text, target=target)
        if not ids:
            raise UsageError(f"{name} has no token in this vocabulary")
        self._fits(ids, name)
        return ids

    def _fits(self, ids: Sequence[int], name: str) -> None:
        limit = self.model.limit
        if limit is not None and len(ids) > limit:
            raise DataError(
                f"{name}: {len(ids)} tokens, special ones included, but {self.model.name} reads at "
                f"most {limit}: shorten it"
            )

    def _start(self) -> int:
        """What a decoder reads first."""
        for config in (self.model.model.generation_config, self.model.model.config):
            for name in ("decoder_start_token_id", "bos_token_id"):
                if isinstance(found := getattr(config, name, None), int):
                    return found
        raise DataError(f"{self.model.name}: its settings name no decoder_start_token_id")

    def _without_end(self, ids: list[int]) -> list[int]:
        """Without the end tokens at the end, which a model writes but never reads."""
        ends = self._ends()
        while ids and ids[-1] in ends:
            ids = ids[:-1]
        return ids

    def _ends(self) -> list[int]:
        """The end tokens of the model and of its tokenizer."""
        end = self.model.model.generation_config.eos_token_id
        ends = [*(end if isinstance(end, list) else [end]), self.model.tokenizer.eos_token_id]
        return [id_ for id_ in ends if id_ is not None]

    def _with_search(self, source: HuggingFaceInput, spec: SearchConfig) -> HuggingFaceInput:
        """What the model writes."""
        decoder = self.model.shape == "decoder"
        prompt = self._without_end(source.ids) if decoder else source.source
        if not prompt:
            raise UsageError("the text is empty: give at least one word")
        longest = spec.max_length
        if self.model.limit is not None:
            longest = min(longest, self.model.limit - (len(prompt) if decoder else 1))
        if longest < 1:
            raise DataError(f"the text leaves {self.model.name} no position for an output")
        written = _generate(self.model, self._row(prompt), spec, longest)
        before, ids = (prompt, written[len(prompt) :]) if decoder else (written[:1], written[1:])
        output = self._without_end(ids)
        said = self.model.tokenizer.decode(output, skip_special_tokens=True).strip()
        cut = len(ids) if len(output) == len(ids) else 0
        return HuggingFaceInput(source.source, [*before, *output], said, describe_search(spec), cut)

    def _row(self, ids: Sequence[int]) -> Int[Tensor, "1 n"]:
        return torch.tensor([list(ids)], device=self.model.device)


def _generate(model: Pretrained, ids: Int[Tensor, "1 n"], spec: SearchConfig, longest: int) -> list[int]:
    """Prompt (or start token) and output, end token included, as `generate` gives them."""
    network = model.model
    ends = network.generation_config.eos_token_id
    pad = model.tokenizer.pad_token_id
    if pad is None:
        pad = ends[0] if isinstance(ends, list) else ends
    options: dict[str, Any] = {
        "max_new_tokens": longest,
        "min_new_tokens": min(spec.min_length, longest) or None,
        "num_beams": spec.beam if spec.method == "beam" else 1,
        "length_penalty": spec.length_penalty,
        "no_repeat_ngram_size": spec.no_repeat_ngram,
        "do_sample": spec.method == "sample",
        "pad_token_id": pad,
    }
    layers = network.config.get_text_config(decoder=True)
    if (getattr(layers, "num_decoder_layers", None) or 0) > layers.num_hidden_layers:
        options["use_cache"] = False  # transformers makes T5's cache as deep as its encoder
    if spec.method == "sample":
        options |= {"temperature": spec.temperature, "top_k": spec.top_k, "top_p": spec.top_p}
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(spec.seed)
        written = network.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return [int(id_) for id_ in written[0]]
