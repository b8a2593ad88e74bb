"""Whether the attention mechanisms can do what the recipe asks of each place in the model."""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from attnkit.errors import UsageError
from attnkit.recipe import mechanism_registry
from attnkit.recipe.build import ATTENTION, USED, Built, key_as_written
from attnkit.recipe.mechanism_file import Facts
from attnkit.recipe.problems import Key, Position, Problems
from attnkit.recipe.schema import AttentionConfig, ModelConfig, Recipe
from attnkit.recipe.score_options import ScoreOptions, score_options
from attnkit.recipe.values import shown

if TYPE_CHECKING:
    from attnkit.attention import Attention as Mechanism

ROTATING = ("rope", "alibi", "relative")
"""Position schemes that work inside self-attention, so the mechanism has a say."""


class Objection(NamedTuple):
    """Why a mechanism cannot serve, and the option to blame where it is one."""

    text: str
    option: str = ""


Attempt = Callable[[Recipe, str, Mapping[str, Any]], None]
"""Builds the attention layer of a role with these options; raises UsageError where it is refused.

It comes from above, because it needs torch.
"""


def apart(mechanism: "Facts | Mechanism") -> str:
    """Why its caches of several contexts cannot be seen by one row; "" where they can."""
    if mechanism.state == "constant":
        return (
            "its attention keeps sums of what it has read, from which the begin token of each "
            "window cannot be taken out again"
        )
    if mechanism.by_distance:
        return "its attention finds keys by their distance, and windows share their positions"
    return ""


def check_windows(built: Built, problems: Problems, start: Position) -> None:
    """Note the method window where some layer cannot see several contexts; see `apart`."""
    model, contexts = built.recipe.model, built.recipe.contexts
    asked = built.recipe.task == "question-answering" and "window" in contexts.methods
    if not asked or model.shape != "decoder":
        return
    chosen = model.attention.decoder
    try:
        turns = mechanism_registry.in_turn(chosen.name, chosen.options())
    except UsageError:
        return  # `check_attention` says why
    known = (mechanism_registry.facts(word) for word, _ in turns)
    found = next(((facts.word, why) for facts in known if (why := apart(facts))), None)
    if found is None:
        return
    text = (
        f"window is not for a model with {found[0]}: {found[1]}; remove it, or use "
        f"`model.attention: {AttentionConfig().name}`"
    )
    place, key = built.place(("contexts", "methods"), ATTENTION) or (start, ATTENTION)
    problems.add(place, key, text)


def check_attention(
    built: Built, problems: Problems, start: Position, attempt: Attempt | None = None
) -> None:
    """Note every place whose mechanism cannot serve it; `start` is the place of defaults.

    Values that only the mechanism itself can judge are tried by `attempt`, where it is given.
    """
    model = built.recipe.model
    for role in USED[model.shape]:
        chosen = getattr(model.attention, role)
        options = chosen.options()
        try:
            facts = mechanism_registry.capable(chosen.name, options)
        except UsageError as error:
            composite = mechanism_registry.facts(chosen.name).composite
            objections = [Objection(str(error), composite)]
        else:
            objections = list(_objections(facts, role, built.recipe))
            if options and attempt and not objections:
                objections += _refused(facts, role, built.recipe, attempt)
        for text, option in objections:
            keys: list[Key] = [(*ATTENTION, role, option), (*ATTENTION, role)]
            key = next((key for key in keys if key in built.given), keys[1])
            setting = built.given.get(key)
            place = setting.node.place if setting else start
            problems.add(place, key_as_written(key, setting) if setting else key, text)


def _refused(facts: Facts, role: str, recipe: Recipe, attempt: Attempt) -> Iterator[Objection]:
    """What the mechanism says against its options, with the one that is to blame.

    That is the one without which the others are taken, else the parts of a composite.
    """
    options = getattr(recipe.model.attention, role).options()

    def refusal(given: Mapping[str, Any]) -> str:
        try:
            attempt(recipe, role, given)
        except UsageError as error:
            return str(error)
        return ""

    if text := refusal(options):
        others = ({name: options[name] for name in options if name != o} for o in options)
        blamed = (o for o, rest in zip(options, others, strict=True) if not refusal(rest))
        yield Objection(text, next(blamed, facts.composite))


def _objections(facts: Facts, role: str, recipe: Recipe) -> Iterator[Objection]:
    """Why a mechanism cannot serve a place, and what would work."""
    model = recipe.model
    options = getattr(model.attention, role).options()
    why = f" ({facts.why})" if facts.why else ""
    if role == "cross" and not facts.cross:
        yield Objection(
            f"{facts.word} cannot be cross attention{why}; use {_instead(facts, model)}"
        )
    if role == "decoder" and not facts.causal:
        text = f"{facts.word} cannot be decoder attention: it cannot hide the future{why}"
        yield Objection(f"{text}; causal are {_able('causal')}")
    scheme = model.positions
    if role != "cross" and scheme in ROTATING and scheme not in facts.positions:
        fits = [
            name
            for name in mechanism_registry.names()
            if scheme in mechanism_registry.facts(name).positions
        ]
        able = f"; {scheme} works with {', '.join(fits)}" if fits else ""
        text = f"{facts.word} does not work with `model.positions: {scheme}`{why}"
        yield Objection(f"{text}; use sinusoidal or learned positions{able}")
    if isinstance(facts.limit, int) and recipe.data.max_length + 1 > facts.limit:
        text = f"{facts.word} reaches {facts.limit} positions, begin token included"
        yield Objection(f"{text}; `data.max_length` can be {facts.limit - 1} at most")
    for name in ScoreOptions._fields:
        try:
            score_options({name: options[name]} if name in options else {}, facts.uses)
        except UsageError as error:
            yield Objection(f"{facts.word}: {error}", name)
    if facts.layered and len(options[facts.composite]) > _depth(model, role):
        text = (
            f"{facts.word} has more parts ({len(options[facts.composite])}) than there are layers"
        )
        yield Objection(f"{text} ({_depth(model, role)}); leave some out", facts.composite)
    missing = [name for name, o in facts.options.items() if o.required and name not in options]
    if missing:
        example = f"{{name: {facts.word}, {missing[0]}: ...}}"
        yield Objection(f"{facts.word} needs {', '.join(missing)}; write {example}")


def _depth(model: ModelConfig, role: str) -> int:
    """Layers that have this attention."""
    depth: int = getattr(model.layers, "decoder" if role == "cross" else role)
    return depth


def _instead(facts: Facts, model: ModelConfig) -> str:
    """An attention setting like the one asked for in which cross attention works."""
    places = {name: getattr(model.attention, name) for name in ("encoder", "decoder")}
    able = (a for a in places.values() if mechanism_registry.capable(a.name, a.options()).cross)
    places["cross"] = next(able, AttentionConfig())
    return shown({place: _written(attention) for place, attention in places.items()})


def _written(attention: AttentionConfig) -> str | dict[str, Any]:
    """An attention place as a recipe would give it."""
    options = attention.options()
    return {"name": attention.name, **options} if options else attention.name


def _able(fact: str) -> str:
    return ", ".join(
        word for word in mechanism_registry.names() if getattr(mechanism_registry.facts(word), fact)
    )
