"""Capture of a run: the tokens that it reads, wherever the output comes from."""

import numpy as np
import pytest
from small import run_of, sections
from trained import tokenizer

from attnkit.capture import Captor, capture
from attnkit.recipe.schema import Search
from attnkit.runs import Run

TEXT = "two red dogs and a cat"
SEARCHES = {
    "greedy": Search(method="greedy", max_length=8),
    "beam 3": Search(method="beam", beam=3, max_length=8),
    "sampled, seed 4": Search(method="sample", seed=4, max_length=8),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("pair"), sections())


@pytest.mark.parametrize("how", SEARCHES)
def test_maps_of_an_output_equal_those_of_the_same_ids_as_target(pair: Run, how: str) -> None:
    captor = Captor(pair, device="cpu")
    written = captor.read([(TEXT, None)], SEARCHES[how])[0]
    ids = [token.id for token in written.maps["cross"].queries[1:]]
    forced = captor.read([(TEXT, ids)])[0]
    assert (written.how, forced.how) == (how, "given")
    assert written.output == forced.output
    assert list(written.maps) == ["encoder", "decoder", "cross"]
    for kind, maps in written.maps.items():
        assert np.array_equal(maps.weights, forced.maps[kind].weights)
        assert maps.queries == forced.maps[kind].queries


def test_axes_are_the_ids_that_the_model_reads(pair: Run) -> None:
    found = capture(pair, TEXT, target="ein hund", device="cpu")
    source = [*tokenizer().source.encode([TEXT])[0], 3]
    target = [2, *tokenizer().target.encode(["ein hund"])[0]]
    assert [token.id for token in found.maps["encoder"].queries] == source
    assert [token.id for token in found.maps["cross"].keys] == source
    assert [token.id for token in found.maps["cross"].queries] == target
    assert [token.id for token in found.maps["decoder"].keys] == target
    assert found.maps["cross"].weights.shape == (2, 4, len(target), len(source))
    assert (found.source, found.output) == (TEXT, "ein hund")
