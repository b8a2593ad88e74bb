"""Classification by a causal model from 1 to 16 windows of demonstrations.

    python benchmarks/nbce_few_shot.py [--model MODEL] [--draws 10] [--data-dir DIR]

Each draw takes demonstrations at random and distributes them over 16 windows; fewer windows are the first of these, so
all methods and numbers are paired by draw and item. With MODEL, a Hugging Face folder, the model reads every row once,
and the log-probabilities of the labels are stored in results/nbce-few-shot.jsonl.xz (the same command continues with
the draw where it stopped). Then, or without MODEL, the tables are computed from that file, with the pools of `attnkit
nbce --choices`.

Set-up: Ratner et al. 2023, "Parallel context windows for large language models", section 4.
"""

import argparse
import json
import lzma
import os
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from common import RESULTS, arguments, cores, publish, say, table

from attnkit.models.base import Decode
from attnkit.nbce.baselines import SEPARATOR
from attnkit.nbce.merge import POOLS, Rule, merge_rows
from attnkit.nbce.opening import open_model
from attnkit.nbce.reader import CausalReader, PromptRow, join_windows

COUNTS = (1, 2, 4, 8, 16)
ONE_ROW = (4, 16)
"""Numbers of windows that are also read side by side in one row, and one after the other."""
STORED = RESULTS / "nbce-few-shot.jsonl.xz"
BETAS = (0.0, 0.25, 0.5, 1.0, 2.0)
RESAMPLES = 1000
MIN_DRAWS = 5
"""With fewer draws no difference is marked, since they say little about other draws."""
NAMES = {"window": "window (PCW)", "concat": "concat (one full window)"}
Record = dict[str, Any]


class Task(NamedTuple):
    """The form in which the model reads a corpus."""

    form: str
    """Of an example: {0} and {1} are the parts of its source."""
    labels: dict[str, str]
    """Label in the data -> word that the model reads."""
    shots: int
    """Demonstrations in a window."""
    longest: int
    """Maximum tokens of an example; longer ones are not drawn."""
    items: int
    """Test items."""


TASKS = {
    "sst2": Task("Review: {0}\nSentiment:", {"negative": " negative", "positive": " positive"}, 4, 30, 250),
    "cola": Task("Sentence: {0}\nAcceptable:", {"unacceptable": " no", "acceptable": " yes"}, 4, 30, 250),
    "rte": Task(
        "Premise: {0}\nHypothesis: {1}\nPrediction:", {"not_entailment": " False", "entailment": " True"}, 2, 60, 50
    ),
    "boolq": Task("Passage: {1}\nQuestion: {0}?\nAnswer:", {"no": " no", "yes": " yes"}, 1, 100, 60),
}


def examples(reader: CausalReader, name: str, split: str, seed: str, wanted: int) -> list[tuple[str, str]]:
    """Return examples (text, label) drawn at random from a split of a task."""
    task, file = TASKS[name], Path(os.environ["ATTNKIT_DATA"]) / "classify" / name / f"{split}.jsonl"
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    random.Random(seed).shuffle(rows)
    found: list[tuple[str, str]] = []
    for row in rows:
        text = task.form.format(*row["source"].split(" __sep__ "))
        if len(found) < wanted and row["target"] in task.labels and len(reader.encode(text)) <= task.longest:
            found.append((text, row["target"]))
    return found


class DemonstrationCaches(NamedTuple):
    """Key-value caches of the demonstrations of one draw."""

    rows: Decode
    """The empty row, then each window alone."""
    windows: dict[int, Decode]
    """The first n windows side by side in one row."""
    concat: dict[int, Decode]
    """The first n windows one after the other."""

    @classmethod
    def read(cls, reader: CausalReader, windows: Sequence[str]) -> "DemonstrationCaches":
        """Read the windows of a draw; every token of them is read twice in all."""
        heads = [reader.row(text, "a").head for text in ("", *windows)]
        rows = reader.begin([PromptRow(head, (0,)) for head in heads])
        places = torch.arange(len(heads))
        side = {n: join_windows(reader.select(rows, places[1 : n + 1]), n, [0]) for n in ONE_ROW}
        concat, state, before = {}, reader.empty(1), 0
        for n in ONE_ROW:
            ids = [token for head in heads[before + 1 : n + 1] for token in head]
            state = reader.advance(torch.tensor([ids]), state)[1]
            concat[n], before = state, n
        return cls(rows, side, concat)


def measured(reader: CausalReader, caches: DemonstrationCaches, text: str, labels: Sequence[int]) -> Record:
    """Return the log-probabilities of the labels in every row, and the entropies of the rows (nats)."""
    tail = torch.tensor([reader.row("", text).tail])

    def ask(state: Decode, rows: int = 1) -> list[list[float]]:
        logits, _ = reader.step(tail.expand(rows, -1), state)
        logprobs = logits.double().log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1, keepdim=True)
        found = torch.cat((logprobs[:, list(labels)], entropy), 1)
        return [[round(value, 4) for value in row] for row in found.tolist()]

    return {
        "rows": ask(caches.rows, COUNTS[-1] + 1),
        "window": {n: ask(state)[0] for n, state in caches.windows.items()},
        "concat": {n: ask(state)[0] for n, state in caches.concat.items()},
    }


@torch.inference_mode()
def measure(options: argparse.Namespace) -> None:
    """Measure what is not stored yet."""
    reader = open_model(options.model, offline=True)
    assert isinstance(reader, CausalReader)
    done = {(record["task"], record["draw"], record["item"]) for record in stored()}
    for draw in range(options.draws):
        for name, task in TASKS.items():
            labels = [reader.encode(word) for word in task.labels.values()]
            assert all(len(ids) == 1 for ids in labels), "labels must be single tokens"
            items = examples(reader, name, "test", f"items/{name}", task.items)
            left = [number for number in range(len(items)) if (name, draw, number) not in done]
            if not left:
                continue
            start, count = time.perf_counter(), task.shots * COUNTS[-1]
            shown = examples(reader, name, "train", f"demonstrations/{name}/{draw}", count)
            lines = [text + task.labels[label] for text, label in shown]
            windows = [SEPARATOR.join(lines[at :: COUNTS[-1]]) for at in range(COUNTS[-1])]
            caches = DemonstrationCaches.read(reader, windows)
            with lzma.open(STORED, "at", encoding="utf-8") as file:
                for number in left:
                    text, label = items[number]
                    record = {"task": name, "draw": draw, "item": number, "label": list(task.labels).index(label)}
                    record |= measured(reader, caches, text, [ids[0] for ids in labels])
                    print(json.dumps(record, separators=(",", ":")), file=file)
            say(f"{name}, draw {draw + 1}: {time.perf_counter() - start:.0f} s")


def stored() -> list[Record]:
    """Return what was measured so far."""
    if not STORED.exists():
        return []
    with lzma.open(STORED, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


Grid = np.ndarray[tuple[int, int], np.dtype[np.float64]]


def answers(records: Sequence[Record], method: str, windows: int, beta: float) -> torch.Tensor:
    """Return the label that a method chooses for each record, from the stored log-probabilities."""
    rows = torch.tensor([record["rows"] for record in records], dtype=torch.float64)[:, :, :2]
    if method == "zero-shot":
        scores = rows[:, 0]
    elif method in POOLS:
        rule = Rule(method, beta, top_p=1.0)
        first = torch.full((len(records),), -1)
        scores = merge_rows(rows[:, : windows + 1], rule, first).logprobs
    elif windows == 1:
        scores = rows[:, 1]
    else:
        scores = torch.tensor([record[method][str(windows)][:2] for record in records])
    return scores.argmax(1)


def grid(records: Sequence[Record], method: str, windows: int, beta: float = 0.25) -> Grid:
    """Return whether answers are right, [draws, items], without incomplete draws."""
    items = max(record["item"] for record in records) + 1
    found = np.full((max(record["draw"] for record in records) + 1, items), np.nan)
    for record, answer in zip(records, answers(records, method, windows, beta).tolist(), strict=True):
        found[record["draw"], record["item"]] = answer == record["label"]
    return found[~np.isnan(found).any(1)]


def interval(values: Grid) -> tuple[float, float]:
    """Return the 95 % interval of the mean, by resampling of draws and items."""
    generator = np.random.default_rng(1)
    draws, items = values.shape
    means = [
        values[generator.integers(0, draws, draws)][:, generator.integers(0, items, items)].mean()
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def accuracy(values: Grid) -> str:
    """Return the mean in per cent with its interval."""
    low, high = interval(values)
    return f"{100 * values.mean():.0f} ({100 * low:.0f} to {100 * high:.0f})"


def difference(values: Grid, base: Grid) -> str:
    """Return the paired difference in per cent with its interval, marked if the interval excludes 0."""
    low, high = interval(values - base)
    mark = r"\*" if (low > 0 or high < 0) and len(values) >= MIN_DRAWS else ""
    return f"{100 * (values - base).mean():+.0f} ({100 * low:+.0f} to {100 * high:+.0f}){mark}"


def main() -> None:
    options = arguments(__doc__, model=Path, draws=10)
    torch.set_num_threads(cores())
    if options.model:
        measure(options)
    body, all_records = list[str](), stored()
    for name, task in TASKS.items():
        records = [record for record in all_records if record["task"] == name]
        if not records or not len(base := grid(records, "entropy", COUNTS[-1])):
            continue
        draws, items = base.shape
        share = float(np.mean([record["label"] == 0 for record in records if record["draw"] == 0]))
        label = list(task.labels)[share < 0.5]
        body += [
            f"## {name}: {items} test items x {draws} draws, {task.shots} demonstrations a window",
            f"Always answering `{label}` is right for {100 * max(share, 1 - share):.0f} %.",
        ]
        lines = [["zero-shot", *[accuracy(grid(records, "zero-shot", 0))] * len(COUNTS)]]
        for method in (*POOLS, "window", "concat"):
            known = [n for n in COUNTS if method in POOLS or n == 1 or n in ONE_ROW]
            cells = {n: accuracy(grid(records, method, n)) for n in known}
            lines.append([NAMES.get(method, method), *(cells.get(n, "-") for n in COUNTS)])
        body += [table(["windows:", *COUNTS], lines)]
        others = [(method, COUNTS[-1]) for method in (*POOLS[1:], "window", "concat")] + [("zero-shot", 0)]
        lines = [[NAMES.get(method, method), difference(grid(records, method, n), base)] for method, n in others]
        body += [table([f"{COUNTS[-1]} windows", "accuracy minus that of entropy"], lines)]
        lines = [
            [f"{pool}, {n} windows", *(accuracy(grid(records, pool, n, beta)) for beta in BETAS)]
            for pool in ("entropy", "mean")
            for n in ONE_ROW
        ]
        body += [table(["beta:", *(f"{beta:g}" for beta in BETAS)], lines)]
    about = {
        "command": "`python benchmarks/nbce_few_shot.py`",
        "stored": "`results/nbce-few-shot.jsonl.xz`: the log-probabilities of the labels in each row",
        "model": "SmolLM2-135M-Instruct, float32, plain text",
        "accuracy": "per cent, with the 95 % interval over draws and items (both resampled); \\* differs from "
        "entropy; labels are merged as by `--choices`, beta 0.25",
    }
    publish("nbce-few-shot", "Many demonstrations in windows", about, body)


if __name__ == "__main__":
    main()
