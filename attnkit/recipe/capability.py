"""Whether the attention mechanisms can do what the recipe asks of each place in the model."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attnkit.errors import UsageError
from attnkit.recipe import mechanism_registry
from attnkit.recipe.issues import Issue
from attnkit.recipe.mechanism_file import MechanismSpec
from attnkit.recipe.schema import AttentionConfig, Recipe
from attnkit.recipe.score_options import score_options
from attnkit.recipe.values import shown

ROTATING = ("rope", "alibi", "relative")
"""Position schemes that work inside self-attention, so the mechanism has a say."""
MANY = 12
"""More mechanisms than these are not listed in a message."""


OptionCheck = Callable[[Recipe, str, Mapping[str, Any]], None]
"""Builds the attention layer of a role with these options; raises UsageError where it is refused.

It comes from above, because it needs torch.
"""


def window_issue(state: str, by_distance: bool) -> str:
    """Why one row cannot attend to the disjoint caches of several contexts; "" where it can.

    `state` and `by_distance` are the attributes of the mechanism.
    """
    if state == "constant":
        return (
            "its attention keeps sums of what it has read, from which the begin token of each "
            "window cannot be taken out again"
        )
    if by_distance:
        return "its attention depends on distances between keys, and windows share their positions"
    return ""


def _windows(recipe: Recipe) -> Iterator[Issue]:
    """The method window where some layer cannot attend to disjoint caches."""
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
    """Why so many processes cannot train a model of this recipe together; None if they can."""
    train = recipe.train
    if ranks > 1 and train.parallel == "none":
        return f"train.parallel: none, but {ranks} processes are to train: set ddp or fsdp"
    if train.compile:
        return "train.compile: is for training in one process; set it to false"
    if train.parallel == "fsdp" and train.precision == "fp16":
        return "train.precision: fp16 is not for train.parallel=fsdp; use bf16"
    return None


def length_issue(recipe: Recipe, length: int) -> str:
    """Why a model cannot read texts of `length` tokens; "" where it can."""
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
    """Every place whose mechanism cannot serve it, and what the model's attention cannot reach.

    Values that only the mechanism itself can judge are tried by `option_check`, where it is given.
    """
    for role in recipe.model.places:
        yield from _of_place(recipe, role, option_check)
    try:
        yield from _windows(recipe)
        if why := length_issue(recipe, max(recipe.eval.lengths, default=0)):
            yield why, "eval.lengths"
    except UsageError:
        return  # told of its place


def _of_place(recipe: Recipe, role: str, option_check: OptionCheck | None) -> Iterator[Issue]:
    """Why the mechanism of a place cannot serve, by its facts or, last, by its own judgement."""
    chosen = getattr(recipe.model.attention, role)
    options, place = chosen.options(), f"model.attention.{role}"

    def blamed(text: str, option: str = "") -> Issue:
        return text, *([f"{place}.{option}"] if option in options else []), place

    composite = mechanism_registry.facts(chosen.name).composite
    try:
        facts = mechanism_registry.resolve_capabilities(chosen.name, options)
    except UsageError as error:
        yield blamed(str(error), composite)
        return
    found = [blamed(*reason) for reason in _limits(facts, role, recipe)]
    yield from found
    uneven = recipe.model.width % recipe.model.heads  # `rules` says so
    if not options or not option_check or found or uneven:
        return

    def refusal(given: Mapping[str, Any]) -> str:
        try:
            option_check(recipe, role, given)
        except UsageError as error:
            return str(error)
        return ""

    if text := refusal(options):
        # to blame is the option without which the others are accepted, else the parts
        others = {name: {o: options[o] for o in options if o != name} for name in options}
        yield blamed(text, next((n for n, rest in others.items() if not refusal(rest)), composite))


def _fits(attention: AttentionConfig, place: str) -> bool:
    """Whether a mechanism can be encoder, decoder or cross attention, as its options stand."""
    facts = mechanism_registry.resolve_capabilities(attention.name, attention.options())
    return {"encoder": facts.encoder, "decoder": facts.causal, "cross": facts.cross}[place]


def _limits(facts: MechanismSpec, role: str, recipe: Recipe) -> Iterator[tuple[str, str]]:
    """What its facts do not allow, and the option to blame, if any."""
    model = recipe.model
    options = getattr(model.attention, role).options()
    why = f" ({facts.why})" if facts.why else ""
    if role == "cross" and not facts.cross:
        plain = AttentionConfig()
        given = {name: getattr(model.attention, name) for name in model.places if name != role}
        places = {name: one if _fits(one, name) else plain for name, one in given.items()}
        places["cross"] = next((one for one in places.values() if _fits(one, role)), plain)
        instead = shown({place: attention.as_written() for place, attention in places.items()})
        yield f"{facts.word} cannot be cross attention{why}; use {instead}", ""
    if role == "encoder" and not facts.encoder:
        text = f"{facts.word} cannot be encoder attention{why}; use it in the decoder, and here"
        yield f"{text} {AttentionConfig().name} or another that looks both ways", ""
    if role == "decoder" and not facts.causal:
        text = f"{facts.word} cannot be decoder attention: it cannot hide the future{why}"
        yield f"{text}; causal are {_words(lambda f: f.causal)}", ""
    scheme = model.positions
    if role != "cross" and scheme in ROTATING and scheme not in facts.positions:
        words = _words(lambda other: scheme in other.positions)
        others = f"; {scheme} works with {words}" if words else ""
        text = f"{facts.word} does not work with `model.positions: {scheme}`{why}"
        yield f"{text}; use sinusoidal or learned positions{others}", ""
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
    known = map(mechanism_registry.facts, mechanism_registry.names())
    words = [facts.word for facts in known if able(facts)]
    if len(words) <= MANY:
        return ", ".join(words)
    return f"{', '.join(words[: MANY - 1])} and {len(words) - MANY + 1} others"
