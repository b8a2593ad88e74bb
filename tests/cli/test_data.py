"""Tests of `attnkit data encode`: a training uses what was encoded before."""

from pathlib import Path

import pytest
from helpers.cli import Cli

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


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a recipe, its corpus, and a cache of its own."""
    rows = [" ".join(f"w{(i * j) % 50}" for j in range(2 + i % 5)) for i in range(50)]
    for name in ("a.src", "a.tgt", "b.src", "b.tgt"):
        (tmp_path / name).write_text("".join(f"{row}\n" for row in rows))
    (tmp_path / "tiny.yaml").write_text(RECIPE)
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))
    return tmp_path


def cached(folder: Path) -> dict[str, int]:
    """Return the paths of tokenizers and encoded splits in the cache, with their modification times."""
    return {
        str(path.relative_to(folder)): path.stat().st_mtime_ns
        for kind in ("encoded", "tokenizers")
        for path in (folder / "cache" / kind).rglob("*")
    }


def test_training_uses_the_encoded_data(folder: Path, cli: Cli) -> None:
    done = cli("data", "encode", "tiny.yaml")
    assert done.out == f"{folder / 'cache' / 'encoded'}\n"
    assert "train: 50 rows read, 50 kept\n" in done.err
    assert "train: 50 rows read, 30 kept\n" in done.err
    before = cached(folder)
    assert len([name for name in before if name.endswith("meta.json")]) == 5
    cli("train", "tiny.yaml", "--quiet")
    assert cached(folder) == before


def test_one_variant_is_encoded_alone(folder: Path, cli: Cli) -> None:
    cli("data", "encode", "tiny.yaml", "--variant", "short")
    assert len(list((folder / "cache" / "encoded").iterdir())) == 2
    assert not (folder / "runs").exists()
