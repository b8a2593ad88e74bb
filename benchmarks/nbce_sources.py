"""How often the named source of a merged answer is right, compared with other ways to name it.

    python benchmarks/nbce_sources.py [--model MODEL] [--questions 70] [--data-dir DIR]

With MODEL, a Hugging Face folder with a chat template, answers questions of nq-passages and xquad-en by pool entropy,
each from four passages of which one answers it, and stores the log-probabilities of questions and answers under every
passage in results/nbce-sources.jsonl; the same command continues where it stopped. Then, or without MODEL, computes
results/nbce-sources.md from that file.
"""

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, arguments, cores, publish, say, table

from attnkit.data.corpus import Corpus
from attnkit.data.questions import QuestionSet, accepted
from attnkit.nbce import sources
from attnkit.nbce.merge import Rule
from attnkit.nbce.merged_search import answers
from attnkit.nbce.opening import open_model
from attnkit.nbce.sources import Source, named_source
from attnkit.recipe.schema import DataConfig, SearchConfig
from attnkit.text import contains_answer

CORPORA, PASSAGES = ("nq-passages", "xquad-en"), 4
STORED = RESULTS / "nbce-sources.jsonl"
SPEC = SearchConfig(method="greedy", max_length=16)
LEADS, DEFAULT_LEAD = (0.1, 0.2, 0.4), sources.LEAD
Record = dict[str, Any]


def stored() -> list[Record]:
    """Return what was measured so far."""
    lines = STORED.read_text(encoding="utf-8").splitlines() if STORED.exists() else []
    return [json.loads(line) for line in lines]


def measure(options: argparse.Namespace) -> None:
    """Answer the questions that are not stored yet."""
    reader = open_model(options.model, chat=True, offline=True)
    done = {(record["corpus"], record["question"]) for record in stored()}
    for name in CORPORA:
        rows = Corpus.open(DataConfig(corpus=name), "question-answering").questions("test", PASSAGES)
        questions = QuestionSet(rows, 1)
        for number in range(options.questions):
            contexts = questions.contexts(number, PASSAGES)
            if (name, number) in done or contexts is None:
                continue
            prompts = [reader.row(text, rows[number].source) for text in ("", *contexts)]
            (found,) = answers(reader, [prompts], Rule(), SPEC)
            ids = found.hypotheses[0].ids
            record = {
                "corpus": name,
                "question": number,
                "right": [contains_answer(text, accepted(rows[number])) for text in contexts],
                "text": reader.decode(ids),
                "prompt": [round(value, 3) for value in found.prompt],
                "tokens": [[round(value, 3) for value in step.logprobs] for step in found.steps[: len(ids)]],
                "chosen": [step.chosen for step in found.steps[: len(ids)]],
            }
            with STORED.open("a", encoding="utf-8") as file:
                print(json.dumps(record, separators=(",", ":")), file=file)
            say(f"{name}, question {number + 1} of {options.questions}")


def by_likelihood(record: Record) -> int:
    """Return the context under which the answer is likeliest."""
    totals = [sum(column) for column in zip(*record["tokens"], strict=True)] or [0.0]
    return totals.index(max(totals))


def by_rule(record: Record) -> Source:
    return named_source(len(record["right"]), record["tokens"], record["prompt"])


def row(name: str, records: Sequence[Record], named: Iterable[int | None]) -> list[str]:
    """Return how many sources were named, and how many of them were right."""
    pairs = [(record, at) for record, at in zip(records, named, strict=True) if at is not None]
    right = sum(record["right"][at] for record, at in pairs)
    return [name, f"{len(pairs)}", f"{right}", f"{right / len(pairs) if pairs else math.nan:.1%}"]


def tables() -> None:
    """Write the page."""
    body: list[str] = []
    for corpus in CORPORA:
        records = [record for record in stored() if record["corpus"] == corpus and any(record["right"])]
        if not records:
            continue
        prompts = [record["prompt"] for record in records]
        most_often = (Counter(record["chosen"] or [0]).most_common(1)[0][0] for record in records)
        without = (named_source(len(record["right"]), record["tokens"]).leading for record in records)
        rows = [
            row("retrieval (question)", records, (prompt.index(max(prompt)) for prompt in prompts)),
            row("selected most often", records, most_often),
            row("likeliest answer", records, map(by_likelihood, records)),
            row("rule without question", records, without),
            row("rule, always named", records, (by_rule(record).leading for record in records)),
        ]
        for lead in LEADS:
            sources.LEAD = lead
            label = f"rule, leads by {lead:.0%}" + (" (attnkit)" if lead == DEFAULT_LEAD else "")
            rows.append(row(label, records, (by_rule(record).context for record in records)))
        sources.LEAD = DEFAULT_LEAD
        body += [f"## {corpus}: {len(records)} questions, {len(records[0]['right'])} passages each"]
        body += [table("source named by | named | right | share right", rows)]
    about = {
        "command": "`python benchmarks/nbce_sources.py`",
        "stored": "`results/nbce-sources.jsonl`: log-probabilities, from which everything is computed",
        "model": "SmolLM2-135M-Instruct, float32, chat template; pool entropy, greedy, 16 tokens",
        "right": "the named passage contains an accepted answer; unclear sources are not named",
    }
    publish("nbce-sources", "The source of an answer", about, body)


def main() -> None:
    options = arguments(__doc__, model=Path, questions=70)
    torch.set_num_threads(cores())
    if options.model:
        measure(options)
    tables()


if __name__ == "__main__":
    main()
