"""Many demonstrations in windows: a causal model classifies from 1 to 16 windows of examples.

    python benchmarks/nbce_few_shot.py MODEL [--items N] [--draws 10] --data-dir DIR
    python benchmarks/nbce_few_shot.py --tables

MODEL is a Hugging Face folder.  Each draw takes demonstrations at random and deals them into 16
windows; fewer windows are the first of those, so all methods and numbers are paired by draw and
item.  The first form asks every model row once and keeps the log-probabilities of the labels in
results/nbce-few-shot.jsonl.xz (the same command goes on with the draw where it stopped); the
second computes the tables from that file alone, by the pools of `attnkit nbce --choices`.

Set-up: Ratner et al. 2023, "Parallel context windows for large language models", section 4.
"""

import argparse
import json
import lzma
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from common import RESULTS, cores, publish, say, table

from attnkit.models.base import Decode
from attnkit.nbce.baselines import SEPARATOR
from attnkit.nbce.merge import POOLS, Rule, merge_rows
from attnkit.nbce.opening import open_model
from attnkit.nbce.reader import CausalReader, PromptRow, join_windows

COUNTS = (1, 2, 4, 8, 16)
ONE_ROW = (4, 16)
"""Numbers of windows that are also read side by side, and one behind the other."""
KEPT = RESULTS / "nbce-few-shot.jsonl.xz"
BETAS = (0.0, 0.25, 0.5, 1.0, 2.0)
RESAMPLES = 1000
FEWEST = 5
"""Draws below which no difference is marked: they say little of other draws."""
NAMES = {"window": "window (PCW)", "concat": "concat (one full window)"}
Record = dict[str, Any]


class Task(NamedTuple):
    """How one corpus is put to the model."""

    form: str
    """Of an example: {0} and {1} are the parts of its source."""
    labels: dict[str, str]
    """The label in the data, and the word that the model reads."""
    shots: int
    """Demonstrations in a window."""
    longest: int
    """Tokens of an example; longer ones are not drawn."""
    items: int
    """Test items, unless --items says otherwise."""


TASKS = {
    "sst2": Task("Review: {0}\nSentiment:", {"negative": " negative", "positive": " positive"}, 4, 30, 250),
    "cola": Task("Sentence: {0}\nAcceptable:", {"unacceptable": " no", "acceptable": " yes"}, 4, 30, 250),
    "rte": Task(
        "Premise: {0}\nHypothesis: {1}\nPrediction:", {"not_entailment": " False", "entailment": " True"}, 2, 60, 50
    ),
    "boolq": Task("Passage: {1}\nQuestion: {0}?\nAnswer:", {"no": " no", "yes": " yes"}, 1, 100, 60),
}


def examples(reader: CausalReader, task: Task, file: Path, draw: random.Random, wanted: int) -> list[tuple[str, str]]:
    """Examples (text, label) drawn at random from a file."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    draw.shuffle(rows)
    found = []
    for row in rows:
        text = task.form.format(*row["source"].split(" __sep__ "))
        if len(reader.encode(text)) <= task.longest and row["target"] in task.labels:
            found.append((text, row["target"]))
        if len(found) == wanted:
            break
    return found


class DemonstrationCaches(NamedTuple):
    """What the model has read of the demonstrations of one draw."""

    rows: Decode
    """The empty row, then each window alone."""
    windows: dict[int, Decode]
    """The first n windows side by side in one row."""
    concat: dict[int, Decode]
    """The first n windows one behind the other."""

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
            read = torch.tensor([ids])
            state = reader.advance(read, state)[1]
            concat[n], before = state, n
        return cls(rows, side, concat)


def measured(reader: CausalReader, caches: DemonstrationCaches, text: str, labels: Sequence[int]) -> Record:
    """Log-probabilities of the labels under every row, and the rows' entropies (nats)."""
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
    """Ask the model what is not kept yet."""
    reader = open_model(options.model, offline=True)
    assert isinstance(reader, CausalReader)
    done = {(one["task"], one["draw"], one["item"]) for one in kept()}
    for draw in range(options.draws):
        for name in options.tasks:
            task, folder = TASKS[name], options.data_dir / "classify" / name
            labels = [reader.encode(word) for word in task.labels.values()]
            assert all(len(ids) == 1 for ids in labels), "labels must be single tokens"
            items = examples(
                reader, task, folder / "test.jsonl", random.Random(f"items/{name}"), options.items or task.items
            )
            left = [i for i in range(len(items)) if (name, draw, i) not in done]
            if not left:
                continue
            start = time.perf_counter()
            shown = examples(
                reader,
                task,
                folder / "train.jsonl",
                random.Random(f"demonstrations/{name}/{draw}"),
                task.shots * COUNTS[-1],
            )
            lines = [text + task.labels[label] for text, label in shown]
            windows = [SEPARATOR.join(lines[at :: COUNTS[-1]]) for at in range(COUNTS[-1])]
            caches = DemonstrationCaches.read(reader, windows)
            say(f"{name}, draw {draw + 1}: read in {time.perf_counter() - start:.0f} s")
            records = []
            for item in left:
                text, label = items[item]
                found = measured(reader, caches, text, [ids[0] for ids in labels])
                about = {"task": name, "draw": draw, "item": item, "label": list(task.labels).index(label)}
                records.append(json.dumps(about | found, separators=(",", ":")))
            with lzma.open(KEPT, "at", encoding="utf-8") as kept_file:
                print(*records, sep="\n", file=kept_file)
            say(f"{name}, draw {draw + 1}: {time.perf_counter() - start:.0f} s")


def kept() -> list[Record]:
    """What was measured so far."""
    if not KEPT.exists():
        return []
    with lzma.open(KEPT, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


Grid = np.ndarray[tuple[int, int], np.dtype[np.float64]]


def answers(records: Sequence[Record], method: str, windows: int, beta: float) -> torch.Tensor:
    """The label that a method takes for each record, from the kept log-probabilities."""
    rows = torch.tensor([one["rows"] for one in records], dtype=torch.float64)[:, :, :2]
    if method == "zero-shot":
        scores = rows[:, 0]
    elif method in ("window", "concat") and windows == 1:
        scores = rows[:, 1]
    elif method in ("window", "concat"):
        scores = torch.tensor([one[method][str(windows)][:2] for one in records])
    else:
        rule = Rule(method, beta, top_p=1.0)  # type: ignore[arg-type]
        first = torch.full((len(records),), -1)
        scores = merge_rows(rows[:, : windows + 1], rule, first).logprobs
    return scores.argmax(1)


def grid(records: Sequence[Record], method: str, windows: int, beta: float = 0.25) -> Grid:
    """Right or not, [draws, items]; draws that are not complete are left out."""
    items = max(one["item"] for one in records) + 1
    found = np.full((max(one["draw"] for one in records) + 1, items), np.nan)
    for one, answer in zip(records, answers(records, method, windows, beta).tolist(), strict=True):
        found[one["draw"], one["item"]] = answer == one["label"]
    return found[~np.isnan(found).any(1)]


def interval(values: Grid) -> tuple[float, float]:
    """The 95 % interval of the mean, over draws and items: both are drawn again."""
    random_ = np.random.default_rng(1)
    draws, items = values.shape
    means = [
        values[random_.integers(0, draws, draws)][:, random_.integers(0, items, items)].mean()
        for _ in range(RESAMPLES)
    ]
    low, high = np.quantile(means, (0.025, 0.975))
    return float(low), float(high)


def accuracy(values: Grid) -> str:
    """The mean in per cent with its interval."""
    low, high = interval(values)
    return f"{100 * values.mean():.0f} ({100 * low:.0f} to {100 * high:.0f})"


def difference(values: Grid, base: Grid) -> str:
    """The paired difference in per cent with its interval, marked where 0 lies outside."""
    low, high = interval(values - base)
    mark = r"\*" if (low > 0 or high < 0) and len(values) >= FEWEST else ""
    return f"{100 * (values - base).mean():+.0f} ({100 * low:+.0f} to {100 * high:+.0f}){mark}"


def tables() -> None:
    """Write the page."""
    body: list[str] = []
    for name, task in TASKS.items():
        some = [one for one in kept() if one["task"] == name]
        if not some or not len(base := grid(some, "entropy", COUNTS[-1])):
            continue
        draws, items = base.shape
        share = float(np.mean([one["label"] == 0 for one in some if one["draw"] == 0]))
        label = list(task.labels)[share < 0.5]
        body += [
            f"## {name}: {items} test items x {draws} draws, {task.shots} demonstrations a window",
            "",
            f"Answering `{label}` always is right for {100 * max(share, 1 - share):.0f} %.",
            "",
        ]
        lines = [["zero-shot", *[accuracy(grid(some, "zero-shot", 0))] * len(COUNTS)]]
        for method in (*POOLS, "window", "concat"):
            known = [n for n in COUNTS if method in POOLS or n == 1 or n in ONE_ROW]
            cells = {n: accuracy(grid(some, method, n)) for n in known}
            lines.append([NAMES.get(method, method), *(cells.get(n, "-") for n in COUNTS)])
        body += [*table(["windows:", *map(str, COUNTS)], lines), ""]
        others = [(m, COUNTS[-1]) for m in (*POOLS[1:], "window", "concat")] + [("zero-shot", 0)]
        lines = [[NAMES.get(method, method), difference(grid(some, method, n), base)] for method, n in others]
        title = f"{COUNTS[-1]} windows"
        body += [*table([title, "accuracy minus that of entropy"], lines), ""]
        lines = [
            [f"{pool}, {n} windows", *(accuracy(grid(some, pool, n, beta)) for beta in BETAS)]
            for pool in ("entropy", "mean")
            for n in ONE_ROW
        ]
        body += [*table(["beta:", *(f"{beta:g}" for beta in BETAS)], lines), ""]
    facts = {
        "command": "python benchmarks/nbce_few_shot.py --tables",
        "kept": "`results/nbce-few-shot.jsonl.xz`: the labels' log-probabilities under each row",
        "model": "SmolLM2-135M-Instruct, float32, plain text",
        "accuracy": "per cent, with the 95 % interval over draws and items (both resampled); "
        f"\\* differs from entropy; labels are merged as by `--choices`, beta {0.25:g}",
    }
    publish("nbce-few-shot", "Many demonstrations in windows", facts, body)


def main() -> None:
    """Measure, or compute the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--items", type=int)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(cores())
    if not options.tables:
        measure(options)
    tables()


if __name__ == "__main__":
    main()
