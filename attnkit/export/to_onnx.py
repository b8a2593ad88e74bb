"""Export to ONNX graphs by torch's exporter, for all mechanisms whose operations ONNX supports.

An encoder-decoder is encoder.onnx (source -> memory) and decoder.onnx (source, memory, ids -> logits), any other model
is model.onnx (ids -> logits). Ids are whole rows, padded on the right. There is no key-value cache, since its form
depends on the mechanism.
"""

import importlib
import logging
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from attnkit.data.tokenizer import EOS, PAD, Tokenizer
from attnkit.errors import DataError
from attnkit.export import standalone_tokenizer
from attnkit.export.parity import Reader, outputs
from attnkit.models import Decode, Model
from attnkit.models.base import LogProbabilities
from attnkit.recipe import Recipe

ENCODER, DECODER, WHOLE = "encoder.onnx", "decoder.onnx", "model.onnx"


class Graph(nn.Module):
    """A model, or its encoder or decoder, as one function of whole rows."""

    def __init__(self, model: Any, part: str) -> None:
        super().__init__()
        self.model, self.part = model, part

    def forward(self, source: Tensor | None = None, memory: Tensor | None = None, ids: Tensor | None = None) -> Tensor:
        output: Tensor
        if self.part == ENCODER:
            output, _ = self.model.encode(source)
        elif source is None or ids is None:
            output = self.model(*((ids, None) if self.model.shape == "encoder" else (None, ids)))
        else:
            valid = source != PAD
            # not len(ids), which the trace would record as a constant number of rows
            state = Decode(((), valid.new_ones((ids.shape[0], 0))), (valid, memory, ()))
            output, _ = self.model.step(ids, state)
        return output


class OnnxModel(Model):
    """The graphs of a folder as a model for attnkit's search."""

    def __init__(self, folder: Path, like: Model) -> None:
        super().__init__()
        runtime: Any = importlib.import_module("onnxruntime")
        options = runtime.SessionOptions()
        options.intra_op_num_threads = torch.get_num_threads()
        self.shape, self.limit = like.shape, like.limit
        self.output = LogProbabilities(like.output.out_features)
        self.graphs = {
            path.name: runtime.InferenceSession(path, options, ["CPUExecutionProvider"])
            for path in folder.glob("*.onnx")
        }

    def start(self, source: Int[Tensor, "B S"] | None, rows: int | None = None) -> Decode:
        if self.shape == "encoder-decoder" and source is not None:
            return Decode((source[:, :0],), (source, self._run(ENCODER, source=source)))
        tokens = torch.zeros((rows or 1, 0), dtype=torch.long) if source is None else source
        return Decode((tokens,), None)

    def advance(
        self, ids: Int[Tensor, "R t"], state: Decode, real: Bool[Tensor, "R t"] | None = None
    ) -> tuple[Float[Tensor, "R t V"], Decode]:
        tokens = torch.cat((state.moving[0], ids), 1)
        if state.fixed is not None:
            beams = len(ids) // len(state.fixed[0])
            source, memory = (part.repeat_interleave(beams, 0) for part in state.fixed)
            logits = self._run(DECODER, source=source, memory=memory, ids=tokens)
            return logits[:, -ids.shape[1] :], Decode((tokens,), state.fixed)
        # moves pads between the source and further tokens to the end, and the logits back
        order = (tokens == PAD).int().argsort(dim=1, stable=True)
        logits = self._run(WHOLE, ids=tokens.gather(1, order))
        restore = order.argsort(1)[:, -ids.shape[1] :, None].expand(-1, -1, logits.shape[2])
        return logits.gather(1, restore), Decode((tokens,), None)

    def hidden(self, source: Int[Tensor, "B S"] | None, ids: Int[Tensor, "B T"] | None) -> Float[Tensor, "B T V"]:
        if ids is None:
            return self._run(WHOLE, ids=source)
        return self.advance(ids, self.start(source, len(ids)))[0]

    def _run(self, graph: str, **inputs: Tensor | None) -> Tensor:
        arrays = {name: tensor.numpy() for name, tensor in inputs.items() if tensor is not None}
        try:
            return torch.from_numpy(self.graphs[graph].run(None, arrays)[0])
        except Exception as error:  # ONNX Runtime has its own class, RuntimeException
            raise DataError(f"ONNX Runtime cannot run the exported model: {_reason(error)}") from error


def write(model: Model, tokenizer: Tokenizer, recipe: Recipe, folder: Path, weights: str | None = None) -> Reader:
    """Write graphs for any number of rows and tokens, and open them; raises DataError if torch cannot export them.

    They are traced with rows of maximum length, so that no branch for short rows is recorded.
    """
    standalone_tokenizer.write(tokenizer, folder)
    max_length = max(2, recipe.data.max_length)
    ids, targets = (torch.full((2, tokens), EOS) for tokens in (max_length, max_length + 1))
    graphs: dict[str, dict[str, Tensor]] = {WHOLE: {"ids": ids}}
    if model.shape == "encoder-decoder":
        memory = torch.zeros(2, max_length, recipe.model.width)
        graphs = {ENCODER: {"source": ids}, DECODER: {"source": ids, "memory": memory, "ids": targets}}
    for name, inputs in graphs.items():
        try:
            _export(Graph(model, name), inputs, folder / name)
        except Exception as error:
            raise DataError(f"torch cannot export this model to ONNX: {_reason(error)}") from error
    exported = OnnxModel(folder, model)
    generate = partial(outputs, exported, tokenizer) if recipe.writes else None
    return Reader(generate, logits=exported, encode=standalone_tokenizer.encoder(folder, recipe))


def _reason(error: Exception) -> str:
    """Return the line of a long message that names the cause, otherwise its beginning."""
    text = re.sub(r"\x1b\[[\d;]*m", "", str(error))  # colors
    lines = (line for cause in ("No ONNX", "inferred", "<class") for line in text.splitlines()[::-1] if cause in line)
    return " ".join(next(lines, text).split())[:200]


def _export(graph: Graph, inputs: dict[str, Tensor], path: Path) -> None:
    """Write one graph, without log messages of the exporter and without metadata about source lines."""
    sizes = {name: {0: "rows", 1: "tokens" if name == "ids" else "source"} for name in inputs}
    disabled_level = logging.root.manager.disable
    logging.disable()
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                graph.eval(),
                kwargs=inputs,
                input_names=[*inputs],
                dynamic_shapes=sizes,
                output_names=["memory" if graph.part == ENCODER else "logits"],
                dynamo=True,
                verbose=False,
            )
    finally:
        logging.disable(disabled_level)
    assert program is not None
    traversal: Any = importlib.import_module("onnx_ir.traversal")
    for node in traversal.RecursiveGraphIterator(program.model.graph):
        node.metadata_props.clear()
    program.save(path)
