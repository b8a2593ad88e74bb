"""Test of reading a run while another thread writes: the reader sees one consistent state."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.scored_runs import scored_run

from attnkit.errors import AttnkitError
from attnkit.experiment.verification import verify
from attnkit.runs import Run
from attnkit.runs.packing import pack_results
from attnkit.runs.run_corpus import RunCorpus
from attnkit.scoring.saved_scores import SavedScores
from attnkit.storage.files import sha256_file

READERS: dict[str, Callable[[Run, Path], object]] = {
    "scores": lambda run, _: run.scores(),
    "verify": lambda run, _: [check for check in verify(run.path) if check.kind == "file"],
    "pack": pack_results,
    "saved scores": lambda run, _: SavedScores.read(run, "test"),
    "kept rows": lambda run, _: list(RunCorpus(run).rows("test")),
}


@pytest.mark.parametrize("reader", READERS)
def test_reader_waits_for_the_writer(reader: str, tmp_path: Path) -> None:
    """Without waiting, it read new scores with old outputs."""
    run = Run.open(scored_run(tmp_path, "base", ["x"] * 5, ("bleu",)).path)
    expected = READERS[reader](run, tmp_path / "first")
    path, results = run.path / "scores.json", list[object]()
    content = path.read_bytes()

    def read() -> None:
        try:
            results.append(READERS[reader](Run.open(run.path), tmp_path / "second"))
        except AttnkitError as error:
            results.append(error)

    thread = threading.Thread(target=read)
    with run.changing():
        run.record("scores.json", None)
        path.write_text("{")
        thread.start()
        thread.join(0.2)
        assert not results
        path.write_bytes(content)
        run.record("scores.json", run.sha256("scores.json"))
    thread.join()
    (result,) = results
    if reader == "pack":
        expected, result = sha256_file(expected), sha256_file(result)
    assert str(result) == str(expected)
