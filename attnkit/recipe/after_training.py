"""Sections of a recipe that may change after training: a run is scored again, not trained again."""

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
        """Maximum number of hypotheses for an input."""
        return {"greedy": 1, "beam": self.beam, "sample": self.n_best}[self.method]

    @property
    def misfit(self) -> tuple[str, str]:
        """A key that contradicts another key, and the reason; two empty strings if there is none."""
        if self.n_best > self.width:
            return "n_best", f"must be at most {self.width} for {self.method} search; use a wider beam, or sample"
        if self.min_length >= self.max_length:
            return "min_length", f"must be below max_length {self.max_length}, which counts the end token"
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
    """Pools: weight of the subtracted distribution without context.  beta, eta and top_p may be lists; the methods
    that depend on them then run once for each value."""
    eta: Eta | Annotated[tuple[Eta, ...], Field(min_length=1)] = 0.1
    """Entropy bonus, in nats, for the previously selected context (pool entropy)."""
    top_p: Share | Annotated[tuple[Share, ...], Field(min_length=1)] = 0.95
    """Pools: probability mass of the most probable tokens kept from each context."""
    alpha: Annotated[float, Field(ge=0)] = 0.5
    """Context-aware decoding (cad): strength of the contrast with decoding without context."""
    limit: Count = 0
    """Maximum number of tokens of the concatenated passages (concat, cad); 0 is data.max_length, or the limit of a
    Hugging Face model."""
    rows: Count = 0
    """Number of questions of a split, from the first; 0 uses all."""
    seed: Count = 1
    """Random seed for the choice and the order of the passages."""


class EvalConfig(Section):
    """Evaluation."""

    metrics: Unique[Annotated[tuple[Metric, ...], Field(min_length=1)]] = ("bleu",)
    """Metrics to report (definitions: docs/metrics.md); rouge stands for rouge1, rouge2, rougeL and rougeLsum."""
    splits: Unique[Annotated[tuple[str, ...], Field(min_length=1)]] = ("test",)
    """Splits to evaluate on."""
    lengths: Annotated[Unique[tuple[Positive, ...]], OnlyWith("task", "language-modeling", "recall", "tagging")] = ()
    """Lengths at which a split is scored.  Language modeling: the whole split, in windows of these lengths (empty:
    data.max_length).  Recall and tagging: rows of these lengths (empty: the lengths of the corpus)."""
    tokenize: Unique[BleuTokenizer | Annotated[tuple[BleuTokenizer, ...], Field(min_length=1)]] = "13a"
    """sacrebleu tokenizer, or a list for a BLEU score with each.  The first one also splits words for the other
    metrics that count words (docs/metrics.md).  If absent: zh, ja-mecab or ko-mecab for data.target zh, ja or ko, and
    none for a corpus that is already split into words."""
    words: TextWords = "classic"
    """Word splitting of ROUGE, TER and the metrics of answers, which do not follow `tokenize`: classic, as published
    for English, or unicode, for all scripts (docs/metrics.md)."""
    lowercase: bool = False
    """Whether BLEU, chrF, distinct-n and seq-rep-4 ignore case.  TER, METEOR and CIDEr always do,
    exact-match never does."""
    vectors: str | None = None
    """File of word vectors for the embedding metrics, in the text format of word2vec, GloVe and
    fastText, optionally compressed (.gz, .xz); relative to the recipe file."""
    sentences: Literal["newline", "punctuation"] = "newline"
    """Sentence splitting of ROUGE-Lsum: at line ends, as in rouge-score, or also after . ! ? and a space, and after
    their full-width forms."""
    bootstrap: Count = 1000
    """Number of resamples of the paired bootstrap test; 0 is off."""
    margin: Annotated[float, Field(ge=0)] = 1.0
    """Equivalence margin in points of a score: systems are level if the whole 95 % interval of their difference lies
    within it (docs/comparing.md)."""
    perplexity_margin: Annotated[float, Field(ge=0)] = 3.0
    """Equivalence margin of perplexities, in percent."""

    @property
    def tokenizers(self) -> tuple[str, ...]:
        """Tokenizers of BLEU; the first one is also used by other metrics that count words."""
        return (self.tokenize,) if isinstance(self.tokenize, str) else self.tokenize
