"""Classification: log-probabilities of given answers after each row."""

from collections.abc import Sequence
from itertools import permutations

import torch
from jaxtyping import Float
from torch import Tensor

from attnkit.errors import NotFiniteError, UsageError
from attnkit.nbce.reader import ContextReader, PromptRow, pad_rows
from attnkit.search.base import score_type


def encode_choices(reader: ContextReader, choices: Sequence[str]) -> dict[str, list[int]]:
    """Encode choices; raises UsageError if there are fewer than two, or one is empty, repeated or another's prefix."""
    if len({*choices}) < max(2, len(choices)):
        raise UsageError("choices: give at least two distinct answers, as in positive,negative")
    encoded = {choice: reader.encode_answer(choice) for choice in choices}
    for (choice, ids), (other, other_ids) in permutations(encoded.items(), 2):
        if other_ids[: len(ids)] == ids:
            raise UsageError(
                f"choices: {other!r} begins with all tokens of {choice!r}: rephrase one of the two choices"
            )
    return encoded


@torch.inference_mode()
def label_logprobs(
    reader: ContextReader, rows: Sequence[PromptRow], choices: Sequence[Sequence[int]], *, scored: bool = False
) -> tuple[Float[Tensor, "R C"], tuple[float, ...]]:
    """Compute log-probabilities of each choice after each row, and of the prompt given each context (rows 1, 2, ...).

    The rows are read once; only choices of several tokens are read further, each in its own copy of the rows. The
    prompt's log-probabilities are () unless `scored` and `reader.scores_prompts`. Raises NotFiniteError for NaN.
    """
    if scored and reader.scores_prompts:
        state, values = reader.begin_scored(rows)
        prompt_logprobs = tuple(values[1:].tolist())
    else:
        state, prompt_logprobs = reader.begin(rows), ()
    last = torch.tensor([[row.tail[-1]] for row in rows], device=reader.device)
    logits, state = reader.step(last, state)
    first = logits.to(score_type(logits)).log_softmax(-1)  # [R, V]
    scores = first[:, [ids[0] for ids in choices]]  # [R, C]
    longer = [index for index, ids in enumerate(choices) if len(ids) > 1]
    if longer:
        ids, real = (t.to(reader.device) for t in pad_rows([choices[index] for index in longer]))
        copies = torch.arange(len(rows), device=reader.device).repeat_interleave(len(longer))
        state = reader.select(state, copies)
        for column in range(ids.shape[1] - 1):
            logits, state = reader.step(ids[:, column, None].repeat(len(rows), 1), state)
            logprobs = logits.to(scores.dtype).log_softmax(-1)
            next_ids = ids[:, column + 1, None].repeat(len(rows), 1)
            next_logprobs = logprobs.gather(1, next_ids).view(len(rows), -1)
            scores[:, longer] += next_logprobs.masked_fill(~real[:, column + 1], 0)
    if scores.isnan().any():
        raise NotFiniteError(f"{reader.name} outputs NaN: its weights are damaged")
    return scores, prompt_logprobs
