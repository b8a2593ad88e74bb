"""An answer on the terminal with the context selected at each token, at any width."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from attnkit.show.colour import CONTEXT_COLOURS
from attnkit.show.terminal_colours import DIM, colour_system, text_on
from attnkit.show.token_labels import clusters, cut
from attnkit.text import one_line, safe_text

if TYPE_CHECKING:
    from attnkit.nbce.merged_search import TracedToken
    from attnkit.nbce.trace import Trace

LETTERS = ascii_uppercase + ascii_lowercase
OTHERS = "*"  # marks contexts for which no letter is left
WIDE = 60  # cells from which a passage's name and its first words share a line
LISTED = 8  # contexts in the legend where no context speaks alone

Cells = list[tuple[str, int]]  # characters as drawn, each with the number of its token


class ContextMark(NamedTuple):
    """How a selected context is marked."""

    letter: str
    style: Style


@dataclass(frozen=True, eq=False)
class TraceScreen:
    """A rich renderable: the answer marked by selected context, and the contexts.

    Where a screen has 256 colours or more, the text has the colour of its context as background;
    the line below it names contexts by letters, so nothing depends on colours.
    """

    trace: "Trace"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        trace, width, ascii_only = self.trace, options.max_width, options.ascii_only
        marks = context_marks(trace, colour_system(console) is not None)
        yield Text(safe_text(headline(trace)), style="bold", overflow="fold")
        if trace.text_tokens:
            yield Segments(_answer(trace, marks, width, ascii_only))
            yield Segments(_legend(trace, marks, width, ascii_only))
        yield from (
            Text(note, style="dim", overflow="fold") for note in notes(trace, ascii_only=ascii_only)
        )


def headline(trace: "Trace") -> str:
    """What was merged, and how."""
    rule, many = trace.rule, len(trace.contexts)
    parts = [f"beta {rule.beta:g}"]
    parts += [f"eta {rule.eta:g}"] if trace.selects_contexts else []
    parts += [f"top-p {rule.top_p:g}"] if rule.top_p < 1 else []
    noun = "context" if many == 1 else "contexts"
    return f"{many:,} {noun}, pool {rule.pool}, {', '.join(parts)}"


def source_line(trace: "Trace", ascii_only: bool) -> str:
    """The context that the answer is from."""
    source = trace.source
    if source.context is None:
        return f"source: unclear (no context leads; the largest share is {source.share:.0%})"
    name = one_line(trace.contexts[source.context].name, ascii_only)
    return f"source: context {source.context + 1} {name} ({source.share:.0%})"


def notes(trace: "Trace", everything: bool = False, ascii_only: bool = False) -> Iterator[str]:
    """What a reader must know besides; with `everything` all contexts are listed."""
    yield source_line(trace, ascii_only)
    if not trace.text_tokens:
        yield "the answer is empty: its first token was the end"
    if trace.selects_contexts:
        silent = len(trace.contexts) - len(trace.selected_contexts())
        if silent and trace.text_tokens:
            verb = "was" if silent == 1 else "were"
            yield f"{silent:,} of {len(trace.contexts):,} contexts {verb} never selected"
    elif len(trace.contexts) > LISTED and not everything:
        yield f"{len(trace.contexts) - LISTED:,} contexts more"
    if agreed := sum(token.agreed for token in trace.text_tokens):
        yield (
            f"grey{'' if everything else ' (.)'}: {agreed:,} of {len(trace.text_tokens):,} tokens, "
            "which the model would write without any context too"
        )


def context_marks(trace: "Trace", coloured: bool = False) -> dict[int, ContextMark]:
    """A mark for each selected context."""
    marks = {}
    for number, context in enumerate(trace.selected_contexts()):
        letter = LETTERS[number] if number < len(LETTERS) else OTHERS
        rgb = bytes.fromhex(CONTEXT_COLOURS[number % len(CONTEXT_COLOURS)])
        marks[context] = ContextMark(letter, text_on(np.array(list(rgb), np.uint8), coloured))
    return marks


def _cells(trace: "Trace", ascii_only: bool) -> Cells:
    """The answer's characters; those of several tokens belong to the first of them.

    A space goes with the word before it, so that marks begin where words do.
    """
    said = (safe_text(token.text).replace("\t", " ") for token in trace.text_tokens)
    if ascii_only:
        said = (text.encode("ascii", "backslashreplace").decode("ascii") for text in said)
    texts = list(said)
    owners = [number for number, text in enumerate(texts) for _ in text]
    cells: Cells = []
    place = 0
    for cluster in clusters("".join(texts)):
        owner = cells[-1][1] if cluster == " " and cells else owners[place]
        cells.append((cluster, owner))
        place += len(cluster)
    return cells


def wrapped(cells: Cells, width: int) -> Iterator[Cells]:
    """Lines of at most `width` cells, broken at spaces where there are some."""
    line: Cells = []
    used = 0
    for cluster, owner in cells:
        wide = cell_len(cluster)
        if cluster == "\n" or used + wide > width:
            after = max((at + 1 for at, (text, _) in enumerate(line) if text == " "), default=0)
            if cluster in ("\n", " ") or not after:
                after = len(line)
            yield line[:after]
            line = line[after:]
            used = sum(cell_len(text) for text, _ in line)
            if cluster in ("\n", " "):
                continue
        line.append((cluster, owner))
        used += wide
    yield line


def _answer(
    trace: "Trace", marks: dict[int, ContextMark], width: int, ascii_only: bool
) -> Iterator[Segment]:
    """Each line of the answer, and below it the context of each token."""
    tokens = trace.text_tokens
    for line in wrapped(_cells(trace, ascii_only), width):
        below = ""
        for owner, text in _runs(line, tokens if trace.selects_contexts else None):
            token, wide = tokens[owner], cell_len(text)
            mark = None if token.agreed else marks.get(token.main_context)
            yield Segment(text, mark.style if mark else DIM if token.agreed else None)
            if mark:
                below += (mark.letter + ("-" if ascii_only else "\u2500") * (wide - 1))[:wide]
            else:
                sign = "." if token.agreed else " "
                below += sign * wide
        yield Segment.line()
        if below.strip():
            yield Segment(below.rstrip(), DIM)
            yield Segment.line()


def _runs(line: Cells, spoken: "Sequence[TracedToken] | None") -> Iterator[tuple[int, str]]:
    """(a token, text) of neighbours of one context, or of one token where contexts are mixed."""

    def speaker(cell: tuple[str, int]) -> tuple[int, bool]:
        if spoken is None:
            return cell[1], False
        token = spoken[cell[1]]
        return token.main_context, token.agreed

    for _, run in groupby(line, speaker):
        cells = list(run)
        yield cells[0][1], "".join(text for text, _ in cells)


def _legend(
    trace: "Trace", marks: dict[int, ContextMark], width: int, ascii_only: bool
) -> Iterator[Segment]:
    """The selected contexts, or the heaviest of a mixture, with their first words."""
    shares = trace.source.shares
    every = sorted(range(len(shares)), key=lambda at: -shares[at])
    order = [at for at in every if at in marks] if trace.selects_contexts else every[:LISTED]
    name_room = max(len(str(len(trace.contexts))) + 9, width // 3)
    yield Segment.line()
    for at in order:
        passage, mark = trace.contexts[at], marks.get(at)
        if mark:
            yield Segment(mark.letter, mark.style)
            fact = f" {shares[at]:4.0%} "
        else:
            fact = f"{shares[at]:5.1%} "
        name = cut(one_line(f"{at + 1} {passage.name}", ascii_only), name_room, ascii_only)
        used = 1 if mark else 0
        yield Segment(cut(f"{fact}{name}", max(1, width - used), ascii_only))
        start = used + len(fact)
        if width >= WIDE:
            room = width - start - name_room - 2
            yield Segment(" " * (name_room - cell_len(name) + 2))
            yield Segment(cut(one_line(passage.text[:2000], ascii_only), room, ascii_only), DIM)
        elif width > start + 4:
            yield Segment.line()
            words = cut(one_line(passage.text[:2000], ascii_only), width - start, ascii_only)
            yield Segment(" " * start + words, DIM)
        yield Segment.line()
