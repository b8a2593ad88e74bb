"""Tests of corpora: finding, downloading and verifying their files, reading splits, fingerprints, labels."""

import gzip
import hashlib
import json
import os
import re
import sys
import tarfile
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_corpora import ROWS as FAKE_ROWS
from helpers.fake_corpora import make_corpus

from attnkit.data import corpus_files
from attnkit.data.corpus import Corpus
from attnkit.data.rows import Counts, Row
from attnkit.errors import DataError, MissingInputError, RecipeError
from attnkit.recipe import corpus_cards
from attnkit.recipe.schema import DataConfig
from attnkit.storage import download

ROWS = {  # the tables in the READMEs of the corpora
    "multi30k": {"train": 29000, "valid": 1014, "test": 1000, "test_2017": 1000},
    "tatoeba-enja": {"train": 48794, "valid": 500, "test": 500},
    "tatoeba-enzh": {"train": 19010, "valid": 998, "test": 997},
    "acl-titles": {"train": 10000, "valid": 1000, "test": 1000},
    "scitldr": {"train": 1988, "valid": 617, "test": 309},
    "dialogsum": {"valid": 493, "test": 250},
    "personachat": {"train": 15500, "valid": 946, "test": 1249},
    "dailydialog": {"train": 13000, "valid": 2801, "test": 3377},
}
WORDS = {"train": 2051910, "valid": 213886, "test": 188752}  # of wikitext-2
TINY = DataConfig(corpus="tiny", source="en", target="de")
TINY_ROWS = [Row("a", "c"), Row("b", "d")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the current folder, without corpora; hashes of files are cached immediately."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ATTNKIT_DATA", raising=False)
    monkeypatch.setattr(corpus_files, "SETTLED", -1)
    return tmp_path


@pytest.fixture
def card(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the card of the corpus `tiny`, which a test may change before it opens the corpus."""
    texts = {"train.en": b"a\nb\n", "train.de": b"c\nd\n", "test.en": b"e\n", "test.de": b"f\n"}
    splits: dict[str, dict[str, Any]] = {"train": {}, "test": {}}
    for name, text in texts.items():
        write(folder / "data" / "tiny" / name, text)
        split, language = name.split(".")
        splits[split][language] = {"path": name, "size": len(text), "sha256": hashlib.sha256(text).hexdigest()}
    card: dict[str, Any] = dict.fromkeys(("title", "licence", "citation"), "none")
    card |= {"name": "tiny", "task": "translation", "format": "lines", "languages": ["en", "de"]}
    card |= {"homepage": None, "obtain": "from a friend", "splits": splits}
    monkeypatch.setattr(corpus_cards, "load", lambda name: corpus_cards.Card.model_validate(card))
    return card


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """Replace the generator of the embedded translation corpus."""
    module = types.ModuleType("attnkit.data.synthetic.translation")

    def rows(split: str, size: int, seed: int) -> Iterator[Row]:
        return (Row(f"{split} {i}", f"{seed} {i}") for i in range(size))

    module.__dict__.update(rows=rows, VERSION=1, SIZES={"train": 5, "valid": 2, "test": 3})
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module


def write(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def tiny(folder: Path) -> Corpus:
    return Corpus.open(TINY, "translation", data_dir=folder / "data", cache=folder / "cache")


def read(task: str, split: str = "train", counts: Counts | None = None, **data: Any) -> list[Row]:
    return list(Corpus.open(DataConfig(**data), task).rows(split, counts))


def open_error(kind: type[Exception], data: DataConfig, task: str = "translation") -> str:
    with pytest.raises(kind) as caught:
        Corpus.open(data, task)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ROWS)
def test_real_corpora_have_the_documented_rows(corpora: Path, name: str) -> None:
    card = corpus_cards.load(name)
    first, *rest = card.languages
    pair = {"source": first, "target": rest[0]} if rest else {}
    corpus = Corpus.open(DataConfig(corpus=name, **pair), card.task, data_dir=corpora)
    counts = Counts()
    sizes = {split: sum(1 for _ in corpus.rows(split, counts)) for split in corpus.splits}
    assert sizes == ROWS[name]
    assert counts.rows == sum(sizes.values())
    assert counts.replaced == 0
    assert corpus.languages == ((first, rest[0]) if rest else (first, first))


def test_real_plain_text_has_the_documented_words(corpora: Path) -> None:
    corpus = Corpus.open(DataConfig(corpus="wikitext-2"), "language-modeling", data_dir=corpora)
    words = {s: sum(len(r.target.split()) for r in corpus.rows(s)) for s in corpus.splits}
    assert words == WORDS
    assert {row.source for row in corpus.rows("test")} == {""}
    assert corpus.languages == (None, "en")


def test_source_and_target_of_a_json_corpus_can_be_swapped(corpora: Path) -> None:
    forward, backward = (
        Corpus.open(DataConfig(corpus="tatoeba-enzh", source=source, target=target), "translation", data_dir=corpora)
        for source, target in (("en", "zh"), ("zh", "en"))
    )
    for row, other in zip(forward.rows("test"), backward.rows("test"), strict=True):
        assert (row.source, row.target) == (other.target, other.source)
    assert forward.fingerprint("test") != backward.fingerprint("test")


def test_references_of_a_real_corpus_are_kept(corpora: Path) -> None:
    corpus = Corpus.open(DataConfig(corpus="dialogsum"), "summarization", data_dir=corpora)
    assert {len(row.references) for row in corpus.rows("test")} == {3}


def test_files_of_a_card_are_read_by_language(folder: Path, card: dict[str, Any]) -> None:
    corpus = tiny(folder)
    assert (corpus.name, corpus.languages, corpus.splits) == ("tiny", ("en", "de"), ("train", "test"))
    assert list(corpus.rows("train")) == TINY_ROWS
    data = DataConfig(corpus="tiny", target="de")
    monolingual = Corpus.open(data, "language-modeling", data_dir=folder / "data", cache=folder)
    assert list(monolingual.rows("train")) == [Row("", "c"), Row("", "d")]


@pytest.mark.parametrize(
    ("head", "columns"),
    [("de\ten\n", {}), ("d\te\n", {"columns": {"en": "e", "de": "d"}}), ("", {"columns": {"en": 2, "de": 1}})],
)
def test_columns_of_a_table_are_named_by_language_or_by_the_card(
    folder: Path, card: dict[str, Any], head: str, columns: dict[str, Any]
) -> None:
    write(folder / "data" / "tiny" / "rows.tsv", f"{head}c\ta\n")
    card |= {"format": "tsv", "splits": {"train": {"rows": {"path": "rows.tsv"}}}, **columns}
    assert list(tiny(folder).rows("train")) == [Row("a", "c")]


def test_files_may_be_in_the_cache(folder: Path, card: dict[str, Any]) -> None:
    (folder / "cache" / "corpora" / "tiny").mkdir(parents=True)
    (folder / "data" / "tiny" / "train.de").rename(folder / "cache" / "corpora" / "tiny" / "train.de")
    assert list(tiny(folder).rows("train")) == TINY_ROWS


def test_changed_file_of_a_card_raises(folder: Path, card: dict[str, Any]) -> None:
    assert len(list(tiny(folder).rows("train"))) == 2
    path = write(folder / "data" / "tiny" / "train.de", "c\nx\n")
    with pytest.raises(DataError) as caught:
        list(tiny(folder).rows("train"))
    found = hashlib.sha256(b"c\nx\n").hexdigest()
    expected = card["splits"]["train"]["de"]["sha256"]
    assert f"{path}: SHA-256 is {found}, but the corpus card of tiny lists {expected}" in str(caught.value)
    write(path, "c\n")
    with pytest.raises(DataError, match="has 2 bytes, but the corpus card of tiny lists 4"):
        list(tiny(folder).rows("train"))


def test_missing_file_of_a_card_says_how_to_obtain_it(folder: Path, card: dict[str, Any]) -> None:
    (folder / "data" / "tiny" / "test.de").unlink()
    with pytest.raises(MissingInputError) as caught:
        list(tiny(folder).rows("test"))
    assert str(caught.value) == (
        f"data.corpus: tiny: test.de is neither in {folder / 'data' / 'tiny'} nor in "
        f"{folder / 'cache' / 'corpora' / 'tiny'}; set ATTNKIT_DATA or --data-dir to a folder "
        "with tiny/test.de. How to obtain it: from a friend"
    )
    card["splits"]["test"]["de"]["path"] = "absent"
    with pytest.raises(MissingInputError, match="no data folder is set; set ATTNKIT_DATA"):
        list(Corpus.open(TINY, "translation").rows("test"))


def test_unknown_split_raises_and_names_the_others(folder: Path, card: dict[str, Any]) -> None:
    for use in (Corpus.fingerprint, lambda corpus, split: next(corpus.rows(split))):
        with pytest.raises(MissingInputError) as caught:
            use(tiny(folder), "tset")
        assert str(caught.value) == "tiny: no split 'tset'; did you mean test? it has train, test"


def test_keys_that_do_not_fit_the_card_raise(folder: Path, card: dict[str, Any]) -> None:
    """The rules themselves are tested in tests/recipe/test_rules.py."""
    data = DataConfig(corpus="tiny", source="en", target="dee")
    assert "data.target: tiny has no 'dee'; did you mean de?" in open_error(RecipeError, data)


def test_missing_data_folder_raises(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNKIT_DATA", str(folder / "absent"))
    assert open_error(MissingInputError, DataConfig(corpus="multi30k", source="en", target="de")) == (
        f"{folder / 'absent'}: no such folder (ATTNKIT_DATA)"
    )


@pytest.fixture
def network(card: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Replace the network by a dict from addresses to contents; none of the card's files exists."""
    contents: dict[str, bytes] = {}

    def fetch(url: str, path: Path, sha256: str | None, progress: Any, **_: Any) -> None:
        write(path, contents[url])
        if progress:
            progress(len(contents[url]), None)

    for split in card["splits"].values():
        for file in split.values():
            file.update(path=f"new/{file['path']}", size=None, sha256=None)
    monkeypatch.setattr(download, "fetch", fetch)
    return contents


def test_files_are_downloaded_once(folder: Path, card: dict[str, Any], network: dict[str, bytes]) -> None:
    for language, text in (("en", b"a\n"), ("de", b"b\n")):
        url = f"https://example.org/train.{language}"
        card["splits"]["train"][language]["url"] = url
        network[url] = gzip.compress(text)
    steps: list[tuple[str, int, int | None]] = []
    corpus = Corpus.open(TINY, "translation", cache=folder / "cache", progress=lambda *step: steps.append(step))
    assert list(corpus.rows("train")) == [Row("a", "b")]
    assert [name for name, _, _ in steps] == ["train.en", "train.de"]
    network.clear()
    assert list(tiny(folder).rows("train")) == [Row("a", "b")]


def test_members_of_an_archive_are_kept_and_the_archive_is_removed(
    folder: Path, card: dict[str, Any], network: dict[str, bytes]
) -> None:
    for name, text in (("d/x.en", "a\n"), ("d/x.de", "b\n"), ("other", "c")):
        write(folder / "packed" / name, text)
    with tarfile.open(folder / "all.tgz", "w:gz") as tar:
        tar.add(folder / "packed", "")
    network["https://example.org/all.tgz"] = (folder / "all.tgz").read_bytes()
    card["archives"] = {"all": {"url": "https://example.org/all.tgz"}}
    for language in ("en", "de"):
        card["splits"]["train"][language].update(archive="all", member=f"d/x.{language}")
    for _ in range(2):
        assert list(tiny(folder).rows("train")) == [Row("a", "b")]
        place = folder / "cache" / "corpora" / "tiny"
        files = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())
        assert files == ["new/train.de", "new/train.en"]
        network.clear()


def test_generated_corpus_has_size_seed_and_sides(folder: Path, toy: types.ModuleType) -> None:
    corpus = Corpus.open(DataConfig(corpus="toy-translation", size=2, seed=7), "translation")
    assert corpus.languages == ("en", "de")
    assert list(corpus.rows("train")) == [Row("train 0", "7 0"), Row("train 1", "7 1")]
    assert len(list(corpus.rows("test"))) == 3
    backward = read("translation", corpus="toy-translation", source="de", target="en", rows=1)
    assert backward == [Row("1 0", "train 0")]
    assert read("language-modeling", "valid", corpus="toy-translation")[0] == Row("", "1 0")


def test_fingerprint_of_a_generated_corpus_includes_its_version(folder: Path, toy: types.ModuleType) -> None:
    def fingerprints(**options: Any) -> tuple[str, str]:
        corpus = Corpus.open(DataConfig(corpus="toy-translation", **options), "translation")
        return corpus.fingerprint("train"), corpus.fingerprint("valid")

    first = fingerprints()
    assert first == fingerprints() == fingerprints(size=5)
    assert fingerprints(size=6)[0] != first[0]
    assert fingerprints(size=6)[1] == first[1]
    assert fingerprints(seed=2)[1] != first[1]
    toy.VERSION = 2
    assert fingerprints()[0] != first[0]


def test_own_files_are_found_in_the_current_folder_then_in_the_data_folder(folder: Path) -> None:
    write(folder / "here.en", "a\nb\n")
    write(folder / "data" / "here.en", "wrong\n")
    write(folder / "data" / "there.de", "c\nd\n")
    data = DataConfig(train=("here.en", "there.de"), source="en", target="de")
    corpus = Corpus.open(data, "translation", data_dir=folder / "data")
    assert (corpus.name, corpus.languages, corpus.splits) == ("here", ("en", "de"), ("train",))
    assert list(corpus.rows("train")) == TINY_ROWS


def test_own_files_are_json_or_plain_text(folder: Path) -> None:
    write(folder / "rows.jsonl.gz", gzip.compress(b'{"article": "a", "title": "b"}\n'))
    write(folder / "train.txt", "a\n\nb\n")
    write(folder / "text.jsonl", '{"text": "c"}')
    assert read("summarization", train="rows.jsonl.gz", source="article", target="title") == [Row("a", "b")]
    assert read("language-modeling", train="rows.jsonl.gz", target="article") == [Row("", "a")]
    assert read("language-modeling", train="train.txt") == [Row("", "a"), Row("", ""), Row("", "b")]
    assert read("language-modeling", "valid", train="train.txt", valid="text.jsonl") == [Row("", "c")]


def test_rows_and_valid_rows_limit_their_splits(folder: Path) -> None:
    for split in ("train", "valid"):
        write(folder / f"{split}.txt", "a\r\nb\r\nc\r\n")
    corpus, other = (
        Corpus.open(DataConfig(train="train.txt", valid="valid.txt", **{key: size}), "language-modeling")
        for key, size in (("rows", 2), ("valid_rows", 1))
    )
    counts = Counts()
    assert [len(list(corpus.rows(split, counts))) for split in ("train", "valid")] == [2, 3]
    assert counts.lines() == ["5 rows read"]
    assert [len(list(other.rows(split))) for split in ("train", "valid")] == [3, 1]
    assert other.fingerprint("valid") != corpus.fingerprint("valid")


def test_split_without_rows_raises(folder: Path) -> None:
    write(folder / "empty.txt", "")
    with pytest.raises(DataError, match="empty.txt:1: the train split has no rows"):
        read("language-modeling", train="empty.txt")


def test_malformed_text_raises_or_is_replaced(folder: Path) -> None:
    write(folder / "x.txt", b"a\xff\n")
    with pytest.raises(DataError, match=r"x\.txt:1:2: malformed UTF-8"):
        read("language-modeling", train="x.txt")
    counts = Counts()
    assert read("language-modeling", counts=counts, train="x.txt", errors="replace") == [Row("", "a\ufffd")]
    assert counts.replaced == 1


@pytest.mark.parametrize("other", ["x.de", "y.de"])
def test_other_encoding_is_reported_before_a_difference_in_lines(folder: Path, other: str) -> None:
    """The message said that aligned files differ in length, which they did not."""
    Path("x.en").write_text("a\nb\n" * 99, encoding="utf-16")
    Path("x.de").write_text("\u010a\n" * 198, encoding="utf-16")
    Path("y.de").write_text("c\nd\n" * 99, encoding="utf-8")
    with pytest.raises(DataError, match=r"x\.en: this is UTF-16 text"):
        read("translation", train=("x.en", other))


def test_missing_own_files_raise_and_name_the_folders_searched(folder: Path) -> None:
    data = DataConfig(train=("x.en", "x.de"))
    assert open_error(MissingInputError, data) == (
        f"data.train: no such file 'x.en': looked for {folder / 'x.en'}, and in the recipe's folder; "
        "ATTNKIT_DATA or --data-dir can add a folder to search"
    )
    with pytest.raises(MissingInputError) as caught:
        Corpus.open(data, "translation", data_dir=folder)
    assert f"looked for {folder / 'x.en'} and {folder / 'x.en'}" in str(caught.value)


def test_folders_pipes_and_dangling_links_raise(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("absent")
    (folder / "folder").mkdir()
    for name in ("pipe", "folder", "link"):
        assert name in open_error(MissingInputError, DataConfig(train=name), "language-modeling")


def test_fingerprint_depends_only_on_content_and_options(folder: Path) -> None:
    def fingerprint(**options: Any) -> str:
        return Corpus.open(DataConfig(**options), "language-modeling").fingerprint("train")

    write(folder / "x.txt", "a\nb\n")
    write(folder / "y.txt", "a\nb\n")
    first = fingerprint(train="x.txt")
    assert first == fingerprint(train="y.txt") == fingerprint(train="x.txt", valid="y.txt")
    assert len(first) == 64
    others = {fingerprint(train="x.txt", rows=1), fingerprint(train="x.txt", errors="replace")}
    write(folder / "x.txt", "a\nc\n")
    assert len({first, fingerprint(train="x.txt"), *others}) == 4


def test_unchanged_file_is_hashed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(folder / "x.txt", "a\nb\n")
    digests = [corpus_files.file_digest(path)]
    monkeypatch.setattr(corpus_files, "sha256_file", lambda _: "hashed again")
    digests.append(corpus_files.file_digest(path))
    assert digests == [hashlib.sha256(b"a\nb\n").hexdigest()] * 2


def test_file_written_a_moment_ago_is_hashed_again(tmp_path: Path) -> None:
    path = write(tmp_path / "x.txt", "a")
    first = corpus_files.file_digest(path)
    assert corpus_files.file_digest(write(path, "b")) != first


@pytest.mark.parametrize(
    ("name", "source", "target"),
    [
        ("wmt14-en-de", "Aeno0 beno1 ceno2 . &amp; more", "Adeo0 bdeo1 cdeo2 . &amp; more"),
        ("wmt14-en-fr", "Aeno0 beno1 ceno2 . &amp; more", "Afro0 bfro1 cfro2 . &amp; more"),
        ("cnn-dailymail", "ao0 bo1 co2 . ao0 co1 eo2 go3 . ", "ao0 bo1 co2 . ao0 co1 eo2 go3 ."),
        ("personachat-official", "i like to ski . i have a cat . __eop__ ao0 bo1 co2", "ao0 co1 eo2 go3"),
    ],
)
def test_published_formats_of_large_corpora_are_read(name: str, source: str, target: str, folder: Path) -> None:
    make_corpus(name, folder)
    card = corpus_cards.load(name)
    pair = card.languages if card.task == "translation" else (None, None)
    data = DataConfig(corpus=name, source=pair[0], target=pair[1])
    corpus = Corpus.open(data, card.task, data_dir=folder, offline=True)
    for split, count in FAKE_ROWS.items():
        rows = list(corpus.rows(split))
        assert len(rows) == count
        assert not any("\n" in row.source + row.target for row in rows)
    assert rows[0].source.startswith(source)
    assert rows[0].target == target


SPACES = ("\u00a0", "\u202f", "\u3000", "  ", "\t")


def labeled(folder: Path, labels: tuple[str, ...], *targets: object) -> Corpus:
    """Return a corpus with these labels and a row for each target."""
    rows = [json.dumps({"source": "a", "target": target}) + "\n" for target in targets]
    path = write(folder / "rows.jsonl", "".join(rows))
    return Corpus.open(DataConfig(train=str(path), valid=str(path), labels=labels), "classification")


@pytest.mark.parametrize(
    ("targets", "labels", "expected"),
    [
        (("no", 1, " no"), ("no", "yes"), ["no", "yes", "no"]),
        # any white space equals a space
        *(((f"not{space}so\u00a0",), ("not so", "yes"), ["not so"]) for space in SPACES),
        *(((f"not{space}so\u00a0",), (f"not{space}so", "yes"), [f"not{space}so"]) for space in SPACES),
        # targets may have another normal form than labels
        (("caf\u00e9",), ("cafe\u0301", "tea"), ["cafe\u0301"]),
        (("cafe\u0301",), ("caf\u00e9", "tea"), ["caf\u00e9"]),
        (("cafe\u0301",), ("cafe\u0301", "tea"), ["cafe\u0301"]),
    ],
)
def test_targets_become_labels(
    tmp_path: Path, targets: tuple[object, ...], labels: tuple[str, ...], expected: list[str]
) -> None:
    assert [row.target for row in labeled(tmp_path, labels, *targets).rows("train")] == expected


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("maybe", "rows.jsonl:2: the label 'maybe' is not one of data.labels: no, yes"),
        (2, "rows.jsonl:2: field 'target' must be from 0 to 1, got 2"),
        (-1, "rows.jsonl:2: field 'target' must be from 0 to 1, got -1"),
        (True, "rows.jsonl:2: field 'target' must be a string, not true or false"),
        (0.5, "rows.jsonl:2: field 'target' must be a string, not a number"),
    ],
)
def test_unknown_label_raises(tmp_path: Path, target: object, message: str) -> None:
    with pytest.raises(DataError, match=re.escape(message)):
        list(labeled(tmp_path, ("no", "yes"), "no", target).rows("train"))


def test_fingerprint_includes_the_labels(tmp_path: Path) -> None:
    """Rows encoded with other labels must not be found in the cache."""
    first, second = (labeled(tmp_path, labels, "no", 1) for labels in (("no", "yes"), ("yes", "no")))
    assert first.fingerprint("train") != second.fingerprint("train")


@pytest.mark.parametrize("name", ["sst2", "cola", "rte", "boolq", "copa", "wic"])
def test_labels_of_a_card_are_those_of_its_files(name: str, corpora: Path) -> None:
    card = corpus_cards.load(name)
    corpus = Corpus.open(DataConfig(corpus=name, labels=card.labels), "classification", data_dir=corpora)
    for split in corpus.splits:
        assert {row.target for row in corpus.rows(split)} == {*card.labels}
