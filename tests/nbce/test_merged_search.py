"""Contexts read side by side in one batch against each row read alone."""

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
from helpers.model_types import BASELINES
from helpers.toy_readers import SIZE, VARIANTS, model, reader, tokenizer, unmerged_logits
from torch import Tensor

from attnkit.data.tokenizer import BOS, EOS, PAD, UNK
from attnkit.errors import UsageError
from attnkit.nbce import merge
from attnkit.nbce.merge import POOLS, Rule
from attnkit.nbce.merged_search import answers
from attnkit.nbce.reader import CausalReader, ContextReader, PromptRow
from attnkit.nbce.run_reader import LanguageModelReader
from attnkit.recipe.schema import SearchConfig


def ids(length: int, seed: int) -> tuple[int, ...]:
    draw = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(4, SIZE, (length,), generator=draw).tolist())


def prompt(lengths: Sequence[int], seed: int, prefix: int = 0, tail: int = 3) -> list[PromptRow]:
    """Rows with contexts of these lengths after a common prefix, all asked the same."""
    start = (BOS, *ids(prefix, 99))
    return [PromptRow((*start, *ids(n, seed + n)), ids(tail, seed)) for n in lengths]


def source(lengths: Sequence[int], seed: int) -> list[PromptRow]:
    return [PromptRow((*ids(n, seed + n), EOS), (BOS,)) for n in lengths]


KINDS = (
    "sinusoidal",
    "learned",
    "rope",
    "alibi",
    "relative",
    "none",
    "synthesizer-random",
    "linear",
    "gated-delta",
    "local",
    "stick-breaking",
    "dynamic-conv",
)
"""Every kind of positions, and of a cache; the contract suite has all mechanisms."""


def plain_greedy(
    chosen: ContextReader, rows: Sequence[PromptRow], pool: str, steps: int
) -> tuple[list[int], list[int | None]]:
    """Greedy search without batches, caches or padding."""
    output: list[int] = []
    spoke: list[int | None] = []
    last = None
    for _ in range(steps):
        logits = torch.stack([unmerged_logits(chosen, row, output) for row in rows])
        scores, last = merge(logits, pool, previous=last)  # type: ignore[arg-type]
        spoke.append(last)
        scores[[PAD, UNK, BOS]] = -torch.inf  # no search writes these
        token = int(scores.argmax())
        if token == EOS:
            break
        output.append(token)
    return output, spoke


@pytest.mark.sampled(7)
@pytest.mark.parametrize(
    ("shape", "variant"),
    [
        *product(["decoder", "encoder-decoder"], [one for one in VARIANTS if one in KINDS]),
        *(("encoder-decoder", name) for name in BASELINES),
    ],
)
def test_rows_in_a_batch_speak_as_they_do_alone(shape: str, variant: str) -> None:
    chosen = reader(shape, variant)
    rows = prompt([0, 7, 2, 12], 1) if shape == "decoder" else source([3, 7, 2, 12], 1)
    spec = SearchConfig(method="greedy", max_length=6)
    for pool in ("entropy", "mean"):
        (found,) = answers(chosen, [rows], Rule(pool), spec)
        wanted, spoke = plain_greedy(chosen, rows, pool, 6)
        assert found.hypotheses[0].ids == wanted
        assert [step.chosen for step in found.steps] == spoke


@pytest.mark.sampled(9)
@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("pool", ["entropy", "mean"])
@pytest.mark.parametrize("method", ["greedy", "sample"])
def test_a_token_that_needs_no_context_is_told(shape: str, pool: str, method: str) -> None:
    """It is the likeliest one of the row without context, and of the selected row."""
    chosen, told = reader(shape), []
    spec = SearchConfig(method=method, max_length=6, seed=2)
    for first in range(6):
        rows = (prompt if shape == "decoder" else source)([3, 7, 2, 12], first)
        (found,) = answers(chosen, [rows], Rule(pool), spec)
        (best,) = found.hypotheses
        for t, (step, token) in enumerate(zip(found.steps, (*best.ids, EOS), strict=False)):
            read = [rows[0]] if step.chosen is None else [rows[0], rows[step.chosen + 1]]
            tops = {int(unmerged_logits(chosen, row, best.ids[:t]).argmax()) for row in read}
            assert step.agreed == (tops == {token})
            told.append(step.agreed)
            if step.logprobs:  # sampling may find a token beyond those that are kept
                each = [unmerged_logits(chosen, row, best.ids[:t]).log_softmax(-1) for row in rows[1:]]
                wanted = [float(row[token]) for row in each]
                assert step.logprobs == pytest.approx(wanted, abs=1e-6)
    assert len(set(told)) == 2


@pytest.mark.parametrize("same", [True, False])
def test_prompts_are_scored_as_they_are_read(same: bool) -> None:
    """Tails of one prompt, or of several; each token but the first, from a pass of its own."""
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


def test_contexts_that_are_kept_answer_as_if_read_again() -> None:
    chosen, kept = reader(), reader()
    kept.keep_contexts = True
    spec = SearchConfig(method="greedy", max_length=6)
    for tail in ([1, 5], [1, 6, 9], [4]):
        rows = [row._replace(tail=tuple(tail)) for row in prompt([3, 7, 2], 1)]
        (one,), (other,) = (answers(some, [rows], Rule(), spec) for some in (chosen, kept))
        assert one.hypotheses[0].ids == other.hypotheses[0].ids
        assert one.hypotheses[0].score == pytest.approx(other.hypotheses[0].score, abs=1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder"])
def test_a_beam_of_one_is_greedy_and_a_wider_one_finds_no_less(shape: str) -> None:
    chosen = reader(shape)
    rows = prompt([0, 7, 2], 2) if shape == "decoder" else source([3, 7, 2], 2)
    found = {
        beam: answers(chosen, [rows], Rule(eta=0), SearchConfig(beam=beam, n_best=beam, max_length=5))[0]
        for beam in (1, 4)
    }
    greedy = answers(chosen, [rows], Rule(eta=0), SearchConfig(method="greedy", max_length=5))[0]
    assert found[1].hypotheses[0].ids == greedy.hypotheses[0].ids
    assert found[4].hypotheses[0].score >= greedy.hypotheses[0].score - 1e-9
    for hypothesis in found[4].hypotheses:
        total = 0.0
        for t, token in enumerate((*hypothesis.ids, *[EOS] * hypothesis.complete)):
            logits = torch.stack([unmerged_logits(chosen, row, hypothesis.ids[:t]) for row in rows])
            scores, _ = merge(logits, eta=0)
            total += float(scores[token])
        assert hypothesis.logprob == pytest.approx(total, abs=1e-6)


class Counted(LanguageModelReader):
    """Notes the shape of everything that is read before the first step."""

    def advance(self, ids: Tensor, *how: Any, all_tokens: bool = False) -> Any:
        if how[1:] and not all_tokens:  # no step
            self.read_shapes.append(tuple(ids.shape))
        return super().advance(ids, *how, all_tokens=all_tokens)


@pytest.mark.parametrize("variant", ["rope", "alibi", "learned", "linear", "local"])
def test_what_rows_share_is_read_once_and_changes_nothing(variant: str) -> None:
    chosen = Counted(model("decoder", variant), tokenizer(), "toy")
    spec = SearchConfig(method="greedy", max_length=4)
    chosen.read_shapes = []
    rows = prompt([0, 9, 5], 3, prefix=20)
    other = [PromptRow(row.head, ids(6, 77)) for row in rows]
    both = answers(chosen, [rows, other], Rule(), spec)
    assert chosen.read_shapes == [(1, 21), (3, 9)]  # prefix, contexts; questions are scored
    for found, group in zip(both, (rows, other), strict=True):
        assert found.hypotheses[0].ids == plain_greedy(chosen, group, "entropy", 4)[0]


def test_rows_that_do_not_fit_are_refused_with_the_sizes() -> None:
    chosen = reader(variant="learned")
    with pytest.raises(UsageError, match=r"300 .*242 positions of toy.*--window"):
        answers(chosen, [prompt([0, 299], 7)], Rule(), SearchConfig(max_length=6))
    with pytest.raises(UsageError, match="prompt is empty"):
        answers(chosen, [[PromptRow((BOS,), ()), PromptRow((BOS, 5), ())]], Rule(), SearchConfig(max_length=6))
    assert isinstance(chosen, CausalReader)


@pytest.mark.parametrize("pool", POOLS)
def test_equal_contexts_are_right(pool: str) -> None:
    chosen = reader()
    rows = prompt([0, 7, 7, 3, 7], 8)
    (found,) = answers(chosen, [rows], Rule(pool), SearchConfig(method="greedy", max_length=5))  # type: ignore[arg-type]
    assert found.hypotheses[0].ids == plain_greedy(chosen, rows, pool, 5)[0]
