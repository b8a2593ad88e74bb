"""The sections of a recipe that may change after training: a run is scored again, not trained."""

from typing import Annotated, Literal

from pydantic import Field

from attnkit.recipe.metrics import BleuTokenizer, Metric, TextWords
from attnkit.recipe.values import Count, OnlyWith, Positive, Section, Share, Unique

_SAMPLE = OnlyWith("search.method", "sample")


class SearchConfig(Section):
    """Decoding."""

    method: Literal["greedy", "beam", "sample"] = "beam"
    """Search method."""
    beam: Positive = 5
    """Beam size."""
    length_penalty: Annotated[float, Field(ge=-10, le=10)] = 1.0
    """Hypotheses are ranked by log-probability / length ** length_penalty; 0 is off."""
    max_length: Positive = 100
    """Maximum number of output tokens, including the end token."""
    min_length: Count = 0
    """Minimum number of output tokens before the end token."""
    no_repeat_ngram: Count = 0
    """Order of the n-grams that may not repeat; 0 is off."""
    temperature: Annotated[float, Field(gt=0), _SAMPLE] = 1.0
    """Sampling temperature."""
    top_k: Annotated[Count, _SAMPLE] = 0
    """Number of most probable tokens to sample from; 0 is off."""
    top_p: Annotated[float, Field(gt=0, le=1), _SAMPLE] = 1.0
    """Nucleus sampling: probability mass of the most probable tokens to sample from; 1 is off."""
    n_best: Positive = 1
    """Number of hypotheses returned for each input."""
    seed: Count = 1
    """Random seed of sampling; each line has its own generator, seeded with its number too."""
    batch_tokens: Positive = 16384
    """Maximum size of a decoding batch: rows x beams x longest source in tokens."""

    @property
    def width(self) -> int:
        """The most hypotheses that it finds for an input."""
        return {"greedy": 1, "beam": self.beam, "sample": self.n_best}[self.method]

    @property
    def misfit(self) -> tuple[str, str]:
        """A key that does not go with the others, and why; two empty texts where all do."""
        if self.n_best > self.width:
            most = f"{self.method} search finds {self.width} at most; use a wider beam, or sample"
            return "n_best", most
        if self.min_length >= self.max_length:
            least = f"must be below max_length {self.max_length}, which counts the end token"
            return "min_length", least
        return "", ""


Beta = Annotated[float, Field(ge=-1)]
Eta = Annotated[float, Field(ge=0)]
Pool = Literal["entropy", "entropy-free", "mean", "mean-whole", "max", "weighted"]
Method = Literal[Pool, "concat", "window", "cad", "best", "retrieval", "none"]


class ContextsConfig(Section):
    """Question answering with several passages (task question-answering)."""

    counts: Unique[Annotated[tuple[Positive, ...], Field(min_length=1)]] = (1, 2, 4, 8, 16, 32)
    """Numbers of passages given with each question; 1 gives only the passage that answers it."""
    methods: Unique[Annotated[tuple[Method, ...], Field(min_length=1)]] = ("entropy", "mean", "concat", "none")
    """Methods of combining the passages, as in `attnkit nbce`; entropy-free is entropy without eta,
    mean-whole is mean without top_p.  The others are compared with the first."""
    beta: Beta | Annotated[tuple[Beta, ...], Field(min_length=1)] = 0.25
    """Pools: weight with which the distribution without context is subtracted.  Of this and the
    next two a list asks with each value, the methods that do not depend on it once."""
    eta: Eta | Annotated[tuple[Eta, ...], Field(min_length=1)] = 0.1
    """Entropy bonus, in nats, for the previously selected context (pool entropy)."""
    top_p: Share | Annotated[tuple[Share, ...], Field(min_length=1)] = 0.95
    """Pools: probability mass of the most probable tokens kept from each context."""
    alpha: Annotated[float, Field(ge=0)] = 0.5
    """Context-aware decoding (cad): strength of the contrast with decoding without context."""
    limit: Count = 0
    """Maximum number of tokens of the concatenated passages (concat, cad); 0 is data.max_length, or
    the limit of the model for one from Hugging Face."""
    rows: Count = 0
    """Number of questions of a split to ask, from the first; 0 asks all."""
    seed: Count = 1
    """Random seed of the choice of passages and of their order."""


class EvalConfig(Section):
    """Evaluation."""

    metrics: Unique[Annotated[tuple[Metric, ...], Field(min_length=1)]] = ("bleu",)
    """Metrics to report (definitions: docs/metrics.md); rouge stands for rouge1, rouge2, rougeL and rougeLsum."""
    splits: Unique[Annotated[tuple[str, ...], Field(min_length=1)]] = ("test",)
    """Splits to evaluate on."""
    lengths: Annotated[Unique[tuple[Positive, ...]], OnlyWith("task", "language-modeling", "recall", "tagging")] = ()
    """Lengths at which a split is scored.  Language modelling: all of it, in windows of this many
    tokens (empty: data.max_length).  Recall: rows of these lengths (empty: those of training)."""
    tokenize: Unique[BleuTokenizer | Annotated[tuple[BleuTokenizer, ...], Field(min_length=1)]] = "13a"
    """sacrebleu tokenizer: one, or a list for BLEU with each of them.  The first also cuts the words of the other
    metrics that count words (docs/metrics.md).  Where a recipe is silent, data.target zh, ja or ko means zh, ja-mecab
    or ko-mecab, and a corpus that is split into words already means none."""
    words: TextWords = "classic"
    """How ROUGE, TER and the metrics of answers cut words, as these do not follow `tokenize`:
    classic, as published for English, or unicode, for all scripts (docs/metrics.md)."""
    lowercase: bool = False
    """Whether BLEU, chrF, distinct-n and seq-rep-4 ignore case.  TER, METEOR and CIDEr always do,
    exact-match never does."""
    vectors: str | None = None
    """File of word vectors for the embedding metrics, in the text format of word2vec, GloVe and
    fastText, optionally compressed (.gz, .xz); relative to the recipe file."""
    sentences: Literal["newline", "punctuation"] = "newline"
    """Where ROUGE-Lsum splits sentences: at line ends, as rouge-score does, or also after . ! ?
    and a space, and after their full-width forms."""
    bootstrap: Count = 1000
    """Number of resamples of the paired bootstrap test; 0 is off."""
    margin: Annotated[float, Field(ge=0)] = 1.0
    """Points of a score within which systems are level: the whole 95 % interval of their difference
    must lie there (docs/comparing.md)."""
    perplexity_margin: Annotated[float, Field(ge=0)] = 3.0
    """The same for perplexities, in percent."""

    @property
    def tokenizers(self) -> tuple[str, ...]:
        """The tokenizers of BLEU; the first is that of the other metrics of words."""
        return (self.tokenize,) if isinstance(self.tokenize, str) else self.tokenize
