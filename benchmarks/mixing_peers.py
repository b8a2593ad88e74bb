"""Mechanisms of other packages and those of attnkit for the same method, as calls on the same inputs."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import NamedTuple

import torch

from attnkit.bench.plan import PASSES, Workload, candidate
from attnkit.bench.worker import Inputs, Runner

PEERS = ("performer-pytorch", "linear-attention-transformer", "nystrom-attention", "local-attention")
CAUSAL, FULL = "causal", "full"
LOCAL, PERFORMER = "local:window=128", "performer:features=128"
BOTH = PASSES[1]
NOTES = """\
All compute attention of given queries, keys and values. nystrom-attention is a whole layer; its projections are
removed. local-attention uses exact windows, without rotation. The causal form of linear-attention-transformer, in
buckets of 64, leaves out the bucket of each query; that of performer-pytorch is its own in PyTorch, without a compiled
extension. Both sides always have the same memory: new memory in each pass costs the peers more."""


class Contest(NamedTuple):
    """A call of attnkit and one of a peer for the same method and inputs."""

    name: str
    theirs: Callable[[], object]
    ours: Callable[[], object]


def contests(length: int) -> Iterator[Contest]:
    """Yield each method that a peer has too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of their own imports
        from linear_attention_transformer import linear_attention_transformer as linear
        from local_attention import LocalAttention
        from nystrom_attention import NystromAttention
        from performer_pytorch import FastAttention
    for sight in (FULL, CAUSAL):
        causal = sight == CAUSAL
        inputs = Inputs(Workload(causal=causal), length)
        form = {"look_forward": 0 if causal else 1, "autopad": True, "exact_windowsize": True}
        local = LocalAttention(128, causal=causal, use_rotary_pos_emb=False, **form)
        normalized = "linear:feature_map=softmax" if causal else "efficient"
        for label, package, call in (
            (PERFORMER, PEERS[0], FastAttention(64, nb_features=128, causal=causal)),
            (normalized, PEERS[1], linear.causal_linear_attn if causal else linear.linear_attn),
            (LOCAL, PEERS[3], local),
        ):
            sources = [inputs.tensor(name, 8, length, 64) for name in "qkv"]
            yield contest(f"{label}, {sight}: {package}", inputs, call, sources)
    inputs = Inputs(Workload(causal=False), length)
    layer = NystromAttention(512, num_landmarks=64).train()
    layer.to_qkv = layer.to_out = torch.nn.Identity()
    sources = [inputs.tensor("qkv", length, 3 * 512)]
    yield contest(f"nystrom:landmarks=64,conv=33, {FULL}: {PEERS[2]}", inputs, layer, sources, layer.parameters())


def contest(
    name: str,
    inputs: Inputs,
    call: Callable[..., torch.Tensor],
    sources: list[torch.Tensor],
    parameters: Iterable[torch.Tensor] = (),
) -> Contest:
    """Return a peer's call beside that of the mechanism of attnkit with which `name` starts, up to ", "."""
    inputs_of_gradient = [*sources, *parameters]

    def theirs() -> None:
        y = call(*sources)
        torch.autograd.grad(y, inputs_of_gradient, torch.ones(()).expand_as(y), allow_unused=True)

    return Contest(name, theirs, partial(Runner(candidate(name.partition(", ")[0]), inputs).run, BOTH))
