"""From recipe to data: cached by content, rebuilt when damaged, the same in concurrent runs."""

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from attnkit.data import preparation as module
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


def lines(number: int, shift: int) -> list[str]:
    return [" ".join(WORDS[(i * k + shift) % 10] for k in range(1, 4 + i % 5)) for i in range(number)]


def write_pairs(folder: Path, name: str, number: int) -> list[str]:
    paths = []
    for side, shift in (("en", 0), ("de", 1)):
        path = folder / f"{name}.{side}"
        path.write_text("".join(f"{line}\n" for line in lines(number, shift)))
        paths.append(str(path))
    return paths


def recipe(folder: Path, **sections: dict[str, object]) -> Recipe:
    """A recipe over small aligned files."""
    data = {"train": write_pairs(folder, "train", 60), "valid": write_pairs(folder, "valid", 9)}
    values = {
        "task": "translation",
        "data": data | sections.pop("data", {}),
        "tokenizer": {"size": 28} | sections.pop("tokenizer", {}),
    }
    return Recipe.model_validate(values | sections)


def pieces(split: Encoded) -> list[list[int]]:
    return [split.target[i].tolist() for i in range(len(split))]


def test_a_word_for_unknown_words_in_the_text_is_told(tmp_path: Path) -> None:
    spec = recipe(tmp_path, tokenizer={"size": 60})
    for path in spec.data.train or ():
        text = Path(path).read_text()
        Path(path).write_text(text.replace("the ", "<unk> ", 3))
    made = prepare(spec, cache=tmp_path / "c")
    assert made.reports[1] == "tokenizer: the text contains the word <unk> (6 times), which has a piece of its own"


def test_a_recipe_becomes_data(tmp_path: Path) -> None:
    stages: list[tuple[str, int, int | None]] = []
    made = prepare(recipe(tmp_path), cache=tmp_path / "c", progress=lambda *at: stages.append(at))
    assert (len(made.train), len(made.valid)) == (60, 9)
    decoded = made.tokenizer.target.decode(pieces(made.valid))
    assert decoded == lines(9, 1)
    assert made.train.source is not None
    assert made.train.source[0].tolist()[-1] == EOS
    assert made.reports == [
        f"tokenizer: unigram, shared, {len(made.tokenizer.source)} pieces",
        "train: 60 rows read, 60 kept",
        "valid: 9 rows read, 9 kept",
    ]
    assert stages == [("train", 60, None), ("valid", 9, None)]
    assert len(made.digest) == 64


def test_the_second_call_reads_no_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = recipe(tmp_path)
    first = prepare(spec, cache=tmp_path / "c")
    monkeypatch.setattr(module.Corpus, "_read", lambda *_: pytest.fail("text is read again"))
    second = prepare(spec, cache=tmp_path / "c")
    assert (first.digest, first.reports) == (second.digest, second.reports)


def test_every_setting_that_changes_ids_has_its_own_cache(tmp_path: Path) -> None:
    one = prepare(recipe(tmp_path), cache=tmp_path / "c")
    short = prepare(recipe(tmp_path, data={"max_length": 6}), cache=tmp_path / "c")
    cut = prepare(recipe(tmp_path, data={"max_length": 6, "too_long": "truncate"}), cache=tmp_path / "c")
    other = prepare(recipe(tmp_path, tokenizer={"type": "bpe", "size": 40}), cache=tmp_path / "c")
    fewer = prepare(recipe(tmp_path, data={"rows": 20}), cache=tmp_path / "c")
    assert len({p.digest for p in (one, short, cut, other, fewer)}) == 5
    assert short.train.counts.too_long == cut.train.counts.truncated > 0
    assert len(fewer.train) == 20
    (tmp_path / "train.de").write_text("".join(f"{line}!\n" for line in lines(60, 1)))
    spec = recipe(tmp_path).model_dump()
    changed = tmp_path / "changed"
    changed.mkdir()
    for name in ("train", "valid"):
        spec["data"][name] = write_pairs(changed, name, 30)
    assert prepare(Recipe.model_validate(spec), cache=tmp_path / "c").digest != one.digest


def test_rows_of_valid_are_truncated_and_never_dropped(tmp_path: Path) -> None:
    made = prepare(recipe(tmp_path, data={"max_length": 6}), cache=tmp_path / "c")
    assert made.train.counts.too_long > 0
    assert made.valid.counts.too_long == 0
    assert made.valid.counts.truncated > 0
    assert len(made.valid) == 9


def test_fewer_pieces_than_asked_for_are_reported(tmp_path: Path) -> None:
    made = prepare(recipe(tmp_path, tokenizer={"size": 9000, "shared": False}), cache=tmp_path)
    sizes = [len(vocabulary) for vocabulary in made.tokenizer]
    assert made.reports[:2] == [
        f"tokenizer: unigram, {side}, {size} pieces instead of 9,000: the text yields no more"
        for side, size in zip(("source", "target"), sizes, strict=True)
    ]


def test_learning_from_a_part_of_the_text_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "subsample", lambda rows: subsample(rows, 1500))
    made = prepare(recipe(tmp_path), cache=tmp_path / "c")
    assert made.reports[1] == "tokenizer: trained on 30 of 60 rows"
    assert len(made.train) == 60


@pytest.mark.parametrize("name", ["tokenizer.model", "meta.json"])
def test_a_damaged_tokenizer_cache_is_rebuilt(tmp_path: Path, name: str) -> None:
    spec, cache = recipe(tmp_path), tmp_path / "c"
    first = prepare(spec, cache=cache)
    (path,) = (cache / "tokenizers").glob(f"*/{name}")
    path.write_bytes(path.read_bytes()[:-9])
    second = prepare(spec, cache=cache)
    assert second.digest == first.digest


def test_no_usable_row_is_an_error_that_says_what_happened(tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        prepare(recipe(tmp_path, data={"max_length": 2}), cache=tmp_path / "c")
    assert str(caught.value) == (
        "train: the train split has no usable rows (60 rows read, 0 kept; 60 rows dropped: too many "
        "tokens); check the files, or raise data.max_length"
    )


def test_sampling_needs_a_model_with_several_segmentations(tmp_path: Path) -> None:
    spec = recipe(tmp_path, tokenizer={"type": "char", "sampling": 0.1})
    with pytest.raises(RecipeError, match=r"^tokenizer\.sampling: only unigram and bpe"):
        prepare(spec, cache=tmp_path / "c")


def test_epochs_are_sampled_afresh_and_the_same_again(tmp_path: Path) -> None:
    spec, cache = recipe(tmp_path, tokenizer={"sampling": 0.2}), tmp_path / "c"
    made = prepare(spec, cache=cache)
    first, second = (pieces(train_epoch(made, spec, epoch, 1)) for epoch in (0, 1))
    assert first != second
    assert first == pieces(train_epoch(made, spec, 0, 1))
    assert first != pieces(train_epoch(made, spec, 0, 2))
    assert made.tokenizer.target.decode(first) == made.tokenizer.target.decode(second)
    assert made.tokenizer.target.decode(first) == lines(60, 1)


def test_the_cache_keeps_one_epoch_of_a_seed(tmp_path: Path) -> None:
    spec, cache = recipe(tmp_path, tokenizer={"sampling": 0.2}), tmp_path / "c"
    made = prepare(spec, cache=cache)
    before = {path.name for path in (cache / "encoded").iterdir()}
    epochs = [train_epoch(made, spec, epoch, seed) for epoch in range(3) for seed in (1, 2)]
    kept = {path.name for path in (cache / "encoded").iterdir()} - before
    assert kept == {epochs[-1].path.name, epochs[-2].path.name}
    # What is mapped stays readable after its removal.
    assert collate(epochs[0], np.arange(3)).tokens > 0


def test_without_sampling_every_epoch_is_the_same_split(tmp_path: Path) -> None:
    spec = recipe(tmp_path)
    made = prepare(spec, cache=tmp_path / "c")
    assert train_epoch(made, spec, 5, 1) is made.train


def test_language_modelling_is_one_stream(tmp_path: Path) -> None:
    text = lines(50, 0)
    for name in ("train", "valid"):
        (tmp_path / f"{name}.txt").write_text("\n\n".join(text) + "\n")
    spec = Recipe.model_validate(
        {
            "task": "language-modeling",
            "data": {"train": str(tmp_path / "train.txt"), "valid": str(tmp_path / "valid.txt"), "max_length": 16},
            "tokenizer": {"size": 30},
        }
    )
    made = prepare(spec, cache=tmp_path / "c")
    assert made.train.source is None
    ids = np.asarray(made.train.target.ids).tolist()
    assert ids.count(EOS) == 50
    assert " ".join(made.tokenizer.target.decode([ids])[0].split()) == " ".join(text)
    assert collate(made.train, np.arange(2)).output.shape == (2, 16)


def test_another_split_is_encoded_on_request(tmp_path: Path) -> None:
    spec = recipe(tmp_path, data={"test": write_pairs(tmp_path, "test", 5)})
    made = prepare(spec, cache=tmp_path / "c")
    split = encode_split(made.corpus, made.tokenizer, spec, "test", cache=made.cache)
    assert made.tokenizer.target.decode(pieces(split)) == lines(5, 1)
    with pytest.raises(MissingInputError, match="no split"):
        encode_split(made.corpus, made.tokenizer, spec, "dev", cache=made.cache)


def test_an_existing_model_is_used_as_it_is(tmp_path: Path) -> None:
    own = prepare(recipe(tmp_path), cache=tmp_path / "c")
    own.tokenizer.save(tmp_path)
    spec = recipe(tmp_path, tokenizer={"model": str(tmp_path / "tokenizer.model")})
    made = prepare(spec, cache=tmp_path / "other")
    assert made.digest == own.digest
    assert made.reports[0] == (f"tokenizer: {tmp_path / 'tokenizer.model'}, {len(own.tokenizer.source)} pieces")


@pytest.mark.slow
def test_two_runs_at_once_agree(tmp_path: Path) -> None:
    spec = recipe(tmp_path)
    (tmp_path / "recipe.json").write_text(spec.model_dump_json())
    code = (
        "import sys, pathlib; from attnkit.data.preparation import prepare;"
        "from attnkit.recipe.schema import Recipe; folder = pathlib.Path(sys.argv[1]);"
        "spec = Recipe.model_validate_json((folder / 'recipe.json').read_text());"
        "print(prepare(spec, cache=folder / 'c').digest)"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    runs = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    digests = [run.communicate()[0].strip() for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    assert digests == [prepare(spec, cache=tmp_path / "c").digest] * 2
    assert [path for path in (tmp_path / "c").rglob("*") if ".tmp-" in path.name] == []


@pytest.mark.slow
def test_multi30k_is_prepared_and_found_again(corpora: Path, tmp_path: Path) -> None:
    spec = Recipe.model_validate(
        {
            "task": "translation",
            "data": {"corpus": "multi30k", "source": "en", "target": "de"},
            "tokenizer": {"type": "bpe"},
        }
    )
    cold = prepare(spec, data_dir=corpora, cache=tmp_path)
    assert cold.reports == [
        "tokenizer: bpe, shared, 8,000 pieces",
        "train: 29,000 rows read, 29,000 kept",
        "valid: 1,014 rows read, 1,014 kept",
    ]
    start = time.process_time()
    warm = prepare(spec, data_dir=corpora, cache=tmp_path)
    assert time.process_time() - start < 0.5
    assert warm.digest == cold.digest
    text = (corpora / "multi30k" / "valid.de").read_text("utf-8").split("\n")[:-1]
    assert warm.tokenizer.target.decode(pieces(warm.valid)) == [" ".join(t.split()) for t in text]
    meta = json.loads((warm.train.path / "meta.json").read_text())
    assert meta["value"]["dtype"] == "uint16"


def test_splits_that_are_scored_are_read_to_their_end(tmp_path: Path) -> None:
    test = write_pairs(tmp_path, "test", 5)
    made = recipe(tmp_path, data={"test": test}, eval={"splits": ["valid", "test"]})
    assert check_splits(made, cache=tmp_path / "c") == []
    with open(test[1], "rb+") as file:
        file.seek(-2, 2)
        file.write(b"\xff")
    with pytest.raises(DataError, match=r"test\.de:5:\d+: malformed UTF-8"):
        check_splits(made, cache=tmp_path / "c")
    for name in test:
        Path(name).write_bytes(b"")
    with pytest.raises(DataError, match=r"test\.en:1: the test split has no rows"):
        check_splits(made, cache=tmp_path / "c")


@pytest.mark.parametrize("fetch", [True, False])
def test_splits_of_a_card_are_fetched_or_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fetch: bool) -> None:
    monkeypatch.delenv("ATTNKIT_DATA", raising=False)
    data = {"corpus": "multi30k", "source": "en", "target": "de"}
    made = Recipe.model_validate({"task": "translation", "data": data, "eval": {"splits": ["test"]}})
    if fetch:
        with pytest.raises((MissingInputError, UnavailableError), match="multi30k"):
            check_splits(made, cache=tmp_path, offline=True)
    else:
        assert check_splits(made, cache=tmp_path, fetch=False) == ["valid", "test"]


def test_a_corpus_that_is_only_for_asking_cannot_be_trained_on(tmp_path: Path) -> None:
    made = Recipe.model_validate({"task": "question-answering", "data": {"corpus": "xquad-en"}})
    with pytest.raises(MissingInputError, match="xquad-en: no split 'train'; it has valid, test"):
        check_splits(made, cache=tmp_path, fetch=False)


def test_a_damaged_file_of_a_card_is_told(tmp_path: Path) -> None:
    card = corpus_cards.load("multi30k")
    for file in card.files():
        path = tmp_path / "data" / "multi30k" / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    data = {"corpus": "multi30k", "source": "en", "target": "de"}
    made = Recipe.model_validate({"task": "translation", "data": data})
    with pytest.raises(DataError, match=r"has 0 bytes|SHA-256 is|has no rows"):
        check_splits(made, data_dir=tmp_path / "data", cache=tmp_path, fetch=False)


def test_that_the_validation_split_is_scored_is_said(tmp_path: Path) -> None:
    note = "there is no data.test: the validation split is scored"
    silent = recipe(tmp_path, eval={"splits": ["valid"]})
    assert prepare(silent, cache=tmp_path / "c").reports[-1] == note
    test = {"test": write_pairs(tmp_path, "test", 3)}
    assert split_notes(recipe(tmp_path, data=test, eval={"splits": ["valid"]})) == []


def test_counts_are_worded_in_the_singular_and_the_plural() -> None:
    assert Counts(rows=1, empty=1).lines() == [
        "1 row read, 0 kept",
        "1 row dropped: the source or the target is empty",
    ]
    assert Counts(rows=2, unknown=2).lines()[1:] == ["2 unknown tokens: characters or words without a piece"]
