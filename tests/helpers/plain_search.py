"""Small random models, and plain Python searches over them without a cache."""

import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from attnkit.data.tokenizer import BOS, EOS, PAD, UNK
from attnkit.models.base import Decode, Model
from attnkit.recipe.schema import SearchConfig

FORBIDDEN = (PAD, UNK, BOS)


class ToyModel(Model):
    """A recurrent model, h' = tanh(A h + token + source): all later logits depend on every part of the state.

    `calls` are the numbers of rows and of sources in each call.
    """

    shape = "encoder-decoder"

    def __init__(self, size: int = 9, seed: int = 0, sharpness: float = 2.0) -> None:
        super().__init__()
        width = 8
        generator = torch.Generator().manual_seed(seed)

        def table(*shape: int) -> Tensor:
            return torch.randn(shape, generator=generator, dtype=torch.float64)

        self.mix, self.embed = table(width, width) / 3, table(size, width)
        self.output = nn.Linear(width, size, bias=False, dtype=torch.float64)
        with torch.no_grad():
            self.output.weight.copy_(sharpness * table(size, width))
        self.calls: list[tuple[int, int]] = []

    def start(self, source: Tensor, rows: int | None = None) -> Decode:
        memory = (self.embed[source] * (source != PAD)[..., None]).sum(1)
        return Decode((memory.new_zeros(memory.shape),), (memory,))

    def advance(self, ids: Tensor, state: Decode) -> tuple[Tensor, Decode]:
        (hidden,), (memory,) = state
        assert len(hidden) == len(ids)
        self.calls.append((len(ids), len(memory)))
        memory = memory.repeat_interleave(len(ids) // len(memory), 0)
        outputs = []
        for column in ids.T:
            hidden = torch.tanh(hidden @ self.mix + self.embed[column] + memory)
            outputs.append(hidden)
        return torch.stack(outputs, 1), Decode((hidden,), state.fixed)

    def hidden(self, source: Tensor, ids: Tensor) -> Tensor:
        return self.advance(ids, self.start(source))[0]


class FixedLogits(Model):
    """A model with the same logits at every step, for all inputs."""

    shape = "encoder-decoder"

    def __init__(self, logits: list[float]) -> None:
        super().__init__()
        self.output = nn.Linear(1, len(logits), bias=False)
        with torch.no_grad():
            self.output.weight.copy_(torch.tensor(logits)[:, None])

    def start(self, source: Tensor, rows: int | None = None) -> Decode:
        return Decode((), ())

    def advance(self, ids: Tensor, state: Decode) -> tuple[Tensor, Decode]:
        return torch.ones(*ids.shape, 1), state

    def hidden(self, source: Tensor, ids: Tensor) -> Tensor:
        return self.advance(ids, self.start(source))[0]


def random_sources(rows: int, size: int = 9, seed: int = 0, longest: int = 5) -> Tensor:
    """Return random source rows of different lengths that end with EOS, padded on the right."""
    random = np.random.default_rng(seed)
    padded = torch.full((rows, longest + 1), PAD)
    for row in padded:
        ids = random.integers(4, size, random.integers(1, longest + 1))
        row[: len(ids) + 1] = torch.tensor([*ids, EOS])
    return padded


def waiting_times(seed: int, lines: Sequence[int], draws: int, length: int, size: int) -> np.ndarray:
    """Return the exponential waiting times of sampling [lines, draws, length, size]."""
    generators = (np.random.Generator(np.random.PCG64((seed, line, draw))) for line in lines for draw in range(draws))
    times = [generator.standard_exponential((length, size), dtype=np.float32) for generator in generators]
    return np.array(times).reshape(len(lines), draws, length, size)


def next_logprobs(model: Model, source: Tensor, prefix: list[int]) -> list[float]:
    """Return the log-probabilities after a prefix, in a pass over the whole prefix."""
    with torch.no_grad():
        logits = model(source[None], torch.tensor([[BOS, *prefix]]))[0, -1]
    return logits.log_softmax(-1).tolist()


def repeats(prefix: list[int], token: int, order: int) -> bool:
    """Return whether a token would repeat an n-gram of the prefix."""
    if order == 0 or len(prefix) < order:
        return False
    grams = {tuple(prefix[i : i + order]) for i in range(len(prefix) - order + 1)}
    return tuple([*prefix, token][-order:]) in grams


def allowed(scores: list[float], prefix: list[int], spec: SearchConfig) -> dict[int, float]:
    """Return the tokens that may follow a prefix, with their log-probabilities."""
    kept = {
        token: value
        for token, value in enumerate(scores)
        if token not in FORBIDDEN and not repeats(prefix, token, spec.no_repeat_ngram)
    }
    if len(prefix) < spec.min_length and len(kept) > 1:
        del kept[EOS]
    return kept


def normalized(logprob: float, length: int, spec: SearchConfig) -> float:
    return logprob / length**spec.length_penalty


def exhaustive(model: Model, source: Tensor, spec: SearchConfig) -> list[tuple[list[int], float]]:
    """Return all outputs of at most spec.max_length tokens: complete ones first, each group sorted by score."""
    tokens = [t for t in range(model.output.out_features) if t not in (*FORBIDDEN, EOS)]
    complete, cut = [], []
    for length in range(spec.max_length + 1):
        for ids in itertools.product(tokens, repeat=length):
            target = [*ids, EOS][: spec.max_length]
            with torch.no_grad():
                logits = model(source[None], torch.tensor([[BOS, *target[:-1]]]))[0]
            scores = logits.log_softmax(-1)[range(len(target)), target]
            output = (list(ids), normalized(scores.sum().item(), len(target), spec))
            (complete if length < spec.max_length else cut).append(output)
    return [output for group in (complete, cut) for output in sorted(group, key=lambda output: -output[1])]


def plain_beam(model: Model, source: Tensor, spec: SearchConfig) -> list[tuple[list[int], float, bool]]:
    """Return the results of a beam search that stops only when K hypotheses are complete."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for length in range(1, spec.max_length + 1):
        candidates = [
            (logprob + value, [*prefix, token])
            for logprob, prefix in live
            for token, value in allowed(next_logprobs(model, source, prefix), prefix, spec).items()
        ]
        candidates = sorted(candidates, key=lambda c: -c[0])[: 2 * spec.beam]
        ended = [c for c in candidates[: spec.beam] if c[1][-1] == EOS]
        finished += [(normalized(logprob, length, spec), ids[:-1]) for logprob, ids in ended]
        live = [c for c in candidates if c[1][-1] != EOS][: spec.beam]
        if len(finished) >= spec.beam:
            live = []
        if not live:
            break
    cut = [(ids, normalized(logprob, spec.max_length, spec), False) for logprob, ids in live]
    complete = [(ids, score, True) for score, ids in sorted(finished, key=lambda f: -f[0])]
    return (complete + cut)[: spec.n_best]


def plain_sample(model: Model, source: Tensor, spec: SearchConfig, times: np.ndarray) -> tuple[list[int], float, bool]:
    """Sample once: select the token with the shortest waiting time [length, size] divided by its probability."""
    ids: list[int] = []
    total = 0.0
    for step in times[: spec.max_length]:
        scores = next_logprobs(model, source, ids)
        kept = allowed(scores, ids, spec)
        best = max(kept.values())
        weights = {t: math.exp((v - best) / spec.temperature) for t, v in kept.items()}
        ranked = sorted(weights, key=lambda t: (-weights[t], t))
        if spec.top_k:
            ranked = ranked[: spec.top_k]
        if spec.top_p < 1:
            mass = sum(weights[t] for t in ranked)
            while len(ranked) > 1 and sum(weights[t] for t in ranked[:-1]) >= spec.top_p * mass:
                ranked.pop()
        token = min(ranked, key=lambda t: step[t] / weights[t] if weights[t] else math.inf)
        total += scores[token]
        if token == EOS:
            return ids, normalized(total, len(ids) + 1, spec), True
        ids.append(token)
    return ids, normalized(total, len(ids), spec), False
