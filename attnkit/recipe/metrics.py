"""Declarations of all metrics.

`eval.metrics`, `train.monitor` and tables are made from these entries; docs/metrics.md has definitions and sources.  A
metric is computed by a function of its family, `attnkit/scoring/metrics/<family>.py`.
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
"""Word splitting of metrics that have their own tokenizers (`eval.words`)."""


@dataclass(frozen=True)
class MetricFacts:
    """Properties of a metric that are known before it is computed."""

    title: str
    """Name in tables."""
    family: str
    """Module of `attnkit.scoring.metrics` that computes it.  For metrics of a model's probabilities: `model`
    (`attnkit.scoring.teacher_forced`) compares them with the reference, `source` (`total_variation`) with the process
    that generated the text."""
    better: Literal["higher", "lower", "neither"] = "higher"
    reads: Literal["outputs", "contexts", "labels", "probabilities"] = "outputs"
    """Input: generated texts, selected contexts or labels, or probabilities of a reference."""
    resampled: bool = True
    """Whether the score is a function of sums over sentences, as the paired bootstrap requires."""
    cut_by: Literal["tokenize", "words", ""] = ""
    """Key of `eval` that selects the word splitting: `tokenize` (`Words`, by the first sacrebleu tokenizer) or `words`
    (two ways of the metric's own); empty if the metric counts no words."""


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
"""Metrics by their names in recipes and on the command line."""

ROUGE = ("rouge1", "rouge2", "rougeL", "rougeLsum")
"""Metrics that `rouge` stands for."""
PER_TOKENIZER = ("bleu", "bleu1", "bleu4")
"""Metrics that are computed once for each tokenizer of `eval.tokenize`."""


TASK_INPUTS = {
    "classification": ("labels", "probabilities"),
    "language-modeling": ("probabilities",),
    "tagging": ("probabilities",),
}
"""Task -> inputs of metrics that its models produce; for all other tasks, outputs and probabilities."""


def metric_facts(name: str) -> MetricFacts:
    """Return the facts of a metric; for a name such as bleu-intl those of BLEU, with the tokenizer in the title."""
    base = base_metric(name)
    facts, tokenizer = METRICS[base], name[len(base) + 1 :]
    return replace(facts, title=f"{facts.title} ({tokenizer})") if tokenizer else facts


def base_metric(name: str) -> str:
    """Return the declared metric for the name of a score: bleu for bleu-intl."""
    base, _, tokenizer = name.partition("-")
    return base if tokenizer and base in PER_TOKENIZER else name


def metrics_that_read(kind: str) -> tuple[str, ...]:
    """Return the metrics of outputs, contexts, labels or probabilities."""
    return tuple(name for name, facts in METRICS.items() if facts.reads == kind)


def metrics_of(task: str) -> list[str]:
    """Return the metrics that models of a task can have, according to the inputs that these models produce."""
    inputs = TASK_INPUTS.get(task, ("outputs", "probabilities"))
    excluded = "word-perplexity" if task == "tagging" else "balanced-accuracy"
    return [name for name, facts in METRICS.items() if facts.reads in inputs and name != excluded]


def metrics_of_answers() -> list[str]:
    """Return the metrics of answers to questions; `metrics_of` returns those of the pairs used in training."""
    return [*metrics_that_read("outputs"), *metrics_that_read("contexts")]


def metric_refusal(name: str, task: str, known: Sequence[str]) -> str:
    """Return why a metric is refused for a task that has the `known` ones."""
    words = shorten(", ".join(known), 80, placeholder=" ...")
    return f"{name} does not apply to {task}; choose from {words}"


def direction_note(name: str) -> str:
    """Return the text that follows a metric's title, such as " (lower is better)", or ""."""
    facts = metric_facts(name)
    notes = {"lower": "lower is better", "neither": "neither higher nor lower is better"}
    parts = [notes.get(facts.better, ""), "" if facts.resampled else "tested over seeds alone"]
    text = ", ".join(filter(None, parts))
    return f" ({text})" if text else ""


MONITORS = (
    "loss",
    *(name for name in metrics_that_read("outputs") if METRICS[name].better != "neither"),
    *metrics_that_read("labels"),
    "accuracy",
)
"""Values of `train.monitor`, by which validation selects weights."""


PLUGGED = "plugin_metrics"
"""Family of external metrics.  A file `comet.py` provides the metric `comet`: a function `score` from lines to one
number per line.  The file may set `title` and `better` ("higher" or "lower") to literals.  It is registered by
--plugin or by the entry-point group of an installed package (name = metric, value = module)."""
GROUP = "attnkit.metrics"
FUNCTION = "score"
_files: dict[str, Path] = {}


def is_metric(path: Path) -> bool:
    """Return whether a Python file defines a function `score`, which makes it a metric."""
    try:
        body = ast.parse(path.read_bytes()).body
    except (SyntaxError, ValueError, OSError):
        return False
    return any(isinstance(node, ast.FunctionDef) and node.name == FUNCTION for node in body)


def plug_in_metric(path: Path, name: str) -> None:
    """Declare the metric of a file, read without running it, for the rest of this process.

    Raises UsageError if the name is taken or a setting is not a valid literal.
    """
    if name == "rouge" or (name in METRICS and METRICS[name].family != PLUGGED):
        raise UsageError(f"plug-in {path}: {name} is a metric of attnkit; rename the file")
    tree = ast.parse(path.read_bytes())
    settings: dict[str, Any] = {"title": name, "better": "higher"}
    for node in tree.body:
        match node:
            case ast.Assign(targets=[ast.Name(id=key)], value=value) if key in settings:
                if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
                    raise UsageError(f"{path}:{node.lineno}: {key} must be a string literal")
                settings[key] = value.value
    if settings["better"] not in ("higher", "lower"):
        raise UsageError(f"{path}: better must be 'higher' or 'lower', got {settings['better']!r}")
    METRICS[name] = MetricFacts(family=PLUGGED, **settings)
    _files[name] = path


def metric_files() -> dict[str, Path]:
    """Return the files of plugged-in metrics, by name."""
    return dict(_files)


@cache
def _find_installed() -> None:
    """Declare the metrics of installed packages."""
    for entry in entry_points(group=GROUP):
        spec = importlib.util.find_spec(entry.module)
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            plug_in_metric(Path(spec.origin), entry.name)


def is_known(name: str) -> bool:
    """Return whether a metric is declared here, by a plug-in or by an installed package."""
    if name not in METRICS:
        _find_installed()
    return name in METRICS


def _known(name: str) -> str:
    """Return the name of a known metric; raise the error of a Literal for others."""
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
