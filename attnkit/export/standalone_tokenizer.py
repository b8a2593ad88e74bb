"""Module tokenizer.py of an exported folder: encodes and decodes by attnkit's own code, without attnkit installed.

sentencepiece alone does not suffice: text is normalized first, and special symbols are never split.
"""

import importlib.util
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from attnkit.data import pieces, text_form
from attnkit.data.tokenizer import BOS, EOS, SOURCE_FILE, TARGET_FILE, LabelVocabulary, Tokenizer
from attnkit.recipe import Recipe

FILE = "tokenizer.py"
END = """

_FOLDER = Path(__file__).parent
source = Pieces((_FOLDER / "{source}").read_bytes(), "{form}")
target = {target}
"""


def write(tokenizer: Tokenizer, folder: Path) -> None:
    """Write the vocabularies and the module that reads them."""
    tokenizer.save(folder)
    code = inspect.getsource(pieces)
    for line in code.splitlines(keepends=True):
        if line.startswith("from attnkit."):
            code = code.replace(line, "from pathlib import Path\n")
    target = "source"
    if not tokenizer.shared and not isinstance(tokenizer.target, LabelVocabulary):
        target = f'Pieces((_FOLDER / "{TARGET_FILE}").read_bytes(), "{tokenizer.target.form}")'
    end = END.format(source=SOURCE_FILE, form=tokenizer.source.form, target=target)
    (folder / FILE).write_text(f"{inspect.getsource(text_form)}\n\n{code}{end}", encoding="utf-8")


def encoder(folder: Path, recipe: Recipe) -> Callable[[Sequence[str]], list[list[int]]]:
    """Import the module of a folder, and return a function that encodes sources with their special tokens."""
    spec = importlib.util.spec_from_file_location("exported_tokenizer", folder / FILE)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    max_tokens = max(1, recipe.data.max_length - 1)

    def encode(texts: Sequence[str]) -> list[list[int]]:
        if recipe.prompts:
            return [[BOS, *ids[-max_tokens:]] for ids in module.target.encode(texts)]
        suffix = [EOS, BOS] if recipe.model.shape == "decoder" else [EOS]
        return [[*ids[:max_tokens], *suffix] for ids in module.source.encode(texts)]

    return encode
