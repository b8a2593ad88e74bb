"""Tests of the methods of answering against whole passes over single rows, without caches."""

import math
import re
from collections.abc import Sequence

import pytest
import torch
from helpers.toy_readers import model, reader, unmerged_logits
from torch import Tensor

from attnkit.attention.mask import Mask
from attnkit.data.tokenizer import BOS, EOS, PAD, UNK
from attnkit.errors import UsageError
from attnkit.nbce.answer import METHODS, Reply, ask
from attnkit.nbce.merge import POOLS
from attnkit.nbce.reader import ContextReader, PromptRow
from attnkit.nbce.sources import named_source
from attnkit.recipe.schema import SearchConfig
from attnkit.search import search

CONTEXTS = [
    ["one red dog", "two cats and a very red dog", "cats"],
    ["a dog", "red cats and a dog and two cats", "two dogs"],
    ["a very red cat and two dogs"],
]
PROMPTS = ["two cats", "a very", "one red cat and"]
GREEDY = SearchConfig(method="greedy", max_length=5)


def outputs(reply: Reply) -> list[int]:
    """Return the tokens of the best hypothesis, with its end token."""
    best = reply.hypotheses[0]
    return [*best.ids, *[EOS] * best.complete]


def check(reply: Reply, scores: Sequence[Tensor]) -> None:
    """Assert that greedy search over these rows of log-probabilities finds the reply and its score."""
    total = 0.0
    for row, token in zip(scores, outputs(reply), strict=True):
        total += float(row[token])
        allowed = row.clone()
        allowed[[PAD, UNK, BOS]] = -math.inf
        assert int(allowed.argmax()) == token
    assert reply.hypotheses[0].logprob == pytest.approx(total, abs=1e-9)


def logprobs_before(chosen: ContextReader, row: PromptRow, reply: Reply) -> list[Tensor]:
    """Return the log-probabilities after a row, before each token of the reply."""
    ids = outputs(reply)
    return [unmerged_logits(chosen, row, ids[:t]).log_softmax(-1) for t in range(len(ids))]


def window_logits(chosen: ContextReader, contexts: Sequence[str], prompt: str, ids: Sequence[int]) -> Tensor:
    """Return the logits [V] after the windows of one row, by one pass with a dense mask."""
    inner = chosen.model  # type: ignore[attr-defined]
    encoded = [chosen.encode(text) for text in contexts]
    after = [*chosen.encode(prompt), *ids]
    longest = max(map(len, encoded))
    row, window, place = [BOS], [0], [0]
    for number, tokens in enumerate(encoded, 1):
        row += tokens
        window += [number] * len(tokens)
        place += range(1, 1 + len(tokens))
    row += after
    window += [-1] * len(after)
    place += range(1 + longest, 1 + longest + len(after))
    groups, order = torch.tensor(window), torch.arange(len(row))
    visible = (groups == 0) | (groups[:, None] == groups) | (groups[:, None] == -1)
    matrix = (visible & (order[:, None] >= order))[None, None]

    class DenseMask(Mask):
        def dense(self) -> Tensor:
            return matrix

    positions = torch.tensor([place])
    mask = DenseMask(positions, positions, torch.ones(1, len(row), dtype=torch.bool), True)
    with torch.no_grad():
        x = inner.embed_target(torch.tensor([row]), positions)
        return inner.output(inner.decoder(x, mask)[0])[0, -1]


@pytest.mark.parametrize("variant", ["learned", "rope", "alibi", "relative", "none", "gaussian", "synthesizer-random"])
def test_windows_equal_a_block_mask_over_one_row(variant: str) -> None:
    chosen = reader(variant=variant)
    replies = ask(chosen, "window", CONTEXTS, PROMPTS, GREEDY)
    for contexts, prompt, reply in zip(CONTEXTS, PROMPTS, replies, strict=True):
        ids = outputs(reply)
        check(reply, [window_logits(chosen, contexts, prompt, ids[:t]).log_softmax(-1) for t in range(len(ids))])


@pytest.mark.parametrize("variant", ["linear", "performer", "gated-delta", "local", "sparse"])
def test_windows_raise_where_caches_cannot_be_joined(variant: str) -> None:
    with pytest.raises(UsageError, match="window does not work with toy: its attention .*another method"):
        ask(reader(variant=variant), "window", CONTEXTS, PROMPTS, GREEDY)
    with pytest.raises(UsageError, match="encoder-decoder reads each context in a separate source"):
        ask(reader("encoder-decoder"), "window", CONTEXTS, PROMPTS, GREEDY)


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_concatenation_equals_generation(method: str) -> None:
    chosen, spec = reader(), SearchConfig(method=method, beam=3, max_length=6)  # type: ignore[arg-type]
    replies = ask(chosen, "concat", CONTEXTS, PROMPTS, spec)
    for contexts, prompt, reply in zip(CONTEXTS, PROMPTS, replies, strict=True):
        ids = [BOS, *chosen.encode(" ".join(contexts)), *chosen.encode(prompt)]
        source, first = torch.tensor([ids[:-1]]), torch.tensor([[ids[-1]]])
        ((expected,),) = search(model("decoder", "rope"), source, spec, lines=[0], first=first)
        assert reply.hypotheses[0].ids == expected.ids
        assert reply.hypotheses[0].logprob == pytest.approx(expected.logprob, abs=1e-9)
        assert reply.text == chosen.decode(expected.ids)
        assert not reply.cut


def test_concatenation_is_truncated_to_the_limit() -> None:
    chosen = reader()
    texts = ["one red dog and", "two cats and"] * 5
    ids = chosen.encode(" ".join(texts))
    room = 1 + 12 + len(chosen.encode("a dog")) + GREEDY.max_length
    (reply,) = ask(chosen, "concat", [texts], ["a dog"], GREEDY, limit=room)
    note = rf"the last (\d+) of {len(ids)} context tokens were truncated to fit {room} tokens, output included"
    match = re.fullmatch(note, reply.cut)
    assert match
    kept = chosen.decode(ids[: len(ids) - int(match[1])])
    # part of a word may have one more token when it is encoded alone
    assert room - 1 <= chosen.row(kept, "a dog").longest + GREEDY.max_length <= room
    (expected,) = ask(chosen, "concat", [[kept]], ["a dog"], GREEDY)
    assert reply.hypotheses == expected.hypotheses


@pytest.mark.parametrize("method", ["concat", "cad"])
def test_limit_too_small_for_prompt_and_answer_raises(method: str) -> None:
    chosen = reader()
    least = chosen.row("", "a dog").longest + GREEDY.max_length
    message = f"the prompt and an output of .* need {least} tokens, but a row has at most {least - 1}: lower"
    with pytest.raises(UsageError, match=message):
        ask(chosen, method, [["one red dog"]], ["a dog"], GREEDY, limit=least - 1)
    (reply,) = ask(chosen, method, [["one red dog"]], ["a dog"], GREEDY, limit=least)
    assert "the last" in reply.cut


def test_concatenation_is_truncated_to_the_positions_of_the_model() -> None:
    chosen = reader(variant="learned")
    assert chosen.limit is not None
    for method in ("concat", "cad"):
        (reply,) = ask(chosen, method, [["one red dog"] * 200], ["a dog"], GREEDY)
        assert reply.cut.endswith("truncated to fit toy")
    with pytest.raises(UsageError, match="--window"):
        ask(chosen, "entropy", [["one red dog " * 200]], ["a dog"], GREEDY)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_context_aware_decoding_equals_its_formula(alpha: float) -> None:
    chosen = reader(variant="alibi")
    replies = ask(chosen, "cad", CONTEXTS, PROMPTS, GREEDY, alpha=alpha)
    for contexts, prompt, reply in zip(CONTEXTS, PROMPTS, replies, strict=True):
        with_contexts = logprobs_before(chosen, chosen.row(" ".join(contexts), prompt), reply)
        without = logprobs_before(chosen, chosen.row("", prompt), reply)
        pairs = zip(with_contexts, without, strict=True)
        check(reply, [((1 + alpha) * s - alpha * t).log_softmax(-1) for s, t in pairs])


def test_method_none_continues_the_prompt() -> None:
    chosen = reader()
    for prompt, reply in zip(PROMPTS, ask(chosen, "none", [[], ["a dog"], []], PROMPTS, GREEDY), strict=True):
        check(reply, logprobs_before(chosen, chosen.row("", prompt), reply))


def test_best_context_has_the_most_likely_answer() -> None:
    chosen = reader()
    for contexts, prompt, reply in zip(CONTEXTS, PROMPTS, ask(chosen, "best", CONTEXTS, PROMPTS, GREEDY), strict=True):
        each = [ask(chosen, "concat", [[context]], [prompt], GREEDY)[0] for context in contexts]
        scores = [alone.hypotheses[0].score for alone in each]
        assert reply.context == scores.index(max(scores))
        assert reply.scores == pytest.approx(scores, abs=1e-9)
        assert reply.text == each[reply.context].text


@pytest.mark.parametrize("variant", ["rope", "linear", "local"])
def test_retrieval_selects_the_context_of_lowest_prompt_perplexity(variant: str) -> None:
    chosen = reader(variant=variant)
    replies = ask(chosen, "retrieval", CONTEXTS, PROMPTS, GREEDY)
    for contexts, prompt, reply in zip(CONTEXTS, PROMPTS, replies, strict=True):
        perplexities = []
        for row in (chosen.row(context, prompt) for context in contexts):
            whole = torch.tensor([[*row.head, *row.tail]])
            with torch.no_grad():
                logits = chosen.model(None, whole)[0].log_softmax(-1)  # type: ignore[attr-defined]
            logprobs = [float(logits[len(row.head) - 1 + t, i]) for t, i in enumerate(row.tail)]
            perplexities.append(math.exp(-sum(logprobs) / len(logprobs)))
        assert reply.scores == pytest.approx(perplexities, rel=1e-9)
        assert reply.context == perplexities.index(min(perplexities))
        check(reply, logprobs_before(chosen, chosen.row(contexts[reply.context], prompt), reply))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", METHODS)
def test_answers_do_not_depend_on_the_batch(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = reader(variant="alibi")
    spec = SearchConfig(method="sample", n_best=2, max_length=5, seed=3, batch_tokens=100_000)
    together = ask(chosen, method, CONTEXTS, PROMPTS, spec)
    small = spec.model_copy(update={"batch_tokens": 1})
    with monkeypatch.context() as patch:
        patch.setattr(type(chosen), "batch_tokens", 5)
        parts = ask(chosen, method, CONTEXTS, PROMPTS, small)
    for found, expected in zip(parts, together, strict=True):
        logprobs = [h.logprob for h in expected.hypotheses]
        assert [h.ids for h in found.hypotheses] == [h.ids for h in expected.hypotheses]
        assert [h.logprob for h in found.hypotheses] == pytest.approx(logprobs, abs=1e-9)
        assert found.context == expected.context
        assert found.scores == pytest.approx(expected.scores, abs=1e-9)
    # the random draws of a line depend on its number only, so the first prompt can be asked alone
    (first,) = ask(chosen, method, CONTEXTS[:1], PROMPTS[:1], spec)
    assert [h.ids for h in first.hypotheses] == [h.ids for h in together[0].hypotheses]
    assert first.context == together[0].context


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder"])
def test_source_follows_from_question_and_answer(pool: str, shape: str) -> None:
    """An encoder-decoder has no probability of the question."""
    chosen, (contexts, prompt) = reader(shape), (CONTEXTS[0], PROMPTS[0])
    (reply,) = ask(chosen, pool, [contexts], [prompt], GREEDY)
    rows, ids = [chosen.row(text, prompt) for text in contexts], reply.hypotheses[0].ids
    tokens = [
        [float(unmerged_logits(chosen, row, ids[:t]).log_softmax(-1)[token]) for row in rows]
        for t, token in enumerate(ids)
    ]
    questions = []
    for row in rows if shape == "decoder" else ():
        heads = [row._replace(tail=row.tail[:t]) for t in range(1, len(row.tail))]
        each = [unmerged_logits(chosen, head, []).log_softmax(-1) for head in heads]
        questions.append(sum(float(e[token]) for e, token in zip(each, row.tail[1:], strict=True)))
    expected = named_source(len(contexts), tokens, questions)
    assert reply.source is not None
    assert reply.source.shares == pytest.approx(expected.shares, abs=1e-4)
    assert reply.context == expected.context


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("window", "retrieval")])
def test_encoder_decoders_answer_by_all_other_methods(method: str) -> None:
    replies = ask(reader("encoder-decoder"), method, CONTEXTS, PROMPTS, GREEDY)
    assert all(math.isfinite(reply.hypotheses[0].logprob) for reply in replies)


@pytest.mark.parametrize(
    ("shape", "method", "contexts", "prompts", "message"),
    [
        ("decoder", "entropi", CONTEXTS, PROMPTS, "'entropi': did you mean entropy"),
        ("decoder", "concat", [["a"], []], ["a", "b"], "prompt 2 has no context"),
        ("decoder", "concat", [["a"]], ["a", "b"], "1 sets of contexts for 2 prompts"),
        ("encoder-decoder", "retrieval", CONTEXTS, PROMPTS, "retrieval does not work with toy"),
        ("decoder", "window", [["a"]], [""], "prompt is empty"),
    ],
)
def test_invalid_questions_raise(
    shape: str, method: str, contexts: list[list[str]], prompts: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        ask(reader(shape), method, contexts, prompts, GREEDY)


def test_no_prompts_have_no_answers() -> None:
    assert ask(reader(), "concat", [], [], GREEDY) == []


@pytest.mark.parametrize("method", ["entropy", "window", "retrieval", "best"])
def test_thousand_contexts(method: str) -> None:
    contexts = [[f"{'very ' * (n % 7)}red dog" for n in range(1000)]]
    (reply,) = ask(reader(), method, contexts, ["a dog"], SearchConfig(method="greedy", max_length=2))
    assert reply.hypotheses
