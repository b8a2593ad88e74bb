"""Tests of maps by batch: equal to recorded maps, without padding, in batches of limited size."""

from typing import Any

import pytest
import torch
from helpers.map_recording import build, cases, model_config, record_maps
from helpers.model_types import BASELINES
from helpers.trained import LENGTH, ROWS, tokenizer

from attnkit.analysis import map_stream
from attnkit.analysis.map_stream import stream_maps
from attnkit.analysis.recorder import LayerMaps
from attnkit.data.encoded import Encoded
from attnkit.data.tokenizer import BOS
from attnkit.errors import NotFiniteError
from attnkit.models import Model
from attnkit.recipe.schema import ModelConfig
from attnkit.scoring.teacher_forced import encode_rows

ENCODED = encode_rows(ROWS, tokenizer(), LENGTH, stream=False)


def streamed(model: Model, encoded: Encoded = ENCODED, **options: Any) -> list[LayerMaps]:
    found: list[LayerMaps] = []
    stream_maps(model, encoded, found.append, **options)
    return found


@pytest.mark.parametrize(("word", "role"), list(cases()))
def test_streamed_maps_equal_those_of_single_rows(word: str, role: str) -> None:
    """By their sum of squares, to which padding adds 0."""
    model = build(model_config(word, role)).double()
    decoder = role == "decoder"
    encoded = encode_rows(ROWS[:1] if decoder else ROWS, tokenizer(), LENGTH, stream=decoder)
    batches = streamed(model, encoded, kinds=[role], layers=[1])
    found = sum(maps.weights.double().square().sum((0, 2, 3)) for maps in batches)
    expected = torch.zeros(4, dtype=torch.float64)
    for row in range(len(encoded)):
        ids = torch.tensor([[BOS, *encoded.target[row].tolist()]])
        source = None if encoded.source is None else torch.tensor([encoded.source[row].tolist()])
        with record_maps(model, kinds=[role], layers=[1]) as recorded, torch.no_grad():
            model.hidden(source, ids)
        expected += recorded[role][0].weights.square().sum((0, 2, 3))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("role", ["encoder", "decoder", "cross"])
def test_padding_has_no_weights(role: str) -> None:
    model = build(model_config())
    for maps in streamed(model, kinds=[role]):
        keys = {"encoder": ENCODED.source, "cross": ENCODED.source}.get(role)
        visible = maps.visible.expand_as(maps.weights)
        assert (maps.weights[~visible] == 0).all()
        assert (maps.weights[visible] > 0).all()  # softmax
        queries, visible_keys = (maps.visible.any(axis).sum((1, 2)).tolist() for axis in (3, 2))
        targets = sorted(len(ENCODED.target[row]) + 1 for row in range(len(ENCODED)))
        sources = targets if keys is None else sorted(keys.lengths.tolist())
        assert sorted(queries) == (sources if role == "encoder" else targets)
        assert sorted(visible_keys) == sources


def test_padding_between_source_and_target_has_no_weights() -> None:
    model = build(model_config(shape="decoder", role="decoder"))
    for maps in streamed(model):
        assert ENCODED.source is not None
        lengths = ENCODED.source.lengths + ENCODED.target.lengths + 1
        assert sorted(maps.visible.any(3).sum((1, 2)).tolist()) == sorted(lengths.tolist())
        # each query that is not padding sees itself and those before it
        counts = [sorted(row[row > 0].tolist()) for row in maps.visible.sum(3)[:, 0]]
        assert all(count == [*range(1, len(count) + 1)] for count in counts)


@pytest.mark.parametrize("name", sorted(BASELINES))
def test_models_other_than_transformers_have_cross_attention(name: str) -> None:
    model = build(ModelConfig(**{"width": 16, "ff": 16} | BASELINES[name]))
    assert {maps.kind for maps in streamed(model)} == {"cross"}


def test_batches_have_a_limited_number_of_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    model = build(model_config())
    whole = streamed(model, kinds=["cross"], layers=[0])
    monkeypatch.setattr(map_stream, "BATCH_WEIGHTS", 4 * 2 * 13**2)
    reports: list[tuple[int, int]] = []
    parts = streamed(model, kinds=["cross"], layers=[0], progress=lambda *numbers: reports.append(numbers))
    assert len(parts) > len(whole) == 1
    assert max(maps.weights.numel() for maps in parts) <= 4 * 2 * 13**2
    assert sum(len(maps.weights) for maps in parts) == len(ENCODED) == reports[-1][0] == reports[-1][1]


def test_model_with_nan_raises() -> None:
    model = build(model_config())
    with torch.no_grad():
        next(model.parameters()).fill_(torch.nan)
    with pytest.raises(NotFiniteError, match="train again"):
        streamed(model)
