"""Every command on runs of recurrent and convolutional models."""

import json
from pathlib import Path

import numpy as np
import pytest
from helpers.cli import Cli
from helpers.model_types import BASELINES
from helpers.saved_maps import load
from helpers.trained import ROWS, make_run

from attnkit.runs import Run

KINDS = ("lstm-dot", "sru-additive", "convs2s")


@pytest.fixture(scope="module", params=KINDS)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp(request.param)
    return make_run(folder, request.param, model_options=BASELINES[request.param])


@pytest.mark.parametrize("how", ["--beam 3", "--beam 1", "--sample --seed 3"])
def test_generate_answers_each_line(run: Run, how: str, cli: Cli) -> None:
    text = "".join(row.source + "\n" for row in ROWS)
    done = cli("generate", str(run.path), *how.split(), "--max-length", "6", stdin=text)
    assert (done.code, done.out.count("\n")) == (0, len(ROWS)), done.err


def test_maps_are_those_of_cross_attention(run: Run, cli: Cli) -> None:
    words = ("visualize-attn", str(run.path), "two red cats", "--save", "m.npz", "--save", "m.html")
    done = cli(*words)
    assert done.code == 0, done.err
    maps = load(Path("m.npz")).maps
    assert set(maps) == {"cross"}
    np.testing.assert_allclose(maps["cross"].weights.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_maps_of_self_attention_are_refused_in_a_line(run: Run, kind: str, cli: Cli) -> None:
    done = cli("visualize-attn", str(run.path), "two cats", "--kind", kind)
    assert (done.code, done.out) == (2, "")
    assert done.err.splitlines()[-1].endswith(f"--kind {kind}: this model has cross attention only")


def test_words_are_aligned_by_the_layers_that_there_are(run: Run, cli: Cli) -> None:
    Path("a.en").write_text("two red cats\n", encoding="utf-8")
    Path("a.de").write_text("zwei katzen\n", encoding="utf-8")
    done = cli("align", str(run.path), "a.en", "a.de")
    assert done.code == 0, done.err
    assert {link.split("-")[1] for link in done.out.split()} == {"0", "1"}
    beyond = cli("align", str(run.path), "a.en", "a.de", "--layer", "1")
    assert beyond.code == 2
    assert "cross attention has only layer 0" in beyond.err


def test_heads_are_ablated_and_the_run_is_scored(run: Run, cli: Cli) -> None:
    done = cli("probe", "heads", str(run.path), "--split", "test", "--format", "json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["rows"]
    assert [row["kind"] for row in rows] == [None, *["cross"] * run.recipe.model.heads]
    assert all(row["perplexity"] != rows[0]["perplexity"] for row in rows[1:])
    words = ("eval", str(run.path), "--metrics", "bleu,perplexity", "--format", "json")
    (row,) = json.loads(cli(*words).out)["rows"]
    assert row["metrics"]["perplexity"]["score"] > 1


def test_contexts_are_merged(run: Run, cli: Cli) -> None:
    for name, text in (("c.txt", "one red dog\n"), ("d.txt", "two cats and a very red cat\n")):
        Path(name).write_text(text, encoding="utf-8")
    words = ("--context", "c.txt", "d.txt", "--prompt", "cats", "--max-length", "4")
    done = cli("nbce", str(run.path), *words)
    assert done.code == 0, done.err
