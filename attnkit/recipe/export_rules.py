"""Formats to which a trained model can be exported, derived from its recipe alone."""

from collections.abc import Iterator, Sequence

from attnkit.recipe import mechanism_registry
from attnkit.recipe.mechanism_registry import Part
from attnkit.recipe.schema import Recipe
from attnkit.recipe.values import shown

TARGETS = {"huggingface": "transformers", "ctranslate2": "CTranslate2", "onnx": "ONNX"}
"""Value of `attnkit export --to` -> name of the library that reads the result."""
PRODUCTS = ("scaled-dot", "dot")
"""Mechanisms that libraries for plain transformers compute; `dot` by scaling up the queries."""
ONLY_TRAINED = ("attention_dropout", "score_noise")
"""Options that have no effect after training."""
POSITIONS = {
    "huggingface": ("sinusoidal", "learned", "none"),
    "ctranslate2": ("sinusoidal", "learned", "none", "rope"),
}


def pretrained_class(recipe: Recipe) -> str:
    """Return the model family of transformers that computes the same function as an exported model."""
    if recipe.model.shape == "decoder":
        return "OPT"
    return "Pegasus" if recipe.model.norm == "pre" else "Marian"


def export_issue(recipe: Recipe, target: str) -> str:
    """Return a property of the model that prevents its export to one of `TARGETS`, or "" if there is none."""
    return next(_export_issues(recipe, target), "")


def refusal(recipe: Recipe, target: str) -> str:
    """Return why a model cannot be exported and what can be done instead, or "" if it can be exported."""
    what = export_issue(recipe, target)
    others = [other for other in TARGETS if not export_issue(recipe, other)]
    instead = f"; use --to {' or '.join(others)}" if others else ", nor to any other format"
    return f"{what} cannot be exported to {TARGETS[target]}{instead}" if what else ""


def notes(recipes: Sequence[tuple[str, Recipe]]) -> Iterator[str]:
    """Yield the export formats of named variants, with the reasons for missing formats if all variants are alike."""
    groups: dict[str, list[str]] = {}
    for name, recipe in recipes:
        able = [target for target in TARGETS if not export_issue(recipe, target)]
        if "huggingface" in able:
            able[0] += f" ({pretrained_class(recipe)})"
            if recipe.tokenizer.model:  # a file that is not opened here
                able[0] += " if tokenizer.model has no byte fallback, words or pieces across spaces"
        groups.setdefault(", ".join(able) or "none", []).append(name)
    for able_text, names in groups.items():
        if len(groups) > 1:
            yield f"export of {', '.join(names)}: {able_text}"
            continue
        reasons: dict[str, list[str]] = {}
        for target in TARGETS:
            if what := export_issue(recipes[0][1], target):
                reasons.setdefault(what, []).append(target)
        rest = (f"; not {', '.join(targets)} ({what})" for what, targets in reasons.items())
        yield f"export: {able_text}{''.join(rest)}"


def _export_issues(recipe: Recipe, target: str) -> Iterator[str]:
    model = recipe.model
    if model.type != "transformer":
        yield f"model.type: {model.type}"
        return
    if recipe.task == "question-answering":
        yield f"task: {recipe.task}"
    if target == "onnx":
        for role in model.places:
            chosen = getattr(model.attention, role)
            known, options = mechanism_registry.facts(chosen.name), chosen.options()
            parts = [Part(chosen.name, options)]
            if known.composite:
                parts = mechanism_registry.parts(known, options[known.composite])
            for word, given in parts:
                if role not in mechanism_registry.resolve_capabilities(word, given).onnx:
                    told = [f"{name}: {shown(value)}" for name, value in given.items()]
                    yield f"{word}{' with ' * bool(told)}{', '.join(told)} in the {role}"
        return
    if model.shape == "encoder" or (target, model.shape) == ("ctranslate2", "decoder"):
        yield f"model.shape: {model.shape}"
    if model.norm == "rms":
        yield "model.norm: rms"
    if model.ff == 0:
        yield "model.ff: 0"
    for role in model.places:
        chosen = getattr(model.attention, role)
        if chosen.name not in PRODUCTS:
            yield chosen.name
        options = {name: value for name, value in chosen.options().items() if value}
        if options.get("key_heads") == model.heads:
            del options["key_heads"]
        yield from (f"{chosen.name} with {name}" for name in options if name not in ONLY_TRAINED)
    if model.positions not in POSITIONS[target]:
        yield f"model.positions: {model.positions}"
    if target == "huggingface":
        if model.activation.endswith("glu"):
            yield f"model.activation: {model.activation}"
        if recipe.tokenizer.type == "word" and not recipe.tokenizer.model:
            yield "tokenizer.type: word"
