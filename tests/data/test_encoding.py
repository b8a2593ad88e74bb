"""Several processes write what one writes, and whatever stops them leaves nothing behind."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

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
FILES = ("source.ids", "source.offsets", "target.ids", "target.offsets")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(schema.TokenizerConfig(size=30), ROWS)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten chunks; one process."""
    monkeypatch.setattr(encoding, "CHUNK_ROWS", 10)
    monkeypatch.setattr(encoding, "CHUNKS_BEFORE_POOL", 1)
    monkeypatch.setattr(encoding, "process_count", lambda: 1)


@pytest.fixture
def write(tokenizer: Tokenizer, tmp_path: Path) -> Callable[..., Encoded]:
    """Encode `ROWS`, or others, with a few that are too long."""

    def write(key: str = "k", rows: object = ROWS, **how: object) -> Encoded:
        return encode_rows(rows, tokenizer, tmp_path / key, max_length=40, **how)

    return write


def contents(split: Encoded) -> dict[str, bytes]:
    paths = [split.path / name for name in FILES]
    return {path.name: path.read_bytes() for path in paths if path.exists()}


def left(folder: Path) -> list[str]:
    """What is in a cache, but for the locks of what failed."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock")


def rows_until(place: int, error: BaseException) -> Iterator[Row]:
    yield from ROWS[:place]
    raise error


@pytest.mark.sampled(5)
@pytest.mark.parametrize("how", [{}, {"sample": (0.3, 1)}, {"stream": True}])
def test_several_processes_write_what_one_writes(
    write: Callable[..., Encoded], how: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    one, seen = write("one", **how), list[int]()
    assert one.counts.empty > 0
    assert ("stream" in how) == (one.counts.too_long == 0)
    monkeypatch.setattr(encoding, "process_count", lambda: 2)
    two = write("two", report=seen.append, **how)
    assert contents(two) == contents(one)
    assert (two.counts, two.digest) == (one.counts, one.digest)
    assert seen == [*range(10, 97, 10), 97]


@pytest.mark.slow
def test_a_killed_process_is_one_clear_line(
    write: Callable[..., Encoded], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(encoding, "process_count", lambda: 2)

    def kill(done: int) -> None:
        if done == 20:
            for process in multiprocessing.active_children():
                process.kill()

    with pytest.raises(MemoryLimitError, match="a process that encodes the corpus was killed"):
        write(report=kill)
    assert multiprocessing.active_children() == []
    assert contents(write()) == contents(write("whole"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("error", [DataError("train.en:2: malformed"), StoppedError("stopped")])
@pytest.mark.parametrize("jobs", [1, 2])
def test_what_stops_an_encoding_leaves_nothing(
    write: Callable[..., Encoded], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, jobs: int
) -> None:
    monkeypatch.setattr(encoding, "process_count", lambda: jobs)
    with pytest.raises(type(error), match=str(error)):
        write(rows=rows_until(75, error))
    assert left(tmp_path) == []
    assert multiprocessing.active_children() == []


def test_a_file_that_changes_while_it_is_encoded_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert left(tmp_path / "c" / "encoded") == []


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
def test_kill_9_leaves_no_process(write: Callable[..., Encoded], tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path)
    command = [sys.executable, "-c", KILLED, str(tmp_path)]
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen(
        command,
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
    assert contents(write()) == contents(write("whole"))
    assert left(tmp_path) == ["k", "tokenizer.model", "whole"]
