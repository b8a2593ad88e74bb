"""Tests of CSV, TSV, Parquet, fields by path, data sets of Hugging Face, and splits of one file."""

import csv
import io
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attnkit.data.corpus import Corpus
from attnkit.data.records import BREAK, read_rows
from attnkit.data.rows import Counts, Row
from attnkit.errors import DataError, MissingInputError, RecipeError, UnavailableError
from attnkit.recipe import digest, dump, load
from attnkit.recipe.schema import DataConfig

CELL = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
AB: Any = {"source": "a", "target": "b"}
DEFAULTS = ("source", "target")


def write(folder: Path, content: str | bytes, name: str = "x.csv") -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@given(rows=st.lists(st.tuples(CELL, CELL), min_size=1, max_size=6), end=st.sampled_from(["\n", "\r\n"]))
def test_output_of_csv_writer_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], end: str
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL).writerows([("a", "b"), *rows])
    path = write(tmp_path_factory.mktemp("csv"), text.getvalue())
    cells = [row[:2] for row in read_rows(path, "csv", **AB)]
    assert cells == [tuple(BREAK.sub(" ", cell) for cell in row) for row in rows]


def test_csv_of_a_spreadsheet_is_read(tmp_path: Path) -> None:
    text = '\ufeffen;de\r\n"The cat; ""Tom""";Der Kater\r\n"two\r\nlines";zwei\r\n\r\nlast;\r\n'
    counts = Counts()
    rows = list(read_rows(write(tmp_path, text), "csv", counts=counts, source="en", target="de"))
    assert rows == [Row('The cat; "Tom"', "Der Kater"), Row("two lines", "zwei"), Row("last", "")]
    assert counts.breaks == 1


def test_tsv_has_no_quotes_and_columns_may_be_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, 'a\tb\n"Hi", he said.\tx\n', "x.tsv")
    assert list(read_rows(path, "tsv", **AB)) == [Row('"Hi", he said.', "x")]
    path = write(tmp_path, "Hi.\tHallo.\tCC-BY\nGo.\tGeh.\tCC-BY\n", "x.tsv")
    rows = read_rows(path, "tsv", source="1", target="2", defaults=DEFAULTS)
    assert list(rows) == [Row("Hi.", "Hallo."), Row("Go.", "Geh.")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\nx,y\nx,y,z\n", ":3: the line has 3 cells, but the first line has 2; quote cells that contain"),
        ("a,b\nx\n", ":2: the line has 1 cell, but the first line has 2"),
        ('a,b\n"x,y\nx,y\n', ":2: not CSV: a quote is not closed"),
        ('a,b\n"x"z,y\n', ":2: not CSV: ',' expected after '\"'"),
        ("a,b\nx,y\rz,w\n", ":2: not CSV: the line contains a carriage return"),
        ("a,b,a\nx,y,z\n", ":1: two columns have the name 'a'; rename one"),
        ("a,c\nx,y\n", ":2: no field 'b'; fields: 'a', 'c'"),
    ],
)
def test_malformed_table_raises(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(DataError) as caught:
        list(read_rows(path, "csv", **AB))
    assert str(caught.value).startswith(f"{path}{message}")


@pytest.mark.parametrize(
    ("header", "names", "message"),
    [
        ("id,english,german", {}, r"data\.source=english data\.target=german, or data"),
        (
            "id,english,german",
            {"source": "english", "target": "ger"},
            r": set data\.target=german, or data\.source=1 data\.ta",
        ),
        # quoted for a shell
        ("id,English text,German text", {}, "set 'data.source=English text' 'data.target=German text'"),
    ],
)
def test_missing_column_names_the_keys_to_set(tmp_path: Path, header: str, names: Any, message: str) -> None:
    path = write(tmp_path, f"{header}\n1,x,y\n")
    with pytest.raises(DataError, match=message):
        list(read_rows(path, "csv", **names, defaults=DEFAULTS))


@pytest.mark.parametrize(("source", "target"), [("en", "de"), ("translation.en", "translation.de"), ("x.y.z", "de")])
def test_fields_are_named_by_path_or_language(tmp_path: Path, source: str, target: str) -> None:
    row = {"id": "1", "translation": {"en": "a", "de": "b"}, "x": {"y": {"z": "a"}}}
    path = write(tmp_path, json.dumps(row), "x.jsonl")
    assert list(read_rows(path, source=source, target=target, defaults=DEFAULTS)) == [Row("a", "b")]


def test_parquet_is_read(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow
    from pyarrow import parquet

    rows = [{"translation": {"en": f"a\n{n}", "de": "b"}, "references": ["b", "c"]} for n in range(5)]
    path = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    result = list(read_rows(path, "parquet", source="en", target="de", defaults=DEFAULTS))
    assert result == [Row(f"a {n}", "b", ("b", "c")) for n in range(5)]
    with pytest.raises(DataError, match=r"x\.parquet: not a Parquet file"):
        list(read_rows(write(tmp_path, b"PAR1", "x.parquet"), "parquet"))


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnavailableError, match=r"pip install 'attnkit\[parquet\]'"):
        list(read_rows(tmp_path / "x.parquet", "parquet"))


def test_labels_of_a_table_may_be_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b\nx,1\ny,bad\n")
    rows = read_rows(path, "csv", **AB, labels=("bad", "good"))
    assert [row.target for row in rows] == ["good", "bad"]


def open_corpus(folder: Path, train: str = "x.csv", **options: Any) -> Corpus:
    return Corpus.open(DataConfig(train=str(folder / train), **AB, **options), "translation")


@given(
    sources=st.lists(st.integers(0, 30), min_size=40, max_size=80),
    sizes=st.tuples(st.integers(1, 8), st.integers(0, 8)),
    seed=st.integers(0, 5),
)
def test_splits_of_one_file_share_no_source_and_lose_no_row(
    tmp_path_factory: pytest.TempPathFactory, sources: list[int], sizes: Any, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("split")
    sources += range(100, 120)  # which occur once
    write(folder, "a,b\n" + "".join(f"s{source}  x,t{number}\n" for number, source in enumerate(sources)))
    split = dict(zip(("valid", "test"), sizes, strict=True))
    corpus, again = (open_corpus(folder, split=split, seed=seed) for _ in range(2))
    rows = {name: list(corpus.rows(name)) for name in corpus.splits}
    targets = sorted(row.target for split_rows in rows.values() for row in split_rows)
    assert targets == sorted(f"t{number}" for number in range(len(sources)))
    split_sources = [{row.source for row in split_rows} for split_rows in rows.values()]
    assert sum(map(len, split_sources)) == len(set.union(*split_sources))
    assert all(len(rows.get(name, [])) <= size for name, size in split.items())
    assert {name: list(again.rows(name)) for name in again.splits} == rows
    fingerprints = {corpus.fingerprint(name) for name in corpus.splits}
    assert len(fingerprints) == len(corpus.splits)
    assert open_corpus(folder, split=split, seed=seed + 1).fingerprint("valid") not in fingerprints
    assert corpus.notes[0].startswith("data.split: ")


def test_impossible_split_of_one_file_raises(tmp_path: Path) -> None:
    write(tmp_path, "a,b\n" + "x,y\n" * 9)
    with pytest.raises(DataError, match=r"9 rows \(1 distinct source\): too few for 3 valid rows and"):
        list(open_corpus(tmp_path, split={"valid": 3}).rows("train"))
    with pytest.raises(RecipeError, match=r"data\.split\.valid: data\.valid names a file"):
        open_corpus(tmp_path, valid="x.csv", split={"valid": 3})


@pytest.mark.parametrize(("name", "text"), [("x.csv", "a,b\n"), ("x.json", "[]")])
def test_file_without_rows_raises(tmp_path: Path, name: str, text: str) -> None:
    path = write(tmp_path, text, name)
    with pytest.raises(DataError, match=f"^{path}: the train split has no rows$"):
        list(open_corpus(tmp_path, name, split={"valid": 3}).rows("train"))


def test_splits_of_one_file_of_texts_share_no_text(tmp_path: Path) -> None:
    texts = [f"t{number // 2}" for number in range(40)]
    path = write(tmp_path, "text\n" + "".join(f"{text}\n" for text in texts))
    data = DataConfig(train=str(path), split={"valid": 6, "test": 4})
    corpus = Corpus.open(data, "language-modeling")
    splits = {name: [row.target for row in corpus.rows(name)] for name in corpus.splits}
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 30, "valid": 6, "test": 4}
    assert sorted(text for rows in splits.values() for text in rows) == sorted(texts)
    assert sum(len({*rows}) for rows in splits.values()) == 20
    write(tmp_path, "text\n" + "a\n" * 9)
    with pytest.raises(DataError, match=r"9 rows \(1 distinct text\): too few for 6 valid, 4 test"):
        list(Corpus.open(data, "language-modeling").rows("train"))


def test_recipe_of_one_file_needs_a_split(tmp_path: Path) -> None:
    write(tmp_path, "a,b\nx,y\n")
    path = write(tmp_path, "task: translation\ndata: {train: x.csv}\n", "r.yaml")
    with pytest.raises(RecipeError, match=r"or take rows of data\.train: data\.split\.valid=500"):
        load(path)
    recipe = load(path, ["data.split.valid=5"]).variants["base"]
    assert recipe.eval.splits == ("valid",)
    assert "split:" in dump(recipe)
    both = load(path, ["data.split={valid: 5, test: 5}"]).variants["base"]
    assert both.eval.splits == ("test",)


def test_empty_split_does_not_change_the_digest_of_a_recipe() -> None:
    recipe = load("quickstart").variants["linear"]
    assert "split" not in dump(recipe).partition("eval:")[0]
    data = DataConfig(**recipe.data.model_dump() | {"split": {}})
    assert digest(recipe) == digest(recipe.model_copy(update={"data": data}))


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the functions of the library that are called."""

    class Rows(list[Any]):
        _fingerprint = "f1"

    def load_dataset(name: str, config: str | None) -> dict[str, Rows]:
        if name != "own/books":
            raise FileNotFoundError(f"no data set {name}\nmore")
        pairs = [{"translation": {"en": f"a {n}", "de": config}} for n in range(4)]
        return {"train": Rows(pairs), "validation": Rows(pairs[:1])}

    module: Any = ModuleType("datasets")
    module.config = ModuleType("config")
    module.disable_progress_bars = lambda: None
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)


@pytest.mark.usefixtures("datasets")
def test_hugging_face_data_set_is_a_corpus() -> None:
    names: Any = dict.fromkeys(("train", "valid"), "hf:own/books:en-de")
    data = DataConfig(**names, source="en", target="de")
    corpus = Corpus.open(data, "translation")
    assert list(corpus.rows("valid")) == [Row("a 0", "en-de")]
    assert len(list(corpus.rows("train"))) == 4
    with pytest.raises(MissingInputError, match="has no test split; it has train, validation"):
        Corpus.open(data.model_copy(update={"test": "hf:own/books"}), "translation")
    with pytest.raises(MissingInputError, match="hf:no: no data set no$"):
        Corpus.open(data.model_copy(update={"train": "hf:no"}), "translation")


@pytest.mark.slow
def test_datasets_reads_local_files(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    write(tmp_path, "a,b\nx,y\n", "train.csv")
    corpus = Corpus.open(DataConfig(train=f"hf:{tmp_path}", **AB), "translation", offline=True)
    assert list(corpus.rows("train")) == [Row("x", "y")]


def test_missing_datasets_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UnavailableError, match=r"pip install 'attnkit\[datasets\]'"):
        Corpus.open(DataConfig(train="hf:own/books"), "translation")
