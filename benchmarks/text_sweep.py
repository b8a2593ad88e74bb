"""Every Unicode character through every type of tokenizer, and exported tokenizers on hostile lines.

    python benchmarks/text_sweep.py [--lines 10000]

First, tokenizers of all types are trained on lines that contain every assigned character but surrogates, and
private-use ones, and encode the same lines: which lines come back, and which characters have no piece? Then tokenizers
are exported (tokenizer.json of transformers; tokenizer.py of CTranslate2 and ONNX folders) and encode hostile lines:
are all ids those of the run? Writes two sections of results/hostile-texts.md.
"""

import math
import random
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import sentencepiece
from common import arguments, facts, publish, say, table
from helpers import export_models
from hostile_texts import FRAGMENTS, ORDER

from attnkit.data.rows import Row
from attnkit.data.text_form import clean
from attnkit.data.tokenizer import Tokenizer
from attnkit.export import standalone_tokenizer
from attnkit.export.fast_tokenizer import fast_tokenizer
from attnkit.export.parity import odd_lines
from attnkit.recipe.schema import TokenizerConfig
from attnkit.search.decoding import LineCounts, encode_lines

TYPES: tuple[Literal["unigram", "bpe", "word", "char"], ...] = ("unigram", "bpe", "word", "char")
BLOCK, LINE = 4000, 20
"""Characters that one tokenizer is trained on, and characters in a line."""
SPECIAL = ("man", "ha", "\u2581<unk>", "[x]")
CHARACTERS = [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) not in ("Cs", "Cn")]
"""All that Unicode assigns, but surrogates."""


def sweep() -> list[list[str]]:
    """Return a row for each type: number of characters, lines that came back, characters without a piece."""
    rows = []
    for kind in TYPES:
        lines_back = lines = unknown = 0
        for start in range(0, len(CHARACTERS), BLOCK):
            block = CHARACTERS[start : start + BLOCK]
            texts = [f"a{''.join(block[i : i + LINE])} b" for i in range(0, len(block), LINE)]
            spec = TokenizerConfig(type=kind, size=BLOCK + 500)
            vocabulary = Tokenizer.train(spec, [Row(text, text) for text in texts]).source
            back = vocabulary.decode(vocabulary.encode(texts))
            lines += len(texts)
            lines_back += sum(clean(a) == b for a, b in zip(texts, back, strict=True))
            unknown += vocabulary.unknown(texts).total()
        say(f"{kind}: {lines_back} of {lines} lines")
        rows.append([kind, f"{len(CHARACTERS):,}", f"{lines_back:,} of {lines:,}", f"{unknown:,}"])
    return rows


def hostile_lines(number: int, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield lines of fragments, spellings of control tokens and characters of all of Unicode."""
    draw, odd = random.Random(3), odd_lines(tokenizer)
    for _ in range(number):
        parts = [
            draw.choice((draw.choice(FRAGMENTS), draw.choice(odd)[:60], draw.choice(CHARACTERS)))
            for _ in range(draw.randint(0, 8))
        ]
        yield draw.choice(("", " ")).join(parts)


def parity(number: int) -> list[list[str]]:
    """Return a row for each type and form of export: how many lines have the ids of the run."""
    rows = []
    for kind in TYPES:
        spec = TokenizerConfig(type=kind, size=300, special=SPECIAL)
        text = [Row(line, line) for line in (*FRAGMENTS, "Schal man ha mann", "Schule al")] * 4
        tokenizer = Tokenizer.train(spec, text, form="nfc")
        recipe = export_models.recipe()
        recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"max_length": 500})})
        lines = [*hostile_lines(number, tokenizer)]
        expected = [ids or [3] for ids in encode_lines(tokenizer, lines, 500, LineCounts())]
        found = {}
        with tempfile.TemporaryDirectory() as folder:
            standalone_tokenizer.write(tokenizer, Path(folder))
            found["CTranslate2, ONNX"] = standalone_tokenizer.encoder(Path(folder), recipe)(lines)
        if kind != "word":  # transformers has no counterpart
            fast = fast_tokenizer(tokenizer.source, "$A EOS", model_max_length=500)
            found["transformers"] = fast(lines, truncation=True)["input_ids"]
        for name, ids in found.items():
            others = [(a, b) for a, b in zip(expected, ids, strict=True) if a != b]
            likely = sum(as_likely(tokenizer, *pair) for pair in others)
            rows.append([kind, name, f"{number - len(others):,} of {number:,}", f"{likely} of {len(others)}"])
            say(" ".join(rows[-1]))
    return rows


def as_likely(tokenizer: Tokenizer, one: list[int], other: list[int]) -> bool:
    """Whether two segmentations have the same log-probability, up to rounding in float32."""
    model = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.source.model)
    totals = [sum(map(model.get_score, ids)) for ids in (one, other)]
    return tokenizer.source.decode([one]) == tokenizer.source.decode([other]) and math.isclose(*totals, rel_tol=1e-6)


def main() -> None:
    options = arguments(__doc__, lines=10_000)
    about = facts(options, "sentencepiece", "transformers", "tokenizers") | {"Unicode": unicodedata.unidata_version}
    body = [table("type | characters | lines that come back | without a piece", sweep())]
    publish("hostile-texts", "Hostile texts", about, body, ORDER[1], ORDER)
    header = "type | export | lines with the ids of the run | others that are as likely"
    body = [table(header, parity(options.lines))]
    publish("hostile-texts", "Hostile texts", about, body, ORDER[2], ORDER)


if __name__ == "__main__":
    main()
