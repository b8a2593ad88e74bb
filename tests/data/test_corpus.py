"""Corpora: found by name or path, verified, read by split."""

import gzip
import hashlib
import json
import os
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.fake_corpora import ROWS as MADE_ROWS
from helpers.fake_corpora import make_corpus

from attnkit.data import corpus_files
from attnkit.data.corpus import Corpus
from attnkit.data.rows import Counts, Row
from attnkit.errors import DataError, MissingInputError, OutputPathError, RecipeError
from attnkit.recipe import corpus_cards
from attnkit.recipe.schema import DataConfig
from attnkit.storage import download
from attnkit.storage.cache import cache_dir

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


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, without corpora; hashes of files are remembered at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ATTNKIT_DATA", raising=False)
    monkeypatch.setattr(corpus_files, "SETTLED", -1)
    return tmp_path


@pytest.fixture
def card(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A card `tiny`, which the test may change before it opens the corpus."""

    def side(text: str, path: str) -> dict[str, Any]:
        content = text.encode()
        return {"path": path, "size": len(content), "sha256": hashlib.sha256(content).hexdigest()}

    texts = {"train.en": "a\nb\n", "train.de": "c\nd\n", "test.en": "e\n", "test.de": "f\n"}
    card = {
        "name": "tiny",
        "title": "Tiny",
        "task": "translation",
        "format": "lines",
        "languages": ["en", "de"],
        "licence": "none",
        "citation": "none",
        "homepage": None,
        "obtain": "from a friend",
        "splits": {
            split: {to: side(texts[f"{split}.{to}"], f"{split}.{to}") for to in ("en", "de")}
            for split in ("train", "test")
        },
    }
    for name, text in texts.items():
        write(folder / "data" / "tiny" / name, text)
    monkeypatch.setattr(corpus_cards, "load", lambda name: corpus_cards.Card.model_validate(card))
    return card


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    """A generator in the place of the embedded translation corpus."""
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


def tiny(folder: Path, **options: Any) -> Corpus:
    data = DataConfig(corpus="tiny", source="en", target="de", **options)
    return Corpus.open(data, "translation", data_dir=folder / "data", cache=folder / "cache")


def refused(kind: type[Exception], data: DataConfig, task: str = "translation") -> str:
    with pytest.raises(kind) as caught:
        Corpus.open(data, task)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Corpora by name


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ROWS)
def test_real_corpora_have_the_documented_rows(corpora: Path, name: str) -> None:
    first, *rest = corpus_cards.load(name).languages
    pair = {"source": first, "target": rest[0]} if rest else {}
    data, task = DataConfig(corpus=name, **pair), corpus_cards.load(name).task
    corpus = Corpus.open(data, task, data_dir=corpora)
    counts = Counts()
    found = {split: sum(1 for _ in corpus.rows(split, counts)) for split in corpus.splits}
    assert found == ROWS[name]
    assert counts.rows == sum(found.values())
    assert counts.replaced == 0
    assert corpus.languages == ((first, rest[0]) if rest else (first, first))


def test_real_plain_text_has_the_documented_words(corpora: Path) -> None:
    corpus = Corpus.open(DataConfig(corpus="wikitext-2"), "language-modeling", data_dir=corpora)
    words = {s: sum(len(r.target.split()) for r in corpus.rows(s)) for s in corpus.splits}
    assert words == WORDS
    assert {row.source for row in corpus.rows("test")} == {""}
    assert corpus.languages == (None, "en")


def test_a_column_of_a_json_corpus_may_be_either_side(corpora: Path) -> None:
    forth = Corpus.open(DataConfig(corpus="tatoeba-enzh", source="en", target="zh"), "translation", data_dir=corpora)
    back = Corpus.open(DataConfig(corpus="tatoeba-enzh", source="zh", target="en"), "translation", data_dir=corpora)
    for row, other in zip(forth.rows("test"), back.rows("test"), strict=True):
        assert (row.source, row.target) == (other.target, other.source)
    assert forth.fingerprint("test") != back.fingerprint("test")


def test_references_of_a_real_corpus_are_kept(corpora: Path) -> None:
    corpus = Corpus.open(DataConfig(corpus="dialogsum"), "summarization", data_dir=corpora)
    assert {len(row.references) for row in corpus.rows("test")} == {3}


def test_files_of_a_card_are_read_by_language(folder: Path, card: dict[str, Any]) -> None:
    corpus = tiny(folder)
    assert (corpus.name, corpus.languages, corpus.splits) == ("tiny", ("en", "de"), ("train", "test"))
    assert list(corpus.rows("train")) == [Row("a", "c"), Row("b", "d")]
    data = DataConfig(corpus="tiny", target="de")
    one = Corpus.open(data, "language-modeling", data_dir=folder / "data", cache=folder)
    assert list(one.rows("train")) == [Row("", "c"), Row("", "d")]


@pytest.mark.parametrize(
    ("head", "more"),
    [("de\ten\n", {}), ("d\te\n", {"columns": {"en": "e", "de": "d"}}), ("", {"columns": {"en": 2, "de": 1}})],
)
def test_columns_of_a_card_are_its_languages_or_what_it_says(
    folder: Path, card: dict[str, Any], head: str, more: dict[str, Any]
) -> None:
    write(folder / "data" / "tiny" / "rows.tsv", f"{head}c\ta\n")
    card |= {"format": "tsv", "splits": {"train": {"rows": {"path": "rows.tsv"}}}, **more}
    assert list(tiny(folder).rows("train")) == [Row("a", "c")]


def test_files_are_found_in_the_cache_too(folder: Path, card: dict[str, Any]) -> None:
    (folder / "data" / "tiny" / "train.de").rename(folder / "de")
    write(folder / "cache" / "corpora" / "tiny" / "train.de", (folder / "de").read_bytes())
    assert list(tiny(folder).rows("train")) == [Row("a", "c"), Row("b", "d")]


def test_a_changed_file_of_a_card_is_refused(folder: Path, card: dict[str, Any]) -> None:
    assert len(list(tiny(folder).rows("train"))) == 2
    path = write(folder / "data" / "tiny" / "train.de", "c\nx\n")
    with pytest.raises(DataError) as caught:
        list(tiny(folder).rows("train"))
    found = hashlib.sha256(b"c\nx\n").hexdigest()
    wanted = card["splits"]["train"]["de"]["sha256"]
    assert f"{path}: SHA-256 is {found}, but the corpus card of tiny lists {wanted}" in str(caught.value)
    write(path, "c\n")
    with pytest.raises(DataError, match="has 2 bytes, but the corpus card of tiny lists 4"):
        list(tiny(folder).rows("train"))


def test_a_missing_file_is_named_with_the_way_out(folder: Path, card: dict[str, Any]) -> None:
    (folder / "data" / "tiny" / "test.de").unlink()
    with pytest.raises(MissingInputError) as caught:
        list(tiny(folder).rows("test"))
    assert str(caught.value) == (
        f"data.corpus: tiny: test.de is neither in {folder / 'data' / 'tiny'} nor in "
        f"{folder / 'cache' / 'corpora' / 'tiny'}; set ATTNKIT_DATA or --data-dir to a folder "
        "with tiny/test.de. How to obtain it (None): from a friend"
    )
    card["splits"]["test"]["de"]["path"] = "absent"
    data = DataConfig(corpus="tiny", source="en", target="de")
    with pytest.raises(MissingInputError, match="no data folder is set; set ATTNKIT_DATA"):
        list(Corpus.open(data, "translation").rows("test"))


def test_an_unknown_split_is_refused_with_those_there_are(folder: Path, card: dict[str, Any]) -> None:
    for use in (Corpus.fingerprint, lambda corpus, split: next(corpus.rows(split))):
        with pytest.raises(MissingInputError) as caught:
            use(tiny(folder), "tset")
        assert str(caught.value) == "tiny: no split 'tset'; did you mean test? it has train, test"


def test_keys_that_do_not_fit_the_card_are_refused(folder: Path, card: dict[str, Any]) -> None:
    """By the rules of recipes (tests/recipe/test_rules.py)."""
    data = DataConfig(corpus="tiny", source="en", target="dee")
    assert "data.target: tiny has no 'dee'; did you mean de?" in refused(RecipeError, data)


def test_a_data_folder_that_is_not_there_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNKIT_DATA", str(folder / "absent"))
    assert refused(MissingInputError, DataConfig(corpus="multi30k", source="en", target="de")) == (
        f"{folder / 'absent'}: no such folder (ATTNKIT_DATA)"
    )


# Downloads


@pytest.fixture
def network(card: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Addresses and what is there, instead of the network; the data folder is empty."""
    content: dict[str, bytes] = {}

    def fetch(url: str, path: Path, sha256: str | None, progress: Any, **_: Any) -> None:
        write(path, content[url])
        if progress:
            progress(len(content[url]), None)

    for split in card["splits"].values():
        for file in split.values():
            file.update(path=f"new/{file['path']}", size=None, sha256=None)
    monkeypatch.setattr(download, "fetch", fetch)
    return content


def test_files_are_downloaded_once(folder: Path, card: dict[str, Any], network: dict[str, bytes]) -> None:
    for language, text in (("en", b"a\n"), ("de", b"b\n")):
        url = f"https://example.org/train.{language}"
        card["splits"]["train"][language]["url"] = url
        network[url] = gzip.compress(text)
    seen: list[tuple[str, int, int | None]] = []
    corpus = Corpus.open(
        DataConfig(corpus="tiny", source="en", target="de"),
        "translation",
        cache=folder / "cache",
        progress=lambda *step: seen.append(step),
    )
    assert list(corpus.rows("train")) == [Row("a", "b")]
    assert [name for name, _, _ in seen] == ["train.en", "train.de"]
    network.clear()
    assert list(tiny(folder).rows("train")) == [Row("a", "b")]


def test_members_of_an_archive_become_files_and_the_archive_goes(
    folder: Path, card: dict[str, Any], network: dict[str, bytes]
) -> None:
    import io
    import tarfile

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for name, text in (("d/x.en", b"a\n"), ("d/x.de", b"b\n"), ("other", b"c")):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
    network["https://example.org/all.tgz"] = buffer.getvalue()
    card["archives"] = {"all": {"url": "https://example.org/all.tgz"}}
    for language in ("en", "de"):
        card["splits"]["train"][language].update(archive="all", member=f"d/x.{language}")
    assert list(tiny(folder).rows("train")) == [Row("a", "b")]
    place = folder / "cache" / "corpora" / "tiny"
    files = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())
    assert files == ["new/train.de", "new/train.en"]
    network.clear()
    assert list(tiny(folder).rows("train")) == [Row("a", "b")]


# Generated corpora


def test_generated_corpora_take_size_and_seed(folder: Path, toy: types.ModuleType) -> None:
    corpus = Corpus.open(DataConfig(corpus="toy-translation", size=2, seed=7), "translation")
    assert corpus.languages == ("en", "de")
    assert list(corpus.rows("train")) == [Row("train 0", "7 0"), Row("train 1", "7 1")]
    assert len(list(corpus.rows("test"))) == 3
    back = DataConfig(corpus="toy-translation", source="de", target="en", rows=1)
    assert list(Corpus.open(back, "translation").rows("train")) == [Row("1 0", "train 0")]
    model = Corpus.open(DataConfig(corpus="toy-translation"), "language-modeling")
    assert next(model.rows("valid")) == Row("", "1 0")


def test_the_fingerprint_of_a_generated_corpus_knows_its_version(folder: Path, toy: types.ModuleType) -> None:
    def prints(**options: Any) -> tuple[str, str]:
        corpus = Corpus.open(DataConfig(corpus="toy-translation", **options), "translation")
        return corpus.fingerprint("train"), corpus.fingerprint("valid")

    first = prints()
    assert first == prints() == prints(size=5)
    assert prints(size=6)[0] != first[0]
    assert prints(size=6)[1] == first[1]
    assert prints(seed=2)[1] != first[1]
    toy.VERSION = 2
    assert prints()[0] != first[0]


# Files of one's own


def test_own_files_are_found_here_then_in_the_data_folder(folder: Path) -> None:
    write(folder / "here.en", "a\nb\n")
    write(folder / "data" / "here.en", "wrong\n")
    write(folder / "data" / "there.de", "c\nd\n")
    data = DataConfig(train=("here.en", "there.de"), source="en", target="de")
    corpus = Corpus.open(data, "translation", data_dir=folder / "data")
    assert (corpus.name, corpus.languages, corpus.splits) == ("here", ("en", "de"), ("train",))
    assert list(corpus.rows("train")) == [Row("a", "c"), Row("b", "d")]


def test_json_files_name_their_columns(folder: Path) -> None:
    write(folder / "train.jsonl.gz", gzip.compress(b'{"article": "a", "title": "b"}\n'))
    data = DataConfig(train="train.jsonl.gz", source="article", target="title")
    assert list(Corpus.open(data, "summarization").rows("train")) == [Row("a", "b")]
    data = DataConfig(train="train.jsonl.gz", target="article")
    assert list(Corpus.open(data, "language-modeling").rows("train")) == [Row("", "a")]


def test_plain_text_and_json_text_serve_language_models(folder: Path) -> None:
    write(folder / "train.txt", "a\n\nb\n")
    write(folder / "valid.jsonl", '{"text": "c"}')
    corpus = Corpus.open(DataConfig(train="train.txt", valid="valid.jsonl"), "language-modeling")
    assert list(corpus.rows("train")) == [Row("", "a"), Row("", ""), Row("", "b")]
    assert list(corpus.rows("valid")) == [Row("", "c")]


def test_rows_caps_training_only_and_counts_tell(folder: Path) -> None:
    for split in ("train", "valid"):
        write(folder / f"{split}.txt", "a\r\nb\r\nc\r\n")
    corpus = Corpus.open(DataConfig(train="train.txt", valid="valid.txt", rows=2), "language-modeling")
    counts = Counts()
    assert len(list(corpus.rows("train", counts))) == 2
    assert len(list(corpus.rows("valid", counts))) == 3
    assert counts.lines() == ["5 rows read"]
    fewer = DataConfig(train="train.txt", valid="valid.txt", valid_rows=1)
    kept = Corpus.open(fewer, "language-modeling")
    assert [len(list(kept.rows(split))) for split in ("train", "valid")] == [3, 1]
    assert kept.fingerprint("valid") != corpus.fingerprint("valid")


def test_a_split_without_rows_is_refused(folder: Path) -> None:
    write(folder / "empty.txt", "")
    with pytest.raises(DataError, match="empty.txt:1: the train split has no rows"):
        list(Corpus.open(DataConfig(train="empty.txt"), "language-modeling").rows("train"))


def test_malformed_text_stops_or_is_replaced_as_the_recipe_says(folder: Path) -> None:
    write(folder / "x.txt", b"a\xff\n")
    with pytest.raises(DataError, match=r"x\.txt:1:2: malformed UTF-8"):
        list(Corpus.open(DataConfig(train="x.txt"), "language-modeling").rows("train"))
    counts = Counts()
    corpus = Corpus.open(DataConfig(train="x.txt", errors="replace"), "language-modeling")
    assert list(corpus.rows("train", counts)) == [Row("", "a\ufffd")]
    assert counts.replaced == 1


def test_another_encoding_is_named_before_a_difference_in_lines(folder: Path) -> None:
    """The message was of aligned files, which the user could count to be aligned."""
    Path("x.en").write_text("a\nb\n" * 99, encoding="utf-16")
    Path("x.de").write_text("\u010a\n" * 198, encoding="utf-16")
    Path("y.de").write_text("c\nd\n" * 99, encoding="utf-8")
    for other in ("x.de", "y.de"):
        corpus = Corpus.open(DataConfig(train=("x.en", other)), "translation")
        with pytest.raises(DataError, match=r"x\.en: this is UTF-16 text"):
            list(corpus.rows("train"))


def test_missing_files_are_named_with_the_places_looked_at(folder: Path) -> None:
    data = DataConfig(train=("x.en", "x.de"))
    assert refused(MissingInputError, data) == (
        f"data.train: no such file 'x.en': looked for {folder / 'x.en'}, and in the recipe's folder; "
        "ATTNKIT_DATA or --data-dir can add a folder to search"
    )
    with pytest.raises(MissingInputError) as caught:
        Corpus.open(data, "translation", data_dir=folder)
    assert f"looked for {folder / 'x.en'} and {folder / 'x.en'}" in str(caught.value)


def test_folders_pipes_and_dangling_links_are_refused(folder: Path) -> None:
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to("absent")
    (folder / "folder").mkdir()
    for name in ("pipe", "folder", "link"):
        assert name in refused(MissingInputError, DataConfig(train=name), "language-modeling")


# Fingerprints


def test_the_fingerprint_follows_content_and_options_only(folder: Path) -> None:
    def of(**options: Any) -> str:
        return Corpus.open(DataConfig(**options), "language-modeling").fingerprint("train")

    write(folder / "x.txt", "a\nb\n")
    write(folder / "y.txt", "a\nb\n")
    first = of(train="x.txt")
    assert first == of(train="y.txt") == of(train="x.txt", valid="y.txt")
    assert len(first) == 64
    others = {of(train="x.txt", rows=1), of(train="x.txt", errors="replace")}
    write(folder / "x.txt", "a\nc\n")
    assert len({first, of(train="x.txt"), *others}) == 4


def test_a_file_that_stays_as_it_is_is_hashed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(folder / "x.txt", "a\nb\n")
    digests = [corpus_files.file_digest(path)]
    monkeypatch.setattr(corpus_files, "sha256_file", lambda _: "read again")
    digests.append(corpus_files.file_digest(path))
    assert digests == [hashlib.sha256(b"a\nb\n").hexdigest()] * 2


def test_a_file_written_just_now_is_hashed_again(tmp_path: Path) -> None:
    path = write(tmp_path / "x.txt", "a")
    first = corpus_files.file_digest(path)
    assert corpus_files.file_digest(write(path, "b")) != first


# The cache folder


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATTNKIT_CACHE", "/a")
    monkeypatch.setenv("XDG_CACHE_HOME", "/b")
    monkeypatch.setenv("HOME", "/c")
    assert cache_dir() == Path("/a")
    monkeypatch.delenv("ATTNKIT_CACHE")
    assert cache_dir() == Path("/b/attnkit")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_dir() == Path("/c/.cache/attnkit")


def test_no_home_folder_is_an_error_that_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> Path:
        raise RuntimeError

    monkeypatch.delenv("ATTNKIT_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", none)
    with pytest.raises(OutputPathError, match="set ATTNKIT_CACHE"):
        cache_dir()


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
    for split, count in MADE_ROWS.items():
        rows = list(corpus.rows(split))
        assert len(rows) == count
        assert not any("\n" in row.source + row.target for row in rows)
    assert rows[0].source.startswith(source)
    assert rows[0].target == target


LABELLED = [{"source": "a", "target": "no"}, {"source": "b", "target": 1}, {"source": "c", "target": " no"}]


def labelled(folder: Path, rows: list[dict[str, object]], *labels: str) -> Corpus:
    """A corpus of rows with these labels."""
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    data = DataConfig(train=str(path), valid=str(path), labels=labels)
    return Corpus.open(data, "classification")


def test_a_label_is_a_word_or_its_number(tmp_path: Path) -> None:
    rows = list(labelled(tmp_path, LABELLED, "no", "yes").rows("train"))
    assert [row.target for row in rows] == ["no", "yes", "no"]


@pytest.mark.parametrize("space", ["\u00a0", "\u202f", "\u3000", "  ", "\t"])
def test_any_white_space_in_a_label_is_a_space(tmp_path: Path, space: str) -> None:
    rows: list[dict[str, object]] = [{"source": "a", "target": f"not{space}so\u00a0"}]
    for label in ("not so", f"not{space}so"):
        (row,) = labelled(tmp_path, rows, label, "yes").rows("train")
        assert row.target == label


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
def test_another_label_is_refused_with_its_line(tmp_path: Path, target: object, message: str) -> None:
    corpus = labelled(tmp_path, [LABELLED[0], {"source": "b", "target": target}], "no", "yes")
    with pytest.raises(DataError, match=re.escape(message)):
        list(corpus.rows("train"))


def test_labels_are_part_of_the_fingerprint(tmp_path: Path) -> None:
    """Else rows that were encoded under other labels would be found in the cache."""
    prints = {labelled(tmp_path, LABELLED, *labels).fingerprint("train") for labels in (("no", "yes"), ("yes", "no"))}
    assert len(prints) == 2


@pytest.mark.parametrize("name", ["sst2", "cola", "rte", "boolq", "copa", "wic"])
def test_the_labels_of_a_card_are_those_of_its_files(name: str, corpora: Path) -> None:
    card = corpus_cards.load(name)
    corpus = Corpus.open(DataConfig(corpus=name, labels=card.labels), "classification", data_dir=corpora)
    for split in corpus.splits:
        assert {row.target for row in corpus.rows(split)} == {*card.labels}


def test_labels_are_the_recipe_s_own_in_any_normal_form(tmp_path: Path) -> None:
    composed, other = "caf\u00e9", "cafe\u0301"
    for written, label in ((composed, other), (other, composed), (other, other)):
        corpus = labelled(tmp_path, [{"source": "a", "target": written}], label, "tea")
        assert [row.target for row in corpus.rows("train")] == [label]
