"""Warnings about outputs whose score would mislead: empty, all equal, not detokenized."""

import re
from collections.abc import Callable, Sequence

from attnkit.recipe.metrics import METRICS, base_metric

SUBWORD = re.compile("\u2581|@@( |$)|(^| )##\\w")
"""Marks that a sentencepiece, BPE or WordPiece model leaves on text that was not detokenized."""
UNSPACED = re.compile("[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]")
"""Kana and Han: scripts written without spaces between words."""
OF_WORDS = [
    name for name, facts in METRICS.items()
    if facts.family in ("sacrebleu_scores", "meteor", "cider", "embedding", "diversity")
    and name not in ("chrf", "ter")
]  # fmt: skip
"""Metrics of the words that a tokenizer of BLEU cuts."""
SHARE = 0.1
"""Share of lines above which a property is that of the system, not of a few sentences."""


def warnings(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    metrics: Sequence[str] = (),
    tokenizers: Sequence[str] = ("13a",),
) -> list[str]:
    """What looks wrong about the outputs, one line each; empty where all is well.

    A mark that the first reference of the line carries as well is not reported.  Some `metrics`,
    and `tokenizers` of BLEU, cannot read some languages.
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
    unspaced = sum(bool(UNSPACED.search(text)) for text in first)
    of_words = any(base_metric(name) in OF_WORDS for name in metrics)
    at_spaces = [name for name in tokenizers if of_words and name in ("13a", "intl")]
    if at_spaces and unspaced > SHARE * lines:
        found = share_text(unspaced, lines, "references", "is", "are")
        out.append(
            f"{found} Chinese or Japanese, which tokenizer {at_spaces[0]} does not cut into words: "
            "use zh, ja-mecab or char"
        )
    texts = ["".join(line).lower() for line in references]
    blind = sum(bool(text.strip()) and not re.search("[a-z0-9]", text) for text in texts)
    if blind and any(name.startswith("rouge") for name in metrics):
        out.append(f"ROUGE reads a-z and 0-9 only: it sees no word in {blind} of {lines} lines")
    return out


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
