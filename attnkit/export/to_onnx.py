"""A run as ONNX graphs, by torch's exporter: any mechanism whose operations ONNX has.

An encoder-decoder is encoder.onnx (source -> memory) and decoder.onnx (source, memory, ids ->
logits), any other model is model.onnx (ids -> logits).  Ids are whole rows, padded on the right:
there is no cache of keys and values, since every mechanism keeps another one.
"""

import importlib
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnkit.data.tokenizer import EOS, PAD
from attnkit.errors import DataError
from attnkit.models import Decode, Model
from attnkit.models.base import LogProbabilities

ENCODER, DECODER, WHOLE = "encoder.onnx", "decoder.onnx", "model.onnx"


class Encoder(nn.Module):
    """Source -> memory."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, source: Int[Tensor, "B S"]) -> Float[Tensor, "B S W"]:
        memory: Tensor = self.model.encode(source)[0]
        return memory


class Decoder(Encoder):
    """Source (for its padding), memory and targets -> logits."""

    def forward(  # type: ignore[override]
        self, source: Int[Tensor, "B S"], memory: Tensor, ids: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T V"]:
        valid = source != PAD
        state = Decode(((), valid.new_ones((len(ids), 0))), (valid, memory, ()))
        logits: Tensor = self.model.step(ids, state)[0]
        return logits


class Whole(Encoder):
    """Ids -> logits, of a decoder or an encoder."""

    def forward(self, ids: Int[Tensor, "B T"]) -> Float[Tensor, "B T V"]:
        source = self.model.shape == "encoder"
        logits: Tensor = self.model(ids, None) if source else self.model(None, ids)
        return logits


class OnnxModel(Model):
    """What stands in such a folder, as a model for our own search."""

    def __init__(self, folder: Path, like: Model) -> None:
        super().__init__()
        runtime: Any = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.shape, self.limit = like.shape, like.limit
        self.output = LogProbabilities(like.output.out_features)
        self.graphs = {
            path.name: runtime.InferenceSession(path, options, ["CPUExecutionProvider"])
            for path in sorted(folder.glob("*.onnx"))
        }

    def start(self, source: Int[Tensor, "B S"] | None, rows: int | None = None) -> Decode:
        if self.shape == "encoder-decoder" and source is not None:
            memory = self._run(ENCODER, {"source": source})
            return Decode((source[:, :0],), (source, memory))
        read = torch.zeros((rows or 1, 0), dtype=torch.long) if source is None else source
        return Decode((read,), None)

    def advance(
        self, ids: Int[Tensor, "R t"], state: Decode, real: Bool[Tensor, "R t"] | None = None
    ) -> tuple[Float[Tensor, "R t V"], Decode]:
        read = torch.cat((state.moving[0], ids), 1)
        if state.fixed is not None:
            beams = len(ids) // len(state.fixed[0])
            source, memory = (part.repeat_interleave(beams, 0) for part in state.fixed)
            logits = self._run(DECODER, {"source": source, "memory": memory, "ids": read})
            return logits[:, -ids.shape[1] :], Decode((read,), state.fixed)
        # pads between a source and what follows go behind it
        order = (read == PAD).int().argsort(dim=1, stable=True)
        logits = self._run(WHOLE, {"ids": read.gather(1, order)})
        back = order.argsort(1)[:, -ids.shape[1] :, None].expand(-1, -1, logits.shape[2])
        return logits.gather(1, back), Decode((read,), None)

    def hidden(
        self, source: Int[Tensor, "B S"] | None, ids: Int[Tensor, "B T"] | None
    ) -> Float[Tensor, "B T V"]:
        if ids is None and source is not None:
            return self._run(WHOLE, {"ids": source})
        assert ids is not None
        return self.advance(ids, self.start(source, len(ids)))[0]

    def _run(self, graph: str, inputs: Mapping[str, Tensor]) -> Tensor:
        arrays = {name: tensor.numpy() for name, tensor in inputs.items()}
        return torch.from_numpy(self.graphs[graph].run(None, arrays)[0])


def write(model: Model, width: int, longest: int, folder: Path) -> None:
    """Fill a folder with graphs for any number of rows and tokens.

    They are traced with rows of `longest` tokens, so that no branch for short rows is taken for
    all; `width` is that of the model.

    Raises:
        DataError: torch cannot export what a mechanism does.
    """
    ids, targets = (torch.full((2, tokens), EOS) for tokens in (longest, longest + 1))
    graphs: dict[str, tuple[nn.Module, dict[str, Tensor]]]
    if model.shape == "encoder-decoder":
        given = {"source": ids, "memory": torch.zeros(2, longest, width), "ids": targets}
        graphs = {ENCODER: (Encoder(model), {"source": ids}), DECODER: (Decoder(model), given)}
    else:
        graphs = {WHOLE: (Whole(model), {"ids": ids})}
    for name, (graph, inputs) in graphs.items():
        outputs = ["memory" if name == ENCODER else "logits"]
        tokens = {"source": "source", "memory": "source", "ids": "tokens"}
        sizes = {key: {0: "rows", 1: tokens[key]} for key in inputs}
        try:
            with torch.no_grad(), _silent():
                made = torch.onnx.export(
                    graph.eval(), (), kwargs=inputs, input_names=[*inputs], output_names=outputs,
                    dynamic_shapes=sizes, dynamo=True, verbose=False,
                )  # fmt: skip
        except Exception as error:
            reason = next((line for line in str(error).splitlines()[::-1] if "No ONNX" in line), "")
            text = " ".join((reason or str(error)).split())[:200]
            raise DataError(f"torch cannot export this model to ONNX: {text}") from error
        assert made is not None
        traversal: Any = importlib.import_module("onnx_ir.traversal")
        for node in traversal.RecursiveGraphIterator(made.model.graph):
            node.metadata_props.clear()  # where in the source it came from
        made.save(folder / name)


@contextmanager
def _silent() -> Iterator[None]:
    """The exporter without its notes about itself."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            logger.setLevel(level)
