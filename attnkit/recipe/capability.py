"""Checks of whether the attention mechanisms support what the recipe requires of each role."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attnkit.errors import UsageError
from attnkit.recipe import mechanism_registry
from attnkit.recipe.issues import Issue
from attnkit.recipe.mechanism_file import MechanismSpec
from attnkit.recipe.schema import AttentionConfig, Recipe
from attnkit.recipe.score_options import score_options

ROTATING = ("rope", "alibi", "relative")
"""Position schemes that act inside self-attention, so that the mechanism must support them."""
MANY = 12
"""Maximum number of mechanisms listed in a message."""


OptionCheck = Callable[[Recipe, str, Mapping[str, Any]], None]
"""Function that builds the attention layer of a role with given options and raises UsageError if they are refused.
Higher layers pass it in, because it needs torch."""


def window_issue(state: str, by_distance: bool) -> str:
    """Return why a mechanism with this `state` cannot attend to disjoint caches of several contexts, or "" if it
    can."""
    if state == "constant":
        return (
            "its attention keeps sums of what it has read, from which the begin token of each "
            "window cannot be taken out again"
        )
    if by_distance:
        return "its attention depends on distances between keys, and windows share their positions"
    return ""


def _windows(recipe: Recipe) -> Iterator[Issue]:
    """Yield an issue if the method window is used and some layer cannot attend to disjoint caches."""
    chosen = recipe.model.attention.decoder
    asked = recipe.task == "question-answering" and "window" in recipe.contexts.methods
    if not asked or recipe.model.shape != "decoder":
        return
    for part in mechanism_registry.layer_schedule(chosen.name, chosen.options()):
        facts = mechanism_registry.resolve_capabilities(*part)
        if why := window_issue(facts.state, facts.by_distance):
            text = f"window is not for a model with {facts.word}: {why}; remove it, or use"
            text += f" `model.attention: {AttentionConfig().name}`"
            yield text, "contexts.methods", "model.attention"
            return


def ranks_issue(recipe: Recipe, ranks: int) -> str | None:
    """Return why `ranks` processes cannot train a model of this recipe together, or None if they can."""
    train = recipe.train
    if ranks > 1 and train.parallel == "none":
        return f"train.parallel: none, but {ranks} processes are to train: set ddp or fsdp"
    if train.compile:
        return "train.compile: is for training in one process; set it to false"
    if train.parallel == "fsdp" and train.precision == "fp16":
        return "train.precision: fp16 is not for train.parallel=fsdp; use bf16"
    return None


def length_issue(recipe: Recipe, length: int) -> str:
    """Return why a model cannot read texts of `length` tokens, or "" if it can."""
    model, trained = recipe.model, recipe.data.max_length
    made = recipe.task in ("recall", "tagging")  # rows that must fit data.max_length
    if length <= trained or made:
        return ""
    if model.positions == "learned":
        return (
            f"learned positions end at data.max_length ({trained}), so no text of {length} tokens "
            f"can be read; use lengths up to {trained}, or sinusoidal, rope, alibi or relative "
            "positions"
        )
    for attention in (getattr(model.attention, role) for role in model.places):
        limit = mechanism_registry.resolve_capabilities(attention.name, attention.options()).limit
        if limit is not None and (isinstance(limit, str) or limit < length + 1):
            most = f"data.max_length ({trained})" if isinstance(limit, str) else limit
            return (
                f"{attention.name} has weights for {most} positions only, so no text of {length} "
                f"tokens can be read; use lengths up to {trained}, or {AttentionConfig().name}"
            )
    return ""


def issues_of(recipe: Recipe, option_check: OptionCheck | None = None) -> Iterator[Issue]:
    """Yield an issue for each role that its mechanism does not support, and for windows and lengths out of reach.

    Option values that only the mechanism itself can judge are checked by `option_check`, if it is given.
    """
    fits = True
    for role in recipe.model.places:
        chosen = getattr(recipe.model.attention, role)
        options, found = chosen.options(), []
        composite = mechanism_registry.facts(chosen.name).composite
        try:
            facts = mechanism_registry.resolve_capabilities(chosen.name, options)
            found = [*_limits(facts, role, recipe)]
            uneven = recipe.model.width % recipe.model.heads  # reported by `rules`
            if options and option_check and not found and not uneven:
                option_check(recipe, role, options)
        except UsageError as error:
            named = (name for name in options if name in str(error))
            found, fits = [(str(error), next(named, composite))], False
        for text, option in found:
            place = f"model.attention.{role}"
            yield text, *([f"{place}.{option}"] if option in options else []), place
    if fits:
        yield from _windows(recipe)
        if why := length_issue(recipe, max(recipe.eval.lengths, default=0)):
            yield why, "eval.lengths"


def _limits(facts: MechanismSpec, role: str, recipe: Recipe) -> Iterator[tuple[str, str]]:
    """Yield each conflict with the mechanism's facts, and the option to blame or ""."""
    model, scheme, plain = recipe.model, recipe.model.positions, AttentionConfig().name
    options = getattr(model.attention, role).options()
    why = f" ({facts.why})" if facts.why else ""
    if role == "cross" and not facts.cross:
        text = f"{facts.word} cannot be cross attention{why}"
        yield f"{text}; name a mechanism for each place, with `cross: {plain}`", ""
    if role == "encoder" and not facts.encoder:
        text = f"{facts.word} cannot be encoder attention{why}; use it in the decoder, and here"
        yield f"{text} {plain} or another that looks both ways", ""
    if role == "decoder" and not facts.causal:
        text = f"{facts.word} cannot be decoder attention: it cannot hide the future{why}"
        yield f"{text}; causal are {_words(lambda f: f.causal)}", ""
    if role != "cross" and scheme in ROTATING and scheme not in facts.positions:
        text = f"{facts.word} does not work with `model.positions: {scheme}`{why}; use sinusoidal"
        words = _words(lambda other: scheme in other.positions)
        yield f"{text} or learned positions; {scheme} works with {words}", ""
    if isinstance(facts.limit, int) and recipe.data.max_length + 1 > facts.limit:
        text = f"{facts.word} reaches {facts.limit} positions, begin token included"
        yield f"{text}; `data.max_length` can be {facts.limit - 1} at most", ""
    for name in ("key_norm", "qk_norm"):
        try:
            score_options({name: options.get(name, False)}, facts.uses)
        except UsageError as error:
            yield f"{facts.word}: {error}", name
    layers = model.cross_layers if role == "cross" else getattr(model.layers, role)
    if facts.layered and (parts := len(options[facts.composite])) > layers:
        text = f"{facts.word} has more parts ({parts}) than there are layers ({layers})"
        yield f"{text}; leave some out", facts.composite


def _words(able: Callable[[MechanismSpec], bool]) -> str:
    """Return the names of the first `MANY` mechanisms that satisfy a condition."""
    known = map(mechanism_registry.facts, mechanism_registry.names())
    words = [facts.word for facts in known if able(facts)]
    return ", ".join(words[:MANY]) + ", ..." * (len(words) > MANY)
