"""Tests of the source: imports between layers, forbidden calls, lengths, names and docstrings."""

import ast
import importlib
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import attnkit

ROOT = Path(attnkit.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

LAYERS = (
    *("__main__", "cli", "api", "show", "bench", "contract", "experiment", "export", "nbce", "analysis", "train"),
    *("scoring", "search", "huggingface", "runs", "models", "layers", "mechanisms", "attention", "ops", "data"),
    *("recipe", "storage", "distributed", "memory", "device", "text", "errors", "__init__"),
)
"""Packages, and modules in the root, from top to bottom. A module imports from its package and lower layers only."""
LIGHT = (
    *("cli", "recipe", "device", "text", "errors", "__init__", "mechanisms/__init__", "train/events"),
    "show/training_board",
)
"""Packages and modules that import nothing of HEAVY, so that `--help` and errors in recipes are fast."""
HEAVY = ("torch", "numpy", "sentencepiece", "sacrebleu", "rouge_score", "safetensors", "matplotlib")
MAX_FILE, MAX_FUNCTION = 450, 60
"""Numbers of lines."""


def name_of(path: Path) -> str:
    """Return the name of a module: cli/commands/train for attnkit/cli/commands/train.py."""
    return path.relative_to(ROOT).with_suffix("").as_posix()


def package_of(module: str) -> str:
    return module.split("/")[0]


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def nodes(kind: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    """Yield all nodes of a kind with their files."""
    for path in FILES:
        yield from ((path, node) for node in ast.walk(tree_of(path)) if isinstance(node, kind))


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes except those below `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from runtime_nodes(child)


@cache
def imports_of(path: Path) -> list[str]:
    """Return the modules of attnkit that a file imports at run time."""
    names = []
    for node in runtime_nodes(tree_of(path)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return [module_of(name) for name in names if name.split(".")[0] == "attnkit"]


@cache
def module_of(dotted: str) -> str:
    """Return the module that defines a dotted name: attnkit.text.safe_text -> text."""
    parts = dotted.split(".")[1:]
    while parts:
        if ROOT.joinpath(*parts).with_suffix(".py").exists():
            return "/".join(parts)
        if ROOT.joinpath(*parts, "__init__.py").exists():
            return "/".join([*parts, "__init__"])
        parts.pop()
    return "__init__"


def test_modules_import_only_their_package_and_lower_layers() -> None:
    for path in FILES:
        own = package_of(name_of(path))
        for module in imports_of(path):
            other = package_of(module)
            assert own == other or LAYERS.index(own) < LAYERS.index(other), f"{path} imports {module}"


def test_light_modules_import_nothing_heavy() -> None:
    """In a new process, since other tests have imported torch."""
    names = [name_of(path) for path in FILES]
    names = [name for name in names if name in LIGHT or package_of(name) in LIGHT]
    modules = [f"attnkit/{name}".replace("/", ".").removesuffix(".__init__") for name in names]
    code = (
        "import sys, importlib\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print(*(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert done.stdout.split() == []


BANNED = (
    *("pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.loads", "yaml.load", "yaml.full_load"),
    *("yaml.unsafe_load", "eval", "exec", "os.system", "torch.load"),
)


def test_no_call_runs_code_from_files_and_only_the_command_line_prints() -> None:
    for path, node in nodes(ast.Call):
        function, place = ast.unparse(node.func), f"{path}:{node.lineno}"
        assert function not in BANNED, f"{place}: {function}"
        assert not function.endswith(".extractall"), place
        assert function != "print" or name_of(path).startswith("cli/"), place
        arguments = {(keyword.arg, ast.unparse(keyword.value)) for keyword in node.keywords}
        assert not arguments & {("shell", "True"), ("weights_only", "False")}, place


def test_files_and_functions_are_short() -> None:
    """A function of cli counts without its parameters, which are its help text."""
    for path in FILES:
        lines = path.read_text(encoding="utf-8").count("\n")
        assert lines <= MAX_FILE, f"{path}: {lines} lines"
    for path, node in nodes(ast.FunctionDef | ast.AsyncFunctionDef):
        first = node.body[0].lineno if name_of(path).startswith("cli/") else node.lineno
        length = node.end_lineno - first + 1
        assert length <= MAX_FUNCTION, f"{path}: {node.name}: {length} lines"


def test_source_is_ascii_and_documented() -> None:
    """Other characters are allowed in show and in data/synthetic: glyphs and languages."""
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert ast.get_docstring(tree_of(path)), f"{path}: no module docstring"
        if not name_of(path).startswith(("show/", "data/synthetic/")):
            assert text.isascii(), (path, [c for c in text if not c.isascii()][:5])


def test_the_root_contains_only_modules_for_all_layers() -> None:
    assert {path.stem for path in ROOT.glob("*.py")} == {"__init__", "__main__", "device", "errors", "memory", "text"}


def test_imports_have_no_cycle() -> None:
    graph = {name_of(path): set(imports_of(path)) for path in FILES}
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join((*above, module))
        for imported in graph[module] - done:
            visit(imported, (*above, module))
        done.add(module)

    for module in graph:
        visit(module, ())


def test_class_names_are_unique() -> None:
    places = defaultdict(list)
    for path, node in nodes(ast.ClassDef):
        places[node.name].append(name_of(path))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_docstrings_of_packages_begin_with_a_sentence() -> None:
    for path in ROOT.rglob("__init__.py"):
        first = (ast.get_docstring(tree_of(path)) or "").partition("\n")[0]
        assert first.endswith("."), f"{name_of(path)}: {first!r}"


def test_docstrings_of_packages_name_existing_starting_points_and_imports() -> None:
    for path in ROOT.glob("*/__init__.py"):
        if path.parent.name == "cli":
            continue
        docstring = " ".join((ast.get_docstring(tree_of(path)) or "").split())
        start = re.search(r"Start with .*Imports ", docstring)
        assert start, f"{path}: no 'Start with' and 'Imports'"
        for module, name in re.findall(r"`(\w+)\.(\w+)`", start[0]):
            text = (path.parent / f"{module}.py").read_text("utf-8")
            assert re.search(rf"^(class|def) {name}\b|^{name}\b.* = ", text, re.MULTILINE), name


def test_mutations_name_existing_code_and_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """`benchmarks/mutations.py` must follow changes of the code and renamed tests."""
    repository = Path(__file__).parents[1]
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    for file, old, _, tests in importlib.import_module("mutations").changes():
        assert old in (ROOT / file).read_text("utf-8"), f"{file}: {old}"
        for name in tests.split():
            assert (repository / "tests" / name).exists(), name
