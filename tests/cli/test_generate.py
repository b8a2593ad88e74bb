"""Tests of `attnkit generate`: input and output of lines, malformed input, signals and precision."""

import gzip
import json
import os
import pty
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.cli import Cli
from helpers.shell import environment
from helpers.trained import LENGTH, make_run

from attnkit.runs import Run
from attnkit.search import translate

TEXT = "one red dog\n\ncats\na very red cat and two dogs\ntwo cats\n"


@pytest.fixture
def generate(run: Run, cli: Cli) -> Cli:
    """Run `attnkit generate RUN` in an empty folder."""
    return partial(cli, "generate", str(run.path), stdin=TEXT)


def expected(run: Run, **search: int) -> list[list[tuple[str, float]]]:
    """Return outputs and scores for each line of TEXT."""
    spec = run.recipe.search.model_copy(update=search)
    return list(translate(run.model(), run.tokenizer(), TEXT.split("\n")[:-1], spec, max_source=LENGTH))


def test_lines_from_standard_input_go_to_standard_output(generate: Cli, run: Run) -> None:
    lines = [text for ((text, _),) in expected(run)]
    assert any(lines)
    done = generate("--max-length", "8")
    assert done.out == "".join(f"{line}\n" for line in lines)
    assert generate("-").out == done.out


def test_file_and_standard_input_give_the_same_output(generate: Cli) -> None:
    piped = generate()
    path = Path("in.txt")
    path.write_text(TEXT)
    assert generate("in.txt", stdin="") == piped
    path.write_bytes(gzip.compress(TEXT.encode()))
    assert generate("in.txt", stdin="") == piped
    assert generate(stdin=path.read_bytes()) == piped
    assert generate("--block", "1") == piped


def test_byte_order_mark_and_line_endings_change_nothing(generate: Cli) -> None:
    text = TEXT.removesuffix("\n").replace("\n", "\r\n")
    assert generate(stdin=b"\xef\xbb\xbf" + text.encode()) == generate()


def test_n_best_gives_n_lines_for_each_input_line(generate: Cli, run: Run) -> None:
    words = ("--beam", "3", "--n-best", "3")
    scored = generate(*words, "--scores").out
    assert scored == "".join(
        f"{number}\t{score:.4f}\t{text}\n"
        for number, answer in enumerate(expected(run, beam=3, n_best=3), 1)
        for text, score in answer
    )
    assert scored.split("\n")[3:6] == ["2\t0.0000\t"] * 3
    assert generate(*words).out == "".join(line.split("\t")[2] + "\n" for line in scored.split("\n")[:-1])


def test_json_objects_have_line_rank_score_and_text(generate: Cli) -> None:
    rows = [json.loads(line) for line in generate("--json", "--n-best", "2").out.splitlines()]
    assert [(row["line"], row["rank"]) for row in rows] == [(line, rank) for line in range(1, 6) for rank in (1, 2)]
    scored = [line.split("\t") for line in generate("--scores", "--n-best", "2").out.splitlines()]
    assert [row["text"] for row in rows] == [text for _, _, text in scored]
    for row, (_, score, _) in zip(rows, scored, strict=True):
        assert row["score"] == pytest.approx(float(score), abs=1e-4)


def test_missing_output_has_score_null(generate: Cli) -> None:
    words = ("--beam", "60", "--n-best", "60", "--max-length", "1", "--json")
    rows = [json.loads(line) for line in generate(*words, stdin="cats\n").out.splitlines()]
    assert len(rows) == 60
    assert rows[-1] == {"line": 1, "rank": 60, "score": None, "text": ""}


def test_random_unicode_lines_give_one_output_line_each(generate: Cli) -> None:
    random_ = random.Random(0)
    planes = (range(1, 128), range(0x80, 0x3000), range(0x3000, 0xD800), range(0xE000, 0x110000))
    lines = [
        "".join(chr(random_.choice(random_.choice(planes))) for _ in range(random_.randint(0, 30))).replace("\n", " ")
        for _ in range(1000)
    ]
    words = ("--beam", "1", "--max-length", "3")
    outputs = generate(*words, stdin="\n".join(lines) + "\n").out.split("\n")[:-1]
    assert len(outputs) == 1000
    places = [0, 500, 999]
    alone = generate(*words, stdin="".join(lines[i] + "\n" for i in places))
    assert [outputs[i] for i in places] == alone.out.split("\n")[:-1]


def test_malformed_utf_8_is_an_error_with_its_place(generate: Cli) -> None:
    done = generate(stdin=b"cats\na \xff dog\ntwo \xc3\n", code=65)
    assert done.out == ""
    assert done.err == "attnkit: error: standard input:2:3: malformed UTF-8 (byte 0xff); convert the text to UTF-8\n"
    path = Path("bad.txt")
    path.write_bytes(b"\xef\xbb\xbf\xff")
    assert "error: bad.txt:1:4: malformed" in generate("bad.txt", code=65).err
    path.write_bytes("cats".encode("utf-16"))
    assert "error: bad.txt: this is UTF-16 text; convert it" in generate("bad.txt", code=65).err


def test_blocks_before_a_malformed_line_are_answered(generate: Cli) -> None:
    assert generate("--block", "2", stdin=b"cats\ndog\n\xff\n", code=65).out.count("\n") == 2


def test_damaged_gzip_and_too_long_line_are_errors(generate: Cli) -> None:
    assert "damaged gzip data" in generate(stdin=gzip.compress(TEXT.encode() * 100)[:-9], code=65).err
    done = generate(stdin=b"a" * ((1 << 20) + 1), code=65)
    assert "standard input:1: the line is longer than 1,048,576 bytes" in done.err


def test_truncated_inputs_and_outputs_are_counted(generate: Cli) -> None:
    done = generate("--max-length", "2", "--min-length", "1", stdin="cats " * 99 + "\ncats\n")
    assert "warning: input lines cut to 23 tokens: 1\n" in done.err
    assert "outputs cut at the maximum length: 2\n" in done.err


def test_output_file_is_written_completely_or_not_at_all(generate: Cli, tmp_path: Path) -> None:
    path = Path("out.txt")
    assert generate("--output", "out.txt").out == ""
    assert path.read_text() == generate().out
    path.write_text("before")
    generate("--output", "out.txt", "--block", "1", stdin=b"cats\n\xff", code=65)
    assert path.read_text() == "before"
    assert [child.name for child in tmp_path.iterdir()] == ["out.txt"]


def start(run: Run, *words: str, **options: Any) -> "subprocess.Popen[bytes]":
    """Start the command in a process of its own, with pipes."""
    command = [sys.executable, "-m", "attnkit", "generate", str(run.path), "--beam", "1", *words]
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(command, env=environment(), **pipes | options)


@pytest.mark.slow
def test_blocks_are_answered_before_the_input_ends(run: Run) -> None:
    """It is no error if the reader then closes the output early."""
    with start(run, "--block", "2") as child:
        assert child.stdin
        assert child.stdout
        assert child.stderr
        child.stdin.write(b"cats\ndog\n")
        child.stdin.flush()
        assert [child.stdout.readline()[-1:] for _ in range(2)] == [b"\n", b"\n"]
        child.stdout.close()
        child.stdin.write(b"dog\n" * 2)
        child.stdin.close()
        assert child.wait(120) in (0, 141)
        assert child.stderr.read() == b""


@pytest.mark.slow
def test_interrupted_command_leaves_no_partial_output(run: Run, tmp_path: Path) -> None:
    with start(run, "--block", "1", "--output", str(tmp_path / "out.txt")) as child:
        assert child.stdin
        assert child.stderr
        child.stdin.write(b"cats\ndog\n")
        child.stdin.flush()
        while not list(tmp_path.glob("out.txt*")):
            assert child.poll() is None
            time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
        assert child.stderr.read() == b"attnkit: interrupted\n"
    assert not list(tmp_path.glob("out.txt*"))


@pytest.mark.slow
def test_each_line_from_a_terminal_is_answered_at_once(run: Run) -> None:
    terminal, stdin = pty.openpty()
    with start(run, stdin=stdin) as child:
        os.close(stdin)
        assert child.stdout
        for word in (b"cats\n", b"two cats\n"):
            os.write(terminal, word)
            assert child.stdout.readline().endswith(b"\n")
        os.write(terminal, b"\x04")
        assert child.wait(120) == 0
        assert child.stdout.read() == b""
    os.close(terminal)


def test_language_model_continues_each_line(tmp_path: Path, cli: Cli) -> None:
    run = make_run(tmp_path, task="language-modeling")
    done = cli("generate", str(run.path), "--sample", "--max-length", "9", stdin="two\n\nein hund\n")
    _, empty, _, end = done.out.split("\n")
    assert (empty, end) == ("", "")


def test_precision_is_used_if_supported(generate: Cli) -> None:
    done = generate("--precision", "bf16", "--engine", "ctranslate2", code=2)
    assert done.out == ""
    assert "--precision bf16 is for --engine attnkit" in done.err
    assert generate("--precision", "fp32") == generate()
    supported = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    done = generate("--precision", "bf16", code=0 if supported else 69)
    assert len(done.out.splitlines()) == (5 if supported else 0)
