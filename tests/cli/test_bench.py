"""`attnkit bench`: what it measures, its tables, formats and traces."""

import csv
import io
import json
from pathlib import Path

import pytest
from helpers.cli import Cli
from helpers.trained import make_run

QUICK = ("--lengths", "16,32", "--heads", "2", "--head-width", "8", "--repeats", "1")
TINY = [
    "model.width=8",
    "model.ff=16",
    "model.layers=1",
    "data.size=60",
    "train.batch_tokens=200",
    "search.max_length=8",
]


def test_the_table_has_times_ratios_peaks_and_exponents(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "130")
    code, out, err = cli("bench", "attention", "linear", "scaled-dot:key_heads=1", "--causal", *QUICK)
    assert code == 0
    assert out.startswith("attention only, causal, 2 heads of 8, float32, cpu\n")
    rows = [line.split()[:2] for line in out.splitlines()]
    for length in ("16", "32"):
        for label in ("fused", "linear", "scaled-dot:key_heads=1"):
            assert [length, label] in rows
    assert "16 to 32" in out
    assert "length 32: linear" in err


@pytest.mark.slow
def test_the_same_as_csv_and_json(cli: Cli) -> None:
    code, out, _ = cli("bench", "attention", "linear", "--layer", *QUICK, "--format", "csv")
    records = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    rows = [(length, name) for length in ("16", "32") for name in ("fused", "linear")]
    assert [(r["length"], r["mechanism"]) for r in records] == rows
    assert float(records[1]["forward_backward_seconds"]) > 0
    code, out, _ = cli("bench", "attention", "linear", *QUICK[2:], "--lengths", "16,32", "--format", "json")
    found = json.loads(out)
    assert found["setting"]["heads"] == 2
    assert found["points"][1]["mechanism"] == "linear"
    assert found["exponents"]["linear"]["forward"]["low"] == 16


@pytest.mark.slow
def test_updates_are_measured_and_their_trace_is_one_that_viewers_read(cli: Cli) -> None:
    path = Path("trace.json")
    words = ("train.precision=fp32", "--format", "json", "--profile", str(path))
    code, out, err = cli("bench", "train", "quickstart", *TINY, "--updates", "2", *words)
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
def test_the_decoding_of_a_run_is_measured(cli: Cli, tmp_path: Path) -> None:
    run = str(make_run(tmp_path).path)
    code, out, _ = cli("bench", "decode", run, "--rows", "4", "--beam", "1")
    assert code == 0
    assert out.startswith("toy/base/seed-1\n")
    assert "greedy" in out
    out = cli("bench", "decode", run, "--rows", "2", "--format", "csv").out
    records = {record["measured"]: record["value"] for record in csv.DictReader(io.StringIO(out))}
    assert records["all lines"].startswith("2 lines in ")
    found = json.loads(cli("bench", "decode", run, "--rows", "3", "--beam", "2", "--format", "json").out)
    assert (found["lines"], found["search"]) == (3, "beam 2")
    assert 0 < found["one_line_seconds"] < found["seconds"] * 6
