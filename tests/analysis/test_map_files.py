"""Tests of files of maps: round trip, reproducible bytes, CSV, errors."""

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.saved_maps import load
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from attnkit.analysis.map_files import check_suffix, save
from attnkit.analysis.maps import AttentionMaps, Capture, Kind, MapLayer, Token
from attnkit.errors import OutputPathError, UsageError

HOSTILE = ("</script>", "\"onmouseover='x'", "\u2028", "\u202eabc", "\ud800", "\x00", "\x1b[31m", "a\nb", "=1+1", "+1")
HOSTILE += ("-1", "@x", "\uff1d1", "\u2581,", "'", "", "\u2581\u6f22", "\\", "\U0001f468\u200d")
DRAWN = np.random.default_rng(0)


def maps(kind: Kind = "cross", texts: tuple[str, ...] = ("a", "b")) -> AttentionMaps:
    queries = (Token("<s>", 2, None, True), *(Token(t, i, i // 2) for i, t in enumerate(texts)))
    keys = (*queries[1:], Token("</s>", 3, None, True))
    weights = DRAWN.normal(size=(2, 3, len(queries), len(keys))).astype(np.float32)
    layers = (MapLayer(0, "scaled-dot"), MapLayer(4, "my-own", False, True, (0.25, 0.1, 1 / 3)))
    return AttentionMaps(kind, weights, layers, (0, 2, 5), queries, keys)


def capture(texts: tuple[str, ...] = ("a", "b"), **more: Any) -> Capture:
    source = "".join(texts)
    both = {"encoder": maps("encoder", texts), "cross": maps("cross", texts)}
    facts = {"weights": "00ff", "note": source}
    return Capture(source, "out", "beam 5", "recipe/base/seed-1", both, facts, **more)


def contents(capture: Capture | None) -> object:
    """Return all values of a capture as one that can be compared."""
    if capture is None:
        return None
    maps = [
        (kind, m.kind, m.weights.tolist(), m.layers, m.heads, m.queries, m.keys) for kind, m in capture.maps.items()
    ]
    return replace(capture, maps={}, reference=None), maps, contents(capture.reference)


def test_capture_with_reference_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "maps.npz"
    saved = capture(HOSTILE, reference=capture(HOSTILE[:3]))
    save(path, saved)
    assert contents(load(path)) == contents(saved) != contents(replace(saved, reference=None))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(st.characters(), max_size=5), min_size=1, max_size=4).map(tuple))
def test_tokens_round_trip(tmp_path: Path, texts: tuple[str, ...]) -> None:
    path = tmp_path / "maps.npz"
    saved = capture(texts)
    save(path, saved)
    assert contents(load(path)) == contents(saved)


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_equal_maps_give_equal_bytes(tmp_path: Path, suffix: str) -> None:
    saved = capture(HOSTILE)
    paths = [tmp_path / f"{name}{suffix}" for name in ("first", "second")]
    for path in paths:
        save(path, saved)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert len(list(tmp_path.iterdir())) == 2


def test_numpy_and_json_read_the_file(tmp_path: Path) -> None:
    saved = capture()
    save(tmp_path / "maps.npz", saved)
    with np.load(tmp_path / "maps.npz") as archive:
        assert np.array_equal(archive["cross"], saved.maps["cross"].weights)
        assert archive["cross.keys"].tolist()[-1] == "</s>"
        assert len(archive["cross.queries"]) == archive["cross"].shape[2]
        described = json.loads(archive["capture"].tobytes())
    assert (described["format"], described["version"]) == ("attnkit-maps", 1)
    assert described["maps"]["cross"]["keys"][-1] == ["</s>", 3, None, True]


def test_csv_has_a_row_for_each_weight(tmp_path: Path) -> None:
    saved = capture(reference=capture())
    save(tmp_path / "maps.CSV", saved)
    with open(tmp_path / "maps.CSV", encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2 * sum(maps.weights.size for maps in saved.maps.values())
    row = next(r for r in rows if r["kind"] == "cross" and r["layer"] == "4" and r["head"] == "2")
    assert (row["query"], row["key"], row["query_token"], row["key_token"]) == ("0", "0", "<s>", "a")
    assert np.float32(row["weight"]) == saved.maps["cross"].weights[1, 1, 0, 0]
    assert {r["kind"] for r in rows} == {"encoder", "cross", "encoder-reference", "cross-reference"}


def test_csv_is_safe_to_open(tmp_path: Path) -> None:
    """No cell is a formula or has a control character or line break; the cells of tokens remain distinct."""
    save(tmp_path / "maps.csv", capture((*HOSTILE, " =1")))
    text = (tmp_path / "maps.csv").read_text(encoding="utf-8")
    assert not {*text} & {*"\x00\x1b\u2028\u202e"}
    rows = list(csv.reader(text.splitlines()))
    assert {len(row) for row in rows} == {9}
    cells = [row[6] for row in rows[1 : len(HOSTILE) + 2]]
    assert not any(cell.strip().startswith(("=", "+", "-", "@", "\uff1d")) for cell in cells)
    assert "'=1+1" in cells
    assert "a\\nb" in cells
    assert len(set(cells)) == len(cells)


@pytest.mark.parametrize("name", ["maps.txt", "maps", "maps.npz.gz"])
def test_unknown_suffix_raises(name: str) -> None:
    with pytest.raises(UsageError, match=r"unknown suffix .*; choose from \.npz, \.csv"):
        check_suffix(Path(name))


@pytest.mark.parametrize("suffix", [".npz", ".csv"])
def test_missing_folder_raises(tmp_path: Path, suffix: str) -> None:
    with pytest.raises(OutputPathError, match="cannot be created"):
        save(tmp_path / "none" / f"maps{suffix}", capture())
