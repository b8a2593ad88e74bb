"""Labels instead of text: which of a few answers a model finds likeliest, with many contexts."""

from collections.abc import Sequence
from itertools import permutations

import torch
from jaxtyping import Float
from torch import Tensor

from attnkit.errors import NotFiniteError, UsageError
from attnkit.nbce.answer import Reply, check_method, context_pairs, merging_rule, rows_of
from attnkit.nbce.baselines import prompt_perplexities
from attnkit.nbce.merge import POOLS, Rule, merge_rows
from attnkit.nbce.reader import ContextReader, PromptRow, padded
from attnkit.nbce.sources import named_source
from attnkit.search.base import score_type


@torch.inference_mode()
def choose(
    reader: ContextReader,
    method: str,
    contexts: Sequence[Sequence[str]],
    prompts: Sequence[str],
    choices: Sequence[str],
    rule: Rule = Rule(),  # noqa: B008 (immutable)
    *,
    alpha: float = 0.5,
    limit: int | None = None,
) -> list[Reply]:
    """The likeliest of the choices for each prompt, by any method of `answer.ask`.

    A choice is scored by the log-probability of all its tokens behind the prompt; no end token is
    asked for.  Each row's scores are made a distribution over the choices, which pools merge by
    their formula: with `entropy` the context decides that is surest of one choice.  Nothing is
    cut: `top_p` and `eta` do nothing.

    Args:
        reader, method, contexts, prompts, rule, alpha, limit: as `answer.ask`.
        choices: at least two texts; none may begin with another one's tokens.

    Raises:
        UsageError: as `answer.ask`, or the choices cannot be told apart.
        NotFiniteError: the model answers NaN.
    """
    check_method(reader, method)
    encoded = encode_choices(reader, choices)
    longest = max(map(len, encoded))
    merging = merging_rule(method, rule._replace(eta=0, top_p=1), alpha)
    found = []
    for texts, prompt in context_pairs(method, contexts, prompts):
        rows, cut = rows_of(reader, method, texts, prompt, longest, limit)
        if merging is not None:
            merging.check(len(rows) - 1)
        reader.check(rows, longest)
        at = source = None
        if method == "retrieval":
            perplexities = prompt_perplexities(reader, rows)
            at = perplexities.index(min(perplexities))
            rows = [rows[at]]
        scores, asked = label_logprobs(reader, rows, encoded, scored=method in POOLS)
        if method == "best":
            at = int(scores.amax(1).argmax())
            scores = scores[at : at + 1]
        if merging is None:
            logprobs = scores[0].log_softmax(-1)
        else:
            merged = merge_rows(scores[None], merging, torch.tensor([-1], device=scores.device))
            logprobs = merged.logprobs[0]
        best = int(logprobs.argmax())
        if method in POOLS:
            parts = scores[1:].log_softmax(-1)[:, best].tolist()
            source = named_source(len(texts), [parts], asked)
            at = source.context
        probabilities = dict(zip(choices, logprobs.exp().tolist(), strict=True))
        found.append(Reply(choices[best], [], [], at, (), cut, source, probabilities))
    return found


def encode_choices(reader: ContextReader, choices: Sequence[str]) -> list[list[int]]:
    """The tokens of each choice behind a prompt.

    Raises UsageError: there are fewer than two, one is empty, or one begins with another.
    """
    if len(choices) < 2:
        raise UsageError("choices: give at least two, as in positive,negative")
    encoded = [reader.encode_answer(choice) for choice in choices]
    for (one, ids), (other, longer) in permutations(zip(choices, encoded, strict=True), 2):
        if longer[: len(ids)] == ids:
            raise UsageError(
                f"choices: {other!r} begins with the tokens of {one!r}, so they cannot be told "
                "apart: word them otherwise"
            )
    return encoded


def label_logprobs(
    reader: ContextReader,
    rows: Sequence[PromptRow],
    choices: Sequence[Sequence[int]],
    *,
    scored: bool = False,
) -> tuple[Float[Tensor, "R C"], tuple[float, ...]]:
    """Log-probabilities of choices behind each row, and of the prompt behind rows 1, 2, ...

    The rows are read once; only choices of several tokens are read further, each in rows of its
    own.  The prompt's are () unless `scored`, and for readers that cannot tell.

    Raises NotFiniteError: the model answers NaN.
    """
    if scored and reader.scores_prompts:
        state, values = reader.begin_scored(rows)
        asked = tuple(values[1:].tolist())
    else:
        state, asked = reader.begin(rows), ()
    last = torch.tensor([[row.tail[-1]] for row in rows], device=reader.device)
    logits, state = reader.step(last, state)
    first = logits.to(score_type(logits)).log_softmax(-1)  # [R, V]
    scores = first[:, [ids[0] for ids in choices]]  # [R, C]
    longer = [place for place, ids in enumerate(choices) if len(ids) > 1]
    if longer:
        ids, real = (t.to(reader.device) for t in padded([choices[place] for place in longer]))
        each = torch.arange(len(rows), device=reader.device).repeat_interleave(len(longer))
        state = reader.select(state, each)
        for column in range(ids.shape[1] - 1):
            logits, state = reader.step(ids[:, column, None].repeat(len(rows), 1), state)
            logprobs = logits.to(scores.dtype).log_softmax(-1)
            after = ids[:, column + 1, None].repeat(len(rows), 1)
            more = logprobs.gather(1, after).view(len(rows), -1)
            scores[:, longer] += more.masked_fill(~real[:, column + 1], 0)
    if scores.isnan().any():
        raise NotFiniteError(f"{reader.name} answers NaN: its weights are damaged")
    return scores, asked
