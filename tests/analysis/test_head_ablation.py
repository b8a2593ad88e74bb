"""Tests of head ablation, and of the loss without each head."""

from pathlib import Path

import pytest
import torch
from helpers.map_recording import build, cases, model_config
from helpers.trained import LENGTH, ROWS, make_run, tokenizer

from attnkit.analysis.head_ablation import HeadPlace, ablated, probe_heads
from attnkit.analysis.recorder import attention_layers
from attnkit.data.tokenizer import BOS, EOS
from attnkit.errors import UsageError
from attnkit.layers import MultiHead
from attnkit.models import Model
from attnkit.recipe.schema import SearchConfig
from attnkit.runs import Run
from attnkit.scoring.teacher_forced import teacher_forced_scores
from attnkit.search import translate

SOURCE = torch.tensor([[7, 9, 11, EOS], [8, 12, 6, EOS]])
IDS = torch.tensor([[BOS, 8, 9, 10, 11], [BOS, 11, 6, 7, 9]])


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return make_run(tmp_path_factory.mktemp("probe"))


def zero_projection(layer: MultiHead, head: int) -> None:
    """Set the weights by which the output projection reads the head to 0."""
    width = layer.o.weight.shape[1] // layer.heads
    with torch.no_grad():
        layer.o.weight[:, head * width : (head + 1) * width] = 0


def answer(model: Model, role: str) -> torch.Tensor:
    with torch.inference_mode():
        return model.hidden(None if role == "decoder" else SOURCE, IDS)


@pytest.mark.sampled(7)
@pytest.mark.parametrize(("word", "role"), list(cases()))
def test_ablation_equals_zero_weights_of_the_projection(word: str, role: str) -> None:
    """Afterwards the model is as before."""
    model = build(model_config(word, role))
    whole = answer(model, role)
    place = HeadPlace(role, 1, 2)  # type: ignore[arg-type]
    with ablated(model, place):
        without = answer(model, role)
    assert torch.equal(answer(model, role), whole)
    zero_projection(attention_layers(model)[place.kind][1], 2)
    torch.testing.assert_close(without, answer(model, role), rtol=1e-5, atol=1e-6)
    assert not torch.allclose(without, whole, atol=1e-3)


@pytest.mark.parametrize("kind", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("method", ["greedy", "beam"])
def test_ablation_in_cached_steps_and_beams(kind: str, method: str) -> None:
    texts = [row.source for row in ROWS]
    spec = SearchConfig(method=method, beam=3, max_length=8)

    def decode(model: Model) -> list[list[tuple[str, float]]]:
        return list(translate(model, tokenizer(), texts, spec, max_source=LENGTH))

    model = build(model_config())
    place = HeadPlace(kind, 0, 1)  # type: ignore[arg-type]
    with ablated(model, place):
        without = decode(model)
    zero_projection(attention_layers(model)[place.kind][0], 1)
    for found, expected in zip(without, decode(model), strict=True):
        assert [text for text, _ in found] == [text for text, _ in expected]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-4)


def test_effects_are_the_change_of_the_scores(run: Run) -> None:
    metrics = ["perplexity", "accuracy"]
    found = probe_heads(run, ROWS, metrics=metrics)
    kinds = ("encoder", "decoder", "cross")
    assert list(found.effects) == [HeadPlace(kind, 0, head) for kind in kinds for head in (0, 1)]
    for place, effects in found.effects.items():
        model = run.model()
        zero_projection(attention_layers(model)[place.kind][0], place.head)
        scores = teacher_forced_scores(metrics, model, run.tokenizer(), ROWS, max_length=LENGTH, stream=False)
        for name, sign in (("perplexity", 1), ("accuracy", -1)):
            effect = effects[name]
            assert effect.score == pytest.approx(scores[name].value, rel=1e-5)
            assert effect.loss == pytest.approx(sign * (effect.score - found.whole[name].value))
            assert effect.p is not None
            assert effect.p_corrected is not None
            assert 0 < effect.p <= effect.p_corrected <= 1


def test_probe_is_reproducible_and_does_not_change_the_run(run: Run) -> None:
    before = {path: path.stat().st_mtime_ns for path in run.path.rglob("*")}
    options = {"metrics": ["bleu", "perplexity"], "kinds": ["cross"]}
    first, second = (probe_heads(run, ROWS, **options) for _ in range(2))  # type: ignore[arg-type]
    assert first == second
    assert {path: path.stat().st_mtime_ns for path in run.path.rglob("*")} == before


def test_progress_after_each_head(run: Run) -> None:
    reports: list[tuple[int, int]] = []
    probe_heads(run, ROWS[:1], kinds=["cross"], progress=lambda *numbers: reports.append(numbers))
    assert reports == [(1, 2), (2, 2)]


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        ("length-ratio", "length-ratio: neither higher nor lower is better"),
        ("bleuu", "unknown metric 'bleuu': did you mean bleu"),
    ],
)
def test_invalid_metrics_raise(run: Run, metric: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        probe_heads(run, ROWS, metrics=[metric])


def test_text_metrics_and_cross_attention_of_a_language_model_raise(tmp_path: Path) -> None:
    model = make_run(tmp_path, task="language-modeling")
    with pytest.raises(UsageError, match="metrics: bleu does not apply to language-modeling"):
        probe_heads(model, ROWS, metrics=["bleu"])
    with pytest.raises(UsageError, match="--kind cross: this model has decoder attention only"):
        probe_heads(model, ROWS, kinds=["cross"])
    assert len(probe_heads(model, ROWS).effects) == 2
