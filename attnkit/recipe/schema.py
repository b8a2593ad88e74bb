"""The schema of a recipe: every key, its type, range, default and meaning.

A recipe is complete and inert: it names no code.  The classes are frozen pydantic models; the
loader (`attnkit.recipe.loading`) turns their errors into one line with a position.
"""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

LARGEST = 2**31 - 1
"""No whole number of a recipe is larger."""

Positive = Annotated[int, Field(ge=1, le=LARGEST)]
Count = Annotated[int, Field(ge=0, le=LARGEST)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]

Task = Literal["translation", "summarization", "dialogue", "language-modeling",
               "question-answering", "classification"]  # fmt: skip


class Section(BaseModel):
    """A frozen part of a recipe that refuses unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, protected_namespaces=(), allow_inf_nan=False
    )


class DataConfig(Section):
    """Where the text comes from and which rows are kept."""

    corpus: str | None = None
    """Name of a corpus card (`attnkit recipe list --corpora`), or null with train/valid/test."""
    source: str | None = None
    """Language or column of the input, as the card names it (en)."""
    target: str | None = None
    """Language or column of the output (de)."""
    train: str | tuple[str, ...] | None = None
    """One file (JSONL or plain text), or two aligned files [source, target]; each may be .gz."""
    valid: str | tuple[str, ...] | None = None
    """As train; used for validation."""
    test: str | tuple[str, ...] | None = None
    """As train; used by eval."""
    format: Literal["auto", "lines", "jsonl", "plain"] = "auto"
    """auto goes by the file names: two files are lines, .jsonl is jsonl, any other is plain."""
    errors: Literal["strict", "replace"] = "strict"
    """What malformed UTF-8 does: stop with file:line:byte, or be replaced and counted."""
    max_length: Positive = 256
    """Longest sequence in tokens, on either side; also the length that mechanisms are built for."""
    too_long: Literal["drop", "truncate"] = "drop"
    """What happens to longer training rows; counted either way.  Test rows are always truncated."""
    rows: Count = 0
    """Keep only the first N training rows; 0 keeps all."""
    valid_rows: Count = 0
    """Keep only the first N validation rows; 0 keeps all."""
    size: Positive | None = None
    """Embedded corpora only: how many training rows to generate."""
    seed: Count = 1
    """Embedded corpora only: seed of the generator."""
    gold: Share = 0.6
    """Questions: share of training rows read with the passage that answers."""
    other: Share = 0.25
    """Questions: share read with a passage that does not; the rest are read with none."""


class TokenizerConfig(Section):
    """A sentencepiece model trained inside the run, or an existing one."""

    type: Literal["unigram", "bpe", "word", "char"] = "unigram"
    """Kind of subword model."""
    size: Positive = 8000
    """Vocabulary size, special tokens included; small corpora may give fewer pieces."""
    shared: bool = True
    """One vocabulary for source and target, or one for each."""
    model: str | None = None
    """Path of an existing sentencepiece model used instead of training one."""
    special: tuple[str, ...] = ()
    """Text that is always one token, such as turn separators."""
    coverage: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of characters that get a piece of their own; the rest become unknown."""
    sampling: Share = 0.0
    """Subword sampling while training: unigram smoothing or BPE dropout; 0 is off."""


class AttentionConfig(Section):
    """One mechanism and its options; which options exist is the mechanism's own affair."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "scaled-dot"

    def options(self) -> dict[str, Any]:
        """The options given beside the name."""
        return dict(self.__pydantic_extra__ or {})


class Roles(Section):
    """The mechanism of each place in the model."""

    encoder: AttentionConfig = AttentionConfig()
    decoder: AttentionConfig = AttentionConfig()
    cross: AttentionConfig = AttentionConfig()


class Layers(Section):
    """Depth of each stack."""

    encoder: Count = 3
    decoder: Count = 3


class ModelConfig(Section):
    """Architecture and sizes."""

    type: Literal["transformer"] = "transformer"
    """Family of model."""
    shape: Literal["encoder-decoder", "decoder", "encoder"] = "encoder-decoder"
    """encoder-decoder for pairs, decoder for language models, encoder for masked modelling."""
    width: Positive = 256
    """Width of embeddings and of the residual stream."""
    layers: Layers = Layers()
    """Blocks in each stack; a single number means both."""
    heads: Positive = 4
    """Attention heads; must divide width."""
    ff: Positive = 1024
    """Width inside the feed-forward part."""
    dropout: Probability = 0.1
    """Dropout on embeddings, on what each sublayer adds, and inside the feed-forward part."""
    norm: Literal["pre", "post"] = "pre"
    """Normalisation before each sublayer (and once at the end), or after each residual sum."""
    positions: Literal["sinusoidal", "learned", "rope", "alibi", "relative", "none"] = "sinusoidal"
    """How order enters: added to embeddings (sinusoidal, learned), rotated into q and k (rope), or
    added to the scores of self-attention (alibi, relative)."""
    activation: Literal["relu", "gelu", "silu", "swiglu", "geglu"] = "relu"
    """Feed-forward non-linearity; swiglu and geglu are gated (three matrices)."""
    tie: Literal["all", "decoder", "none"] = "all"
    """all: source, target and output embeddings are one; decoder: target and output; none."""
    bias: bool = True
    """Biases in attention projections."""
    attention: Roles = Roles()
    """A word for every place, or {encoder, decoder, cross}, each a word or {name, options}."""


class TrainConfig(Section):
    """Optimisation."""

    steps: Positive = 1000
    """Optimiser updates."""
    batch_tokens: Positive = 4096
    """Rows x longest side of a batch, padding included, at most."""
    batch_scores: Count = 2**22
    """Rows x square of the longest side of a batch, at most: the scores of one head, where a
    mechanism's time is quadratic (T*S); 0 is off."""
    accumulate: Positive = 1
    """Batches summed into one update; the loss is divided once by all their real target tokens."""
    lr: Annotated[float, Field(gt=0)] = 1e-3
    """Peak learning rate."""
    schedule: Literal["inverse-sqrt", "noam", "cosine", "linear", "constant"] = "inverse-sqrt"
    """Shape after linear warm-up w.  noam: lr is the factor of width^-0.5 min(s^-0.5, s w^-1.5)."""
    warmup: Count = 1000
    """Updates of linear warm-up."""
    min_lr: Annotated[float, Field(ge=0)] = 0.0
    """Floor of the cosine and linear schedules."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW decay, on matrices only."""
    betas: tuple[Probability, Probability] = (0.9, 0.98)
    """AdamW averages."""
    eps: Annotated[float, Field(gt=0)] = 1e-9
    """AdamW epsilon."""
    clip: Annotated[float, Field(ge=0)] = 1.0
    """Largest gradient norm; 0 is off."""
    label_smoothing: Probability = 0.1
    """Probability mass spread over the whole vocabulary."""
    loss: Literal["cross-entropy"] = "cross-entropy"
    """Training loss; logged loss and perplexity are always plain cross-entropy."""
    average: Count = 1
    """Average the weights of the last N validations' checkpoints; 0 or 1 is off."""
    ema: Probability = 0.0
    """Decay of an exponential moving average of the weights; 0 is off.  Excludes average."""
    valid_every: Count = 500
    """Updates between validations; 0 only at the end."""
    save_every: Count = 0
    """Updates between checkpoints; 0 is valid_every."""
    log_every: Positive = 50
    """Updates between lines of the loss log."""
    monitor: Literal["loss", "bleu", "chrf", "ter", "rouge1", "rouge2", "rougeL", "rougeLsum",
                     "exact-match", "accuracy"] = "loss"  # fmt: skip
    """What validation measures for early stopping and for the choice of the best checkpoint."""
    choose: Literal["last", "best"] = "last"
    """Which weights become model.safetensors: the last (averaged) ones or the best by monitor."""
    patience: Count = 0
    """Stop after N validations without improvement; 0 is off."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic of training; auto measures a few steps and keeps the faster of fp32 and bf16."""
    compile: bool = False
    """Compile the model with torch.compile."""
    seeds: Annotated[tuple[Count, ...], Field(min_length=1)] = (1,)
    """One training for each seed."""
    objective: Literal["seq2seq", "causal", "masked", "span-corruption"] = "seq2seq"
    """What is predicted; language modelling is causal."""
    init: str | None = None
    """A run or recipe whose weights start this one."""
    tensorboard: bool = False
    """Write TensorBoard events into the run directory (extra: tensorboard)."""


class SearchConfig(Section):
    """Decoding."""

    method: Literal["greedy", "beam", "sample"] = "beam"
    """How the output is searched."""
    beam: Positive = 5
    """Hypotheses kept."""
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = 1.0
    """Score = log-probability / length ** length_penalty; 0 is off."""
    max_length: Positive = 100
    """Longest output in tokens, the end token included."""
    min_length: Count = 0
    """Shortest output in tokens, before the end token."""
    no_repeat_ngram: Count = 0
    """Forbid repeating any n-gram of this order; 0 is off."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Sampling temperature."""
    top_k: Count = 0
    """Sample among the k likeliest; 0 is off."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Sample among the smallest set with this mass."""
    n_best: Positive = 1
    """Hypotheses returned for each input."""
    seed: Count = 1
    """Sampling seed; each line draws from a generator of (seed, line number)."""
    batch_tokens: Positive = 16384
    """Rows x beams x longest source of a decoding batch, at most."""


Method = Literal["entropy", "entropy-free", "mean", "mean-whole", "max", "weighted", "concat",
                 "window", "cad", "best", "retrieval", "none"]  # fmt: skip


class ContextsConfig(Section):
    """How questions are asked with many passages (task question-answering)."""

    counts: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1, 2, 4, 8, 16, 32)
    """Passages that each question is asked with; 1 is the right one alone."""
    methods: Annotated[tuple[Method, ...], Field(min_length=1)] = ("entropy", "mean", "concat",
                                                                   "none")  # fmt: skip
    """How they are read, by the words of `attnkit nbce`; entropy-free is entropy without eta,
    mean-whole is mean without top_p.  The first is what the others are compared with."""
    beta: Annotated[float, Field(ge=-1)] = 0.25
    """How much the distribution without context is divided out, by pools."""
    eta: Annotated[float, Field(ge=0)] = 0.1
    """Entropy that the context of the step before is let off, by pool entropy."""
    top_p: Share = 0.95
    """Mass of the likeliest tokens that pools keep of every context."""
    alpha: Annotated[float, Field(ge=0)] = 0.5
    """How much cad contrasts contexts with none."""
    limit: Count = 0
    """Most tokens of the one row of concat and cad; 0 is data.max_length, as in training, and of a
    Hugging Face model what it can read."""
    rows: Count = 0
    """Ask only the first N questions of a split; 0 asks all."""
    seed: Count = 1
    """Of the place of the right passage, and of the choice of others."""


Metric = Literal["bleu", "chrf", "ter", "rouge", "rouge1", "rouge2", "rougeL", "rougeLsum",
                 "bleu1", "bleu4", "exact-match", "answer-match", "answer-f1", "context-found",
                 "accuracy", "perplexity"]  # fmt: skip
LOWER_IS_BETTER = frozenset({"ter", "perplexity", "word-perplexity"})
"""Metrics of which less is better."""


class EvalConfig(Section):
    """Scoring."""

    metrics: Annotated[tuple[Metric, ...], Field(min_length=1)] = ("bleu",)
    """What is reported; rouge stands for rouge1, rouge2, rougeL and rougeLsum."""
    splits: Annotated[tuple[str, ...], Field(min_length=1)] = ("test",)
    """Which splits are decoded."""
    tokenize: Literal["13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none", "flores101",
                      "flores200", "spBLEU-1K"] = "13a"  # fmt: skip
    """sacrebleu's tokeniser of BLEU; the last three need a sentencepiece model on disk."""
    lowercase: bool = False
    """Score BLEU and chrF without case; TER never sees case, exact-match always does."""
    sentences: Literal["newline", "punctuation"] = "newline"
    """Where ROUGE-Lsum cuts: at line ends as rouge-score, or also after . ! ? and a space."""
    bootstrap: Count = 1000
    """Resamples of the paired bootstrap test; 0 is off."""


class Recipe(Section):
    """One fully resolved experiment: a single variant with all defaults filled."""

    task: Task
    data: DataConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    search: SearchConfig = SearchConfig()
    contexts: ContextsConfig = ContextsConfig()
    eval: EvalConfig = EvalConfig()
