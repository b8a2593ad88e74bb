"""Attention maps of a text read by a Hugging Face model, in the same form as those of runs.

The model generates with the attention it was opened with; then one pass with eager attention returns the weights.
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
from attnkit.huggingface.opening import error_line
from attnkit.recipe.schema import SearchConfig

FIELDS: dict[str, dict[Kind, str]] = {
    "encoder-decoder": {"encoder": "encoder_attentions", "decoder": "decoder_attentions", "cross": "cross_attentions"},
    "decoder": {"decoder": "attentions"},
    "encoder": {"encoder": "attentions"},
}
"""Fields of the model output with the weights of each kind, by shape of the model."""
Axes = tuple[tuple[Token, ...], tuple[Token, ...]]
"""Queries and keys."""
WITH_WEIGHTS = ("full_attention", "sliding_attention", "chunked_attention")
"""Types of layers with attention weights, as in configurations."""
GREEDY = SearchConfig(method="greedy")
"""Default search of an encoder-decoder."""
HIGHEST_WEIGHT = 1.01
"""Maximum of a weight; exceeds 1 by more than the rounding of bfloat16."""


class HuggingFaceInput(NamedTuple):
    """What the model reads, and the origin of its output."""

    source: list[int]
    """Encoder input; empty for a decoder."""
    ids: list[int]
    """Decoder input: start token and output, or prompt and output; empty for an encoder."""
    output: str = ""
    how: str = ""
    cut: int = 0
    """Number of tokens of an output without end token."""

    @property
    def start(self) -> "HuggingFaceInput":
        """The first token of each side."""
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
    """Return the maps of one text: the source of an encoder-decoder, or the prompt of a decoder.

    Args:
        model: an opened model.
        text: the text without changes; chat templates are not applied.
        target: the output; after a prompt it is separated by a space, unless there is white space already.
        search: search for the output if there is no target; None: greedy for an encoder-decoder; for a decoder no
            output, so the maps are those of the text.
        kinds: kinds of maps; None: all kinds of the model.
        layers, heads: indices, empty: all. Layers without attention are counted too.
        step: which tokens label the rows of cross attention.

    Raises:
        UsageError: If there is no text, an encoder gets a target or search, or a kind, layer or head does not exist
            (checked on the first token, before the text is read and an output is generated).
        DataError: If the text exceeds the length limit of the model, its maps exceed `maps.TEXT_WEIGHTS`, or the model
            returns no weights.
        NotFiniteError: If the weights are NaN or infinite.
        MemoryLimitError: If the maps do not fit in memory.
    """
    fields = FIELDS[model.shape]
    if other := [kind for kind in kinds or () if kind not in fields]:
        raise UsageError(f"--kind {other[0]}: this model has {' and '.join(fields)} attention only")
    builder = _HuggingFaceInputBuilder(model)
    with quiet(), _transformers_errors(model), torch.inference_mode():
        source = builder.source(text)
        head_counts = {  # number of heads of each layer with weights
            kind: [maps.shape[1] for maps in layers_of_kind]
            for kind, layers_of_kind in _forward(model, builder.arguments(source.start)).items()
        }
        chosen = {
            kind: _choose(model, kind, head_counts[kind], layers, heads)
            for kind in head_counts
            if kinds is None or kind in kinds
        }
        model_input = builder.with_output(source, text, target, search)
        axes = builder.axes(model_input, step)
        weights = sum(sum(head_counts[kind]) * len(axes[kind][0]) * len(axes[kind][1]) for kind in head_counts)
        check_weights(weights, "the text", "shorten the text")
        attentions = _forward(model, builder.arguments(model_input))
    maps = {kind: _maps(model, kind, attentions[kind], choice, axes[kind], step) for kind, choice in chosen.items()}
    note = {"note": f"the output was truncated to {model_input.cut} tokens"} if model_input.cut else {}
    return Capture(text, model_input.output, model_input.how, model.name, maps, model.facts | note)


class ChosenLayers(NamedTuple):
    """Selected layers and heads of one kind."""

    layers: dict[int, int]
    """Number of each layer -> its index among the layers with weights."""
    heads: list[int]


def _forward(model: Pretrained, inputs: dict[str, Tensor]) -> dict[Kind, list[Tensor]]:
    """Run a pass without language modeling head; return weights [1, H, T, S] of each layer, by kind."""
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
    model: Pretrained, kind: Kind, head_counts: Sequence[int], layers: Sequence[int], heads: Sequence[int]
) -> ChosenLayers:
    """Return the selected layers and heads of a kind; `head_counts` has the number of heads of each layer."""
    if not head_counts:
        raise DataError(
            f"{model.name}: {type(model.model).__name__} returns no weights of {kind} attention, even "
            "with attn_implementation=eager"
        )
    types = getattr(model.model.config.get_text_config(), "layer_types", None) or ()
    numbers = [index for index, name in enumerate(types) if name in WITH_WEIGHTS]
    if len(numbers) != len(head_counts):
        numbers = list(range(len(head_counts)))
    rows = sorted(indices_of("layer", numbers, layers, f"{kind} attention"))
    counts = {head_counts[row] for row in rows}
    if len(counts) > 1:
        raise UsageError(f"{kind} attention: layers have different numbers of heads: add --layer")
    columns = sorted(indices_of("head", range(counts.pop()), heads, f"{kind} attention"))
    return ChosenLayers({numbers[row]: row for row in rows}, columns)


def written(model: Pretrained, text: str, search: SearchConfig) -> str:
    """Return the text that the model generates from a text or prompt. Raises as `capture`."""
    builder = _HuggingFaceInputBuilder(model)
    with quiet(), _transformers_errors(model), torch.inference_mode():
        return builder.with_output(builder.source(text), text, None, search).output


def _maps(
    model: Pretrained, kind: Kind, attentions: Sequence[Tensor], chosen: ChosenLayers, axes: Axes, step: Step
) -> AttentionMaps:
    """Return the maps of a kind. Raises DataError if they are not weights: some models return other numbers."""
    name, (queries, keys) = type(model.model).__name__, axes
    for shape in (layer_maps.shape[1:] for layer_maps in attentions):
        # the last row of a cut output has no token to label it
        if shape[2] != len(keys) or shape[1] not in (len(queries), len(queries) + 1):
            raise DataError(
                f"{model.name}: {kind} attention returns weights of shape {list(shape)}, not (heads, "
                f"{len(queries)} queries, {len(keys)} keys): {name} is not supported"
            )
    maps = np.stack([attentions[index][0, chosen.heads].float().cpu().numpy() for index in chosen.layers.values()])
    if not np.isfinite(maps).all():
        raise NotFiniteError(f"{model.name}: the model outputs NaN or infinity")
    if maps.min() < 0 or maps.max() > HIGHEST_WEIGHT:
        raise DataError(
            f"{model.name}: {name} returns values from {maps.min():.3g} to {maps.max():.3g} as "
            f"{kind} attention, which are not weights"
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
    """Convert errors inside transformers to errors of one line."""
    try:
        yield
    except AttnkitError:
        raise
    except (RuntimeError, IndexError, ValueError, TypeError, MemoryError) as error:
        if out_of_memory(error):
            raise MemoryLimitError(f"{model.name}: out of memory: shorten the text") from error
        reason = error_line(error)
        raise DataError(f"{model.name}: transformers could not run the model: {reason}") from error


class _HuggingFaceInputBuilder:
    """Converts texts to the ids that the model reads."""

    def __init__(self, model: Pretrained) -> None:
        self.model = model

    def source(self, text: str) -> HuggingFaceInput:
        """Return the text alone. Raises UsageError if it is empty, DataError if it is too long."""
        ids = self._encode(text, "the text")
        if self.model.shape == "decoder":
            return HuggingFaceInput([], ids)
        return HuggingFaceInput(ids, [self._start()] if self.model.shape != "encoder" else [])

    def with_output(
        self, source: HuggingFaceInput, text: str, target: str | None, search: SearchConfig | None
    ) -> HuggingFaceInput:
        """Return the text with its output, given or generated by the model."""
        if self.model.shape == "encoder":
            if target is not None or search is not None:
                raise UsageError("a model of shape encoder has no output; remove target and search")
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
        self._check_length(ids, "the target")
        return HuggingFaceInput(source.source, ids, target, "given")

    def arguments(self, model_input: HuggingFaceInput) -> dict[str, Tensor]:
        """Return the keyword arguments of a forward pass."""
        if not model_input.source:
            return {"input_ids": self._row(model_input.ids)}
        inputs = {"input_ids": self._row(model_input.source)}
        return inputs | ({"decoder_input_ids": self._row(model_input.ids)} if model_input.ids else {})

    def axes(self, model_input: HuggingFaceInput, step: Step) -> dict[Kind, Axes]:
        """Return queries and keys of each kind."""
        source, target = (tokens_of(self.model.tokenizer, ids) for ids in (model_input.source, model_input.ids))
        labels = target
        if step == "output" and model_input.source and model_input.ids:
            end = [] if model_input.cut else self._ends()[:1]  # the token after a cut output is unknown
            labels = tokens_of(self.model.tokenizer, [*model_input.ids[1:], *end])
        return {"encoder": (source, source), "decoder": (target, target), "cross": (labels, source)}

    def _encode(self, text: str, name: str, *, target: bool = False) -> list[int]:
        if not text.strip():
            raise UsageError(f"{name} is empty: give at least one word")
        if any("\ud800" <= char <= "\udfff" for char in text):
            raise DataError(f"{name} has lone surrogates, which a tokenizer cannot encode")
        ids = encode(self.model.tokenizer, text, target=target)
        if not ids:
            raise UsageError(f"{name} has no token in this vocabulary")
        self._check_length(ids, name)
        return ids

    def _check_length(self, ids: Sequence[int], name: str) -> None:
        limit = self.model.limit
        if limit is not None and len(ids) > limit:
            raise DataError(
                f"{name}: {len(ids)} tokens, special tokens included, but {self.model.name} reads at most "
                f"{limit}: shorten the text"
            )

    def _start(self) -> int:
        """Return the id of the decoder's start token."""
        for config in (self.model.model.generation_config, self.model.model.config):
            for name in ("decoder_start_token_id", "bos_token_id"):
                if isinstance(token_id := getattr(config, name, None), int):
                    return token_id
        raise DataError(f"{self.model.name}: the configuration has no decoder_start_token_id")

    def _without_end(self, ids: list[int]) -> list[int]:
        """Drop end tokens at the end, which a model generates but never reads."""
        ends = self._ends()
        while ids and ids[-1] in ends:
            ids = ids[:-1]
        return ids

    def _ends(self) -> list[int]:
        """Return the end tokens of the model and of its tokenizer."""
        end = self.model.model.generation_config.eos_token_id
        ends = [*(end if isinstance(end, list) else [end]), self.model.tokenizer.eos_token_id]
        return [id_ for id_ in ends if id_ is not None]

    def _with_search(self, source: HuggingFaceInput, spec: SearchConfig) -> HuggingFaceInput:
        decoder = self.model.shape == "decoder"
        prompt = self._without_end(source.ids) if decoder else source.source
        if not prompt:
            raise UsageError("the text is empty: give at least one word")
        max_length = spec.max_length
        if self.model.limit is not None:
            max_length = min(max_length, self.model.limit - (len(prompt) if decoder else 1))
        if max_length < 1:
            raise DataError(f"the text leaves no position of {self.model.name} for an output: shorten the text")
        written = _generate(self.model, self._row(prompt), spec, max_length)
        prefix, ids = (prompt, written[len(prompt) :]) if decoder else (written[:1], written[1:])
        output = self._without_end(ids)
        text = self.model.tokenizer.decode(output, skip_special_tokens=True).strip()
        cut = len(ids) if len(output) == len(ids) else 0
        return HuggingFaceInput(source.source, [*prefix, *output], text, describe_search(spec), cut)

    def _row(self, ids: Sequence[int]) -> Int[Tensor, "1 n"]:
        return torch.tensor([list(ids)], device=self.model.device)


def _generate(model: Pretrained, ids: Int[Tensor, "1 n"], spec: SearchConfig, max_length: int) -> list[int]:
    """Return prompt (or start token) and output with its end token, as `generate` returns them."""
    network = model.model
    ends = network.generation_config.eos_token_id
    pad = model.tokenizer.pad_token_id
    if pad is None:
        pad = ends[0] if isinstance(ends, list) else ends
    options: dict[str, Any] = {
        "max_new_tokens": max_length,
        "min_new_tokens": min(spec.min_length, max_length) or None,
        "num_beams": spec.beam if spec.method == "beam" else 1,
        "length_penalty": spec.length_penalty,
        "no_repeat_ngram_size": spec.no_repeat_ngram,
        "do_sample": spec.method == "sample",
        "pad_token_id": pad,
    }
    config = network.config.get_text_config(decoder=True)
    if (getattr(config, "num_decoder_layers", None) or 0) > config.num_hidden_layers:
        options["use_cache"] = False  # transformers makes T5's cache as deep as its encoder
    if spec.method == "sample":
        options |= {"temperature": spec.temperature, "top_k": spec.top_k, "top_p": spec.top_p}
    with torch.random.fork_rng(devices=[model.device] if model.device.type == "cuda" else []):
        torch.manual_seed(spec.seed)
        written = network.generate(ids, attention_mask=torch.ones_like(ids), **options)
    return [int(id_) for id_ in written[0]]
