"""Whether the attention mechanisms can do what the recipe asks of each place in the model."""

from collections.abc import Iterator
from typing import Any

from attnkit import mechanisms
from attnkit.errors import UsageError
from attnkit.mechanisms import Facts
from attnkit.modifiers import Modifiers, modifiers
from attnkit.recipe.build import ATTENTION, USED, Built, told_key
from attnkit.recipe.problems import Key, Place, Problems
from attnkit.recipe.schema import Attention, Model, Recipe
from attnkit.recipe.values import shown

ROTATING = ("rope", "alibi", "relative")
"""Position schemes that work inside self-attention, so the mechanism has a say."""


def check_attention(built: Built, problems: Problems, start: Place) -> None:
    """Note every place whose mechanism cannot serve it; `start` is the place of defaults."""
    model = built.recipe.model
    for role in USED[model.shape]:
        key: Key = (*ATTENTION, role)
        chosen = getattr(model.attention, role)
        setting = built.given.get(key)
        try:
            facts = mechanisms.capable(chosen.name, chosen.options())
        except UsageError as error:
            composite = (*key, mechanisms.facts(chosen.name).composite)
            key, setting = (composite, s) if (s := built.given.get(composite)) else (key, setting)
            objections = iter([str(error)])
        else:
            objections = _objections(facts, role, built.recipe)
        place = setting.node.place if setting else start
        for text in objections:
            problems.add(place, told_key(key, setting) if setting else key, text)


def _objections(facts: Facts, role: str, recipe: Recipe) -> Iterator[str]:
    """Why a mechanism cannot serve a place, and what would work."""
    model = recipe.model
    options = getattr(model.attention, role).options()
    why = f" ({facts.why})" if facts.why else ""
    if role == "cross" and not facts.cross:
        yield f"{facts.word} cannot be cross attention{why}; use {_instead(facts, model)}"
    if role == "decoder" and not facts.causal:
        text = f"{facts.word} cannot be decoder attention: it cannot hide the future{why}"
        yield f"{text}; causal are {_able('causal')}"
    scheme = model.positions
    if role != "cross" and scheme in ROTATING and scheme not in facts.positions:
        fits = [name for name in mechanisms.names() if scheme in mechanisms.facts(name).positions]
        able = f"; {scheme} works with {', '.join(fits)}" if fits else ""
        text = f"{facts.word} does not work with `model.positions: {scheme}`{why}"
        yield f"{text}; use sinusoidal or learned positions{able}"
    if isinstance(facts.limit, int) and recipe.data.max_length + 1 > facts.limit:
        text = f"{facts.word} reaches {facts.limit} positions, begin token included"
        yield f"{text}; `data.max_length` can be {facts.limit - 1} at most"
    try:
        modifiers(
            {name: options[name] for name in Modifiers._fields if name in options}, facts.uses
        )
    except UsageError as error:
        yield f"{facts.word}: {error}"
    missing = [name for name, o in facts.options.items() if o.required and name not in options]
    if missing:
        example = f"{{name: {facts.word}, {missing[0]}: ...}}"
        yield f"{facts.word} needs {', '.join(missing)}; write {example}"


def _instead(facts: Facts, model: Model) -> str:
    """An attention setting like the one asked for in which cross attention works."""
    places = {name: getattr(model.attention, name) for name in ("encoder", "decoder")}
    able = (a for a in places.values() if mechanisms.capable(a.name, a.options()).cross)
    places["cross"] = next(able, Attention())
    return shown({place: _written(attention) for place, attention in places.items()})


def _written(attention: Attention) -> str | dict[str, Any]:
    """An attention place as a recipe would give it."""
    options = attention.options()
    return {"name": attention.name, **options} if options else attention.name


def _able(fact: str) -> str:
    return ", ".join(word for word in mechanisms.names() if getattr(mechanisms.facts(word), fact))
