"""The mechanisms that other packages have too, as calls of theirs beside calls of ours."""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import torch

from attnkit import mechanisms
from attnkit.bench.plan import PASSES, Candidate, Workload, candidate
from attnkit.bench.worker import Inputs, Runner

PEERS = ("performer-pytorch", "linear-attention-transformer", "nystrom-attention", "local-attention")
CAUSAL, FULL = "causal", "full"
LOCAL, PERFORMER = "local:window=128", "performer:features=128"
BOTH = PASSES[1]
NOTES = [
    "All mix given queries, keys and values: nystrom-attention is a layer, whose projections are",
    "taken out. local-attention sees exact windows, without rotation.",
    "linear-attention-transformer's causal form, in buckets of 64, leaves out each query's bucket;",
    "performer-pytorch's causal form is its own one in PyTorch, without a compiled extension.",
    "Both sides always have the same memory: new memory in each pass costs the peers more.",
]


class Contest(NamedTuple):
    """Our call and that of a peer for the same method and inputs."""

    name: str
    theirs: Callable[[], object]
    ours: Callable[[], object]


def known(labels: Sequence[str]) -> list[Candidate]:
    """Those subjects that this attnkit has."""
    return [candidate(text) for text in labels if text.partition(":")[0] in mechanisms.names()]


def contests(plain: Workload, length: int) -> Iterator[Contest]:
    """Each method that a peer has too."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of their own imports
        from linear_attention_transformer import linear_attention_transformer as linear
        from local_attention import LocalAttention
        from nystrom_attention import NystromAttention
        from performer_pytorch import FastAttention
    for sight in (FULL, CAUSAL):
        inputs = Inputs(plain._replace(causal=sight == CAUSAL), length)
        causal = sight == CAUSAL
        local = LocalAttention(
            128,
            causal=causal,
            look_forward=0 if causal else 1,
            autopad=True,
            exact_windowsize=True,
            use_rotary_pos_emb=False,
        )
        double = "linear:feature_map=softmax" if causal else "efficient"
        for label, package, call in (
            (PERFORMER, PEERS[0], FastAttention(64, nb_features=128, causal=causal)),
            (double, PEERS[1], linear.causal_linear_attn if causal else linear.linear_attn),
            (LOCAL, PEERS[3], local),
        ):
            sources = [inputs.tensor(name, 8, length, 64) for name in "qkv"]
            yield from contest(f"{label}, {sight}: {package}", label, inputs, call, sources)
    inputs = Inputs(plain._replace(causal=False), length)
    layer = NystromAttention(512, num_landmarks=64).train()
    layer.to_qkv = layer.to_out = torch.nn.Identity()
    label, sources = "nystrom:landmarks=64,conv=33", [inputs.tensor("qkv", length, 3 * 512)]
    yield from contest(f"{label}, {FULL}: {PEERS[2]}", label, inputs, layer, sources, layer.parameters())


def contest(
    name: str,
    label: str,
    inputs: Inputs,
    call: Callable[..., torch.Tensor],
    sources: Sequence[torch.Tensor],
    parameters: Iterable[torch.Tensor] = (),
) -> Iterator[Contest]:
    """A peer's call of some tensors beside ours; nothing where we have no such mechanism."""
    wanted = [*sources, *parameters]
    for one in known([label]):
        ours = partial(Runner(one, inputs).run, BOTH)
        yield Contest(name, lambda: differentiate(call(*sources), wanted), ours)


def differentiate(y: torch.Tensor, wanted: Sequence[torch.Tensor]) -> None:
    """The backward pass of a peer, as `Runner.run` does it for ours."""
    torch.autograd.grad(y, wanted, torch.ones(()).expand_as(y), allow_unused=True)
