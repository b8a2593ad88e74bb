"""Finished runs as one archive that opens elsewhere: a plain .tar.gz of their folders.

Names inside are <recipe>/<variant>/seed-<k>/...; the same runs give the same bytes, since members
are sorted and have neither owners nor times of their own.
"""

import gzip
import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

from attnkit.errors import AttnkitError, OutputPathError
from attnkit.runs import layout, plugins
from attnkit.runs.results import files_below
from attnkit.runs.results_file import archive_member
from attnkit.runs.run import Run
from attnkit.runs.run_corpus import RunCorpus
from attnkit.storage import files


def pack(runs: Sequence[Run], target: Path, *, checkpoints: bool = False) -> int:
    """Write the folders of finished runs to an archive, whole or not at all.

    Left out are checkpoints unless asked for, copies of the log, hidden files, links to
    folders and what interrupted writes left behind.

    Returns:
        The number of files in it.

    Raises:
        DataError, MissingInputError: a file of a run is damaged or missing.
        OutputPathError: two runs have one name, or the archive would lie in a run.
        OutputError: the disk is full.
    """
    with ExitStack() as stack:
        for run in runs:
            stack.enter_context(run.unchanged())
        return _pack(runs, target, checkpoints)


def _pack(runs: Sequence[Run], target: Path, checkpoints: bool) -> int:
    members: dict[str, Path] = {}
    for run in runs:
        if layout.is_inside(target, run.path):
            raise OutputPathError(f"{target}: is inside the run that is packed; write it elsewhere")
        layout.refuse_trial(run.path, run.manifest)
        run.verify()
        folder = layout.run_path("", run.name, run.variant, run.seed).as_posix()
        if any(name.startswith(f"{folder}/") for name in members):
            raise OutputPathError(f"{run.path}: a second run called {folder}; pack them one by one")
        for path in files_below(run.path, () if checkpoints else (layout.CHECKPOINTS,)):
            members[f"{folder}/{path.relative_to(run.path).as_posix()}"] = path
    with files.replacing(target) as prepared, open(prepared, "xb") as file:
        with (
            gzip.GzipFile("", "wb", compresslevel=6, fileobj=file, mtime=0) as packed,
            tarfile.open(mode="w", fileobj=packed, format=tarfile.PAX_FORMAT) as archive,
        ):
            for name, path in sorted(members.items()):
                with files.open_file(path) as content:
                    size = os.fstat(content.fileno()).st_size
                    archive.addfile(archive_member(name, size), content)
        file.flush()
        os.fsync(file.fileno())
    return len(members)


def keep_rows(runs: Iterable[Run], data_dir: Path | None = None) -> Iterator[str]:
    """Have runs keep the rows of the splits that their recipes score, as far as they are at hand.

    Nothing is downloaded.  Yields a sentence for each split without which a run is not complete,
    and for each mechanism from outside attnkit that it needs.
    """
    for run in runs:
        corpus, recipe = RunCorpus(run, data_dir, offline=True, keep=True), run.recipe
        for split in recipe.eval.splits:
            where, why = f"{run.path}: {split}", ""
            try:
                if recipe.task == "question-answering":
                    corpus.questions(split, max(recipe.contexts.counts))
                else:
                    corpus.rows(split)
            except AttnkitError as error:
                why = str(error)
            if not corpus.keeps(split):
                text = f"{where}: its rows are not in the archive; scoring it needs the corpus"
                yield f"{text} ({why})" if why else text
        for word, entry in run.manifest.get(plugins.KEY, {}).items():
            if entry is not None:
                yield f"{run.path}: needs the mechanism {word} from {entry['from']}: send it along"
