"""Schema of a recipe: every key with its type, range, default and meaning.

A recipe is complete and runs no code.  The docstrings below are the descriptions of the JSON Schema that editors show;
`attnkit.recipe.reading` turns pydantic's errors into one line with a position.  `OnlyWith` in the type of a key names
the model, loss, task or method that reads it.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from attnkit.recipe import mechanism_registry
from attnkit.recipe.after_training import ContextsConfig, EvalConfig, SearchConfig
from attnkit.recipe.metrics import Monitor
from attnkit.recipe.values import Count, FileName, OnlyWith, Piece, Positive, Probability, Section, Share, Unique

__all__ = ["AttentionConfig", "ContextsConfig", "DataConfig", "EvalConfig", "Layers", "ModelConfig"]
__all__ += ["NaiveBayesConfig", "Recipe", "Roles", "SearchConfig", "TailrConfig", "Task"]
__all__ += ["TokenizerConfig", "TrainConfig", "places_of"]

Task = Literal[
    "translation",
    "summarization",
    "dialogue",
    "language-modeling",
    "question-answering",
    "classification",
    "recall",
    "tagging",
]


_QUESTIONS = OnlyWith("task", "question-answering")


class SplitSizes(Section):
    """Number of rows of the training data that are set aside; all rows of one source stay together."""

    valid: Count = 0
    """Validation rows."""
    test: Count = 0
    """Test rows."""


class DataConfig(Section):
    """Corpus or files, and the rows that are used."""

    corpus: str | None = None
    """Name of a corpus (`attnkit recipe list --corpora`), or null with train, valid, test."""
    source: str | None = None
    """Source language, as the corpus names it, such as en.  For your own files: name of a field or column, a path to a
    field (translation.en), or the number of a column, from 1, in CSV and TSV without a header; if there is no such
    field, the field `source` is read."""
    target: str | None = None
    """Target language or field, like source; if there is no such field, the field `target` is read, or `text` for
    language modeling."""
    train: FileName | tuple[FileName, ...] | None = None
    """Training data: one file (JSONL, JSON, CSV, TSV, Parquet, or plain text) or two aligned files
    [source, target], all but Parquet optionally compressed (.gz, .xz); or hf:NAME, a data set of
    Hugging Face.  Paths are relative to the recipe, on the command line to the current folder."""
    valid: FileName | tuple[FileName, ...] | None = None
    """Validation data, given like train."""
    test: FileName | tuple[FileName, ...] | None = None
    """Test data, given like train.  Without it and eval.splits the validation data is scored."""
    split: SplitSizes = SplitSizes()
    """Rows of data.train that become validation and test rows, if there are no such files."""
    format: Literal["auto", "lines", "jsonl", "csv", "tsv", "parquet", "plain"] = "auto"
    """Format of the files.  auto decides by their names: two files are lines; .jsonl, .ndjson and .json (which may
    contain a single array) are jsonl; .csv, .tsv and .parquet are csv, tsv and parquet (each also before .gz or .xz);
    anything else is plain."""
    errors: Literal["strict", "replace"] = "strict"
    """Malformed UTF-8: strict stops with an error that names file, line and byte; replace replaces and counts it."""
    max_length: Positive = 256
    """Maximum number of tokens of a source or target; mechanisms are built for this length."""
    too_long: Literal["drop", "truncate"] = "drop"
    """Training rows that are too long are dropped or truncated, and counted.  Test rows are always truncated."""
    rows: Count = 0
    """Number of training rows to use, from the first; 0 uses all."""
    valid_rows: Count = 0
    """Number of validation rows to use, from the first; 0 uses all."""
    normalize: Literal["nfc", "nfkc", "none"] = "nfc"
    """Normal form of Unicode in which all text is read, in training, generation and scoring."""
    size: Positive | None = None
    """Generated corpora only: number of training rows to generate."""
    seed: Count = 1
    """Seed of the generator of generated corpora, and of data.split."""
    labels: tuple[str, ...] = ()
    """Classification: the possible labels of a target, in order; of two labels, the last is the
    positive class.  Corpora define their own labels."""
    gold: Annotated[Share, _QUESTIONS] = 0.6
    """Question answering: share of training questions paired with the passage that answers them."""
    other: Annotated[Share, _QUESTIONS] = 0.25
    """Question answering: share paired with a passage that does not answer them; the rest have no passage."""

    def split_off(self, split: str) -> int:
        """Return the number of training rows set aside for a split; 0 if there are none."""
        return int(getattr(self.split, split, 0))

    _later: ClassVar = ("split",)


class TokenizerConfig(Section):
    """The sentencepiece model: trained as part of the run, or an existing one."""

    type: Literal["unigram", "bpe", "word", "char"] = "unigram"
    """Type of subword model."""
    size: Positive = 8000
    """Vocabulary size, including special tokens; a small corpus may yield fewer pieces."""
    shared: bool = True
    """Whether source and target share one vocabulary."""
    model: str | None = None
    """Existing sentencepiece model to use instead of training one, relative to the recipe file."""
    special: Unique[tuple[Piece, ...]] = ()
    """Strings that are always one token, such as turn separators; with type word between spaces."""
    coverage: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the characters of the training text that the vocabulary covers."""
    sampling: Share = 0.0
    """Subword sampling during training: unigram smoothing or BPE dropout; 0 is off."""


class AttentionConfig(Section):
    """An attention mechanism, optionally with options; `attnkit mechanisms NAME` lists them."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str = "scaled-dot"
    """Name of the mechanism (`attnkit mechanisms` lists them)."""

    @model_validator(mode="before")
    @classmethod
    def _typed(cls, given: Any) -> Any:
        """Convert the options to the types that the mechanism declares."""
        if not isinstance(given, Mapping) or not given:
            return given
        word = given.get("name", cls.model_fields["name"].default)
        options = {name: value for name, value in given.items() if name != "name"}
        if not isinstance(word, str):
            return {"name": word}
        return {"name": word, **mechanism_registry.checked_options(word, options)}

    def options(self) -> dict[str, Any]:
        """Return the options that are set, by name."""
        return dict(self.__pydantic_extra__ or {})


class Roles(Section):
    """The attention mechanism of each place in the model."""

    encoder: AttentionConfig = AttentionConfig()
    """Encoder self-attention."""
    decoder: AttentionConfig = AttentionConfig()
    """Decoder self-attention."""
    cross: AttentionConfig = AttentionConfig()
    """Cross-attention of the decoder to the encoder."""


class Layers(Section):
    """Number of layers of each stack."""

    encoder: Count = 3
    """Encoder layers."""
    decoder: Count = 3
    """Decoder layers."""


_NAIVE_BAYES = OnlyWith("model.type", "naive-bayes")


class NaiveBayesConfig(Section):
    """Prediction of the next token from its probabilities p(x|a) given each preceding token a alone."""

    estimate: Annotated[Literal["counts", "skip-gram"], _NAIVE_BAYES] = "counts"
    """Estimate of p(x|a): from the number of times that x occurs anywhere after a in a block, or from vectors of width
    model.width, p(x|a) ~ exp(v(a) w(x)), fitted to these numbers by train.steps updates."""
    smoothing: Annotated[float, Field(gt=0), _NAIVE_BAYES] = 100.0
    """Number of pseudo-counts added to the counts after each token a, distributed like all tokens."""
    pool: Annotated[Literal["mean", "weighted", "max", "entropy"], _NAIVE_BAYES] = "mean"
    """Pooling of log p(x|a) over all preceding tokens: their mean, a weighted mean, the maximum for each x, or p(x|a)
    of the token a whose distribution has the minimum entropy."""
    weights: Annotated[Literal["entropy", "recency"], _NAIVE_BAYES, OnlyWith("model.naive_bayes.pool", "weighted")] = (
        "entropy"
    )
    """Weights of the weighted mean: exp(-entropy) of the distribution, or decay ** distance."""
    decay: Annotated[float, Field(gt=0, lt=1), _NAIVE_BAYES, OnlyWith("model.naive_bayes.weights", "recency")] = 0.9
    """Factor of the weights by recency for each token of distance."""
    beta: Annotated[Literal["exact"] | Annotated[float, Field(ge=-1)], _NAIVE_BAYES] = "exact"
    """beta of (1 + beta) pool - beta log p(x): -1 is p(x) alone, 0 the pool alone; exact is the number of preceding
    tokens minus 1, which with the mean is naive Bayes itself."""
    normalize: Annotated[bool, _NAIVE_BAYES, OnlyWith("model.naive_bayes.estimate", "skip-gram")] = True
    """Estimate skip-gram: whether p(x|a) is divided by its sum; only the maximum depends on it."""
    residual: Literal["none", "shared", "own"] = "none"
    """Whether the last token a counts once more: shared takes p(x|a) from the same table or vectors, own from
    neighboring tokens alone (naive-bayes) or from separate vectors (naive-bayes-attention)."""


_TRANSFORMER = OnlyWith("model.type", "transformer")


class ModelConfig(Section):
    """Architecture of the model."""

    type: Literal["transformer", "recurrent", "convolutional", "n-gram", "naive-bayes", "naive-bayes-attention"] = (
        "transformer"
    )
    """Model family.  recurrent and convolutional are encoder-decoders with cross-attention only: bidirectional
    recurrent layers with attention after the last decoder layer, and ConvS2S.  The others are language models: n-gram
    and naive-bayes count the training text once; naive-bayes-attention is naive Bayes with trained vectors and
    attention as its weights (layers of attention without anything between them)."""
    shape: Literal["encoder-decoder", "decoder", "encoder"] = "encoder-decoder"
    """encoder-decoder for pairs of texts; decoder for single texts, or for pairs read as one; encoder for the
    objective masked, and for classification by the mean of its states.  The other shapes classify by the most probable
    label, as a text."""
    cell: Annotated[Literal["lstm", "gru", "sru"], OnlyWith("model.type", "recurrent")] = "lstm"
    """Recurrent models: the cell."""
    input_feeding: Annotated[bool, OnlyWith("model.type", "recurrent")] = False
    """Recurrent models: whether the decoder also reads the attentional output of the previous token (Luong et al.
    2015, section 3.3); training is then sequential over tokens."""
    kernel: Annotated[Positive, OnlyWith("model.type", "convolutional")] = 3
    """Convolutional models: kernel size in tokens."""
    order: Annotated[int, Field(ge=1, le=3), OnlyWith("model.type", "n-gram")] = 3
    """n-gram models: 1, 2 or 3; interpolated Kneser-Ney."""
    naive_bayes: Annotated[NaiveBayesConfig, OnlyWith("model.type", "naive-bayes", "naive-bayes-attention")] = (
        NaiveBayesConfig()
    )
    """Options of type naive-bayes; type naive-bayes-attention uses only residual."""
    width: Positive = 256
    """Width of the embeddings and the hidden states (of transformers: the residual stream)."""
    layers: Layers = Layers()
    """Layers of each stack; a single number sets both."""
    heads: Positive = 4
    """Number of attention heads; must divide width.  Recurrent and convolutional models: 1 if absent."""
    ff: Annotated[Count, _TRANSFORMER] = 1024
    """Transformers: inner width of the feed-forward sublayer; 0 omits the sublayer."""
    dropout: Probability = 0.1
    """Dropout on embeddings and sublayer outputs; in recurrent and convolutional models on embeddings, between layers
    and on the output."""
    activation_dropout: Annotated[Probability | None, _TRANSFORMER] = None
    """Transformers: dropout inside the feed-forward sublayer, after the activation; null uses dropout."""
    norm: Annotated[Literal["pre", "post", "rms"], _TRANSFORMER] = "pre"
    """Transformers: layer normalization before each sublayer and after the last layer (pre), or after each residual
    sum (post); rms is pre with RMSNorm."""
    positions: Literal["sinusoidal", "learned", "rope", "alibi", "relative", "none"] = "sinusoidal"
    """Position encoding: added to the embeddings (sinusoidal, learned), by rotation of queries and keys (rope), or
    added to the scores of self-attention (alibi, relative).  Recurrent models have none, convolutional ones learned
    (if absent) or none."""
    activation: Annotated[Literal["relu", "gelu", "silu", "swiglu", "geglu"], _TRANSFORMER] = "relu"
    """Transformers: activation of the feed-forward sublayer; swiglu and geglu are gated."""
    tie: Literal["all", "decoder", "none"] = "all"
    """Weight tying: of source, target and output embeddings (all), of target and output embeddings
    (decoder), or none."""
    bias: bool = True
    """Whether the attention projections have biases."""
    init_std: Annotated[float | None, Field(gt=0), _TRANSFORMER] = None
    """Transformers: standard deviation of the initial matrices and tables, as in GPT-2 (0.02), divided by sqrt(2
    layers) at the end of each sublayer; token vectors are then not multiplied by sqrt(width).  null is Glorot's
    uniform initialization, with token vectors of variance 1."""
    attention: Roles = Roles()
    """One mechanism for all places, or {encoder: ..., decoder: ..., cross: ...}; each is a name or
    {name: ..., option: value}.  Recurrent and convolutional models have cross only."""

    _later: ClassVar = ("input_feeding", "init_std")

    @property
    def places(self) -> tuple[str, ...]:
        """Attention roles of the model."""
        return places_of(self.type, self.shape)

    @property
    def count_based(self) -> bool:
        """Whether the model is made by counting the training text, not by the training loop."""
        return self.type in COUNTED

    @property
    def cross_layers(self) -> int:
        """Number of layers with cross-attention."""
        if "cross" not in self.places:
            return 0
        return 1 if self.type == "recurrent" else self.layers.decoder


COUNTED = ("n-gram", "naive-bayes")
"""Model types that are made by counting."""


def places_of(type_: str, shape: str) -> tuple[str, ...]:
    """Return the attention roles of a model of this type and shape."""
    if type_ in COUNTED:
        return ()
    if type_ in ("recurrent", "convolutional"):
        return ("cross",)
    return tuple(Roles.model_fields) if shape == "encoder-decoder" else (shape,)


class TailrConfig(Section):
    """The loss TaiLr (Ji et al. 2023), which weights a token of probability p by
    p / (gamma + (1 - gamma) p), so that text the model finds unlikely counts less."""

    gamma: Share = 1e-7
    """0 is cross-entropy, 1 weights each token by its probability; near 0 to train from scratch."""
    floor: Share = 0.2
    """Minimum weight of a token."""
    anneal: Count = 0
    """Number of updates in which gamma grows linearly from 0; 0 is off."""


class TrainConfig(Section):
    """Training."""

    steps: Positive = 1000
    """Number of optimizer updates."""
    batch_tokens: Positive = 4096
    """Maximum size of a batch: rows x longest side in tokens, including padding."""
    batch_scores: Count = 2**22
    """Maximum number of attention scores of a batch for one head, rows x longest side squared; for mechanisms of
    quadratic time (T*S).  0 is off."""
    accumulate: Positive = 1
    """Number of batches per update (gradient accumulation); the loss is averaged over their target tokens."""
    lr: Annotated[float, Field(gt=0)] = 1e-3
    """Peak learning rate; for noam the factor of the schedule."""
    schedule: Literal["inverse-sqrt", "noam", "cosine", "linear", "constant"] = "inverse-sqrt"
    """Learning rate schedule after a linear warm-up.  noam is lr * width^-0.5 * min(step^-0.5, step * warmup^-1.5)."""
    warmup: Count = 1000
    """Number of warm-up updates."""
    min_lr: Annotated[float, Field(ge=0), OnlyWith("train.schedule", "cosine", "linear")] = 0.0
    """Minimum learning rate of the cosine and linear schedules."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """Weight decay of AdamW; applied to matrices only."""
    betas: tuple[Probability, Probability] = (0.9, 0.98)
    """Decay rates of the moment estimates of AdamW."""
    eps: Annotated[float, Field(gt=0)] = 1e-9
    """Epsilon of AdamW."""
    clip: Annotated[float, Field(ge=0)] = 1.0
    """Maximum gradient norm; 0 is off."""
    label_smoothing: Probability = 0.1
    """Probability mass spread over the whole vocabulary."""
    loss: Literal["cross-entropy", "tailr"] = "cross-entropy"
    """Training loss; the logged loss and perplexity are always plain cross-entropy."""
    tailr: Annotated[TailrConfig, OnlyWith("train.loss", "tailr")] = TailrConfig()
    """Options of the TaiLr loss (`loss: tailr`)."""
    average: Count = 1
    """Number of the last checkpoints, one per validation, to average; 0 or 1 is off."""
    ema: Probability = 0.0
    """Decay of an exponential moving average of the weights; 0 is off.  Cannot be combined with average."""
    valid_every: Count = 500
    """Updates between validations; 0 validates only at the end."""
    save_every: Count = 0
    """Updates between checkpoints; 0 uses valid_every."""
    log_every: Positive = 50
    """Updates between entries of the training log."""
    monitor: Monitor = "loss"
    """Validation metric for early stopping and the best checkpoint; the loss breaks ties."""
    choose: Literal["last", "best"] = "last"
    """Weights that are saved as the model: the last (averaged, if set) or the best by monitor."""
    patience: Count = 0
    """Number of validations without improvement after which training stops; 0 is off."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Floating-point precision of training; auto times fp32 and bf16 and uses the faster one."""
    compile: bool = False
    """Whether to compile the model with torch.compile."""
    parallel: Literal["none", "ddp", "fsdp"] = "ddp"
    """Parallelism of several processes (--nproc, torchrun): ddp replicates the model, fsdp shards it."""
    seeds: Unique[Annotated[tuple[Count, ...], Field(min_length=1)]] = (1,)
    """Random seeds; each variant is trained once per seed."""
    objective: Literal["seq2seq", "causal", "masked", "span-corruption"] = "seq2seq"
    """Training objective: causal for language modeling, seq2seq for all other tasks.  masked trains an encoder on
    running text, like BERT: it predicts masked tokens (15 %, different ones in every epoch).  span-corruption
    pre-trains an encoder-decoder on running text, like T5: it restores spans of the text (15 % of its tokens, 3 at a
    time on average, different ones in every epoch)."""
    init: str | None = None
    """Trained weights to start from: a run, a folder with a run for each variant and seed, or a recipe whose runs are
    under --out, matched by variant and seed.  Their tokenizer replaces the tokenizer section; model and
    data.max_length must be the same as theirs."""
    log_to: tuple[Literal["tensorboard", "wandb", "trackio"], ...] = ()
    """Further destinations of the training log beside metrics.jsonl: tensorboard and wandb write to the run directory
    (wandb offline, unless WANDB_MODE says otherwise), trackio to its own folder.  Each needs the extra of its name,
    such as attnkit[wandb]."""


class Recipe(Section):
    """One variant of an experiment with the values of all keys."""

    task: Task
    """Task that the model is trained for."""
    data: DataConfig
    tokenizer: TokenizerConfig = TokenizerConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    search: SearchConfig = SearchConfig()
    contexts: Annotated[ContextsConfig, _QUESTIONS] = ContextsConfig()
    eval: EvalConfig = EvalConfig()

    @property
    def prompts(self) -> bool:
        """Whether the model continues a text: it is the decoder of a language model."""
        return self.task == "language-modeling" and self.model.shape == "decoder"

    @property
    def masks(self) -> bool:
        """Whether the model predicts masked tokens."""
        return self.train.objective == "masked"

    @property
    def writes(self) -> bool:
        """Whether the model generates text or selects labels."""
        return self.task != "tagging" and not self.masks

    @property
    def corrupts(self) -> bool:
        """Whether the model restores corrupted spans of a text."""
        return self.train.objective == "span-corruption"
