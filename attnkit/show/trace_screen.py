"""An answer on a terminal of any width, with the context selected at each token."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, cycle, groupby, repeat
from string import ascii_lowercase, ascii_uppercase
from typing import TYPE_CHECKING, NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.style import Style
from rich.text import Text

from attnkit.show.color import CONTEXT_COLORS
from attnkit.show.terminal_colors import color_system
from attnkit.text import counted, one_line, safe_text

if TYPE_CHECKING:
    from attnkit.nbce.merged_search import TracedToken
    from attnkit.nbce.trace import Trace

LETTERS = ascii_uppercase + ascii_lowercase
OTHERS = "*"  # mark of contexts for which no letter is left
MAX_LISTED = 8  # maximum number of contexts in the legend if contexts are mixed, not selected
MAX_CHARACTERS = 500  # maximum number of characters of a passage on a line


class ContextMark(NamedTuple):
    """Letter and background color of a selected context."""

    letter: str
    color: str  # six hexadecimal digits

    def style(self, colored: bool) -> Style:
        """Return black text on the color; without colors, no style."""
        return Style(color="#000000", bgcolor=f"#{self.color}") if colored else Style()


@dataclass(frozen=True, eq=False)
class TraceScreen:
    """A rich renderable of the answer, marked by selected context, and the contexts.

    The letter of a context, in brackets, precedes the tokens at which it is selected; "." precedes tokens that the
    model would write without any context. A console with at least 256 colors also shows the colors of the contexts.
    """

    trace: "Trace"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        trace, colored = self.trace, color_system(console) is not None
        yield Text(headline(trace), style="bold", overflow="fold")
        if trace.text_tokens:
            yield _answer(trace, colored)
            yield ""
            yield from _legend(trace, colored)
        for note in notes(trace):
            yield Text(one_line(note), style="dim", overflow="fold")


def headline(trace: "Trace") -> str:
    """Return the number of contexts and the settings of their merge."""
    rule, count = trace.rule, len(trace.contexts)
    parts = [f"beta {rule.beta:g}"]
    parts += [f"eta {rule.eta:g}"] if trace.selects_contexts else []
    parts += [f"top-p {rule.top_p:g}"] if rule.top_p < 1 else []
    return f"{counted(count, 'context')}, pool {rule.pool}, {', '.join(parts)}"


def notes(trace: "Trace") -> Iterator[str]:
    """Yield the source of the answer, and notes on contexts and tokens without marks."""
    source = trace.source
    if source.context is None:
        yield f"source: unclear (no context leads; the largest share is {source.share:.0%})"
    else:
        name = trace.contexts[source.context].name
        yield f"source: context {source.context + 1} {one_line(name)} ({source.share:.0%})"
    if not trace.text_tokens:
        yield "the answer is empty: the first token is the end token"
    unselected = len(trace.contexts) - len(trace.selected_contexts())
    if unselected and trace.selects_contexts and trace.text_tokens:
        yield f"never selected: {unselected:,} of {len(trace.contexts):,} contexts"
    if agreed := sum(token.agreed for token in trace.text_tokens):
        gray = "gray [.]" if trace.selects_contexts else "gray"
        yield (
            f"{gray}: {agreed:,} of {len(trace.text_tokens):,} tokens, which the model would also "
            "generate without context"
        )


def context_marks(trace: "Trace") -> dict[int, ContextMark]:
    """Return the mark of each selected context, by its index."""
    letters, colors = chain(LETTERS, repeat(OTHERS)), cycle(CONTEXT_COLORS)
    contexts = trace.selected_contexts()
    return {c: ContextMark(*mark) for c, *mark in zip(contexts, letters, colors, strict=False)}


def _answer(trace: "Trace", colored: bool) -> Text:
    """Return the answer; each run of tokens of one context has its style, after its letter."""
    marks, out = context_marks(trace), Text(overflow="fold")

    def context_of(token: "TracedToken") -> int | None:
        return None if token.agreed else token.main_context

    for context, run in groupby(trace.text_tokens, context_of):
        content = safe_text("".join(token.text for token in run)).replace("\t", " ")
        text = content.lstrip(" ")
        out.append(content[: len(content) - len(text)])
        if not marks:  # contexts are mixed
            out.append(text, "dim" if context is None else "")
        elif context is None:
            out.append(f"[.]{text}", "dim")
        else:
            out.append(f"[{marks[context].letter}]", "dim")
            out.append(text, marks[context].style(colored))
    return out


def _legend(trace: "Trace", colored: bool) -> Iterator[Text]:
    """Yield the selected contexts, or those with the largest shares of a mixture, with their first words."""
    marks, shares = context_marks(trace), trace.source.shares
    contexts = sorted(marks or range(len(shares)), key=lambda context: -shares[context])
    for context in contexts[: None if marks else MAX_LISTED]:
        passage, mark = trace.contexts[context], marks.get(context)
        line = Text(no_wrap=True, overflow="ellipsis")
        if mark:
            line.append(mark.letter, mark.style(colored)).append(" ")
        line.append(f"{shares[context]:.1%} {one_line(f'{context + 1} {passage.name}')}: ")
        yield line.append(one_line(passage.text[:MAX_CHARACTERS]), "dim")
