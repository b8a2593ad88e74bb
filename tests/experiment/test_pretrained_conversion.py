"""Tests of attention conversion of Hugging Face models: stages, perplexities, existing folders, errors."""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from helpers.events import record_events

from attnkit.train.events import Event, ignore

pytest.importorskip("transformers")

import transformers
from helpers.pretrained import random_model, tokenizer
from helpers.small import StopAt
from safetensors import SafetensorError

from attnkit.errors import AttnkitError, DataError, OutputError, OutputPathError, StoppedError, UsageError
from attnkit.experiment import pretrained_conversion
from attnkit.experiment.pretrained_conversion import PretrainedSettings, convert, nll, recipe_of
from attnkit.huggingface import open_model, surgery
from attnkit.storage.files import read_json
from attnkit.train.events import NoteEvent, ProgressEvent

STORY = "The animal did not cross the street because it was too tired. A small river runs behind. "


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    random_model("llama").save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def settings(folder: Path, attention: str = "linear", words: Sequence[str] = (), **options: Any) -> PretrainedSettings:
    text = folder.parent / "text.txt"
    if not text.exists():
        text.write_text(STORY * 40, encoding="utf-8")
    paths = {"model": str(folder), "text": text, "test": None, "out": folder.parent / "out"}
    sizes = {"length": 16, "transfer": 3, "tune": 2}
    recipe = recipe_of(attention, ["train.lr=1e-3", "train.batch_tokens=64", *words])
    return PretrainedSettings(recipe=recipe, device="cpu", **paths | sizes | options)


def perplexities(events: list[Any]) -> dict[str, float]:
    return {row.variant: row.scores["perplexity"].value for row in events[-1].comparison.rows}


def test_each_stage_is_scored_and_the_last_is_saved(model: Path) -> None:
    chosen = settings(model)
    found = perplexities(record_events(convert, chosen))
    assert [*found] == ["before", "swapped", "transferred", "tuned"]
    assert len(set(found.values())) == 4
    opened = open_model(chosen.folder, device="cpu")
    facts = read_json(chosen.folder / surgery.FACTS)
    assert facts["perplexity"] == found
    assert facts["weights"] == open_model(model, device="cpu").facts["weights"]
    # the perplexity is that of the model in the folder, window by window
    ids = opened.tokenizer(chosen.text.read_text())["input_ids"]
    windows = torch.tensor(ids[: len(ids) // 16 * 16]).view(-1, 16)
    windows = windows[-math.ceil(len(windows) / 10) :]
    with torch.no_grad():
        total = sum(float(nll(opened.model, window[None]).double().sum()) for window in windows)
    assert math.exp(total / (15 * len(windows))) == pytest.approx(found["tuned"], rel=1e-4)


def test_same_mechanism_has_the_same_perplexity(model: Path) -> None:
    events = record_events(convert, settings(model, "scaled-dot", transfer=1, tune=0))
    found = perplexities(events)
    assert found["swapped"] == pytest.approx(found["before"], rel=1e-6)
    (loss,) = [event.loss for event in events if isinstance(event, ProgressEvent)]
    assert loss < 1e-12


@pytest.mark.slow
def test_transfer_reduces_the_error_and_trains_only_attention(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained_conversion, "RATE", 1e-2)  # high, since the model was not trained
    events = record_events(convert, settings(model, "{name: local, window: 1}", transfer=60, tune=0))
    (note,) = [event.text for event in events if isinstance(event, NoteEvent) and "squared" in event.text]
    first, last = (float(number) for number in note.partition(" error ")[2].split(" -> "))
    assert last < 0.5 * first
    before = dict(open_model(model, device="cpu").model.named_parameters())
    after = dict(open_model(model.parent / "out" / "model-local", device="cpu").model.named_parameters())
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed
    assert all(".self_attn." in name for name in changed)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_tuning_reduces_the_perplexity(model: Path, precision: str) -> None:
    words = [f"train.precision={precision}"]
    found = perplexities(record_events(convert, settings(model, "performer", words, transfer=2, tune=60)))
    assert found["tuned"] < 0.5 * found["swapped"]


def test_test_text_is_scored(model: Path) -> None:
    test = model.parent / "test.txt"
    test.write_text(STORY * 3, encoding="utf-8")
    *_, scored = record_events(convert, settings(model, transfer=0, tune=0, test=test))
    length = len(tokenizer()(STORY * 3)["input_ids"])
    assert {row.sentences for row in scored.comparison.rows} == {length // 16}


def read(folder: Path, data: bytes) -> list[int]:
    """Return the tokens of a file in windows of 16."""
    chosen = settings(folder)
    chosen.text.write_bytes(data)
    conversion = pretrained_conversion._PretrainedConversion(chosen, StopAt([]), ignore)
    return conversion._windows(chosen.text).flatten().tolist()


def test_byte_order_mark_and_windows_line_ends_are_ignored(model: Path) -> None:
    plain = read(model, f"{STORY}\n\n{STORY}".encode())
    assert read(model, f"\ufeff{STORY}\r\n\r\n{STORY}".encode()) == plain


def test_first_part_of_a_long_text_is_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (STORY + "\u00fc").encode()
    story = read(model, STORY.encode())
    monkeypatch.setattr(pretrained_conversion, "MAX_BYTES", len(text) - 1)  # inside the last character
    assert read(model, text + STORY.encode()) == story
    with pytest.raises(DataError, match="is not UTF-8 text"):
        read(model, b"\xff" + text)


def test_stopped_conversion_writes_nothing(model: Path) -> None:
    chosen = settings(model)
    with pytest.raises(StoppedError, match="nothing was written"):
        pretrained_conversion._PretrainedConversion(chosen, StopAt([6]), ignore).run()
    assert not chosen.folder.exists()


def test_existing_folder_is_replaced_only_with_fresh(model: Path) -> None:
    chosen = settings(model, transfer=0, tune=0)
    record_events(convert, chosen)
    with pytest.raises(OutputPathError, match="--fresh"):
        record_events(convert, chosen)
    record_events(convert, replace(chosen, fresh=True, tune=1))
    assert read_json(chosen.folder / surgery.FACTS)["tune"] == 1
    with pytest.raises(UsageError, match="is already converted"):
        record_events(convert, settings(chosen.folder, out=model.parent / "other", text=chosen.text))


@pytest.mark.parametrize("fresh", [False, True])
def test_folder_that_is_not_a_converted_model_is_never_replaced(fresh: bool, model: Path) -> None:
    chosen = settings(model, transfer=0, tune=0, fresh=fresh)
    run = chosen.folder / "base" / "seed-1"
    run.mkdir(parents=True)
    with pytest.raises(OutputPathError, match="not a converted model; use another --out"):
        record_events(convert, chosen)
    assert run.is_dir()


@pytest.mark.parametrize("fresh", [False, True])
def test_folder_created_during_training_is_not_replaced(fresh: bool, model: Path) -> None:
    chosen = settings(model, fresh=fresh)

    def create_folder(event: Event) -> None:
        if isinstance(event, ProgressEvent):
            chosen.folder.mkdir(parents=True, exist_ok=True)

    with pytest.raises(OutputPathError, match="not a converted model; use another --out"):
        record_events(convert, chosen, watch=create_folder)
    assert not [*chosen.folder.iterdir()]


def test_full_disk_leaves_no_files(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    full = Mock(side_effect=SafetensorError("I/O error: No space left on device (os error 28)"))
    monkeypatch.setattr(transformers.modeling_utils, "safe_save_file", full)
    chosen = settings(model, transfer=0, tune=0)
    with pytest.raises(OutputError, match="No space left on device; free some space"):
        record_events(convert, chosen)
    assert not [*chosen.out.iterdir()]


def test_relative_path_of_a_model_is_resolved_for_its_name(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (model / "inside").mkdir()
    for folder, path in ((model, "."), (model / "inside", "..")):
        monkeypatch.chdir(folder)
        assert settings(model, model=path).folder.name == "model-linear"


@pytest.mark.parametrize(
    ("content", "options", "kind", "message"),
    [
        (b"too short", {}, DataError, "a window needs 16"),
        (STORY[:50].encode(), {}, DataError, "too short: use at least 32"),
        (b"\xff\xfe", {}, DataError, "not UTF-8 text"),
        (STORY.encode(), {"length": 65}, UsageError, "reads at most 64"),
        (STORY.encode() * 40, {"words": ["train.lr=1e30"], "tune": 9}, AttnkitError, "not finite"),
    ],
)
def test_invalid_text_length_or_rate_raises(
    content: bytes, options: dict[str, Any], kind: type[Exception], message: str, model: Path
) -> None:
    (model.parent / "text.txt").write_bytes(content)
    with pytest.raises(kind, match=message):
        record_events(convert, settings(model, **options))
    assert not (model.parent / "out").exists()
