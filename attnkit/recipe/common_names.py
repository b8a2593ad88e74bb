"""Names of mechanisms and keys in papers and other toolkits, with their names in recipes."""

_MECHANISMS = {
    "scaled-dot": ("softmax standard vanilla dot-product scaled-dot-product sdpa mha full flash flash-attention"),
    "{name: scaled-dot, key_heads: 1}": "mqa",
    "{name: scaled-dot, key_heads: 2}": "gqa",
    "dot": "luong",
    "additive": "bahdanau",
    "gaussian": "rbf",
    "synthesizer-dense or synthesizer-random": "synthesizer",
    "synthesizer-random": "random-synthesizer",
    "synthesizer-dense": "dense-synthesizer",
    "linear": "linear-transformer linear-attention",
    "{name: linear, feature_map: taylor}": "taylor",
    "performer": "favor favor+",
    "nystrom": "nystromformer",
    "gated-delta": "deltanet gated-deltanet",
    "decay": "retention retnet",
    "atrous": "dilated",
    "local": "sliding-window window windowed longformer",
    "block-topk": "moba",
    "sparse": "sparse-transformer",
    "mixture": "talking-heads",
    "interleaved": "hybrid",
    "fourier": "fnet",
    "dynamic-conv": "lightconv dynamicconv",
    "forgetting": "fox forgetting-transformer",
    "mesa": "mesanet",
    "differential": "diff diff-transformer",
    "sink": "attention-sink",
    "{name: scaled-dot, residual_scores: true}": "realformer",
}
"""Value of `model.attention` -> its other names, in lower case with hyphens."""

_KEYS = {
    "model.attention": "attention mechanism",
    "train.steps, which counts updates (`attnkit recipe explain`: updates an epoch)": "epochs",
    "train.steps, which counts updates": "num_epochs",
    "train.steps": "max_steps",
    "train.lr": "learning_rate",
    "train.batch_tokens, which counts tokens instead of sentences": "batch_size",
    "train.accumulate": "gradient_accumulation_steps grad_accum",
    "train.warmup": "warmup_steps",
    "train.schedule": "lr_scheduler scheduler",
    "train.clip": "max_grad_norm grad_clip",
    "train.patience": "early_stopping",
    "train.valid_every": "eval_steps",
    "train.save_every": "save_steps",
    "train.log_every": "logging_steps",
    "train.precision: fp16": "fp16",
    "train.precision: bf16": "bf16",
    "train.precision": "amp",
    "train.log_to": "report_to",
    "train.seeds, a list such as [1]": "train.seed random_seed",
    "model.width": "hidden_size hidden_dim d_model dim embed_dim",
    "model.ff": "d_ff ffn_dim intermediate_size",
    "model.layers": "num_layers n_layers",
    "model.heads": "num_heads n_heads nhead num_attention_heads",
    "model.positions": "positional_encoding position_embedding",
    "model.tie": "tie_embeddings",
    "tokenizer.size": "vocab_size",
    "data.source": "src_lang source_lang",
    "data.target": "tgt_lang target_lang",
    "data.corpus": "dataset",
    "data.max_length": "max_seq_length max_len",
    "search.beam": "num_beams beam_size",
    "search.max_length": "max_new_tokens",
}
"""Recipe key -> its names in other toolkits."""

MECHANISMS = {name: ours for ours, names in _MECHANISMS.items() for name in names.split()}
KEYS = {name: ours for ours, names in _KEYS.items() for name in names.split()}


def mechanism(word: str) -> str | None:
    """Return the value of `model.attention` for a mechanism's name in papers, or None if the name is unknown."""
    plain = word.casefold().replace("_", "-").replace(" ", "-")
    return MECHANISMS.get(plain) or MECHANISMS.get(plain.removesuffix("-attention"))


def also_known_as(word: str) -> list[str]:
    """Return the other names of a mechanism."""
    return _MECHANISMS.get(word, "").split()
