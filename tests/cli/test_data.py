"""`attnkit data encode`: what it has encoded, a training finds."""

from pathlib import Path

import pytest
from helpers.cli import run_cli

RECIPE = """\
task: translation
data: {train: [a.src, a.tgt], valid: [b.src, b.tgt]}
tokenizer: {type: word, size: 60}
model: {width: 16, heads: 2, layers: 1, ff: 32}
train: {steps: 2, batch_tokens: 256, valid_every: 0, precision: fp32}
search: {method: greedy, max_length: 20}
eval: {bootstrap: 0, splits: [valid]}
variants: {one: {}, short: {data.max_length: 5}}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a.src", "a.tgt", "b.src", "b.tgt"):
        rows = [" ".join(f"w{(i * j) % 50}" for j in range(2 + i % 5)) for i in range(50)]
        (tmp_path / name).write_text("".join(f"{row}\n" for row in rows))
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path


def entries(folder: Path) -> dict[str, int]:
    """Tokenizers and encoded splits in the cache, with the times of their writing."""
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for kind in ("encoded", "tokenizers")
        for path in (folder / "cache" / kind).rglob("*")
    }


def test_a_training_finds_what_was_encoded_ahead(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    done = run_cli(capsys, "data", "encode", "tiny.yaml")
    assert done.code == 0, done.err
    assert done.out == f"{folder / 'cache' / 'encoded'}\n"
    assert "train: 50 rows read, 50 kept\n" in done.err
    assert "train: 50 rows read, 30 kept\n" in done.err
    before = entries(folder)
    assert len([name for name in before if name.endswith("meta.json")]) == 5
    trained = run_cli(capsys, "train", "tiny.yaml", "--quiet")
    assert trained.code == 0, trained.err
    assert entries(folder) == before


def test_one_variant_is_encoded_alone(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_cli(capsys, "data", "encode", "tiny.yaml", "--variant", "short").code == 0
    assert len(list((folder / "cache" / "encoded").iterdir())) == 2
    assert not (folder / "runs").exists()
