"""Cost of merging contexts, compared with a plain batched pass over the same rows, on a real model.

    python benchmarks/nbce_real_model_cost.py MODEL --data-dir DIR [--rounds 5]

MODEL is a causal Hugging Face folder. Passages of Natural Questions are cut to equal lengths, and every answer has the
same number of tokens. Both read the same rows, in turn: attnkit with prefixes that are read once and a merge at every
token, and transformers alone with the padded batch and its cache. Memory is the peak of the process minus its memory
with the weights. Writes a section of results/nbce-real-model.md.
"""

import gc
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import arguments, cores, facts, publish, table
from nbce_real_model import COUNTS, ORDER, TITLE

from attnkit.data.corpus import Corpus
from attnkit.nbce.merge import Rule
from attnkit.nbce.merged_search import MergedModel
from attnkit.nbce.opening import open_model
from attnkit.nbce.reader import ContextReader, PromptRow
from attnkit.recipe.schema import DataConfig

TOKENS, ANSWER = 200, 16
"""Tokens of a passage and of an answer."""


def memory(field: str) -> int:
    """Return VmRSS (now) or VmHWM (the peak) in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def passages(reader: ContextReader) -> tuple[list[str], str]:
    """Return passages of TOKENS tokens, and a question."""
    rows = Corpus.open(DataConfig(corpus="nq-passages"), "question-answering").questions("test", max(COUNTS))
    ids = reader.encode(" ".join(context for row in rows[:64] for context in row.contexts))
    starts = range(0, max(COUNTS) * TOKENS, TOKENS)
    return [reader.decode(ids[start : start + TOKENS]) for start in starts], rows[0].source


@torch.inference_mode()
def merged(reader: ContextReader, rows: Sequence[PromptRow]) -> tuple[float, float]:
    """Return the seconds until the first token, and for each further token."""
    start = time.perf_counter()
    model, offset = MergedModel(reader, Rule()), reader.id_offset
    state = model.start([list(rows)])
    token = torch.tensor([[rows[0].tail[-1] + offset]])
    scores, state = model.advance(token, state)
    first = time.perf_counter()
    for _ in range(ANSWER):
        token = scores[:, 0, offset:].argmax(-1, keepdim=True) + offset  # never the end
        scores, state = model.advance(token, state)
    return first - start, (time.perf_counter() - first) / ANSWER


@torch.inference_mode()
def plain(reader: Any, rows: Sequence[PromptRow]) -> tuple[float, float]:
    """Return the same for transformers alone: all rows continue with the likeliest token of the first."""
    start = time.perf_counter()
    whole = [[*row.head, *row.tail] for row in rows]
    longest = max(map(len, whole))
    ids = torch.tensor([[0] * (longest - len(row)) + row for row in whole])
    valid = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in whole])
    given: dict[str, Any] = {"use_cache": True, "logits_to_keep": 1}
    positions = (valid.cumsum(1) - 1).clamp_min(0)
    out = reader.model(input_ids=ids, attention_mask=valid, position_ids=positions, **given)
    first = time.perf_counter()
    last = positions[:, -1:]
    for _ in range(ANSWER):
        token = out.logits[:1, -1:].argmax(-1).expand(len(rows), 1)
        valid, last = torch.cat((valid, valid.new_ones(len(rows), 1)), 1), last + 1
        given["past_key_values"] = out.past_key_values
        out = reader.model(input_ids=token, attention_mask=valid, position_ids=last, **given)
    return first - start, (time.perf_counter() - first) / ANSWER


def measured(reader: ContextReader, texts: Sequence[str], prompt: str, rounds: int) -> list[str]:
    """Return one row of the table."""
    rows = [reader.row(text, prompt) for text in ("", *texts)]
    gc.collect()
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    merged(reader, rows)
    peak = memory("VmHWM") - before
    pairs = [(merged(reader, rows), plain(reader, rows)) for _ in range(rounds)]
    first, each = (median(ours[at] / theirs[at] for ours, theirs in pairs) for at in (0, 1))
    times = [f"{1e3 * median(pair[side][1] for pair in pairs):.0f}" for side in (0, 1)]
    return [f"{len(texts)}", *times, f"{each:.2f}", f"{first:.2f}", f"{peak / 1e6:,.0f}"]


def main() -> None:
    options = arguments(__doc__, "model", rounds=5)
    torch.set_num_threads(cores())
    about = facts(options, "transformers")
    reader = open_model(options.model, dtype="bfloat16", offline=True)
    texts, prompt = passages(reader)
    rows = [measured(reader, texts[:count], prompt, options.rounds) for count in COUNTS]
    about |= {
        "model": f"{options.model.name}, bfloat16, {cores()} thread",
        "rows": f"passages of {TOKENS} tokens and one row without; {ANSWER} tokens",
    }
    header = "passages | ms a token, merged | ms a token, plain | ratio | ratio until the first token"
    body = [
        "Ratios are medians over pairs of rounds. Until the first token, merging reads the common beginning of rows "
        "once, the plain pass reads all rows whole.",
        table(f"{header} | peak MB above the weights", rows),
    ]
    publish("nbce-real-model", TITLE, about, body, "cost", ORDER)


if __name__ == "__main__":
    main()
