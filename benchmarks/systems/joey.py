"""JoeyNMT as one of the systems of benchmarks/peers.py; see `serve`.

It trains with its own loop and decodes with its own `predict`; both speeds are read from its log.
"""

import json
import logging
import re
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import sentencepiece
import torch

# its tokenizer calls a method that sentencepiece has removed, and that does nothing for a joint vocabulary
sentencepiece.SentencePieceProcessor.SetVocabulary = lambda self, pieces: None

from joeynmt.config import parse_global_args  # noqa: E402
from joeynmt.data import load_data  # noqa: E402
from joeynmt.model import build_model  # noqa: E402
from joeynmt.prediction import predict  # noqa: E402
from joeynmt.training import TrainManager  # noqa: E402
from serve import serve  # noqa: E402

NEVER = 10**6


def config(shape: dict[str, Any], work: Path) -> dict[str, Any]:
    """Return its configuration for the shape of the comparison."""

    def language(code: str) -> dict[str, Any]:
        return {
            "lang": code,
            "level": "bpe",
            "voc_file": str(work / "vocabulary.txt"),
            "tokenizer_type": "sentencepiece",
            "tokenizer_cfg": {"model_file": str(work / "tokenizer.model")},
        }

    side = {
        "type": "transformer",
        "num_layers": shape["layers"],
        "num_heads": shape["heads"],
        "embeddings": {"embedding_dim": shape["width"], "scale": True, "dropout": shape["dropout"]},
        "hidden_size": shape["width"],
        "ff_size": shape["ff"],
        "dropout": shape["dropout"],
        "layer_norm": "pre",
    }
    return {
        "name": "peers",
        "model_dir": str(work / "joeynmt-model"),
        "use_cuda": False,
        "random_seed": 1,
        "data": {
            "train": str(work / "train"),
            "test": str(work / "test"),
            "dataset_type": "plain",
            "src": language("source"),
            "trg": language("target"),
        },
        "training": {
            "optimizer": "adamw",
            "learning_rate": 1e-4,
            "learning_rate_min": 0,
            "scheduling": "warmupinversesquareroot",
            "learning_rate_warmup": 1000,
            "label_smoothing": shape["label_smoothing"],
            "normalization": "tokens",
            "clip_grad_norm": shape["clip"],
            "batch_type": "token",
            "batch_size": shape["batch_tokens"],
            "epochs": NEVER,
            "logging_freq": 1,
            "validation_freq": NEVER,
        },
        "testing": {"batch_type": "sentence", "beam_size": 5, "beam_alpha": 1.0},
        "model": {
            "initializer": "xavier_uniform",
            "tied_embeddings": True,
            "tied_softmax": True,
            "encoder": side,
            "decoder": side,
        },
    }


class Reader(logging.Handler):
    """Keeps the last number that matches each pattern in the log."""

    PATTERNS = {
        "speed": re.compile(r"Tokens per Sec: +([0-9.]+)"),
        "seconds": re.compile(r"Generation took ([0-9.]+)"),
    }

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, float] = {}

    def emit(self, record: logging.LogRecord) -> None:
        for name, pattern in self.PATTERNS.items():
            if match := pattern.search(record.getMessage()):
                self.found[name] = float(match[1])


class System:
    """Its training manager, which does some updates at each request."""

    def __init__(self, work: Path) -> None:
        cfg = config(json.loads((work / "shape.json").read_text()), work)
        Path(cfg["model_dir"]).mkdir(exist_ok=True)
        self.args = parse_global_args(cfg, mode="train")
        torch.manual_seed(1)
        source, target, self.rows, _, self.test = load_data(self.args.data, datasets=["train", "test"])
        self.model = build_model(self.args.model, src_vocab=source, trg_vocab=target)
        self.model.loss_function = (self.args.train.loss, self.args.train.label_smoothing)
        self.manager = TrainManager(
            rank=0,
            model=self.model,
            model_dir=self.args.model_dir,
            device=self.args.device,
            autocast=self.args.autocast,
            train_args=self.args.train,
            dev_args=self.args.test,
        )
        self.log = Reader()
        for name in ("joeynmt.training", "joeynmt.prediction"):
            logging.getLogger(name).addHandler(self.log)

    def about(self) -> dict[str, Any]:
        """Return facts for the page."""
        return {
            "threads": torch.get_num_threads(),
            "parameters": sum(weight.numel() for weight in self.model.parameters()),
            "versions": f"joeynmt {version('joeynmt')}, torch {torch.__version__}",
        }

    def train(self, count: int) -> dict[str, Any]:
        """Do `count` updates, logged as one interval; return the target tokens per second."""
        self.manager.args = self.args.train._replace(
            max_updates=count, logging_freq=count, validation_freq=NEVER * count
        )
        self.manager.stats.steps, self.manager.stats.is_max_update = 0, False
        self.manager.train_and_validate(self.rows, self.test)
        return {"speed": self.log.found.pop("speed")}

    def decode(self, count: int, tokens: int, size: int) -> dict[str, Any]:
        """Decode the first `count` test sentences with beam 5, `size` at once, in its own order."""
        self.test.reset_indices()
        self.test.indices = self.test.indices[:count]
        args = self.args.test._replace(batch_size=size, max_output_length=tokens)
        _, _, _, outputs, *_ = predict(
            model=self.model, data=self.test, device=self.args.device, n_gpu=0, args=args, autocast=self.args.autocast
        )
        assert len(outputs) == count
        return {"seconds": self.log.found.pop("seconds"), "tokens": sum(map(len, outputs)) / count}


if __name__ == "__main__":
    system = System(Path(sys.argv[1]))
    serve({"about": system.about, "train": system.train, "decode": system.decode})
