"""Checks of whether the attention mechanisms support what the recipe requires of each role."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attnkit.errors import UsageError
from attnkit.recipe import mechanism_registry
from attnkit.recipe.issues import Issue
from attnkit.recipe.mechanism_file import MechanismSpec
from attnkit.recipe.schema import AttentionConfig, Recipe
from attnkit.recipe.score_options import score_options

ATTENTION_POSITIONS = ("rope", "alibi", "relative")
"""Position schemes that act inside self-attention, so that the mechanism must support them."""
MAX_LISTED = 12
"""Maximum number of mechanisms listed in a message."""


OptionCheck = Callable[[Recipe, str, Mapping[str, Any]], None]
"""Function that builds the attention layer of a role with given options and raises UsageError if they are refused.
Higher layers pass it in, because it needs torch."""


def window_issue(state: str, by_distance: bool) -> str:
    """Return why a mechanism with this `state` cannot attend to disjoint caches of several contexts, or "" if it
    can."""
    if state == "constant":
        return "its attention keeps sums over all tokens, from which the begin token of each window cannot be removed"
    if by_distance:
        return "its attention depends on distances between keys, and windows share their positions"
    return ""


def _windows(recipe: Recipe) -> Iterator[Issue]:
    """Yield an issue if the method window is used and some layer cannot attend to disjoint caches."""
    attention = recipe.model.attention.decoder
    uses_window = recipe.task == "question-answering" and "window" in recipe.contexts.methods
    if not uses_window or recipe.model.shape != "decoder":
        return
    for part in mechanism_registry.layer_schedule(attention.name, attention.options()):
        facts = mechanism_registry.resolve_capabilities(*part)
        if why := window_issue(facts.state, facts.by_distance):
            text = f"window does not work with {facts.word}: {why}; remove window, or use"
            text += f" `model.attention: {AttentionConfig().name}`"
            yield text, "contexts.methods", "model.attention"
            return


def ranks_issue(recipe: Recipe, ranks: int) -> str | None:
    """Return why `ranks` processes cannot train a model of this recipe together, or None if they can."""
    train = recipe.train
    if ranks > 1 and train.parallel == "none":
        return f"train.parallel: none, but {ranks} processes train together; set ddp or fsdp"
    if train.compile:
        return "train.compile: works only in one process; set it to false"
    if train.parallel == "fsdp" and train.precision == "fp16":
        return "train.precision: fp16 does not work with train.parallel=fsdp; use bf16"
    return None


def length_issue(recipe: Recipe, length: int) -> str:
    """Return why a model cannot read texts of `length` tokens, or "" if it can."""
    model, max_length = recipe.model, recipe.data.max_length
    generated = recipe.task in ("recall", "tagging")  # rows that must fit data.max_length
    if length <= max_length or generated:
        return ""
    if model.positions == "learned":
        return (
            f"learned positions end at data.max_length ({max_length}), so the model cannot read {length} tokens; "
            f"use lengths up to {max_length}, or sinusoidal, rope, alibi or relative "
            "positions"
        )
    for attention in (getattr(model.attention, role) for role in model.places):
        limit = mechanism_registry.resolve_capabilities(attention.name, attention.options()).limit
        if limit is not None and (isinstance(limit, str) or limit < length + 1):
            reach = f"data.max_length ({max_length})" if isinstance(limit, str) else limit
            return (
                f"{attention.name} has weights for {reach} positions, so the model cannot read {length} "
                f"tokens; use lengths up to {max_length}, or {AttentionConfig().name}"
            )
    return ""


def issues_of(recipe: Recipe, option_check: OptionCheck | None = None) -> Iterator[Issue]:
    """Yield an issue for each role that its mechanism does not support, and for windows and lengths out of reach.

    Option values that only the mechanism itself can judge are checked by `option_check`, if it is given.
    """
    fits = True
    for role in recipe.model.places:
        attention = getattr(recipe.model.attention, role)
        options, problems = attention.options(), []
        composite = mechanism_registry.facts(attention.name).composite
        try:
            facts = mechanism_registry.resolve_capabilities(attention.name, options)
            problems = [*_limits(facts, role, recipe)]
            uneven = recipe.model.width % recipe.model.heads  # reported by `rules`
            if options and option_check and not problems and not uneven:
                option_check(recipe, role, options)
        except UsageError as error:
            blamed = (name for name in options if name in str(error))
            problems, fits = [(str(error), next(blamed, composite))], False
        for text, option in problems:
            place = f"model.attention.{role}"
            yield text, *([f"{place}.{option}"] if option in options else []), place
    if fits:
        yield from _windows(recipe)
        if why := length_issue(recipe, max(recipe.eval.lengths, default=0)):
            yield why, "eval.lengths"


def _limits(facts: MechanismSpec, role: str, recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield each conflict with the mechanism's facts, and the option to blame or ""."""
    model, scheme, default = recipe.model, recipe.model.positions, AttentionConfig().name
    options = getattr(model.attention, role).options()
    why = f" ({facts.why})" if facts.why else ""
    if role == "cross" and not facts.cross:
        text = f"{facts.word} cannot be cross attention{why}"
        yield f"{text}; name a mechanism for each place, with `cross: {default}`", ""
    if role == "encoder" and not facts.encoder:
        text = f"{facts.word} cannot be encoder attention{why}; use {facts.word} in the decoder only,"
        yield f"{text} and {default} or another bidirectional mechanism in the encoder", ""
    if role == "decoder" and not facts.causal:
        text = f"{facts.word} cannot be decoder attention: it cannot hide the future{why}"
        yield f"{text}; causal mechanisms: {_names_with(lambda f: f.causal)}", ""
    if role != "cross" and scheme in ATTENTION_POSITIONS and scheme not in facts.positions:
        text = f"{facts.word} does not work with `model.positions: {scheme}`{why}; use sinusoidal"
        words = _names_with(lambda other: scheme in other.positions)
        yield f"{text} or learned positions; {scheme} works with {words}", ""
    if isinstance(facts.limit, int) and recipe.data.max_length + 1 > facts.limit:
        text = f"{facts.word} reaches {facts.limit} positions, begin token included"
        yield f"{text}; set data.max_length to at most {facts.limit - 1}", ""
    for name in ("key_norm", "qk_norm"):
        try:
            score_options({name: options.get(name, False)}, facts.uses)
        except UsageError as error:
            yield f"{facts.word}: {error}", name
    layers = model.cross_layers if role == "cross" else getattr(model.layers, role)
    if facts.layered and (parts := len(options[facts.composite])) > layers:
        text = f"{facts.word} has more parts ({parts}) than there are layers ({layers})"
        yield f"{text}; remove parts", facts.composite


def _names_with(condition: Callable[[MechanismSpec], bool]) -> str:
    """Return the names of the first `MAX_LISTED` mechanisms that satisfy a condition."""
    specs = map(mechanism_registry.facts, mechanism_registry.names())
    names = [facts.word for facts in specs if condition(facts)]
    return ", ".join(names[:MAX_LISTED]) + ", ..." * (len(names) > MAX_LISTED)
