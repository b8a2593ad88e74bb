"""Which mechanisms, options and roles the contracts are run over."""

from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from attnkit import mechanisms
from attnkit.contract import ROLES, Role, Subject
from attnkit.contract.subject import HEADS, WIDTH
from attnkit.layers.positions import Rotary
from attnkit.mechanisms import facts
from attnkit.recipe.mechanism_file import annotation
from attnkit.recipe.score_options import LayerOptions, ScoreOptions

SHARED = (*LayerOptions._fields, *ScoreOptions._fields)
TOGETHER: dict[tuple[str, str], dict[str, Any]] = {
    # an inverse of many landmarks is too ill-conditioned for identities
    ("nystrom", "exact"): {"landmarks": 4},
}
"""What else is set beside a choice."""
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "dot": [{"key_heads": 2}],
    "scaled-dot": [
        {"key_heads": 2},
        {"key_heads": 1, "key_norm": True},
        {"residual_scores": True, "entropy_scale": True},
        {"residual_scores": "mean", "key_norm": True},
        {"entropy_scale": {"base": 10, "floor": 4}},
        {"attention_dropout": 0.2, "score_noise": 0.3},
        {"qk_norm": True, "logit_cap": 1.5, "output_gate": "element"},
    ],
    "additive": [{"hidden": 3}],
    "gaussian": [{"residual_scores": True, "entropy_scale": True, "key_norm": True}],
    "fixed-pattern": [
        {"patterns": ("start", "end", "left", "first")},
        {"patterns": ("next", "right", "last"), "residual_scores": True, "entropy_scale": True},
    ],
    "synthesizer-dense": [
        {"residual_scores": True, "entropy_scale": True},
        {"reads": "slice", "layers": 1},
    ],
    "synthesizer-factorized-dense": [{"factors": (50, 12), "layout": "tile"}],
    "synthesizer-factorized-random": [{"rank": 3}],
    "linear": [{"feature_map": "exp", "features": 10}, {"feature_map": "taylor", "features": 3}],
    "performer": [
        {"features": 5},
        {"features": 20, "kernel": "relu"},
        {"features": 9, "kernel": "hyperbolic", "redraw_every": 1},
    ],
    "atrous": [{"rate": 3}, {"rate": 1000, "residual_scores": True}],
    "local": [{"window": 3}, {"window": 0}, {"window": 5, "entropy_scale": True}],
    "sparse": [{"rate": 3}, {"rate": 8, "residual_scores": "mean", "key_norm": True}],
    "nystrom": [{"landmarks": 5}, {"landmarks": 7, "conv": 3}, {"landmarks": 3, "pinv": "none"}],
    "linformer": [{"rank": 3}],
    "sigmoid": [{"bias": "learned", "key_heads": 2}, {"bias": -1.5, "residual_scores": True}],
    "entmax": [
        {"alpha": "learned", "key_heads": 2},
        {"alpha": 2.0, "entropy_scale": True},
        {"alpha": 1.25, "residual_scores": "mean"},
        {"alpha": 3.0},
        {"alpha": 1.0},
    ],
    "sink": [
        {"window": 3, "key_heads": 2},
        {"window": 70, "keep": 2},
        {"window": 5, "keep": 9, "residual_scores": True},
        {"window": 2, "keep": 0, "logit": "zero"},
    ],
    "differential": [
        {"lambda_init": 0.5, "key_heads": 2, "residual_scores": True, "attention_dropout": 0.2},
        {"qk_norm": True, "entropy_scale": True},
    ],
    "stick-breaking": [{"include_self": True, "key_heads": 2, "residual_scores": True}],
    "forgetting": [{"gate_bias": 3.0, "key_heads": 2}, {"residual_scores": "mean"}],
    "decay": [{"gate": "channel", "output_gate": "head"}],
    "gated-delta": [{"decay": "channel", "erase": "channel"}],
    "block-topk": [
        {"block": 4, "blocks": 2},
        {"block": 7, "blocks": 1, "key_heads": 2, "residual_scores": True},
        {"block": 300, "blocks": 1},
        {"block": 5, "blocks": 0},
    ],
    "dynamic-conv": [{"window": 1}, {"window": 4}, {"window": 100, "shared": True}],
    "interleaved": [{"parts": ("gated-delta", "scaled-dot")}, {"parts": ("gaussian", "linear")}],
    "mixture": [
        {"parts": ("scaled-dot", "gaussian")},
        {"parts": ("dot", "additive", "gaussian"), "combine": "sum", "key_norm": True},
        {"parts": ("synthesizer-random", "synthesizer-dense"), "combine": "sigmoid"},
        {"parts": ("synthesizer-dense", "gaussian", "dot"), "projections": "own"},
        {"parts": ({"name": "synthesizer-dense", "reads": "slice"}, "dot")},
        {
            "parts": ("scaled-dot", {"name": "synthesizer-factorized-random", "rank": 3}),
            "residual_scores": "mean",
            "entropy_scale": True,
        },
    ],
}
"""Beside the defaults and every other value of options that are true or false or one of a few."""


def options(word: str) -> Iterator[dict[str, Any]]:
    """The defaults where they exist, each other value of plain choices, and those of the table."""
    known = facts(word).options
    if not any(option.required for option in known.values()):
        yield {}
        for name, option in known.items():
            for value in _choices(annotation(option.annotation)):
                if name not in SHARED and value != option.default:
                    yield {name: value} | TOGETHER.get((word, str(value)), {})
    yield from OPTIONS.get(word, [])


def turning() -> list[Subject]:
    """Every mechanism that takes rotary positions, with them."""
    return [
        named(word, role, next(options(word)) | {"rotary": Rotary(WIDTH // HEADS)})
        for word in mechanisms.names()
        if "rope" in facts(word).positions
        for role in ROLES
        if {"encoder": facts(word).encoder, "decoder": facts(word).causal}.get(role)
    ]


def _choices(hint: Any) -> tuple[Any, ...]:
    if hint is bool:
        return (False, True)
    return get_args(hint) if get_origin(hint) is Literal else ()


def subjects() -> list[Subject]:
    """Every mechanism with each of its options in each role, possible or not."""
    return [
        named(word, role, chosen)
        for word in mechanisms.names()
        for chosen in options(word)
        for role in ROLES
    ]


def named(word: str, role: Role, chosen: dict[str, Any]) -> Subject:
    """A subject whose name shows its options."""
    shown = ",".join(f"{name}={value}" for name, value in chosen.items())
    return Subject.of(word, role, chosen, name=f"{word}[{shown}]-{role}")
