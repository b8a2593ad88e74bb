"""Entropies over the tokens of an answer as a small chart: bars, and dots for the next surest."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

HEIGHT = 5
BARS = " \u2581\u2582\u2583\u2584\u2585\u2586\u2587\u2588"
DOT, DOT_ASCII, BAR_ASCII = "\u2022", "o", "#"
WIDEST = 3  # cells of a token's bar at most

Mark = tuple[str, Style]


def chart(
    bars: Sequence[float],
    dots: Sequence[float | None],
    marks: Sequence[Mark] | None,
    width: int,
    ascii_only: bool,
) -> Iterator[Text | Segments]:
    """The chart with its caption.

    Args:
        bars: entropy of the context that spoke, or of the surest, at each token, in nats.
        dots: that of the runner-up, if there is one.
        marks: letter and style of the context that spoke, if one did.
        width: cells of the screen; neighbouring tokens share a bar where there are more.
        ascii_only: whether bars must be ASCII.
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
    chosen = [_most(marks[some]) if marks else ("", Style()) for some in groups]
    yield Text("")
    yield Text(_caption(bool(marks), bool(points), each, ascii_only), style="dim", overflow="fold")
    lines = []
    for row in range(HEIGHT):
        edge = label if row == 0 else "0" if row == HEIGHT - 1 else ""
        lines.append(Segment(f"{edge:>{margin - 1}} "))
        for value, dot, (_, style) in zip(columns, dot_rows, chosen, strict=True):
            text = _cell(value, HEIGHT - 1 - row, ascii_only)
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
    what = "the context that spoke" if chosen else "the surest context"
    shared = f", mean of {each} tokens" if each > 1 else ""
    after = f", {dot} the next surest" if pairs else ""
    return f"entropy in nats{shared}: {bar} {what}{after}"


def _cell(value: float, row: int, ascii_only: bool) -> str:
    """One cell of a bar; `value` is from 0 to 1, `row` counts from the bottom."""
    eighths = min(8, max(0, round((value * HEIGHT - row) * 8)))
    if row == 0:
        eighths = max(1, eighths)  # a bar of 0 is a line, not nothing
    if ascii_only:
        return BAR_ASCII if eighths >= 4 else "_" if row == 0 else " "
    return BARS[eighths]


def _most(marks: Sequence[Mark]) -> Mark:
    """The commonest of some marks; among equals the first."""
    letters = [letter for letter, _ in marks]
    return max(marks, key=lambda mark: letters.count(mark[0]))
