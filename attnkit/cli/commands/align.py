"""`attnkit align`: word alignments from the cross attention of a trained run."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnkit.cli import console, plugin
from attnkit.cli import output as forms
from attnkit.cli.input import destination, open_lines
from attnkit.cli.options import Device, RunFolder
from attnkit.errors import DataError, UsageError
from attnkit.text import quoted

if TYPE_CHECKING:
    from attnkit.analysis.word_alignment import Gold, Head, LinkCounts, LinkRule
    from attnkit.runs import Run
    from attnkit.show.table import Table

METHODS = ("argmax", "mutual", "threshold")
STEPS = ("writing", "reading")
LEAST = 0.2
"""Least weight of a link by --method threshold."""
BETWEEN = "|||"
"""Stands between source and target on standard input."""

Pair = tuple[str, str]


def align(
    run: RunFolder,
    source: Annotated[
        str | None,
        typer.Argument(
            metavar="SOURCE",
            help="Source text, a sentence a line. [default: SOURCE ||| TARGET on standard input]",
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Argument(metavar="TARGET", help="Its translation, line by line.")
    ] = None,
    *,
    layer: Annotated[
        int | None,
        typer.Option(
            metavar="L",
            help="Layer of the decoder, from 0. [default: the last but one, mean of its heads]",
        ),
    ] = None,
    head: Annotated[
        int | None, typer.Option(metavar="H", help="Head, from 0. [default: the mean of all]")
    ] = None,
    step: Annotated[
        str | None,
        typer.Option(
            metavar="STEP",
            help="Weights of the step writing a target word, or of that reading it afterwards. "
            "[default: writing; --gold and --dev try both]",
        ),
    ] = None,
    dev: Annotated[
        tuple[str, str, str] | None,
        typer.Option(
            metavar="SOURCE TARGET GOLD", help="Take the layer and head that align these best."
        ),
    ] = None,
    gold: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Score: right alignments, as 0-0 1-2 2?1 (? possible)."),
    ] = None,
    method: Annotated[
        str, typer.Option(metavar="METHOD", help="argmax, mutual or threshold.")
    ] = "argmax",
    threshold: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help=f"Least weight of a link. [default: 0; of the method so named {LEAST}]",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the alignments there.")
    ] = None,
    format: Annotated[
        str, typer.Option(metavar="FORMAT", help="Of scores: table, markdown, latex, csv or json.")
    ] = "table",
    device: Device = "auto",
    plugins: plugin.Plugins = None,
) -> None:
    """Word alignments of sentence pairs from cross attention, in Pharaoh format.

    N pairs in give N lines out such as 0-0 1-2 2-1: source word - target word, counted from 0,
    words being what stands between spaces. With --gold the alignment error rate is printed
    instead, of all layers and heads unless one is chosen.

      attnkit align RUN text.en text.de > links.txt
      attnkit align RUN valid.en valid.de --gold valid.links
      attnkit align RUN test.en test.de --dev valid.en valid.de valid.links --gold test.links
    """
    rule = _rule(method, threshold)
    _check(layer, head, step, dev, format)
    from attnkit.analysis import word_alignment
    from attnkit.analysis.word_alignment import pharaoh
    from attnkit.runs import Run

    trained = Run.open(run)
    wanted = [one for one in word_alignment.heads(trained) if step in (None, one.step)]
    if layer is not None:
        wanted = [word_alignment.Head(layer, head, "reading" if step == "reading" else "writing")]
    elif dev is not None:
        wanted = [_best(trained, dev, wanted, rule, device)]
    elif gold is None:
        usual = word_alignment.default_head(trained)
        wanted = [usual if step is None else usual._replace(step=wanted[0].step)]
        console.say(f"{wanted[0]}; --dev SOURCE TARGET GOLD finds the best")
    if gold is None:
        with destination(output) as write:
            for found in word_alignment.align(
                trained, _pairs(source, target), wanted, rule, device=device
            ):
                write(pharaoh(found[wanted[0]]) + "\n")
        return
    if output is not None and len(wanted) > 1:
        raise UsageError("--output: say which head, by --layer and --head or by --dev")
    pairs = list(_pairs(source, target))
    golds = _golds(gold, pairs)
    made = list(word_alignment.align(trained, pairs, wanted, rule, device=device))
    if output is not None:
        with destination(output) as write:
            for found in made:
                write(pharaoh(found[wanted[0]]) + "\n")
    _print(table(str(run), word_alignment.quality(made, golds), golds, rule), format)


def _check(layer: int | None, head: int | None, step: str | None, dev: object, format: str) -> None:
    """Refuse words that are unknown and options that exclude each other."""
    forms.check(format)
    if step is not None and step not in STEPS:
        raise UsageError(f"--step {quoted(step)}: {forms.choices(step, STEPS)}")
    if head is not None and layer is None:
        raise UsageError(f"--head {head}: say of which layer, by --layer L")
    if layer is not None and dev is not None:
        raise UsageError("--dev chooses the layer and head: leave it out, or --layer and --head")


def _rule(method: str, threshold: float | None) -> "LinkRule":
    """How weights become links."""
    if method not in METHODS:
        raise UsageError(f"--method {quoted(method)}: {forms.choices(method, METHODS)}")
    if threshold is not None and not 0 <= threshold < float("inf"):
        raise UsageError(f"--threshold {threshold}: should be 0 or above")
    from attnkit.analysis.word_alignment import METHODS as KNOWN
    from attnkit.analysis.word_alignment import LinkRule

    least = threshold if threshold is not None else LEAST if method == "threshold" else 0.0
    return LinkRule(next(word for word in KNOWN if word == method), least)


def _pairs(source: str | None, target: str | None) -> Iterator[Pair]:
    """Sentence pairs of two files, or of standard input.

    Raises:
        UsageError: only one file is named.
        DataError: the files have different numbers of lines, or a line has no separator.
    """
    if source is None:
        with open_lines("-", "strict") as lines:
            for number, line in enumerate(lines, 1):
                left, between, right = line.partition(BETWEEN)
                if line.strip() and not between:
                    raise DataError(
                        f"standard input:{number}: no {BETWEEN} between source and target; or "
                        "name two files"
                    )
                yield left, right
        return
    if target is None:
        raise UsageError(f"{source}: name the target's file as well")
    if source == target == "-":
        raise UsageError("only one of the files can be standard input")
    with open_lines(source, "strict") as left_lines, open_lines(target, "strict") as right_lines:
        for number, pair in enumerate(zip_longest(left_lines, right_lines)):
            if None in pair:
                short, long = (source, target) if pair[0] is None else (target, source)
                raise DataError(f"{short} ends after line {number}, but {long} goes on")
            yield pair


def _golds(file: str, pairs: Sequence[Pair]) -> "list[Gold]":
    """Gold alignments of sentence pairs.

    Raises:
        DataError: a line is malformed, or there are more or fewer lines than pairs.
    """
    from attnkit.analysis.word_alignment import gold, words

    with open_lines(file, "strict") as stream:
        lines = list(stream)
    if len(lines) != len(pairs):
        raise DataError(f"{file}: {len(lines)} lines for {len(pairs)} sentence pairs")
    sizes = [(len(words(left)), len(words(right))) for left, right in pairs]
    return [
        gold(line, f"{file}:{number}", *size)
        for number, (line, size) in enumerate(zip(lines, sizes, strict=True), 1)
    ]


def _best(
    run: "Run", dev: tuple[str, str, str], wanted: "Sequence[Head]", rule: "LinkRule", device: str
) -> "Head":
    """The head that aligns other sentences best."""
    from attnkit.analysis.word_alignment import align, best, quality

    pairs = list(_pairs(dev[0], dev[1]))
    golds = _golds(dev[2], pairs)
    if not any(one.sure for one in golds):
        raise DataError(f"{dev[2]}: no sure link to choose by")
    scores = quality(align(run, pairs, wanted, rule, device=device), golds)
    found = best(scores)
    console.say(f"{found}: best on {dev[0]}, alignment error rate {scores[found].error:.2f}")
    return found


def table(
    title: str, scores: "dict[Head, LinkCounts]", golds: "Sequence[Gold]", rule: "LinkRule"
) -> "Table":
    """A row a head."""
    from attnkit.analysis.word_alignment import best
    from attnkit.show.table import Cell, Column, Table

    first = best(scores)
    rows = []
    for head, counts in scores.items():
        number = "mean" if head.head is None else head.head
        cells = [
            Cell(str(head.layer), {"layer": head.layer}),
            Cell(str(number), {"head": number}),
            Cell(head.step, {"step": head.step}),
            Cell(f"{counts.predicted:,}", {"links": counts.predicted}),
            Cell(f"{counts.precision:.2f}", {"precision": counts.precision}),
            Cell(f"{counts.recall:.2f}", {"recall": counts.recall}),
            Cell(f"{counts.error:.2f}", {"aer": counts.error}, best=head == first),
        ]
        rows.append(tuple(cells))
    names = ("layer", "head", "step", "links", "precision", "recall", "AER")
    sure, possible = (sum(len(one[side]) for one in golds) for side in (0, 1))
    how = f"{rule.method}, weights of at least {rule.least:g}" if rule.least else rule.method
    notes = (
        "AER: alignment error rate (lower is better), Och and Ney 2003; percent",
        f"sentences: {len(golds)}; gold: {sure:,} sure links, {possible - sure:,} only possible",
        f"links: {how}",
        "step: writing takes the weights of the step that predicts a target word, reading those of "
        "the next, which reads it",
    )
    columns = [Column(name, "left" if name == "step" else "right") for name in names]
    return Table(f"{title}: word alignment", tuple(columns), tuple(rows), notes)


def _print(made: "Table", format: str) -> None:
    from attnkit.show.table_screen import Screen

    if format == "table":
        console.stdout().print(Screen(made))
    else:
        forms.write(made, format)
