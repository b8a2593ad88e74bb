"""Tests of preparing data from a recipe: content, reports, caching, epochs, checks of splits."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attnkit.data import preparation
from attnkit.data.batch import collate
from attnkit.data.encoded import Encoded
from attnkit.data.preparation import check_splits, encode_split, prepare, train_epoch
from attnkit.data.rows import Counts
from attnkit.data.tokenizer import EOS, subsample
from attnkit.errors import DataError, MissingInputError, RecipeError, UnavailableError
from attnkit.recipe import corpus_cards
from attnkit.recipe.data_rules import split_notes
from attnkit.recipe.schema import Recipe

WORDS = ["the", "old", "cat", "dog", "sees", "a", "red", "tree", "and", "sleeps"]
MULTI30K: Any = {"task": "translation", "data": {"corpus": "multi30k", "source": "en", "target": "de"}}


def lines(number: int, shift: int) -> list[str]:
    return [" ".join(WORDS[(i * k + shift) % 10] for k in range(1, 4 + i % 5)) for i in range(number)]


def write_pairs(folder: Path, name: str, number: int) -> list[str]:
    paths = []
    for side, shift in (("en", 0), ("de", 1)):
        path = folder / f"{name}.{side}"
        path.write_text("".join(f"{line}\n" for line in lines(number, shift)))
        paths.append(str(path))
    return paths


def make_recipe(folder: Path, **sections: dict[str, object]) -> Recipe:
    """Return a recipe for small aligned files."""
    data = {"train": write_pairs(folder, "train", 60), "valid": write_pairs(folder, "valid", 9)}
    values = {
        "task": "translation",
        "data": data | sections.pop("data", {}),
        "tokenizer": {"size": 28} | sections.pop("tokenizer", {}),
    }
    return Recipe.model_validate(values | sections)


def target_ids(split: Encoded) -> list[list[int]]:
    return [split.target[i].tolist() for i in range(len(split))]


def test_word_for_unknown_words_in_the_text_is_reported(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, tokenizer={"size": 60})
    for path in map(Path, recipe.data.train or ()):
        path.write_text(path.read_text().replace("the ", "<unk> ", 3))
    prepared = prepare(recipe, cache=tmp_path / "c")
    assert prepared.reports[1] == "tokenizer: the text contains the word <unk> (6 times), which has a piece of its own"


def test_recipe_becomes_tokenizer_and_splits(tmp_path: Path) -> None:
    steps: list[tuple[str, int, int | None]] = []
    prepared = prepare(make_recipe(tmp_path), cache=tmp_path / "c", progress=lambda *step: steps.append(step))
    assert (len(prepared.train), len(prepared.valid)) == (60, 9)
    assert prepared.tokenizer.target.decode(target_ids(prepared.valid)) == lines(9, 1)
    assert prepared.train.source is not None
    assert prepared.train.source[0].tolist()[-1] == EOS
    assert prepared.reports == [
        f"tokenizer: unigram, shared, {len(prepared.tokenizer.source)} pieces",
        "train: 60 rows read, 60 kept",
        "valid: 9 rows read, 9 kept",
    ]
    assert steps == [("train", 60, None), ("valid", 9, None)]
    assert len(prepared.digest) == 64


def test_second_call_reads_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make_recipe(tmp_path)
    first = prepare(recipe, cache=tmp_path / "c")
    monkeypatch.setattr(preparation.Corpus, "_read", lambda *_: pytest.fail("text is read again"))
    second = prepare(recipe, cache=tmp_path / "c")
    assert (first.digest, first.reports) == (second.digest, second.reports)


def test_every_setting_that_changes_ids_has_its_own_cache(tmp_path: Path) -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"data": {"max_length": 6}},
        {"data": {"max_length": 6, "too_long": "truncate"}},
        {"data": {"rows": 20}},
        {"tokenizer": {"type": "bpe", "size": 40}},
    ]
    results = [prepare(make_recipe(tmp_path, **sections), cache=tmp_path / "c") for sections in settings]
    _, short, cut, fewer, _ = results
    assert short.train.counts.too_long == cut.train.counts.truncated > 0
    assert len(fewer.train) == 20
    changed = make_recipe(tmp_path).model_dump()
    (tmp_path / "changed").mkdir()
    for name in ("train", "valid"):
        changed["data"][name] = write_pairs(tmp_path / "changed", name, 30)
    results.append(prepare(Recipe.model_validate(changed), cache=tmp_path / "c"))
    assert len({prepared.digest for prepared in results}) == 6


def test_validation_rows_are_truncated_and_never_dropped(tmp_path: Path) -> None:
    prepared = prepare(make_recipe(tmp_path, data={"max_length": 6}), cache=tmp_path / "c")
    assert prepared.train.counts.too_long > 0
    assert prepared.valid.counts.too_long == 0
    assert prepared.valid.counts.truncated > 0
    assert len(prepared.valid) == 9


def test_smaller_tokenizer_than_asked_for_is_reported(tmp_path: Path) -> None:
    prepared = prepare(make_recipe(tmp_path, tokenizer={"size": 9000, "shared": False}), cache=tmp_path)
    sizes = [len(vocabulary) for vocabulary in prepared.tokenizer]
    assert prepared.reports[:2] == [
        f"tokenizer: unigram, {side}, {size} pieces instead of 9,000: the text yields no more"
        for side, size in zip(("source", "target"), sizes, strict=True)
    ]


def test_tokenizer_trained_on_part_of_the_text_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparation, "subsample", lambda rows: subsample(rows, 1500))
    prepared = prepare(make_recipe(tmp_path), cache=tmp_path / "c")
    assert prepared.reports[1] == "tokenizer: trained on 30 of 60 rows"
    assert len(prepared.train) == 60


@pytest.mark.parametrize("name", ["tokenizer.model", "meta.json"])
def test_damaged_tokenizer_cache_is_rebuilt(tmp_path: Path, name: str) -> None:
    recipe, cache = make_recipe(tmp_path), tmp_path / "c"
    first = prepare(recipe, cache=cache)
    (path,) = (cache / "tokenizers").glob(f"*/{name}")
    path.write_bytes(path.read_bytes()[:-9])
    assert prepare(recipe, cache=cache).digest == first.digest


def test_split_without_usable_rows_raises(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        prepare(make_recipe(tmp_path, data={"max_length": 2}), cache=tmp_path / "c")
    assert str(caught.value) == (
        "train: the train split has no usable rows (60 rows read, 0 kept; 60 rows dropped: too many "
        "tokens); check the files, or raise data.max_length"
    )


@pytest.mark.parametrize("kind", ["word", "char"])
def test_sampling_needs_unigram_or_bpe(tmp_path: Path, kind: str) -> None:
    recipe = make_recipe(tmp_path, tokenizer={"type": kind, "sampling": 0.1})
    with pytest.raises(RecipeError, match=r"^tokenizer\.sampling: only unigram and bpe"):
        prepare(recipe, cache=tmp_path / "c")


def test_sampled_segmentations_differ_by_epoch_and_seed(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, tokenizer={"sampling": 0.2})
    prepared = prepare(recipe, cache=tmp_path / "c")
    first, second = (target_ids(train_epoch(prepared, recipe, epoch, 1)) for epoch in (0, 1))
    assert first != second
    assert first == target_ids(train_epoch(prepared, recipe, 0, 1))
    assert first != target_ids(train_epoch(prepared, recipe, 0, 2))
    decode = prepared.tokenizer.target.decode
    assert decode(first) == decode(second) == lines(60, 1)


def test_cache_keeps_one_epoch_per_seed(tmp_path: Path) -> None:
    recipe, cache = make_recipe(tmp_path, tokenizer={"sampling": 0.2}), tmp_path / "c"
    prepared = prepare(recipe, cache=cache)
    before = {path.name for path in (cache / "encoded").iterdir()}
    epochs = [train_epoch(prepared, recipe, epoch, seed) for epoch in range(3) for seed in (1, 2)]
    kept = {path.name for path in (cache / "encoded").iterdir()} - before
    assert kept == {epochs[-1].path.name, epochs[-2].path.name}
    # a memory-mapped epoch stays readable after its removal
    assert collate(epochs[0], np.arange(3)).tokens > 0


def test_without_sampling_every_epoch_is_the_same_split(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    prepared = prepare(recipe, cache=tmp_path / "c")
    assert train_epoch(prepared, recipe, 5, 1) is prepared.train


def test_language_modeling_reads_a_stream(tmp_path: Path) -> None:
    text, path = lines(50, 0), tmp_path / "text.txt"
    path.write_text("\n\n".join(text) + "\n")
    data = {"train": str(path), "valid": str(path), "max_length": 16}
    recipe = Recipe.model_validate({"task": "language-modeling", "data": data, "tokenizer": {"size": 30}})
    prepared = prepare(recipe, cache=tmp_path / "c")
    assert prepared.train.source is None
    ids = np.asarray(prepared.train.target.ids).tolist()
    assert ids.count(EOS) == 50
    assert " ".join(prepared.tokenizer.target.decode([ids])[0].split()) == " ".join(text)
    assert collate(prepared.train, np.arange(2)).output.shape == (2, 16)


def test_encode_split_encodes_other_splits(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, data={"test": write_pairs(tmp_path, "test", 5)})
    prepared = prepare(recipe, cache=tmp_path / "c")
    split = encode_split(prepared.corpus, prepared.tokenizer, recipe, "test", cache=prepared.cache)
    assert prepared.tokenizer.target.decode(target_ids(split)) == lines(5, 1)
    with pytest.raises(MissingInputError, match="no split"):
        encode_split(prepared.corpus, prepared.tokenizer, recipe, "dev", cache=prepared.cache)


def test_existing_tokenizer_model_is_used(tmp_path: Path) -> None:
    first = prepare(make_recipe(tmp_path), cache=tmp_path / "c")
    first.tokenizer.save(tmp_path)
    model = tmp_path / "tokenizer.model"
    second = prepare(make_recipe(tmp_path, tokenizer={"model": str(model)}), cache=tmp_path / "other")
    assert second.digest == first.digest
    assert second.reports[0] == f"tokenizer: {model}, {len(first.tokenizer.source)} pieces"


@pytest.mark.slow
def test_two_concurrent_processes_prepare_the_same_data(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path)
    (tmp_path / "recipe.json").write_text(recipe.model_dump_json())
    code = (
        "import sys, pathlib; from attnkit.data.preparation import prepare;"
        "from attnkit.recipe.schema import Recipe; folder = pathlib.Path(sys.argv[1]);"
        "recipe = Recipe.model_validate_json((folder / 'recipe.json').read_text());"
        "print(prepare(recipe, cache=folder / 'c').digest)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    digests = [process.communicate()[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert digests == [prepare(recipe, cache=tmp_path / "c").digest] * 2
    assert not [*(tmp_path / "c").rglob("*.tmp-*")]


@pytest.mark.slow
def test_multi30k_is_prepared_and_found_in_the_cache(corpora: Path, tmp_path: Path) -> None:
    recipe = Recipe.model_validate(MULTI30K | {"tokenizer": {"type": "bpe"}})
    first = prepare(recipe, data_dir=corpora, cache=tmp_path)
    assert first.reports == [
        "tokenizer: bpe, shared, 8,000 pieces",
        "train: 29,000 rows read, 29,000 kept",
        "valid: 1,014 rows read, 1,014 kept",
    ]
    start = time.process_time()
    second = prepare(recipe, data_dir=corpora, cache=tmp_path)
    assert time.process_time() - start < 0.5
    assert second.digest == first.digest
    text = (corpora / "multi30k" / "valid.de").read_text("utf-8").split("\n")[:-1]
    assert second.tokenizer.target.decode(target_ids(second.valid)) == [" ".join(t.split()) for t in text]
    meta = json.loads((second.train.path / "meta.json").read_text())
    assert meta["value"]["dtype"] == "uint16"


def test_check_splits_reads_scored_splits_to_the_end(tmp_path: Path) -> None:
    paths = write_pairs(tmp_path, "test", 5)
    recipe = make_recipe(tmp_path, data={"test": paths}, eval={"splits": ["valid", "test"]})
    assert check_splits(recipe, cache=tmp_path / "c") == []
    with open(paths[1], "rb+") as file:
        file.seek(-2, 2)
        file.write(b"\xff")
    with pytest.raises(DataError, match=r"test\.de:5:\d+: malformed UTF-8"):
        check_splits(recipe, cache=tmp_path / "c")
    for path in paths:
        Path(path).write_bytes(b"")
    with pytest.raises(DataError, match=r"test\.en:1: the test split has no rows"):
        check_splits(recipe, cache=tmp_path / "c")


def test_check_splits_downloads_or_lists_the_splits_of_a_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ATTNKIT_DATA", raising=False)
    recipe = Recipe.model_validate(MULTI30K | {"eval": {"splits": ["test"]}})
    with pytest.raises((MissingInputError, UnavailableError), match="multi30k"):
        check_splits(recipe, cache=tmp_path, offline=True)
    assert check_splits(recipe, cache=tmp_path, fetch=False) == ["valid", "test"]


def test_check_splits_raises_without_a_training_split(tmp_path: Path) -> None:
    recipe = Recipe.model_validate({"task": "question-answering", "data": {"corpus": "xquad-en"}})
    with pytest.raises(MissingInputError, match="xquad-en: no split 'train'; it has valid, test"):
        check_splits(recipe, cache=tmp_path, fetch=False)


def test_check_splits_raises_for_a_damaged_file_of_a_card(tmp_path: Path) -> None:
    for file in corpus_cards.load("multi30k").files():
        path = tmp_path / "data" / "multi30k" / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    with pytest.raises(DataError, match=r"has 0 bytes|SHA-256 is|has no rows"):
        check_splits(Recipe.model_validate(MULTI30K), data_dir=tmp_path / "data", cache=tmp_path, fetch=False)


def test_scoring_the_validation_split_without_a_test_split_is_reported(tmp_path: Path) -> None:
    recipe = make_recipe(tmp_path, eval={"splits": ["valid"]})
    reports = prepare(recipe, cache=tmp_path / "c").reports
    assert reports[-1] == "there is no data.test: the validation split is scored"
    test = {"test": write_pairs(tmp_path, "test", 3)}
    assert split_notes(make_recipe(tmp_path, data=test, eval={"splits": ["valid"]})) == []


def test_counts_are_singular_or_plural() -> None:
    assert Counts(rows=1, empty=1).lines() == [
        "1 row read, 0 kept",
        "1 row dropped: the source or the target is empty",
    ]
    assert Counts(rows=2, unknown=2).lines()[1:] == ["2 unknown tokens: characters or words without a piece"]
