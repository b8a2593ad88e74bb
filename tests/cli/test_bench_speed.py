"""`attnkit bench train` and `bench decode`: what they measure, formats, traces and refusals."""

import csv
import io
import json
from pathlib import Path

import pytest
from helpers.called import Done, called
from helpers.trained import make_run

TINY = (
    "model.width=8",
    "model.ff=16",
    "model.layers=1",
    "data.size=60",
    "train.batch_tokens=200",
    "search.max_length=8",
)


def train(capsys: pytest.CaptureFixture[str], *words: str) -> Done:
    return called(capsys, "bench", "train", "quickstart", *TINY, "--updates", "2", *words)


@pytest.mark.slow
def test_updates_are_measured_and_their_trace_is_one_that_viewers_read(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    words = ("train.precision=fp32", "--format", "json", "--profile", str(path))
    code, out, err = train(capsys, *words)
    found = json.loads(out)
    assert code == 0
    assert f"wrote {path}" in err
    names = {event.get("name") for event in json.loads(path.read_text())["traceEvents"]}
    assert names >= {"attnkit: loss", "attnkit: optimiser", "aten::embedding"}
    title = " ".join(("quickstart scaled-dot", *TINY, "train.precision=fp32"))
    assert (found["measured"], found["precision"]) == (title, "fp32")
    assert found["seconds"] > 0
    assert found["operations_per_token"] > 0
    assert found["peaks"].keys() == {"fp32", "bf16"}
    assert 0 <= found["padding_source"] < 1


@pytest.mark.slow
def test_the_decoding_of_a_run_is_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run = str(make_run(tmp_path).path)
    code, out, _ = called(capsys, "bench", "decode", run, "--rows", "4", "--beam", "1")
    assert code == 0
    assert out.startswith("toy/base/seed-1\n")
    assert "greedy" in out
    out = called(capsys, "bench", "decode", run, "--rows", "2", "--format", "csv").out
    records = {record["measured"]: record["value"] for record in csv.DictReader(io.StringIO(out))}
    assert records["all lines"].startswith("2 lines in ")
    found = json.loads(called(capsys, "bench", "decode", run, "--rows", "3", "--beam", "2", "--format", "json").out)
    assert (found["lines"], found["search"]) == (3, "beam 2")
    assert 0 < found["one_line_seconds"] < found["seconds"] * 6
