"""An answer on the terminal with the context selected at each token, at any width."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import fmean
from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from attnkit.show.colour import CONTEXT_COLOURS
from attnkit.show.terminal_colours import DIM, Depth, colour_depth, text_on
from attnkit.show.token_labels import clusters, cut, one_line, visible
from attnkit.text import safe_text

if TYPE_CHECKING:
    from attnkit.nbce.trace import Trace, TracedToken

LETTERS = ascii_uppercase + ascii_lowercase
HEIGHT = 5
BARS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
DOT, DOT_ASCII, BAR_ASCII = "\u2022", "o", "#"
WIDEST = 3  # cells of a token's bar at most
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
    """A rich renderable: the answer marked by selected context, the contexts, and the entropies.

    Where a screen has 256 colours or more, the text has the colour of its context as background;
    the line below it names contexts by letters, so nothing depends on colours.  With `plain` there
    is a line a token instead, for screen readers and for grep.
    """

    trace: "Trace"
    plain: bool = False

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        trace, width, ascii_only = self.trace, options.max_width, options.ascii_only
        marks = context_marks(trace, colour_depth(console))
        yield Text(safe_text(headline(trace)), style="bold", overflow="fold")
        if self.plain:
            yield from (Text(line, overflow="fold") for line in _listed(trace, ascii_only))
            return
        if trace.text_tokens:
            yield Segments(_answer(trace, marks, width, ascii_only))
            yield Segments(_legend(trace, marks, width, ascii_only))
            spoken, unmarked = trace.text_tokens, ContextMark(OTHERS, Style())
            bars = [one.entropies[one.main_context] for one in spoken]
            seconds = [one.runner_up for one in spoken]
            dots = [None if at is None else one.entropies[at]
                    for one, at in zip(spoken, seconds, strict=True)]  # fmt: skip
            letters = [marks.get(one.main_context, unmarked) for one in spoken]
            yield from _chart(
                bars, dots, letters if trace.selects_contexts else None, width, ascii_only
            )
        yield from (Text(note, style="dim", overflow="fold") for note in notes(trace))


def headline(trace: "Trace") -> str:
    """What was merged, and how."""
    rule, many = trace.rule, len(trace.contexts)
    parts = [f"beta {rule.beta:g}"]
    parts += [f"eta {rule.eta:g}"] if trace.selects_contexts else []
    parts += [f"top-p {rule.top_p:g}"] if rule.top_p < 1 else []
    parts += [f"top-k {rule.top_k}"] if rule.top_k else []
    noun = "context" if many == 1 else "contexts"
    return f"{many:,} {noun}, pool {rule.pool}, {', '.join(parts)}"


def notes(trace: "Trace", everything: bool = False) -> Iterator[str]:
    """What a reader must know besides; with `everything` all contexts are listed."""
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
    if trace.disjoint:
        sign = "" if everything else "^ "
        yield (
            f"{sign}{trace.disjoint:,} of {len(trace.tokens):,} tokens: no token was kept by all "
            "contexts, so the union of what they kept was merged"
        )


def context_marks(trace: "Trace", depth: Depth = "none") -> dict[int, ContextMark]:
    """A mark for each selected context."""
    marks = {}
    for number, context in enumerate(trace.selected_contexts()):
        letter = LETTERS[number] if number < len(LETTERS) else OTHERS
        rgb = bytes.fromhex(CONTEXT_COLOURS[number % len(CONTEXT_COLOURS)])
        marks[context] = ContextMark(letter, text_on(np.array(list(rgb), np.uint8), depth))
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
                sign = "^" if token.disjoint else "." if token.agreed else " "
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
    shares, mean = trace.shares(), trace.entropies() if trace.tokens else []
    order = list(marks) if trace.selects_contexts else sorted(
        range(len(mean)), key=lambda at: (-shares[at], mean[at])
    )[:LISTED]  # fmt: skip
    weighted = any(shares)
    name_room = max(len(str(len(trace.contexts))) + 9, width // 3)
    yield Segment.line()
    for at in order:
        passage, mark = trace.contexts[at], marks.get(at)
        if mark:
            yield Segment(mark.letter, mark.style)
            fact = f" {shares[at]:4.0%} "
        else:
            fact = f"{shares[at]:5.1%} " if weighted else f"{mean[at]:.2f} nats "
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


def _listed(trace: "Trace", ascii_only: bool) -> Iterator[str]:
    """A line per token: text, selected context, the best of the others, and entropies in nats."""
    names = [one_line(passage.name, ascii_only) for passage in trace.contexts]
    what = "selected" if trace.selects_contexts else "most certain"
    yield f"token: {what} context, entropy in nats; lowest entropy among the others"
    for number, token in enumerate(trace.tokens, 1):
        text = "end" if token.end else visible(token.text, ascii_only)
        at, other = token.main_context, token.runner_up
        line = f"{number} {text}: {at + 1} {names[at]} {token.entropies[at]:.3f}"
        if other is not None:
            line += f"; {other + 1} {names[other]} {token.entropies[other]:.3f}"
        line += "; same without context" if token.agreed else ""
        yield line + ("; disjoint" if token.disjoint else "")
    yield from notes(trace)


def _chart(
    bars: Sequence[float],
    dots: Sequence[float | None],
    marks: Sequence[ContextMark] | None,
    width: int,
    ascii_only: bool,
) -> Iterator[Text | Segments]:
    """Entropies in nats over the tokens as bars, the lowest of the others as dots, and a caption.

    The bar is that of the selected context (`marks` then has its letter and style), or of the
    surest.  Where a token has no room of its own, neighbours share a bar.
    """
    points = [dot for dot in dots if dot is not None]
    top = max((*bars, *points)) or 1.0
    label = f"{top:.2g}"
    margin = len(label) + 1
    room = max(1, width - margin)
    each = -(-len(bars) // room)
    groups = [slice(at, at + each) for at in range(0, len(bars), each)]
    wide = min(WIDEST, room // len(groups))
    columns = [fmean(bars[some]) / top for some in groups]
    above = [fmean([x for x in dots[some] if x is not None] or [0.0]) / top for some in groups]
    dot_rows = [min(HEIGHT - 1, int(value * HEIGHT)) for value in above]  # from the bottom
    chosen = [_most(marks[some]) if marks else ContextMark("", Style()) for some in groups]
    yield Text("")
    yield Text(_caption(bool(marks), bool(points), each, ascii_only), style="dim", overflow="fold")
    lines = []
    for row in range(HEIGHT):
        edge = label if row == 0 else "0" if row == HEIGHT - 1 else ""
        lines.append(Segment(f"{edge:>{margin - 1}} "))
        for value, dot, (_, style) in zip(columns, dot_rows, chosen, strict=True):
            text = _bar_cell(value, HEIGHT - 1 - row, ascii_only)
            front = Style(color=style.bgcolor)  # bars have the colour that is behind text
            if points and dot == HEIGHT - 1 - row:
                rest = (text * max(0, wide - 2)).ljust(wide - 1)
                lines += [Segment(DOT_ASCII if ascii_only else DOT), Segment(rest, front)]
            else:
                lines.append(Segment((text * max(1, wide - 1)).ljust(wide), front))
        lines.append(Segment.line())
    if marks:
        under = "".join(letter.ljust(wide) for letter, _ in chosen)
        lines += [Segment(" " * margin + under.rstrip()), Segment.line()]
    yield Segments(lines)


def _caption(chosen: bool, pairs: bool, each: int, ascii_only: bool) -> str:
    """What bars and dots are."""
    bar, dot = (BAR_ASCII, DOT_ASCII) if ascii_only else (BARS[-1], DOT)
    what = "the selected context" if chosen else "the context of lowest entropy"
    shared = f", mean of {each} tokens" if each > 1 else ""
    after = f", {dot} the lowest of the others" if pairs else ""
    return f"entropy in nats{shared}: {bar} {what}{after}"


def _bar_cell(value: float, row: int, ascii_only: bool) -> str:
    """One cell of a bar; `value` is from 0 to 1, `row` counts from the bottom."""
    eighths = min(8, max(0, round((value * HEIGHT - row) * 8)))
    if row == 0:
        eighths = max(1, eighths)  # a bar of 0 is a line, not nothing
    if ascii_only:
        return BAR_ASCII if eighths >= 4 else "_" if row == 0 else " "
    return BARS[eighths]


def _most(marks: Sequence[ContextMark]) -> ContextMark:
    """The commonest of some marks; among equals the first."""
    letters = [letter for letter, _ in marks]
    return max(marks, key=lambda mark: letters.count(mark[0]))
