"""Scores of files with outputs of any system, read as sacrebleu reads them."""

from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

from attnkit.data.formats import Stream, ragged, read_lines
from attnkit.errors import UsageError
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring.metrics import score
from attnkit.scoring.output_warnings import empty_references, warnings
from attnkit.scoring.results import OutputFiles, ScoreRow, System
from attnkit.storage.files import reading
from attnkit.text import quoted


def score_files(
    hypotheses: Sequence[str], references: Sequence[str], eval: EvalConfig, *, stdin: BinaryIO
) -> list[ScoreRow]:
    """Score files of outputs against files of references, line by line; "-" is `stdin`.

    Returns one row per file of outputs. Its name is `hyp` if there is one file, otherwise the file's stem (its path if
    two stems are equal).

    Raises:
        MissingInputError: a file does not exist.
        DataError: malformed UTF-8, or files of different lengths.
        UsageError: a file of outputs, or standard input, is given twice; or as `score`.
        UnavailableError: as `score`.
    """
    if repeated := next((name for name in hypotheses if hypotheses.count(name) > 1), None):
        raise UsageError(f"--hyp {quoted(repeated, 200)} is given twice; name each file once")
    if [*hypotheses, *references].count("-") > 1:
        raise UsageError("only one of --hyp and --ref can be standard input (-), once")
    names, first = [*hypotheses, *references], len(hypotheses)
    contents = [read_outputs(name, stdin) for name in names]
    for index, lines in enumerate(contents):
        if len(lines) != len(contents[first]):
            pair = sorted((index, first))
            raise ragged([Path(names[i]) for i in pair], [len(contents[i]) for i in pair])
    texts = list(zip(*contents[first:], strict=True))
    labels = [Path(name).stem for name in hypotheses] if hypotheses[1:] else ["hyp"]
    if len(set(labels)) < len(labels):
        labels = list(hypotheses)
    rows = []
    for label, name, lines in zip(labels, hypotheses, contents[:first], strict=True):
        scores = score(eval.metrics, lines, texts, eval)
        row = ScoreRow(
            System(None, label),
            None,
            scores,
            len(lines),
            "\n".join(references),
            empty_references=empty_references(texts),
            warnings=tuple(warnings(lines, texts, scores, eval)),
            files=OutputFiles(name, tuple(references)),
        )
        rows.append(row)
    return rows


def read_outputs(name: str, stdin: BinaryIO) -> list[str]:
    """Return the lines of a file without trailing white space, as sacrebleu reads them.

    Lines end at LF only (the CR of CRLF is trailing white space); a byte order mark is dropped. A pipe, such as the
    shell's <(command), is read like standard input.

    Raises MissingInputError if the file does not exist, or DataError for malformed UTF-8 (file:line).
    """
    path = Path(name)
    if name == "-":
        lines = list(read_lines(Stream(stdin, "standard input"), None))
    elif path.is_fifo():
        with reading(path), path.open("rb") as file:
            lines = list(read_lines(Stream(file, name), None))
    else:
        lines = list(read_lines(path))
    return [line.rstrip() for line in lines]
