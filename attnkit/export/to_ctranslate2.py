"""Export of encoder-decoders to CTranslate2, by its own model specifications."""

import importlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnkit.data.tokenizer import BOS, EOS, PAD, UNK, Tokenizer
from attnkit.errors import DataError, UnavailableError
from attnkit.export import standalone_tokenizer
from attnkit.export.parity import Reader, outputs
from attnkit.export.projections import position_table, projection, stacks
from attnkit.recipe import Recipe
from attnkit.recipe.schema import SearchConfig
from attnkit.runs import Run
from attnkit.runs.layout import MODEL
from attnkit.search import Hypothesis
from attnkit.storage.cache import cache_dir, read_or_build

ACTIVATIONS = {"relu": "RELU", "gelu": "GELU", "silu": "SWISH", "swiglu": "SWISH", "geglu": "GELU"}
"""Members of `ctranslate2.specs.Activation` by the names in recipes."""
NO_PENALTY = 1e-9
"""Length penalty in place of 0, for which CTranslate2 has another stopping rule."""


class CTranslate2Model:
    """A converted model as an `Engine` of `attnkit.search`."""

    shape = "encoder-decoder"

    def __init__(self, folder: Path, tokenizer: Tokenizer, limit: int | None, device: str) -> None:
        """Open a converted model; `limit` is the number of learned positions.

        Raises DataError if the files are damaged, UnavailableError if CTranslate2 or the device is not available.
        """
        kind, _, index = device.partition(":")
        library = import_engine("ctranslate2")
        if kind != "cpu" and (kind != "cuda" or not library.get_cuda_device_count()):
            raise UnavailableError(f"ctranslate2 cannot compute on {device} here; use --device cpu")
        options = {"device_index": int(index or 0), "intra_threads": torch.get_num_threads()}
        try:
            self.translator = library.Translator(str(folder), kind, **options)
        except (RuntimeError, ValueError) as error:
            raise DataError(f"{folder}: ctranslate2 cannot open it: {error}") from error
        self.limit = limit
        self.source, self.target = (vocabulary.spelled(range(len(vocabulary))) for vocabulary in tokenizer)
        self.ids = {piece: id_ for id_, piece in enumerate(self.target)}

    def search_all(
        self, sources: Sequence[Sequence[int]], spec: SearchConfig, *, lines: Sequence[int]
    ) -> list[list[Hypothesis]]:
        """See `Engine.search_all`; `lines` is ignored."""
        beams = spec.beam if spec.method == "beam" else 1
        results = self.translator.translate_batch(
            [[self.source[id_] for id_ in ids[:-1]] for ids in sources],  # without EOS, which the engine adds
            beam_size=beams,
            num_hypotheses=spec.n_best,
            length_penalty=spec.length_penalty or NO_PENALTY,
            max_decoding_length=min(spec.max_length, self.limit or spec.max_length),
            min_decoding_length=spec.min_length,
            no_repeat_ngram_size=spec.no_repeat_ngram,
            suppress_sequences=[[self.target[id_]] for id_ in (PAD, UNK, BOS)],
            max_input_length=0,
            max_batch_size=max(1, spec.batch_tokens // beams),
            batch_type="tokens",
            return_end_token=True,
            return_scores=True,
        )
        return [
            [self._hypothesis(*pair, spec) for pair in zip(result.hypotheses, result.scores, strict=True)]
            for result in results
        ]

    def _hypothesis(self, tokens: list[str], score: float, spec: SearchConfig) -> Hypothesis:
        ended = tokens[-1:] == [self.target[EOS]]
        ids = [self.ids[token] for token in tokens[: len(tokens) - ended]]
        return Hypothesis(ids, score, score * len(tokens) ** spec.length_penalty, ended)

    def log_probs(self, source: Int[Tensor, "B S"], ids: Int[Tensor, "B T"]) -> Float[Tensor, " n"]:
        """Compute the log-probabilities of all target tokens after BOS, EOS included, concatenated."""
        sources, targets = (
            [[pieces[id_] for id_ in row.tolist() if id_ not in (PAD, BOS, EOS)] for row in rows]
            for pieces, rows in ((self.source, source), (self.target, ids))
        )
        results = self.translator.score_batch(sources, targets, max_input_length=0)
        return torch.tensor([value for result in results for value in result.log_probs])


def import_engine(module: str) -> Any:
    """Import a module of CTranslate2; raises UnavailableError if the installation is broken."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise UnavailableError(f"ctranslate2 cannot be imported: {error}") from error


def open_run(run: Run, device: str) -> CTranslate2Model:
    """Open a run, converted into the cache once; raises like `Run.model`, `CTranslate2Model` and `read_or_build`."""
    run.require_finished()
    tokenizer, recipe = run.tokenizer(), run.recipe
    run.require_recorded(MODEL)
    limit = recipe.data.max_length + 1 if recipe.model.positions == "learned" else None

    def build(folder: Path) -> None:
        write(run.model(), tokenizer, recipe, folder)

    cached = cache_dir() / "ctranslate2" / run.weights_sha256
    return read_or_build(cached, lambda path: CTranslate2Model(path, tokenizer, limit, device), build)


def write(model: Any, tokenizer: Tokenizer, recipe: Recipe, folder: Path, weights: str | None = None) -> Reader:
    """Convert into an empty folder and open it; `weights` is a quantization. Raises like `CTranslate2Model`."""
    standalone_tokenizer.write(tokenizer, folder)
    specs = import_engine("ctranslate2.specs")
    config, eps = recipe.model, nn.LayerNorm(1).eps
    options: dict[str, Any] = {
        "pre_norm": config.norm == "pre",
        "activation": specs.Activation[ACTIVATIONS[config.activation]],
        "ffn_glu": config.activation.endswith("glu"),
    }
    if rope := config.positions == "rope":
        options |= {"rotary_dim": 0, "rotary_interleave": False}
    encoder = specs.TransformerEncoderSpec(config.layers.encoder, config.heads, **options)
    decoder = specs.TransformerDecoderSpec(config.layers.decoder, config.heads, **options)
    for side, stack, embedding in stacks(model):
        spec = encoder if side == "encoder" else decoder
        tokens = spec.embeddings[0] if side == "encoder" else spec.embeddings
        tokens.weight = _array(embedding.tokens.weight)
        spec.scale_embeddings = embedding.scale != 1  # otherwise the scale is sqrt(width)
        if not rope:
            spec.position_encodings.encodings = _array(position_table(embedding, model.length))
        if isinstance(stack.norm, nn.LayerNorm):
            _norm(spec.layer_norm, stack.norm)
        for layer_spec, block in zip(spec.layer, stack.blocks, strict=True):
            _block(layer_spec, block)
    decoder.projection.weight = _array(model.output.weight)
    full = specs.TransformerSpec(encoder, decoder)
    full.config.add_source_eos, full.config.layer_norm_epsilon = True, eps
    source, target = (vocabulary.spelled(range(len(vocabulary))) for vocabulary in tokenizer)
    full.register_source_vocabulary(source)
    full.register_target_vocabulary(target)
    for role, id_ in (("unk", UNK), ("bos", BOS), ("decoder_start", BOS), ("eos", EOS)):
        setattr(full.config, f"{role}_token", target[id_])
    full.validate()
    full.optimize(weights)
    full.save(str(folder))
    engine = CTranslate2Model(folder, tokenizer, model.limit, "cpu")
    generate = partial(outputs, engine, tokenizer)
    encode = standalone_tokenizer.encoder(folder, recipe)
    return Reader(generate, log_probs=engine.log_probs, encode=encode, bans=False, exact=weights is None)


def _block(spec: Any, block: Any) -> None:
    layers = [
        (spec.self_attention, block.attention, block.norm_attention, ("qkv", "o")),
        (spec.attention, block.cross, block.norm_cross, ("q", "kv", "o")) if block.cross is not None else None,
    ]
    for attention_spec, attention, norm, fused in filter(None, layers):
        _norm(attention_spec.layer_norm, norm)
        for linear, names in zip(attention_spec.linear, fused, strict=True):
            pairs = zip(*(projection(attention, name) for name in names), strict=True)
            linear.weight, linear.bias = (_array(torch.cat(tensors)) for tensors in pairs)
    feed_forward = block.feed_forward
    _norm(spec.ffn.layer_norm, block.norm_feed_forward)
    linears = [(spec.ffn.linear_0, feed_forward.gate or feed_forward.up), (spec.ffn.linear_1, feed_forward.down)]
    if feed_forward.gate is not None:
        linears.append((spec.ffn.linear_0_noact, feed_forward.up))
    for linear, layer in linears:
        linear.weight, linear.bias = _array(layer.weight), _array(layer.bias)


def _norm(spec: Any, norm: nn.LayerNorm) -> None:
    spec.gamma, spec.beta = _array(norm.weight), _array(norm.bias)


def _array(tensor: Tensor) -> np.ndarray[Any, Any]:
    """Return a copy, since quantization modifies the array in place."""
    return tensor.detach().numpy().copy()
