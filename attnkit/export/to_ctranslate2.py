"""An encoder-decoder run as a model of CTranslate2, by that library's own model specifications."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnkit.data.tokenizer import BOS, EOS, PAD, RESERVED, UNK, Tokenizer
from attnkit.errors import DataError, UnavailableError
from attnkit.export.projections import blocks, position_table, projection, stacks
from attnkit.layers import Block, MultiHead
from attnkit.models import Transformer
from attnkit.recipe import Recipe
from attnkit.recipe.schema import SearchConfig
from attnkit.runs import Run
from attnkit.search import Hypothesis
from attnkit.storage.cache import cache_dir, complete

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "swiglu": "SWISH", "geglu": "GELU"}
"""Word of a recipe -> member of `ctranslate2.specs.Activation`."""


class CTranslate2Model:
    """A converted model, which searches by itself; see `search_all` of `attnkit.search`."""

    shape = "encoder-decoder"

    def __init__(self, folder: Path, tokenizer: Tokenizer, limit: int | None, device: str) -> None:
        """`limit` is the number of positions that have weights.

        Raises:
            DataError: the files are damaged.
            UnavailableError: it cannot compute on this device.
        """
        library: Any = importlib.import_module("ctranslate2")
        place, _, index = device.partition(":")
        if place not in ("cpu", "cuda"):
            raise UnavailableError(f"ctranslate2 computes on cpu or cuda, not on {device}")
        try:
            self.translator = library.Translator(
                str(folder),
                place,
                device_index=int(index or 0),
                intra_threads=torch.get_num_threads(),
            )
        except (RuntimeError, ValueError) as error:
            raise DataError(f"{folder}: ctranslate2 cannot open it: {error}") from error
        self.limit = limit
        parts = (tokenizer.source, tokenizer.target)
        self.pieces, self.targets = (part.pieces(range(len(part))) for part in parts)
        self.ids = {piece: id_ for id_, piece in enumerate(self.targets)}

    def search_all(
        self, sources: Sequence[Sequence[int]], spec: SearchConfig, *, lines: Sequence[int]
    ) -> list[list[Hypothesis]]:
        """The n best outputs of each source, in order; `lines` are not read."""
        beams = spec.beam if spec.method == "beam" else 1
        found = self.translator.translate_batch(
            [[self.pieces[id_] for id_ in ids[:-1]] for ids in sources],  # it adds the end token
            beam_size=beams,
            num_hypotheses=spec.n_best,
            length_penalty=spec.length_penalty,
            max_decoding_length=min(spec.max_length, self.limit or spec.max_length),
            min_decoding_length=spec.min_length,
            no_repeat_ngram_size=spec.no_repeat_ngram,
            max_input_length=0,
            max_batch_size=max(1, spec.batch_tokens // beams),
            batch_type="tokens",
            suppress_sequences=[[RESERVED[id_]] for id_ in (PAD, UNK, BOS)],
            return_end_token=True,
            return_scores=True,
        )
        return [
            [self._hypothesis(*one, spec) for one in zip(each.hypotheses, each.scores, strict=True)]
            for each in found
        ]

    def _hypothesis(self, tokens: list[str], score: float, spec: SearchConfig) -> Hypothesis:
        ended = tokens[-1:] == [RESERVED[EOS]]
        logprob = score * len(tokens) ** spec.length_penalty
        ids = [self.ids[token] for token in tokens[: -1 if ended else None]]
        return Hypothesis(ids, score, logprob, ended)

    def log_probs(
        self, source: Int[Tensor, "B S"], ids: Int[Tensor, "B T"]
    ) -> list[Float[Tensor, " t"]]:
        """Log-probabilities of the tokens of each target behind BOS, end token included."""
        given = [[self.pieces[id_] for id_ in row if id_ not in (PAD, EOS)] for row in source]
        wanted = [[self.targets[id_] for id_ in row[1:] if id_ not in (PAD, EOS)] for row in ids]
        found = self.translator.score_batch(given, wanted, max_input_length=0)
        return [torch.tensor(one.log_probs) for one in found]


def opened(run: Run, device: str) -> CTranslate2Model:
    """A run in CTranslate2, converted into the cache the first time.

    Raises:
        DataError, MissingInputError: as `Run.model`.
        UnavailableError, OutputPathError, OutputError: as `CTranslate2Model` and `complete`.
    """
    library: Any = importlib.import_module("ctranslate2")
    tokenizer, recipe = run.tokenizer(), run.recipe
    learned = recipe.model.positions == "learned"

    def read(folder: Path) -> CTranslate2Model:
        limit = recipe.data.max_length + 1 if learned else None
        return CTranslate2Model(folder, tokenizer, limit, device)

    def build(folder: Path) -> None:
        model = run.model()
        assert isinstance(model, Transformer)
        write(model, tokenizer, recipe, folder)

    key = f"{run.check_weights()}-{library.__version__}"
    model, _ = complete(cache_dir() / "ctranslate2" / key, read, build)
    return model


def write(
    model: Transformer,
    tokenizer: Tokenizer,
    recipe: Recipe,
    folder: Path,
    quantization: str | None = None,
) -> None:
    """Convert into an empty folder; `quantization` is a word of CTranslate2's converters."""
    specs: Any = importlib.import_module("ctranslate2.specs")
    shape = recipe.model
    options: dict[str, Any] = {
        "pre_norm": shape.norm == "pre",
        "activation": specs.Activation[ACTIVATIONS[shape.activation]],
        "ffn_glu": shape.activation.endswith("glu"),
    }
    if shape.positions == "rope":
        options |= {"rotary_dim": 0, "rotary_interleave": False}
    sides = {
        "encoder": specs.TransformerEncoderSpec(shape.layers.encoder, shape.heads, **options),
        "decoder": specs.TransformerDecoderSpec(shape.layers.decoder, shape.heads, **options),
    }
    for side, (stack, embedding) in stacks(model).items():
        spec = sides[side]
        tokens = spec.embeddings[0] if side == "encoder" else spec.embeddings
        tokens.weight = _array(embedding.tokens.weight)
        if shape.positions != "rope":
            spec.position_encodings = specs.transformer_spec.PositionEncoderSpec()
            spec.position_encodings.encodings = _array(position_table(embedding, model.length))
        if isinstance(stack.norm, nn.LayerNorm):
            _norm(spec.layer_norm, stack.norm)
        for part, block in zip(spec.layer, blocks(stack), strict=True):
            _block(part, block)
    sides["decoder"].projection.weight = _array(model.output.weight)
    whole = specs.TransformerSpec(sides["encoder"], sides["decoder"])
    whole.config.add_source_eos = True
    whole.config.layer_norm_epsilon = nn.LayerNorm(1).eps
    for part, register in ((tokenizer.source, whole.register_source_vocabulary),
                           (tokenizer.target, whole.register_target_vocabulary)):  # fmt: skip
        register(part.pieces(range(len(part))))
    whole.validate()
    whole.optimize(quantization)
    whole.save(str(folder))


def _block(spec: Any, block: Block) -> None:
    _attention(spec.self_attention, block.attention, block.norm_attention, fused="qkv")
    if block.cross is not None and block.norm_cross is not None:
        _attention(spec.attention, block.cross, block.norm_cross, fused="kv")
    forward, spec = block.feed_forward, spec.ffn
    _norm(spec.layer_norm, block.norm_feed_forward)
    _linear(spec.linear_0, forward.up if forward.gate is None else forward.gate)
    if forward.gate is not None:
        _linear(spec.linear_0_noact, forward.up)
    _linear(spec.linear_1, forward.down)


def _attention(spec: Any, attention: MultiHead, norm: nn.LayerNorm, fused: str) -> None:
    """Projections: those of `fused` as one, then that of the output; queries alone before `kv`."""
    for linear, names in zip(
        spec.linear, (*(["q"] if fused == "kv" else []), fused, "o"), strict=True
    ):
        weights, biases = zip(*(projection(attention, name) for name in names), strict=True)
        linear.weight, linear.bias = _array(torch.cat(weights)), _array(torch.cat(biases))
    _norm(spec.layer_norm, norm)


def _linear(spec: Any, layer: nn.Linear) -> None:
    spec.weight, spec.bias = _array(layer.weight), _array(layer.bias)


def _norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """A copy, since quantisation changes it in place."""
    return np.array(tensor.detach().float())
