"""Each method against a plain computation: whole passes over one row, without caches."""

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
from attnkit.nbce.answer import BASELINES, METHODS, Reply, ask
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
    """Tokens of the best hypothesis, its end token included."""
    best = reply.hypotheses[0]
    return [*best.ids, *[EOS] * best.complete]


def check(reply: Reply, scores: Sequence[Tensor]) -> None:
    """That greedy search over these rows of log-probabilities finds the reply, with its score."""
    total = 0.0
    for row, token in zip(scores, outputs(reply), strict=True):
        total += float(row[token])
        allowed = row.clone()
        allowed[[PAD, UNK, BOS]] = -math.inf
        assert int(allowed.argmax()) == token
    assert reply.hypotheses[0].logprob == pytest.approx(total, abs=1e-9)


def told(chosen: ContextReader, row: PromptRow, reply: Reply) -> list[Tensor]:
    """Log-probabilities behind a row, before each token of the reply."""
    ids = outputs(reply)
    return [unmerged_logits(chosen, row, ids[:t]).log_softmax(-1) for t in range(len(ids))]


def windowed(chosen: ContextReader, contexts: Sequence[str], prompt: str, ids: Sequence[int]) -> Tensor:
    """Logits [V] behind windows of one row: a dense matrix of who sees whom, in one pass."""
    inner = chosen.model  # type: ignore[attr-defined]
    encoded = [chosen.encode(text) for text in contexts]
    after = [*chosen.encode(prompt), *ids]
    longest = max(map(len, encoded))
    row, window, place = [BOS], [0], [0]
    for number, some in enumerate(encoded, 1):
        row += some
        window += [number] * len(some)
        place += range(1, 1 + len(some))
    row += after
    window += [-1] * len(after)
    place += range(1 + longest, 1 + longest + len(after))
    groups, order = torch.tensor(window), torch.arange(len(row))
    seen = (groups == 0) | (groups[:, None] == groups) | (groups[:, None] == -1)
    matrix = (seen & (order[:, None] >= order))[None, None]

    class Blocks(Mask):
        def dense(self) -> Tensor:
            return matrix

    positions = torch.tensor([place])
    mask = Blocks(positions, positions, torch.ones(1, len(row), dtype=torch.bool), True)
    with torch.no_grad():
        x = inner.embed_target(torch.tensor([row]), positions)
        return inner.output(inner.decoder(x, mask)[0])[0, -1]


@pytest.mark.parametrize("variant", ["learned", "rope", "alibi", "relative", "none", "gaussian", "synthesizer-random"])
def test_windows_are_a_block_mask_over_one_row(variant: str) -> None:
    chosen = reader(variant=variant)
    for contexts, prompt, reply in zip(
        CONTEXTS, PROMPTS, ask(chosen, "window", CONTEXTS, PROMPTS, GREEDY), strict=True
    ):
        ids = outputs(reply)
        rows = [windowed(chosen, contexts, prompt, ids[:t]) for t in range(len(ids))]
        check(reply, [row.log_softmax(-1) for row in rows])


@pytest.mark.parametrize("variant", ["linear", "performer", "gated-delta", "local", "sparse"])
def test_windows_are_refused_where_caches_do_not_join(variant: str) -> None:
    with pytest.raises(UsageError, match="window does not work with toy: its attention .*another method"):
        ask(reader(variant=variant), "window", CONTEXTS, PROMPTS, GREEDY)
    with pytest.raises(UsageError, match="encoder-decoder reads each context in a separate source"):
        ask(reader("encoder-decoder"), "window", CONTEXTS, PROMPTS, GREEDY)


@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_concatenation_is_what_generation_answers(method: str) -> None:
    chosen, spec = reader(), SearchConfig(method=method, beam=3, max_length=6)  # type: ignore[arg-type]
    replies = ask(chosen, "concat", CONTEXTS, PROMPTS, spec)
    for contexts, prompt, reply in zip(CONTEXTS, PROMPTS, replies, strict=True):
        ids = [BOS, *chosen.encode(" ".join(contexts)), *chosen.encode(prompt)]
        source, first = torch.tensor([ids[:-1]]), torch.tensor([[ids[-1]]])
        ((wanted,),) = search(model("decoder", "rope"), source, spec, lines=[0], first=first)
        assert reply.hypotheses[0].ids == wanted.ids
        assert reply.hypotheses[0].logprob == pytest.approx(wanted.logprob, abs=1e-9)
        assert reply.text == chosen.decode(wanted.ids)
        assert not reply.cut


def test_a_concatenation_that_does_not_fit_is_cut_and_says_so() -> None:
    chosen = reader()
    texts = ["one red dog and", "two cats and"] * 5
    ids = chosen.encode(" ".join(texts))
    room = 1 + 12 + len(chosen.encode("a dog")) + GREEDY.max_length
    (reply,) = ask(chosen, "concat", [texts], ["a dog"], GREEDY, limit=room)
    match = re.fullmatch(
        rf"the last (\d+) of {len(ids)} context tokens were truncated to fit {room} tokens, "
        "output included",
        reply.cut,
    )
    assert match
    left = len(ids) - int(match[1])
    kept = chosen.decode(ids[:left])
    # half a word may take a token more when it is encoded by itself
    assert room - 1 <= chosen.row(kept, "a dog").longest + GREEDY.max_length <= room
    (wanted,) = ask(chosen, "concat", [[kept]], ["a dog"], GREEDY)
    assert reply.hypotheses == wanted.hypotheses


@pytest.mark.parametrize("method", ["concat", "cad"])
def test_a_limit_without_room_for_prompt_and_answer_is_refused(method: str) -> None:
    chosen = reader()
    least = chosen.row("", "a dog").longest + GREEDY.max_length
    with pytest.raises(
        UsageError,
        match=f"the prompt and an output of .* need {least} tokens, but a row has at most {least - 1}: lower",
    ):
        ask(chosen, method, [["one red dog"]], ["a dog"], GREEDY, limit=least - 1)
    (reply,) = ask(chosen, method, [["one red dog"]], ["a dog"], GREEDY, limit=least)
    assert "the last" in reply.cut


def test_a_concatenation_is_cut_to_the_positions_of_a_model() -> None:
    chosen = reader(variant="learned")
    assert chosen.limit is not None
    for method in ("concat", "cad"):
        (reply,) = ask(chosen, method, [["one red dog"] * 200], ["a dog"], GREEDY)
        assert reply.cut.endswith("truncated to fit toy")
    with pytest.raises(UsageError, match="--window"):
        ask(chosen, "entropy", [["one red dog " * 200]], ["a dog"], GREEDY)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0])
def test_context_aware_decoding_is_its_formula(alpha: float) -> None:
    chosen = reader(variant="alibi")
    replies = ask(chosen, "cad", CONTEXTS, PROMPTS, GREEDY, alpha=alpha)
    for contexts, prompt, reply in zip(CONTEXTS, PROMPTS, replies, strict=True):
        given = told(chosen, chosen.row(" ".join(contexts), prompt), reply)
        bare = told(chosen, chosen.row("", prompt), reply)
        pairs = zip(given, bare, strict=True)
        check(reply, [((1 + alpha) * s - alpha * t).log_softmax(-1) for s, t in pairs])


def test_without_context_the_prompt_is_continued() -> None:
    chosen = reader()
    for prompt, reply in zip(PROMPTS, ask(chosen, "none", [[], ["a dog"], []], PROMPTS, GREEDY), strict=True):
        check(reply, told(chosen, chosen.row("", prompt), reply))


def test_the_best_context_is_the_one_with_the_likeliest_answer() -> None:
    chosen = reader()
    for contexts, prompt, reply in zip(CONTEXTS, PROMPTS, ask(chosen, "best", CONTEXTS, PROMPTS, GREEDY), strict=True):
        each = [ask(chosen, "concat", [[one]], [prompt], GREEDY)[0] for one in contexts]
        scores = [one.hypotheses[0].score for one in each]
        assert reply.context == scores.index(max(scores))
        assert reply.scores == pytest.approx(scores, abs=1e-9)
        assert reply.text == each[reply.context].text


@pytest.mark.parametrize("variant", ["rope", "linear", "local"])
def test_retrieval_asks_the_context_that_expects_the_prompt(variant: str) -> None:
    chosen = reader(variant=variant)
    for contexts, prompt, reply in zip(
        CONTEXTS, PROMPTS, ask(chosen, "retrieval", CONTEXTS, PROMPTS, GREEDY), strict=True
    ):
        wanted = []
        rows = [chosen.row(one, prompt) for one in contexts]
        for row in rows:
            whole = torch.tensor([[*row.head, *row.tail]])
            with torch.no_grad():
                logits = chosen.model(None, whole)[0].log_softmax(-1)  # type: ignore[attr-defined]
            spent = [float(logits[len(row.head) - 1 + t, i]) for t, i in enumerate(row.tail)]
            wanted.append(math.exp(-sum(spent) / len(spent)))
        assert reply.scores == pytest.approx(wanted, rel=1e-9)
        assert reply.context == wanted.index(min(wanted))
        check(reply, told(chosen, chosen.row(contexts[reply.context], prompt), reply))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("method", METHODS)
def test_prompts_together_answer_as_one_by_one_whatever_the_memory(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = reader(variant="alibi")
    spec = SearchConfig(method="sample", n_best=2, max_length=5, seed=3, batch_tokens=100_000)
    together = ask(chosen, method, CONTEXTS, PROMPTS, spec)
    small = spec.model_copy(update={"batch_tokens": 1})
    with monkeypatch.context() as patch:
        patch.setattr(type(chosen), "batch_tokens", 5)
        parts = ask(chosen, method, CONTEXTS, PROMPTS, small)
    for one, other in zip(together, parts, strict=True):
        assert [h.ids for h in one.hypotheses] == [h.ids for h in other.hypotheses]
        assert [h.logprob for h in one.hypotheses] == pytest.approx([h.logprob for h in other.hypotheses], abs=1e-9)
        assert one.context == other.context
        assert one.scores == pytest.approx(other.scores, abs=1e-9)
    # a line's draws follow from its number, so the first prompt can be asked by itself
    (first,) = ask(chosen, method, CONTEXTS[:1], PROMPTS[:1], spec)
    assert [h.ids for h in first.hypotheses] == [h.ids for h in together[0].hypotheses]
    assert first.context == together[0].context


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder"])
def test_the_source_is_named_from_question_and_answer(pool: str, shape: str) -> None:
    """From whole passes; an encoder-decoder gives the question no probability."""
    chosen, (contexts, prompt) = reader(shape), (CONTEXTS[0], PROMPTS[0])
    (reply,) = ask(chosen, pool, [contexts], [prompt], GREEDY)
    rows, ids = [chosen.row(text, prompt) for text in contexts], reply.hypotheses[0].ids
    tokens = [
        [float(unmerged_logits(chosen, row, ids[:t]).log_softmax(-1)[token]) for row in rows]
        for t, token in enumerate(ids)
    ]
    asked = []
    for row in rows if shape == "decoder" else ():
        heads = [row._replace(tail=row.tail[:t]) for t in range(1, len(row.tail))]
        each = [unmerged_logits(chosen, head, []).log_softmax(-1) for head in heads]
        asked.append(sum(float(e[token]) for e, token in zip(each, row.tail[1:], strict=True)))
    wanted = named_source(len(contexts), tokens, asked)
    assert reply.source is not None
    assert reply.source.shares == pytest.approx(wanted.shares, abs=1e-4)
    assert reply.context == wanted.context


@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("window", "retrieval")])
def test_encoder_decoders_answer_by_every_method_that_needs_no_tail(method: str) -> None:
    replies = ask(reader("encoder-decoder"), method, CONTEXTS, PROMPTS, GREEDY)
    assert all(math.isfinite(reply.hypotheses[0].logprob) for reply in replies)


def test_what_cannot_be_asked_is_refused() -> None:
    with pytest.raises(UsageError, match="'entropi': did you mean entropy"):
        ask(reader(), "entropi", CONTEXTS, PROMPTS, GREEDY)
    with pytest.raises(UsageError, match="prompt 2 has no context"):
        ask(reader(), "concat", [["a"], []], ["a", "b"], GREEDY)
    with pytest.raises(UsageError, match="1 sets of contexts for 2 prompts"):
        ask(reader(), "concat", [["a"]], ["a", "b"], GREEDY)
    with pytest.raises(UsageError, match="retrieval does not work with toy"):
        ask(reader("encoder-decoder"), "retrieval", CONTEXTS, PROMPTS, GREEDY)
    with pytest.raises(UsageError, match="prompt is empty"):
        ask(reader(), "window", [["a"]], [""], GREEDY)
    assert ask(reader(), "concat", [], [], GREEDY) == []
    assert set(BASELINES) < set(METHODS)


def test_a_thousand_contexts_are_read() -> None:
    contexts = [[f"{'very ' * (n % 7)}red dog" for n in range(1000)]]
    spec = SearchConfig(method="greedy", max_length=2)
    for method in ("entropy", "window", "retrieval", "best"):
        (reply,) = ask(reader(), method, contexts, ["a dog"], spec)
        assert reply.hypotheses
