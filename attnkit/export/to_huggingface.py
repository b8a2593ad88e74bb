"""A run as a folder that transformers opens by its own classes: Pegasus, Marian or OPT.

Pegasus is the encoder-decoder that normalises before each sublayer, Marian the one that does after
it, OPT the decoder that does either.  All of them read their tables of positions from the file, so
sinusoidal and learned positions are exact.
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
from attnkit.export.projections import blocks, position_table, projection, stacks
from attnkit.huggingface.opening import LOCAL
from attnkit.huggingface.quiet import quiet, transformers
from attnkit.models import Transformer
from attnkit.recipe import Recipe
from attnkit.recipe.export_rules import pretrained_class
from attnkit.storage import tensors

AT_ONCE = 25
"""Texts that are generated from at a time."""
TARGET = "target"
"""Folder of the target's tokenizer, where it has its own."""
POSITIONS, TOKENS, SHARED, OUTPUT = (
    f"{name}.weight" for name in ("embed_positions", "embed_tokens", "model.shared", "lm_head")
)
"""Names of tables, the first two within a side."""
SKIPPED = 2
"""First positions of OPT, which no token has."""
ABSENT = -1e9
"""Logit of ids that only the longer one of two vocabularies has."""


class HuggingFaceModel:
    """What stands in such a folder, opened as its users open it."""

    def __init__(self, folder: Path, recipe: Recipe, vocabulary: int) -> None:
        """`vocabulary` is the size of the target's.  Raises ValueError: weights do not fit."""
        library = transformers()
        self.decoder, self.vocabulary = recipe.model.shape == "decoder", vocabulary
        kind = library.AutoModelForCausalLM if self.decoder else library.AutoModelForSeq2SeqLM
        with quiet():
            self.model, faults = kind.from_pretrained(
                folder, dtype=torch.float32, output_loading_info=True, **LOCAL
            )
            own = folder / TARGET
            self.source = library.AutoTokenizer.from_pretrained(folder, **LOCAL)
            self.target = library.AutoTokenizer.from_pretrained(own if own.is_dir() else folder)
        if any(faults.values()):
            raise ValueError(f"{type(self.model).__name__}: {faults}")
        self.model.eval()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each source, as its own tokenizer gives them to the model."""
        with quiet():
            ids: list[list[int]] = self.source(list(texts), truncation=True)["input_ids"]
        return ids

    @torch.inference_mode()
    def translate(self, texts: Sequence[str]) -> Iterator[str]:
        """The best output of each text, by the settings that the folder itself has."""
        for start in range(0, len(texts), AT_ONCE):
            some = list(texts[start : start + AT_ONCE])
            with quiet():
                given = self.source(some, truncation=True, padding=True, return_tensors="pt")
                found = self.model.generate(**given, do_sample=False, num_return_sequences=1)
            if self.decoder:
                found = found[:, given["input_ids"].shape[1] :]
            yield from self.target.batch_decode(found, skip_special_tokens=True)

    @torch.inference_mode()
    def logits(
        self, source: Int[Tensor, "B S"] | None, ids: Int[Tensor, "B T"] | None
    ) -> Float[Tensor, "B T V"]:
        """Logits of whole rows, padded on the right."""
        if source is None and ids is not None:
            found = self.model(input_ids=ids, attention_mask=(ids != PAD).long()).logits
        else:
            assert source is not None
            seen = (source != PAD).long()
            found = self.model(input_ids=source, attention_mask=seen, decoder_input_ids=ids).logits
        logits: Tensor = found[..., : self.vocabulary]
        return logits


def write(model: Transformer, tokenizer: Tokenizer, recipe: Recipe, folder: Path) -> None:
    """Fill a folder with weights, settings and tokenizer."""
    with quiet():
        named = _weights(model)
        config = _config(model, recipe, len(named[f"model.decoder.{POSITIONS}"]))
        _tie(named, model, config)
        tensors.write(folder / "model.safetensors", named, {"format": "pt"})
        config.save_pretrained(folder)
        _generation(recipe).save_pretrained(folder)
        own = tokenizer.target is not tokenizer.source
        for part, place in ((tokenizer.source, folder), (tokenizer.target, folder / TARGET)):
            if own or place == folder:
                _tokenizer(part, recipe).save_pretrained(place)


def _weights(model: Transformer) -> dict[str, Tensor]:
    """The tensors by the names of transformers; tied ones once."""
    named: dict[str, Tensor] = {}
    for side, (stack, embedding) in stacks(model).items():
        at = f"model.{side}"
        positions = position_table(embedding, model.length)
        scale = 1.0
        if model.encoder is None:  # OPT does not scale
            scale, positions = embedding.scale, F.pad(positions, (0, 0, SKIPPED, 0))
        named[f"{at}.{POSITIONS}"] = positions
        named[f"{at}.{TOKENS}"] = embedding.tokens.weight.detach() * scale
        layers: dict[str, Any] = {}
        for number, block in enumerate(blocks(stack)):
            place = f"{at}.layers.{number}"
            for name, attention in (("self_attn", block.attention), ("encoder_attn", block.cross)):
                for letter, long in zip("qkvo", ("q", "k", "v", "out"), strict=True):
                    if attention is not None:
                        weight, bias = projection(attention, letter)
                        named[f"{place}.{name}.{long}_proj.weight"] = weight
                        named[f"{place}.{name}.{long}_proj.bias"] = bias
            layers |= {
                f"{place}.self_attn_layer_norm": block.norm_attention,
                f"{place}.encoder_attn_layer_norm": block.norm_cross,
                f"{place}.final_layer_norm": block.norm_feed_forward,
                f"{place}.fc1": block.feed_forward.up,
                f"{place}.fc2": block.feed_forward.down,
            }
        if isinstance(stack.norm, torch.nn.LayerNorm):
            last = "final_layer_norm" if model.encoder is None else "layer_norm"
            layers[f"{at}.{last}"] = stack.norm
        for name, layer in layers.items():
            if layer is not None:
                named[f"{name}.weight"] = layer.weight.detach()
                named[f"{name}.bias"] = layer.bias.detach()
    named[OUTPUT] = model.output.weight.detach()
    return named


def _tie(named: dict[str, Tensor], model: Transformer, config: Any) -> None:
    """Leave tables out that are tied; give all of them one length where two vocabularies differ."""
    if model.encoder is None:
        return
    tables = [f"model.encoder.{TOKENS}", f"model.decoder.{TOKENS}", OUTPUT]
    if config.tie_word_embeddings:
        named[SHARED] = [named.pop(name) for name in tables][-1]
        return
    present = len(named[OUTPUT])
    for name in tables:
        named[name] = F.pad(named[name], (0, 0, 0, config.vocab_size - len(named[name])))
    bias = torch.zeros(1, config.vocab_size)
    bias[:, present:] = ABSENT
    named["final_logits_bias"] = bias
    if config.model_type == "pegasus":
        named[SHARED] = named[tables[0]]


def _config(model: Transformer, recipe: Recipe, positions: int) -> Any:
    """The settings of the architecture."""
    ours, kind = recipe.model, pretrained_class(recipe)
    sizes = {len(embedding.tokens.weight) for _, embedding in stacks(model).values()}
    values: dict[str, Any] = {
        "vocab_size": max(*sizes, model.output.out_features),
        "max_position_embeddings": positions,
        "activation_function": ours.activation,
        "dropout": ours.dropout,
        "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS,
    }  # fmt: skip
    if kind == "OPT":
        values |= {
            "max_position_embeddings": positions - SKIPPED,
            "hidden_size": ours.width, "word_embed_proj_dim": ours.width, "ffn_dim": ours.ff,
            "num_hidden_layers": ours.layers.decoder, "num_attention_heads": ours.heads,
            "do_layer_norm_before": ours.norm == "pre", "tie_word_embeddings": False,
        }  # fmt: skip
    else:
        tied = ours.tie == "all"
        inside = ours.activation_dropout
        values |= {
            "d_model": ours.width, "scale_embedding": True, "tie_word_embeddings": tied,
            "activation_dropout": ours.dropout if inside is None else inside,
            "decoder_start_token_id": BOS, "forced_eos_token_id": None,
        }  # fmt: skip
        for side in ("encoder", "decoder"):
            values |= {
                f"{side}_layers": getattr(ours.layers, side),
                f"{side}_attention_heads": ours.heads,
                f"{side}_ffn_dim": ours.ff,
            }
        if kind == "Marian":
            values |= {"share_encoder_decoder_embeddings": tied,
                       "decoder_vocab_size": values["vocab_size"]}  # fmt: skip
    architecture = "MTModel" if kind == "Marian" else "ForConditionalGeneration"
    architecture = "ForCausalLM" if kind == "OPT" else architecture
    make = getattr(transformers(), f"{kind}Config")
    return make(**values, architectures=[kind + architecture], dtype="float32")


def _generation(recipe: Recipe) -> Any:
    """The recipe's search; both rank by log-probability / length ** length_penalty, EOS included.

    early_stopping: a sentence is done when as many hypotheses have ended as there are beams.
    """
    spec = recipe.search
    values: dict[str, Any] = {
        "max_new_tokens": spec.max_length,
        "suppress_tokens": [PAD, UNK, BOS],
        "pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS,
    }  # fmt: skip
    if recipe.model.shape != "decoder":
        values |= {"decoder_start_token_id": BOS}
    if spec.min_length:
        values |= {"min_new_tokens": spec.min_length}
    if spec.no_repeat_ngram:
        values |= {"no_repeat_ngram_size": spec.no_repeat_ngram}
    if spec.method == "beam":
        values |= {"num_beams": spec.beam, "length_penalty": spec.length_penalty,
                   "num_return_sequences": spec.n_best, "early_stopping": True}  # fmt: skip
    elif spec.method == "sample":
        values |= {"do_sample": True, "temperature": spec.temperature, "top_k": spec.top_k,
                   "top_p": spec.top_p, "num_return_sequences": spec.n_best}  # fmt: skip
    return transformers().GenerationConfig(**values)


def _tokenizer(vocabulary: Vocabulary, recipe: Recipe) -> Any:
    """A tokenizer that puts the end behind a source; a prompt begins with BOS and goes on."""
    decoder, longest = recipe.model.shape == "decoder", recipe.data.max_length
    template = "$A </s> <s>" if decoder else "$A </s>"
    side = "left" if decoder else "right"
    return fast_tokenizer(
        vocabulary,
        "<s> $A" if recipe.prompts else template,
        model_max_length=longest + (decoder and not recipe.prompts),
        padding_side=side,
        truncation_side="left" if recipe.prompts else "right",
    )
