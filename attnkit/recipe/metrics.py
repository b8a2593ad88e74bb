"""The metrics: each is declared here, once.

`eval.metrics`, `train.monitor` and tables are made from these entries; docs/metrics.md has definitions and sources.
What computes a metric is a function of its family, `attnkit/scoring/metrics/<family>.py`.
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
    (`total_variation`) with the process that wrote the text."""
    better: Literal["higher", "lower", "neither"] = "higher"
    reads: Literal["outputs", "contexts", "labels", "probabilities"] = "outputs"
    """Texts that a model wrote, the contexts or labels that it chose, or its probabilities of a reference."""
    resampled: bool = True
    """Whether the score is a function of sums over sentences, which the paired bootstrap needs."""
    cut_by: Literal["tokenize", "words", ""] = ""
    """The key of `eval` that says how the words it counts are cut: `tokenize` (`Words`, by the
    first sacrebleu tokenizer), or `words` (its own two ways); empty where it counts none."""


METRICS: dict[str, MetricFacts] = {
    "bleu": MetricFacts("BLEU", "sacrebleu_scores", cut_by="tokenize"),
    "chrf": MetricFacts("chrF", "sacrebleu_scores"),
    "ter": MetricFacts("TER", "sacrebleu_scores", better="lower", cut_by="words"),
    "rouge1": MetricFacts("ROUGE-1", "rouge", cut_by="words"),
    "rouge2": MetricFacts("ROUGE-2", "rouge", cut_by="words"),
    "rougeL": MetricFacts("ROUGE-L", "rouge", cut_by="words"),
    "rougeLsum": MetricFacts("ROUGE-Lsum", "rouge", cut_by="words"),
    "bleu1": MetricFacts("BLEU-1", "sacrebleu_scores", cut_by="tokenize"),
    "bleu4": MetricFacts("BLEU-4", "sacrebleu_scores", cut_by="tokenize"),
    "meteor": MetricFacts("METEOR", "meteor", cut_by="tokenize"),
    "cider": MetricFacts("CIDEr-D", "cider", cut_by="tokenize"),
    "embedding-average": MetricFacts("Embedding Average", "embedding", cut_by="tokenize"),
    "embedding-greedy": MetricFacts("Greedy Matching", "embedding", cut_by="tokenize"),
    "embedding-extrema": MetricFacts("Vector Extrema", "embedding", cut_by="tokenize"),
    "distinct-1": MetricFacts("distinct-1", "diversity", resampled=False, cut_by="tokenize"),
    "distinct-2": MetricFacts("distinct-2", "diversity", resampled=False, cut_by="tokenize"),
    "seq-rep-4": MetricFacts("seq-rep-4", "diversity", better="lower", cut_by="tokenize"),
    "length-ratio": MetricFacts("length ratio", "sacrebleu_scores", better="neither", cut_by="tokenize"),
    "exact-match": MetricFacts("exact match", "answers"),
    "answer-match": MetricFacts("answer match", "answers", cut_by="words"),
    "answer-f1": MetricFacts("F1", "answers", cut_by="words"),
    "answer-contained": MetricFacts("answer contained", "answers", cut_by="words"),
    "context-found": MetricFacts("context found", "answers", reads="contexts", cut_by="words"),
    "label-accuracy": MetricFacts("accuracy", "labels", reads="labels"),
    "matthews": MetricFacts("Matthews", "labels", reads="labels"),
    "f1": MetricFacts("label F1", "labels", reads="labels"),
    "accuracy": MetricFacts("token accuracy", "model", reads="probabilities"),
    "balanced-accuracy": MetricFacts("balanced accuracy", "model", reads="probabilities"),
    "perplexity": MetricFacts("perplexity", "model", better="lower", reads="probabilities"),
    "calibration-error": MetricFacts("ECE", "model", better="lower", reads="probabilities"),
    "total-variation": MetricFacts("total variation", "source", better="lower", reads="probabilities"),
    "word-perplexity": MetricFacts("word perplexity", "model", better="lower", reads="probabilities"),
}
"""Every metric by its name in recipes and on the command line; docs/metrics.md defines them."""

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
`score` from lines to one number a line.  `title` and `better` ("higher" or "lower") may be set to literals.  It
comes by --plugin, or by the entry-point group of an installed package (name = metric, value = module)."""
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
    found = {"title": name, "better": "higher"}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=key)], value=value) if key in found:
                if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
                    raise UsageError(f"{path}:{node.lineno}: {key} must be a literal text")
                found[key] = value.value
    if found["better"] not in ("higher", "lower"):
        raise UsageError(f"{path}: better must be 'higher' or 'lower', got {found['better']!r}")
    given: Any = found
    METRICS[name] = MetricFacts(family=PLUGGED, **given)
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
