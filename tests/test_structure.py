"""The shape of the source: who imports whom, what is never called, how long things get."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import attnkit

ROOT = Path(attnkit.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))

LAYERS = (
    "__main__",
    "cli",
    "api",
    "show",
    "bench",
    "contract",
    "experiment",
    "export",
    "nbce",
    "analysis",
    "train",
    "scoring",
    "search",
    "huggingface",
    "runs",
    "models",
    "layers",
    "mechanisms",
    "attention",
    "ops",
    "data",
    "recipe",
    "storage",
    "distributed",
    "memory",
    "device",
    "text",
    "errors",
    "__init__",
)
"""From top to bottom: a module imports from its own package and from lower layers only.  What is no
package here is a module in the root."""

LIGHT = (
    "cli",
    "recipe",
    "device",
    "text",
    "errors",
    "__init__",
    "mechanisms/__init__",
    "train/events",
    "show/training_board",
)
"""No torch, numpy, sentencepiece or sacrebleu at import: `--help` and a bad recipe are fast."""
HEAVY = ("torch", "numpy", "sentencepiece", "sacrebleu", "rouge_score", "safetensors", "matplotlib")

LONGEST_FILE, LONGEST_FUNCTION = 450, 60


def name_of(path: Path) -> str:
    """cli/train for attnkit/cli/commands/train.py."""
    return path.relative_to(ROOT).with_suffix("").as_posix()


def layer_of(module: str) -> int:
    """The number of the layer of a module written as in `name_of`; 0 is the top."""
    return LAYERS.index(module.split("/")[0])


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def runtime_nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those below `if TYPE_CHECKING:`."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from runtime_nodes(child)


@cache
def imported(path: Path) -> list[str]:
    """The modules of attnkit that a file imports when it runs, in the form of `name_of`."""
    names = []
    for node in runtime_nodes(tree_of(path)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return [module_of(name) for name in names if name.split(".")[0] == "attnkit"]


@cache
def module_of(dotted: str) -> str:
    """The file that a dotted name leads to: attnkit.text.safe_text -> text."""
    parts = dotted.split(".")[1:]
    while parts:
        if ROOT.joinpath(*parts).with_suffix(".py").exists():
            return "/".join(parts)
        if ROOT.joinpath(*parts, "__init__.py").exists():
            return "/".join([*parts, "__init__"])
        parts.pop()
    return "__init__"


def test_imports_point_downwards_only() -> None:
    for here, there in ((name_of(path), there) for path in FILES for there in imported(path)):
        same_package = here.split("/")[0] == there.split("/")[0]
        assert same_package or layer_of(here) < layer_of(there), f"{here} imports {there}"


def test_modules_that_answer_at_once_import_nothing_heavy() -> None:
    """In a fresh interpreter, since other tests have imported torch."""
    names = [path for path in FILES if name_of(path) in LIGHT or name_of(path).split("/")[0] in LIGHT]
    modules = ["attnkit." + name_of(path).replace("/", ".") for path in names]
    modules = [m.removesuffix(".__init__") for m in modules if not m.endswith("__main__")]
    code = (
        "import sys, importlib\n"
        f"for name in {modules!r}: importlib.import_module(name)\n"
        f"print(*(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT.parent)
    assert done.stdout.split() == []


BANNED = (
    "pickle.load",
    "pickle.loads",
    "pickle.Unpickler",
    "marshal.loads",
    "yaml.load",
    "yaml.full_load",
    "yaml.unsafe_load",
    "eval",
    "exec",
    "os.system",
    "torch.load",
)


def test_nothing_runs_code_from_files_and_only_the_command_line_prints() -> None:
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.Call):
                continue
            called, here = ast.unparse(node.func), f"{path}:{node.lineno}"
            assert called not in BANNED, f"{here}: {called}"
            assert not called.endswith(".extractall"), here
            assert called != "print" or name_of(path).startswith("cli/"), here
            for keyword in node.keywords:
                given = (keyword.arg, ast.unparse(keyword.value))
                assert given not in {("shell", "True"), ("weights_only", "False")}, here


def test_files_and_functions_fit_a_reader() -> None:
    """A command's function is measured without its parameters, which are its help text."""
    for path in FILES:
        lines = path.read_text(encoding="utf-8").count("\n")
        assert lines <= LONGEST_FILE, f"{path}: {lines} lines"
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[0].lineno if name_of(path).startswith("cli/") else node.lineno
                length = (node.end_lineno or first) - first + 1
                assert length <= LONGEST_FUNCTION, f"{path}: {node.name}: {length} lines"


def test_source_is_ascii_and_documented() -> None:
    """A character beyond ASCII is allowed where it is the subject: glyphs, corpora, languages."""
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        assert ast.get_docstring(tree_of(path)), f"{path}: no module docstring"
        if not name_of(path).startswith(("show/", "data/synthetic/")):
            assert text.isascii(), (path, [c for c in text if not c.isascii()][:5])


def test_the_root_holds_what_every_layer_may_use_and_nothing_else() -> None:
    found = {path.stem for path in ROOT.glob("*.py")}
    assert found == {"__init__", "__main__", "device", "errors", "memory", "text"}


def test_packages_import_each_other_without_a_circle() -> None:
    """Modules of one package may import each other, but not in a circle."""
    graph = {name_of(path): set(imported(path)) for path in FILES}

    def reach(module: str, seen: tuple[str, ...]) -> None:
        assert module not in seen, " -> ".join((*seen, module))
        for there in graph[module]:
            if there in done:
                continue
            reach(there, (*seen, module))
        done.add(module)

    done: set[str] = set()
    for module in graph:
        reach(module, ())


def test_one_name_is_one_thing() -> None:
    """No two classes have one name."""
    places: dict[str, list[str]] = {}
    for path in FILES:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name_of(path))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_package_says_in_one_line_what_it_is_for() -> None:
    for path in ROOT.rglob("__init__.py"):
        first = (ast.get_docstring(tree_of(path)) or "").partition("\n")[0]
        assert first.endswith("."), f"{name_of(path)}: {first!r}"


def test_a_package_says_where_to_start() -> None:
    """Its docstring names three things of it, which are there, and what it imports."""
    for path in ROOT.glob("*/__init__.py"):
        said = " ".join((ast.get_docstring(tree_of(path)) or "").split())
        if path.parent.name == "cli":
            continue
        start = re.search(r"Start with .*Imports ", said)
        assert start, f"{path}: no 'Start with' and 'Imports'"
        for module, name in re.findall(r"`(\w+)\.(\w+)`", start[0]):
            text = (path.parent / f"{module}.py").read_text("utf-8")
            assert re.search(rf"^(class|def) {name}\b|^{name}\b.* = ", text, re.MULTILINE), name


def test_mutations_change_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The texts of `benchmarks/mutations.py` follow the code, and so do the tests it names."""
    repository = Path(__file__).parents[1]
    monkeypatch.syspath_prepend(str(repository / "benchmarks"))
    for file, old, _, tests in importlib.import_module("mutations").changes():
        assert old in (ROOT / file).read_text("utf-8"), f"{file}: {old}"
        for name in tests.split():
            assert (repository / "tests" / name).exists(), name
