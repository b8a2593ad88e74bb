"""`attnkit nbce`: answers from more context than a model was trained for."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Literal

from attnkit.cli import console, nbce_output, options
from attnkit.cli.input import open_lines
from attnkit.cli.options import flag, search_settings, value
from attnkit.cli.progress_bar import say_loading
from attnkit.errors import UsageError

if TYPE_CHECKING:
    from attnkit.nbce.reader import ContextReader
    from attnkit.recipe.schema import SearchConfig

MERGING = ("entropy", "mean", "max", "weighted")
MAX_TOKENS = 100  # default maximum number of tokens in an answer, if they fit
ALPHA = 0.5


def nbce(
    model: options.ModelName,
    *,
    context: list[str] | None = value(
        "FILE ...",
        "Contexts: files of text, .jsonl, .csv or .tsv, folders of them, patterns; - is standard input. Repeatable.",
    ),
    contexts: str | None = value(
        "FILE", 'Contexts, one {"text": "..."} or JSON string per line, or a table; - is standard input.'
    ),
    prompt: list[str] | None = value("TEXT", "Prompt to answer. Repeatable."),
    prompts: str | None = value(
        "FILE",
        "Prompts, one per line; each answer is one line. Prompts from standard input (-) are answered as they arrive.",
    ),
    choices: str | None = value(
        "A,B,...", "Choose one of these answers by its probability instead of generating text."
    ),
    pool: Literal["entropy", "mean", "max", "weighted", "retrieval", "best", "concat", "window"] = value(
        "POOL",
        "Merging of the contexts' next-token distributions: entropy selects the distribution "
        "with the lowest entropy; mean, max and weighted combine all. Or, without merging: "
        "retrieval, best, concat or window, as in --baseline.",
        default="entropy",
    ),
    beta: float = value("B", "Strength of contrast with the distribution without context.", default=0.25),
    eta: float = value("E", "Entropy bonus, in nats, for the previously selected context.", default=0.1),
    top_p: float = value(
        "P", "For each context keep the smallest set of tokens with total probability P.", default=0.95
    ),
    weights: str | None = value(
        "W,W,...", "Context weights for --pool weighted. [default: softmax of negative entropies]"
    ),
    window: int | None = value("N", "Split each context into windows of N tokens.", min=1),
    baseline: list[str] | None = value(
        "METHOD",
        "Also answer by this method, side by side. Repeatable. concat: all contexts in one "
        "row, cut to the length of training or to what fits; window: parallel context "
        "windows; cad: context-aware decoding; best: the most probable of the single-context "
        "answers; retrieval: the context under which the prompt has the lowest perplexity; "
        "none: no context.",
        **options.one_of("concat", "window", "cad", "best", "retrieval", "none"),
    ),
    alpha: float = value("A", "Strength of contrast of cad.", default=ALPHA),
    trace: bool = flag("--trace", "Show which context each token came from."),
    as_json: bool = flag("--json", "Print a JSON object per prompt and method."),
    beam: int | None = value("K", "Beam search with K beams. [default: greedy]"),
    sample: options.Sample = False,
    temperature: float | None = value("T", "Sample at temperature T; 0 is greedy search."),
    seed: options.Seed = None,
    max_length: int | None = value("N", f"Maximum answer length in tokens. [default: {MAX_TOKENS}, or what fits]"),
    chat: options.Chat = False,
    template: options.Template = "",
    dtype: options.ModelType = "float32",
    offline: options.Offline = False,
    device: options.Device = "auto",
) -> None:
    """Answer a prompt from many contexts, each read separately and merged at every token.

    Naive-Bayes-based context extension: the number of contexts is unlimited, and no row exceeds
    what the model can read. --trace shows which context each token came from.

      attnkit nbce RUN --context paris.txt rome.txt --prompt "Where is the Seine?"
      attnkit nbce RUN --context notes/ --window 200 --prompt "Who?" --trace
      cat questions.txt | attnkit nbce RUN --context notes/*.md --prompts -
      attnkit nbce RUN --contexts passages.jsonl --prompts questions.txt --json > answers.jsonl
      attnkit nbce RUN --context shots/ --prompt "Review: Fine." --choices positive,negative
      attnkit nbce RUN --contexts passages.jsonl --prompt "Why?" --baseline concat --baseline best
    """
    if [*(context or ()), contexts, prompts].count("-") > 1:
        raise UsageError("only one of --context, --contexts and --prompts can be standard input")
    piped = prompts == "-"
    questions = _questions(prompt or (), prompts, piped)
    spec = _search(sample, temperature, beam=beam, seed=seed, max_length=max_length)
    methods = list(dict.fromkeys([pool, *(baseline or ())]))
    labels = _choices(choices)
    for_text = {"--beam": beam, "--max-length": max_length, "--temperature": temperature, "--sample": sample}
    for name, setting in (for_text | {"--trace": trace}).items():
        if setting and labels:
            raise UsageError(f"{name} has no effect with --choices; remove {name}")
    if alpha != ALPHA and not ("cad" in methods and 0 <= alpha < math.inf):
        raise UsageError(f"--alpha {alpha:g}: must be a number of at least 0, with --baseline cad")
    if trace and pool not in MERGING:
        raise UsageError(f"--pool {pool} merges no contexts, so there is nothing to trace; remove --trace")
    from attnkit.data.tokenizer import unknown_note
    from attnkit.nbce.contexts import find, from_file, prepare
    from attnkit.nbce.merge import Rule

    # check everything that needs no model before loading it
    read = [item for path in find(context or ()) for item in from_file(path)]
    read += [] if contexts is None else from_file(contexts, lines=True)
    prepared, notes = prepare(read, len)
    merging: Any = pool if pool in MERGING else "entropy"
    context_weights = None if weights is None else tuple(options.parse_decimals("--weights", weights))
    rule = Rule(merging, beta, eta, top_p, context_weights)
    rule.check(len(prepared) if window is None or rule.weights is None else len(rule.weights))
    reader = _open_reader(model, methods, template, offline=offline, chat=chat, device=device, dtype=dtype)
    if window is not None:
        prepared, notes = prepare(read, lambda text: len(reader.encode(text)), window)
        rule.check(len(prepared))
    for note in notes:
        console.say(note)
    texts = [*(item.text for item in prepared), *questions]
    if note := unknown_note(reader.unknown(texts)):
        console.warn(note)
    request = nbce_output.NbceRequest(
        reader, prepared, methods, rule, spec, max_length is not None, alpha, labels, trace, as_json
    )
    with open_lines("-") if piped else nullcontext() as lines:
        nbce_output.print_answers(request, questions, lines)


def _open_reader(model: str, methods: Sequence[str], template: str, **settings: Any) -> "ContextReader":
    """Open the model, and check that it supports the methods."""
    from attnkit.nbce import open_model
    from attnkit.nbce.answer import check_method

    say_loading(model)
    reader = open_model(model, template=template.replace("\\n", "\n"), **settings)
    for method in methods:
        check_method(reader, method)
    return reader


def _search(sample: bool, temperature: float | None, **given: int | None) -> "SearchConfig":
    """Return the search settings of answers, greedy by default."""
    from attnkit.recipe.schema import SearchConfig

    if temperature == 0 and sample:
        raise UsageError("--temperature 0 is greedy search; remove --sample")
    base, temperature = SearchConfig(method="greedy", max_length=MAX_TOKENS), temperature or None
    return search_settings(base, given | {"temperature": temperature}, sample or temperature is not None)


def _questions(texts: Sequence[str], file: str | None, piped: bool) -> list[str]:
    """Return the prompts, except those of standard input."""
    with open_lines(file) if file and not piped else nullcontext(()) as lines:
        found = [*texts, *lines]
    if not found and not piped:
        raise UsageError("there is no prompt: add --prompt TEXT or --prompts FILE")
    if empty := [number for number, text in enumerate(found, 1) if not text.strip()]:
        raise UsageError(f"prompt {empty[0]} is empty")
    return found


def _choices(text: str | None) -> list[str]:
    """Return the answers of --choices.  Raises UsageError unless there are two or more distinct ones."""
    labels = [word.strip() for word in text.split(",")] if text is not None else []
    if text is not None and len({*filter(None, labels)}) < max(2, len(labels)):
        raise UsageError("--choices: give at least two different answers, as in positive,negative")
    return labels
