"""Small Hugging Face models with random weights, and trained tokenizers."""

from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from attnkit.huggingface import quiet

TEXTS = [
    "The animal didn't cross the street because it was too tired.",
    "A small river runs behind the old mill, and nobody fishes there.",
    "Gr\u00fc\u00dfe aus K\u00f6ln! Ein M\u00e4dchen liest \u2014 \u4f60\u597d \u4e16\u754c.",
] * 4
SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "<mask>"]
NAMES = dict(zip(("pad_token", "bos_token", "eos_token", "unk_token", "mask_token"), SPECIAL, strict=True))
SIZE = 340
"""Number of rows of every model's embeddings."""
WIDTH, LAYERS, HEADS = 32, 3, 4


@cache
def train_tokenizer(kind: str) -> Tokenizer:
    """Train a tokenizer of the tokenizers library: byte-level, metaspace, wordpiece or suffix."""
    common: dict[str, Any] = {"vocab_size": 320, "special_tokens": SPECIAL, "show_progress": False}
    if kind == "byte-level":
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer: Any = trainers.BpeTrainer(initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), **common)
    elif kind == "metaspace":
        tokenizer = Tokenizer(models.Unigram())
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(unk_token="<unk>", **common)
    elif kind == "wordpiece":
        tokenizer = Tokenizer(models.WordPiece(unk_token="<unk>"))
        tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(**common)
    else:
        tokenizer = Tokenizer(models.BPE(unk_token="<unk>", end_of_word_suffix="</w>"))
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.BPEDecoder()
        trainer = trainers.BpeTrainer(end_of_word_suffix="</w>", **common)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def tokenizer(kind: str = "byte-level", template: str = "$A") -> Any:
    """Return a tokenizer of transformers; `template` places special tokens, such as <s> $A </s>."""
    inner = Tokenizer.from_str(train_tokenizer(kind).to_str())
    if template != "$A":
        special = [(name, inner.token_to_id(name)) for name in ("<s>", "</s>")]
        inner.post_processor = processors.TemplateProcessing(single=template, pair=None, special_tokens=special)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=inner, **NAMES)


IDS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SEQ2SEQ = {
    **{"d_model": WIDTH, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64},
    **{"encoder_layers": 2, "decoder_layers": LAYERS, "encoder_attention_heads": 2, "decoder_attention_heads": HEADS},
    **{"decoder_start_token_id": 2, "forced_eos_token_id": None},
}
PLAIN = {
    **{"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS},
    **{"intermediate_size": 48, "max_position_embeddings": 64},
}
T5 = {
    **{"d_model": WIDTH, "d_kv": 8, "d_ff": 48, "num_heads": HEADS},
    **{"num_layers": LAYERS, "num_decoder_layers": LAYERS, "decoder_start_token_id": 0},
}
GPT2 = {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 64}
EXPERTS = {"num_experts_per_tok": 1, "num_key_value_heads": 2}
JAMBA = {
    **{"num_hidden_layers": 4, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2},
    **{"use_mamba_kernels": False, "mamba_d_state": 4, "mamba_dt_rank": 4},
}
SETTINGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bart": ("Bart", "ForConditionalGeneration", SEQ2SEQ),
    "marian": ("Marian", "MTModel", SEQ2SEQ),
    "t5": ("T5", "ForConditionalGeneration", T5),
    "gpt2": ("GPT2", "LMHeadModel", GPT2),
    "llama": ("Llama", "ForCausalLM", PLAIN | {"num_key_value_heads": 2}),
    "gpt-neox": ("GPTNeoX", "ForCausalLM", PLAIN),
    "bloom": ("Bloom", "ForCausalLM", {"hidden_size": WIDTH, "n_layer": LAYERS, "n_head": HEADS}),
    "mpt": ("Mpt", "ForCausalLM", {"d_model": WIDTH, "n_layers": LAYERS, "n_heads": HEADS, "max_seq_len": 64}),
    "mistral": ("Mistral", "ForCausalLM", PLAIN | {"num_key_value_heads": 2, "sliding_window": 3, "head_dim": 8}),
    "gpt-oss": (
        "GptOss",
        "ForCausalLM",
        PLAIN | EXPERTS | {"head_dim": 8, "num_local_experts": 2, "sliding_window": 4},
    ),
    "gemma2": ("Gemma2", "ForCausalLM", PLAIN | {"num_key_value_heads": 2, "head_dim": 8}),
    "jamba": ("Jamba", "ForCausalLM", PLAIN | EXPERTS | JAMBA),
    "bert": ("Bert", "ForMaskedLM", PLAIN),
    "roberta": ("Roberta", "ForMaskedLM", PLAIN),
    "albert": ("Albert", "ForMaskedLM", PLAIN | {"embedding_size": 16}),
}


def random_model(name: str, **changed: Any) -> Any:
    """Return a model with random weights; `changed` are settings of its configuration."""
    prefix, suffix, settings = SETTINGS[name]
    config = getattr(transformers, f"{prefix}Config")(**{"vocab_size": SIZE, **IDS, **settings, **changed})
    torch.manual_seed(1)
    model = getattr(transformers, prefix + suffix)(config).eval()
    for parameter in model.parameters():  # so that attention is far from uniform
        if parameter.ndim > 1:
            parameter.data.mul_(6)
    return model


def save_pretrained(folder: Path, name: str, kind: str = "byte-level", template: str = "$A") -> Path:
    """Save a model and a tokenizer; return the folder."""
    with quiet():
        random_model(name).save_pretrained(folder)
        tokenizer(kind, template).save_pretrained(folder)
    return folder
