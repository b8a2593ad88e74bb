"""Outputs of any system in files: read as sacrebleu reads them, and scored."""

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
    """Score files of outputs against files of references, line by line.

    One row a file of outputs: `hyp` when there is one, else named by its stem (by its path where
    two have the same one).

    Names are those of files, each given once, "-" that of `stdin`; line n of each reference is one
    of line n.

    Raises:
        MissingInputError: a file is not there.
        DataError: malformed UTF-8, or files of different lengths.
        UsageError: a file of outputs, or standard input, is named twice; otherwise, as
            UnavailableError, by `score`.
    """
    if twice := next((name for i, name in enumerate(hypotheses) if name in hypotheses[:i]), None):
        raise UsageError(f"--hyp {quoted(twice, 200)} is given twice; name each file once")
    if [*hypotheses, *references].count("-") > 1:
        raise UsageError("only one of --hyp and --ref can be standard input (-), once")
    columns = [read_outputs(name, stdin) for name in references]
    for name, lines in zip(references[1:], columns[1:], strict=True):
        _match(references[0], columns[0], name, lines)
    lines_of = {name: read_outputs(name, stdin) for name in hypotheses}
    for name, lines in lines_of.items():
        _match(name, lines, references[0], columns[0])
    texts = list(zip(*columns, strict=True))
    labels = [Path(name).stem for name in hypotheses] if hypotheses[1:] else ["hyp"]
    if len(set(labels)) < len(labels):
        labels = list(hypotheses)
    rows = []
    for label, (name, lines) in zip(labels, lines_of.items(), strict=True):
        scores = score(eval.metrics, lines, texts, eval)
        row = ScoreRow(
            System(None, label),
            None,
            scores,
            len(lines),
            "\n".join(references),
            empty_references=empty_references(texts),
            warnings=tuple(warnings(lines, texts, scores, eval.tokenizers, eval.words)),
            files=OutputFiles(name, tuple(references)),
        )
        rows.append(row)
    return rows


def read_outputs(name: str, stdin: BinaryIO) -> list[str]:
    """The lines of a file, without white space at their ends, as sacrebleu reads them.

    Lines end at LF and nowhere else, so CRLF is no matter; a byte order mark is dropped.  A pipe,
    such as the shell's <(command), is read like standard input.

    Raises:
        MissingInputError: the file is not there.
        DataError: malformed UTF-8 (file:line).
    """
    path = Path(name)
    if name == "-":
        lines = read_lines(Stream(stdin, "standard input"), None)
    elif path.is_fifo():
        with reading(path), path.open("rb") as file:
            return [line.rstrip() for line in read_lines(Stream(file, name), None)]
    else:
        lines = read_lines(path)
    return [line.rstrip() for line in lines]


def _match(name: str, lines: Sequence[str], other: str, others: Sequence[str]) -> None:
    if len(lines) != len(others):
        raise ragged((Path(name), Path(other)), (len(lines), len(others)))
