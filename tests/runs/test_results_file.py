"""Results files: what is kept of a run, that nothing changes by it, and hostile archives."""

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


def make_scored(folder: Path) -> Run:
    """A run with a log of 1,000 intervals and 500 validations, scored also by its model."""
    run = scored_run(folder, "base", OUTPUTS, METRICS)
    for step in range(1, 1001):
        run.log.append({"step": step, "loss": 1 / step, "tokens": 10 * step, "seconds": 1.0})
        if step % 2 == 1:
            run.log.append({"step": step, "valid_loss": 2.0, "monitor": "loss", "value": 2.0})
    run.record("metrics.jsonl", run.log.sha256())
    evaluate(run, ["test"], EvalConfig(metrics=("perplexity", *METRICS)), device="cpu")
    return run


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_scored(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def packed(run: Run) -> Path:
    return pack_results(run, run.path.parents[3] / "results")


def members(path: Path) -> dict[str, bytes]:
    """What standard tools find in an archive."""
    with tarfile.open(path, "r:xz") as opened:
        return {one.name: opened.extractfile(one).read() for one in opened}  # type: ignore[union-attr]


def test_what_is_in_it(run: Run, packed: Path) -> None:
    assert packed.as_posix().endswith("results/toy/base/seed-1.results.tar.xz")
    found = members(packed)
    names = [
        "data/test.json",
        "manifest.json",
        "metrics.jsonl",
        "outputs/test.hyp.txt",
        "outputs/test.stats.npz",
        "recipe.yaml",
        "scores.json",
    ]
    assert list(found) == [f"toy/base/seed-1/{name}" for name in names]
    for name in ("recipe.yaml", "outputs/test.hyp.txt", "data/test.json"):
        assert found[f"toy/base/seed-1/{name}"] == (run.path / name).read_bytes()
    opened = Run.open(packed)
    assert opened.finished
    assert (opened.name, opened.variant, opened.seed) == ("toy", "base", 1)
    files = opened.manifest.files
    assert files["model.safetensors"] == run.manifest.files["model.safetensors"]
    assert opened.left_out == ("model.safetensors", "tokenizer.model")
    assert opened.manifest.left_out.log_records == 1500
    assert opened.manifest.left_out.log_sha256 == run.manifest.files["metrics.jsonl"]
    assert opened.recipe == run.recipe


def test_the_same_run_gives_the_same_bytes(run: Run, packed: Path, tmp_path: Path) -> None:
    copy = Run(shutil.copytree(run.path, tmp_path / "copy"))
    for path in copy.path.rglob("*"):
        os.utime(path, (1e9, 1e9))
    assert pack_results(copy, tmp_path).read_bytes() == packed.read_bytes()
    again = pack_results(Run.open(packed), tmp_path / "again")
    assert again.read_bytes() == packed.read_bytes()


def test_scores_follow_from_it_to_the_last_bit(run: Run, packed: Path) -> None:
    opened = Run.open(packed)
    before, after = (SavedScores.read(one, "test") for one in (run, opened))
    assert before is not None
    assert after is not None
    assert after.texts == before.texts == OUTPUTS
    assert set(after.scores) == {"bleu", "chrf", "rouge1", "rouge2", "rougeL", "rougeLsum", "ter", "perplexity"}
    for name, one in before.scores.items():
        other = after.scores[name]
        assert (other.value, other.signature) == (one.value, one.signature)
        assert other.statistics.dtype == np.float64
        assert other.statistics.tobytes() == one.statistics.tobytes()
        assert other.statistics.flags.c_contiguous == one.statistics.flags.c_contiguous


def test_the_log_is_thinned_to_what_curves_need(run: Run, packed: Path) -> None:
    whole, kept = run.log.records(), Run.open(packed).log.records()
    places = [whole.index(record) for record in kept]
    assert places == sorted(places)
    validations = [record for record in kept if "value" in record]
    assert len(validations) in (100, 101)
    assert len(kept) - len(validations) <= 200
    assert (kept[0]["step"], kept[-1]["step"]) == (1, 1000)
    assert 7 in [record["step"] for record in validations], "that of the chosen weights"
    for place, record in enumerate(kept):
        if "value" in record:
            assert kept[place - 1]["tokens"] == 10 * record["step"]
    steps = [record["step"] for record in validations]
    assert max(np.diff(steps)) <= 12, "evenly: 500 validations, 2 updates apart, to 100"


def test_it_is_found_like_a_run_but_not_beside_it(run: Run, packed: Path, tmp_path: Path) -> None:
    root = tmp_path / "root"
    path = pack_results(run, root)
    assert [one.path for one in find_runs([root])] == [path]
    (status,) = statuses(root)
    assert (status.state, status.seed, status.variant) == ("results", 1, "base")
    assert status.bytes == path.stat().st_size
    assert status.validation == 2.0
    beside = path.with_name("seed-1")
    shutil.copytree(run.path, beside)
    assert [one.path for one in find_runs([root])] == [beside]


def test_unpacked_it_opens_as_well(run: Run, packed: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(packed, tmp_path, "xztar", filter="data")
    unpacked = Run.open(tmp_path / "toy/base/seed-1")
    assert unpacked.finished
    assert unpacked.scores() == Run.open(packed).scores()
    assert pack_results(unpacked, tmp_path).read_bytes() == packed.read_bytes()
    with pytest.raises(MissingInputError, match="results have no weights"):
        unpacked.weights()


def test_nothing_that_needs_weights_or_writes_is_answered(packed: Path) -> None:
    opened = Run.open(packed)
    for ask in (opened.weights, opened.tokenizer, opened.model, opened.untrained):
        with pytest.raises(MissingInputError, match=r"train it again: attnkit train toy --variant"):
            ask()
    before = packed.read_bytes()
    with pytest.raises(OutputPathError):
        opened.update(parameters=3)
    with pytest.raises(OutputPathError), opened.lock():
        pass
    assert not opened.writable
    assert packed.read_bytes() == before


def test_what_cannot_be_packed(tmp_path: Path) -> None:
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


def test_what_could_not_be_opened_is_not_written(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_BYTES", 1000)
    with pytest.raises(DataError, match="a results file holds at most 0 MB"):
        pack_results(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def checks(path: Path) -> list[Any]:
    return [(one.cell, one.state, one.score) for one in verify(path)]


def test_a_damaged_byte_is_found_or_changes_nothing(packed: Path, tmp_path: Path) -> None:
    data, draw = packed.read_bytes(), random.Random(3)
    whole = checks(packed)
    assert not [one for one in whole if one[1] == "different"]
    path = tmp_path / packed.name
    places = {*range(30), *range(len(data) - 30, len(data)), *draw.sample(range(len(data)), 60)}
    found = 0
    for place in sorted(places):
        changed = bytearray(data)
        changed[place] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        now = checks(path)
        different = [one for one in now if one[1] == "different"]
        assert different or now == whole, place
        found += bool(different)
    assert found > len(places) * 0.9
    for size in (0, 1, 100, len(data) - 1):
        path.write_bytes(data[:size])
        assert [one[1] for one in checks(path)] == ["different"]


def archive(files: Mapping[str, bytes], *more: tarfile.TarInfo) -> bytes:
    """A tar of these files and members."""
    packed = io.BytesIO()
    with tarfile.open(mode="w", fileobj=packed) as opened:
        for name, content in files.items():
            one = tarfile.TarInfo(name)
            one.size = len(content)
            opened.addfile(one, io.BytesIO(content))
        for one in more:
            opened.addfile(one)
    return lzma.compress(packed.getvalue())


def of_kind(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    one = tarfile.TarInfo(name)
    one.type, one.linkname = kind, target
    return one


def sparse(name: str) -> tarfile.TarInfo:
    """A file of a terabyte of zeros."""
    one = tarfile.TarInfo(name)
    one.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.realsize": str(1 << 40),
        "GNU.sparse.name": name,
    }
    return one


RUN = "toy/base/seed-1"
HOSTILE: dict[str, Callable[[dict[str, bytes]], bytes]] = {
    "a link": lambda f: archive(f, of_kind(f"{RUN}/scores.json2", tarfile.SYMTYPE, "/etc/passwd")),
    "a link to data": lambda f: archive(
        {n: c for n, c in f.items() if not n.endswith("scores.json")},
        of_kind(f"{RUN}/scores.json", tarfile.SYMTYPE, "/etc/passwd"),
    ),
    "a hard link": lambda f: archive(f, of_kind(f"{RUN}/data/a.json", tarfile.LNKTYPE, RUN)),
    "a device": lambda f: archive(f, of_kind(f"{RUN}/data/a.json", tarfile.CHRTYPE)),
    "a pipe": lambda f: archive(f, of_kind(f"{RUN}/data/a.json", tarfile.FIFOTYPE)),
    "a sparse file": lambda f: archive(f, sparse(f"{RUN}/data/a.json")),
    "a path above": lambda f: archive({**f, f"{RUN}/../../x.json": b"{}"}),
    "an absolute path": lambda f: archive({**f, "/etc/x": b""}),
    "a path inside outputs": lambda f: archive({**f, f"{RUN}/outputs/../../a.hyp.txt": b""}),
    "weights": lambda f: archive({**f, f"{RUN}/model.safetensors": b""}),
    "no manifest": lambda f: archive({n: c for n, c in f.items() if "manifest" not in n}),
    "two manifests": lambda f: archive({**f, "other/manifest.json": b"{}"}),
    "a name twice": lambda f: archive(f, of_kind(f"{RUN}/scores.json", tarfile.REGTYPE)),
    "no archive": lambda f: lzma.compress(b"hello"),
    "nothing": lambda f: b"",
    "another compression": lambda f: b"\x1f\x8b" + archive(f),
    "two streams": lambda f: archive(f) * 2,
    "much memory": lambda f: lzma.compress(b"x", filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 30}]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archives_are_refused_in_one_line(name: str, packed: Path, tmp_path: Path) -> None:
    path = tmp_path / "seed-1.results.tar.xz"
    path.write_bytes(HOSTILE[name](members(packed)))
    with pytest.raises(DataError, match="is damaged or not a results file") as caught:
        Run.open(path)
    assert "\n" not in str(caught.value)
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


@pytest.mark.slow
def test_a_bomb_is_not_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MAX_BYTES", 1 << 20)
    path = tmp_path / "seed-1.results.tar.xz"
    path.write_bytes(lzma.compress(b"\0" * (1 << 26)))
    with pytest.raises(DataError, match="holds more than 1 MB"):
        Run.open(path)
    monkeypatch.setattr(packing, "MAX_FILE_BYTES", 10)
    with pytest.raises(DataError, match="larger than 0 MB"):
        Run.open(path)
    monkeypatch.undo()
    many = {f"{RUN}/data/{number}.json": b"" for number in range(1001)}
    path.write_bytes(archive(many))
    with pytest.raises(DataError, match="more than 1000 files"):
        Run.open(path)


def test_statistics_that_unpack_to_much_are_refused(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attnkit.scoring.saved_scores.MAX_BYTES", 10)
    with pytest.raises(DataError, match="the stored evaluation of test is damaged"):
        SavedScores.read(Run.open(packed), "test")


def changed(packed: Path, path: Path, name: str, content: bytes) -> None:
    """The same results with another file, and the hash of the old one."""
    files = members(packed)
    assert f"{RUN}/{name}" in files
    path.write_bytes(archive({**files, f"{RUN}/{name}": content}))


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("recipe.yaml", "recipe.yaml"),
        ("metrics.jsonl", "metrics.jsonl"),
        ("scores.json", "scores.json"),
        ("data/test.json", "data/test.json"),
        ("manifest.json", "manifest.json"),
        ("outputs/test.hyp.txt", "test bleu"),
        ("outputs/test.stats.npz", "test bleu"),
    ],
)
def test_a_changed_file_is_named_by_verify(packed: Path, tmp_path: Path, name: str, cell: str) -> None:
    path = tmp_path / packed.name
    content = members(packed)[f"{RUN}/{name}"]
    if name == "manifest.json":
        content = json.dumps({**json.loads(content), "parameters": 1}).encode()
    else:
        content = content.replace(b"1", b"2") + b"\n"
    changed(packed, path, name, content)
    assert cell in [one.cell for one in verify(path) if one.state == "different"]


@pytest.mark.parametrize("data", [b"[]", b"{}", b"\xff", b'{"files": 3}', b'{"left_out": []}'])
def test_a_manifest_that_is_none(packed: Path, tmp_path: Path, data: bytes) -> None:
    path = tmp_path / packed.name
    changed(packed, path, "manifest.json", data)
    with pytest.raises(AttnkitError) as caught:
        Run.open(path)
    assert str(caught.value).startswith(f"{path}/manifest.json: ")
