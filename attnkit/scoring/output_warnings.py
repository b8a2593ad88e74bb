"""Warnings about outputs whose score would mislead: empty, all equal, not detokenized, not read."""

import re
from collections.abc import Callable, Iterable, Sequence

from attnkit.recipe.metrics import TextWords
from attnkit.scoring.unread_text import unread_text

SUBWORD = re.compile("\u2581|@@( |$)|(^| )##\\w")
"""Marks that a sentencepiece, BPE or WordPiece model leaves on text that was not detokenized."""
SHARE = 0.1
"""Share of lines above which a property is that of the system, not of a few sentences."""


def warnings(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    metrics: Iterable[str] = (),
    tokenizers: Sequence[str] = ("13a",),
    words: TextWords = "classic",
) -> list[str]:
    """What looks wrong about the outputs, one line each; empty where all is well.

    A mark that the first reference of the line carries as well is not reported.  Metrics that
    cannot read the references are named as by `unread_text`.
    """
    lines = len(hypotheses)
    first = [line[0] for line in references]
    out = []
    if empty := _more(lambda text: not text.strip(), hypotheses, first):
        out.append(share_text(empty, lines, "outputs", "is empty", "are empty"))
    if len(set(hypotheses)) == 1 < len(set(first)):
        out.append(f"all {lines} outputs are the same text")
    if marked := _more(lambda text: bool(SUBWORD.search(text)), hypotheses, first):
        found = share_text(marked, lines, "outputs", "has", "have")
        out.append(f"{found} subword marks (U+2581, @@ or ##): scores are for detokenized text")
    split = _more(lambda text: text.endswith(" ."), hypotheses, first)
    if split > SHARE * lines:
        found = share_text(split, lines, "outputs", "ends", "end")
        out.append(
            f"{found} in a separate full stop, unlike the references: scores are for detokenized "
            "text"
        )
    return out + unread_text(references, metrics, tokenizers, words)


def share_text(number: int, lines: int, what: str, one: str, several: str) -> str:
    """So many of all lines, and what they do: in the singular where it is one."""
    return f"{number} of {lines} {what} {one if number == 1 else several}"


def empty_references(references: Sequence[Sequence[str]]) -> int:
    """Lines of which a reference has no text."""
    return sum(not all(text.strip() for text in line) for line in references)


def _more(test: Callable[[str], bool], hypotheses: Sequence[str], references: Sequence[str]) -> int:
    """Hypotheses that pass a test which their reference does not pass."""
    return sum(
        test(text) and not test(reference)
        for text, reference in zip(hypotheses, references, strict=True)
    )
