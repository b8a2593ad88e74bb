"""A small part of `benchmarks/attack.py`: what is damaged is found, or changes nothing."""

import random
import shutil
from pathlib import Path
from typing import Any

import pytest
from helpers import attacks
from helpers.called import called
from helpers.peers import peer

TOY = """\
task: translation
data: {corpus: toy-translation, size: 60, max_length: 64}
tokenizer: {size: 120}
model: {width: 16, ff: 16, layers: 1, heads: 2}
train: {steps: 2, batch_tokens: 256, precision: fp32}
search: {method: greedy, max_length: 3}
eval: {metrics: [bleu], bootstrap: 0}
"""


@pytest.mark.parametrize(("part", "count"), [("flips", 20), ("crafted", 6), ("pretrained", 8)])
def test_an_attack_on_files(part: str, count: int, tmp_path: Path) -> None:
    if part == "pretrained":
        peer("transformers")
    cases = getattr(attacks, part)(tmp_path, random.Random(1))
    for _, case in zip(range(count), cases, strict=False):
        assert case.verdict != "FAULT", case


@pytest.mark.slow
def test_an_attack_on_the_cache(tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = tmp_path / "whole"
    whole.mkdir()
    (whole / "toy.yaml").write_text(TOY)
    monkeypatch.setenv("ATTNKIT_CACHE", str(whole / "cache"))
    words = ("train", str(whole / "toy.yaml"), "--device", "cpu", "--quiet", "--out")
    assert called(capsys, *words, str(whole / "runs")).code == 0
    for _, case in zip(range(8), attacks.caches(tmp_path, random.Random(2)), strict=False):
        assert case.verdict == "same weights", case
    shutil.rmtree(whole)
