"""Ranks of maps: worked cases, pads, and what is known of the mechanisms."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.map_recording import model_config, save_run
from helpers.trained import ROWS, make_run

from attnkit.analysis.capture import MapReader
from attnkit.analysis.map_rank import probe_rank, ranks
from attnkit.errors import MissingInputError


@pytest.mark.parametrize(
    ("matrix", "effective", "numerical"),
    [
        (torch.eye(5), 5.0, 5),
        (torch.full((4, 6), 1 / 6), 1.0, 1),
        (torch.diag(torch.tensor([3.0, 1.0])), (4 / 3) ** 0.75 * 4**0.25, 2),
        (torch.diag(torch.tensor([1.0, 1e-4])), 1.00102, 1),
        (torch.zeros(3, 3), 0.0, 0),
    ],
)
def test_worked_cases(matrix: torch.Tensor, effective: float, numerical: int) -> None:
    found, counted = ranks(matrix)
    assert float(found) == pytest.approx(effective, rel=1e-5)
    assert int(counted) == numerical


def test_rows_and_columns_of_zeros_change_nothing() -> None:
    matrix = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(matrix, (0, 4, 0, 2))
    for found, expected in zip(ranks(padded), ranks(matrix), strict=True):
        torch.testing.assert_close(found, expected)


def test_ranks_of_a_run_are_means_over_its_texts(tmp_path: Path) -> None:
    run = save_run(tmp_path, model_config("scaled-dot"))
    found = probe_rank(run, ROWS, device="cpu")
    assert [(one.kind, one.layer.number) for one in found] == [
        (kind, layer) for kind in ("encoder", "decoder", "cross") for layer in (0, 1)
    ]
    texts = [(row.source, row.target) for row in ROWS]
    captures = list(MapReader(run, step="input", device="cpu").read_pairs(texts))
    for one in found:
        for head, rank in one.heads.items():
            numbers = []
            for capture in captures:
                maps = capture.maps[one.kind].weights[one.layer.number, head].astype(np.float64)
                values = np.linalg.svd(maps, compute_uv=False)
                shares = values[values > 0] / values.sum()
                effective = np.exp(-(shares * np.log(shares)).sum())
                numerical = (values > 1e-3 * values[0]).sum()
                numbers.append((effective, effective / min(maps.shape), numerical))
            assert tuple(rank) == pytest.approx(tuple(np.mean(numbers, 0)), rel=1e-5)


def test_no_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="no rows"):
        probe_rank(make_run(tmp_path), [])
