"""Loading: a file, what it extends, its variants, and the overrides of the command line."""

from collections.abc import Mapping as Table
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from attnkit.errors import MissingInputError
from attnkit.recipe.build import Built, build
from attnkit.recipe.capability import OptionCheck, check_attention, check_windows
from attnkit.recipe.check import check
from attnkit.recipe.find import is_name, name_of, resolve
from attnkit.recipe.problems import COMMAND_LINE, Key, Position, Problems, refuse
from attnkit.recipe.published import read_published
from attnkit.recipe.schema import Published, Recipe
from attnkit.recipe.settings import FILE_KEYS, Settings
from attnkit.recipe.values import written
from attnkit.recipe.yaml_nodes import LARGEST, Mapping, Node, Scalar, read_file, read_value
from attnkit.text import nearest, quoted

ONLY = "base"
"""Name of the single variant of a recipe without variants."""
MOST_VARIANTS = 100
EMPTY = Mapping(COMMAND_LINE, {})


@dataclass(frozen=True)
class RecipeFile:
    """A recipe file as it is understood: one resolved recipe for each variant."""

    name: str
    """Path below a folder `recipes` without suffix, elsewhere the stem."""
    path: Path
    """The file."""
    variants: dict[str, Recipe]
    """Resolved recipes in the order of the file."""
    baseline: str | None
    """The variant that the others are compared with; None where there is only one."""
    origins: dict[str, dict[str, str]]
    """Variant -> dotted key -> "default", "derived", "command line" or "file:line:column"."""
    published: Published | None = None
    """Figures from elsewhere, shown beside the scores."""


class Override(NamedTuple):
    """A key (as its parts), where it stands, and its value."""

    key: Key
    place: Position
    node: Node


class Document(NamedTuple):
    """A recipe file: its settings, and the keys about the file itself."""

    settings: Mapping
    extends: Node | None
    variants: dict[str, Override] | None
    baseline: Node | None
    published: Node | None


def load(
    recipe: str | Path, overrides: Sequence[str] = (), *, option_check: OptionCheck | None = None
) -> RecipeFile:
    """Read and check a recipe with all its variants.

    Args:
        recipe: a path, or the name of a shipped recipe.
        overrides: KEY=VALUE texts that win over the file and its variants.
        option_check: builds attention layers with options, for values that only the mechanism can
            judge (`models.check_options`, which needs torch); they are not judged when it is None.

    Raises RecipeError with one line a problem, MissingInputError when a file is not there.
    """
    path = resolve(recipe)
    name = name_of(path)
    problems = Problems()
    document = _split(read_file(path), problems)
    base, document = _inherit(document, path, problems)
    variants = document.variants or {ONLY: Override((), document.settings.place, EMPTY)}
    common, own = _by_variant(overrides, variants, problems)
    baselines = [change.node for change in common if change.key == ("baseline",)]
    common = [change for change in common if change.key != ("baseline",)]
    tables = {}
    for variant, given in variants.items():
        problems.variant = variant
        settings = base.copy()
        settings.put((), given.place, given.node)
        for change in common + own.get(variant, []):
            settings.put(*change)
        tables[variant] = settings
    built = _build(tables, problems, document.settings.place, option_check)
    baseline = _baseline([document.baseline, *baselines][-1], list(variants), problems)
    recipes = {variant: result.recipe for variant, result in built.items()}
    published = None
    if len(recipes) == len(variants):
        published = read_published(document.published, recipes, problems)
    problems.stop(len(variants))
    return RecipeFile(
        name=name,
        path=path,
        variants=recipes,
        baseline=baseline,
        origins={variant: result.origins() for variant, result in built.items()},
        published=published,
    )


def load_resolved(path: Path, overrides: Sequence[str] = ()) -> Recipe:
    """Read back what `dump` wrote: one resolved recipe, as a run keeps it, with overrides.

    Types and ranges are checked; what fits together is not checked again, because the run exists.

    Raises RecipeError, MissingInputError.
    """
    problems = Problems()
    root = read_file(path)
    settings = Settings(problems)
    settings.put((), root.place, root)
    for change in _by_variant(overrides, {}, problems)[0]:
        settings.put(*change)
    built = build(settings, problems, root.place)
    problems.stop()
    assert built is not None
    return built.recipe


def parent_of(path: Path) -> str | None:
    """The file that a recipe extends, as it is written there.  Raises RecipeError."""
    node = _split(read_file(path), Problems()).extends
    return node.text if isinstance(node, Scalar) and not node.null else None


def _split(root: Mapping, problems: Problems) -> Document:
    """Part the keys about the file from the settings."""
    settings = {name: value for name, value in root.fields.items() if name not in FILE_KEYS}
    about = (root.fields.get(name, (None, None))[1] for name in FILE_KEYS)
    extends, variants, baseline, published = about
    named = None if variants is None else _variants(variants, problems)
    return Document(Mapping(root.place, settings), extends, named, baseline, published)


def _variants(node: Node, problems: Problems) -> dict[str, Override]:
    """The variants of a file, which may be none."""
    if not isinstance(node, Mapping):
        if not (isinstance(node, Scalar) and node.null):
            text = f"must hold names with their overrides, got {written(node)}"
            problems.add(node.place, ("variants",), text)
        return {}
    if len(node.fields) > MOST_VARIANTS:
        text = f"{len(node.fields)} variants are too many; {MOST_VARIANTS} is the most"
        refuse(node.place, text, ("variants",))
    found = {}
    for name, (place, value) in node.fields.items():
        key = ("variants", name)
        if not is_name(name):
            text = f"{quoted(name)} cannot name a run folder; use letters, digits, '.', '_' and '-'"
            problems.add(place, ("variants",), text)
        elif isinstance(value, Mapping):
            found[name] = Override((), place, value)
        elif isinstance(value, Scalar) and value.null:
            found[name] = Override((), place, EMPTY)
        else:
            text = f"must hold overrides, such as `train.lr: 1e-3`, got {written(value)}"
            problems.add(value.place, key, text)
    return found


def _inherit(document: Document, path: Path, problems: Problems) -> tuple[Settings, Document]:
    """The settings of a file upon those of the one that it extends, and its variants."""
    settings = Settings(problems)
    if (node := document.extends) is not None:
        if not isinstance(node, Scalar) or node.null:
            text = f"must be the file of a recipe, relative to this one, got {written(node)}"
            refuse(node.place, text, ("extends",))
        try:
            parent = _split(read_file(path.parent / node.text), problems)
        except MissingInputError as error:
            raise MissingInputError(f"{node.place}: extends: {error}") from None
        if parent.extends is not None:
            text = "this recipe is extended by another, so it cannot extend a third; copy its keys"
            refuse(parent.extends.place, text, ("extends",))
        settings.put((), parent.settings.place, parent.settings)
        settings = settings.copy()
        if document.variants is None:
            own = document.baseline or parent.baseline
            document = document._replace(variants=parent.variants, baseline=own)
    settings.put((), document.settings.place, document.settings)
    return settings, document


def _by_variant(
    overrides: Sequence[str], variants: Table[str, Override], problems: Problems
) -> tuple[list[Override], dict[str, list[Override]]]:
    """Part overrides KEY=VALUE for all variants from those for one, `variants.NAME.KEY=VALUE`."""
    common: list[Override] = []
    own: dict[str, list[Override]] = {}
    for text in overrides:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            refuse(COMMAND_LINE, f"{quoted(text)} must be KEY=VALUE, such as train.steps=200")
        if len(text) > LARGEST:
            refuse(COMMAND_LINE, "the value is too long", (name,))
        key = tuple(name.split("."))
        change = Override(key, COMMAND_LINE, read_value(value))
        if key[0] != "variants":
            common.append(change)
            continue
        names = {size: ".".join(key[1:size]) for size in range(len(key), 1, -1)}
        size = next((size for size, name in names.items() if name in variants), None)
        if size is None:
            close = nearest(".".join(key[1:2]), variants)
            hint = f"did you mean {close}?" if close else f"there are {', '.join(variants)}"
            problems.add(change.place, key, f"no such variant; {hint}")
        else:
            own.setdefault(names[size], []).append(change._replace(key=key[size:]))
    return common, own


def _build(
    tables: Table[str, Settings],
    problems: Problems,
    start: Position,
    option_check: OptionCheck | None,
) -> dict[str, Built]:
    """Build every variant; ask what fits together once all values are right alone."""
    built = {}
    for problems.variant, settings in tables.items():
        result = build(settings, problems, start)
        if result is not None:
            built[problems.variant] = result
    if not problems:
        for problems.variant, result in built.items():
            check(result, problems, start)
            check_attention(result, problems, start, option_check)
            check_windows(result, problems, start)
    problems.variant = None
    return built


def _baseline(node: Node | None, variants: list[str], problems: Problems) -> str | None:
    """The variant to compare with: the one that is named, else the first of several."""
    if node is None or (isinstance(node, Scalar) and node.null):
        return variants[0] if len(variants) > 1 else None
    if isinstance(node, Scalar) and node.text in variants:
        return node.text
    close = nearest(node.text, variants) if isinstance(node, Scalar) else None
    hint = f"did you mean {close}?" if close else f"there are {', '.join(variants)}"
    text = f"must be the name of a variant, got {written(node)}; {hint}"
    problems.add(node.place, ("baseline",), text)
    return None
