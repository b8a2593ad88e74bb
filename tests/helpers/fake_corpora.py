"""Made-up files of corpora that are too large to be at hand, in their published formats."""

import json
from collections.abc import Iterator
from pathlib import Path

from attnkit.recipe import corpus_cards

ROWS = {"train": 300, "valid": 20, "test": 20}


def make_corpus(name: str, root: Path) -> None:
    """Write the files of a card below `root`; each split has as many rows as `ROWS` says."""
    card = corpus_cards.load(name)
    writer = {"lines": _aligned, "jsonl": _articles, "parlai": _chats}[card.format]
    for split, sides in card.splits.items():
        for side, parts in sides.items():
            for number, file in enumerate(parts):
                path = root / name / file.path
                path.parent.mkdir(parents=True, exist_ok=True)
                rows = ROWS[split] // len(parts)
                lines = list(writer(side, rows, number * rows))
                text = "\n".join(_segments(lines) if path.suffix == ".sgm" else lines)
                path.write_text(text + "\n", encoding="utf-8")


def _words(number: int, mark: str = "") -> str:
    """A sentence of 3 to 7 words."""
    return " ".join(f"{'abcdefghij'[(number * k + k) % 10]}{mark}o{k}" for k in range(number % 5 + 3))


def _aligned(language: str, rows: int, start: int) -> Iterator[str]:
    for number in range(start, start + rows):
        yield f"{_words(number, language)} .".capitalize()


def _segments(lines: list[str]) -> Iterator[str]:
    """An .sgm file of WMT: markup around each line, which is one document here."""
    yield '<refset setid="newstest2014" srclang="any" trglang="xx">'
    yield '<doc docid="1" sysid="ref">\n<p>'
    yield from (f'<seg id="{number}">{line} &amp; more</seg>' for number, line in enumerate(lines, 1))
    yield "</p>\n</doc>\n</refset>"


def _articles(_: str, rows: int, start: int) -> Iterator[str]:
    """Articles and highlights as `datasets` writes them; a highlight is a line."""
    for number in range(start, start + rows):
        article = " ".join(f"{_words(number + k)} ." for k in range(40))
        highlights = f"{_words(number)} .\n{_words(number + 1)} ."
        yield json.dumps({"article": article, "highlights": highlights, "id": f"{number:040x}"})


def _chats(_: str, rows: int, start: int) -> Iterator[str]:
    """Dialogues of six turns, each with candidates after a tab, the reply last among them."""
    for number in range(start, start + rows):
        turn = number % 6
        if not turn:
            yield "1 your persona: i like to ski .\n2 your persona: i have a cat ."
        reply = _words(number + 1)
        yield f"{turn + 3} {_words(number)}\t{reply}\t\t{_words(number + 9)}|{reply}"
