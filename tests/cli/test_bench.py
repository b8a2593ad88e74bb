"""`attnkit bench attention`: its tables, formats and refusals."""

import csv
import io
import json

import pytest
from helpers.called import Done, called

QUICK = ("--lengths", "16,32", "--heads", "2", "--head-width", "8", "--repeats", "1")


def run(capsys: pytest.CaptureFixture[str], *words: str) -> Done:
    return called(capsys, "bench", "attention", *words)


def test_the_table_has_times_ratios_peaks_and_exponents(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "130")
    code, out, err = run(capsys, "linear", "scaled-dot:key_heads=1", "--causal", *QUICK)
    assert code == 0
    assert out.startswith("attention only, causal, 2 heads of 8, float32, cpu\n")
    rows = [line.split()[:2] for line in out.splitlines()]
    for length in ("16", "32"):
        for label in ("fused", "linear", "scaled-dot:key_heads=1"):
            assert [length, label] in rows
    assert "16 to 32" in out
    assert "length 32: linear" in err


@pytest.mark.slow
def test_the_same_as_csv_and_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "linear", "--layer", *QUICK, "--format", "csv")
    records = list(csv.DictReader(io.StringIO(out)))
    assert code == 0
    assert [(r["length"], r["mechanism"]) for r in records] == [
        ("16", "fused"),
        ("16", "linear"),
        ("32", "fused"),
        ("32", "linear"),
    ]
    assert float(records[1]["forward_backward_seconds"]) > 0
    code, out, _ = run(capsys, "linear", *QUICK[2:], "--lengths", "16,32", "--format", "json")
    found = json.loads(out)
    assert found["setting"]["heads"] == 2
    assert found["points"][1]["mechanism"] == "linear"
    assert found["exponents"]["linear"]["forward"]["low"] == 16
