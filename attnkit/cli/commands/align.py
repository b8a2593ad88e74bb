"""`attnkit align`: word alignments from the cross-attention of a trained run."""

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from attnkit.cli import console, options
from attnkit.cli import output as results
from attnkit.cli.input import destination, open_lines
from attnkit.cli.options import argument, value
from attnkit.errors import DataError, UsageError

if TYPE_CHECKING:
    from attnkit.analysis.word_alignment import Gold, Head, HeadLinks, LinkCounts, LinkRule
    from attnkit.data.tokenizer import Tokenizer
    from attnkit.show.table import Table

THRESHOLD = 0.2  # minimum weight of a link with --method threshold
SEPARATOR = "|||"  # between source and target on standard input

Pair = tuple[str, str]


def align(
    run: options.RunFolder,
    source: str | None = argument(
        "SOURCE",
        "Source text, one sentence per line. [default: SOURCE ||| TARGET lines on standard input]",
        default=None,
    ),
    target: str | None = argument("TARGET", "Translation of the source text, line by line.", default=None),
    *,
    layer: int | None = value(
        "L", "Decoder layer, from 0. [default: second to last, or the last of two, over all heads]"
    ),
    head: int | None = value("H", "Head, from 0. [default: average over all heads]"),
    step: Literal["output", "input"] | None = value(
        "STEP",
        "Use the weights of the step that predicts a target word (output) or of the next "
        "step, which reads it (input). [default: output; --gold tries both]",
    ),
    gold: str | None = value("FILE", "Score against these gold alignments: 0-0 is a sure link, 2?1 a possible link."),
    method: Literal["argmax", "mutual", "threshold"] = value(
        "METHOD", f"argmax, mutual or threshold (weights of at least {THRESHOLD}).", default="argmax"
    ),
    output: Path | None = value("FILE", "Write the alignments to this file.", "--output", "-o"),
    format: options.Format = "table",
    device: options.Device = "auto",
) -> None:
    """Align the words of sentence pairs by cross attention, in Pharaoh format.

    N pairs in give N lines out, such as 0-0 1-2 2-1: source word - target word, counted from 0 and
    separated by spaces in the text; with --format json, a list of such pairs for each sentence.
    With --gold, print the alignment error rate of the chosen head instead, or of every layer and
    head.

      attnkit align RUN text.en text.de > links.txt
      attnkit align RUN valid.en valid.de --gold valid.links
      attnkit align RUN test.en test.de --layer 2 --head 1
    """
    if head is not None and layer is None:
        raise UsageError(f"--head {head} needs --layer L too")
    if gold is None and format not in ("table", "json"):
        raise UsageError(f"--format {format} is for the table of --gold; alignments are Pharaoh lines or json")
    from attnkit.analysis import word_alignment as alignment
    from attnkit.analysis.word_alignment import pharaoh
    from attnkit.data.tokenizer import unknown_note
    from attnkit.runs import Run

    rule = alignment.LinkRule(method, THRESHOLD if method == "threshold" else 0.0)
    trained = Run.open(run)
    heads = [candidate for candidate in alignment.heads(trained) if step in (None, candidate.step)]
    if layer is not None:
        heads = [alignment.Head(layer, head, step or "output")]
    elif gold is None:
        default = alignment.default_head(trained)
        heads = [default._replace(step=step or default.step)]
        console.say(f"{heads[0]}; --gold FILE scores all heads")
    if gold is not None and output is not None and len(heads) > 1:
        raise UsageError("--output takes one head: add --layer and --head")
    unknown = Counter[str]()
    pairs: Iterable[Pair] = _count_unknown(_pairs(source, target), trained.tokenizer(), unknown)
    golds = [] if gold is None else _golds(gold, pairs := list(pairs))
    aligned: Iterable[HeadLinks] = alignment.align(trained, pairs, heads, rule, device=device, warn=console.warn)
    aligned = aligned if gold is None else list(aligned)
    if gold is None and format == "json":
        document = heads[0]._asdict() | {"sentences": [sorted(links[heads[0]]) for links in aligned]}
        with destination(output) as write:
            write(json.dumps(document) + "\n")
    elif gold is None or output is not None:
        with destination(output) as write:
            for links in aligned:
                write(pharaoh(links[heads[0]]) + "\n")
    if gold is not None:
        scores = alignment.quality(aligned, golds)
        results.write_tables([table(str(run), scores, golds, rule)], format)
    if note := unknown_note(unknown):
        console.warn(note)


def _count_unknown(pairs: Iterable[Pair], tokenizer: "Tokenizer", unknown: Counter[str]) -> Iterator[Pair]:
    """Yield the pairs, and count in `unknown` the characters and words that the tokenizer does not know."""
    for pair in pairs:
        for vocabulary, text in zip(tokenizer, pair, strict=True):
            unknown.update(vocabulary.unknown([text]))
        yield pair


def _pairs(source: str | None, target: str | None) -> Iterator[Pair]:
    """Yield the sentence pairs of two files, or of standard input if `source` is None."""
    if source is None:
        with open_lines("-") as lines:
            for number, line in enumerate(lines, 1):
                left, separator, right = line.partition(SEPARATOR)
                if line.strip() and not separator:
                    text = f"no {SEPARATOR} between source and target; add {SEPARATOR} or name two files"
                    raise DataError(f"standard input:{number}: {text}")
                yield left, right
        return
    if target is None:
        raise UsageError(f"{source}: name the target file too")
    if source == target == "-":
        raise UsageError("only one of the two files can be standard input")
    with open_lines(source) as left_lines, open_lines(target) as right_lines:
        for number, pair in enumerate(zip_longest(left_lines, right_lines)):
            if None in pair:
                short, long = (source, target) if pair[0] is None else (target, source)
                raise DataError(f"{short} ends after line {number}, but {long} continues")
            yield pair


def _golds(file: str, pairs: Sequence[Pair]) -> "list[Gold]":
    from attnkit.analysis.word_alignment import gold, words

    with open_lines(file) as stream:
        lines = list(stream)
    if not lines and not pairs:
        raise DataError(f"{file}: no sentence pairs to score")
    if len(lines) != len(pairs):
        raise DataError(f"{file}: {len(lines)} lines for {len(pairs)} sentence pairs")
    return [
        gold(line, f"{file}:{number}", len(words(left)), len(words(right)))
        for number, (line, (left, right)) in enumerate(zip(lines, pairs, strict=True), 1)
    ]


def table(title: str, scores: "dict[Head, LinkCounts]", golds: "Sequence[Gold]", rule: "LinkRule") -> "Table":
    """Return a table with one row per head."""
    from attnkit.analysis.word_alignment import best
    from attnkit.show.table import Column, Table

    best_head = best(scores)
    columns = (
        Column("layer", lambda it: it[0].layer, key=True),
        Column("head", lambda it: "mean" if it[0].head is None else it[0].head, key=True),
        Column("step", lambda it: it[0].step, align="left", key=True),
        Column("links", lambda it: it[1].predicted, "{:,}"),
        Column("precision", lambda it: it[1].precision, "{:.2f}"),
        Column("recall", lambda it: it[1].recall, "{:.2f}"),
        Column("AER", lambda it: it[1].error, "{:.2f}", "aer", best=lambda it: it[0] == best_head),
    )
    sure, possible = (sum(len(gold[i]) for gold in golds) for i in (0, 1))
    minimum = f", weights of at least {rule.least:g}" if rule.least else ""
    notes = (
        "AER: alignment error rate (lower is better), Och and Ney 2003; percent",
        f"sentences: {len(golds)}; gold: {sure:,} sure links, {possible - sure:,} only possible",
        f"links: {rule.method}{minimum}",
        "step: output uses the weights of the step that predicts a target word, input the weights of "
        "the next step, which reads the word",
    )
    return Table.of(f"{title}: word alignment", scores.items(), columns, notes)
