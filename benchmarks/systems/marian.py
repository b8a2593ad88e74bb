"""Hugging Face transformers' Marian as one of the systems of benchmarks/peers.py; see `serve`.

Random weights with the shape of the comparison. Training takes the same batches as attnkit, with the fastest that is
available to users: the fused attention kernel, fused AdamW, one fused cross entropy.
"""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from serve import serve
from torch import Tensor
from torch.nn import functional as F

PAD, BOS, EOS = 0, 2, 3


def config(shape: dict[str, Any]) -> Any:
    """Return the configuration of Marian with the shape of the comparison."""
    sides = {
        f"{side}_{name}": shape[key]
        for side in ("encoder", "decoder")
        for name, key in (("layers", "layers"), ("attention_heads", "heads"), ("ffn_dim", "ff"))
    }
    return transformers.MarianConfig(
        vocab_size=shape["vocabulary"],
        d_model=shape["width"],
        dropout=shape["dropout"],
        attention_dropout=0.0,
        activation_dropout=shape["activation_dropout"],
        activation_function=shape["activation"],
        scale_embedding=True,
        max_position_embeddings=shape["max_length"] + 1,
        pad_token_id=PAD,
        bos_token_id=BOS,
        eos_token_id=EOS,
        forced_eos_token_id=None,
        decoder_start_token_id=BOS,
        attn_implementation="sdpa",
        **sides,
    )


class System:
    """A model and an optimizer for each precision, and one model that decodes."""

    def __init__(self, work: Path) -> None:
        shape = json.loads((work / "shape.json").read_text())
        self.smoothing, self.clip = shape["label_smoothing"], shape["clip"]
        self.models, self.optimizers = {}, {}
        for precision in ("fp32", "bf16"):
            torch.manual_seed(1)
            model = transformers.MarianMTModel(config(shape)).train()
            self.models[precision] = model
            self.optimizers[precision] = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.0, fused=True)
        self.decoder = transformers.MarianMTModel(config(shape)).eval()
        stored = np.load(work / "batches.npz")
        names = ("source", "input", "output")
        self.batches = [
            tuple(torch.from_numpy(stored[f"{name}{number}"]).long() for name in names)
            for number in range(len(stored.files) // len(names))
        ]

    def about(self) -> dict[str, Any]:
        """Return facts for the page."""
        return {
            "threads": torch.get_num_threads(),
            "parameters": sum(weight.numel() for weight in self.decoder.parameters()),
            "versions": f"transformers {transformers.__version__}, torch {torch.__version__}",
        }

    def train(self, precision: str, start: int, count: int) -> dict[str, Any]:
        """Do updates on `count` batches from number `start` on."""
        began = time.perf_counter()
        for number in range(start, start + count):
            self._update(precision, *self.batches[number % len(self.batches)])
        return {"seconds": time.perf_counter() - began}

    def _update(self, precision: str, source: Tensor, inputs: Tensor, outputs: Tensor) -> None:
        low = precision == "bf16"
        model, optimizer = self.models[precision], self.optimizers[precision]
        with torch.autocast("cpu", torch.bfloat16) if low else nullcontext():
            logits = model(
                input_ids=source, attention_mask=(source != PAD).long(), decoder_input_ids=inputs, use_cache=False
            ).logits
            loss = F.cross_entropy(
                logits.flatten(0, 1), outputs.flatten(), ignore_index=PAD, label_smoothing=self.smoothing
            )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), self.clip)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    @torch.inference_mode()
    def decode(self, sources: Sequence[Sequence[int]], tokens: int, size: int) -> dict[str, Any]:
        """Decode with beam 5, ids to ids, `size` sentences of similar length at once."""
        ordered = sorted(sources, key=len, reverse=True)
        began = time.perf_counter()
        for start in range(0, len(ordered), size):
            rows = ordered[start : start + size]
            ids = torch.full((len(rows), len(rows[0])), PAD)
            for row, values in enumerate(rows):
                ids[row, : len(values)] = torch.tensor(values)
            found = self.decoder.generate(
                input_ids=ids,
                attention_mask=(ids != PAD).long(),
                num_beams=5,
                do_sample=False,
                min_new_tokens=tokens,
                max_new_tokens=tokens,
            )
            assert found.shape == (len(rows), tokens + 1), found.shape
        return {"seconds": time.perf_counter() - began}


if __name__ == "__main__":
    transformers.logging.set_verbosity_error()
    system = System(Path(sys.argv[1]))
    serve({"about": system.about, "train": system.train, "decode": system.decode})
