"""`attnkit nbce`: answer from more context than a model was trained for."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from attnkit.cli import console, nbce_output, options, output
from attnkit.cli.input import open_lines
from attnkit.cli.options import choice, flag, search_settings, value
from attnkit.cli.progress_bar import loading
from attnkit.errors import UsageError
from attnkit.text import quoted

if TYPE_CHECKING:
    from attnkit.recipe.schema import SearchConfig

POOLS = ("entropy", "mean", "max", "weighted")
BASELINES = ("concat", "window", "cad", "best", "retrieval", "none")
LONGEST = 100  # maximum tokens of an answer, where there is room for so many
FILES = (".html", ".htm", ".json")
ONE_ROW = {"concat", "cad"}  # methods that read all contexts in one row


def nbce(
    model: options.ModelName,
    *,
    context: Annotated[
        list[str] | None, value("FILE", "A context; - is standard input. Repeatable.")
    ] = None,
    contexts: Annotated[
        str | None,
        value(
            "FILE", 'Contexts, one {"text": "..."} or JSON string per line; - is standard input.'
        ),
    ] = None,
    prompt: Annotated[list[str] | None, value("TEXT", "Prompt to answer. Repeatable.")] = None,
    prompts: Annotated[
        str | None, value("FILE", "Prompts, one per line; each is answered on one line.")
    ] = None,
    pool: Annotated[
        Literal["entropy", "mean", "max", "weighted"],
        choice(
            "--pool",
            POOLS,
            "How the contexts' next-token distributions are merged: entropy selects the one "
            "with the lowest entropy; mean, max and weighted combine all.",
        ),
    ] = "entropy",
    beta: Annotated[
        float, value("B", "Strength of contrast with the distribution without context.")
    ] = 0.25,
    eta: Annotated[
        float, value("E", "Entropy bonus, in nats, for the previously selected context.")
    ] = 0.1,
    top_p: Annotated[
        float,
        value("P", "For each context keep the smallest set of tokens with total probability P."),
    ] = 0.95,
    top_k: Annotated[int, value("K", "For each context keep at most K tokens; 0: no limit.")] = 0,
    weights: Annotated[
        str | None,
        value(
            "W,W,...",
            "Context weights for --pool weighted. [default: softmax of negative entropies]",
        ),
    ] = None,
    window: Annotated[
        int | None, value("N", "Split each context into windows of N tokens.", min=1)
    ] = None,
    overlap: Annotated[
        int, value("N", "Tokens that consecutive windows have in common.", min=0)
    ] = 0,
    baseline: Annotated[
        list[str] | None,
        choice(
            "--baseline",
            BASELINES,
            "Also answer by this method, side by side. Repeatable. concat: all contexts in "
            "one row, truncated to fit; window: parallel context windows; cad: context-aware "
            "decoding; best: the most probable of the single-context answers; retrieval: the "
            "context under which the prompt has the lowest perplexity; none: no context.",
            "METHOD",
        ),
    ] = None,
    alpha: Annotated[
        float | None, value("A", "Strength of contrast of cad. [default: 0.5]")
    ] = None,
    limit: Annotated[
        int | None,
        value(
            "N",
            "Maximum tokens of the row of concat and cad, answer included. [default: the "
            "model's limit]",
            min=1,
        ),
    ] = None,
    trace: Annotated[bool, flag("--trace", "Show which context each token came from.")] = False,
    save: Annotated[
        list[Path] | None, value("FILE", "Write the trace to a .html or .json file. Repeatable.")
    ] = None,
    as_json: Annotated[bool, flag("--json", "Print a JSON object per prompt and method.")] = False,
    beam: Annotated[int | None, value("K", "Beam search with K beams. [default: greedy]")] = None,
    sample: options.Sample = False,
    temperature: Annotated[
        float | None, value("T", "Sample at temperature T; 0 is greedy search.")
    ] = None,
    seed: options.Seed = None,
    max_length: Annotated[
        int | None,
        value("N", f"Maximum answer length in tokens. [default: {LONGEST}, or what fits]"),
    ] = None,
    chat: options.Chat = False,
    template: options.Template = "",
    dtype: options.ModelType = "float32",
    quantize: Annotated[
        Literal["8bit", "4bit"] | None,
        choice(
            "--quantize",
            ("8bit", "4bit"),
            "Quantise the weights of a Hugging Face model: 8bit or 4bit.",
            "BITS",
        ),
    ] = None,
    offline: options.Offline = False,
    device: options.Device = "auto",
    plugins: options.Plugins = None,
) -> None:
    """Answer a prompt from many contexts, each read separately and merged at every token.

    Naive-Bayes-based context extension: the number of contexts is unlimited, and no row exceeds
    what the model can read. --trace shows which context each token came from.

      attnkit nbce RUN --context paris.txt --context rome.txt --prompt "Where is the Seine?"
      attnkit nbce RUN --context book.txt --window 200 --overlap 50 --prompt "Who?" --trace
      cat notes/*.txt | attnkit nbce RUN --context - --window 100 --prompt "When?"
      attnkit nbce RUN --contexts passages.jsonl --prompts questions.txt --json > answers.jsonl
      attnkit nbce RUN --contexts passages.jsonl --prompt "Why?" --baseline concat --baseline best
    """
    for path in save or ():
        output.check_save(path, FILES)
    questions = _prompts(prompt or [], prompts, (*(context or ()), contexts))
    spec = _search(beam, sample, temperature, seed, max_length)
    numbers = _weights(weights)
    methods = list(dict.fromkeys([pool, *(baseline or ())]))
    one_row = _one_row(methods, alpha, limit)
    _check_overlap(window, overlap)
    from attnkit.data.tokenizer import unknown_note
    from attnkit.nbce import open_model
    from attnkit.nbce.answer import check_method
    from attnkit.nbce.contexts import from_jsonl, from_text, prepare
    from attnkit.nbce.merge import Rule
    from attnkit.nbce.row_limits import LongestRow

    rule = Rule(pool, beta, eta, top_p, top_k, numbers)
    with loading(model):
        how: dict[str, Any] = {"device": device, "dtype": dtype, "offline": offline, "chat": chat}
        how |= {"template": template.replace("\\n", "\n"), "quantization": quantize}
        reader = open_model(model, **how)
    for method in methods:
        check_method(reader, method)
    files = [from_text(path) for path in context or ()]
    files += [] if contexts is None else from_jsonl(contexts)

    def count(text: str) -> int:
        return len(reader.encode(text))

    read, notes = prepare(files, count, window=window, overlap=overlap)
    for note in notes:
        console.say(note)
    rule.check(len(read))
    texts = [context.text for context in read]
    if note := unknown_note(reader.unknown([*texts, *questions])):
        console.warn(note)
    longest = LongestRow.of(reader, texts, questions, spec, max_length is not None)
    length = longest.answer_length(limit)
    if length < spec.max_length:
        console.say(f"--max-length is {length}: there is no room for longer answers")
        spec = spec.model_copy(update={"max_length": length})
    joined = texts if ONE_ROW & {*methods} else []
    if warning := longest._replace(spec=spec).beyond_training(joined, limit):
        console.warn(warning)
    request = nbce_output.NbceRequest(
        reader, read, questions, methods, rule, spec, one_row, trace, as_json, save or ()
    )
    nbce_output.answer(request)


def _check_overlap(window: int | None, overlap: int) -> None:
    """Refuse windows that would not go on."""
    if overlap and (window is None or overlap >= window):
        why = "add --window N" if window is None else f"must be below --window {window}"
        raise UsageError(f"--overlap {overlap}: {why}")


def _prompts(texts: Sequence[str], file: str | None, others: Sequence[str | None]) -> list[str]:
    """The prompts."""
    if [*others, file].count("-") > 1:
        raise UsageError("only one of --context, --contexts and --prompts can be standard input")
    prompts = list(texts)
    if file is not None:
        with open_lines(file, "strict") as lines:
            prompts += lines
    if not prompts:
        raise UsageError("there is no prompt: add --prompt TEXT or --prompts FILE")
    for number, text in enumerate(prompts, 1):
        if not text.strip():
            raise UsageError(f"prompt {number} is empty")
    return prompts


def _search(
    beam: int | None,
    sample: bool,
    temperature: float | None,
    seed: int | None,
    max_length: int | None,
) -> "SearchConfig":
    """How answers are searched: greedily by default."""
    from attnkit.recipe.schema import SearchConfig

    if temperature == 0 and sample:
        raise UsageError("--temperature 0 is greedy: leave --sample out")
    base = SearchConfig(method="greedy", max_length=LONGEST)
    options = {
        "beam": beam, "seed": seed, "max_length": max_length, "temperature": temperature or None,
    }  # fmt: skip
    return search_settings(base, options, sample or bool(temperature))


def _weights(text: str | None) -> tuple[float, ...] | None:
    """The numbers of --weights."""
    try:
        return None if text is None else tuple(map(float, text.split(",")))
    except ValueError as error:
        raise UsageError(
            f"--weights {quoted(text or '')}: must be numbers separated by commas, such as "
            "0.5,0.3,0.2"
        ) from error


def _one_row(methods: Sequence[str], alpha: float | None, limit: int | None) -> dict[str, Any]:
    """The options of methods that read all contexts in one row; refused without such a one."""
    for name, given, users in (("alpha", alpha, ("cad",)), ("limit", limit, ("concat", "cad"))):
        if given is not None and not {*users} & {*methods}:
            raise UsageError(f"--{name} is for {' and '.join(users)}: add --baseline {users[0]}")
    if alpha is not None and not 0 <= alpha < math.inf:
        raise UsageError(f"--alpha {alpha:g}: must be at least 0")
    return {"limit": limit} if alpha is None else {"limit": limit, "alpha": alpha}
