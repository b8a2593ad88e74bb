"""Who reads a run beside one that writes it sees one state."""

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
    "verify": lambda run, _: [one for one in verify(run.path) if one.kind == "file"],
    "pack": lambda run, folder: pack_results(run, folder),
    "saved scores": lambda run, _: SavedScores.read(run, "test"),
    "kept rows": lambda run, _: list(RunCorpus(run).rows("test")),
}


@pytest.mark.parametrize("reader", READERS)
def test_a_reader_beside_a_writer_sees_one_state(reader: str, tmp_path: Path) -> None:
    """It waits for files that are half written; before, it saw new scores with old outputs."""
    run = Run.open(scored_run(tmp_path, "base", ["x"] * 5, ("bleu",)).path)
    whole = READERS[reader](run, tmp_path / "first")
    path, done = run.path / "scores.json", list[object]()
    content = path.read_bytes()

    def read() -> None:
        try:
            done.append(READERS[reader](Run.open(run.path), tmp_path / "second"))
        except AttnkitError as error:
            done.append(error)

    thread = threading.Thread(target=read)
    with run.changing():
        run.record("scores.json", None)
        path.write_text("{")
        thread.start()
        thread.join(0.2)
        assert not done
        path.write_bytes(content)
        run.record("scores.json", run.sha256("scores.json"))
    thread.join()
    if reader == "pack":
        whole, done = sha256_file(whole), [sha256_file(done[0])]  # type: ignore[arg-type]
    assert str(done[0]) == str(whole)
