"""Export to transformers as Pegasus (encoder-decoder, pre-norm), Marian (encoder-decoder, post-norm) or OPT (decoder).

All of them load their position tables from the file, so sinusoidal and learned positions are exact.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from attnkit.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer, Vocabulary
from attnkit.export.fast_tokenizer import fast_tokenizer
from attnkit.export.parity import Reader
from attnkit.export.projections import position_table, projection, stacks
from attnkit.huggingface.opening import LOCAL_ONLY, open_model
from attnkit.huggingface.quiet import quiet, transformers
from attnkit.models import Model
from attnkit.recipe import Recipe
from attnkit.recipe.export_rules import pretrained_class
from attnkit.storage import tensors

HEADS = {"Pegasus": "ForConditionalGeneration", "Marian": "MTModel", "OPT": "ForCausalLM"}
OUTPUT = "lm_head.weight"
POSITION_OFFSET = 2
"""Number of unused positions at the start of OPT's table."""
ABSENT_LOGIT = -1e9
"""Logit of ids beyond the end of the target vocabulary."""
TARGET = "target"
"""Folder of the target tokenizer, if it is not shared."""
BATCH_SIZE = 25
"""Number of texts per batch in generation."""


class HuggingFaceModel:
    """An exported folder, opened as users open it."""

    def __init__(self, folder: Path, vocabulary: int) -> None:
        """Open a folder; `vocabulary` is the size of the target vocabulary. Raises like `open_model`."""
        opened = open_model(folder, device="cpu")
        self.model, self.source, self.target = opened.model, opened.tokenizer, opened.tokenizer
        self.decoder, self.vocabulary = opened.shape == "decoder", vocabulary
        if (folder / TARGET).is_dir():
            self.target = transformers().AutoTokenizer.from_pretrained(folder / TARGET, **LOCAL_ONLY)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Encode texts with the exported source tokenizer."""
        return [*self.source(list(texts), truncation=True)["input_ids"]]

    @torch.inference_mode()
    def outputs(self, texts: Sequence[str]) -> Iterator[str]:
        """Yield the best output of each text, with the folder's generation config but without sampling."""
        for start in range(0, len(texts), BATCH_SIZE):
            batch = list(texts[start : start + BATCH_SIZE])
            with quiet():
                inputs = self.source(batch, truncation=True, padding=True, return_tensors="pt")
                ids = self.model.generate(**inputs, do_sample=False, num_return_sequences=1)
            ids = ids[:, inputs["input_ids"].shape[1] if self.decoder else 0 :]
            yield from self.target.batch_decode(ids, skip_special_tokens=True)

    def logits(self, source: Int[Tensor, "B S"] | None, ids: Int[Tensor, "B T"] | None) -> Float[Tensor, "B T V"]:
        """Compute logits of whole rows, padded on the right."""
        input_ids = ids if source is None else source
        assert input_ids is not None
        inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": (input_ids != PAD).long()}
        inputs |= {} if source is None else {"decoder_input_ids": ids}
        logits: Tensor = self.model(**inputs).logits[..., : self.vocabulary]
        return logits


def write(model: Model, tokenizer: Tokenizer, recipe: Recipe, folder: Path, weights: str | None = None) -> Reader:
    """Write weights, configs and tokenizers, and open the folder; raises like `fast_tokenizer` and `open_model`."""
    state_dict = _weights(model)
    size = max(len(tokenizer.source), len(tokenizer.target))
    config = _config(recipe, size, len(state_dict["model.decoder.embed_positions.weight"]))
    _tie(state_dict, config)
    with quiet():
        tensors.write(folder / "model.safetensors", state_dict, {"format": "pt"})
        config.save_pretrained(folder)
        _generation(recipe).save_pretrained(folder)
        _tokenizer(tokenizer.source, recipe).save_pretrained(folder)
        if not tokenizer.shared:
            _tokenizer(tokenizer.target, recipe).save_pretrained(folder / TARGET)
    exported = HuggingFaceModel(folder, len(tokenizer.target))
    return Reader(lambda _, texts: exported.outputs(texts), exported.logits, encode=exported.encode)


def _weights(model: Any) -> dict[str, Tensor]:
    """Return the tensors by their names in transformers, tied tensors under each name."""
    layers: dict[str, Any] = {}
    tables: dict[str, Tensor] = {"lm_head": model.output.weight.detach()}
    for side, stack, embedding in stacks(model):
        tokens, positions = (embedding.tokens.weight.detach(), position_table(embedding, model.length))
        if opt := model.encoder is None:  # OPT does not scale embeddings
            positions, tokens = F.pad(positions, (0, 0, POSITION_OFFSET, 0)), tokens * embedding.scale
        tables |= {f"{side}.embed_positions": positions, f"{side}.embed_tokens": tokens}
        layers[f"{side}.{'final_layer_norm' if opt else 'layer_norm'}"] = stack.norm
        for number, block in enumerate(stack.blocks):
            names: dict[str, Any] = {
                "self_attn_layer_norm": block.norm_attention,
                "encoder_attn_layer_norm": block.norm_cross,
                "final_layer_norm": block.norm_feed_forward,
                "fc1": block.feed_forward.up,
                "fc2": block.feed_forward.down,
            }
            for name, attention in (("self_attn", block.attention), ("encoder_attn", block.cross)):
                for letter in "qkvo" if attention is not None else "":
                    names[f"{name}.{letter.replace('o', 'out')}_proj"] = projection(attention, letter)
            layers |= {f"{side}.layers.{number}.{name}": part for name, part in names.items()}
    for name, layer in layers.items():
        if isinstance(layer, torch.nn.Linear | torch.nn.LayerNorm):
            layer = layer.weight.detach(), layer.bias.detach()
        if isinstance(layer, tuple):
            tables[name], tables[f"{name}.bias"] = layer
    state_dict = {f"{name}{'' if name.endswith('bias') else '.weight'}": t for name, t in tables.items()}
    return {f"{'' if name == OUTPUT else 'model.'}{name}": t for name, t in state_dict.items()}


def _tie(state_dict: dict[str, Tensor], config: Any) -> None:
    """Remove duplicates of tied tables, or pad untied tables to one vocabulary size; does nothing for OPT."""
    if config.model_type == "opt":
        return
    tables = [f"model.{side}.embed_tokens.weight" for side in ("encoder", "decoder")]
    tables.append(OUTPUT)
    if config.tie_word_embeddings:
        state_dict["model.shared.weight"] = [state_dict.pop(name) for name in tables][0]
        return
    bias = F.pad(torch.zeros(1, len(state_dict[tables[2]])), (0, config.vocab_size), value=ABSENT_LOGIT)
    state_dict["final_logits_bias"] = bias[:, : config.vocab_size]
    for name in tables:
        state_dict[name] = F.pad(state_dict[name], (0, 0, 0, config.vocab_size - len(state_dict[name])))
    if config.model_type == "pegasus":
        state_dict["model.shared.weight"] = state_dict[tables[0]]


def _config(recipe: Recipe, size: int, positions: int) -> Any:
    model, kind = recipe.model, pretrained_class(recipe)
    tied, activation_dropout = model.tie == "all", model.activation_dropout
    values: dict[str, Any] = {
        "vocab_size": size,
        "pad_token_id": PAD,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "activation_function": model.activation,
        "dropout": model.dropout,
        "architectures": [kind + HEADS[kind]],
        "dtype": "float32",
    }
    if kind == "OPT":
        values |= {
            "max_position_embeddings": positions - POSITION_OFFSET,
            "tie_word_embeddings": False,
            "hidden_size": model.width,
            "word_embed_proj_dim": model.width,
            "ffn_dim": model.ff,
            "num_hidden_layers": model.layers.decoder,
            "num_attention_heads": model.heads,
            "do_layer_norm_before": model.norm == "pre",
        }
    else:
        values |= {
            "max_position_embeddings": positions,
            "tie_word_embeddings": tied,
            "d_model": model.width,
            "scale_embedding": model.init_std is None,
            "activation_dropout": model.dropout if activation_dropout is None else activation_dropout,
            "decoder_start_token_id": BOS,
            "forced_eos_token_id": None,
            "encoder_layers": model.layers.encoder,
            "decoder_layers": model.layers.decoder,
            "encoder_attention_heads": model.heads,
            "decoder_attention_heads": model.heads,
            "encoder_ffn_dim": model.ff,
            "decoder_ffn_dim": model.ff,
        }
    if kind == "Marian":
        values |= {"share_encoder_decoder_embeddings": tied, "decoder_vocab_size": size}
    return getattr(transformers(), f"{kind}Config")(**values)


def _generation(recipe: Recipe) -> Any:
    """Convert the recipe's search; both rank by log-probability / length ** length_penalty, EOS included.

    early_stopping=True, because attnkit's search of a sentence is done when `beam` hypotheses have ended.
    """
    spec = recipe.search
    beam = {"num_beams": spec.beam, "length_penalty": spec.length_penalty, "early_stopping": True}
    sample = {"do_sample": True, "temperature": spec.temperature, "top_k": spec.top_k, "top_p": spec.top_p}
    options: dict[str, Any] = {"beam": beam, "sample": sample}.get(spec.method, {})
    if recipe.model.shape != "decoder":
        options["decoder_start_token_id"] = BOS
    return transformers().GenerationConfig(
        max_new_tokens=spec.max_length,
        min_new_tokens=spec.min_length or None,
        no_repeat_ngram_size=spec.no_repeat_ngram or None,
        num_return_sequences=spec.n_best,
        suppress_tokens=[PAD, UNK, BOS],
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        **options,
    )


def _tokenizer(vocabulary: Vocabulary, recipe: Recipe) -> Any:
    """Convert a vocabulary to a tokenizer that ends sources with EOS; prompts begin with BOS and have no EOS."""
    decoder, prompts = recipe.model.shape == "decoder", recipe.prompts
    return fast_tokenizer(
        vocabulary,
        "BOS $A" if prompts else "$A EOS BOS" if decoder else "$A EOS",
        model_max_length=recipe.data.max_length + (decoder and not prompts),
        padding_side="left" if decoder else "right",
        truncation_side="left" if prompts else "right",
    )
