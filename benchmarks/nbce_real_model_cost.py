"""What merging contexts costs beside a plain batched pass over the same rows, on a real model.

    python benchmarks/nbce_real_model_cost.py MODEL --data-dir DIR [--rounds 5]

MODEL is a causal Hugging Face folder.  Passages of Natural Questions are cut to equal lengths; each
answer has so many tokens, whatever it says.  Both ways read the same rows, in turn: attnkit with
prefixes read once and the merge at every token, and transformers alone with the padded batch and
its cache.  Memory is the peak of the process above that with the weights.  Writes a section of
results/nbce-real-model.md.
"""

import argparse
import gc
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import torch
from common import command, cores, load_before, publish_part, table, versions
from nbce_real_model import ORDER, TITLE

from attnkit.data.corpus import Corpus
from attnkit.nbce.merge import Rule
from attnkit.nbce.merged_search import MergedModel
from attnkit.nbce.opening import open_model
from attnkit.nbce.reader import ContextReader, PromptRow
from attnkit.recipe.schema import DataConfig

COUNTS = (1, 2, 4, 8, 16)
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def memory(field: str) -> int:
    """VmRSS (now) or VmHWM (the peak) in bytes."""
    (line,) = [line for line in STATUS.read_text().splitlines() if line.startswith(field)]
    return int(line.split()[1]) * 1024


def passages(reader: ContextReader, options: argparse.Namespace) -> tuple[list[str], str]:
    """Passages of the length asked for, and a question."""
    corpus = Corpus.open(DataConfig(corpus="nq-passages"), "question-answering", data_dir=options.data_dir)
    rows = corpus.questions("test", max(COUNTS))
    text = " ".join(context for row in rows[:64] for context in row.contexts)
    ids, size = reader.encode(text), options.tokens
    cut = [reader.decode(ids[start : start + size]) for start in range(0, 16 * size, size)]
    return cut, rows[0].source


@torch.inference_mode()
def merged(reader: ContextReader, rows: Sequence[PromptRow], tokens: int) -> tuple[float, float]:
    """Seconds until the first token, and for each further one."""
    start = time.perf_counter()
    model, up = MergedModel(reader, Rule()), reader.id_offset
    state = model.start([list(rows)])
    token = torch.tensor([[rows[0].tail[-1] + up]])
    scores, state = model.advance(token, state)
    first = time.perf_counter()
    for _ in range(tokens):
        token = scores[:, 0, up:].argmax(-1, keepdim=True) + up  # never the end
        scores, state = model.advance(token, state)
    return first - start, (time.perf_counter() - first) / tokens


@torch.inference_mode()
def plain(reader: Any, rows: Sequence[PromptRow], tokens: int) -> tuple[float, float]:
    """The same of transformers alone: all rows go on with the likeliest token of the first."""
    start = time.perf_counter()
    whole = [(*row.head, *row.tail) for row in rows]
    longest = max(map(len, whole))
    ids = torch.tensor([[0] * (longest - len(row)) + list(row) for row in whole])
    valid = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in whole])
    given: dict[str, Any] = {"use_cache": True, "logits_to_keep": 1}
    positions = (valid.cumsum(1) - 1).clamp_min(0)
    out = reader.model(input_ids=ids, attention_mask=valid, position_ids=positions, **given)
    first = time.perf_counter()
    last = positions[:, -1:]
    for _ in range(tokens):
        token = out.logits[:1, -1:].argmax(-1).expand(len(rows), 1)
        valid, last = torch.cat((valid, valid.new_ones(len(rows), 1)), 1), last + 1
        out = reader.model(
            input_ids=token, attention_mask=valid, position_ids=last, past_key_values=out.past_key_values, **given
        )
    return first - start, (time.perf_counter() - first) / tokens


def measured(reader: ContextReader, texts: Sequence[str], prompt: str, options: argparse.Namespace) -> list[str]:
    """One row of the table."""
    rows = [reader.row(text, prompt) for text in ("", *texts)]
    gc.collect()
    before = memory("VmRSS")
    RESET.write_text("5")  # the peak begins anew
    merged(reader, rows, options.answer)
    peak = memory("VmHWM") - before
    pairs = [
        (merged(reader, rows, options.answer), plain(reader, rows, options.answer)) for _ in range(options.rounds)
    ]
    begun, each = (median(a[at] / b[at] for a, b in pairs) for at in (0, 1))
    ours, theirs = (median(pair[at][1] for pair in pairs) for at in (0, 1))
    return [
        f"{len(texts)}",
        f"{1e3 * ours:.0f}",
        f"{1e3 * theirs:.0f}",
        f"{each:.2f}",
        f"{begun:.2f}",
        f"{peak / 1e6:,.0f}",
    ]


def main() -> None:
    """Measure and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, default=200)
    parser.add_argument("--answer", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(cores())
    before = load_before()
    reader = open_model(options.model, dtype=options.dtype, offline=True)
    texts, prompt = passages(reader, options)
    found = [measured(reader, texts[:count], prompt, options) for count in COUNTS]
    facts = {
        "command": command(options, model="MODEL", data_dir="DIR"),
        "versions": versions("attnkit", "torch", "transformers"),
        "model": f"{options.model.name}, {options.dtype}, {cores()} thread",
        "rows": f"passages of {options.tokens} tokens and one row without; {options.answer} tokens",
        "load": before,
    }
    heads = [
        "passages",
        "ms a token, merged",
        "ms a token, plain",
        "ratio",
        "ratio until the first token",
        "peak MB above the weights",
    ]
    body = [
        "Ratios are medians over pairs of rounds. Until the first token merging reads what rows "
        "begin with in common once, the plain pass all rows whole.",
        "",
        *table(heads, found),
    ]
    publish_part("nbce-real-model", TITLE, "cost", ORDER, facts, body)


if __name__ == "__main__":
    main()
