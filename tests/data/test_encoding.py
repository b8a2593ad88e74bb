"""Tests of encoding with several processes: the same files as with one, and no leftovers after an error."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.encoded_rows import encode_rows

from attnkit.data import encoded as encoding
from attnkit.data.encoded import Encoded
from attnkit.data.preparation import prepare
from attnkit.data.rows import Row
from attnkit.data.tokenizer import Tokenizer
from attnkit.errors import DataError, MemoryLimitError, StoppedError
from attnkit.recipe import schema
from attnkit.recipe.schema import Recipe

ROWS = [Row("the cat sees " * (i % 5), "a dog and a long tree " * (i * 7 % 4 + (i % 9 > 0))) for i in range(97)]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(schema.TokenizerConfig(size=30), ROWS)


@pytest.fixture(autouse=True)
def _ten_chunks_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "CHUNK_ROWS", 10)
    monkeypatch.setattr(encoding, "CHUNKS_BEFORE_POOL", 1)
    monkeypatch.setattr(encoding, "process_count", lambda: 1)


@pytest.fixture
def encode(tokenizer: Tokenizer, tmp_path: Path) -> Callable[..., Encoded]:
    """Return a function that encodes `ROWS`, a few of which are too long, or other rows."""

    def encode(key: str = "k", rows: object = ROWS, **options: object) -> Encoded:
        return encode_rows(rows, tokenizer, tmp_path / key, max_length=40, **options)

    return encode


def contents(split: Encoded) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in split.path.iterdir() if path.suffix in (".ids", ".offsets")}


def names_without_locks(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


@pytest.mark.sampled(5)
@pytest.mark.parametrize("options", [{}, {"sample": (0.3, 1)}, {"stream": True}])
def test_two_processes_write_the_same_files_as_one(
    encode: Callable[..., Encoded], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, reports = encode("one", **options), list[int]()
    assert one.counts.empty > 0
    assert ("stream" in options) == (one.counts.too_long == 0)
    monkeypatch.setattr(encoding, "process_count", lambda: 2)
    two = encode("two", report=reports.append, **options)
    assert contents(two) == contents(one)
    assert (two.counts, two.digest) == (one.counts, one.digest)
    assert reports == [*range(10, 97, 10), 97]


@pytest.mark.slow
def test_killed_worker_raises(encode: Callable[..., Encoded], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding, "process_count", lambda: 2)

    def kill(done: int) -> None:
        if done == 20:
            for process in multiprocessing.active_children():
                process.kill()

    with pytest.raises(MemoryLimitError, match="a process that encodes the corpus was killed"):
        encode(report=kill)
    assert multiprocessing.active_children() == []
    assert contents(encode()) == contents(encode("whole"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("error", [DataError("train.en:2: malformed"), StoppedError("stopped")])
@pytest.mark.parametrize("jobs", [1, 2])
def test_error_leaves_no_files_or_processes(
    encode: Callable[..., Encoded], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, jobs: int
) -> None:
    def rows() -> Iterator[Row]:
        yield from ROWS[:75]
        raise error

    monkeypatch.setattr(encoding, "process_count", lambda: jobs)
    with pytest.raises(type(error), match=str(error)):
        encode(rows=rows())
    assert names_without_locks(tmp_path) == []
    assert multiprocessing.active_children() == []


def test_file_that_changes_during_encoding_raises(tmp_path: Path) -> None:
    for name in ("train", "valid"):
        for side, text in (("en", "the cat"), ("de", "a dog")):
            (tmp_path / f"{name}.{side}").write_text(f"{text}\n" * 40)
    data = {name: [str(tmp_path / f"{name}.{side}") for side in ("en", "de")] for name in ("train", "valid")}
    recipe = Recipe.model_validate({"task": "translation", "data": data, "tokenizer": {"size": 20}})

    def change(stage: str, done: int, total: int | None) -> None:
        if stage == "train":
            (tmp_path / "train.de").write_text("a cow\n" * 40)

    with pytest.raises(DataError, match="train: a file of the train split changed during encoding"):
        prepare(recipe, cache=tmp_path / "c", progress=change)
    assert names_without_locks(tmp_path / "c" / "encoded") == []


KILLED = """
import sys, time
from pathlib import Path
from attnkit.data import encoded as encoding
from attnkit.data.rows import Counts
from attnkit.data.tokenizer import Tokenizer
from tests.data.test_encoding import ROWS
encoding.CHUNK_ROWS, encoding.CHUNKS_BEFORE_POOL = 10, 1
encoding.process_count = lambda: 2
folder = Path(sys.argv[1])
def report(done):
    print(done, flush=True)
    time.sleep(0.3 if done > 40 else 0)
if __name__ == "__main__":
    encoding.encode(ROWS, encoding.RowEncoder(Tokenizer.load(folder), 40), folder / "k", Counts(), report)
"""


@pytest.mark.slow
def test_kill_9_leaves_no_process(encode: Callable[..., Encoded], tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
        env=os.environ | {"PYTHONPATH": f"{root}:{root}/tests"},
        start_new_session=True,
    )
    assert process.stdout is not None
    while int(process.stdout.readline()) < 50:
        pass
    process.kill()
    process.communicate()
    end = time.monotonic() + 20
    while time.monotonic() < end:
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            break
        time.sleep(0.05)
    else:
        os.killpg(process.pid, signal.SIGKILL)
        pytest.fail("processes are left")
    assert contents(encode()) == contents(encode("whole"))
    assert names_without_locks(tmp_path) == ["k", "tokenizer.model", "whole"]
