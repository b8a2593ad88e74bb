"""Whether what was exported answers as the run does, on lines of a corpus."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor

from attnkit.data.rows import Row
from attnkit.data.tokenizer import BOS, EOS, PAD, Tokenizer
from attnkit.models import Model
from attnkit.recipe import Recipe
from attnkit.recipe.metrics import metric_facts
from attnkit.recipe.schema import EvalConfig, SearchConfig
from attnkit.scoring.metrics import score
from attnkit.search import LineCounts, classify, translate
from attnkit.search.decoding import Engine, encode_lines, pad

LINES, AT_ONCE = 200, 25
"""Lines that are compared, and how many of them at a time."""
LARGEST = 1e-4
"""Largest difference of two logits or log-probabilities."""
EQUAL = 0.98
"""Share of outputs that must be equal: where two hypotheses are level, rounding decides."""
PROMPT = 12
"""Words of a line of running text that are the prompt of what follows."""


class Reader(NamedTuple):
    """What reads an exported folder."""

    outputs: Callable[[Sequence[str]], Iterable[str]] | None
    """The best output of each text; None where the model writes none."""
    logits: Callable[[Tensor | None, Tensor | None], Tensor] | None = None
    """As `Model.forward`."""
    log_probs: Callable[[Tensor, Tensor], list[Tensor]] | None = None
    """Of the tokens of each target behind BOS, for engines that show no logits."""
    encode: Callable[[Sequence[str]], list[list[int]]] | None = None
    """Ids of each text, where the folder has a tokenizer of its own."""
    exact: bool = True
    """False where weights were rounded: differences are then shown and not judged."""


class Check(NamedTuple):
    """One comparison."""

    name: str
    found: str
    needed: str
    passed: bool


def compare(
    model: Model, tokenizer: Tokenizer, recipe: Recipe, reader: Reader, rows: Sequence[Row]
) -> list[Check]:
    """Compare a model with what it was exported to, on rows with text.

    Ids of the texts, logits (also of rows of random tokens as short and as long as can be),
    outputs, and the scores of the outputs.
    """
    texts = [row.source or " ".join(row.target.split()[:PROMPT]) for row in rows]
    longest, checks = recipe.data.max_length, list[Check]()
    sources = encode_lines(tokenizer, texts, longest, LineCounts(), prompts=recipe.prompts)
    if reader.encode is not None:
        found = reader.encode(texts)
        prompts = recipe.model.shape == "decoder" and not recipe.prompts
        wanted = [[*ids, BOS] if prompts else ids for ids in sources]
        checks.append(_equal("ids of the tokenizer equal", wanted, found, 1.0))
    targets = tokenizer.target.encode([row.target for row in rows])
    targets = [[BOS, *ids[: longest - 1], EOS] for ids in targets]
    pairs = _batches(recipe, sources, targets)
    worst = max(_difference(model, reader, source, ids) for source, ids in pairs)
    name = "logits" if reader.logits else "log-probabilities"
    needed = f"at most {LARGEST:.0e}" if reader.exact else "-"
    passed = not reader.exact or worst <= LARGEST
    checks.append(Check(f"{name}, largest difference", f"{worst:.1e}", needed, passed))
    if reader.outputs is not None:
        ours = list(outputs(model, tokenizer, recipe, texts))
        theirs = list(reader.outputs(texts))
        checks.append(_equal("outputs equal", ours, theirs, EQUAL if reader.exact else 0.0))
        if not recipe.prompts:
            references = [row.references or (row.target,) for row in rows]
            checks += _scores(ours, theirs, references)
    return checks


def outputs(
    model: Model | Engine, tokenizer: Tokenizer, recipe: Recipe, texts: Sequence[str]
) -> Iterator[str]:
    """The best output of each text by our search, or the likeliest label."""
    longest = recipe.data.max_length
    if recipe.model.shape == "encoder":
        assert isinstance(model, Model)
        found = classify(model, tokenizer, texts, recipe.data.labels, max_source=longest,
                         batch_tokens=recipe.search.batch_tokens)  # fmt: skip
    else:
        found = translate(
            model, tokenizer, texts, best(recipe.search), max_source=longest, prompts=recipe.prompts
        )
    yield from (answers[0][0] for answers in found)


def best(search: SearchConfig) -> SearchConfig:
    """The search with one output, which no random number decides."""
    method = "greedy" if search.method == "sample" else search.method
    return search.model_copy(update={"method": method, "n_best": 1})


Batch = tuple[Int[Tensor, "B S"] | None, Int[Tensor, "B T"] | None]
"""What `Model.forward` takes, padded on the right; every row ends with EOS."""


def _batches(
    recipe: Recipe, sources: Sequence[list[int]], targets: Sequence[list[int]]
) -> Iterator[Batch]:
    """Sources and targets, then rows of random tokens as short and as long as can be."""
    for start in range(0, len(sources), AT_ONCE):
        some = slice(start, start + AT_ONCE)
        yield _batch(recipe, sources[some], targets[some])
    draw = torch.Generator().manual_seed(1)
    for tokens in (2, max(2, recipe.data.max_length)):
        drawn = (
            torch.randint(EOS, 1 + max(map(max, side)), (2, tokens - 1), generator=draw).tolist()
            for side in (sources, targets)
        )
        left, right = ([[*ids, EOS] for ids in rows] for rows in drawn)
        yield _batch(recipe, left, [[BOS, *ids] for ids in right])


def _batch(recipe: Recipe, sources: Sequence[list[int]], targets: Sequence[list[int]]) -> Batch:
    shape, device = recipe.model.shape, torch.device("cpu")
    if shape == "encoder":
        return pad(sources, device), None
    if recipe.prompts:
        return None, pad(targets, device)
    if shape == "decoder":
        return None, pad([[*a, *b] for a, b in zip(sources, targets, strict=True)], device)
    return pad(sources, device), pad(targets, device)


@torch.inference_mode()
def _difference(model: Model, reader: Reader, source: Tensor | None, ids: Tensor | None) -> float:
    """The largest one of logits, or of the log-probabilities of targets, where no pads are."""
    logits: Tensor = model(source, ids)
    if reader.logits is not None:
        read = source if ids is None else ids
        assert read is not None
        gaps = (reader.logits(source, ids) - logits).abs().amax(-1)
        return float(gaps[(read != PAD)[:, : gaps.shape[1]]].max())
    assert reader.log_probs is not None
    assert source is not None
    assert ids is not None
    ours = logits[:, :-1].log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    theirs = torch.cat(reader.log_probs(source, ids))
    return float((theirs - ours[ids[:, 1:] != PAD]).abs().max())


def _equal(name: str, ours: Sequence[Any], theirs: Sequence[Any], share: float) -> Check:
    """How many of two lists are equal, and whether they are enough."""
    same = sum(a == b for a, b in zip(ours, theirs, strict=True))
    least = math.ceil(share * len(ours))
    found, needed = f"{same} of {len(ours)}", f"at least {least}" if share else "-"
    return Check(name, found, needed, same >= least)


def _scores(
    ours: Sequence[str], theirs: Sequence[str], references: Sequence[Sequence[str]]
) -> Iterator[Check]:
    """BLEU and chrF of both, which nothing depends on."""
    metrics, settings = ("bleu", "chrf"), EvalConfig(bootstrap=0)
    mine, other = (score(metrics, lines, references, settings) for lines in (ours, theirs))
    for name in metrics:
        a, b = mine[name].value, other[name].value
        yield Check(f"{metric_facts(name).title}, run and export", f"{a:.2f} {b:.2f}", "-", True)
