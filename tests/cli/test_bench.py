"""Tests of `attnkit bench`: measurements, tables, formats and traces."""

import csv
import io
import json
from pathlib import Path

import pytest
from helpers.cli import Cli
from helpers.trained import make_run

QUICK = ("--lengths", "16,32", "--heads", "2", "--head-width", "8", "--repeats", "1")
TINY = ["model.width=8", "model.ff=16", "model.layers=1"]
TINY += ["data.size=60", "train.batch_tokens=200", "search.max_length=8"]


def test_table_has_times_ratios_peaks_and_exponents(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "130")
    _, out, err = cli("bench", "attention", "linear", "scaled-dot:key_heads=1", "--causal", *QUICK)
    assert out.startswith("attention only, causal, 2 heads of 8, float32, cpu\n")
    rows = [line.split()[:2] for line in out.splitlines()]
    for length in ("16", "32"):
        for label in ("fused", "linear", "scaled-dot:key_heads=1"):
            assert [length, label] in rows
    assert "16 to 32" in out
    assert "length 32: linear" in err


@pytest.mark.slow
def test_csv_and_json_have_the_measurements_of_the_table(cli: Cli) -> None:
    out = cli("bench", "attention", "linear", "--layer", *QUICK, "--format", "csv").out
    records = list(csv.DictReader(io.StringIO(out)))
    rows = [(length, name) for length in ("16", "32") for name in ("fused", "linear")]
    assert [(r["length"], r["mechanism"]) for r in records] == rows
    assert float(records[1]["forward_backward_seconds"]) > 0
    out = cli("bench", "attention", "linear", *QUICK[2:], "--lengths", "16,32", "--format", "json").out
    found = json.loads(out)
    assert found["setting"]["heads"] == 2
    assert found["points"][1]["mechanism"] == "linear"
    assert found["exponents"]["linear"]["forward"]["low"] == 16


@pytest.mark.slow
def test_updates_are_measured_and_traced(cli: Cli) -> None:
    options = ("train.precision=fp32", "--format", "json", "--profile", "trace.json")
    _, out, err = cli("bench", "train", "quickstart", *TINY, "--updates", "2", *options)
    assert "wrote trace.json" in err
    names = {event.get("name") for event in json.loads(Path("trace.json").read_text())["traceEvents"]}
    assert names >= {"attnkit: loss", "attnkit: optimizer", "aten::embedding"}
    found = json.loads(out)
    title = " ".join(("quickstart scaled-dot", *TINY, "train.precision=fp32"))
    assert (found["measured"], found["precision"]) == (title, "fp32")
    assert found["seconds"] > 0
    assert found["operations_per_token"] > 0
    assert found["peaks"].keys() == {"fp32", "bf16"}
    assert 0 <= found["padding_source"] < 1


@pytest.mark.slow
def test_decoding_of_a_run_is_measured(cli: Cli, tmp_path: Path) -> None:
    command = ("bench", "decode", str(make_run(tmp_path).path))
    out = cli(*command, "--rows", "4", "--beam", "1").out
    assert out.startswith("toy/base/seed-1\n")
    assert "greedy" in out
    out = cli(*command, "--rows", "2", "--format", "csv").out
    records = {record["measured"]: record["value"] for record in csv.DictReader(io.StringIO(out))}
    assert records["all lines"].startswith("2 lines in ")
    found = json.loads(cli(*command, "--rows", "3", "--beam", "2", "--format", "json").out)
    assert (found["lines"], found["search"]) == (3, "beam 2")
    assert 0 < found["one_line_seconds"] < found["seconds"] * 6
