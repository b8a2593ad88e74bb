"""Tests of run folders: writing and reading, damage, faults of the disk, locks, logs and finding runs."""

import os
import random
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import product
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
from attnkit.experiment.verification import Check, verify
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
    return Tokenizer.train(RECIPE.tokenizer, [Row("a b c d", "d c b a e f")] * 5)


def create(path: Path) -> Run:
    return Run.create(path, RECIPE, name="toy", variant="base", seed=1)


def build(tokenizer: Tokenizer) -> models.Model:
    sizes = (len(tokenizer.source), len(tokenizer.target))
    return models.build(RECIPE.model, sizes, RECIPE.data.max_length).eval()


def flip(data: bytes, byte: int, bit: int) -> bytes:
    return data[:byte] + bytes([data[byte] ^ 1 << bit]) + data[byte + 1 :]


def checks_below(root: Path) -> list[Check]:
    return [check for path, fault in run_paths(root) for check in verify(path, fault=fault)]


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Path:
    """Return the folder of a finished run, which tests may not change."""
    run = create(tmp_path_factory.mktemp("runs") / "seed-1")
    run.write_tokenizer(tokenizer)
    run.log.append({"step": 1, "loss": 2.5})
    torch.manual_seed(3)
    run.finish(build(tokenizer).state_dict(), step=1, seconds=0.5, reason="steps")
    run.write_scores("test", ["eins", "", "drei"], StoredSplit(metrics={"bleu": StoredMetric(score=40.0)}))
    return run.path


@pytest.fixture(autouse=True)
def _no_syncing() -> Iterator[None]:
    with use_disk(FaultyDisk()):
        yield


@pytest.fixture
def finished(pristine: Path, tmp_path: Path) -> Run:
    """Return a finished run, which the test may change."""
    return Run(shutil.copytree(pristine, tmp_path / "copy"))


def test_folder_consists_of_recipe_variant_and_seed() -> None:
    path = run_path("runs", "translation/multi30k", "vanilla", 3)
    assert path == Path("runs/translation/multi30k/vanilla/seed-3")


@pytest.mark.parametrize(
    ("name", "variant"), [("..", "a"), ("a/../..", "b"), ("/etc", "a"), ("a", ".."), ("a", "b/c"), ("a", "")]
)
def test_name_that_leaves_the_root_raises(name: str, variant: str) -> None:
    with pytest.raises(OutputPathError, match="cannot be the name of a folder"):
        run_path("runs", name, variant, 1)


def test_new_run_has_its_recipe_and_manifest(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b" / "seed-4"
    Run.create(path, RECIPE, name="x/toy", variant="v", seed=4, hashes={"data": "d"}, device="cpu", threads=2)
    run = Run.open(path)
    assert run.recipe == RECIPE
    assert (run.name, run.variant, run.seed) == ("x/toy", "v", 4)
    assert run.exists
    assert not run.finished
    manifest = run.read_json("manifest.json")
    assert len(manifest.pop("sha256")) == 64
    assert manifest.pop("python") == ".".join(map(str, sys.version_info[:3]))
    assert manifest.pop("torch") in torch.__version__
    expected = {"format": 2, "attnkit": attnkit.__version__, "recipe": "x/toy", "variant": "v", "seed": 4}
    expected |= {"files": {"recipe.yaml": sha256_file(path / "recipe.yaml")}}
    assert manifest == expected | {"hashes": {"data": "d"}, "device": "cpu", "threads": 2}


def test_updates_of_the_manifest_merge_objects(tmp_path: Path) -> None:
    run = create(tmp_path)
    run.update(hashes={"data": "1"}, parameters=10)
    run.update(hashes={"tokenizer": "2"})
    manifest = Run.open(tmp_path).manifest
    assert manifest.hashes == {"data": "1", "tokenizer": "2"}
    assert manifest.parameters == 10


def test_run_is_not_created_over_another_run(tmp_path: Path) -> None:
    create(tmp_path / "run")
    with pytest.raises(OutputPathError, match=r"already holds manifest\.json .*--fresh"):
        create(tmp_path / "run")
    (tmp_path / "half" / "checkpoints").mkdir(parents=True)
    with pytest.raises(OutputPathError, match="already holds checkpoints"):
        create(tmp_path / "half")


def test_run_whose_creation_was_killed_is_created_again(tmp_path: Path) -> None:
    with use_disk(FaultyDisk()) as disk:
        create(tmp_path / "dry")
    for at in range(1, disk.count):
        path = tmp_path / str(at)
        with pytest.raises(Killed), use_disk(FaultyDisk(at, Killed)):
            create(path)
        with Run(path).lock():
            run = Run(path) if Run(path).exists else create(path)
        assert run.recipe == RECIPE
        assert not list(path.glob("*.tmp-*"))


def test_clear_removes_only_the_run(finished: Run) -> None:
    checkpoint.save(finished, 1, {}, {})
    (finished.path / "notes.txt").write_text("mine")
    (finished.path / "recipe.yaml.tmp-999999999").write_text("")
    with finished.lock():
        finished.clear()
    assert sorted(os.listdir(finished.path)) == [".lock", "notes.txt"]
    assert not finished.exists
    assert create(finished.path).recipe == RECIPE


def test_changed_recipe_is_stored(finished: Run) -> None:
    other = RECIPE.model_copy(update={"train": RECIPE.train.model_copy(update={"steps": 7})})
    assert difference(finished.recipe, other) == ["train.steps: 1000 -> 7"]
    finished.replace_recipe(other)
    assert Run.open(finished.path).recipe == other
    assert finished.recipe == other


def test_trained_model_is_loaded(finished: Run, tokenizer: Tokenizer) -> None:
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
    assert set(finished.weights()) == {name for name, _ in model.named_parameters()} < model.state_dict().keys()


def test_tied_weights_may_be_given_under_all_names(finished: Run, tokenizer: Tokenizer) -> None:
    model = build(tokenizer)
    copies = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    finished.finish(copies, step=2, seconds=1, reason="steps")
    source, ids = torch.tensor([[4, 5, 3]]), torch.tensor([[2, 6]])
    assert torch.equal(finished.model()(source, ids), model(source, ids))


def test_second_tokenizer_replaces_all_files_of_the_first(finished: Run) -> None:
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


def test_weights_of_another_model_raise(finished: Run, tokenizer: Tokenizer) -> None:
    state = build(tokenizer).state_dict()
    name = next(iter(state))
    for change, message in [
        (lambda s: s.pop(name), "is missing"),
        (lambda s: s.update(extra=torch.zeros(1)), "extra is unexpected"),
        (lambda s: s.update({name: torch.zeros(2)}), r"must be float32 .*, got float32 \[2\]"),
        (lambda s: s.update({name: s[name].double()}), "got float64"),
        (lambda s: s.update({name: s[name] * float("nan")}), "holds NaN"),
    ]:
        weights = {key: tensor.clone() for key, tensor in state.items()}
        change(weights)
        finished.finish(weights, step=1, seconds=1, reason="steps")
        with pytest.raises(DataError, match=message):
            finished.model()


def test_folder_that_is_not_a_run_raises(finished: Run, tmp_path: Path) -> None:
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


def test_unfinished_run_raises_with_a_remedy(tmp_path: Path, tokenizer: Tokenizer) -> None:
    run = create(tmp_path)
    with pytest.raises(MissingInputError, match=r"tokenizer\.model: no such file"):
        run.tokenizer()
    run.write_tokenizer(tokenizer)
    with pytest.raises(MissingInputError, match="not finished; run `attnkit train` again"):
        run.model()


@pytest.mark.parametrize("name", ["recipe.yaml", "tokenizer.model", "model.safetensors", "manifest.json"])
def test_damaged_file_raises_with_its_name(finished: Run, name: str) -> None:
    path = finished.path / name
    whole = path.read_bytes()
    rng = random.Random(name)
    messages = []
    for _ in range(20):
        path.write_bytes(flip(whole, rng.randrange(len(whole)), rng.randrange(8)))
        try:
            Run.open(finished.path).model()
        except (DataError, MissingInputError) as error:
            messages.append(str(error))
    assert all(str(finished.path) in message and "\n" not in message for message in messages)
    assert len(messages) == 20 or name == "manifest.json"


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
def test_malformed_manifest_raises(finished: Run, text: str, reason: str) -> None:
    (finished.path / "manifest.json").write_text(text)
    with pytest.raises(DataError, match=rf"manifest\.json: {reason}.*; .*with --fresh"):
        assert Run.open(finished.path).seed


def test_manifest_without_the_hash_of_the_weights_raises(finished: Run) -> None:
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


def test_scores_of_other_splits_are_kept_unchanged(finished: Run) -> None:
    path = finished.path / "scores.json"
    text = json_text({"test": {"later": [1], "metrics": {"bleu": {"score": 40}}}})
    path.write_text(text)
    finished.record(path.name, sha256_file(path))
    finished.write_scores("test_2017", ["a"], StoredSplit())
    assert path.read_text().startswith(text.removesuffix("\n}\n") + ",\n")


def test_files_that_another_process_wrote_are_not_damage(finished: Run) -> None:
    """Of two evaluations at the same time, each has read the manifest when it began."""
    other = Run(finished.path)
    assert other.manifest == finished.manifest
    finished.write_scores("test_2017", ["a"], StoredSplit())
    finished.update(parameters=5)
    other.write_scores("test_2018", ["b"], StoredSplit())
    assert list(finished.scores()) == ["test", "test_2017", "test_2018"]
    assert Run.open(finished.path).manifest.parameters == 5


@pytest.mark.sampled(9)
@pytest.mark.parametrize("fault", FAULTS)
def test_run_is_unfinished_or_whole_after_a_fault_of_the_disk(
    tmp_path: Path, pristine: Path, tokenizer: Tokenizer, fault: str
) -> None:
    """finish() of a finished run leaves the old model, the new model, or an unfinished run."""
    weights = {name: tensor + 1 for name, tensor in build(tokenizer).state_dict().items()}

    def finish(path: Path) -> Run:
        run = Run(path)
        run.finish(weights, step=9, seconds=1, reason="steps")
        return run

    shutil.copytree(pristine, tmp_path / "dry")
    with use_disk(FaultyDisk()) as disk:
        new = finish(tmp_path / "dry").weights()
    old = Run(pristine).weights()
    for at in range(1, disk.count + 1):
        path = Path(shutil.copytree(pristine, tmp_path / str(at)))
        error = pytest.raises((OutputError, OutputPathError, Killed))
        with error, use_disk(FaultyDisk(at, **FAULTS[fault])):
            finish(path)
        with Run(path).lock():
            assert not list(path.glob("*.tmp-*"))
        run = Run.open(path)
        if run.finished:
            expected = new if run.manifest.finished.step == 9 else old
            stored = run.weights()
            assert all(torch.equal(stored[name], expected[name]) for name in expected)
        assert finish(path).finished


def test_log_is_truncated_to_a_step_and_continued(tmp_path: Path) -> None:
    run = create(tmp_path)
    path = tmp_path / "metrics.jsonl"
    run.log.truncate(None)
    for step in range(1, 6):
        run.log.append({"step": step, "loss": 1 / step, "grad_norm": float("inf")})
    whole, digest = path.read_bytes(), run.log.digest()
    with open(path, "ab") as file:
        file.write(b'{"step": 6, "lo')
    assert len(run.log.records()) == 5
    run.log.truncate(3)
    assert [record["step"] for record in run.log.records()] == [1, 2, 3]
    for step in range(4, 6):
        run.log.append({"step": step, "loss": 1 / step, "grad_norm": float("inf")})
    assert path.read_bytes() == whole
    assert run.log.digest() == digest
    assert run.log.records()[0] == {"step": 1, "loss": 1.0, "grad_norm": None}
    run.log.truncate(None)
    assert path.read_bytes() == b""


def test_digest_of_the_log_ignores_times_and_memory(tmp_path: Path) -> None:
    digests = []
    for number, (seconds, loss) in enumerate(((1.5, 4.0), (2.5, 4.0), (2.5, 4.1))):
        log = create(tmp_path / str(number)).log
        times = {"seconds": seconds, "valid_seconds": seconds, "tokens_per_second": 1 / seconds}
        log.append({"step": 1, "loss": loss, **times, "peak_bytes": int(seconds)})
        digests.append(log.digest())
    assert digests[0] == digests[1] != digests[2]


def test_damaged_line_of_the_log_raises(tmp_path: Path) -> None:
    run = create(tmp_path)
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


def test_log_continues_after_a_full_disk(tmp_path: Path) -> None:
    run = create(tmp_path)
    run.log.append({"step": 1})
    error = pytest.raises(OutputError, match=r"metrics\.jsonl: cannot be written: No space left")
    with error, use_disk(FaultyDisk(2, **FAULTS["disk full"])):
        Run(tmp_path).log.append({"step": 2})
    run.log.truncate(1)
    run.log.append({"step": 2})
    assert [record["step"] for record in run.log.records()] == [1, 2]


def test_run_is_locked_against_other_processes(tmp_path: Path) -> None:
    run = Run(tmp_path / "run")
    with run.lock() as warning:
        assert warning is None
        program = (
            "import sys\nfrom attnkit.runs import Run\n"
            "try:\n    with Run(sys.argv[1]).lock(): pass\n"
            "except Exception as error: print(type(error).__name__, error)\n"
        )
        command = [sys.executable, "-c", program, str(run.path)]
        output = subprocess.run(command, capture_output=True, text=True, timeout=30).stdout
        assert "OutputPathError" in output
        assert f"is being trained by process {os.getpid()} on " in output
        with pytest.raises(OutputPathError, match=f"process {os.getpid()}"), run.lock():
            pass
    with run.lock():
        pass


def test_lock_of_an_empty_run_leaves_no_folder(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    run = Run(tmp_path / "r" / "a" / "seed-1")
    with pytest.raises(MissingInputError), run.lock():
        raise MissingInputError("no data")
    assert [path.name for path in tmp_path.iterdir()] == ["other"]
    with run.lock():
        (run.path / "recipe.yaml").touch()
    assert sorted(path.name for path in run.path.iterdir()) == [".lock", "recipe.yaml"]


def test_lock_that_cannot_be_created_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputPathError, match="file is not a folder"), Run(tmp_path / "file/x").lock():
        pass
    with pytest.raises(OutputPathError, match="File name too long"), Run(tmp_path / ("x" * 300) / "y").lock():
        pass


@pytest.fixture
def root(pristine: Path, tmp_path: Path) -> Path:
    """Return a folder of two recipes with runs of several variants and seeds, one of them unfinished."""
    for name, variant, seed in [("b/c", "v", 2), ("b/c", "v", 10), ("b/c", "u", 1), ("a", "v", 1)]:
        path = run_path(tmp_path, name, variant, seed)
        shutil.copytree(pristine, path)
        Run(path).update(recipe=name, variant=variant, seed=seed)
    create(run_path(tmp_path, "b/c", "w", 1))
    (tmp_path / "loop").symlink_to(tmp_path)
    return tmp_path


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("folders", "first"), [([""], 0), (["b"], 1), (["b/c/v"], 2), (["b/c/v/seed-10", ""], 0)], ids=str
)
def test_runs_are_found_in_order_below_any_folder(root: Path, folders: list[str], first: int) -> None:
    runs = [(run.name, run.variant, run.seed) for run in find_runs([str(root / folder) for folder in folders])]
    assert runs == [("a", "v", 1), ("b/c", "u", 1), ("b/c", "v", 2), ("b/c", "v", 10)][first:]


def test_unfinished_runs_are_skipped_with_a_note(root: Path) -> None:
    notes: list[str] = []
    find_runs([root], note=notes.append)
    assert notes == [f"{root}/b/c/w/seed-1: training is not finished; skipped"]
    with pytest.raises(MissingInputError, match=r"no finished run found \(1 unfinished\)"):
        find_runs([root / "b" / "c" / "w"])


def test_folders_without_runs_raise(root: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingInputError, match="no such folder of runs"):
        find_runs([root, root / "absent"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingInputError, match="empty: no finished run"):
        find_runs([tmp_path / "empty"])


@pytest.mark.parametrize(
    ("command", "message"),
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
def test_damaged_run_is_reported_not_ignored(root: Path, command: str, message: str, tmp_path: Path) -> None:
    command = command.replace("../../away", f"{tmp_path}-away")
    subprocess.run(["bash", "-c", command], cwd=root / "a/v/seed-1", check=False)
    notes: list[str] = []
    assert len(find_runs([root], note=notes.append)) == 3
    assert any(re.search(rf"a/v.*{message}.*; skipped", note) for note in notes), notes
    assert [run.state for run in statuses(root)].count("damaged") == 1
    if "symbolic" not in message:
        with pytest.raises((DataError, MissingInputError), match=message):
            find_runs([root / "a/v/seed-1"])
    assert any(re.search(message, check.text) and check.state == "different" for check in checks_below(root))


@pytest.mark.parametrize("name", ["", "recipe.yaml", "manifest.json", "checkpoints/", "outputs/"])
def test_run_that_is_being_created_is_in_training_not_damaged(root: Path, name: str) -> None:
    path = root / "a/v/seed-1"
    shutil.rmtree(path)
    notes: list[str] = []
    with Run(path).lock():
        (path / name).mkdir() if name.endswith("/") else (path / (name or "x")).touch()
        assert len(find_runs([root], note=notes.append)) == 3
        states = [run.state for run in statuses(root) if run.path == path]
        checks = checks_below(root)
    assert "not a run" not in str(notes)
    assert states == ["training"] * bool(name)
    assert all(check.state != "different" for check in checks if check.run == path.as_posix())


def test_link_to_a_run_that_is_found_by_its_own_path_has_no_note(root: Path) -> None:
    (root / "latest").symlink_to(root / "a/v/seed-1")
    assert all(not found.fault for found in run_paths(root))
    assert find_runs([root / "latest"])


@pytest.mark.parametrize("folder", ["b/c/u", "b/c/u/seed-1"])
@pytest.mark.parametrize("calls", ["listdir", "stat lstat", "listdir stat lstat"])
def test_folder_without_permissions_is_reported(
    calls: str, folder: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Permissions to list and to enter a folder are simulated: they do not apply to root."""

    def deny(call: Any, path: Any, *args: Any, **options: Any) -> Any:
        inside = f"{path}/" if call.__name__ == "listdir" else str(path)
        if inside.startswith(f"{root / folder}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return call(path, *args, **options)

    (root / "loop").unlink()  # through it, the folder could still be read
    for name in calls.split():
        monkeypatch.setattr(os, name, partial(deny, getattr(os, name)))
    notes: list[str] = []
    assert len(find_runs([root], note=notes.append)) == 3
    assert f"{root / folder}: cannot be read: Permission denied; skipped" in notes
    assert [run.path for run in statuses(root) if run.state == "damaged"] == [root / folder]
    denied = [check.run for check in checks_below(root) if "Permission denied" in check.text]
    assert denied == [str(root / folder)]


@pytest.mark.parametrize("key", [b'"sha256"', b'"format"', b'"seed"', b'"files"', b'"finished"'])
def test_flipped_bit_in_a_key_of_the_manifest_raises(finished: Run, key: bytes) -> None:
    """A flipped bit must not remove the hash of the manifest or make a run look like one of an earlier version."""
    path = finished.path / "manifest.json"
    whole = path.read_bytes()
    start = whole.rindex(key)
    for byte, bit in product(range(start, start + len(key)), range(8)):
        path.write_bytes(flip(whole, byte, bit))
        with pytest.raises(DataError):
            assert Run(finished.path).manifest


UNRECORDED = ["tokenizer.target.model", "data/test.json", "scores.json", "notes.txt", "x/y.bin", "data/valid.jsonl"]
UNRECORDED += ["checkpoints/notes.txt", "checkpoints/step-1/notes.txt", "checkpoints/step-1.damaged/x"]
UNRECORDED += ["outputs/valid.hyp.txt", "dead link", "link to a folder", "pipe"]


@pytest.mark.parametrize("name", UNRECORDED)
def test_file_without_a_recorded_hash_is_not_used(finished: Run, name: str) -> None:
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
    checks = {check.cell: check for check in verify(finished.path)}
    assert checks[name].text == "no hash recorded, so the file is not used"
    assert not [check for check in checks.values() if (check.kind, check.state) == ("file", "different")]


@pytest.mark.parametrize("change", ["none", "edit", "remove", "append", "edit after resuming"])
def test_change_of_the_log_during_training_is_detected(tmp_path: Path, tokenizer: Tokenizer, change: str) -> None:
    run = create(tmp_path)
    run.write_tokenizer(tokenizer)
    run.log.truncate(None)
    run.log.append({"step": 1, "loss": 2.5})
    path, expected = run.log.path, "same" if change == "none" else "different"
    checkpoint.save(run, 1, {"x": torch.zeros(1)}, {})
    if change == "edit after resuming":
        run = Run(run.path)
        run.log.truncate(1, checkpoint.latest(run).log)
    if change == "remove":
        path.unlink()
    elif change != "none":
        path.write_bytes(path.read_bytes().replace(b"2.5", b"1.5") + (b"{}" * (change == "append")))
    assert {check.cell: check.state for check in verify(run.path)}["metrics.jsonl"] == expected
    run.log.append({"step": 2, "loss": 2.0})
    run.finish(build(tokenizer).state_dict(), step=2, seconds=0.5)
    assert {check.cell: check.state for check in verify(run.path)}["metrics.jsonl"] == expected


@pytest.mark.parametrize("bit", range(8))
def test_flipped_bit_in_a_key_of_a_checkpoint_is_detected(finished: Run, bit: int) -> None:
    path = checkpoint.save(finished, 1, {"x": torch.zeros(1)}, {})
    assert checkpoint.fault_of(path) is None
    whole = (path / "manifest.json").read_bytes()
    for key in (b'"sha256"', b'"log"', b'"format"', b'"step"', b'"torch"', b'"files"'):
        for byte in range(len(key)):
            (path / "manifest.json").write_bytes(flip(whole, whole.rindex(key) + byte, bit))
            assert checkpoint.fault_of(path), (key, byte)


def test_checkpoint_before_the_first_log_record_is_resumed(tmp_path: Path) -> None:
    """A run that was killed there could not be resumed."""
    run = create(tmp_path)
    run.log.truncate(None)
    checkpoint.save(run, 1, {"x": torch.zeros(1)}, {})
    assert run.log.sha256() is None
    resumed = Run(tmp_path)
    newest = checkpoint.latest(resumed)
    resumed.log.truncate(newest.step, newest.log)
    resumed.log.append({"step": 2})
    with pytest.raises(DataError, match="were changed .their SHA-256"):
        Run(tmp_path).log.truncate(1, "0" * 64)
