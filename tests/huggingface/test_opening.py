"""Opening Hugging Face models: what they are, and what is refused, without any network."""

import errno
import importlib.metadata
import json
import logging
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
import torch
import transformers
from helpers import pretrained

from attnkit.errors import AttnkitError, DataError, MissingInputError, OutputError, UnavailableError, UsageError
from attnkit.huggingface import open_model, quiet


@pytest.fixture(autouse=True)
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The machine is alone; names that were looked up."""
    asked: list[str] = []

    def refuse(host: Any, *_: object, **__: object) -> None:
        asked.append(str(host))
        raise socket.gaierror(-3, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return asked


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made: dict[str, Path] = {}

    def give(name: str) -> Path:
        if name not in made:
            made[name] = pretrained.save_pretrained(tmp_path_factory.mktemp(name), name)
        return made[name]

    return give


@pytest.fixture
def gpt2(originals: Any, tmp_path: Path) -> Path:
    """A directory that may be damaged."""
    return Path(shutil.copytree(originals("gpt2"), tmp_path / "gpt2"))


def change(folder: Path, **settings: Any) -> None:
    path = folder / "config.json"
    read = json.loads(path.read_text(encoding="utf-8")) | settings
    kept = {key: value for key, value in read.items() if value is not None}
    path.write_text(json.dumps(kept), encoding="utf-8")


def refused(error: type[AttnkitError], name: Any, **options: Any) -> str:
    with pytest.raises(error) as caught:
        open_model(name, device="cpu", **options)
    message = str(caught.value)
    assert "\n" not in message
    return message


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
def test_a_directory_is_opened_as_what_it_is(
    name: str, shape: str, limit: int | None, originals: Any, calls: list[str]
) -> None:
    model = open_model(originals(name), device="cpu")
    assert (model.shape, model.limit) == (shape, limit)
    assert not model.model.training
    assert model.model.dtype is torch.float32
    assert calls == []
    read = model.tokenizer("The animal", return_tensors="pt")["input_ids"]
    own = pretrained.random_model(name)
    inputs = {"input_ids": read}
    if shape == "encoder-decoder":
        inputs["decoder_input_ids"] = read
    with torch.no_grad():
        base = own.base_model if shape == "encoder" else own
        assert torch.allclose(model.model(**inputs)[0], base(**inputs)[0], atol=1e-4)


def test_an_architecture_decides_where_a_type_comes_in_both_forms(tmp_path: Path) -> None:
    settings = {"vocab_size": pretrained.SIZE, **pretrained.IDS, **pretrained.PLAIN}
    config = transformers.BertConfig(**settings, is_decoder=True)
    with quiet():
        transformers.BertLMHeadModel(config).save_pretrained(tmp_path)
    pretrained.tokenizer().save_pretrained(tmp_path)
    assert open_model(tmp_path, device="cpu").shape == "decoder"
    with quiet():
        transformers.T5EncoderModel(
            transformers.T5Config(**{"vocab_size": pretrained.SIZE, **pretrained.T5})
        ).save_pretrained(tmp_path)
    assert open_model(tmp_path, device="cpu").shape == "encoder"


def test_number_types_and_attention_are_as_asked(gpt2: Path) -> None:
    assert open_model(gpt2, device="cpu", dtype="bfloat16").model.dtype is torch.bfloat16
    opened = open_model(gpt2, device="cpu")
    assert opened.model.config._attn_implementation == "sdpa"
    with opened.eager():
        assert opened.model.config._attn_implementation == "eager"
    assert opened.model.config._attn_implementation == "sdpa"
    assert refused(UsageError, gpt2, dtype="float23") == "dtype float23: did you mean float32?"


def test_opening_says_nothing_and_leaves_the_settings_of_transformers(
    gpt2: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    verbosity = transformers.logging.get_verbosity()
    assert transformers.logging.is_progress_bar_enabled()
    change(gpt2, nonsense=3)
    open_model(gpt2, device="cpu")
    assert capfd.readouterr() == ("", "")
    assert transformers.logging.get_verbosity() == verbosity
    assert transformers.logging.is_progress_bar_enabled()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no/such/place", "'no/such/place': no such directory, and not a hub name (OWNER/MODEL)"),
        ("./absent", "'./absent': no such directory, and not a hub name (OWNER/MODEL)"),
        ("a b\x1b", r"'a b\x1b': no such directory, and not a hub name (OWNER/MODEL)"),
        ("", "'': no such directory, and not a hub name (OWNER/MODEL)"),
    ],
)
def test_a_name_that_can_be_nothing_is_refused(name: str, message: str, calls: list[str]) -> None:
    assert refused(MissingInputError, name) == message
    assert calls == []


def test_a_place_without_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    assert refused(MissingInputError, tmp_path / "file").endswith("file: is a file; give the directory of a model")
    assert "no config.json: give the directory of a run" in refused(MissingInputError, tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    assert "only an adapter: merge the adapter" in refused(MissingInputError, tmp_path)


def test_settings_that_say_nothing_are_refused(gpt2: Path) -> None:
    change(gpt2, model_type=None)
    assert "config.json: model_type is missing" in refused(DataError, gpt2)
    deep = "[" * 100_000 + "]" * 100_000
    for text, said in (
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
        assert said in refused(DataError, gpt2), text[:60]
    (gpt2 / "config.json").write_text('{"model_type": "gpt2", "n_head": "many"}')
    assert "gpt2: config.json is malformed: " in refused(DataError, gpt2)


def test_an_unknown_type_names_the_nearest(gpt2: Path) -> None:
    change(gpt2, model_type="gpt22")
    version = transformers.__version__
    message = refused(DataError, gpt2)
    assert message.endswith(f"transformers {version} has no model of type 'gpt22'; did you mean gpt2?")


def test_a_model_of_no_text_is_refused(tmp_path: Path) -> None:
    transformers.ViTConfig(architectures=["ViTModel"]).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    assert "a vit model is not supported" in refused(DataError, tmp_path)


@pytest.mark.parametrize("kind", ["gpt2", "own"])
def test_code_of_a_model_is_never_run(kind: str, gpt2: Path, tmp_path: Path) -> None:
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
    if kind == "gpt2":  # known without its code
        assert open_model(gpt2, device="cpu").shape == "decoder"
    else:
        message = refused(DataError, gpt2)
        assert "needs code from its repository, which attnkit never runs" in message
    assert not marker.exists()


def test_pickled_weights_are_refused(gpt2: Path) -> None:
    (gpt2 / "model.safetensors").unlink()
    assert refused(MissingInputError, gpt2).endswith("no weights: model.safetensors is missing")
    torch.save({}, gpt2 / "pytorch_model.bin")
    message = refused(DataError, gpt2)
    assert "the weights exist only as pytorch_model.bin, which could run code" in message


@pytest.mark.parametrize(
    "name",
    [
        "pytorch_model.bin",
        "../gpt2/x.safetensors",
        "/tmp/x.safetensors",
        "a/b.safetensors",
        "..",
        "",
        "x.safetensors\n",
        ".hidden.safetensors",
        "x.pt",
    ],
)
def test_an_index_leads_to_no_pickle_and_to_no_other_folder(name: str, gpt2: Path) -> None:
    marker = gpt2 / "ran"
    for file in ("pytorch_model.bin", "x.pt"):
        torch.save({}, gpt2 / file)
    (gpt2 / "model.safetensors").rename(gpt2 / "x.safetensors")
    for index in ("model.safetensors.index.json", "model.safetensors.index.attnkit.json"):
        (gpt2 / index).write_text(json.dumps({"weight_map": {"transformer.wte.weight": name}}))
        assert "only safetensors files of the same folder are read" in refused(DataError, gpt2)
        (gpt2 / index).unlink()
    assert not marker.exists()


@pytest.mark.parametrize(
    ("file", "change", "code"),
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
def test_settings_with_wrong_content_cost_one_line(file: str, change: dict[str, Any], code: int, gpt2: Path) -> None:
    read = json.loads((gpt2 / file).read_text(encoding="utf-8"))
    (gpt2 / file).write_text(json.dumps(read | change), encoding="utf-8")
    if not code:
        assert open_model(gpt2, device="cpu").shape == "decoder"
        return
    with pytest.raises(AttnkitError) as caught:
        open_model(gpt2, device="cpu")
    assert caught.value.code == code
    assert "\n" not in str(caught.value)


def test_damaged_or_foreign_weights_are_refused(gpt2: Path, originals: Any) -> None:
    whole = (gpt2 / "model.safetensors").read_bytes()
    (gpt2 / "model.safetensors").write_bytes(whole[:-100])
    assert "cannot be opened: " in refused(DataError, gpt2)
    change(gpt2, n_layer=4)
    (gpt2 / "model.safetensors").write_bytes(whole)
    message = refused(DataError, gpt2)
    assert "12 weights of the model are missing, such as transformer.h.3." in message
    change(gpt2, n_layer=3, n_embd=64)
    assert "cannot be opened: " in refused(DataError, gpt2)


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (KeyError("x"), DataError, "cannot be opened: KeyError: 'x'"),
        (PermissionError(13, "Permission denied"), MissingInputError, "cannot be read: Permission"),
    ],
)
def test_errors_of_libraries_say_their_kind_and_those_of_the_disk_stay(
    gpt2: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: Any, message: str
) -> None:
    def fails(*_: Any) -> None:
        raise error

    monkeypatch.setattr("attnkit.huggingface.opening._weights", fails)
    assert message in refused(kind, gpt2)


def test_a_tokenizer_must_be_there_and_fit(gpt2: Path) -> None:
    shutil.copy(gpt2 / "tokenizer.json", gpt2 / "kept")
    (gpt2 / "tokenizer.json").write_text("{}")
    assert "cannot read the tokenizer: " in refused(MissingInputError, gpt2)
    (gpt2 / "tokenizer.json").unlink()
    (gpt2 / "tokenizer_config.json").unlink()
    assert "no tokenizer" in refused(MissingInputError, gpt2)
    shutil.copy(gpt2 / "kept", gpt2 / "tokenizer.json")
    read = json.loads((gpt2 / "tokenizer.json").read_text(encoding="utf-8"))
    more = {f"zzz{number}": 320 + number for number in range(40)}
    read["model"]["vocab"] |= more
    (gpt2 / "tokenizer.json").write_text(json.dumps(read), encoding="utf-8")
    assert "has 361 pieces, but the model has 340 embeddings: tokenizer and model do" in refused(DataError, gpt2)


def test_a_package_that_is_missing_or_old_is_named(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    advice = "Hugging Face models need transformers >= 5: pip install 'attnkit[hf]'"
    monkeypatch.setattr("attnkit.huggingface.opening.version", lambda _: "4.57.1")
    assert refused(UnavailableError, gpt2) == f"{advice} (here: 4.57.1)"

    def absent(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr("attnkit.huggingface.opening.version", absent)
    assert refused(UnavailableError, gpt2) == advice
    assert UnavailableError.code == 69


@pytest.mark.parametrize("part", ["LlamaForCausalLM", "AutoTokenizer"])
def test_a_package_that_transformers_lacks_is_named(
    part: str, originals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ImportError("\n the package for X is missing\nmore")

    monkeypatch.setattr(getattr(transformers, part), "from_pretrained", fail)
    message = refused(UnavailableError, originals("llama"))
    assert message.endswith(": the package for X is missing")


def test_an_unknown_device_is_refused(gpt2: Path) -> None:
    with pytest.raises(UnavailableError, match="device 'cuda:9' is not available here"):
        open_model(gpt2, device="cuda:9")


@pytest.fixture
def cached(originals: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A model in the cache of the hub; its name."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    home = tmp_path / "hub" / "models--someone--gpt2-small"
    shutil.copytree(originals("gpt2"), home / "snapshots" / commit)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return "someone/gpt2-small"


def test_a_hub_model_in_the_cache_opens_offline(cached: str, calls: list[str]) -> None:
    model = open_model(cached, device="cpu", offline=True)
    assert (model.name, model.shape) == ("someone/gpt2-small", "decoder")
    assert model.revision == "0123456789abcdef0123456789abcdef01234567"
    assert model.facts["revision"] == model.revision
    assert calls == []


@pytest.mark.parametrize("variable", [None, "ATTNKIT_OFFLINE", "HF_HUB_OFFLINE"])
def test_a_hub_model_that_is_not_in_the_cache_needs_the_network(
    variable: str | None,
    cached: str,
    calls: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    if variable == "ATTNKIT_OFFLINE":
        monkeypatch.setenv(variable, "1")
    elif variable:  # read when huggingface_hub is imported
        monkeypatch.setattr(huggingface_hub.constants, variable, True)
    message = refused(UnavailableError, "someone/else")
    assert capfd.readouterr() == ("", "")
    assert "someone/else: no such directory, not in the local cache of the hub, and" in message
    assert bool(calls) == (variable is None)


def test_a_directory_wins_over_a_hub_name(gpt2: Path, calls: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(gpt2.parent)
    assert open_model("gpt2", device="cpu").path == Path("gpt2")
    assert calls == []


def test_only_settings_vocabularies_and_safe_weights_are_downloaded(
    originals: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def snapshot(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        assert not huggingface_hub.is_offline_mode()
        return str(originals("gpt2"))

    monkeypatch.setattr("attnkit.huggingface.hub._unreachable", lambda: False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: "config.json")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert open_model("a/b", device="cpu").revision == originals("gpt2").name
    assert (asked["name"], asked["local_files_only"]) == ("a/b", False)
    wanted = [
        "config.json",
        "tokenizer.json",
        "merges.txt",
        "spiece.model",
        "source.spm",
        "model.safetensors",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "generation_config.json",
    ]
    others = [
        "pytorch_model.bin",
        "modeling_own.py",
        "consolidated.safetensors",
        "tf_model.h5",
        "original/model.safetensors",
        "onnx/model.onnx",
        "custom_generate/generate.py",
        "model.fp16.safetensors",
        "training_args.bin",
        "weights.pkl",
    ]
    taken = huggingface_hub.utils.filter_repo_objects(
        [*wanted, *others], allow_patterns=asked["allow_patterns"], ignore_patterns=asked["ignore_patterns"]
    )
    assert list(taken) == wanted


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
def test_a_refusal_of_the_hub_is_told(
    fault: str, expected: type[AttnkitError], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = getattr(huggingface_hub.errors, fault)

    def fail(*_: object, **__: object) -> None:
        error = kind.__new__(kind)
        error.response = SimpleNamespace(status_code=503)
        raise error

    monkeypatch.setattr("attnkit.huggingface.hub._unreachable", lambda: False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    assert refused(expected, "a/b").startswith(message)


def test_a_full_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("attnkit.huggingface.hub._unreachable", lambda: False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", fail)
    message = refused(OutputError, "a/b")
    assert message == "a/b: the hub's cache cannot be written: No space left on device"


def test_a_hub_model_with_pickles_only_is_refused(
    originals: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "gpt2"}')
    monkeypatch.setattr("attnkit.huggingface.hub._unreachable", lambda: False)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *_, **__: "config.json")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda *_, **__: str(tmp_path))
    message = refused(DataError, "a/b")
    assert "a/b: the weights exist only in other formats, such as pickles" in message


def test_bitsandbytes_is_silent_inside_and_as_before_outside() -> None:
    logger = logging.getLogger("bitsandbytes.autograd")
    before = logger.isEnabledFor(logging.WARNING)
    with quiet():
        assert not logger.isEnabledFor(logging.ERROR)
    assert logger.isEnabledFor(logging.WARNING) == before
