"""Generated files in the published formats of corpora that are too large for tests."""

import json
from collections.abc import Iterator
from pathlib import Path

from attnkit.recipe import corpus_cards

ROWS = {"train": 300, "valid": 20, "test": 20}


def make_corpus(name: str, root: Path) -> None:
    """Write the files of a corpus card below `root`, with ROWS rows in each split."""
    card = corpus_cards.load(name)
    writer = {"lines": _sentences, "jsonl": _articles, "parlai": _chats}[card.format]
    for split, sides in card.splits.items():
        for side, parts in sides.items():
            rows = ROWS[split] // len(parts)
            for number, file in enumerate(parts):
                path = root / name / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                lines = list(writer(side, range(number * rows, (number + 1) * rows)))
                text = "\n".join(_segments(lines) if path.suffix == ".sgm" else lines)
                path.write_text(text + "\n", encoding="utf-8")


def _words(number: int, mark: str = "") -> str:
    """Return a sentence of 3 to 7 words."""
    return " ".join(f"{'abcdefghij'[(number * k + k) % 10]}{mark}o{k}" for k in range(number % 5 + 3))


def _sentences(language: str, rows: range) -> Iterator[str]:
    for number in rows:
        yield f"{_words(number, language)} .".capitalize()


def _segments(lines: list[str]) -> Iterator[str]:
    """Yield an .sgm file of WMT with one document: markup around each line."""
    yield '<refset setid="newstest2014" srclang="any" trglang="xx">'
    yield '<doc docid="1" sysid="ref">\n<p>'
    yield from (f'<seg id="{number}">{line} &amp; more</seg>' for number, line in enumerate(lines, 1))
    yield "</p>\n</doc>\n</refset>"


def _articles(_: str, rows: range) -> Iterator[str]:
    """Yield articles and highlights as `datasets` writes them; each line is a highlight."""
    for number in rows:
        article = " ".join(f"{_words(number + k)} ." for k in range(40))
        highlights = f"{_words(number)} .\n{_words(number + 1)} ."
        yield json.dumps({"article": article, "highlights": highlights, "id": f"{number:040x}"})


def _chats(_: str, rows: range) -> Iterator[str]:
    """Yield dialogues of six turns, each with candidates after a tab; the last candidate is the reply."""
    for number in rows:
        turn = number % 6
        if not turn:
            yield "1 your persona: i like to ski .\n2 your persona: i have a cat ."
        reply = _words(number + 1)
        yield f"{turn + 3} {_words(number)}\t{reply}\t\t{_words(number + 9)}|{reply}"
