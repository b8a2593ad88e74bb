"""Tests of every command with runs of recurrent and convolutional models."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.cli import Cli
from helpers.model_types import BASELINES
from helpers.saved_maps import load
from helpers.trained import ROWS, make_run

from attnkit.runs import Run


@pytest.fixture(scope="module", params=["lstm-dot", "sru-additive", "convs2s"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp(request.param)
    return make_run(folder, request.param, model_options=BASELINES[request.param])


@pytest.mark.parametrize("search", ["--beam 3", "--beam 1", "--sample --seed 3"])
def test_generate_answers_each_line(run: Run, search: str, cli: Cli) -> None:
    text = "".join(row.source + "\n" for row in ROWS)
    done = cli("generate", str(run.path), *search.split(), "--max-length", "6", stdin=text)
    assert done.out.count("\n") == len(ROWS)


def test_maps_are_of_cross_attention_only(run: Run, cli: Cli) -> None:
    command = ("visualize-attn", str(run.path), "two red cats")
    cli(*command, "--save", "m.npz", "--save", "m.html")
    maps = load(Path("m.npz")).maps
    assert set(maps) == {"cross"}
    np.testing.assert_allclose(maps["cross"].weights.sum(-1), 1, atol=1e-5)
    for kind in ("encoder", "decoder"):
        done = cli(*command, "--kind", kind, code=2)
        assert done.out == ""
        assert done.error.endswith(f"--kind {kind}: this model has cross attention only")


def test_words_are_aligned_by_the_only_layer(run: Run, cli: Cli) -> None:
    Path("a.en").write_text("two red cats\n", encoding="utf-8")
    Path("a.de").write_text("zwei katzen\n", encoding="utf-8")
    done = cli("align", str(run.path), "a.en", "a.de")
    assert {link.split("-")[1] for link in done.out.split()} == {"0", "1"}
    done = cli("align", str(run.path), "a.en", "a.de", "--layer", "1", code=2)
    assert "cross attention has only layer 0" in done.err


def test_heads_are_ablated_and_the_run_is_scored(run: Run, cli: Cli) -> None:
    done = cli("probe", "heads", str(run.path), "--split", "test", "--format", "json")
    rows = json.loads(done.out)["rows"]
    assert [row["kind"] for row in rows] == [None, *["cross"] * run.recipe.model.heads]
    assert all(row["perplexity"] != rows[0]["perplexity"] for row in rows[1:])
    words = ("eval", str(run.path), "--metrics", "bleu,perplexity", "--format", "json")
    (row,) = json.loads(cli(*words).out)["rows"]
    assert row["metrics"]["perplexity"]["score"] > 1


def test_contexts_are_merged(run: Run, cli: Cli) -> None:
    Path("c.txt").write_text("one red dog\n", encoding="utf-8")
    Path("d.txt").write_text("two cats and a very red cat\n", encoding="utf-8")
    cli("nbce", str(run.path), "--context", "c.txt", "d.txt", "--prompt", "cats", "--max-length", "4")
