"""What evaluations leave in a folder: decoded lines of each split, and their scores."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attnkit.runs import layout
from attnkit.storage import files
from attnkit.storage.files import DISK, Filesystem
from attnkit.storage.lock import exclusive

SCORES_LIMIT = 64 << 20
"""Bytes of scores.json that are read, at most."""


class Results:
    """A folder of outputs/<split>.hyp.txt and scores.json: a run, or a folder without a run."""

    def __init__(self, path: str | Path, fs: Filesystem = DISK) -> None:
        self.path, self.fs = Path(path), fs

    def output_path(self, split: str) -> Path:
        """The file of decoded lines of a split: outputs/<split>.hyp.txt."""
        return self.path / layout.OUTPUTS / layout.component(f"{split}.hyp.txt")

    def write_scores(self, split: str, texts: Sequence[str], scores: Mapping[str, Any]) -> None:
        """Store decoded lines and their scores; other splits' scores stay.

        Two evaluations at once wait for each other.
        """
        if any("\n" in text for text in texts):
            raise ValueError("a decoded line holds a line break")
        path = self.output_path(split)
        files.make_folder(path.parent, self.fs)
        with exclusive(path.parent):
            text = "".join(f"{text}\n" for text in texts)
            files.atomic_write(path, text.encode("utf-8", "backslashreplace"), self.fs)
            all_scores = json_text(self.scores() | {split: dict(scores)})
            files.atomic_write(self.path / layout.SCORES, all_scores, self.fs)

    def scores(self) -> dict[str, Any]:
        """Scores by split; empty before the first evaluation.

        Raises:
            DataError: scores.json is damaged; scoring again with force repairs it.
        """
        path = self.path / layout.SCORES
        return files.read_json(path, SCORES_LIMIT) if path.exists() else {}

    def remove_scores(self) -> None:
        """Forget the scores of all splits: of other weights, or in a damaged file."""
        path = self.path / layout.SCORES
        with files.writing(path):
            if path.exists():
                files.remove(path, self.fs)


def json_text(value: Any) -> str:
    """JSON text for a file that people read too."""
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
