"""Tests of exports to CTranslate2: equal log-probabilities and outputs, quantization, caching, errors."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.export_models import ARCHITECTURES, LENGTH, batch, build, make_decisive, recipe, tokenizer
from helpers.peers import peer
from helpers.trained import ROWS, make_run

from attnkit.data.tokenizer import EOS, PAD
from attnkit.errors import DataError, UnavailableError
from attnkit.models import Model
from attnkit.recipe import Recipe
from attnkit.runs.layout import MODEL
from attnkit.search import translate

peer("ctranslate2")
to_ctranslate2 = pytest.importorskip("attnkit.export.to_ctranslate2")
MORE = [
    {"positions": "rope", "activation": "swiglu", "tie": "none"},
    {"positions": "sinusoidal", "activation": "geglu", "norm": "post"},
]


def exported(model: Model, chosen: Recipe, folder: Path, weights: str | None = None) -> Any:
    pieces = tokenizer(chosen.tokenizer.shared)
    reader = to_ctranslate2.write(model, pieces, chosen, folder, weights)
    assert (reader.bans, reader.exact) == (False, weights is None)
    return to_ctranslate2.CTranslate2Model(folder, pieces, model.limit, "cpu")


@pytest.mark.parametrize("options", ARCHITECTURES + MORE, ids=str)
def test_log_probabilities_are_equal(options: dict[str, Any], tmp_path: Path) -> None:
    chosen = recipe(**options)
    model = build(chosen)
    source, ids = batch(chosen)
    with torch.no_grad():
        logs = model(source, ids[:, :-1]).log_softmax(-1).gather(2, ids[:, 1:, None]).squeeze(2)
    found = exported(model, chosen, tmp_path).log_probs(source, ids)
    torch.testing.assert_close(found, logs[ids[:, 1:] != PAD], atol=2e-5, rtol=0)
    assert len(found) > 2 * LENGTH


@pytest.mark.parametrize(
    "search",
    [{"beam": 3}, {"method": "greedy"}, {"beam": 4, "n_best": 3}, {"beam": 2, "length_penalty": 0.0}],
    ids=str,
)
def test_outputs_and_scores_are_equal(search: dict[str, Any], tmp_path: Path) -> None:
    chosen = recipe(tie="none", positions="learned")
    spec = chosen.search.model_copy(update={"max_length": LENGTH} | search)
    model = make_decisive(build(chosen))
    texts = [row.source for row in ROWS] + ["", "cats  \t and dogs " * 8]
    engine = exported(model, chosen, tmp_path)
    expected, found = ([*translate(m, tokenizer(), texts, spec, max_source=LENGTH)] for m in (model, engine))
    assert [[text for text, _ in row] for row in found] == [[text for text, _ in row] for row in expected]
    scores = [pytest.approx(score, abs=1e-4) for row in expected for _, score in row]
    assert [score for row in found for _, score in row] == scores
    assert len({row[0][0] for row in expected}) > 3


def test_outputs_end_at_the_maximum_length(tmp_path: Path) -> None:
    chosen = recipe()
    spec = chosen.search.model_copy(update={"max_length": 4, "method": "greedy"})
    engine = exported(build(chosen), chosen, tmp_path)
    ((found,),) = engine.search_all([[5, 6, EOS]], spec, lines=[0])
    assert len(found.ids) + found.complete <= 4
    assert found.logprob == pytest.approx(found.score * (len(found.ids) + found.complete))


def test_quantization_does_not_change_the_run(tmp_path: Path) -> None:
    chosen = recipe()
    model = build(chosen)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    quantized = exported(model, chosen, tmp_path, "int8")
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    found = quantized.log_probs(*batch(chosen))
    assert found.isfinite().all()
    assert found.mean() == pytest.approx(-math.log(len(tokenizer().target)), abs=2)


def test_run_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNKIT_CACHE", str(tmp_path / "cache"))
    run = make_run(tmp_path)
    to_ctranslate2.open_run(run, "cpu")
    (folder,) = (tmp_path / "cache" / "ctranslate2").iterdir()
    assert folder.name == run.manifest.files[MODEL]
    monkeypatch.setattr(to_ctranslate2, "write", None)
    to_ctranslate2.open_run(run, "cpu")
    with pytest.raises(TypeError):  # a call of `write`, which is None
        to_ctranslate2.open_run(make_run(tmp_path, "other"), "cpu")


def test_damaged_model_or_other_device_raises(tmp_path: Path) -> None:
    chosen = recipe()
    exported(build(chosen), chosen, tmp_path)
    with pytest.raises(UnavailableError, match="cannot compute on mps here; use --device cpu"):
        to_ctranslate2.CTranslate2Model(tmp_path, tokenizer(), None, "mps")
    model = tmp_path / "model.bin"
    model.write_bytes(model.read_bytes()[:999])
    with pytest.raises(DataError, match="cannot open it"):
        to_ctranslate2.CTranslate2Model(tmp_path, tokenizer(), None, "cpu")
