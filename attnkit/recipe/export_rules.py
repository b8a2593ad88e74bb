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
    issue = export_issue(recipe, target)
    others = [other for other in TARGETS if not export_issue(recipe, other)]
    alternative = f"; use --to {' or '.join(others)}" if others else ", nor to any other format"
    return f"{issue} cannot be exported to {TARGETS[target]}{alternative}" if issue else ""


def notes(recipes: Sequence[tuple[str, Recipe]]) -> Iterator[str]:
    """Yield the export formats of named variants, with the reasons for missing formats if all variants are alike."""
    groups: dict[str, list[str]] = {}
    for name, recipe in recipes:
        formats = [target for target in TARGETS if not export_issue(recipe, target)]
        if "huggingface" in formats:
            formats[0] += f" ({pretrained_class(recipe)})"
            if recipe.tokenizer.model:  # a file that is not opened here
                formats[0] += " unless tokenizer.model has byte fallback, type word or pieces across spaces"
        groups.setdefault(", ".join(formats) or "none", []).append(name)
    for formats_text, names in groups.items():
        if len(groups) > 1:
            yield f"export of {', '.join(names)}: {formats_text}"
            continue
        reasons: dict[str, list[str]] = {}
        for target in TARGETS:
            if issue := export_issue(recipes[0][1], target):
                reasons.setdefault(issue, []).append(target)
        exceptions = (f"; not {', '.join(targets)} ({issue})" for issue, targets in reasons.items())
        yield f"export: {formats_text}{''.join(exceptions)}"


def _export_issues(recipe: Recipe, target: str) -> Iterator[str]:
    model = recipe.model
    if model.type != "transformer":
        yield f"model.type: {model.type}"
        return
    if recipe.task == "question-answering":
        yield f"task: {recipe.task}"
    if target == "onnx":
        for role in model.places:
            attention = getattr(model.attention, role)
            spec, options = mechanism_registry.facts(attention.name), attention.options()
            parts = [Part(attention.name, options)]
            if spec.composite:
                parts = mechanism_registry.parts(spec, options[spec.composite])
            for word, part_options in parts:
                if role not in mechanism_registry.resolve_capabilities(word, part_options).onnx:
                    settings = [f"{name}: {shown(value)}" for name, value in part_options.items()]
                    yield f"{word}{' with ' * bool(settings)}{', '.join(settings)} in the {role}"
        return
    if model.shape == "encoder" or (target, model.shape) == ("ctranslate2", "decoder"):
        yield f"model.shape: {model.shape}"
    if model.norm == "rms":
        yield "model.norm: rms"
    if model.ff == 0:
        yield "model.ff: 0"
    for role in model.places:
        attention = getattr(model.attention, role)
        if attention.name not in PRODUCTS:
            yield attention.name
        options = {name: value for name, value in attention.options().items() if value}
        if options.get("key_heads") == model.heads:
            del options["key_heads"]
        yield from (f"{attention.name} with {name}" for name in options if name not in ONLY_TRAINED)
    if model.positions not in POSITIONS[target]:
        yield f"model.positions: {model.positions}"
    if target == "huggingface":
        if model.activation.endswith("glu"):
            yield f"model.activation: {model.activation}"
        if recipe.tokenizer.type == "word" and not recipe.tokenizer.model:
            yield "tokenizer.type: word"
