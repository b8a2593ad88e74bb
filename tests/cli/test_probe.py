"""`attnkit probe heads`: the table, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.called import Done, called

from attnkit.runs import Run


@pytest.fixture
def probe(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """`attnkit probe heads RUN --split test`, in an empty folder."""
    monkeypatch.chdir(tmp_path)

    def call(*words: str, split: str = "test") -> Done:
        return called(capsys, "probe", "heads", str(run.path), "--split", split, *words)

    return call


def test_each_head_has_a_row_below_the_whole_model(probe: Any) -> None:
    rows = json.loads(probe("--format", "json").out)["rows"]
    assert [(row["kind"], row["layer"], row["head"]) for row in rows] == [
        (None, None, None),
        *[(kind, 0, head) for kind in ("encoder", "decoder", "cross") for head in (0, 1)],
    ]
    for row in rows[1:]:
        assert row["perplexity_loss"] == pytest.approx(row["perplexity"] - rows[0]["perplexity"])
