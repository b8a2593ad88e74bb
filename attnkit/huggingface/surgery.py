"""Replacement of the attention of a causal Hugging Face model by a mechanism of attnkit.

Models of transformers call a registered attention function with projected queries, keys and values, to which positions
are already applied. The mechanism replaces this function; the rest of the model is unchanged.

A converted model is saved as a folder of the model's files. Its weights have a variant name that transformers alone
does not look for, since it would combine them with the wrong attention.
"""

import errno
import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import torch
from jaxtyping import Bool, Float
from pydantic import Field
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.nn import functional as F

from attnkit import mechanisms
from attnkit.attention import Attention, Mask
from attnkit.errors import UsageError, out_of_memory
from attnkit.huggingface.quiet import quiet, transformers
from attnkit.layers import MultiHead
from attnkit.ops.grouped_heads import repeat_heads
from attnkit.runs import json_files
from attnkit.storage import tensors as stored
from attnkit.storage.files import atomic_write

ATTRIBUTE = "attnkit_mechanism"
"""Name of the submodule of an attention module that holds the mechanism."""
IMPLEMENTATION, WITH_MAPS = "attnkit", "attnkit_maps"
"""Names of the registered attention functions; the second function also returns the attention weights."""
FACTS, WEIGHTS = "attention.json", "attention.safetensors"
VARIANT = "attnkit"
"""Variant in the names of the weight files: model.attnkit.safetensors."""
Options = Mapping[str, Any]


def check(name: str, options: Options) -> None:
    """Raise UsageError if a mechanism cannot replace the attention of a trained causal model."""
    capabilities = mechanisms.resolve_capabilities(name, options)
    if not capabilities.causal:
        raise UsageError(f"{name} cannot be causal: {capabilities.why}")
    if other := set(capabilities.uses) - set("qkv"):
        inputs = "gates" if "g" in other else "slices of the layer's input"
        raise UsageError(
            f"{name} needs {inputs}, for which a Hugging Face model has no projections: convert a run of "
            "attnkit, or use a mechanism of queries, keys and values"
        )
    if capabilities.remembers_queries:
        raise UsageError(
            f"{name} keeps a state of earlier queries, which the cache of a Hugging Face model does not "
            "hold: convert a run of attnkit, or use another mechanism"
        )


def install(model: Any, name: str, options: Options, length: int) -> dict[str, Attention]:
    """Replace the attention of all layers of a causal model by new mechanisms, in place; returns them by module name.

    Args:
        model: a PreTrainedModel that uses transformers' attention interface.
        length: maximum number of tokens, for mechanisms with weights per position.

    Raises:
        UsageError: The model does not use the attention interface, is quantized, or has a sliding window, capped
            scores or attention sinks; or the mechanism cannot replace its attention.
    """
    check(name, options)
    if getattr(model, "is_quantized", False):
        raise UsageError("quantized weights cannot be trained: use the original model")
    if any(transformers().DynamicCache(config=model.config).is_sliding):
        raise UsageError(
            f"this {model.config.model_type} model caches only the keys of a sliding window: convert a "
            "model whose layers all attend to the whole text"
        )
    installed: dict[str, Attention] = {}
    for depth, (module_name, module, heads, width) in enumerate(_attention_modules(model)):
        layer = MultiHead.build(name, heads * width, heads, length, depth=depth, causal=True, **options)
        mechanism = layer.mechanism
        sets = mechanism.query_sets, mechanism.key_sets, mechanism.value_sets, mechanism.key_heads
        if sets != (1, 1, 1, heads) or not layer.plain:
            raise UsageError(
                f"{name} with these options needs projections or norms that a Hugging Face model does not "
                "have: remove options, or convert a run of attnkit"
            )
        device = next(module.parameters()).device
        # `model.dtype`, because quantized weights are stored as integers
        installed[module_name] = mechanism.to(device, model.dtype).train(module.training)
        setattr(module, ATTRIBUTE, mechanism)
    with quiet():
        model.set_attn_implementation(IMPLEMENTATION)
    return installed


def _attention_modules(model: Any) -> list[tuple[str, nn.Module, int, int]]:
    """Record name, module, number of heads and head width of attention modules in order, by a forward pass."""
    modules: list[tuple[str, nn.Module, int, int]] = []
    names = {module: name for name, module in model.named_modules()}

    def record(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *_: Any, **kwargs: Any) -> Any:
        for name, feature in (("softcap", "caps its scores"), ("s_aux", "has attention sinks")):
            if kwargs.get(name) is not None:
                raise UsageError(f"its attention {feature}, which a replacement does not support")
        modules.append((names[module], module, query.shape[1], query.shape[3]))
        if value.shape[3] != query.shape[3]:
            raise UsageError("its values and keys have different widths")
        return value.new_zeros(query.shape).transpose(1, 2), None

    register(IMPLEMENTATION, record)
    previous = model.config._attn_implementation
    try:
        with quiet(), torch.no_grad():
            model.set_attn_implementation(IMPLEMENTATION)
            model(input_ids=torch.zeros((1, 1), dtype=torch.long, device=model.device))
            model.set_attn_implementation(previous)
    except (IndexError, RuntimeError, TypeError, ValueError) as error:
        if out_of_memory(error):
            raise
        raise UsageError(
            f"a {model.config.model_type} model cannot be converted ({type(error).__name__}: {error})"
        ) from error
    finally:
        register(IMPLEMENTATION, _attend)
        register(WITH_MAPS, _attend_with_maps)
    if not modules:
        raise UsageError(
            f"a {model.config.model_type} model does not use the attention interface of transformers: use "
            "a model of the Llama, Qwen, Mistral, GPT-2 or GPT-NeoX family"
        )
    return modules


def register(name: str, function: Any) -> None:
    """Register an attention function with transformers; its mask is [B, S] or None."""
    library = transformers()
    library.AttentionInterface.register(name, function)
    library.AttentionMaskInterface.register(name, _padding)


def _padding(
    *_: Any, kv_length: int, attention_mask: Bool[Tensor, "B S"] | None = None, **__: Any
) -> Bool[Tensor, "B S"] | None:
    """Build the mask of a forward pass: False on pads; None if there are no pads."""
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask[:, -kv_length:].bool()


def _attend(
    module: nn.Module,
    query: Float[Tensor, "B H t D"],
    key: Float[Tensor, "B h S D"],
    value: Float[Tensor, "B h S D"],
    attention_mask: Bool[Tensor, "B S"] | None,
    *,
    scaling: float | None = None,
    maps: bool = False,
    **_: Any,
) -> tuple[Float[Tensor, "B t H D"], Float[Tensor, "B H t S"] | None]:
    """Attention function of transformers that calls the mechanism; the queries are the last t of S tokens."""
    mechanism: Attention = getattr(module, ATTRIBUTE)
    new, length, width = query.shape[2], key.shape[2], query.shape[3]
    key, value = (repeat_heads(x, query.shape[1]) for x in (key, value))
    if scaling is not None:  # mechanisms divide by sqrt(width) themselves
        query = query * (scaling * math.sqrt(width))
    if mechanism.state == "constant":  # recomputed over all S tokens; only the last queries matter
        query = F.pad(query, (0, 0, length - new, 0))
    start = length - query.shape[2]
    if attention_mask is None:
        mask = Mask.packed(length, query.device, causal=True, start=start)
    else:
        mask = Mask.of(attention_mask, length - start, causal=True, start=start)
    y = mechanism(query, key, value, mask).y[:, :, -new:]
    weights = mechanism.weights(query, key, value, mask)[:, :, -new:] if maps else None
    return y.transpose(1, 2).contiguous(), weights


def _attend_with_maps(*args: Any, **kwargs: Any) -> Any:
    return _attend(*args, **kwargs, maps=True)


def mechanism_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights and buffers of the mechanisms in a model."""
    return {name: x for name, x in model.state_dict().items() if f".{ATTRIBUTE}." in name}


def save(model: Any, tokenizer: Any, folder: Path, facts: Mapping[str, Any]) -> None:
    """Save a converted model to an existing folder; `facts` has at least `ConvertedFacts`. Raises OSError."""
    weights = mechanism_weights(model)
    rest = {name: x for name, x in model.state_dict().items() if name not in weights}
    with quiet():
        model.set_attn_implementation("eager")
        try:
            model.save_pretrained(folder, state_dict=rest, variant=VARIANT)
        except SafetensorError as error:  # an I/O error, with its errno only in the message
            match = re.search(r"os error (\d+)", str(error))
            number = int(match[1]) if match else errno.EIO
            raise OSError(number, os.strerror(number)) from error
        model.set_attn_implementation(IMPLEMENTATION)
        tokenizer.save_pretrained(folder)
    stored.write(folder / WEIGHTS, weights)
    atomic_write(folder / FACTS, (json.dumps(facts, indent=2) + "\n").encode())


def is_converted(folder: Path) -> bool:
    return (folder / FACTS).is_file()


def files(folder: Path) -> list[Path]:
    """Return the additional files of a converted model."""
    return [folder / name for name in (FACTS, WEIGHTS)] if is_converted(folder) else []


class ConvertedFacts(json_files.Schema):
    """attention.json of a converted model."""

    attention: str
    options: dict[str, Any]
    length: Annotated[int, Field(ge=1, le=1 << 24)]


def restore(model: Any, folder: Path) -> int | None:
    """Install the mechanisms of a converted model in the opened model, and return the maximum number of tokens.

    Raises DataError if a file is damaged, UsageError if the mechanism is unknown or does not fit.
    """
    facts = json_files.read(folder / FACTS, ConvertedFacts)
    installed = install(model, facts.attention, facts.options, facts.length)
    weights, expected = stored.read(folder / WEIGHTS), mechanism_weights(model)
    for name in weights.keys() & expected.keys():  # the model may have been opened with another dtype
        if weights[name].is_floating_point() and expected[name].is_floating_point():
            weights[name] = weights[name].to(expected[name].dtype)
    stored.check(folder / WEIGHTS, weights, expected)
    model.load_state_dict(weights, strict=False)
    limits = (mechanism.limit for mechanism in installed.values())
    return min((limit for limit in limits if isinstance(limit, int)), default=None)
