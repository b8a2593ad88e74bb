"""Labels scored in place of text, against whole passes over each row and label."""

import pytest
import torch
from helpers.toy_readers import reader, unmerged_logits

from attnkit.errors import UsageError
from attnkit.nbce.answer import METHODS, ask
from attnkit.nbce.baselines import concatenate, parallel_windows, prompt_perplexities
from attnkit.nbce.choices import encode_choices, label_logprobs
from attnkit.nbce.merge import POOLS, Rule, merge
from attnkit.recipe.schema import SearchConfig

CONTEXTS = ["one red dog", "two cats and a very red dog", "cats"]
PROMPT = "two cats"
SPEC = SearchConfig(method="greedy")
CHOICES = ("a red dog", "two", "cats and cats")


def plain(kind: str, row: object, choice: str) -> float:
    """A label's log-probability behind a row, a whole pass for each of its tokens."""
    made = reader(kind)
    ids = made.encode(choice)
    every = [unmerged_logits(made, row, ids[:t]).log_softmax(-1)[ids[t]] for t in range(len(ids))]
    return float(sum(every))


@pytest.mark.parametrize("kind", ["decoder", "encoder-decoder"])
def test_labels_of_any_length_are_scored_as_alone(kind: str) -> None:
    made = reader(kind)
    rows = [made.row(text, PROMPT) for text in ("", *CONTEXTS)]
    found, _ = label_logprobs(made, rows, [*encode_choices(made, CHOICES).values()])
    wanted = torch.tensor([[plain(kind, row, choice) for choice in CHOICES] for row in rows])
    torch.testing.assert_close(found.float(), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_chooses_by_its_formula(method: str) -> None:
    made = reader("decoder")
    rows = [made.row(text, PROMPT) for text in CONTEXTS]
    if method == "concat":
        rows = [concatenate(made, CONTEXTS, PROMPT, 8)[0]]
    elif method == "window":
        rows = [parallel_windows(made, CONTEXTS, PROMPT)]
    elif method == "none":
        rows = [made.row("", PROMPT)]
    elif method == "cad":
        rows = [made.row("", PROMPT), concatenate(made, CONTEXTS, PROMPT, 8)[0]]
    elif method in POOLS:
        rows = [made.row("", PROMPT), *rows]
    scores = label_logprobs(made, rows, [*encode_choices(made, CHOICES).values()])[0]
    if method == "retrieval":
        perplexities = prompt_perplexities(made, rows)
        scores = scores[perplexities.index(min(perplexities))][None]
    elif method == "best":
        scores = scores[scores.amax(1).argmax()][None]
    if method in POOLS:
        logprobs, _ = merge(scores, method, 0.5, top_p=1.0)  # type: ignore[arg-type]
    elif method == "cad":
        logprobs, _ = merge(scores, "mean", 2.0, top_p=1.0)
    else:
        logprobs = scores[0].log_softmax(-1)
    (found,) = ask(made, method, [CONTEXTS], [PROMPT], SPEC, Rule(beta=0.5), choices=CHOICES, alpha=2.0)
    assert [*found.probabilities] == [*CHOICES]
    assert [*found.probabilities.values()] == pytest.approx(logprobs.exp().tolist(), abs=1e-5)
    assert sum(found.probabilities.values()) == pytest.approx(1)
    assert found.text == CHOICES[int(logprobs.argmax())]
    assert (found.source is not None) == (method in POOLS)


def test_choices_that_cannot_be_told_apart_are_refused() -> None:
    made = reader("decoder")
    with pytest.raises(UsageError, match="'a red dog' begins with all tokens of 'a red'"):
        encode_choices(made, ["a red", "a red dog"])
    with pytest.raises(UsageError, match="at least two distinct"):
        encode_choices(made, ["a red", "a red"])
    with pytest.raises(UsageError, match="give at least two"):
        ask(made, "entropy", [CONTEXTS], [PROMPT], SPEC, choices=["a"])
