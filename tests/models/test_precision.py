"""Matrix products in 16 bits."""

import pytest
import torch

from attnkit.errors import UnavailableError, UsageError
from attnkit.models import build
from attnkit.models.precision import lower_precision
from attnkit.recipe.schema import ModelConfig, SearchConfig
from attnkit.search import search

BF16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()


def model(**changes: object) -> torch.nn.Module:
    torch.manual_seed(3)
    sizes = {"width": 16, "ff": 24, "heads": 4, "layers": {"encoder": 1, "decoder": 1}}
    return build(ModelConfig.model_validate(sizes | changes), (40, 40), 30).eval()


@pytest.mark.skipif(not BF16, reason="no bf16 products")
@pytest.mark.parametrize("type", ["transformer", "recurrent", "convolutional"])
def test_products_are_rounded_and_nothing_else(type: str) -> None:
    found = model(type=type, tie="decoder")
    source, ids = torch.randint(4, 40, (3, 7)), torch.randint(4, 40, (3, 5))
    with torch.no_grad():
        whole = found(source, ids)
        lower_precision(found, "bf16")
        rounded = found(source, ids)
    assert rounded.dtype == torch.float32
    assert found.embed_target.tokens.weight.dtype == torch.float32
    assert not torch.equal(rounded, whole)
    torch.testing.assert_close(rounded, whole, rtol=0.1, atol=0.1)
    spec = SearchConfig(beam=2, max_length=8)
    answers = search(found, source, spec, lines=range(3))
    assert all(hypothesis.score < 0 for row in answers for hypothesis in row)
    (alone,) = search(found, source[1:2], spec, lines=[0])
    assert [one.ids for one in alone] == [one.ids for one in answers[1]]
    assert [one.score for one in alone] == pytest.approx([one.score for one in answers[1]])


def test_what_there_is_not_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_fp16_supported", lambda: False)
    with pytest.raises(UnavailableError, match=r"^this cpu does not support fp16 matrix products: use fp32$"):
        lower_precision(model(), "fp16")
    if BF16:
        with pytest.raises(UsageError, match="no linear layers"):
            lower_precision(model(type="n-gram", shape="decoder"), "bf16")
    lower_precision(model(type="n-gram", shape="decoder"), "fp32")
