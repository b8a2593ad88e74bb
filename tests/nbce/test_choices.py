"""Tests of labels as answers against whole passes over each row and label."""

import pytest
import torch
from helpers.toy_readers import reader, unmerged_logits

from attnkit.errors import UsageError
from attnkit.nbce.answer import METHODS, ask
from attnkit.nbce.baselines import concatenate, parallel_windows, prompt_perplexities
from attnkit.nbce.choices import encode_choices, label_logprobs
from attnkit.nbce.merge import POOLS, Rule, merge
from attnkit.nbce.reader import PromptRow
from attnkit.recipe.schema import SearchConfig

CONTEXTS = ["one red dog", "two cats and a very red dog", "cats"]
PROMPT = "two cats"
SPEC = SearchConfig(method="greedy")
CHOICES = ("a red dog", "two", "cats and cats")


def label_logprob(kind: str, row: PromptRow, choice: str) -> float:
    """Return the log-probability of a label after a row, by one pass per token."""
    ids = reader(kind).encode(choice)
    return float(sum(unmerged_logits(reader(kind), row, ids[:t]).log_softmax(-1)[i] for t, i in enumerate(ids)))


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_logprobs_of_labels_equal_those_of_single_labels(kind: str) -> None:
    chosen = reader(kind)
    rows = [chosen.row(text, PROMPT) for text in ("", *CONTEXTS)]
    found, _ = label_logprobs(chosen, rows, [*encode_choices(chosen, CHOICES).values()])
    expected = torch.tensor([[label_logprob(kind, row, choice) for choice in CHOICES] for row in rows])
    torch.testing.assert_close(found.float(), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_methods_choose_by_their_formulas(method: str) -> None:
    chosen = reader("decoder")
    rows = [chosen.row(text, PROMPT) for text in CONTEXTS]
    without = chosen.row("", PROMPT)
    if method == "concat":
        rows = [concatenate(chosen, CONTEXTS, PROMPT, 8)[0]]
    elif method == "window":
        rows = [parallel_windows(chosen, CONTEXTS, PROMPT)]
    elif method == "none":
        rows = [without]
    elif method == "cad":
        rows = [without, concatenate(chosen, CONTEXTS, PROMPT, 8)[0]]
    elif method in POOLS:
        rows = [without, *rows]
    scores = label_logprobs(chosen, rows, [*encode_choices(chosen, CHOICES).values()])[0]
    if method == "retrieval":
        perplexities = prompt_perplexities(chosen, rows)
        scores = scores[perplexities.index(min(perplexities))][None]
    elif method == "best":
        scores = scores[scores.amax(1).argmax()][None]
    if method in POOLS:
        logprobs, _ = merge(scores, method, 0.5, top_p=1.0)  # type: ignore[arg-type]
    elif method == "cad":
        logprobs, _ = merge(scores, "mean", 2.0, top_p=1.0)
    else:
        logprobs = scores[0].log_softmax(-1)
    (found,) = ask(chosen, method, [CONTEXTS], [PROMPT], SPEC, Rule(beta=0.5), choices=CHOICES, alpha=2.0)
    assert [*found.probabilities] == [*CHOICES]
    assert [*found.probabilities.values()] == pytest.approx(logprobs.exp().tolist(), abs=1e-5)
    assert sum(found.probabilities.values()) == pytest.approx(1)
    assert found.text == CHOICES[int(logprobs.argmax())]
    assert (found.source is not None) == (method in POOLS)


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        (["a red", "a red dog"], "'a red dog' begins with all tokens of 'a red'"),
        (["a red", "a red"], "at least two distinct"),
        (["a"], "give at least two"),
    ],
)
def test_choices_that_are_not_distinct_raise(choices: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ask(reader("decoder"), "entropy", [CONTEXTS], [PROMPT], SPEC, choices=choices)
