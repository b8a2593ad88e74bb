"""Tests of wrong content in well-formed files of a run with matching hashes: at most one error line."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.attacks import judge, run_attnkit, sign_rows
from helpers.mutations import sign
from helpers.scored_runs import scored_run

from attnkit.storage.files import sha256_file

TEXTS = ["ein roter hund", "zwei katzen", "ein hund und eine katze", "katzen", "eine katze"]
GOOD = '{"source": "a", "target": "b"}\n'
GONE = object()
SURROGATE = "\ud800"
SCORES, MANIFEST, ROWS, LOG = "scores.json", "manifest.json", "data/test.jsonl", "metrics.jsonl"
Damage = Callable[[Path], Any]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a scored run and an input text."""
    folder = tmp_path_factory.mktemp("scored")
    run = scored_run(folder, "base", TEXTS, ("bleu",))
    run.log.append({"step": 7, "loss": 1.0, "seconds": 1.0})
    run.record("metrics.jsonl", run.log.sha256())
    (folder / "text").write_text("one red dog\n")
    return folder


def entry(name: str, keys: str, value: object) -> Damage:
    """Set a value of a JSON file, or remove it."""

    def damage(run: Path) -> None:
        content = place = json.loads((run / name).read_bytes())
        *above, last = keys.split()
        for key in above:
            place = place[key]
        place[last] = value
        if value is GONE:
            del place[last]
        (run / name).write_text(json.dumps(content))
        sign(run / name)

    return damage


def last_row(text: str) -> Damage:
    """Replace the test rows; this text is the last of five."""

    def damage(run: Path) -> None:
        (run / ROWS).write_text(GOOD * 4 + text + "\n")
        sign_rows(run / ROWS)

    return damage


def log(text: str) -> Damage:
    """Replace the log."""

    def damage(run: Path) -> None:
        (run / LOG).write_text(text + "\n")
        sign(run / LOG)

    return damage


def outputs(data: bytes) -> Damage:
    """Replace the saved outputs and their hash in scores.json."""

    def damage(run: Path) -> None:
        path = run / "outputs/test.hyp.txt"
        path.write_bytes(data)
        entry(SCORES, "test digests outputs", sha256_file(path))(run)

    return damage


def tokenizer(old: bytes, new: bytes) -> Damage:
    """Replace bytes of the tokenizer, or all of them if `old` is empty."""

    def damage(run: Path) -> None:
        path = run / "tokenizer.model"
        data = path.read_bytes()
        assert old in data
        path.write_bytes(data.replace(old, new) if old else new)
        sign(path)

    return damage


LAST_ROWS = ["5", "[]", "{}", "null", '{"source": "a"}', '{"source": 1, "target": "b"}', "[" * 100_000]
LAST_ROWS += ['{"source": "\\ud800", "target": "b"}', '{"source": "a", "target": "b", "gold": "x"}']
LAST_ROWS += ['{"source": "a", "target": "b", "references": "c"}']
LOGS = ["5", "{}", '{"step": "x"}', '{"step": 1, "loss": "\\ud800"}', '{"step": 1, "loss": 1e400}']
LOGS += ['{"step": 1, "seconds": []}']
OUTPUTS = [b"a\nb\n", b"a\n" * 9, b"", b"\xff\n" * 5, b"a\nb\nc\nd\ne", b"a b c d e\n"]
SCORE_KEYS = ["decode", "decode seconds", "search", "search method", "search beam", "digests", "digests source"]
SCORE_KEYS += ["scoring", "metrics bleu score", "metrics bleu signature", "sentences"]
FILES = ["model.safetensors", "tokenizer.model", "scores.json", "metrics.jsonl", "recipe.yaml", "data/test.json"]
SPACE = "\u2581".encode()
PIECES = [(SPACE, b"\xff\xfe\xfd"), (SPACE, b"\xc0\x80\x80"), (SPACE, b"\xed\xa0\x80")]
PIECES += [(b"", b"junk"), (b"", b"\xff" * 40), (b"", b'{"labels": 5}')]
STRINGS = [(SCORES, "test"), (SCORES, "test search method"), (SCORES, "test metrics bleu signature")]
STRINGS += [(MANIFEST, "recipe"), (MANIFEST, "variant"), (MANIFEST, "device")]
CASES: dict[str, Damage] = {
    **{f"rows {text[:40]}": last_row(text) for text in LAST_ROWS},
    **{f"log {text[:30]}": log(text) for text in LOGS},
    **{f"outputs {data[:12]!r}": outputs(data) for data in OUTPUTS},
    **{f"without test {keys}": entry(SCORES, f"test {keys}", GONE) for keys in SCORE_KEYS},
    **{f"without hash of {name}": entry(MANIFEST, f"files {name}", GONE) for name in FILES},
    **{f"piece {new!r}": tokenizer(old, new) for old, new in PIECES},
    **{f"surrogate {name} {keys}": entry(name, keys, SURROGATE) for name, keys in STRINGS},
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_content_gives_at_most_one_error_line(
    case: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures take most of the time, so they are drawn only if the damage could reach them."""
    if case.split()[0] not in ("log", "surrogate"):
        monkeypatch.setattr("attnkit.show.figure.find_spec", lambda _: None)
    run = Path(shutil.copytree(root / "runs/toy/base/seed-1", tmp_path / "toy/base/seed-1"))
    CASES[case](run)
    for words in (
        f"verify {run}",
        f"generate {run} {root}/text --device cpu",
        f"report {run} -o {tmp_path}/r.md",
        f"plot {run}",
        f"runs {tmp_path}",
        f"runs pack {run} --results -o {tmp_path}/packed",
        f"eval {run} --device cpu",
    ):
        found = judge(words, *run_attnkit(*words.split()))
        assert found.verdict != "FAULT", found
