"""Every character of Unicode through every type of tokenizer, and exports on hostile lines.

    python benchmarks/text_sweep.py [--lines 10000]

First, tokenizers of all types learn lines that hold every assigned character but surrogates, and
private ones, and are asked for the same lines: what comes back, and what has no piece?  Then
tokenizers are exported (tokenizer.json of transformers; tokenizer.py of CTranslate2 and ONNX
folders) and read hostile lines: are all ids those of the run?  Writes two parts of
results/hostile-texts.md.
"""

import argparse
import math
import random
import sys
import tempfile
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import sentencepiece
from common import ROOT, command, load_before, publish_part, say, table, versions
from hostile_texts import FRAGMENTS, ORDER

sys.path.insert(0, str(ROOT / "tests"))

from helpers import export_models  # noqa: E402 (made importable above)

from attnkit.data.rows import Row  # noqa: E402
from attnkit.data.text_form import clean  # noqa: E402
from attnkit.data.tokenizer import Tokenizer  # noqa: E402
from attnkit.export import standalone_tokenizer  # noqa: E402
from attnkit.export.fast_tokenizer import fast_tokenizer  # noqa: E402
from attnkit.export.parity import odd_lines  # noqa: E402
from attnkit.recipe.schema import TokenizerConfig  # noqa: E402
from attnkit.search.decoding import LineCounts, encode_lines  # noqa: E402

TYPES: tuple[Literal["unigram", "bpe", "word", "char"], ...] = ("unigram", "bpe", "word", "char")
BLOCK, LINE = 4000, 20
"""Characters that one tokenizer learns, and those of a line."""
SPECIAL = ("man", "ha", "\u2581<unk>", "[x]")


def assigned() -> list[str]:
    """Every character that Unicode assigns, but surrogates."""
    return [chr(code) for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) not in ("Cs", "Cn")]


def sweep() -> list[list[str]]:
    """A row for each type: characters learned, lines that came back, characters unknown."""
    characters, rows = assigned(), []
    for kind in TYPES:
        lines_back = lines = unknown = 0
        for start in range(0, len(characters), BLOCK):
            block = characters[start : start + BLOCK]
            texts = [f"a{''.join(block[i : i + LINE])} b" for i in range(0, len(block), LINE)]
            spec = TokenizerConfig(type=kind, size=BLOCK + 500)
            vocabulary = Tokenizer.train(spec, [Row(text, text) for text in texts]).source
            back = vocabulary.decode(vocabulary.encode(texts))
            lines += len(texts)
            lines_back += sum(clean(a) == b for a, b in zip(texts, back, strict=True))
            unknown += vocabulary.unknown(texts).total()
        say(f"{kind}: {lines_back} of {lines} lines")
        rows.append([kind, f"{len(characters):,}", f"{lines_back:,} of {lines:,}", f"{unknown:,}"])
    return rows


def hostile_lines(number: int, tokenizer: Tokenizer) -> Iterator[str]:
    """Lines of fragments, spellings of control tokens and characters of all of Unicode."""
    draw, characters, odd = random.Random(3), assigned(), odd_lines(tokenizer)
    for _ in range(number):
        parts = [
            draw.choice((draw.choice(FRAGMENTS), draw.choice(odd)[:60], draw.choice(characters)))
            for _ in range(draw.randint(0, 8))
        ]
        yield draw.choice(("", " ")).join(parts)


def parity(number: int) -> list[list[str]]:
    """A row for each type and form of export: how many lines have the run's ids."""
    rows = []
    for kind in TYPES:
        spec = TokenizerConfig(type=kind, size=300, special=SPECIAL)
        text = [Row(one, one) for one in (*FRAGMENTS, "Schal man ha mann", "Schule al")] * 4
        tokenizer = Tokenizer.train(spec, text, form="nfc")
        recipe = export_models.recipe()
        recipe = recipe.model_copy(update={"data": recipe.data.model_copy(update={"max_length": 500})})
        lines = [*hostile_lines(number, tokenizer)]
        wanted = [ids or [3] for ids in encode_lines(tokenizer, lines, 500, LineCounts())]
        found = {}
        with tempfile.TemporaryDirectory() as folder:
            standalone_tokenizer.write(tokenizer, Path(folder))
            found["CTranslate2, ONNX"] = standalone_tokenizer.encoder(Path(folder), recipe)(lines)
        if kind != "word":  # which transformers has no counterpart of
            fast = fast_tokenizer(tokenizer.source, "$A EOS", model_max_length=500)
            found["transformers"] = fast(lines, truncation=True)["input_ids"]
        for name, ids in found.items():
            equal = sum(a == b for a, b in zip(wanted, ids, strict=True))
            others = [(a, b) for a, b in zip(wanted, ids, strict=True) if a != b]
            level = sum(as_likely(tokenizer, *pair) for pair in others)
            rows.append([kind, name, f"{equal:,} of {number:,}", f"{level} of {len(others)}"])
            say(" ".join(rows[-1]))
    return rows


def as_likely(tokenizer: Tokenizer, one: list[int], other: list[int]) -> bool:
    """Whether two segmentations have the same log-probability, up to rounding in float32."""
    model = sentencepiece.SentencePieceProcessor(model_proto=tokenizer.source.model)
    totals = [sum(map(model.get_score, ids)) for ids in (one, other)]
    return tokenizer.source.decode([one]) == tokenizer.source.decode([other]) and math.isclose(*totals, rel_tol=1e-6)


def main() -> None:
    """Do both, print and record."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lines", type=int, default=10_000)
    options = parser.parse_args()
    facts = {
        "command": command(options),
        "versions": versions("attnkit", "sentencepiece", "transformers", "tokenizers"),
        "load": load_before(),
        "Unicode": unicodedata.unidata_version,
    }
    body = table(["type", "characters", "lines that come back", "without a piece"], sweep())
    publish_part("hostile-texts", "Hostile texts", ORDER[1], ORDER, facts, body)
    body = table(
        ["type", "export", "lines with the ids of the run", "others that are as likely"], parity(options.lines)
    )
    publish_part("hostile-texts", "Hostile texts", ORDER[2], ORDER, facts, body)


if __name__ == "__main__":
    main()
