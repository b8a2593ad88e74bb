"""Well-formed files of a run with wrong content and right hashes: one clear line, or no matter."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from helpers.attacks import judge, run_attnkit, sign_rows
from helpers.mutations import sign
from helpers.scored_runs import scored_run

TEXTS = ["ein roter hund", "zwei katzen", "ein hund und eine katze", "katzen", "eine katze"]
GOOD = '{"source": "a", "target": "b"}\n'
GONE = object()
SURROGATE = "\ud800"
Harm = Callable[[Path], Any]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that is scored."""
    folder = tmp_path_factory.mktemp("made")
    run = scored_run(folder, "base", TEXTS, ("bleu",))
    run.log.append({"step": 7, "loss": 1.0, "seconds": 1.0})
    run.record("metrics.jsonl", run.log.sha256())
    (folder / "text").write_text("one red dog\n")
    return folder


def entry(name: str, keys: str, value: object) -> Harm:
    """Another value at a place of a JSON file, or none."""

    def harm(run: Path) -> None:
        content = place = json.loads((run / name).read_bytes())
        *above, last = keys.split()
        for key in above:
            place = place[key]
        place[last] = value
        if value is GONE:
            del place[last]
        (run / name).write_text(json.dumps(content))
        sign(run / name)

    return harm


def line(name: str, text: str) -> Harm:
    """Another line at the end."""

    def harm(run: Path) -> None:
        path = run / name
        lines = [GOOD] * 4 if name.startswith("data/") else []
        path.write_text("".join([*lines, text, "\n"]))
        sign_rows(path) if name.startswith("data/") else sign(path)

    return harm


def outputs(data: bytes) -> Harm:
    """Other saved outputs, which scores.json says are right."""

    def harm(run: Path) -> None:
        from attnkit.storage.files import sha256_file

        path = run / "outputs/test.hyp.txt"
        path.write_bytes(data)
        entry("scores.json", "test digests outputs", sha256_file(path))(run)

    return harm


def tokenizer(old: bytes, new: bytes) -> Harm:
    """Other pieces; everything, where `old` is empty."""

    def harm(run: Path) -> None:
        path = run / "tokenizer.model"
        data = path.read_bytes()
        assert old in data
        path.write_bytes(data.replace(old, new) if old else new)
        sign(path)

    return harm


SCORES, MANIFEST, ROWS, LOG = "scores.json", "manifest.json", "data/test.jsonl", "metrics.jsonl"
SPACE = "\u2581".encode()
CASES: dict[str, Harm] = {
    **{
        f"rows {text[:40]}": line(ROWS, text)
        for text in (
            "5",
            "[]",
            "{}",
            '{"source": "a"}',
            '{"source": 1, "target": "b"}',
            "null",
            '{"source": "a", "target": "b", "gold": "x"}',
            '{"source": "\\ud800", "target": "b"}',
            '{"source": "a", "target": "b", "references": "c"}',
            "[" * 100_000,
        )
    },
    **{
        f"without {keys}": entry(SCORES, keys, GONE)
        for keys in (
            "test decode",
            "test search",
            "test search method",
            "test search beam",
            "test decode seconds",
            "test digests",
            "test digests source",
            "test scoring",
            "test metrics bleu score",
            "test metrics bleu signature",
            "test sentences",
        )
    },
    **{
        f"without hash of {name}": entry(MANIFEST, f"files {name}", GONE)
        for name in (
            "model.safetensors",
            "tokenizer.model",
            "scores.json",
            "metrics.jsonl",
            "recipe.yaml",
            "data/test.json",
        )
    },
    **{
        f"{name} {data[:12]!r}": outputs(data)
        for name, data in {
            "few outputs": b"a\nb\n",
            "many outputs": b"a\n" * 9,
            "no outputs": b"",
            "no UTF-8": b"\xff\n" * 5,
            "no end": b"a\nb\nc\nd\ne",
            "one line": b"a b c d e\n",
        }.items()
    },
    **{
        f"piece {new!r}": tokenizer(old, new)
        for old, new in (
            (SPACE, b"\xff\xfe\xfd"),
            (SPACE, b"\xc0\x80\x80"),
            (SPACE, b"\xed\xa0\x80"),
            (b"", b"junk"),
            (b"", b"\xff" * 40),
            (b"", b'{"labels": 5}'),
        )
    },
    **{
        f"surrogate {name} {keys}": entry(name, keys, SURROGATE)
        for name, keys in (
            (SCORES, "test"),
            (SCORES, "test search method"),
            (SCORES, "test metrics bleu signature"),
            (MANIFEST, "recipe"),
            (MANIFEST, "variant"),
            (MANIFEST, "device"),
        )
    },
    **{
        f"log {text[:30]}": line(LOG, text)
        for text in (
            "5",
            "{}",
            '{"step": "x"}',
            '{"step": 1, "loss": "\\ud800"}',
            '{"step": 1, "loss": 1e400}',
            '{"step": 1, "seconds": []}',
        )
    },
}


@pytest.mark.parametrize("case", CASES)
def test_wrong_content_is_one_line(case: str, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures, which take most of the time, are drawn where what they show is wrong."""
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
