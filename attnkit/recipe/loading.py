"""Loading of a recipe: a file, the files that it extends, its variants and the overrides of the command line."""

from collections.abc import Collection, Sequence
from collections.abc import Mapping as Table
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from attnkit.errors import MissingInputError, UsageError
from attnkit.recipe import capability, rules
from attnkit.recipe.build import Built, build
from attnkit.recipe.capability import OptionCheck
from attnkit.recipe.dumping import digest
from attnkit.recipe.find import NAME_RULE, is_name, name_of, resolve
from attnkit.recipe.issues import COMMAND_LINE, Issues, Position, refuse
from attnkit.recipe.published import Published, read_published
from attnkit.recipe.reading import written
from attnkit.recipe.schema import Recipe
from attnkit.recipe.settings import FILE_KEYS, Settings
from attnkit.recipe.sweep import Combination, Override, check_number, combinations
from attnkit.recipe.sweep import overrides as overrides_of
from attnkit.recipe.yaml_nodes import MAX_BYTES, Mapping, Node, Scalar, is_null, read_file, read_value
from attnkit.text import hint, quoted

DEFAULT_VARIANT = "base"
"""Name of the only variant of a recipe without variants."""
MAX_VARIANTS = 100
EMPTY = Mapping(COMMAND_LINE, {})


@dataclass(frozen=True)
class RecipeFile:
    """A loaded recipe file, with one resolved recipe for each variant."""

    name: str
    """Path below a folder `recipes` without suffix, otherwise the stem."""
    path: Path
    variants: dict[str, Recipe]
    """Resolved recipes in the order of the file."""
    baseline: str | None
    """Variant that the others are compared with; None if there is only one variant."""
    origins: dict[str, dict[str, str]]
    """Variant -> dotted key -> "default", "derived", "command line" or "file:line:column"."""
    published: Published | None = None
    """Published figures, shown beside the scores."""
    swept: dict[str, list[str]] = field(default_factory=dict)
    """Sweep: variant of the file -> the variants generated from it; of equal variants, the one that is kept."""

    def chosen(self, names: Sequence[str] | None) -> list[str]:
        """Return the named variants in the order of the recipe, or all if no name is given.

        In a sweep, a variant of the file selects all variants generated from it.  Raises UsageError for unknown names.
        """
        selected = list[str]()
        for name in names or self.variants:
            matches = [name] if name in self.variants else self.swept.get(name)
            if matches is None:
                suggestion = hint(name, [*self.swept, *self.variants])
                raise UsageError(f"{self.name} has no variant {quoted(name)}; {suggestion}")
            selected += matches
        return [name for name in self.variants if name in selected]


class Document(NamedTuple):
    """A recipe file: its settings, and the keys about the file itself."""

    path: Path
    settings: Mapping
    extends: Node | None
    variants: dict[str, Override] | None
    baseline: Node | None
    published: Node | None


def load(recipe: str | Path, overrides: Sequence[str] = (), *, option_check: OptionCheck | None = None) -> RecipeFile:
    """Read and check a recipe with all its variants.

    Args:
        recipe: Path, or name of a shipped recipe.
        overrides: KEY=VALUE strings that take precedence over the file and its variants.
        option_check: Builds attention layers, to check option values that only the mechanism can judge
            (`models.check_options`, which needs torch); if None, these values are not checked.

    Raises RecipeError with one line per problem, MissingInputError if a file does not exist.
    """
    issues, documents = Issues(), _documents(resolve(recipe))
    document, base = documents[0], Settings(issues)
    for doc in reversed(documents):
        base = base.copy()
        base.put((), doc.settings.place, doc.settings)
    # variants are inherited together with their baseline
    index = next((n for n, doc in enumerate(documents) if doc.variants is not None), 0)
    file_variants = documents[index].variants
    variants = file_variants or {DEFAULT_VARIANT: Override((), document.settings.place, EMPTY)}
    changes, variant_words = _read_words(overrides)
    baselines = [doc.baseline for doc in documents[index::-1] if doc.baseline is not None]
    baselines += [change.node for (change, *_) in changes if change.key == ("baseline",)]
    points = combinations([options for options in changes if options[0].key != ("baseline",)])
    check_number(len(points) * len(variants))
    parents = {
        ",".join(filter(None, (variant if file_variants else "", point.name))) or variant: (variant, point)
        for variant in variants
        for point in points
    }
    by_variant = _by_variant(variant_words, {*variants, *parents, *(p.name for p in points if p.name)})
    tables = {}
    for issues.variant, (variant, point) in parents.items():
        settings = base.copy()
        settings.put((), variants[variant].place, variants[variant].node)
        names = dict.fromkeys((variant, point.name, issues.variant))
        for change in (*point.overrides, *(change for n in names for change in by_variant.get(n, ()))):
            settings.put(*change)
        tables[issues.variant] = settings
    built = _build(tables, issues, document.settings.place, option_check)
    issues.stop(len(tables))
    swept = dict[str, list[str]]()
    if len(points) > 1:
        built, swept = _without_duplicates(built, parents)
    recipes = {variant: result.recipe for variant, result in built.items()}
    return RecipeFile(
        name=name_of(document.path),
        path=document.path,
        variants=recipes,
        baseline=_baseline(baselines, [*recipes], swept),
        origins={variant: result.origins() for variant, result in built.items()},
        published=None if swept else read_published(document.published, recipes),
        swept=swept,
    )


def _without_duplicates(
    built: Table[str, Built], parents: Table[str, tuple[str, Combination]]
) -> tuple[dict[str, Built], dict[str, list[str]]]:
    """Return the variants of a sweep without duplicates, and the variants generated from each variant of the file.

    A sweep over a key in which variants differ makes these variants equal.  If all variants of the file become equal,
    they are named after the point of the sweep alone.
    """
    first_names: dict[tuple[str, str], str] = {}  # (point, digest of the recipe) -> first variant
    for name, (_, point) in parents.items():
        first_names.setdefault((point.name, digest(built[name].recipe)), name)
    all_equal = len(first_names) == len({point for point, _ in first_names})
    kept, swept = dict[str, Built](), dict[str, list[str]]()
    for name, (variant, point) in parents.items():
        original = first_names[point.name, digest(built[name].recipe)]
        final = point.name if all_equal else original
        kept.setdefault(final, built[original])
        swept.setdefault(variant, []).append(final)
    return kept, swept


_LEGACY_VALUES = {("data", "normalize"): "none"}
"""Values of keys that runs of earlier versions lack, if they differ from the default."""


def load_resolved(path: Path, overrides: Sequence[str] = (), content: bytes | None = None) -> Recipe:
    """Read a resolved recipe that `dump` wrote, such as that of a run, and apply overrides.

    `content` is the content of the file, if already read.  Types and ranges are checked; combinations of keys are not
    checked again, because the run exists.  Raises RecipeError or MissingInputError.
    """
    issues = Issues()
    root = read_file(path, content)
    settings = Settings(issues)
    settings.put((), root.place, root)
    for key, value in _LEGACY_VALUES.items():
        if key not in settings.values:
            settings.put(key, root.place, Scalar(root.place, value))
    changes, variant_words = _read_words(overrides)
    _by_variant(variant_words, [])
    for change, *more in changes:
        if more:
            refuse(COMMAND_LINE, "must be a single value here", change.key)
        settings.put(*change)
    built = build(settings, issues, root.place)
    issues.stop()
    assert built is not None
    return built.recipe


def _documents(path: Path) -> list[Document]:
    """Read a recipe file and the chain of files that it extends."""
    documents = [_document(path)]
    while (node := documents[-1].extends) is not None:
        if not isinstance(node, Scalar) or node.null:
            text = "must be a recipe file, relative to this file, or the name of a shipped"
            refuse(node.place, f"{text} recipe, got {written(node)}", ("extends",))
        try:
            parent = _document(resolve(node.text, documents[-1].path.parent))
        except MissingInputError as error:
            raise MissingInputError(f"{node.place}: extends: {error}") from None
        documents.append(parent)
        if any(parent.path.samefile(document.path) for document in documents[:-1]):
            chain = " extends ".join(quoted(document.path.name) for document in documents)
            refuse(node.place, f"forms a cycle: {chain}; remove one `extends`", ("extends",))
    return documents


def _document(path: Path) -> Document:
    root = read_file(path)
    settings = {name: value for name, value in root.fields.items() if name not in FILE_KEYS}
    file_keys = {name: node for name, (_, node) in root.fields.items() if name in FILE_KEYS}
    variants = _variants(file_keys["variants"]) if "variants" in file_keys else None
    extends, baseline, published = map(file_keys.get, ("extends", "baseline", "published"))
    return Document(path, Mapping(root.place, settings), extends, variants, baseline, published)


def _variants(node: Node) -> dict[str, Override]:
    if is_null(node):
        return {}
    if not isinstance(node, Mapping):
        text = f"must be a mapping of names to overrides, got {written(node)}"
        refuse(node.place, text, ("variants",))
    if len(node.fields) > MAX_VARIANTS:
        text = f"{len(node.fields)} variants are too many; the maximum is {MAX_VARIANTS}"
        refuse(node.place, text, ("variants",))
    variants = {}
    for name, (place, value) in node.fields.items():
        if not is_name(name):
            refuse(place, f"{quoted(name)} cannot name a run folder; {NAME_RULE}", ("variants",))
        if not isinstance(value, Mapping) and not is_null(value):
            text = f"must be a mapping of overrides, such as `train.lr: 1e-3`, got {written(value)}"
            refuse(value.place, text, ("variants", name))
        variants[name] = Override((), place, value if isinstance(value, Mapping) else EMPTY)
    return variants


def _read_words(words: Sequence[str]) -> tuple[list[list[Override]], list[str]]:
    """Parse KEY=VALUE words: overrides with one or several values each, and unparsed words for `variants.`."""
    changes, variant_words = [], []
    for text in words:
        name, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not name:
            refuse(COMMAND_LINE, f"{quoted(text)} must be KEY=VALUE, such as train.steps=200")
        if len(text) > MAX_BYTES:
            refuse(COMMAND_LINE, "the value is too long", (name,))
        if name.partition(".")[0] == "variants":
            variant_words.append(text.strip())
        elif name == "baseline":
            changes.append([Override((name,), COMMAND_LINE, read_value(value))])
        else:
            changes.append(overrides_of(tuple(name.split(".")), value))
    return changes, variant_words


def _by_variant(words: Sequence[str], variants: Collection[str]) -> dict[str, list[Override]]:
    """Parse `variants.NAME.KEY=VALUE` words; a name may contain dots and equals signs."""
    overrides: dict[str, list[Override]] = {}
    for text in words:
        text = text.removeprefix("variants").removeprefix(".")
        matches = (n for n in variants if text.startswith((f"{n}.", f"{n}=")))
        name = max(matches, key=len, default=None)
        rest, _, value = text.removeprefix(name or "").partition("=")
        key = tuple(rest.strip().removeprefix(".").split(".")) if rest.strip() else ()
        if name is None:
            text = f"no such variant; {hint('.'.join(key[:1]), variants)}; only the recipe file can add a variant"
            refuse(COMMAND_LINE, text, ("variants", *key))
        overrides.setdefault(name, []).append(Override(key, COMMAND_LINE, read_value(value)))
    return overrides


def _build(
    tables: Table[str, Settings], issues: Issues, start: Position, option_check: OptionCheck | None
) -> dict[str, Built]:
    """Build every variant; combinations of keys are checked only if every value is valid alone."""
    built = {}
    for issues.variant, settings in tables.items():
        result = build(settings, issues, start)
        if result is not None:
            built[issues.variant] = result
    if not issues:
        for issues.variant, result in built.items():
            recipe = result.recipe
            for text, *keys in (*rules.issues_of(recipe), *capability.issues_of(recipe, option_check)):
                issues.add(*result.blame(keys, start), text)
    issues.variant = None
    return built


def _baseline(named: Sequence[Node], variants: list[str], swept: Table[str, list[str]]) -> str | None:
    """Return the variant to compare with: the last one named, otherwise the first of several."""
    if not named or is_null(named[-1]):
        return variants[0] if len(variants) > 1 else None
    node = named[-1]
    word = node.text if isinstance(node, Scalar) else ""
    baseline = next((name for name in (word, *swept.get(word, [])) if name in variants), None)
    if baseline is None:
        text = f"must be the name of a variant, got {written(node)}; {hint(word, variants)}"
        refuse(node.place, text, ("baseline",))
    return baseline
