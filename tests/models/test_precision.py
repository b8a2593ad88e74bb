"""Tests of matrix products in 16 bits."""

import pytest
import torch
from helpers.tiny_models import tiny_model

from attnkit.errors import UnavailableError, UsageError
from attnkit.models.precision import lower_precision
from attnkit.recipe.schema import SearchConfig
from attnkit.search import search

BF16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()


@pytest.mark.skipif(not BF16, reason="no bf16 products")
@pytest.mark.parametrize("type", ["transformer", "recurrent", "convolutional"])
def test_only_products_are_rounded(type: str) -> None:
    model = tiny_model(40, max_length=30, type=type, tie="decoder").eval()
    source, ids = torch.randint(4, 40, (3, 7)), torch.randint(4, 40, (3, 5))
    with torch.no_grad():
        exact = model(source, ids)
        lower_precision(model, "bf16")
        rounded = model(source, ids)
    assert rounded.dtype == torch.float32
    assert model.embed_target.tokens.weight.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.1, atol=0.1)
    spec = SearchConfig(beam=2, max_length=8)
    rows = search(model, source, spec, lines=range(3))
    assert all(hypothesis.score < 0 for row in rows for hypothesis in row)
    (alone,) = search(model, source[1:2], spec, lines=[0])
    assert [hypothesis.ids for hypothesis in alone] == [hypothesis.ids for hypothesis in rows[1]]
    assert [hypothesis.score for hypothesis in alone] == pytest.approx([hypothesis.score for hypothesis in rows[1]])


def test_unsupported_precision_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: False)
    with pytest.raises(UnavailableError, match=r"^this cpu does not support fp16 matrix products: use fp32$"):
        lower_precision(tiny_model(40), "fp16")
    ngram = tiny_model(40, type="n-gram", shape="decoder")
    if BF16:
        with pytest.raises(UsageError, match="no linear layers"):
            lower_precision(ngram, "bf16")
    lower_precision(ngram, "fp32")
