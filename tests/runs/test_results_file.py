"""Tests of results files: their contents, reproducible bytes, exact scores, damage and hostile archives."""

import io
import json
import lzma
import os
import random
import shutil
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.scored_runs import scored_run
from helpers.trained import make_run

from attnkit.errors import AttnkitError, DataError, MissingInputError, OutputPathError
from attnkit.experiment.verification import verify
from attnkit.recipe.schema import EvalConfig
from attnkit.runs import Run, find_runs, packing
from attnkit.runs.packing import pack_results
from attnkit.runs.status import statuses
from attnkit.scoring.evaluation import evaluate
from attnkit.scoring.saved_scores import SavedScores

OUTPUTS = ["ein roter hund", "zwei katzen", "ein hund", "katzen", "eine \u00fcberaus rote katze"]
METRICS = ("bleu", "chrf", "rouge", "ter")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run with a log of 1,000 intervals and 500 validations, also scored by its model."""
    run = scored_run(tmp_path_factory.mktemp("run"), "base", OUTPUTS, METRICS)
    for step in range(1, 1001):
        run.log.append({"step": step, "loss": 1 / step, "tokens": 10 * step, "seconds": 1.0})
        if step % 2 == 1:
            run.log.append({"step": step, "valid_loss": 2.0, "monitor": "loss", "value": 2.0})
    run.record("metrics.jsonl", run.log.sha256())
    evaluate(run, ["test"], EvalConfig(metrics=("perplexity", *METRICS)), device="cpu")
    return run


@pytest.fixture(scope="module")
def packed(run: Run) -> Path:
    return pack_results(run, run.path.parents[3] / "results")


def members(path: Path) -> dict[str, bytes]:
    """Read the members of an archive with the standard library."""
    with tarfile.open(path, "r:xz") as opened:
        return {member.name: opened.extractfile(member).read() for member in opened}


RUN = "toy/base/seed-1"


def test_contents(run: Run, packed: Path) -> None:
    assert packed.as_posix().endswith(f"results/{RUN}.results.tar.xz")
    found = members(packed)
    names = "data/test.json manifest.json metrics.jsonl outputs/test.hyp.txt outputs/test.stats.npz recipe.yaml"
    assert list(found) == [f"{RUN}/{name}" for name in [*names.split(), "scores.json"]]
    for name in ("recipe.yaml", "outputs/test.hyp.txt", "data/test.json"):
        assert found[f"{RUN}/{name}"] == (run.path / name).read_bytes()
    opened = Run.open(packed)
    assert opened.finished
    assert (opened.name, opened.variant, opened.seed) == ("toy", "base", 1)
    assert opened.manifest.files["model.safetensors"] == run.manifest.files["model.safetensors"]
    assert opened.left_out == ("model.safetensors", "tokenizer.model")
    assert opened.manifest.left_out.log_records == 1500
    assert opened.manifest.left_out.log_sha256 == run.manifest.files["metrics.jsonl"]
    assert opened.recipe == run.recipe


def test_same_run_gives_the_same_bytes(run: Run, packed: Path, tmp_path: Path) -> None:
    copy = Run(shutil.copytree(run.path, tmp_path / "copy"))
    for path in copy.path.rglob("*"):
        os.utime(path, (1e9, 1e9))
    assert pack_results(copy, tmp_path).read_bytes() == packed.read_bytes()
    assert pack_results(Run.open(packed), tmp_path / "again").read_bytes() == packed.read_bytes()


def test_scores_are_computed_from_a_results_file_bit_by_bit(run: Run, packed: Path) -> None:
    of_run, of_file = (SavedScores.read(source, "test") for source in (run, Run.open(packed)))
    assert of_file.texts == of_run.texts == OUTPUTS
    assert set(of_file.scores) == {"bleu", "chrf", "rouge1", "rouge2", "rougeL", "rougeLsum", "ter", "perplexity"}
    for name, expected in of_run.scores.items():
        score = of_file.scores[name]
        assert (score.value, score.signature) == (expected.value, expected.signature)
        assert score.statistics.dtype == np.float64
        assert score.statistics.tobytes() == expected.statistics.tobytes()
        assert score.statistics.flags.c_contiguous == expected.statistics.flags.c_contiguous


def test_log_is_thinned_to_the_points_of_curves(run: Run, packed: Path) -> None:
    all_records, records = run.log.records(), Run.open(packed).log.records()
    indices = [all_records.index(record) for record in records]
    assert indices == sorted(indices)
    steps = [record["step"] for record in records if "value" in record]
    assert len(steps) in (100, 101)
    assert len(records) - len(steps) <= 200
    assert (records[0]["step"], records[-1]["step"]) == (1, 1000)
    assert 7 in steps, "the validation of the chosen weights"
    for index, record in enumerate(records):
        if "value" in record:
            assert records[index - 1]["tokens"] == 10 * record["step"]
    assert max(np.diff(steps)) <= 12, "evenly spaced: 500 validations, 2 updates apart, reduced to 100"


def test_results_file_is_found_like_a_run_but_not_beside_it(run: Run, tmp_path: Path) -> None:
    root = tmp_path / "root"
    path = pack_results(run, root)
    assert [found.path for found in find_runs([root])] == [path]
    (status,) = statuses(root)
    assert (status.state, status.seed, status.variant) == ("results", 1, "base")
    assert status.bytes == path.stat().st_size
    assert status.validation == 2.0
    folder = shutil.copytree(run.path, path.with_name("seed-1"))
    assert [found.path for found in find_runs([root])] == [folder]


def test_unpacked_results_file_opens_as_a_run(packed: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(packed, tmp_path, "xztar", filter="data")
    unpacked = Run.open(tmp_path / RUN)
    assert unpacked.finished
    assert unpacked.scores() == Run.open(packed).scores()
    assert pack_results(unpacked, tmp_path).read_bytes() == packed.read_bytes()
    with pytest.raises(MissingInputError, match="results have no weights"):
        unpacked.weights()


def test_results_file_has_no_weights_and_cannot_be_changed(packed: Path) -> None:
    opened = Run.open(packed)
    for load in (opened.weights, opened.tokenizer, opened.model, opened.untrained):
        with pytest.raises(MissingInputError, match=r"train it again: attnkit train toy --variant"):
            load()
    before = packed.read_bytes()
    with pytest.raises(OutputPathError):
        opened.update(parameters=3)
    with pytest.raises(OutputPathError), opened.lock():
        pass
    assert not opened.writable
    assert packed.read_bytes() == before


def test_run_that_cannot_be_packed_raises(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with pytest.raises(MissingInputError, match="not scored yet: run `attnkit eval"):
        pack_results(run, tmp_path / "out")
    run = scored_run(tmp_path, "other", OUTPUTS)
    with pytest.raises(OutputPathError, match="inside the run"):
        pack_results(run, run.path)
    path = run.path / "outputs/test.hyp.txt"
    path.write_bytes(path.read_bytes() + b"x\n")
    with pytest.raises(DataError, match=r"test\.hyp\.txt: was changed"):
        pack_results(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_results_file_that_could_not_be_opened_is_not_written(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MAX_BYTES", 1000)
    with pytest.raises(DataError, match="a results file holds at most 0 MB"):
        pack_results(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def checks(path: Path) -> list[Any]:
    return [(check.cell, check.state, check.score) for check in verify(path)]


def test_damaged_byte_is_detected_or_changes_nothing(packed: Path, tmp_path: Path) -> None:
    data, draw = packed.read_bytes(), random.Random(3)
    expected = checks(packed)
    assert "different" not in {state for _, state, _ in expected}
    path = tmp_path / packed.name
    places = {*range(30), *range(len(data) - 30, len(data)), *draw.sample(range(len(data)), 60)}
    detected = 0
    for place in sorted(places):
        damaged = bytearray(data)
        damaged[place] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        found = checks(path)
        different = "different" in {state for _, state, _ in found}
        assert different or found == expected, place
        detected += different
    assert detected > len(places) * 0.9
    for size in (0, 1, 100, len(data) - 1):
        path.write_bytes(data[:size])
        assert [state for _, state, _ in checks(path)] == ["different"]


def member(
    name: str, kind: bytes = tarfile.REGTYPE, target: str = "", size: int = 0, **headers: str
) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size, info.pax_headers = kind, target, size, headers
    return info


def archive(files: Mapping[str, bytes], *others: tarfile.TarInfo) -> bytes:
    """Return a compressed tar of files and other members."""
    packed = io.BytesIO()
    with tarfile.open(mode="w", fileobj=packed) as opened:
        for name, content in files.items():
            opened.addfile(member(name, size=len(content)), io.BytesIO(content))
        for info in others:
            opened.addfile(info)
    return lzma.compress(packed.getvalue())


TERABYTE = {"major": "1", "minor": "0", "realsize": str(1 << 40), "name": f"{RUN}/data/a.json"}
SPARSE = {f"GNU.sparse.{key}": value for key, value in TERABYTE.items()}
HOSTILE: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "a link": lambda f: archive(f, member(f"{RUN}/scores.json2", tarfile.SYMTYPE, "/etc/passwd")),
    "a link to data": lambda f: archive(
        {n: c for n, c in f.items() if not n.endswith("scores.json")},
        member(f"{RUN}/scores.json", tarfile.SYMTYPE, "/etc/passwd"),
    ),
    "a hard link": lambda f: archive(f, member(f"{RUN}/data/a.json", tarfile.LNKTYPE, RUN)),
    "a device": lambda f: archive(f, member(f"{RUN}/data/a.json", tarfile.CHRTYPE)),
    "a pipe": lambda f: archive(f, member(f"{RUN}/data/a.json", tarfile.FIFOTYPE)),
    "a sparse file": lambda f: archive(f, member(f"{RUN}/data/a.json", **SPARSE)),
    "a path above": lambda f: archive({**f, f"{RUN}/../../x.json": b"{}"}),
    "an absolute path": lambda f: archive({**f, "/etc/x": b""}),
    "a path inside outputs": lambda f: archive({**f, f"{RUN}/outputs/../../a.hyp.txt": b""}),
    "weights": lambda f: archive({**f, f"{RUN}/model.safetensors": b""}),
    "no manifest": lambda f: archive({n: c for n, c in f.items() if "manifest" not in n}),
    "two manifests": lambda f: archive({**f, "other/manifest.json": b"{}"}),
    "a name twice": lambda f: archive(f, member(f"{RUN}/scores.json")),
    "no archive": lambda f: lzma.compress(b"hello"),
    "nothing": lambda f: b"",
    "another compression": lambda f: b"\x1f\x8b" + archive(f),
    "two streams": lambda f: archive(f) * 2,
    "much memory": lambda f: lzma.compress(b"x", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archive_raises(name: str, packed: Path, tmp_path: Path) -> None:
    path = tmp_path / packed.name
    path.write_bytes(HOSTILE[name](members(packed)))
    with pytest.raises(DataError, match="is damaged or not a results file") as caught:
        Run.open(path)
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.slow
def test_decompression_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_BYTES", 1 << 20)
    path = tmp_path / "seed-1.results.tar.xz"
    path.write_bytes(lzma.compress(b"\0" * (1 << 26)))
    with pytest.raises(DataError, match="holds more than 1 MB"):
        Run.open(path)
    monkeypatch.setattr(packing, "MAX_FILE_BYTES", 10)
    with pytest.raises(DataError, match="larger than 0 MB"):
        Run.open(path)
    monkeypatch.undo()
    path.write_bytes(archive({f"{RUN}/data/{number}.json": b"" for number in range(1001)}))
    with pytest.raises(DataError, match="more than 1000 files"):
        Run.open(path)


def test_large_statistics_raise(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnkit.scoring.saved_scores.MAX_BYTES", 10)
    with pytest.raises(DataError, match="the stored evaluation of test is damaged"):
        SavedScores.read(Run.open(packed), "test")


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        *((name, name) for name in ("recipe.yaml", "metrics.jsonl", "scores.json", "data/test.json", "manifest.json")),
        ("outputs/test.hyp.txt", "test bleu"),
        ("outputs/test.stats.npz", "test bleu"),
    ],
)
def test_verify_reports_a_changed_file(packed: Path, tmp_path: Path, name: str, cell: str) -> None:
    path, files = tmp_path / packed.name, members(packed)
    content = files[f"{RUN}/{name}"]
    if name == "manifest.json":
        content = json.dumps({**json.loads(content), "parameters": 1}).encode()
    else:
        content = content.replace(b"1", b"2") + b"\n"
    path.write_bytes(archive({**files, f"{RUN}/{name}": content}))
    assert cell in [check.cell for check in verify(path) if check.state == "different"]


@pytest.mark.parametrize("data", [b"[]", b"{}", b"\xff", b'{"files": 3}', b'{"left_out": []}'])
def test_invalid_manifest_raises(packed: Path, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / packed.name
    path.write_bytes(archive({**members(packed), f"{RUN}/manifest.json": data}))
    with pytest.raises(AttnkitError) as caught:
        Run.open(path)
    assert str(caught.value).startswith(f"{path}/manifest.json: ")
