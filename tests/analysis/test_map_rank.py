"""Tests of ranks of maps: worked examples, padding, means over texts."""

from pathlib import Path

import numpy as np
import pytest
import torch
from helpers.map_recording import model_config, save_run
from helpers.trained import ROWS

from attnkit.analysis.capture import MapReader
from attnkit.analysis.map_rank import probe_rank, ranks


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
def test_worked_examples(matrix: torch.Tensor, effective: float, numerical: int) -> None:
    assert tuple(map(float, ranks(matrix))) == pytest.approx((effective, numerical), rel=1e-5)


def test_rows_and_columns_of_zeros_do_not_change_the_ranks() -> None:
    matrix = torch.rand(2, 3, 5, 7, generator=torch.Generator().manual_seed(1))
    padded = torch.nn.functional.pad(matrix, (0, 4, 0, 2))
    for found, expected in zip(ranks(padded), ranks(matrix), strict=True):
        torch.testing.assert_close(found, expected)


def test_ranks_of_a_run_are_means_over_its_texts(tmp_path: Path) -> None:
    run = save_run(tmp_path, model_config())
    found = probe_rank(run, ROWS, device="cpu")
    kinds = ("encoder", "decoder", "cross")
    assert [(row.kind, row.layer.number) for row in found] == [(kind, layer) for kind in kinds for layer in (0, 1)]
    texts = [(row.source, row.target) for row in ROWS]
    captures = list(MapReader(run, step="input", device="cpu").read_pairs(texts))
    for row in found:
        for head, rank in row.heads.items():
            numbers = []
            for capture in captures:
                maps = capture.maps[row.kind].weights[row.layer.number, head].astype(np.float64)
                values = np.linalg.svd(maps, compute_uv=False)
                shares = values[values > 0] / values.sum()
                effective = np.exp(-(shares * np.log(shares)).sum())
                numerical = (values > 1e-3 * values[0]).sum()
                numbers.append((effective, effective / min(maps.shape), numerical))
            assert tuple(rank) == pytest.approx(tuple(np.mean(numbers, 0)), rel=1e-5)
