"""How often the named source of a merged answer is right, beside what else could name it.

    python benchmarks/nbce_sources.py MODEL [--questions 70] [--passages 4] --data-dir DIR
    python benchmarks/nbce_sources.py --tables

MODEL is a Hugging Face folder with a chat template.  The first form answers questions of
nq-passages and xquad-en by pool entropy, each from the passage that answers it among others, and
keeps the log-probabilities of questions and answers under every passage in
results/nbce-sources.jsonl; the same command goes on where it stopped.  The second computes
results/nbce-sources.md from that file alone.
"""

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from common import RESULTS, cores, publish, say, table

from attnkit.data.corpus import Corpus
from attnkit.data.questions import QuestionSet, accepted
from attnkit.nbce import sources
from attnkit.nbce.merge import Rule
from attnkit.nbce.merged_search import answers
from attnkit.nbce.opening import open_model
from attnkit.nbce.sources import Source, named_source
from attnkit.recipe.schema import DataConfig, SearchConfig
from attnkit.text import contains_answer

CORPORA = ("nq-passages", "xquad-en")
KEPT = RESULTS / "nbce-sources.jsonl"
SPEC = SearchConfig(method="greedy", max_length=16)
LEADS = (0.0, 0.1, 0.2, 0.4)
Record = dict[str, Any]


def kept() -> list[Record]:
    """What was measured so far."""
    lines = KEPT.read_text(encoding="utf-8").splitlines() if KEPT.exists() else []
    return [json.loads(line) for line in lines]


def measure(options: argparse.Namespace) -> None:
    """Answer the questions that are not kept yet."""
    reader = open_model(options.model, chat=True, offline=True)
    done = {(one["corpus"], one["question"]) for one in kept()}
    for name in CORPORA:
        corpus = Corpus.open(DataConfig(corpus=name), "question-answering", data_dir=options.data_dir)
        rows = corpus.questions("test", options.passages)
        questions = QuestionSet(rows, 1)
        for number in range(options.questions):
            contexts = questions.contexts(number, options.passages)
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
                "tokens": [[round(v, 3) for v in step.logprobs] for step in found.steps[: len(ids)]],
                "chosen": [step.chosen for step in found.steps[: len(ids)]],
            }
            with KEPT.open("a", encoding="utf-8") as file:
                print(json.dumps(record, separators=(",", ":")), file=file)
            say(f"{name}, question {number + 1} of {options.questions}")


def by_answer(one: Record) -> Source:
    """The rule without the question."""
    return named_source(len(one["right"]), one["tokens"])


def by_count(one: Record) -> int:
    """The context that pool entropy selected most often."""
    chosen: list[int] = one["chosen"] or [0]
    return Counter(chosen).most_common(1)[0][0]


def by_likelihood(one: Record) -> int:
    """The context under which the answer is likeliest."""
    totals = [sum(column) for column in zip(*one["tokens"], strict=True)] or [0.0]
    return totals.index(max(totals))


def by_rule(one: Record) -> Source:
    """The rule."""
    return named_source(len(one["right"]), one["tokens"], one["prompt"])


def row(name: str, records: Sequence[Record], named: Iterable[int | None]) -> list[str]:
    """How many were named, and how many of them rightly."""
    pairs = [(one, at) for one, at in zip(records, named, strict=True) if at is not None]
    right = sum(one["right"][at] for one, at in pairs)
    share = right / len(pairs) if pairs else math.nan
    return [name, f"{len(pairs)}", f"{right}", f"{share:.1%}"]


def tables() -> None:
    """Write the page."""
    body: list[str] = []
    for corpus in CORPORA:
        some = [one for one in kept() if one["corpus"] == corpus and any(one["right"])]
        if not some:
            continue
        passages = len(some[0]["right"])
        body += [f"## {corpus}: {len(some)} questions, {passages} passages each", ""]
        rows = [
            row("retrieval (question)", some, (o["prompt"].index(max(o["prompt"])) for o in some)),
            row("selected most often", some, map(by_count, some)),
            row("likeliest answer", some, map(by_likelihood, some)),
            row("rule without question", some, (by_answer(one).leading for one in some)),
            row("rule, always named", some, (by_rule(one).leading for one in some)),
        ]
        for lead in LEADS[1:]:
            sources.LEAD = lead
            label = f"rule, leads by {lead:.0%}" + (" (attnkit)" if lead == DEFAULT else "")
            rows.append(row(label, some, (by_rule(one).context for one in some)))
        sources.LEAD = DEFAULT
        body += [*table(["source named by", "named", "right", "share right"], rows), ""]
    facts = {
        "command": "python benchmarks/nbce_sources.py --tables",
        "kept": "`results/nbce-sources.jsonl`: log-probabilities, from which all is computed",
        "model": "SmolLM2-135M-Instruct, float32, chat template; pool entropy, greedy, 16 tokens",
        "right": "the named passage contains an accepted answer; unclear ones are not named",
    }
    publish("nbce-sources", "The source of an answer", facts, body)


DEFAULT = sources.LEAD


def main() -> None:
    """Measure, or compute the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--questions", type=int, default=70)
    parser.add_argument("--passages", type=int, default=4)
    parser.add_argument("--data-dir", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(cores())
    if not options.tables:
        measure(options)
    tables()


if __name__ == "__main__":
    main()
