"""Many passages with a pretrained language model: every method, by number of contexts.

    python benchmarks/nbce_real_model.py MODEL --work FOLDER [--chat] [--corpus nq-passages] [--rows 40]
        [--part methods|settings|length] [--data-dir DIR]

MODEL is a Hugging Face folder. Each passage is read once for all methods that read it alone. Finished questions are
stored in FOLDER, from which the same command continues. Writes a section of results/nbce-real-model.md and of
results/nbce-real-model.json.

The perplexity of the gold answer is that of its tokens and the end token, given the question; the rows are merged
without truncation (top_p 1), since a removed token would make it infinite.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from statistics import mean
from typing import Any, get_args

import torch
from common import arguments, cores, facts, publish, say, table, write_json

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
LIKELIHOOD = (*POOLS, "concat", "window", "none")
"""Methods for which the likelihood of the gold answer is measured."""
METRICS = ("answer-match", "answer-f1", "answer-contained")
NAMES = {
    "answer-match": "exact match",
    "answer-f1": "F1",
    "answer-contained": "answer contained",
    "context-found": "context found",
    "gold": "perplexity of the gold answer",
    "entropy": "entropy of the first token (nats)",
}
SETTINGS = {"beta": (0.0, 0.25, 0.5, 1.0), "eta": (0.0, 0.1, 0.5, 2.0), "top_p": (0.5, 0.8, 0.95, 1.0)}
"""Changes of the defaults of pool entropy, one at a time."""
PASSAGES = 8
"""Passages of a question in the parts `settings` and `length`."""
SPEC = SearchConfig(method="greedy", max_length=16)
PARTS = ("methods", "settings", "length")
TITLE = "Many passages and a real language model"
CORPORA = [f"{corpus}.{form}" for corpus in ("nq-passages", "xquad-en") for form in ("chat", "plain")]
ORDER = (*(f"{corpus}.{part}" for part in PARTS for corpus in CORPORA), "cost")
"""Sections of the page."""
Record = dict[str, Any]
Cells = dict[tuple[str, int], dict[str, Score | float]]
"""All scores by name of a method and number of contexts."""


class SharedRows:
    """Reads the rows of a question once; `begin` for some of them selects from these."""

    def __init__(self, reader: ContextReader) -> None:
        self.reader, self.plain, self.rows = reader, reader.begin, dict[PromptRow, int]()
        self.state: Any = None
        self.other: dict[tuple[PromptRow, ...], Decode] = {}

    def read(self, rows: Sequence[PromptRow]) -> None:
        """Read rows, and forget those of the question before."""
        self.other.clear()
        self.rows = {row: place for place, row in enumerate(dict.fromkeys(rows))}
        self.state = self.plain(list(self.rows))

    def begin(self, rows: Sequence[PromptRow]) -> Decode:
        """Replace `begin` of the reader."""
        if any(row not in self.rows for row in rows):
            if tuple(rows) not in self.other:
                self.other[tuple(rows)] = self.plain(rows)
            return self.other[tuple(rows)]
        places = torch.tensor([self.rows[row] for row in rows], device=self.reader.device)
        return self.reader.select(self.state, places, places)


@torch.inference_mode()
def likelihood(
    reader: ContextReader, method: str, contexts: Sequence[str], prompt: str, gold: str
) -> tuple[float, float]:
    """Return the perplexity of the gold answer with its end, and the entropy of its first token in nats."""
    rows, rule = [reader.row(text, prompt) for text in ("", *contexts)], None
    if method in POOLS:
        rule = Rule(method, top_p=1.0)
    elif method == "concat":
        rows = [baselines.concatenate(reader, contexts, prompt, SPEC.max_length, limit=reader.limit)[0]]
    elif method == "window":
        rows = [baselines.parallel_windows(reader, contexts, prompt)]
    else:
        rows = rows[:1]
    model = MergedModel(reader, rule)
    state = model.start([rows])
    offset = reader.id_offset  # tokens are those of the search from here on
    text = gold if getattr(reader, "chat", False) else f" {gold}"  # a chat begins a line
    tokens = [*(token + offset for token in reader.encode(text)), EOS]
    total, first, token = 0.0, 0.0, rows[0].tail[-1] + offset
    for place, following in enumerate(tokens):
        logprobs, state = model.advance(torch.tensor([[token]]), state)
        found = logprobs[0, 0].double()
        first = first if place else float(torch.special.entr(found.exp()).sum())
        total, token = total - float(found[following]), following
    return math.exp(total / len(tokens)), first


def answered(reader: ContextReader, method: str, contexts: Sequence[str], prompt: str, rule: Rule) -> Record:
    """Return one answer: its contexts, its text, and the context that decided it."""
    (reply,) = ask(reader, method, [contexts], [prompt], SPEC, rule, limit=reader.limit)
    text = reply.text.strip().partition("\n")[0].rstrip()
    return {"text": text, "chosen": deciding_context(reply), "contexts": list(contexts)}


def conditions(
    part: str, reader: ContextReader, shared: SharedRows, questions: QuestionSet, number: int
) -> Iterator[tuple[str, int, Record]]:
    """Yield the answers to one question, each with its name and number of contexts."""
    prompt, gold = questions.rows[number].source, accepted(questions.rows[number])[0]
    counts = COUNTS if part == "methods" else (PASSAGES,)
    drawn = {count: contexts for count in counts if (contexts := questions.contexts(number, count)) is not None}
    if part == "length":
        texts = drawn[PASSAGES]
        for size in (1, 2, 4, 8):
            joined = [baselines.SEPARATOR.join(texts[i : i + size]) for i in range(0, len(texts), size)]
            name = f"{len(joined)} {'contexts' if joined[1:] else 'context'} of {size}"
            yield name, PASSAGES, answered(reader, "entropy", joined, prompt, Rule())
        return
    shared.read([reader.row(text, prompt) for text in ("", *(text for some in drawn.values() for text in some))])
    for count, contexts in drawn.items():
        if part == "settings":
            for name, value in ((name, value) for name, values in SETTINGS.items() for value in values):
                rule = Rule()._replace(**{name: value})  # type: ignore[arg-type]
                yield f"{name} {value:g}", count, answered(reader, "entropy", contexts, prompt, rule)
            continue
        for name in get_args(Method):
            method, rule = pooling(name, ContextsConfig())
            record = answered(reader, method, contexts, prompt, rule)
            if name in LIKELIHOOD:
                record["gold"], record["entropy"] = likelihood(reader, method, contexts, prompt, gold)
            yield name, count, record


def collect(count: int, stored: Path, work: Callable[[int], Iterable[Record]]) -> list[Record]:
    """Measure the questions that are not stored yet, a line each; return the records of `count` questions."""
    lines = stored.read_text(encoding="utf-8").splitlines() if stored.exists() else []
    with stored.open("a", encoding="utf-8") as file:
        for number in range(len(lines), count):
            start = time.perf_counter()
            lines.append(json.dumps(list(work(number))))
            print(lines[-1], file=file, flush=True)
            say(f"question {number + 1} of {count}: {time.perf_counter() - start:.0f} s")
    return [record for line in lines[:count] for record in json.loads(line)]


def scores_of(records: Sequence[Record]) -> dict[str, Score | float]:
    """Return all scores of the answers of one method with one number of contexts."""
    texts, references = [record["text"] for record in records], [record["references"] for record in records]
    found: dict[str, Score | float] = dict(score(METRICS, texts, references, EvalConfig()))
    if all(record["chosen"] is not None for record in records):
        found["context-found"] = context_found([one["contexts"][one["chosen"]] for one in records], references)
    if "gold" in records[0]:
        found["gold"] = math.exp(mean(math.log(record["gold"]) for record in records))
        found["entropy"] = mean(record["entropy"] for record in records)
    return found


def tables(cells: Cells, base: str) -> list[str]:
    """Return a table for each metric, with counts as columns, or with a single count one table of all metrics."""
    names, counts = list(dict.fromkeys(name for name, _ in cells)), sorted({count for _, count in cells})
    if len(counts) == 1:
        known = {metric: title for metric, title in NAMES.items() if metric in cells[base, counts[0]]}
        columns = [column(cells, names, counts[0], metric, base) for metric in known]
        rows = [[name, *(shown[name] for shown in columns)] for name in names]
        return [table([f"{counts[0]} passages", *known.values()], rows)]
    body: list[str] = []
    for metric, title in NAMES.items():
        columns = [column(cells, names, count, metric, base) for count in counts]
        rows = [[name, *(shown[name] for shown in columns)] for name in names]
        if rows := [row for row in rows if any(cell != "-" for cell in row[1:])]:
            body += [f"### {title}", table(["passages:", *counts], rows)]
    return body


def column(cells: Cells, names: Sequence[str], count: int, metric: str, base: str) -> dict[str, str]:
    """Return the cells of one count and metric, with marks of differences from `base`."""
    found = {name: cells[name, count].get(metric) for name in names}
    first, p_values = found[base], dict[str, float]()
    if isinstance(first, Score):
        others = [name for name in names if name != base and found[name] is not None]
        uncorrected = [compare([found[name]], [first]).p for name in others]  # type: ignore[list-item]
        p_values = dict(zip(others, corrected(uncorrected), strict=True))
    shown = {}
    for name, cell in found.items():
        p = p_values.get(name, 1.0)
        mark = r"\*\*" if p < 0.01 else r"\*" if p < 0.05 else ""
        number = f"{cell.value:,.1f}" if isinstance(cell, Score) else f"{cell:,.2f}" if cell is not None else "-"
        shown[name] = number + mark
    return shown


def main() -> None:
    folder = Path("nbce-real-model")
    options = arguments(__doc__, "model", chat=False, corpus="nq-passages", rows=40, part=PARTS, work=folder)
    torch.set_num_threads(cores())
    about, part = facts(options, "transformers"), options.part or PARTS[0]
    reader = open_model(options.model, dtype="bfloat16", chat=options.chat, offline=True)
    shared = SharedRows(reader)
    reader.begin = shared.begin  # type: ignore[method-assign]
    rows = Corpus.open(DataConfig(corpus=options.corpus), "question-answering").questions("test", max(COUNTS))
    questions = QuestionSet(rows, 1)

    def work(number: int) -> Iterator[Record]:
        references = list(accepted(rows[number]))
        for name, count, record in conditions(part, reader, shared, questions, number):
            yield {"name": name, "count": count, "references": references, **record}

    options.work.mkdir(parents=True, exist_ok=True)
    section = f"{options.corpus}.{'chat' if options.chat else 'plain'}.{part}"
    groups: dict[tuple[str, int], list[Record]] = {}
    for record in collect(options.rows, options.work / f"{section}.jsonl", work):
        groups.setdefault((record["name"], record["count"]), []).append(record)
    cells = {place: scores_of(records) for place, records in groups.items()}
    base = next(iter(cells))[0]
    about |= {
        "model": f"{options.model.name}, bfloat16, {cores()} thread",
        "questions": f"{options.rows} of test; answers of at most {SPEC.max_length} tokens",
        "marks": f"different from {base}: \\* p < 0.05, \\*\\* p < 0.01 (paired bootstrap over questions, two-sided, "
        "Holm's correction over a column)",
    }
    publish("nbce-real-model", TITLE, about, tables(cells, base), section, ORDER)
    numbers = []
    for (name, count), cell in cells.items():
        values = {key: found.value if isinstance(found, Score) else found for key, found in cell.items()}
        numbers.append({"method": name, "contexts": count, **values})
    write_json("nbce-real-model", {section: {"facts": about, "rows": numbers}}, ORDER)


if __name__ == "__main__":
    main()
