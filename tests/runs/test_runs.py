"""The run directory: what is written comes back, and what is damaged is named."""

import os
import random
import re
import shutil
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.faults import FAULTS, FaultyDisk, Killed, use_disk

import attnkit
from attnkit import models
from attnkit.data.rows import Row
from attnkit.data.tokenizer import Tokenizer
from attnkit.errors import DataError, MissingInputError, OutputError, OutputPathError
from attnkit.experiment.verification import verify
from attnkit.recipe import Recipe, difference
from attnkit.runs import Run, find_runs, is_run, run_path
from attnkit.runs.json_files import Finished, StoredMetric, StoredSplit
from attnkit.runs.layout import run_paths
from attnkit.runs.run_corpus import RunCorpus
from attnkit.runs.status import statuses
from attnkit.storage.files import json_text, sha256_file
from attnkit.train import checkpoint

RECIPE = Recipe.model_validate(
    {
        "task": "translation",
        "data": {"corpus": "toy-translation", "max_length": 20},
        "tokenizer": {"type": "char", "size": 30},
        "model": {"width": 8, "heads": 2, "ff": 16, "layers": {"encoder": 1, "decoder": 1}, "tie": "all"},
    }
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """A vocabulary of characters."""
    return Tokenizer.train(RECIPE.tokenizer, [Row("a b c d", "d c b a e f")] * 5)


def begin(path: Path, *, variant: str = "base", seed: int = 1, name: str = "toy") -> Run:
    """A new run."""
    return Run.create(path, RECIPE, name=name, variant=variant, seed=seed)


def build(tokenizer: Tokenizer) -> models.Model:
    """A model of the recipe."""
    sizes = (len(tokenizer.source), len(tokenizer.target))
    return models.build(RECIPE.model, sizes, RECIPE.data.max_length).eval()


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """A finished run."""
    run = begin(tmp_path_factory.mktemp("runs") / "seed-1")
    run.write_tokenizer(tokenizer)
    run.log.append({"step": 1, "loss": 2.5})
    torch.manual_seed(3)
    run.finish(build(tokenizer).state_dict(), step=1, seconds=0.5, reason="steps")
    run.write_scores("test", ["eins", "", "drei"], StoredSplit(metrics={"bleu": StoredMetric(score=40.0)}))
    return run.path


@pytest.fixture(autouse=True)
def _unsynced() -> Iterator[None]:
    """A disk that is not synced."""
    with use_disk(FaultyDisk()):
        yield


@pytest.fixture
def finished(pristine: Path, tmp_path: Path) -> Run:
    """A finished run that a test may change."""
    shutil.copytree(pristine, tmp_path / "copy")
    return Run(tmp_path / "copy")


def test_the_folder_is_made_of_recipe_variant_and_seed() -> None:
    path = run_path("runs", "translation/multi30k", "vanilla", 3)
    assert path == Path("runs/translation/multi30k/vanilla/seed-3")


@pytest.mark.parametrize(
    ("name", "variant"), [("..", "a"), ("a/../..", "b"), ("/etc", "a"), ("a", ".."), ("a", "b/c"), ("a", "")]
)
def test_no_name_leads_out_of_the_root(name: str, variant: str) -> None:
    with pytest.raises(OutputPathError, match="cannot be the name of a folder"):
        run_path("runs", name, variant, 1)


def test_a_new_run_has_its_recipe_and_manifest(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "seed-4"
    Run.create(path, RECIPE, name="x/toy", variant="v", seed=4, hashes={"data": "d"}, device="cpu", threads=2)
    run = Run.open(path)
    assert run.recipe == RECIPE
    assert difference(run.recipe, RECIPE) == []
    assert (run.name, run.variant, run.seed) == ("x/toy", "v", 4)
    assert run.exists
    assert not run.finished
    manifest = run.read_json("manifest.json")
    assert len(manifest.pop("sha256")) == 64
    assert manifest.pop("python") == ".".join(map(str, sys.version_info[:3]))
    assert manifest.pop("torch") in torch.__version__
    assert manifest == {
        "format": 2,
        "attnkit": attnkit.__version__,
        "recipe": "x/toy",
        "variant": "v",
        "seed": 4,
        "files": {"recipe.yaml": sha256_file(path / "recipe.yaml")},
        "hashes": {"data": "d"},
        "device": "cpu",
        "threads": 2,
    }


def test_updates_of_the_manifest_merge_objects(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.update(hashes={"data": "1"}, parameters=10)
    run.update(hashes={"tokenizer": "2"})
    again = Run.open(tmp_path)
    assert again.manifest.hashes == {"data": "1", "tokenizer": "2"}
    assert again.manifest.parameters == 10


def test_a_run_is_never_begun_over_another(tmp_path: Path) -> None:
    begin(tmp_path / "run")
    with pytest.raises(OutputPathError, match=r"already holds manifest\.json .*--fresh"):
        begin(tmp_path / "run")
    (tmp_path / "half" / "checkpoints").mkdir(parents=True)
    with pytest.raises(OutputPathError, match="already holds checkpoints"):
        begin(tmp_path / "half")


def test_a_half_begun_run_is_begun_again(tmp_path: Path) -> None:
    counter = FaultyDisk()
    create = {"name": "toy", "variant": "base", "seed": 1}
    with use_disk(counter):
        Run.create(tmp_path / "dry", RECIPE, **create)
    for at in range(1, counter.count):
        path = tmp_path / str(at)
        with pytest.raises(Killed), use_disk(FaultyDisk(at, Killed)):
            Run.create(path, RECIPE, **create)
        with Run(path).lock():
            run = Run(path) if Run(path).exists else begin(path)
        assert run.recipe == RECIPE
        assert not list(path.glob("*.tmp-*"))


def test_clearing_removes_the_run_and_nothing_else(finished: Run) -> None:
    checkpoint.save(finished, 1, {}, {})
    (finished.path / "notes.txt").write_text("mine")
    (finished.path / "recipe.yaml.tmp-999999999").write_text("")
    with finished.lock():
        finished.clear()
    assert sorted(os.listdir(finished.path)) == [".lock", "notes.txt"]
    assert not finished.exists
    assert begin(finished.path).recipe == RECIPE


def test_a_changed_recipe_can_be_stored(finished: Run) -> None:
    other = RECIPE.model_copy(update={"train": RECIPE.train.model_copy(update={"steps": 7})})
    assert difference(finished.recipe, other) == ["train.steps: 1000 -> 7"]
    finished.replace_recipe(other)
    assert Run.open(finished.path).recipe == other
    assert finished.recipe == other


def test_the_trained_model_comes_back(finished: Run, tokenizer: Tokenizer) -> None:
    torch.manual_seed(3)
    expected = build(tokenizer)
    random_state = torch.get_rng_state()
    model = Run.open(finished.path).model()
    assert torch.equal(torch.get_rng_state(), random_state)
    assert not model.training
    source, ids = torch.tensor([[4, 5, 3]]), torch.tensor([[2, 6]])
    assert torch.equal(model(source, ids), expected(source, ids))
    assert finished.tokenizer().digest == tokenizer.digest
    assert finished.outcome == Finished(step=1, seconds=0.5, reason="steps")


def test_tied_weights_are_stored_once(finished: Run, tokenizer: Tokenizer) -> None:
    model = build(tokenizer)
    stored = finished.weights()
    assert len(stored) < len(model.state_dict())
    assert set(stored) == {name for name, _ in model.named_parameters()}


def test_weights_that_are_given_under_all_names_are_fine(finished: Run, tokenizer: Tokenizer) -> None:
    model = build(tokenizer)
    copies = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    finished.finish(copies, step=2, seconds=1, reason="steps")
    ids = torch.tensor([[2, 6]])
    source = torch.tensor([[4, 5, 3]])
    assert torch.equal(finished.model()(source, ids), model(source, ids))


def test_a_second_tokenizer_leaves_nothing_of_the_first(finished: Run) -> None:
    rows = [Row("a b c d", "w x y z")] * 5
    spec = RECIPE.tokenizer.model_copy(update={"shared": False, "size": 12})
    finished.write_tokenizer(Tokenizer.train(spec, rows))
    assert not finished.tokenizer().shared
    finished.write_tokenizer(Tokenizer.train(RECIPE.tokenizer, rows))
    assert finished.tokenizer().shared


def test_new_weights_remove_the_scores_of_the_old(finished: Run, tokenizer: Tokenizer) -> None:
    assert finished.scores()
    finished.finish(build(tokenizer).state_dict(), step=2, seconds=1, reason="steps")
    assert finished.scores() == {}


def test_weights_of_another_model_are_refused(finished: Run, tokenizer: Tokenizer) -> None:
    state = build(tokenizer).state_dict()
    name = next(iter(state))
    for change, words in [
        (lambda s: s.pop(name), "is missing"),
        (lambda s: s.update(extra=torch.zeros(1)), "extra is unexpected"),
        (lambda s: s.update({name: torch.zeros(2)}), r"must be float32 .*, got float32 \[2\]"),
        (lambda s: s.update({name: s[name].double()}), "got float64"),
        (lambda s: s.update({name: s[name] * float("nan")}), "holds NaN"),
    ]:
        weights = {key: tensor.clone() for key, tensor in state.items()}
        change(weights)
        finished.finish(weights, step=1, seconds=1, reason="steps")
        with pytest.raises(DataError, match=words):
            finished.model()


def test_what_is_not_a_run_says_what_is_missing(finished: Run, tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="no such run; `attnkit train RECIPE`"):
        Run.open(tmp_path / "absent")
    with pytest.raises(MissingInputError, match=r"manifest\.json is missing; there are runs in .*copy"):
        Run.open(tmp_path)
    with pytest.raises(MissingInputError, match=r"\(config\.json\); there are runs in .*copy"):
        is_run(str(tmp_path))
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingInputError, match=r"json\); a run is a seed-N folder$"):
        is_run(str(tmp_path / "empty"))
    (finished.path / "recipe.yaml").unlink()
    with pytest.raises(MissingInputError, match=r"recipe\.yaml is missing$"):
        Run.open(finished.path)


def test_an_unfinished_run_says_how_to_go_on(tmp_path: Path, tokenizer: Tokenizer) -> None:
    run = begin(tmp_path)
    with pytest.raises(MissingInputError, match=r"tokenizer\.model: no such file"):
        run.tokenizer()
    run.write_tokenizer(tokenizer)
    with pytest.raises(MissingInputError, match="not finished; run `attnkit train` again"):
        run.model()


@pytest.mark.parametrize("name", ["recipe.yaml", "tokenizer.model", "model.safetensors", "manifest.json"])
def test_a_damaged_part_is_named_and_never_used(finished: Run, name: str) -> None:
    path = finished.path / name
    whole = path.read_bytes()
    rng = random.Random(name)
    refused = 0
    for _ in range(20):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        text = None
        try:
            run = Run.open(finished.path)
            run.model()
        except (DataError, MissingInputError) as error:
            refused += 1
            text = str(error)
        assert text is None or (str(finished.path) in text and "\n" not in text)
    assert refused == 20 or name == "manifest.json"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not valid JSON"),
        ("[]", "must hold a JSON object"),
        ("{}", "recipe is missing"),
        ('{"sha256": "0"}', r"was changed \(its SHA-256"),
        ("[" * 100_000, "not valid JSON"),
    ],
)
def test_a_malformed_manifest_is_named(finished: Run, text: str, reason: str) -> None:
    (finished.path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=rf"manifest\.json: {reason}.*; .*with --fresh"):
        assert Run.open(finished.path).seed


def test_a_manifest_without_the_hash_of_the_weights_is_refused(finished: Run) -> None:
    finished.update(files={"model.safetensors": None})
    with pytest.raises(DataError, match=r"the SHA-256 of model\.safetensors is missing"):
        finished.model()


def test_scores_of_splits_are_merged(finished: Run) -> None:
    finished.write_scores("test_2017", ["zwei\u2028halb"], StoredSplit())
    assert list(finished.scores()) == ["test", "test_2017"]
    assert finished.scores()["test"].metrics["bleu"].score == 40.0
    assert finished.output_path("test").read_text() == "eins\n\ndrei\n"
    assert finished.output_path("test_2017").read_text().split("\n") == ["zwei\u2028halb", ""]
    with pytest.raises(ValueError, match="line break"):
        finished.write_scores("test", ["two\nlines"], StoredSplit())
    with pytest.raises(OutputPathError):
        finished.output_path("../../x")


def test_scores_of_other_splits_stay_to_the_letter(finished: Run) -> None:
    path = finished.path / "scores.json"
    text = json_text({"test": {"later": [1], "metrics": {"bleu": {"score": 40}}}})
    path.write_text(text)
    finished.record(path.name, sha256_file(path))
    finished.write_scores("test_2017", ["a"], StoredSplit())
    assert path.read_text().startswith(text.removesuffix("\n}\n") + ",\n")


def test_what_another_process_has_written_is_no_damage(finished: Run) -> None:
    """Two evaluations at once: each knows the manifest as it was when it began."""
    other = Run(finished.path)
    assert other.manifest == finished.manifest
    finished.write_scores("test_2017", ["a"], StoredSplit())
    finished.update(parameters=5)
    other.write_scores("test_2018", ["b"], StoredSplit())
    assert list(finished.scores()) == ["test", "test_2017", "test_2018"]
    assert Run.open(finished.path).manifest.parameters == 5


@pytest.mark.sampled(9)
@pytest.mark.parametrize("fault", FAULTS)
def test_whatever_operation_fails_a_run_is_unfinished_or_whole(
    tmp_path: Path, pristine: Path, tokenizer: Tokenizer, fault: str
) -> None:
    """finish() over an older end: old model, new model, or a run that says it must go on."""
    weights = {name: tensor + 1 for name, tensor in build(tokenizer).state_dict().items()}
    old = Run(pristine).weights()
    counter = FaultyDisk()
    shutil.copytree(pristine, tmp_path / "dry")
    with use_disk(counter):
        Run(tmp_path / "dry").finish(weights, step=9, seconds=1, reason="steps")
    new = Run(tmp_path / "dry").weights()
    for at in range(1, counter.count + 1):
        path = tmp_path / str(at)
        shutil.copytree(pristine, path)
        refused = pytest.raises((OutputError, OutputPathError, Killed))
        with refused, use_disk(FaultyDisk(at, **FAULTS[fault])):
            Run(path).finish(weights, step=9, seconds=1, reason="steps")
        with Run(path).lock():
            assert not list(path.glob("*.tmp-*"))
        run = Run.open(path)
        if run.finished:
            expected = new if run.manifest.finished.step == 9 else old
            stored = run.weights()
            assert all(torch.equal(stored[name], expected[name]) for name in expected)
        begun = Run(path)
        begun.finish(weights, step=9, seconds=1, reason="steps")
        assert begun.finished


def test_the_log_is_cut_back_to_a_step_and_goes_on(tmp_path: Path) -> None:
    run = begin(tmp_path)
    path = tmp_path / "metrics.jsonl"
    run.log.truncate(None)
    for step in range(1, 6):
        run.log.append({"step": step, "loss": 1 / step, "grad_norm": float("inf")})
    unbroken, digest = path.read_bytes(), run.log.digest()
    with open(path, "ab") as file:
        file.write(b'{"step": 6, "lo')
    assert len(run.log.records()) == 5
    run.log.truncate(3)
    assert [record["step"] for record in run.log.records()] == [1, 2, 3]
    for step in range(4, 6):
        run.log.append({"step": step, "loss": 1 / step, "grad_norm": float("inf")})
    assert path.read_bytes() == unbroken
    assert run.log.digest() == digest
    assert run.log.records()[0] == {"step": 1, "loss": 1.0, "grad_norm": None}
    run.log.truncate(None)
    assert path.read_bytes() == b""


def test_the_digest_of_the_log_ignores_the_clock_alone(tmp_path: Path) -> None:
    runs = [begin(tmp_path / str(number)) for number in range(3)]
    for run, seconds, loss in zip(runs, (1.5, 2.5, 2.5), (4.0, 4.0, 4.1), strict=True):
        clock = {"seconds": seconds, "valid_seconds": seconds, "tokens_per_second": 1 / seconds}
        run.log.append({"step": 1, "loss": loss, **clock, "peak_bytes": int(seconds)})
    first, second, third = (run.log.digest() for run in runs)
    assert first == second != third


def test_a_damaged_line_of_the_log_is_named(tmp_path: Path) -> None:
    run = begin(tmp_path)
    for step in range(1, 5):
        run.log.append({"step": step})
    path = tmp_path / "metrics.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines[:2], "{broken", *lines[3:], ""]))
    with pytest.raises(DataError, match=r"metrics\.jsonl:3: not valid JSON.*remove the line"):
        run.log.truncate(4)
    path.write_text('{"step": true}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl:1: has no whole-number step"):
        run.log.records()
    with pytest.raises(TypeError):
        run.log.append({"loss": 1.0})


def test_a_full_disk_under_the_log_is_an_error_that_resume_mends(tmp_path: Path) -> None:
    run = begin(tmp_path)
    run.log.append({"step": 1})
    full = pytest.raises(OutputError, match=r"metrics\.jsonl: cannot be written: No space left")
    with full, use_disk(FaultyDisk(2, **FAULTS["disk full"])):
        Run(tmp_path).log.append({"step": 2})
    run.log.truncate(1)
    run.log.append({"step": 2})
    assert [record["step"] for record in run.log.records()] == [1, 2]


def test_a_run_is_trained_by_one_process_at_a_time(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    with run.lock() as warning:
        assert warning is None
        program = (
            "import sys\nfrom attnkit.runs import Run\n"
            "try:\n    with Run(sys.argv[1]).lock(): pass\n"
            "except Exception as error: print(type(error).__name__, error)\n"
        )
        command = [sys.executable, "-c", program, str(run.path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert "OutputPathError" in done.stdout
        assert f"is being trained by process {os.getpid()} on " in done.stdout
        with pytest.raises(OutputPathError, match=f"process {os.getpid()}"), run.lock():
            pass
    with run.lock():
        pass


def test_a_run_in_which_nothing_was_written_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    run = Run(tmp_path / "r" / "a" / "seed-1")
    with pytest.raises(MissingInputError), run.lock():
        raise MissingInputError("no data")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    with run.lock():
        (run.path / "recipe.yaml").touch()
    assert sorted(path.name for path in run.path.iterdir()) == [".lock", "recipe.yaml"]


def test_a_lock_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputPathError, match="file is not a folder"), Run(tmp_path / "file/x").lock():
        pass
    with pytest.raises(OutputPathError, match="File name too long"), Run(tmp_path / ("x" * 300) / "y").lock():
        pass


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    """Two recipes with runs of several variants and seeds, one of them unfinished."""
    for name, variant, seed in [("b/c", "v", 2), ("b/c", "v", 10), ("b/c", "u", 1), ("a", "v", 1)]:
        path = run_path(tmp_path, name, variant, seed)
        shutil.copytree(pristine, path)
        Run(path).update(recipe=name, variant=variant, seed=seed)
    begin(run_path(tmp_path, "b/c", "w", 1))
    (tmp_path / "loop").symlink_to(tmp_path)
    return tmp_path


def keys(runs: list[Run]) -> Iterator[tuple[str, str, int]]:
    """Recipe, variant and seed of each."""
    return ((run.name, run.variant, run.seed) for run in runs)


def test_runs_are_found_in_every_kind_of_folder_in_order(root: Path) -> None:
    every = [("a", "v", 1), ("b/c", "u", 1), ("b/c", "v", 2), ("b/c", "v", 10)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _found(root, every)


def _found(root: Path, every: list[tuple[str, str, int]]) -> None:
    assert list(keys(find_runs([root]))) == every
    assert list(keys(find_runs([root / "b"]))) == every[1:]
    assert list(keys(find_runs([root / "b" / "c" / "v"]))) == every[2:]
    assert list(keys(find_runs([root / "b/c/v/seed-10", str(root)]))) == every


def test_unfinished_runs_are_skipped_with_a_note(root: Path) -> None:
    notes: list[str] = []
    find_runs([root], note=notes.append)
    assert notes == [f"{root}/b/c/w/seed-1: training is not finished; skipped"]
    with pytest.raises(MissingInputError, match=r"no finished run found \(1 unfinished\)"):
        find_runs([root / "b" / "c" / "w"])


def test_where_nothing_is_found_the_error_says_where(root: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="no such folder of runs"):
        find_runs([root, root / "absent"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingInputError, match="empty: no finished run"):
        find_runs([tmp_path / "empty"])


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        ("echo '{' > manifest.json", r"manifest\.json: not valid JSON"),
        ("rm manifest.json", r"not a run: manifest\.json is missing"),
        ("rm recipe.yaml", r"not a run: recipe\.yaml is missing"),
        ("rm manifest.json && mkdir manifest.json", r"manifest\.json: is a folder"),
        ("rm recipe.yaml && mkdir recipe.yaml", r"recipe\.yaml: is a folder"),
        ("rm recipe.yaml && ln -s nowhere recipe.yaml", r"recipe\.yaml is missing"),
        ("rm manifest.json && mkfifo manifest.json", r"manifest\.json: is a pipe"),
        ("rm recipe.yaml && ln -s recipe.yaml recipe.yaml", r"recipe\.yaml"),
        ("find . -not -name checkpoints -delete; mkdir checkpoints", r"manifest\.json is missing"),
        ("cd .. && mv seed-1 ../../away && ln -s ../../away seed-1", "is a symbolic link"),
        ("cd .. && rm -r seed-1 && ln -s ../../away seed-1", "is a symbolic link"),
        ("cd .. && rm -r seed-1 && ln -s seed-1 seed-1", "is a symbolic link"),
        ("cd ../.. && mv v ../../away && ln -s ../../away v", "is a symbolic link"),
    ],
)
def test_a_run_never_vanishes(root: Path, harm: str, said: str, tmp_path: Path) -> None:
    away = tmp_path.parent / f"{tmp_path.name}-away"
    harm = harm.replace("../../away", str(away))
    subprocess.run(["bash", "-c", harm], cwd=root / "a/v/seed-1", check=False)
    notes: list[str] = []
    assert len(find_runs([root], note=notes.append)) == 3
    assert any(re.search(rf"a/v.*{said}.*; skipped", note) for note in notes), notes
    assert [run.state for run in statuses(root)].count("damaged") == 1
    if "symbolic" not in said:
        with pytest.raises((DataError, MissingInputError), match=said):
            find_runs([root / "a/v/seed-1"])
    checks = [check for path, fault in run_paths(root) for check in verify(path, fault=fault)]
    assert any(re.search(said, one.text) and one.state == "different" for one in checks)


@pytest.mark.parametrize("there", ["", "recipe.yaml", "manifest.json", "checkpoints/", "outputs/"])
def test_a_run_that_is_just_begun_is_being_trained_not_damaged(root: Path, there: str) -> None:
    path = root / "a/v/seed-1"
    shutil.rmtree(path)
    notes: list[str] = []
    with Run(path).lock():
        (path / there).mkdir() if there.endswith("/") else (path / (there or "x")).touch()
        assert len(find_runs([root], note=notes.append)) == 3
        states = [run.state for run in statuses(root) if run.path == path]
        checks = [one for at, fault in run_paths(root) for one in verify(at, fault=fault)]
    assert "not a run" not in str(notes)
    assert states == ["training"] * bool(there)
    assert all(one.state != "different" for one in checks if one.run == path.as_posix())


def test_a_link_to_a_run_that_is_found_anyway_says_nothing(root: Path) -> None:
    (root / "latest").symlink_to(root / "a/v/seed-1")
    assert all(not found.fault for found in run_paths(root))
    assert find_runs([root / "latest"])


@pytest.mark.parametrize("folder", ["b/c/u", "b/c/u/seed-1"])
@pytest.mark.parametrize("calls", ["listdir", "stat lstat", "listdir stat lstat"])
def test_a_folder_that_cannot_be_read_is_named(
    calls: str, folder: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its permissions to list and to enter it, of which users with all rights know nothing."""
    (root / "loop").unlink()  # behind which it could still be read here
    whole = len(find_runs([root], note=lambda _: None))
    for name in calls.split():
        allowed = getattr(os, name)

        def refused(path: Any, *more: Any, allowed: Any = allowed, **named: Any) -> Any:
            inside = f"{path}/" if allowed.__name__ == "listdir" else str(path)
            if inside.startswith(f"{root / folder}/"):
                raise PermissionError(13, "Permission denied", str(path))
            return allowed(path, *more, **named)

        monkeypatch.setattr(os, name, refused)
    notes: list[str] = []
    assert len(find_runs([root], note=notes.append)) == whole - 1
    assert f"{root / folder}: cannot be read: Permission denied; skipped" in notes
    assert [run.path for run in statuses(root) if run.state == "damaged"] == [root / folder]
    checks = [check for path, fault in run_paths(root) for check in verify(path, fault=fault)]
    wrong = [one.run for one in checks if "Permission denied" in one.text]
    assert wrong == [str(root / folder)]


@pytest.mark.parametrize("flip", [b'"sha256"', b'"format"', b'"seed"', b'"files"', b'"finished"'])
def test_no_flipped_bit_of_a_key_switches_the_hash_of_the_manifest_off(finished: Run, flip: bytes) -> None:
    path = finished.path / "manifest.json"
    whole = path.read_bytes()
    place = whole.rindex(flip)
    for byte in range(len(flip)):
        for bit in range(8):
            data = bytearray(whole)
            data[place + byte] ^= 1 << bit
            path.write_bytes(data)
            with pytest.raises(DataError):
                assert Run(finished.path).manifest


@pytest.mark.parametrize(
    "name",
    [
        "tokenizer.target.model",
        "data/test.json",
        "scores.json",
        "notes.txt",
        "x/y.bin",
        "checkpoints/notes.txt",
        "checkpoints/step-1/notes.txt",
        "checkpoints/step-1.damaged/x",
        "outputs/valid.hyp.txt",
        "data/valid.jsonl",
        "dead link",
        "link to a folder",
        "pipe",
    ],
)
def test_what_is_not_recorded_is_not_used_and_named(finished: Run, name: str) -> None:
    before = finished.tokenizer().digest
    path = finished.path / name
    checkpoint.save(finished, 1, {"x": torch.zeros(1)}, {})
    path.parent.mkdir(exist_ok=True)
    if "link" in name:
        path.symlink_to(finished.path.parent if "folder" in name else "nowhere")
    elif name == "pipe":
        os.mkfifo(path)
    elif name == "scores.json":
        finished.record(name, None)
    elif name == "tokenizer.target.model":
        shutil.copy(finished.path / "tokenizer.model", path)
    else:
        path.write_text('{"bytes": 1, "fingerprint": "x", "sha256": null, "contexts": null}')
    run = Run.open(finished.path)
    assert run.tokenizer().shared
    assert run.tokenizer().digest == before
    assert "x" not in {row.source for row in RunCorpus(run).rows("test")}
    assert run.scores() == ({} if name == "scores.json" else finished.scores())
    checks = {one.cell: one for one in verify(finished.path)}
    assert checks[name].text == "no hash recorded, so the file is not used"
    assert not [one for one in checks.values() if (one.kind, one.state) == ("file", "different")]


def test_an_edit_of_the_log_during_a_training_is_not_certified(tmp_path: Path, tokenizer: Tokenizer) -> None:
    for harm in ("none", "edit", "remove", "append", "of a resumed one"):
        run = begin(tmp_path / harm)
        run.write_tokenizer(tokenizer)
        run.log.truncate(None)
        run.log.append({"step": 1, "loss": 2.5})
        path = run.log.path
        checkpoint.save(run, 1, {"x": torch.zeros(1)}, {})
        if harm == "of a resumed one":
            run = Run(run.path)
            run.log.truncate(1, checkpoint.latest(run).log)  # type: ignore[union-attr]
        content = path.read_bytes()
        if harm == "remove":
            path.unlink()
        elif harm != "none":
            path.write_bytes(content.replace(b"2.5", b"1.5") + (b"{}" * (harm == "append")))
        stopped = {one.cell: one.state for one in verify(run.path)}
        assert stopped["metrics.jsonl"] == ("same" if harm == "none" else "different")
        run.log.append({"step": 2, "loss": 2.0})
        run.finish(build(tokenizer).state_dict(), step=2, seconds=0.5)
        done = {one.cell: one.state for one in verify(run.path)}
        assert done["metrics.jsonl"] == ("same" if harm == "none" else "different"), harm


@pytest.mark.parametrize("bit", range(8))
def test_a_flipped_bit_in_a_key_of_a_checkpoint_is_seen(finished: Run, bit: int) -> None:
    path = checkpoint.save(finished, 1, {"x": torch.zeros(1)}, {})
    assert checkpoint.fault_of(path) is None
    whole = (path / "manifest.json").read_bytes()
    for key in (b'"sha256"', b'"log"', b'"format"', b'"step"', b'"torch"', b'"files"'):
        for byte in range(len(key)):
            data = bytearray(whole)
            data[whole.rindex(key) + byte] ^= 1 << bit
            (path / "manifest.json").write_bytes(data)
            assert checkpoint.fault_of(path), (key, byte)


def test_a_checkpoint_before_the_first_record_is_resumed(tmp_path: Path) -> None:
    """A kill there left a run that could not go on."""
    run = begin(tmp_path)
    run.log.truncate(None)
    checkpoint.save(run, 1, {"x": torch.zeros(1)}, {})
    assert run.log.sha256() is None
    again = Run(tmp_path)
    newest = checkpoint.latest(again)
    assert newest is not None
    again.log.truncate(newest.step, newest.log)
    again.log.append({"step": 2})
    with pytest.raises(DataError, match="were changed .their SHA-256"):
        Run(tmp_path).log.truncate(1, "0" * 64)
