"""The mechanisms, options and roles for which the contracts are tested."""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest

from attnkit import mechanisms
from attnkit.contract import CONTRACTS, ROLES, Contract, Role, Subject
from attnkit.contract.identities import supports_role
from attnkit.contract.subject import HEADS, WIDTH
from attnkit.layers.positions import Rotary
from attnkit.mechanisms import facts
from attnkit.recipe.score_options import LayerOptions, ScoreOptions

SHARED = (*LayerOptions._fields, *ScoreOptions._fields)
# an inverse of many landmarks is too ill-conditioned for identities
REQUIRED_WITH: dict[tuple[str, str], dict[str, Any]] = {("nystrom", "exact"): {"landmarks": 4}}
"""Options that are set together with a choice."""
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
        {"short_conv": 4, "output_norm": "rms", "exclusive": True},
    ],
    "additive": [{"hidden": 3}],
    "gaussian": [{"residual_scores": True, "entropy_scale": True, "key_norm": True}],
    "fixed-pattern": [
        {"patterns": ("start", "end", "left", "first")},
        {"patterns": ("next", "right", "last"), "residual_scores": True, "entropy_scale": True},
    ],
    "synthesizer-dense": [{"residual_scores": True, "entropy_scale": True}, {"reads": "slice", "layers": 1}],
    "synthesizer-factorized-dense": [{"factors": (50, 12), "layout": "tile"}],
    "synthesizer-factorized-random": [{"rank": 3}],
    "linear": [{"feature_map": "exp", "features": 10}, {"feature_map": "taylor", "features": 3}],
    "performer": [
        {"features": 5},
        {"features": 20, "kernel": "relu"},
        {"features": 9, "kernel": "hyperbolic", "redraw_every": 1},
    ],
    "atrous": [{"rate": 3}, {"rate": 1000, "residual_scores": True}],
    "local": [{"window": 3}, {"window": 0}, {"window": 5, "entropy_scale": True}, {"window": 3, "side": "behind"}],
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
    "gated-delta": [
        {"decay": "channel", "erase": "channel"},
        {"decay": "none", "strength": 2.0, "steps": 2, "short_conv": 4, "output_norm": "rms"},
    ],
    "parallax": [{"key_heads": 2, "residual_scores": True}, {"qk_norm": True}],
    "selective": [{"key_heads": 2, "residual_scores": True}, {"qk_norm": True, "logit_cap": 1.5}],
    "path": [{"residual_scores": "mean", "entropy_scale": True}, {"key_norm": True}],
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
"""Options to test besides the defaults and every value of options that are booleans or Literals."""
ANY_NUMBER = {("forgetting", "gate_bias"), ("sigmoid", "bias")}
"""Options that may be negative."""
OPTION_INDEPENDENT = {"worked", "saved", "same", "limits", "bias"}
"""Contracts that do not depend on options: tested with the defaults, or the first options of OPTIONS."""
NUMBERS = {"finite", "precise", "gradients", "map"}
CONTRACTS_OF_OPTION: dict[str, set[str]] = {
    "key_heads": {"map", "steps", "branches", "cached", "beams", "fast"},
    "residual_scores": {"gradients", "map", "bias"},
    "entropy_scale": {*NUMBERS, "future", "padding", "layouts", "steps", "beams", "empty", "fast"},
    "key_norm": {*NUMBERS, "padding", "steps", "cached", "empty", "fast"},
    "qk_norm": {*NUMBERS, "padding", "steps", "cached", "empty", "fast"},
    "logit_cap": {*NUMBERS, "bias"},
    "output_gate": {*NUMBERS, "batch", "steps", "cached", "beams"},
    "output_norm": {*NUMBERS, "batch", "steps", "cached", "beams", "empty"},
    "exclusive": {*NUMBERS, "batch", "steps", "empty"},
    "attention_dropout": {"map", "same"},
    "score_noise": {"map", "same"},
    **dict.fromkeys(
        # sizes of weights
        ("hidden", "features", "rank", "factors", "layers"),
        {*NUMBERS, "padding", "steps", "fast"},
    ),
    **dict.fromkeys(
        # options of scores, sinks and gates with the same effect at each position
        ("bias", "logit", "gate_bias", "lambda_init", "trainable", "combine", "projections"),
        {*NUMBERS, "rows", "padding", "steps", "cached", "empty", "fast"},
    ),
}
"""Contracts that an option can break; for options not listed, all but OPTION_INDEPENDENT."""
OF_ROTARY = {"future", "padding", "batch", "layouts", "steps"}
QUICK = {"steps", "cached", "limits", "rows", "padding"}
"""Contracts for options other than the defaults that are tested without `-m slow` too."""
ROTARY_SAMPLE = ("scaled-dot", "local", "linear", "decay", "differential", "parallax")
"""Mechanisms of each family, and those that rotate in their own way; rotary tests of others run with `-m every`."""


def options(word: str) -> Iterator[dict[str, Any]]:
    """Yield the defaults if they exist, each other value of booleans and Literals, and the OPTIONS of a mechanism."""
    known = facts(word).options
    if not any(option.required for option in known.values()):
        yield {}
        for name, option in known.items():
            literals = get_args(option.type) if get_origin(option.type) is Literal else ()
            for value in (False, True) if option.type is bool else literals:
                if name not in SHARED and value != option.default:
                    yield {name: value} | REQUIRED_WITH.get((word, str(value)), {})
    yield from OPTIONS.get(word, [])


class Case(NamedTuple):
    """A mechanism with options in a role, contracts to test, and marks of the test."""

    subject: Subject
    contracts: list[Contract]
    marks: tuple[pytest.MarkDecorator, ...]


def cases() -> Iterator[Case]:
    """Yield every mechanism in each role, with each of its options and the contracts that these can break.

    Tests of the defaults, and of the contracts QUICK of other options, are not slow. Tests of further contracts are
    slow in the last role that an option supports, and run with `-m every` in other roles.
    """
    everything = {contract.name for contract in CONTRACTS}
    for word in mechanisms.names():
        default, *others = options(word)
        for role in ROLES:
            yield from _split(named_subject(word, role, default), everything, everything)
        if "rope" in facts(word).positions:
            for role in ROLES[:2]:
                rotary = named_subject(word, role, default | {"rotary": Rotary(WIDTH // HEADS)})
                yield from _split(rotary, OF_ROTARY, {"steps"}, role == "encoder" or word not in ROTARY_SAMPLE)
        for chosen in others:
            able = [role for role in ROLES if supports_role(named_subject(word, role, chosen))]
            for role in ROLES:
                subject, rare = named_subject(word, role, chosen), role != able[-1]
                yield from _split(subject, breakable(word, chosen), QUICK, rare)


def _split(subject: Subject, names: set[str], quick: set[str], rare: bool = False) -> Iterator[Case]:
    """Yield a case that is not slow, with the contracts of `quick`, and a slow one with the others."""
    able = supports_role(subject)
    kept = [c for c in CONTRACTS if c.name in names and (c.name == "limits" or able and subject.role in c.roles)]
    slow = (pytest.mark.slow, pytest.mark.every) if rare else (pytest.mark.slow,)
    for is_quick, marks in ((True, ()), (False, slow)):
        if part := [contract for contract in kept if is_quick == (contract.name in quick)]:
            yield Case(subject, part, marks)


def breakable(word: str, chosen: dict[str, Any]) -> set[str]:
    """Return the names of the contracts that these options can break."""
    known, names = facts(word), set[str]()
    others = {contract.name for contract in CONTRACTS} - OPTION_INDEPENDENT
    for name in chosen:
        names |= CONTRACTS_OF_OPTION.get(name, others)
        if name in known.facts_with or name in known.given or name in known.ahead:
            names.add("limits")
        if name == known.composite:
            names |= {"limits", "bias"}
    return names


def named_subject(word: str, role: Role, chosen: dict[str, Any]) -> Subject:
    """Return a subject with its options in its name."""
    shown = ",".join(f"{name}={value}" for name, value in chosen.items())
    return Subject.of(word, role, chosen, name=f"{word}[{shown}]-{role}")
