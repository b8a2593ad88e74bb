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


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--kind", "croos"), 2, "'--kind': 'croos': did you mean cross?"),
        (("--rows", "0"), 2, "'--rows': must be >= 1"),
        (("--format", "jsn"), 2, "--format': 'jsn': did you mean json?"),
        (("--metrics", "blue"), 2, "unknown metric 'blue': did you mean bleu?"),
        (("--layer", "7"), 2, "--layer 7: encoder attention has only layer 0"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    probe: Any, words: tuple[str, ...], code: int, message: str
) -> None:
    done = probe(*words)
    assert done.code == code
    assert message in done.refusal


def test_a_split_that_is_not_there_is_refused(probe: Any) -> None:
    done = probe(split="valid")
    assert done.code == 66
    assert "valid" in done.err
