"""`attnkit generate`: lines in, lines out, in every form; and what it refuses."""

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

from attnkit.recipe.schema import SearchConfig
from attnkit.runs import Run
from attnkit.search import translate

TEXT = "one red dog\n\ncats\na very red cat and two dogs\ntwo cats\n"


@pytest.fixture
def generate(run: Run, cli: Cli) -> Cli:
    """`attnkit generate RUN` in an empty folder."""
    return partial(cli, "generate", str(run.path), stdin=TEXT)


def expected(run: Run, spec: SearchConfig, texts: list[str]) -> list[list[tuple[str, float]]]:
    return list(translate(run.model(), run.tokenizer(), texts, spec, max_source=LENGTH))


def test_lines_from_standard_input_go_to_standard_output(generate: Cli, run: Run) -> None:
    answers = expected(run, run.recipe.search, TEXT.split("\n")[:-1])
    lines = [text for ((text, _),) in answers]
    assert any(lines)
    done = generate("--max-length", "8")
    assert done.code == 0, done.err
    assert done.out == "".join(f"{line}\n" for line in lines)
    assert generate("-").out == done.out


def test_a_file_gives_what_standard_input_gives(generate: Cli, tmp_path: Path) -> None:
    path = tmp_path / "in.txt"
    path.write_text(TEXT)
    piped = generate()
    assert generate(str(path), stdin="") == piped
    path.write_bytes(gzip.compress(TEXT.encode()))
    assert generate(str(path), stdin="") == piped
    assert generate(stdin=path.read_bytes()) == piped
    assert generate("--block", "1") == piped


def test_byte_order_mark_carriage_returns_and_a_missing_last_newline_change_nothing(generate: Cli) -> None:
    text = TEXT.removesuffix("\n").replace("\n", "\r\n")
    assert generate(stdin=b"\xef\xbb\xbf" + text.encode()) == generate()


def test_n_best_gives_n_lines_for_each(generate: Cli, run: Run) -> None:
    done = generate("--beam", "3", "--n-best", "3", "--scores")
    spec = run.recipe.search.model_copy(update={"beam": 3, "n_best": 3})
    answers = expected(run, spec, TEXT.split("\n")[:-1])
    assert done.out == "".join(
        f"{number}\t{score:.4f}\t{text}\n" for number, answer in enumerate(answers, 1) for text, score in answer
    )
    assert done.out.split("\n")[3:6] == ["2\t0.0000\t"] * 3
    plain = generate("--beam", "3", "--n-best", "3")
    assert plain.out == "".join(line.split("\t")[2] + "\n" for line in done.out.split("\n")[:-1])


def test_json_objects_have_line_rank_score_and_text(generate: Cli) -> None:
    rows = [json.loads(line) for line in generate("--json", "--n-best", "2").out.splitlines()]
    assert [(row["line"], row["rank"]) for row in rows] == [(line, rank) for line in range(1, 6) for rank in (1, 2)]
    scored = [line.split("\t") for line in generate("--scores", "--n-best", "2").out.splitlines()]
    assert [row["text"] for row in rows] == [text for _, _, text in scored]
    for row, (_, score, _) in zip(rows, scored, strict=True):
        assert row["score"] == pytest.approx(float(score), abs=1e-4)


def test_an_output_that_does_not_exist_has_the_score_null(generate: Cli) -> None:
    words = ("--beam", "60", "--n-best", "60", "--max-length", "1", "--json")
    rows = [json.loads(line) for line in generate(*words, stdin="cats\n").out.splitlines()]
    assert len(rows) == 60
    assert rows[-1] == {"line": 1, "rank": 60, "score": None, "text": ""}


def test_a_thousand_lines_of_random_unicode_give_a_thousand_lines(generate: Cli) -> None:
    random_ = random.Random(0)
    planes = (range(1, 128), range(0x80, 0x3000), range(0x3000, 0xD800), range(0xE000, 0x110000))
    lines = [
        "".join(chr(random_.choice(random_.choice(planes))) for _ in range(random_.randint(0, 30))).replace("\n", " ")
        for _ in range(1000)
    ]
    done = generate("--beam", "1", "--max-length", "3", stdin="\n".join(lines) + "\n")
    assert done.code == 0, done.err
    assert done.out.count("\n") == 1000
    some = [0, 500, 999]
    alone = generate("--beam", "1", "--max-length", "3", stdin="".join(lines[i] + "\n" for i in some))
    assert [done.out.split("\n")[i] for i in some] == alone.out.split("\n")[:-1]


def test_malformed_utf_8_stops_with_its_place(generate: Cli, tmp_path: Path) -> None:
    bad = b"cats\na \xff dog\ntwo \xc3\n"
    done = generate(stdin=bad)
    assert done.code == 65
    assert done.out == ""
    assert done.err == ("attnkit: error: standard input:2:3: malformed UTF-8 (byte 0xff); convert the text to UTF-8\n")
    path = tmp_path / "bad.txt"
    path.write_bytes(b"\xef\xbb\xbf\xff")
    assert f"error: {path}:1:4: malformed" in generate(str(path)).err
    path.write_bytes("cats".encode("utf-16"))
    assert f"error: {path}: this is UTF-16 text; convert it" in generate(str(path)).err


def test_blocks_before_a_malformed_line_are_answered(generate: Cli) -> None:
    done = generate("--block", "2", stdin=b"cats\ndog\n\xff\n")
    assert done.code == 65
    assert done.out.count("\n") == 2


def test_damaged_gzip_and_endless_lines_are_refused(generate: Cli) -> None:
    packed = gzip.compress(TEXT.encode() * 100)
    assert generate(stdin=packed[:-9]).code == 65
    assert "damaged gzip data" in generate(stdin=packed[:-9]).err
    done = generate(stdin=b"a" * ((1 << 20) + 1))
    assert done.code == 65
    assert "standard input:1: the line is longer than 1,048,576 bytes" in done.err


def test_what_is_cut_is_counted(generate: Cli) -> None:
    done = generate("--max-length", "2", "--min-length", "1", stdin="cats " * 99 + "\ncats\n")
    assert "warning: input lines cut to 23 tokens: 1\n" in done.err
    assert "outputs cut at the maximum length: 2\n" in done.err


def test_output_goes_to_a_file_whole_or_not_at_all(generate: Cli, tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    done = generate("--output", str(path))
    assert (done.code, done.out) == (0, "")
    assert path.read_text() == generate().out
    path.write_text("before")
    assert generate("--output", str(path), "--block", "1", stdin=b"cats\n\xff").code == 65
    assert path.read_text() == "before"
    assert [child.name for child in tmp_path.iterdir()] == ["out.txt"]


def process(run: Run, *words: str, **options: Any) -> "subprocess.Popen[bytes]":
    """The real command with pipes."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(
        [sys.executable, "-m", "attnkit", "generate", str(run.path), *words], env=environment(), **pipes | options
    )


@pytest.mark.slow
def test_blocks_come_before_the_input_ends_and_a_reader_may_stop_early(run: Run) -> None:
    with process(run, "--block", "2", "--beam", "1") as child:
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
def test_a_signal_leaves_no_half_written_output(run: Run, tmp_path: Path) -> None:
    output = tmp_path / "out.txt"
    with process(run, "--block", "1", "--beam", "1", "--output", str(output)) as child:
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
def test_on_a_terminal_each_line_is_answered_at_once(run: Run) -> None:
    terminal, other = pty.openpty()
    with process(run, "--beam", "1", stdin=other) as child:
        os.close(other)
        assert child.stdout
        for word in (b"cats\n", b"two cats\n"):
            os.write(terminal, word)
            assert child.stdout.readline().endswith(b"\n")
        os.write(terminal, b"\x04")
        assert child.wait(120) == 0
        assert child.stdout.read() == b""
    os.close(terminal)


def test_a_language_model_continues_each_line(tmp_path: Path, cli: Cli) -> None:
    trained = make_run(tmp_path, task="language-modeling")
    done = cli("generate", str(trained.path), "--sample", "--max-length", "9", stdin="two\n\nein hund\n")
    assert done.code == 0
    lines = done.out.split("\n")
    assert len(lines) == 4
    assert lines[1] == ""


def test_a_precision_is_used_or_refused(generate: Cli) -> None:
    done = generate("--precision", "bf16", "--engine", "ctranslate2")
    assert (done.code, done.out) == (2, "")
    assert "--precision bf16 is for --engine attnkit" in done.err
    assert generate("--precision", "fp32") == generate()
    supported = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    done = generate("--precision", "bf16")
    assert done.code == (0 if supported else 69)
    assert len(done.out.splitlines()) == (5 if supported else 0)
