"""Tests of searches over several contexts in one batch against single rows."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
from helpers.model_types import BASELINES
from helpers.toy_readers import SIZE, model, reader, tokenizer, unmerged_logits
from torch import Tensor

from attnkit.data.tokenizer import BOS, EOS, PAD, UNK
from attnkit.errors import UsageError
from attnkit.nbce import merge
from attnkit.nbce.merge import POOLS, Rule
from attnkit.nbce.merged_search import answers
from attnkit.nbce.reader import ContextReader, PromptRow
from attnkit.nbce.run_reader import LanguageModelReader
from attnkit.recipe.schema import SearchConfig


def ids(length: int, seed: int) -> tuple[int, ...]:
    draw = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(4, SIZE, (length,), generator=draw).tolist())


def prompt(lengths: Sequence[int], seed: int, prefix: int = 0, tail: int = 3) -> list[PromptRow]:
    """Return rows with contexts of these lengths after a common prefix, and with the same tail."""
    start = (BOS, *ids(prefix, 99))
    return [PromptRow((*start, *ids(n, seed + n)), ids(tail, seed)) for n in lengths]


def source(lengths: Sequence[int], seed: int) -> list[PromptRow]:
    return [PromptRow((*ids(n, seed + n), EOS), (BOS,)) for n in lengths]


POSITIONS = ("sinusoidal", "learned", "rope", "alibi", "relative", "none")
CACHES = ("synthesizer-random", "linear", "gated-delta", "local", "stick-breaking", "dynamic-conv")
"""Mechanisms with each kind of cache; the contract suite has all mechanisms."""


def reference_greedy(
    chosen: ContextReader, rows: Sequence[PromptRow], pool: str, steps: int
) -> tuple[list[int], list[int | None]]:
    """Return output and selected contexts of greedy search without batches, caches or padding."""
    output: list[int] = []
    selected: list[int | None] = []
    last = None
    for _ in range(steps):
        logits = torch.stack([unmerged_logits(chosen, row, output) for row in rows])
        scores, last = merge(logits, pool, previous=last)  # type: ignore[arg-type]
        selected.append(last)
        scores[[PAD, UNK, BOS]] = -torch.inf  # no search generates these
        token = int(scores.argmax())
        if token == EOS:
            break
        output.append(token)
    return output, selected


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("shape", "variant"),
    [
        *product(["decoder", "encoder-decoder"], [*POSITIONS, *CACHES]),
        *(("encoder-decoder", name) for name in BASELINES),
    ],
)
def test_greedy_search_equals_the_reference(shape: str, variant: str) -> None:
    chosen = reader(shape, variant)
    rows = prompt([0, 7, 2, 12], 1) if shape == "decoder" else source([3, 7, 2, 12], 1)
    spec = SearchConfig(method="greedy", max_length=6)
    for pool in ("entropy", "mean"):
        (found,) = answers(chosen, [rows], Rule(pool), spec)
        output, selected = reference_greedy(chosen, rows, pool, 6)
        assert found.hypotheses[0].ids == output
        assert [step.chosen for step in found.steps] == selected


@pytest.mark.sampled(9)
@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("pool", ["entropy", "mean"])
@pytest.mark.parametrize("method", ["greedy", "sample"])
def test_tokens_independent_of_the_contexts_are_marked(shape: str, pool: str, method: str) -> None:
    """Such a token is the most likely one of the row without context, and of the selected row."""
    chosen, marks = reader(shape), set()
    spec = SearchConfig(method=method, max_length=6, seed=2)
    for first in range(6):
        rows = (prompt if shape == "decoder" else source)([3, 7, 2, 12], first)
        (found,) = answers(chosen, [rows], Rule(pool), spec)
        (best,) = found.hypotheses
        for t, (step, token) in enumerate(zip(found.steps, (*best.ids, EOS), strict=False)):
            read = [rows[0]] if step.chosen is None else [rows[0], rows[step.chosen + 1]]
            tops = {int(unmerged_logits(chosen, row, best.ids[:t]).argmax()) for row in read}
            assert step.agreed == (tops == {token})
            marks.add(step.agreed)
            if step.logprobs:  # sampling may select a token without a stored log-probability
                each = [unmerged_logits(chosen, row, best.ids[:t]).log_softmax(-1) for row in rows[1:]]
                assert step.logprobs == pytest.approx([float(row[token]) for row in each], abs=1e-6)
    assert marks == {True, False}


@pytest.mark.parametrize("same", [True, False])
def test_scores_of_prompts(same: bool) -> None:
    """Of tails of one prompt or of several: the log-probabilities of all tokens except the first."""
    chosen = reader()
    rows = [*prompt([3, 7, 0], 4), *([] if same else prompt([5, 2], 1))]
    rows = [row._replace(tail=(*row.tail, *(() if at < 3 else (9, 11)))) for at, row in enumerate(rows)]
    state, scores = chosen.begin_scored(rows)
    for row, score in zip(rows, scores.tolist(), strict=True):
        each = [
            float(unmerged_logits(chosen, row._replace(tail=row.tail[:t]), []).log_softmax(-1)[row.tail[t]])
            for t in range(1, len(row.tail))
        ]
        assert score == pytest.approx(sum(each), abs=1e-4)
    last = torch.tensor([[row.tail[-1]] for row in rows])
    stepped, _ = chosen.step(last, state)
    for logits, row in zip(stepped, rows, strict=True):
        torch.testing.assert_close(logits, unmerged_logits(chosen, row, []))


def test_kept_contexts_do_not_change_the_answer() -> None:
    plain, keeping = reader(), reader()
    keeping.keep_contexts = True
    spec = SearchConfig(method="greedy", max_length=6)
    for tail in ((1, 5), (1, 6, 9), (4,)):
        rows = [row._replace(tail=tail) for row in prompt([3, 7, 2], 1)]
        expected, found = (answers(chosen, [rows], Rule(), spec)[0].hypotheses[0] for chosen in (plain, keeping))
        assert found.ids == expected.ids
        assert found.score == pytest.approx(expected.score, abs=1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder"])
def test_beam_of_one_is_greedy_and_a_wider_one_is_not_worse(shape: str) -> None:
    chosen = reader(shape)
    rows = prompt([0, 7, 2], 2) if shape == "decoder" else source([3, 7, 2], 2)
    greedy, narrow, wide = (
        answers(chosen, [rows], Rule(eta=0), SearchConfig(max_length=5, **spec))[0].hypotheses
        for spec in ({"method": "greedy"}, {"beam": 1}, {"beam": 4, "n_best": 4})
    )
    assert narrow[0].ids == greedy[0].ids
    assert wide[0].score >= greedy[0].score - 1e-9
    for hypothesis in wide:
        total = 0.0
        for t, token in enumerate((*hypothesis.ids, *[EOS] * hypothesis.complete)):
            logits = torch.stack([unmerged_logits(chosen, row, hypothesis.ids[:t]) for row in rows])
            scores, _ = merge(logits, eta=0)
            total += float(scores[token])
        assert hypothesis.logprob == pytest.approx(total, abs=1e-6)


class ShapeReader(LanguageModelReader):
    """A reader that records the shapes of all batches before the first step."""

    def advance(self, ids: Tensor, *how: Any, all_tokens: bool = False) -> Any:
        if how[1:] and not all_tokens:  # not a step
            self.read_shapes.append(tuple(ids.shape))
        return super().advance(ids, *how, all_tokens=all_tokens)


@pytest.mark.parametrize("variant", ["rope", "alibi", "learned", "linear", "local"])
def test_common_prefix_is_read_once(variant: str) -> None:
    chosen = ShapeReader(model("decoder", variant), tokenizer(), "toy")
    spec = SearchConfig(method="greedy", max_length=4)
    chosen.read_shapes = []
    rows = prompt([0, 9, 5], 3, prefix=20)
    other = [PromptRow(row.head, ids(6, 77)) for row in rows]
    both = answers(chosen, [rows, other], Rule(), spec)
    assert chosen.read_shapes == [(1, 21), (3, 9)]  # prefix, contexts; questions are scored
    for found, group in zip(both, (rows, other), strict=True):
        assert found.hypotheses[0].ids == reference_greedy(chosen, group, "entropy", 4)[0]


def test_too_long_and_empty_rows_raise() -> None:
    chosen = reader(variant="learned")
    with pytest.raises(UsageError, match=r"300 .*242 positions of toy.*--window"):
        answers(chosen, [prompt([0, 299], 7)], Rule(), SearchConfig(max_length=6))
    with pytest.raises(UsageError, match="prompt is empty"):
        answers(chosen, [[PromptRow((BOS,), ()), PromptRow((BOS, 5), ())]], Rule(), SearchConfig(max_length=6))


@pytest.mark.parametrize("pool", POOLS)
def test_equal_contexts(pool: str) -> None:
    chosen = reader()
    rows = prompt([0, 7, 7, 3, 7], 8)
    (found,) = answers(chosen, [rows], Rule(pool), SearchConfig(method="greedy", max_length=5))  # type: ignore[arg-type]
    assert found.hypotheses[0].ids == reference_greedy(chosen, rows, pool, 5)[0]
