"""The metrics: each is declared here, once.

`eval.metrics`, `train.monitor`, tables and docs/metrics.md are made from these entries.  What
computes a metric is a function of its family, `attnkit/scoring/metrics/<family>.py`.
"""

import ast
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticKnownError

from attnkit.errors import UsageError

BleuTokenizer = Literal[
    "13a", "intl", "zh", "ja-mecab", "ko-mecab", "char", "none", "flores101", "flores200", "spBLEU-1K"
]
"""sacrebleu's tokenizers; the last three need a sentencepiece model on disk."""
TextWords = Literal["classic", "unicode"]
"""How metrics that have tokenizers of their own cut words (`eval.words`)."""


@dataclass(frozen=True)
class MetricFacts:
    """What is known of a metric before it is computed."""

    title: str
    """Name in tables."""
    family: str
    """Module of `attnkit.scoring.metrics` that computes it.  Of a model's probabilities: `model`
    (`attnkit.scoring.teacher_forced`) compares them with the reference, `source`
    (`attnkit.scoring.total_variation`) with the process that wrote the text."""
    meaning: str
    """Definition, for the reference page."""
    source: str
    """Paper, or the library that computes it."""
    range: str = "0 to 100"
    better: Literal["higher", "lower", "neither"] = "higher"
    reads: Literal["outputs", "contexts", "labels", "probabilities"] = "outputs"
    """Texts that a model wrote, the contexts or labels that it chose, or its probabilities of a
    reference."""
    needs: str = ""
    """What it needs besides attnkit and the references."""
    resampled: bool = True
    """Whether the score is a function of sums over sentences, which the paired bootstrap needs."""
    cut_by: Literal["tokenize", "words", ""] = ""
    """The key of `eval` that says how the words it counts are cut: `tokenize` (`Words`, by the
    first sacrebleu tokenizer), or `words` (its own two ways); empty where it counts none."""


_SACREBLEU = "sacrebleu (Post 2018)"
_PAPINENI = f"Papineni et al. 2002; {_SACREBLEU}"
_LIN = "Lin 2004; rouge-score with the Porter stemmer"
_LIU = "Liu et al. 2016"
_LI = "Li et al. 2016"
_SQUAD = "Rajpurkar et al. 2016 (SQuAD 1.1)"
_F = "of several references the best, F measure averaged over the lines"
_VECTORS = "word vectors (`eval.vectors`, `--vectors`)"
_COSINE = "-100 to 100"
_LABELS = "a classification recipe"

METRICS: dict[str, MetricFacts] = {
    "bleu": MetricFacts(
        "BLEU",
        "sacrebleu_scores",
        "geometric mean of the precisions of 1- to 4-grams, times the brevity penalty, over the whole corpus",
        _PAPINENI,
        cut_by="tokenize",
    ),
    "chrf": MetricFacts(
        "chrF",
        "sacrebleu_scores",
        "F measure of character 1- to 6-grams, recall weighted twice (chrF2)",
        f"Popovic 2015; {_SACREBLEU}",
    ),
    "ter": MetricFacts(
        "TER",
        "sacrebleu_scores",
        "edits (insertions, deletions, substitutions, shifts) per reference word",
        f"Snover et al. 2006; {_SACREBLEU}",
        "0 and up",
        "lower",
        cut_by="words",
    ),
    "rouge1": MetricFacts("ROUGE-1", "rouge", f"unigrams in common: {_F}", _LIN, cut_by="words"),
    "rouge2": MetricFacts("ROUGE-2", "rouge", f"bigrams in common: {_F}", _LIN, cut_by="words"),
    "rougeL": MetricFacts("ROUGE-L", "rouge", f"longest common subsequence: {_F}", _LIN, cut_by="words"),
    "rougeLsum": MetricFacts(
        "ROUGE-Lsum",
        "rouge",
        f"union of the longest common subsequences of sentences (`eval.sentences`): {_F}",
        _LIN,
        cut_by="words",
    ),
    "bleu1": MetricFacts("BLEU-1", "sacrebleu_scores", "BLEU with unigrams only", _PAPINENI, cut_by="tokenize"),
    "bleu4": MetricFacts(
        "BLEU-4",
        "sacrebleu_scores",
        "the same number as bleu; stands beside bleu1 in comparisons of dialogue",
        _PAPINENI,
        cut_by="tokenize",
    ),
    "meteor": MetricFacts(
        "METEOR",
        "meteor",
        "unigrams matched by form, Porter stem or WordNet synonym: F measure with recall weighted "
        "nine times, less a penalty for scattered matches; the best reference of each line, "
        "averaged over the lines; for English",
        "Lavie and Agarwal 2007; nltk",
        needs="WordNet (`python -m nltk.downloader wordnet`)",
        cut_by="tokenize",
    ),
    "cider": MetricFacts(
        "CIDEr-D",
        "cider",
        "similarity of the 1- to 4-grams, weighted by how few lines have them in their "
        "references; averaged over references and lines; words in lower case without punctuation. "
        "The value is 100 times that of coco-caption, as papers print it",
        "Vedantam et al. 2015",
        "0 to 1000",
        cut_by="tokenize",
    ),
    "embedding-average": MetricFacts(
        "Embedding Average",
        "embedding",
        "cosine between the mean word vectors of both texts",
        _LIU,
        _COSINE,
        needs=_VECTORS,
        cut_by="tokenize",
    ),
    "embedding-greedy": MetricFacts(
        "Greedy Matching",
        "embedding",
        "each word's highest cosine with a word of the other text, averaged over the words, and over both directions",
        f"Rus and Lintean 2012; {_LIU}",
        _COSINE,
        needs=_VECTORS,
        cut_by="tokenize",
    ),
    "embedding-extrema": MetricFacts(
        "Vector Extrema",
        "embedding",
        "cosine between the vectors that have, in each dimension, the value farthest from zero",
        f"Forgues et al. 2014; {_LIU}",
        _COSINE,
        needs=_VECTORS,
        cut_by="tokenize",
    ),
    "distinct-1": MetricFacts(
        "distinct-1",
        "diversity",
        "number of different words in all outputs, per 100 words",
        _LI,
        resampled=False,
        cut_by="tokenize",
    ),
    "distinct-2": MetricFacts(
        "distinct-2",
        "diversity",
        "number of different bigrams in all outputs, per 100 words",
        _LI,
        resampled=False,
        cut_by="tokenize",
    ),
    "seq-rep-4": MetricFacts(
        "seq-rep-4",
        "diversity",
        "repetition: share of the 4-grams of an output that occurred before in it, averaged over "
        "the outputs; 0 for outputs shorter than four words",
        "Welleck et al. 2020",
        better="lower",
        cut_by="tokenize",
    ),
    "length-ratio": MetricFacts(
        "length ratio",
        "sacrebleu_scores",
        "words of all outputs per 100 words of the references (of several the one nearest in "
        "length), the ratio that sacrebleu prints with BLEU",
        _SACREBLEU,
        "0 and up",
        "neither",
        cut_by="tokenize",
    ),
    "exact-match": MetricFacts(
        "exact match", "answers", "share of outputs that equal a reference, any white space alike", ""
    ),
    "answer-match": MetricFacts(
        "answer match",
        "answers",
        "share of answers that equal a reference; case, punctuation and articles do not count",
        _SQUAD,
        cut_by="words",
    ),
    "answer-f1": MetricFacts(
        "F1", "answers", "F measure of the words of an answer, normalised as in answer-match", _SQUAD, cut_by="words"
    ),
    "answer-contained": MetricFacts(
        "answer contained",
        "answers",
        "share of answers that contain a reference as a run of whole words, normalised as in "
        "answer-match: fair to models that answer in sentences, but a longer answer contains more",
        "Mallen et al. 2023",
        cut_by="words",
    ),
    "context-found": MetricFacts(
        "context found",
        "answers",
        "share of questions for which the chosen context contains an answer",
        "",
        reads="contexts",
        needs="a question-answering recipe",
        cut_by="words",
    ),
    "label-accuracy": MetricFacts(
        "accuracy", "labels", "share of inputs that get their label", "", reads="labels", needs=_LABELS
    ),
    "matthews": MetricFacts(
        "Matthews",
        "labels",
        "Matthews correlation of the labels given and the right ones (of more than two R_K); 0 "
        "where either is always the same",
        "Matthews 1975; Gorodkin 2004",
        _COSINE,
        reads="labels",
        needs=_LABELS,
    ),
    "f1": MetricFacts(
        "label F1",
        "labels",
        "F measure of the positive label, the last of two; of more than two labels the mean over labels (macro F1)",
        "",
        reads="labels",
        needs=_LABELS,
    ),
    "accuracy": MetricFacts(
        "token accuracy",
        "model",
        "share of reference tokens that are the likeliest next token",
        "",
        reads="probabilities",
        needs="a trained model",
    ),
    "balanced-accuracy": MetricFacts(
        "balanced accuracy",
        "model",
        "share of marked positions that get their answer, averaged over the answers (macro)",
        "",
        reads="probabilities",
        needs="a model of the task tagging",
    ),
    "perplexity": MetricFacts(
        "perplexity",
        "model",
        "exp of the mean negative log-likelihood of a reference token",
        "",
        "1 and up",
        "lower",
        "probabilities",
        "a trained model",
    ),
    "calibration-error": MetricFacts(
        "ECE",
        "model",
        "expected calibration error: distance between confidence (the probability of the likeliest "
        "next token) and accuracy in 15 equal intervals of confidence, averaged over the reference "
        "tokens",
        "Guo et al. 2017",
        "0 to 100",
        "lower",
        "probabilities",
        "a trained model",
    ),
    "total-variation": MetricFacts(
        "total variation",
        "source",
        "half the summed differences between the distributions of the next token by the model and "
        "by the process that wrote the text, averaged over the tokens",
        "",
        better="lower",
        reads="probabilities",
        needs="a corpus whose source is known (toy-topics, toy-chains)",
    ),
    "word-perplexity": MetricFacts(
        "word perplexity",
        "model",
        "exp of the same likelihood per word and end of line, which compares any vocabularies; "
        "shown beside perplexity for language models",
        "",
        "1 and up",
        "lower",
        "probabilities",
        "a trained model",
    ),
}
"""Every metric by its name in recipes and on the command line, in the order of reference pages."""

ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")
"""What `rouge` stands for."""
PER_TOKENIZER = ("bleu", "bleu1", "bleu4")
"""Metrics of which each tokenizer of `eval.tokenize` gives one."""


GIVEN = {
    "classification": ("labels", "probabilities"),
    "language-modeling": ("probabilities",),
    "tagging": ("probabilities",),
}
"""What models give metrics to read, by task; those of other tasks outputs and probabilities."""


def metric_facts(name: str) -> MetricFacts:
    """The facts of a metric; those of bleu-intl are BLEU's, with the tokenizer in the title."""
    base = base_metric(name)
    facts, tokenizer = METRICS[base], name[len(base) + 1 :]
    return replace(facts, title=f"{facts.title} ({tokenizer})") if tokenizer else facts


def base_metric(name: str) -> str:
    """The declared metric that a score's name stands for: bleu for bleu-intl."""
    base, _, tokenizer = name.partition("-")
    return base if tokenizer and base in PER_TOKENIZER else name


def metrics_that_read(what: str) -> tuple[str, ...]:
    """Metrics of outputs, contexts, labels or probabilities."""
    return tuple(name for name, facts in METRICS.items() if facts.reads == what)


def metrics_of(task: str) -> list[str]:
    """Metrics that models of a task can have, by what these give them to read."""
    gives = GIVEN.get(task, ("outputs", "probabilities"))
    other = "word-perplexity" if task == "tagging" else "balanced-accuracy"
    return [name for name, facts in METRICS.items() if facts.reads in gives and name != other]


def metrics_of_answers() -> list[str]:
    """Metrics of the answers to questions; `metrics_of` has those of the pairs that are trained on."""
    return [*metrics_that_read("outputs"), *metrics_that_read("contexts")]


def not_of(name: str, task: str, known: Sequence[str]) -> str:
    """Why a metric is refused for a task that has the known ones."""
    words = shorten(", ".join(known), 80, placeholder=" ...")
    return f"{name} is not for {task}, which has {words}"


def direction_note(name: str) -> str:
    """What a reader must know to read a score, after its title; empty where higher is better."""
    facts = metric_facts(name)
    notes = {"lower": "lower is better", "neither": "neither higher nor lower is better"}
    words = [notes.get(facts.better, ""), "" if facts.resampled else "tested over seeds alone"]
    text = ", ".join(filter(None, words))
    return f" ({text})" if text else ""


MONITORS = (
    "loss",
    *(name for name in metrics_that_read("outputs") if METRICS[name].better != "neither"),
    *metrics_that_read("labels"),
    "accuracy",
)
"""What validation can choose weights by: `train.monitor`."""


PLUGGED = "plugin_metrics"
"""The family of metrics from outside; a file `comet.py` brings the metric `comet`: a function
`score` from lines to one number a line.  The first line of its docstring is the meaning; `title`,
`better` ("higher" or "lower"), `range` and `source` may be set to literals.  It comes by --plugin,
or by the entry-point group of an installed package (name = metric, value = module)."""
GROUP = "attnkit.metrics"
FUNCTION = "score"
_files: dict[str, Path] = {}


def is_metric(path: Path) -> bool:
    """Whether a Python file has a function `score` of its own, so that it is a metric."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError, OSError):
        return False
    return any(isinstance(node, ast.FunctionDef) and node.name == FUNCTION for node in body)


def plug_in_metric(path: Path, name: str) -> None:
    """Declare the metric of a file, read without running it, for the rest of this process.

    Raises UsageError: the name is taken, or a setting is no literal.
    """
    if name == "rouge" or (name in METRICS and METRICS[name].family != PLUGGED):
        raise UsageError(f"plug-in {path}: {name} is a metric of attnkit; rename the file")
    tree = ast.parse(path.read_bytes())
    found = {"title": name, "range": "", "better": "higher", "source": ""}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=key)], value=value) if key in found:
                if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
                    raise UsageError(f"{path}:{node.lineno}: {key} must be a literal text")
                found[key] = value.value
    if found["better"] not in ("higher", "lower"):
        raise UsageError(f"{path}: better must be 'higher' or 'lower', got {found['better']!r}")
    meaning = (ast.get_docstring(tree) or name).partition("\n")[0]
    given: Any = found
    METRICS[name] = MetricFacts(family=PLUGGED, meaning=meaning, needs=str(path), **given)
    _files[name] = path


def metric_files() -> dict[str, Path]:
    """Metric -> file of what was plugged in."""
    return dict(_files)


@cache
def _find_installed() -> None:
    """Declare the metrics of installed packages."""
    for entry in entry_points(group=GROUP):
        spec = importlib.util.find_spec(entry.module)
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            plug_in_metric(Path(spec.origin), entry.name)


def is_known(name: str) -> bool:
    """Whether a metric is declared, here, by a plug-in or by an installed package."""
    if name not in METRICS:
        _find_installed()
    return name in METRICS


def _known(name: str) -> str:
    """The name of a metric; others are refused as a Literal would."""
    if name != "rouge" and not is_known(name):
        raise PydanticKnownError("literal_error", {"expected": "a metric"})
    return name


if TYPE_CHECKING:
    Metric: TypeAlias = str
    ScoreName: TypeAlias = str
    Monitor: TypeAlias = str
else:
    Metric = Annotated[str, AfterValidator(_known), WithJsonSchema({"enum": ["rouge", *METRICS], "type": "string"})]
    ScoreName = Literal[tuple(METRICS)]
    Monitor = Literal[MONITORS]
