"""`attnkit visualize-attn`: screens, files, comparisons, and what it refuses."""

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.cli import Cli, Result
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
    """`attnkit visualize-attn RUN ...` in an empty folder."""

    def call(*words: str, of: Run = run, stdin: str = "", width: int = 80) -> Result:
        monkeypatch.setenv("COLUMNS", str(width))
        return cli("visualize-attn", str(of.path), *words, stdin=stdin)

    return call


@pytest.mark.parametrize("width", [40, 80, 200])
def test_screens_fit_and_name_model_output_and_axes(show: Any, width: int) -> None:
    done = show(TEXT, width=width)
    assert done.code == 0, done.err
    assert all(cell_len(line) <= width for line in done.out.splitlines())
    assert "\x1b" not in done.out
    for words in ("toy/base/seed-1", "output (beam 2)", "cross attention"):
        assert words in done.out


def test_the_kind_shown_is_what_the_model_has(show: Any, language_model: Run) -> None:
    assert "decoder self-attention" in show("zwei", of=language_model).out
    assert "encoder self-attention" in show(TEXT, "--kind", "encoder").out


def test_a_target_is_shown_as_given_and_text_may_come_from_a_pipe(show: Any) -> None:
    done = show("-", "--target", "rote katze", "--view", "full", stdin=f"{TEXT}\nmore\n")
    assert "output (given): rote katze" in done.out


def test_views_are_chosen_and_one_head_needs_no_grid(show: Any) -> None:
    assert "all heads" in show(TEXT).out
    one = show(TEXT, "--layer", "0", "--head", "1")
    assert "all heads" not in one.out
    assert "layer 0, head 1" in one.out
    assert "cross attention, mean" not in show(TEXT, "--view", "grid").out


@pytest.mark.slow
def test_many_heads_are_thinned_unless_they_are_asked_for(show: Any, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_a_column_that_takes_most_can_be_hidden(
    show: Any, language_model: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everywhere the same column."""
    sink = AttentionSink(0, Token("<s>", 2, None, True), 0.75)
    monkeypatch.setattr(map_statistics, "attention_sink", lambda maps: sink)
    words = ("zwei drei vier", "--view", "full")
    hint = "75% of the attention is on the first token (<s>): --hide-first shows"
    assert hint in show(*words, of=language_model).err
    hidden = show(*words, "--hide-first", of=language_model)
    assert hint not in hidden.err
    assert "first column hidden: <s>" in hidden.out
    files = ("a.npz", "a.csv", "a.svg", "a.html")
    saved = (word for file in files for word in ("--save", file))
    assert show("zwei drei vier", "--hide-first", *saved, of=language_model).code == 0
    maps = load(Path("a.npz")).maps["decoder"]
    assert [token.text for token in maps.hidden] == ["<s>"]
    assert maps.weights.shape[3] == len(maps.queries) - 1
    assert Path("a.csv").read_text("utf-8").splitlines()[1].startswith("decoder,0,0,0,1,<s>,")
    assert '"first":true' in Path("a.html").read_text("utf-8").replace(" ", "")


def test_two_runs_stand_side_by_side_with_their_difference(show: Any, other: Run) -> None:
    done = show(TEXT, "--with", str(other.path), "--target", "katze", width=200)
    assert "toy/other/seed-1 minus toy/base/seed-1" in done.out
    written = show(TEXT, "--with", str(other.path), width=200)
    assert "minus" in written.out or "no difference" in written.out


def test_files_hold_what_was_captured(show: Any) -> None:
    names = ["m.npz", "m.csv", "m.html", "m.svg", "m.png", "m.pdf"]
    done = show(TEXT, *(word for name in names for word in ("--save", name)))
    assert done.code == 0, done.err
    assert done.out == ""
    assert all(f"wrote {name}" in done.err for name in names)
    loaded = load(Path("m.npz"))
    assert set(loaded.maps) == {"encoder", "decoder", "cross"}
    assert loaded.source == TEXT
    page = Path("m.html").read_text(encoding="utf-8")
    assert "http" not in page.replace("http-equiv", "")
    assert Path("m.svg").read_text(encoding="utf-8").startswith("<?xml")


def test_no_text_is_refused_and_a_longer_one_than_trained_on_is_told(show: Any) -> None:
    assert show(" ").code == 2
    done = show("cat " * 100, "--view", "full")
    assert done.code == 0
    assert "more than in training (24" in done.err


def test_the_reference_is_exact_softmax_on_the_same_queries_and_keys(show: Any) -> None:
    done = show(TEXT, "--reference", "--target", "katze", width=200)
    lines = " ".join(done.out.split())
    assert "no difference" not in lines
    assert "toy/base/seed-1, exact softmax on the same queries and keys" in lines


def test_a_file_of_numbers_holds_the_reference_too(show: Any) -> None:
    done = show(TEXT, "--reference", "--words", "--save", "m.npz")
    assert done.code == 0, done.err
    loaded = load(Path("m.npz"))
    assert loaded.reference is not None
    assert loaded.reference.maps["cross"].queries == loaded.maps["cross"].queries


def test_numbers_are_those_of_the_map_files(show: Any) -> None:
    show(TEXT, "--words", "--hide-special", "--save", "m.csv", "--kind", "encoder")
    header, *rows = Path("m.csv").read_text(encoding="utf-8").splitlines()
    assert "weight" in header
    assert len(rows) == 2 * 4 * 4  # heads, words, words


def test_json_of_the_page_names_the_runs_hashes(show: Any, run: Run) -> None:
    show(TEXT, "--save", "m.html")
    page = Path("m.html").read_text(encoding="utf-8")
    start = page.index('type="application/json"')
    data = json.loads(page[page.index(">", start) + 1 : page.index("</script>", start)])
    assert data["captures"][0]["facts"]["weights"] == run.manifest.files["model.safetensors"]
