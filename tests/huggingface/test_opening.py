"""Tests of opening Hugging Face models without a network: shapes, damage, unsafe files, the hub and its cache."""

import errno
import importlib.metadata
import json
import logging
import shutil
import socket
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch
import transformers
from helpers import pretrained

from attnkit.errors import AttnkitError, DataError, MissingInputError, OutputError, UnavailableError, UsageError
from attnkit.huggingface import open_model, quiet


@pytest.fixture(autouse=True)
def lookups(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Disable the network and return the names that are looked up."""
    hosts: list[str] = []

    def refuse(host: Any, *_: object, **__: object) -> None:
        hosts.append(str(host))
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return hosts


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cache(lambda name: pretrained.save_pretrained(tmp_path_factory.mktemp(name), name))


@pytest.fixture
def gpt2(originals: Any, tmp_path: Path) -> Path:
    """Return the directory of a model, which the test may change."""
    return Path(shutil.copytree(originals("gpt2"), tmp_path / "gpt2"))


def change(folder: Path, file: str = "config.json", **settings: Any) -> None:
    """Set keys of a JSON file; None removes a key."""
    path = folder / file
    values = json.loads(path.read_text(encoding="utf-8")) | settings
    path.write_text(json.dumps({k: v for k, v in values.items() if v is not None}), encoding="utf-8")


def error_of(kind: type[AttnkitError], name: Any, **options: Any) -> str:
    """Return the message with which opening a model raises."""
    with pytest.raises(kind) as caught:
        open_model(name, device="cpu", **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "shape", "limit"),
    [
        ("bart", "encoder-decoder", 64),
        ("t5", "encoder-decoder", None),
        ("llama", "decoder", 64),
        ("bloom", "decoder", None),
        ("mpt", "decoder", 64),
        ("bert", "encoder", 64),
        ("roberta", "encoder", 63),
        ("albert", "encoder", 64),
    ],
)
def test_directory_has_the_shape_and_outputs_of_its_model(
    name: str, shape: str, limit: int | None, originals: Any, lookups: list[str]
) -> None:
    model = open_model(originals(name), device="cpu")
    assert (model.shape, model.limit) == (shape, limit)
    assert not model.model.training
    assert model.model.dtype is torch.float32
    assert lookups == []
    ids = model.tokenizer("The animal", return_tensors="pt")["input_ids"]
    expected = pretrained.random_model(name)
    inputs = {"input_ids": ids} | ({"decoder_input_ids": ids} if shape == "encoder-decoder" else {})
    with torch.no_grad():
        base = expected.base_model if shape == "encoder" else expected
        assert torch.allclose(model.model(**inputs)[0], base(**inputs)[0], atol=1e-4)


def test_architecture_decides_the_shape_of_types_with_two_shapes(tmp_path: Path) -> None:
    settings = {"vocab_size": pretrained.SIZE, **pretrained.IDS, **pretrained.PLAIN}
    t5 = transformers.T5Config(vocab_size=pretrained.SIZE, **pretrained.T5)
    pretrained.tokenizer().save_pretrained(tmp_path)
    with quiet():
        transformers.BertLMHeadModel(transformers.BertConfig(**settings, is_decoder=True)).save_pretrained(tmp_path)
    assert open_model(tmp_path, device="cpu").shape == "decoder"
    with quiet():
        transformers.T5EncoderModel(t5).save_pretrained(tmp_path)
    assert open_model(tmp_path, device="cpu").shape == "encoder"


def test_dtype_and_eager_attention_are_set(gpt2: Path) -> None:
    assert open_model(gpt2, device="cpu", dtype="bfloat16").model.dtype is torch.bfloat16
    opened = open_model(gpt2, device="cpu")
    assert opened.model.config._attn_implementation == "sdpa"
    with opened.eager():
        assert opened.model.config._attn_implementation == "eager"
    assert opened.model.config._attn_implementation == "sdpa"
    assert error_of(UsageError, gpt2, dtype="float23") == "dtype float23: did you mean float32?"


def test_opening_prints_nothing_and_keeps_the_settings_of_transformers(
    gpt2: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    verbosity = transformers.logging.get_verbosity()
    assert transformers.logging.is_progress_bar_enabled()
    change(gpt2, nonsense=3)
    open_model(gpt2, device="cpu")
    assert capfd.readouterr() == ("", "")
    assert transformers.logging.get_verbosity() == verbosity
    assert transformers.logging.is_progress_bar_enabled()


@pytest.mark.parametrize("name", ["no/such/place", "./absent", "a b\x1b", ""])
def test_name_of_neither_directory_nor_hub_model_raises(name: str, lookups: list[str]) -> None:
    assert error_of(MissingInputError, name) == f"{name!r}: no such directory, and not a hub name (OWNER/MODEL)"
    assert lookups == []


def test_path_without_a_model_raises(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert error_of(MissingInputError, tmp_path / "file").endswith("file: is a file; give the directory of a model")
    assert "no config.json: give the directory of a run" in error_of(MissingInputError, tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "only an adapter: merge the adapter" in error_of(MissingInputError, tmp_path)


def test_invalid_config_raises(gpt2: Path) -> None:
    change(gpt2, model_type=None)
    assert "config.json: model_type is missing" in error_of(DataError, gpt2)
    deep = "[" * 100_000 + "]" * 100_000
    for text, message in (
        ("[]", "must hold a JSON object"),
        ("{", "not valid JSON: Expecting property name"),
        ('{"model_type": 5}', "model_type must be a valid string, got 5"),
        ('{"model_type": "gpt2", "architectures": 5}', "architectures must be a valid list"),
        ('{"model_type": "gpt2", "architectures": [5]}', "must be a valid string, got 5"),
        ('{"model_type": "gpt2", "auto_map": 5}', "auto_map must be a valid dictionary"),
        ('{"model_type": "gpt2", "sliding_window": "x"}', "sliding_window must be a valid int"),
        ('{"model_type": "\\ud800"}', "not valid JSON"),
        (f'{{"model_type": "gpt2", "x": {deep}}}', "not valid JSON: maximum recursion"),
    ):
        (gpt2 / "config.json").write_text(text)
        assert message in error_of(DataError, gpt2), text[:60]
    (gpt2 / "config.json").write_text('{"model_type": "gpt2", "n_head": "many"}')
    assert "gpt2: config.json is malformed: " in error_of(DataError, gpt2)


def test_unknown_type_raises_with_the_nearest_type(gpt2: Path) -> None:
    change(gpt2, model_type="gpt22")
    expected = f"transformers {transformers.__version__} has no model of type 'gpt22'; did you mean gpt2?"
    assert error_of(DataError, gpt2).endswith(expected)


def test_model_of_images_raises(tmp_path: Path) -> None:
    transformers.ViTConfig(architectures=["ViTModel"]).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "a vit model is not supported" in error_of(DataError, tmp_path)


@pytest.mark.parametrize("kind", ["gpt2", "own"])
def test_code_of_a_model_is_not_run(kind: str, gpt2: Path, tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    code = f"open({str(marker)!r}, 'w')\n"
    for name in ("modeling_own", "configuration_own", "tokenization_own"):
        (gpt2 / f"{name}.py").write_text(code)
    (gpt2 / "custom_generate").mkdir()
    (gpt2 / "custom_generate" / "generate.py").write_text(code)
    auto = {
        "AutoConfig": "configuration_own.Config",
        "AutoModelForCausalLM": "modeling_own.Model",
        "AutoTokenizer": ["tokenization_own.Slow", None],
    }
    change(gpt2, model_type=kind, auto_map=auto)
    if kind == "gpt2":  # a type of transformers, which needs no other code
        assert open_model(gpt2, device="cpu").shape == "decoder"
    else:
        assert "needs code from its repository, which attnkit never runs" in error_of(DataError, gpt2)
    assert not marker.exists()


def test_pickled_weights_raise(gpt2: Path) -> None:
    (gpt2 / "model.safetensors").unlink()
    assert error_of(MissingInputError, gpt2).endswith("no weights: model.safetensors is missing")
    torch.save({}, gpt2 / "pytorch_model.bin")
    assert "the weights exist only as pytorch_model.bin, which could run code" in error_of(DataError, gpt2)


UNSAFE = ["pytorch_model.bin", "x.pt", "../gpt2/x.safetensors", "/tmp/x.safetensors", "a/b.safetensors", "..", ""]
UNSAFE += ["x.safetensors\n", ".hidden.safetensors"]


@pytest.mark.parametrize("name", UNSAFE)
def test_index_of_weights_with_pickles_or_other_folders_raises(name: str, gpt2: Path) -> None:
    for file in ("pytorch_model.bin", "x.pt"):
        torch.save({}, gpt2 / file)
    (gpt2 / "model.safetensors").rename(gpt2 / "x.safetensors")
    for index in ("model.safetensors.index.json", "model.safetensors.index.attnkit.json"):
        (gpt2 / index).write_text(json.dumps({"weight_map": {"transformer.wte.weight": name}}))
        assert "only safetensors files of the same folder are read" in error_of(DataError, gpt2)
        (gpt2 / index).unlink()


@pytest.mark.parametrize(
    ("file", "settings", "code"),
    [
        ("tokenizer_config.json", {"model_max_length": "64"}, 65),
        ("tokenizer_config.json", {"model_max_length": [1]}, 65),
        ("tokenizer_config.json", {"tokenizer_class": 5}, 66),
        ("tokenizer_config.json", {"bos_token": 5}, 66),
        ("config.json", {"n_head": 10**400}, 65),
        ("config.json", {"is_encoder_decoder": {}, "n_embd": "x"}, 65),
        ("config.json", {"activation_function": "none"}, 65),
        ("config.json", {"quantization_config": 5}, 65),
        ("config.json", {"dtype": 5}, 0),
        ("generation_config.json", {"eos_token_id": "x"}, 0),
    ],
)
def test_setting_of_a_wrong_type_raises_or_is_ignored(
    file: str, settings: dict[str, Any], code: int, gpt2: Path
) -> None:
    change(gpt2, file, **settings)
    if not code:
        assert open_model(gpt2, device="cpu").shape == "decoder"
        return
    with pytest.raises(AttnkitError) as caught:
        open_model(gpt2, device="cpu")
    assert caught.value.code == code
    assert "\n" not in str(caught.value)


def test_damaged_or_wrong_weights_raise(gpt2: Path) -> None:
    whole = (gpt2 / "model.safetensors").read_bytes()
    (gpt2 / "model.safetensors").write_bytes(whole[:-100])
    assert "cannot be opened: " in error_of(DataError, gpt2)
    change(gpt2, n_layer=4)
    (gpt2 / "model.safetensors").write_bytes(whole)
    assert "12 weights of the model are missing, such as transformer.h.3." in error_of(DataError, gpt2)
    change(gpt2, n_layer=3, n_embd=64)
    assert "cannot be opened: " in error_of(DataError, gpt2)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (KeyError("x"), DataError, "cannot be opened: KeyError: 'x'"),
        (PermissionError(13, "Permission denied"), MissingInputError, "cannot be read: Permission"),
    ],
)
def test_exceptions_of_libraries_and_of_the_disk_become_errors(
    gpt2: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: Any, message: str
) -> None:
    monkeypatch.setattr("attnkit.huggingface.opening._weights", Mock(side_effect=error))
    assert message in error_of(kind, gpt2)


def test_missing_damaged_or_wrong_tokenizer_raises(gpt2: Path) -> None:
    shutil.copy(gpt2 / "tokenizer.json", gpt2 / "kept")
    (gpt2 / "tokenizer.json").write_text("{}")
    assert "cannot read the tokenizer: " in error_of(MissingInputError, gpt2)
    (gpt2 / "tokenizer.json").unlink()
    (gpt2 / "tokenizer_config.json").unlink()
    assert "no tokenizer" in error_of(MissingInputError, gpt2)
    shutil.copy(gpt2 / "kept", gpt2 / "tokenizer.json")
    vocabulary = json.loads((gpt2 / "tokenizer.json").read_text(encoding="utf-8"))["model"]
    vocabulary["vocab"] |= {f"zzz{number}": 320 + number for number in range(40)}
    change(gpt2, "tokenizer.json", model=vocabulary)
    assert "has 361 pieces, but the model has 340 embeddings: tokenizer and model do" in error_of(DataError, gpt2)


def test_missing_or_old_transformers_raises(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advice = "Hugging Face models need transformers >= 5: pip install 'attnkit[hf]'"
    version = Mock(return_value="4.57.1")
    monkeypatch.setattr("attnkit.huggingface.opening.version", version)
    assert error_of(UnavailableError, gpt2) == f"{advice} (here: 4.57.1)"
    version.side_effect = importlib.metadata.PackageNotFoundError
    assert error_of(UnavailableError, gpt2) == advice
    assert UnavailableError.code == 69


@pytest.mark.parametrize("part", ["LlamaForCausalLM", "AutoTokenizer"])
def test_missing_package_of_transformers_raises(part: str, originals: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = Mock(side_effect=ImportError("\n the package for X is missing\nmore"))
    monkeypatch.setattr(getattr(transformers, part), "from_pretrained", missing)
    assert error_of(UnavailableError, originals("llama")).endswith(": the package for X is missing")


def test_unknown_device_raises(gpt2: Path) -> None:
    with pytest.raises(UnavailableError, match="device 'cuda:9' is not available here"):
        open_model(gpt2, device="cuda:9")


@pytest.fixture
def cached(originals: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Store a model in the cache of the hub and return its name."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    home = tmp_path / "hub" / "models--someone--gpt2-small"
    shutil.copytree(originals("gpt2"), home / "snapshots" / commit)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return "someone/gpt2-small"


def test_hub_model_in_the_cache_opens_offline(cached: str, lookups: list[str]) -> None:
    model = open_model(cached, device="cpu", offline=True)
    assert (model.name, model.shape) == ("someone/gpt2-small", "decoder")
    assert model.revision == "0123456789abcdef0123456789abcdef01234567"
    assert model.facts["revision"] == model.revision
    assert lookups == []


@pytest.mark.usefixtures("cached")
@pytest.mark.parametrize("variable", [None, "ATTNKIT_OFFLINE", "HF_HUB_OFFLINE"])
def test_hub_model_that_is_not_in_the_cache_needs_the_network(
    variable: str | None, lookups: list[str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    if variable == "ATTNKIT_OFFLINE":
        monkeypatch.setenv(variable, "1")
    elif variable:  # read when huggingface_hub is imported
        monkeypatch.setattr(huggingface_hub.constants, variable, True)
    message = error_of(UnavailableError, "someone/else")
    assert capfd.readouterr() == ("", "")
    assert "someone/else: no such directory, not in the local cache of the hub, and" in message
    assert bool(lookups) == (variable is None)


def test_directory_wins_over_a_hub_name(gpt2: Path, lookups: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(gpt2.parent)
    assert open_model("gpt2", device="cpu").path == Path("gpt2")
    assert lookups == []


@pytest.fixture
def download(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Simulate a hub that can be reached; return its function that downloads one file."""
    function = Mock(return_value="config.json")
    monkeypatch.setattr("attnkit.huggingface.hub._unreachable", lambda: False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", function)
    return function


@pytest.mark.usefixtures("download")
def test_only_configs_vocabularies_and_safe_weights_are_downloaded(
    originals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    request: dict[str, Any] = {}

    def snapshot(name: str, **options: Any) -> str:
        request.update(options, name=name)
        assert not huggingface_hub.is_offline_mode()
        return str(originals("gpt2"))

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert open_model("a/b", device="cpu").revision == originals("gpt2").name
    assert (request["name"], request["local_files_only"]) == ("a/b", False)
    wanted = ["config.json", "tokenizer.json", "merges.txt", "spiece.model", "source.spm", "model.safetensors"]
    wanted += ["model-00001-of-00002.safetensors", "model.safetensors.index.json", "generation_config.json"]
    others = ["pytorch_model.bin", "modeling_own.py", "consolidated.safetensors", "tf_model.h5", "weights.pkl"]
    others += ["original/model.safetensors", "onnx/model.onnx", "custom_generate/generate.py"]
    others += ["model.fp16.safetensors", "training_args.bin"]
    patterns = {key: request[key] for key in ("allow_patterns", "ignore_patterns")}
    assert [*huggingface_hub.utils.filter_repo_objects([*wanted, *others], **patterns)] == wanted


@pytest.mark.parametrize(
    ("fault", "expected", "message"),
    [
        ("GatedRepoError", UnavailableError, "a/b: the model is gated: accept the terms"),
        ("RepositoryNotFoundError", MissingInputError, "a/b: neither a local directory nor"),
        ("RemoteEntryNotFoundError", MissingInputError, "a/b: the hub's repository has no config"),
        ("HfHubHTTPError", UnavailableError, "a/b: the hub answers with error 503: try again"),
        ("OfflineModeIsEnabled", UnavailableError, "a/b: no such directory, not in the local ca"),
        ("SafetensorsParsingError", UnavailableError, "a/b: the hub's response is not usable"),
    ],
)
def test_error_of_the_hub_raises(fault: str, expected: type[AttnkitError], message: str, download: Mock) -> None:
    kind = getattr(huggingface_hub.errors, fault)
    error = kind.__new__(kind)
    error.response = SimpleNamespace(status_code=503)
    download.side_effect = error
    assert error_of(expected, "a/b").startswith(message)


def test_full_disk_raises(download: Mock) -> None:
    download.side_effect = OSError(errno.ENOSPC, "No space left on device")
    assert error_of(OutputError, "a/b") == "a/b: the hub's cache cannot be written: No space left on device"


@pytest.mark.usefixtures("download")
def test_hub_model_with_only_pickles_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    assert "a/b: the weights exist only in other formats, such as pickles" in error_of(DataError, "a/b")


def test_quiet_silences_bitsandbytes() -> None:
    logger = logging.getLogger("bitsandbytes.autograd")
    before = logger.isEnabledFor(logging.WARNING)
    with quiet():
        assert not logger.isEnabledFor(logging.ERROR)
    assert logger.isEnabledFor(logging.WARNING) == before
