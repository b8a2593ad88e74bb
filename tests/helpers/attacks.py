"""Attacks on files, for the tests and `benchmarks/attack.py`: what commands make of them.

Each yields cases for ever, drawn from a generator of random numbers; "FAULT" is the verdict of one
that breaks a promise.
"""

import contextlib
import io
import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from attnkit.cli import main
from attnkit.errors import AttnkitError
from attnkit.experiment.verification import verify
from attnkit.storage.files import sha256_file, sha256_json
from helpers import mutations

OTHERS: tuple[Any, ...] = (None, True, -1, 1.5, "text", [], {}, [[]], 10**30, 10**400, "\ud800")


class Case(NamedTuple):
    """One attempt."""

    kind: str
    verdict: str
    """What came of it, for the count; "FAULT" where a promise was broken."""
    detail: str = ""


def here(*words: str) -> tuple[int, str]:
    """A command in this process: exit code and messages; what leaves it is a traceback."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except BaseException as error:
            return 1, f"Traceback {error!r}"
    return code, err.getvalue()


def one_line(kind: str, code: int, err: str) -> Case:
    """What a command with damaged input may do: go on, or refuse it in one line."""
    errors = [line for line in err.splitlines() if line.startswith("attnkit: error: ")]
    if code == 0 or (code in (2, 65, 66, 69, 73, 78) and len(errors) == 1):
        return Case(kind, "refused" if code else "went on")
    return Case(kind, "FAULT", f"{code}: {err[-300:]}")


def subjects(folder: Path) -> list[Path]:
    """A finished and a stopped run, by the helper of the tests."""
    made = [mutations.subject(folder / name, finished=name == "finished") for name in ("finished", "stopped")]
    return [mutations.run_in(one.folder / "runs") for one in made]


def flips(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Bits of files, and `verify`."""
    runs = subjects(folder)
    outputs = ("hyp.txt", "stats.npz")
    while True:
        run = draw.choice(runs)
        files = [path for path in run.rglob("*") if path.is_file() and path.name != ".lock"]
        path = draw.choice([path for path in files if path.stat().st_size])
        whole = path.read_bytes()
        data = bytearray(whole)
        data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
        path.write_bytes(data)
        kind = "outputs" if path.name.endswith(outputs) else path.name
        try:
            found = any(check.state == "different" for check in verify(run, 0))
            same = not found and path.suffix == ".json" and equal(whole, data)
            verdict = "found" if found else "reads the same" if same else "FAULT"
            yield Case(kind, verdict, str(path))
        except BaseException as error:
            if isinstance(error, GeneratorExit):
                raise
            yield Case(kind, "FAULT", f"{path}: {error!r}")
        finally:
            path.write_bytes(whole)


def equal(one: bytes, other: bytearray) -> bool:
    with contextlib.suppress(ValueError):
        return bool(json.loads(one) == json.loads(other))
    return False


def changed(value: Any, draw: random.Random) -> Any:
    """The same JSON value with one entry of another type, or without it."""
    value = json.loads(json.dumps(value))
    places = list(mutations._leaves(value))
    if not places:
        return draw.choice(OTHERS)
    *above, last = draw.choice(places)
    place = value
    for key in above:
        place = place[key]
    if draw.random() < 0.2 and isinstance(place, dict):
        del place[last]
    else:
        place[last] = draw.choice(OTHERS)
    return value


def crafted(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Well-formed JSON with wrong content, signed."""
    run = subjects(folder)[0]
    page, packed = str(folder / "page.html"), str(folder / "packed")
    while True:
        copy = folder / "copy/recipe/base/seed-1"
        shutil.rmtree(folder / "copy", ignore_errors=True)
        shutil.copytree(run, copy)
        paths = [*copy.glob("*.json*"), *(copy / "data").iterdir()]
        path = draw.choice(paths)
        lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
        at = draw.randrange(len(lines))
        lines[at] = json.dumps(changed(json.loads(lines[at]), draw))
        path.write_text("\n".join(lines) + "\n")
        if path.parent.name == "data" and path.suffix == ".jsonl":
            sign_rows(path)
        with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
            mutations._sign(path)  # what cannot be signed is refused by its hash
        words = draw.choice(
            (
                ("verify", str(copy)),
                ("eval", str(copy)),
                ("report", str(copy), "-o", page),
                ("plot", str(copy)),
                ("runs", str(copy)),
                ("generate", str(copy), str(folder / "finished/input.txt"), "--device", "cpu"),
                ("runs", "pack", str(copy), "--results", "-o", packed),
            )
        )
        case = one_line(f"{path.name}, {words[0]}", *here(*words))
        yield case._replace(detail=f"{case.detail} {lines[at][:300]}" if case.detail else "")


def sign_rows(path: Path) -> None:
    """Make the note of rows, and the manifest, agree with them."""
    note = path.with_suffix(".json")
    told = json.loads(note.read_bytes()) | {"sha256": sha256_file(path)}
    note.write_text(json.dumps(told))
    mutations._sign(note)


def pretrained(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Settings of Hugging Face models."""
    from attnkit.huggingface import open_model
    from helpers.pretrained import saved

    original = saved(folder / "gpt2", "gpt2")
    while True:
        copy = Path(shutil.copytree(original, folder / "copy", dirs_exist_ok=True))
        kind = draw.choice(["index", *(path.name for path in original.glob("*.json"))])
        path = copy / (kind if kind != "index" else "model.safetensors.index.json")
        value: Any = {"metadata": {}, "weight_map": {"wte": "model.safetensors"}}
        if kind != "index":
            value = changed(json.loads(path.read_bytes()), draw)
        elif draw.random() < 0.5:
            names = ("pytorch_model.bin", "../x.safetensors", "/x.safetensors", "x/y.safetensors")
            value["weight_map"]["wte"] = draw.choice(names)
        else:
            value = changed(value, draw)
        deep = draw.random() < 0.05
        path.write_text("[" * 100_000 + "]" * 100_000 if deep else json.dumps(value))
        try:
            open_model(copy, device="cpu")
            yield Case(kind, "went on")
        except AttnkitError as error:
            yield Case(kind, "refused" if "\n" not in str(error) else "FAULT", str(error))
        except Exception as error:
            yield Case(kind, "FAULT", f"{error!r} {json.dumps(value)[:200]}")
        finally:
            shutil.rmtree(copy)


def caches(folder: Path, draw: random.Random) -> Iterator[Case]:
    """Files of the cache; `folder` has toy.yaml and its runs in whole/."""
    weights = (folder / "whole/runs/toy/base/seed-1/model.safetensors").read_bytes()
    while True:
        cache, out = folder / "cache", folder / "out"
        for path in (cache, out):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(folder / "whole/cache", cache)
        files = [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size]
        path = draw.choice(files)
        if path.suffix == ".json" and draw.random() < 0.6:
            value = changed(json.loads(path.read_bytes()), draw)
            if isinstance(value, dict) and draw.random() < 0.6:
                inside = "content" if "content" in value else "value"
                with contextlib.suppress(ValueError):
                    value["sha256"] = sha256_json(value.get(inside))
            path.write_text(json.dumps(value))
        else:
            data = bytearray(path.read_bytes())
            data[draw.randrange(len(data))] ^= 1 << draw.randrange(8)
            path.write_bytes(data)
        os.environ["ATTNKIT_CACHE"] = str(cache)
        words = ("--device", "cpu", "--quiet", "--variant", "base", "--seed", "1", "--out")
        code, err = here("train", str(folder / "whole/toy.yaml"), *words, str(out))
        kind = path.relative_to(cache).parts[0]
        same = code == 0 and (out / "toy/base/seed-1/model.safetensors").read_bytes() == weights
        yield Case(kind, "same weights" if same else "FAULT", f"{path}: {code}: {err[-300:]}")
