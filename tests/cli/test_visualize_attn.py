"""Tests of `attnkit visualize-attn`: screens, files, comparisons, warnings and errors."""

from pathlib import Path
from typing import Any

import pytest
from helpers.cli import Cli, Result
from helpers.pages import Document
from helpers.saved_maps import load
from helpers.trained import make_run
from rich.cells import cell_len

from attnkit.analysis import map_statistics
from attnkit.analysis.map_statistics import AttentionSink
from attnkit.analysis.maps import Token
from attnkit.cli.commands import visualize_attn
from attnkit.runs import Run

TEXT = "a very red cat"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("visualize")


@pytest.fixture(scope="module")
def run(folder: Path) -> Run:
    return make_run(folder)


@pytest.fixture(scope="module")
def other(folder: Path) -> Run:
    return make_run(folder, "other")


@pytest.fixture(scope="module")
def language_model(folder: Path) -> Run:
    return make_run(folder, "words", task="language-modeling")


@pytest.fixture
def show(run: Run, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `attnkit visualize-attn RUN WORDS` in an empty folder."""

    def call(*words: str, of: Run = run, stdin: str = "", width: int = 80) -> Result:
        monkeypatch.setenv("COLUMNS", str(width))
        return cli("visualize-attn", str(of.path), *words, stdin=stdin)

    return call


@pytest.mark.parametrize("width", [40, 80, 200])
def test_screens_fit_and_name_model_output_and_kind(show: Any, width: int) -> None:
    out = show(TEXT, width=width).out
    assert all(cell_len(line) <= width for line in out.splitlines())
    assert "\x1b" not in out
    for words in ("toy/base/seed-1", "output (beam 2)", "cross attention"):
        assert words in out


def test_kind_of_attention_depends_on_the_model(show: Any, language_model: Run) -> None:
    assert "decoder self-attention" in show("zwei", of=language_model).out
    assert "encoder self-attention" in show(TEXT, "--kind", "encoder").out


def test_target_is_given_and_text_comes_from_a_pipe(show: Any) -> None:
    done = show("-", "--target", "rote katze", "--view", "full", stdin=f"{TEXT}\nmore\n")
    assert "output (given): rote katze" in done.out


def test_one_head_is_shown_without_a_grid(show: Any) -> None:
    assert "all heads" in show(TEXT).out
    single = show(TEXT, "--layer", "0", "--head", "1").out
    assert "all heads" not in single
    assert "layer 0, head 1" in single
    assert "cross attention, mean" not in show(TEXT, "--view", "grid").out


@pytest.mark.slow
def test_only_some_of_many_heads_are_shown_by_default(show: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(visualize_attn, "MOST_MAPS", 1)
    monkeypatch.setattr(visualize_attn, "FEWEST_MAPS", 1)
    hint = "1 of 1 layers, 1 of 2 heads; --layer and --head choose other maps, --save maps.html has all"
    for words in ((), ("--save", "a.png")):
        assert hint in show(TEXT, *words).err
    assert "1 of 1 layers, 1 of 2 heads: " in show(TEXT).out
    for words in (("--head", "0-1"), ("--head", "0,1"), ("--view", "full"), ("--save", "a.html")):
        assert "choose other maps" not in show(TEXT, *words).err
    assert "all heads" in show(TEXT, "--head", "0-1").out


@pytest.mark.slow
def test_first_column_can_be_hidden_on_screens_and_in_files(
    show: Any, language_model: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = AttentionSink(0, Token("<s>", 2, None, True), 0.75)
    monkeypatch.setattr(map_statistics, "attention_sink", lambda maps: sink)
    words = ("zwei drei vier", "--view", "full")
    hint = "75% of the attention is on the first token (<s>): --hide-first shows"
    assert hint in show(*words, of=language_model).err
    hidden = show(*words, "--hide-first", of=language_model)
    assert hint not in hidden.err
    assert "first column hidden: <s>" in hidden.out
    save = (word for file in ("a.npz", "a.csv", "a.svg", "a.html") for word in ("--save", file))
    show("zwei drei vier", "--hide-first", *save, of=language_model)
    maps = load(Path("a.npz")).maps["decoder"]
    assert [token.text for token in maps.hidden] == ["<s>"]
    assert maps.weights.shape[3] == len(maps.queries) - 1
    assert Path("a.csv").read_text("utf-8").splitlines()[1].startswith("decoder,0,0,0,1,<s>,")
    assert '"first":true' in Path("a.html").read_text("utf-8").replace(" ", "")


def test_two_runs_are_shown_with_their_difference(show: Any, other: Run) -> None:
    words = (TEXT, "--with", str(other.path))
    assert "toy/other/seed-1 minus toy/base/seed-1" in show(*words, "--target", "katze", width=200).out
    out = show(*words, width=200).out
    assert "minus" in out or "no difference" in out


def test_files_hold_the_capture(show: Any, run: Run) -> None:
    names = ["m.npz", "m.csv", "m.html", "m.svg", "m.png", "m.pdf"]
    done = show(TEXT, *(word for name in names for word in ("--save", name)))
    assert done.out == ""
    assert all(f"wrote {name}" in done.err for name in names)
    capture = load(Path("m.npz"))
    assert set(capture.maps) == {"encoder", "decoder", "cross"}
    assert capture.source == TEXT
    assert b"http" not in Path("m.html").read_bytes().replace(b"http-equiv", b"")
    data = Document(Path("m.html").read_bytes()).data
    assert data["captures"][0]["facts"]["weights"] == run.manifest.files["model.safetensors"]
    assert Path("m.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_text_longer_than_in_training_gives_a_warning(show: Any) -> None:
    assert "more than in training (24" in show("cat " * 100, "--view", "full").err


def test_reference_is_exact_softmax_of_the_same_queries_and_keys(show: Any) -> None:
    shown = " ".join(show(TEXT, "--reference", "--target", "katze", width=200).out.split())
    assert "no difference" not in shown
    assert "toy/base/seed-1, exact softmax on the same queries and keys" in shown


def test_npz_file_holds_the_reference(show: Any) -> None:
    show(TEXT, "--reference", "--words", "--save", "m.npz")
    capture = load(Path("m.npz"))
    assert capture.reference is not None
    assert capture.reference.maps["cross"].queries == capture.maps["cross"].queries


def test_csv_has_a_row_for_each_head_and_pair_of_words(show: Any) -> None:
    show(TEXT, "--words", "--hide-special", "--save", "m.csv", "--kind", "encoder")
    header, *rows = Path("m.csv").read_text(encoding="utf-8").splitlines()
    assert "weight" in header
    assert len(rows) == 2 * 4 * 4  # heads, words, words
