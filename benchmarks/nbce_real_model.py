"""Many passages read by a language model from elsewhere: every method, by number of contexts.

    python benchmarks/nbce_real_model.py MODEL [--chat] [--corpus nq-passages] [--rows 40]
        [--part methods|settings|length] [--work FOLDER] --data-dir DIR

MODEL is a Hugging Face folder.  Each passage is read once for all methods that read it alone.  Done
questions are kept in FOLDER, from which the same command goes on.  Writes a section of
results/nbce-real-model.md and of results/nbce-real-model.json.

The perplexity of the gold answer is that of its tokens and the end token, given the question; the
rows are merged uncut (top_p 1), since a cut token would make it infinite.
"""

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, get_args

import torch
from common import RESULTS, command, cores, keep_others, load_before, publish_part, say, table, versions

from attnkit.data.corpus import Corpus
from attnkit.data.questions import QuestionSet, accepted
from attnkit.data.tokenizer import EOS
from attnkit.models.base import Decode
from attnkit.nbce import baselines
from attnkit.nbce.answer import ask
from attnkit.nbce.merge import POOLS, Rule
from attnkit.nbce.merged_search import MergedModel
from attnkit.nbce.opening import open_model
from attnkit.nbce.question_sets import deciding_context, pooling
from attnkit.nbce.reader import ContextReader, PromptRow
from attnkit.recipe.after_training import Method
from attnkit.recipe.schema import ContextsConfig, DataConfig, EvalConfig, SearchConfig
from attnkit.scoring import context_found, score
from attnkit.scoring.metrics import Score
from attnkit.scoring.significance import compare, corrected

COUNTS = (1, 2, 4, 8, 16)
METHODS = get_args(Method)
LIKELIHOOD = (*POOLS, "concat", "window", "none")
METRICS = ("answer-match", "answer-f1", "answer-contained")
NAMES = {
    "answer-match": "exact match",
    "answer-f1": "F1",
    "answer-contained": "answer contained",
    "context-found": "context found",
    "gold": "perplexity of the gold answer",
    "entropy": "entropy of the first token (nats)",
}
SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    *(("beta", {"beta": beta}) for beta in (0.0, 0.25, 0.5, 1.0)),
    *(("eta", {"eta": eta}) for eta in (0.0, 0.1, 0.5, 2.0)),
    *(("top_p", {"top_p": top_p}) for top_p in (0.5, 0.8, 0.95, 1.0)),
)
"""What is changed of the defaults of pool entropy, one at a time."""
PASSAGES = 8
"""Of a question, in the ablations."""
SPEC = SearchConfig(method="greedy", max_length=16)
PARTS = ("methods", "settings", "length")
TITLE = "Many passages and a real language model"
ORDER = (
    *(
        f"{corpus}.{how}.{part}"
        for part in PARTS
        for corpus in ("nq-passages", "xquad-en")
        for how in ("chat", "plain")
    ),
    "cost",
)
"""Sections of the result."""
Record = dict[str, Any]


class SharedRows:
    """Reads the rows of a question once; `begin` of some of them takes them from there."""

    def __init__(self, reader: ContextReader) -> None:
        self.plain, self.rows = reader.begin, dict[PromptRow, int]()
        self.state: Any = None
        self.other: dict[tuple[PromptRow, ...], Decode] = {}

    def read(self, rows: Sequence[PromptRow]) -> None:
        """Read these, and forget those of the question before."""
        self.other.clear()
        self.rows = {row: place for place, row in enumerate(dict.fromkeys(rows))}
        self.state = self.plain(list(self.rows))

    def begin(self, reader: ContextReader, rows: Sequence[PromptRow]) -> Decode:
        """In the place of the reader's own."""
        if any(row not in self.rows for row in rows):
            if tuple(rows) not in self.other:
                self.other[tuple(rows)] = self.plain(rows)
            return self.other[tuple(rows)]
        places = torch.tensor([self.rows[row] for row in rows], device=reader.device)
        return reader.select(self.state, places, places)


@torch.inference_mode()
def likelihood(
    reader: ContextReader, method: str, contexts: Sequence[str], prompt: str, gold: str
) -> tuple[float, float]:
    """Perplexity of the gold answer and its end, and the entropy of its first token, in nats."""
    limit = reader.limit
    rows, rule = [reader.row(text, prompt) for text in ("", *contexts)], None
    if method in POOLS:
        rule = Rule(method, top_p=1.0)
    elif method == "concat":
        rows = [baselines.concatenate(reader, contexts, prompt, SPEC.max_length, limit=limit)[0]]
    else:
        window = method == "window"
        rows = [baselines.parallel_windows(reader, contexts, prompt)] if window else rows[:1]
    model = MergedModel(reader, rule)
    state = model.start([rows])
    up = reader.id_offset  # tokens are those of the search from here on
    text = gold if getattr(reader, "chat", False) else f" {gold}"  # a chat begins a line
    tokens = [*(token + up for token in reader.encode(text)), EOS]
    total, first, token = 0.0, 0.0, rows[0].tail[-1] + up
    for place, following in enumerate(tokens):
        logprobs, state = model.advance(torch.tensor([[token]]), state)
        found = logprobs[0, 0].double()
        first = first if place else float(torch.special.entr(found.exp()).sum())
        total, token = total - float(found[following]), following
    return math.exp(total / len(tokens)), first


def answered(reader: ContextReader, method: str, contexts: Sequence[str], prompt: str, rule: Rule) -> Record:
    """One answer: its text, and the context that decided on it."""
    (reply,) = ask(reader, method, [contexts], [prompt], SPEC, rule, limit=reader.limit)
    text = reply.text.strip().partition("\n")[0].rstrip()
    return {"text": text, "chosen": deciding_context(reply)}


def conditions(
    part: str, reader: ContextReader, shared: SharedRows, questions: QuestionSet, number: int
) -> Iterator[tuple[str, int, Record]]:
    """What is measured of one question: a name, a number of contexts, and the answer."""
    prompt, gold = questions.rows[number].source, accepted(questions.rows[number])[0]
    counts = COUNTS if part == "methods" else (PASSAGES,)
    drawn = {count: contexts for count in counts if (contexts := questions.contexts(number, count)) is not None}
    texts = [text for some in drawn.values() for text in some]
    if part == "length":
        some = drawn[PASSAGES]
        for size in (1, 2, 4, 8):
            joined = [baselines.SEPARATOR.join(some[i : i + size]) for i in range(0, len(some), size)]
            record = answered(reader, "entropy", joined, prompt, Rule())
            several = "contexts" if joined[1:] else "context"
            yield f"{len(joined)} {several} of {size}", PASSAGES, record | {"contexts": joined}
        return
    shared.read([reader.row(text, prompt) for text in ("", *texts)])
    for count, contexts in drawn.items():
        known = {"contexts": list(contexts)}
        if part == "settings":
            for name, changed in SETTINGS:
                record = answered(reader, "entropy", contexts, prompt, Rule()._replace(**changed))
                yield f"{name} {changed[name]:g}", count, record | known
            continue
        for name in METHODS:
            method, rule = pooling(name, ContextsConfig())
            record = answered(reader, method, contexts, prompt, rule)
            if name in LIKELIHOOD:
                found = likelihood(reader, method, contexts, prompt, gold)
                record |= dict(zip(("gold", "entropy"), found, strict=True))
            yield name, count, record | known


def collect(options: argparse.Namespace, kept: Path, work: Callable[[int], Iterable[Record]]) -> list[Record]:
    """Measure the questions that are not kept yet, a line each."""
    lines = kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []
    with kept.open("a", encoding="utf-8") as file:
        for number in range(len(lines), options.rows):
            start = time.perf_counter()
            line = json.dumps(list(work(number)))
            print(line, file=file, flush=True)
            lines.append(line)
            say(f"question {number + 1} of {options.rows}: {time.perf_counter() - start:.0f} s")
    return [record for line in lines[: options.rows] for record in json.loads(line)]


def scored(records: Sequence[Record]) -> dict[str, Score | float]:
    """All numbers of one cell."""
    texts, references = [one["text"] for one in records], [one["references"] for one in records]
    out: dict[str, Score | float] = dict(score(METRICS, texts, references, EvalConfig()))
    if all(one["chosen"] is not None for one in records):
        decisive = [one["contexts"][one["chosen"]] for one in records]
        out["context-found"] = context_found(decisive, references)
    if "gold" in records[0]:
        out["gold"] = math.exp(mean(math.log(one["gold"]) for one in records))
        out["entropy"] = mean(one["entropy"] for one in records)
    return out


def tables(cells: dict[tuple[str, int], dict[str, Score | float]], base: str) -> list[str]:
    """A table for each number, with counts as columns; with one count a column for each number."""
    names = list(dict.fromkeys(name for name, _ in cells))
    counts = sorted({count for _, count in cells})
    body: list[str] = []
    if len(counts) == 1:
        known = {metric: title for metric, title in NAMES.items() if metric in cells[base, counts[0]]}
        found = {metric: _column(cells, names, counts[0], metric, base) for metric in known}
        rows = [[name, *(found[metric][name] for metric in known)] for name in names]
        return table([f"{counts[0]} passages", *known.values()], rows)
    for metric, title in NAMES.items():
        columns = {count: _column(cells, names, count, metric, base) for count in counts}
        rows = [[name, *(columns[count][name] for count in counts)] for name in names]
        rows = [row for row in rows if any(cell != "-" for cell in row[1:])]
        if rows:
            body += [f"### {title}", "", *table(["passages:", *map(str, counts)], rows), ""]
    return body


def _column(
    cells: dict[tuple[str, int], dict[str, Score | float]], names: Sequence[str], count: int, metric: str, base: str
) -> dict[str, str]:
    """Cells of one count; marks say what differs from `base`."""
    found = {name: cells[name, count].get(metric) for name in names}
    first, p = found[base], dict[str, float]()
    if isinstance(first, Score):
        others = [name for name in names if name != base and found[name] is not None]
        chances = [compare([found[name]], [first]).p for name in others]  # type: ignore[list-item]
        p = dict(zip(others, corrected(chances), strict=True))
    marks = {name: r"\*\*" if at < 0.01 else r"\*" if at < 0.05 else "" for name, at in p.items()}
    shown = {}
    for name, cell in found.items():
        number = cell.value if isinstance(cell, Score) else cell
        digits = 1 if isinstance(cell, Score) else 2
        shown[name] = "-" if number is None else f"{number:,.{digits}f}{marks.get(name, '')}"
    return shown


def main() -> None:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--corpus", default="nq-passages")
    parser.add_argument("--rows", type=int, default=40)
    parser.add_argument("--part", choices=PARTS, default="methods")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--work", type=Path, default=Path("nbce-real-model"))
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(cores())
    before = load_before()
    reader = open_model(options.model, dtype=options.dtype, chat=options.chat, offline=True)
    shared = SharedRows(reader)
    reader.begin = lambda rows: shared.begin(reader, rows)  # type: ignore[method-assign]
    corpus = Corpus.open(DataConfig(corpus=options.corpus), "question-answering", data_dir=options.data_dir)
    rows = corpus.questions("test", max(COUNTS))
    questions = QuestionSet(rows, 1)

    def work(number: int) -> Iterator[Record]:
        references = list(accepted(rows[number]))
        for name, count, record in conditions(options.part, reader, shared, questions, number):
            yield {"name": name, "count": count, "references": references, **record}

    options.work.mkdir(parents=True, exist_ok=True)
    how = "chat" if options.chat else "plain"
    name = f"{options.corpus}.{how}.{options.part}"
    records = collect(options, options.work / f"{name}.jsonl", work)
    groups: dict[tuple[str, int], list[Record]] = {}
    for record in records:
        groups.setdefault((record["name"], record["count"]), []).append(record)
    cells = {place: scored(some) for place, some in groups.items()}
    first = next(iter(cells))[0]
    facts = {
        "command": command(options, model="MODEL", data_dir="DIR", work="FOLDER"),
        "versions": versions("attnkit", "torch", "transformers"),
        "model": f"{options.model.name}, {options.dtype}, {cores()} thread",
        "questions": f"{options.rows} of test; answers of at most {SPEC.max_length} tokens",
        "load": before,
        "marks": f"different from {first}: \\* p < 0.05, \\*\\* p < 0.01 (paired bootstrap over "
        "questions, two-sided, Holm's correction over a column)",
    }
    publish_part("nbce-real-model", TITLE, name, ORDER, facts, tables(cells, first))
    numbers = [
        {
            "method": name,
            "contexts": count,
            **{key: one.value if isinstance(one, Score) else one for key, one in cell.items()},
        }
        for (name, count), cell in cells.items()
    ]
    found = {name: {"facts": facts, "rows": numbers}}
    keep_others(RESULTS / "nbce-real-model.json", found, ORDER)


if __name__ == "__main__":
    main()
