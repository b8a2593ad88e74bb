"""CSV, TSV, Parquet, fields by path, data sets of Hugging Face, and splits of one file."""

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
NAMED: Any = {"source": "a", "target": "b"}


def write(folder: Path, content: str | bytes, name: str) -> Path:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


@given(rows=st.lists(st.tuples(CELL, CELL), min_size=1, max_size=6), ends=st.sampled_from(["\n", "\r\n"]))
def test_what_a_csv_writer_wrote_is_read(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str]], ends: str
) -> None:
    out = io.StringIO(newline="")
    writer = csv.writer(out, lineterminator=ends, quoting=csv.QUOTE_ALL)
    writer.writerows([("a", "b"), *rows])
    path = tmp_path_factory.mktemp("csv") / "x.csv"
    path.write_text(out.getvalue(), encoding="utf-8", newline="")
    found = [row[:2] for row in read_rows(path, "csv", **NAMED)]
    assert found == [tuple(BREAK.sub(" ", cell) for cell in row) for row in rows]


def test_a_spreadsheets_csv_is_read(tmp_path: Path) -> None:
    text = '\ufeffen;de\r\n"The cat; ""Tom""";Der Kater\r\n"two\r\nlines";zwei\r\n\r\nlast;\r\n'
    counts = Counts()
    path = write(tmp_path, text, "x.csv")
    rows = list(read_rows(path, "csv", counts=counts, source="en", target="de"))
    assert rows == [Row('The cat; "Tom"', "Der Kater"), Row("two lines", "zwei"), Row("last", "")]
    assert counts.breaks == 1


def test_tabs_separate_and_quotes_are_text(tmp_path: Path) -> None:
    path = write(tmp_path, 'a\tb\n"Hi", he said.\tx\n', "x.tsv")
    assert list(read_rows(path, "tsv", **NAMED)) == [Row('"Hi", he said.', "x")]
    path = write(tmp_path, "Hi.\tHallo.\tCC-BY\nGo.\tGeh.\tCC-BY\n", "x.tsv")
    rows = read_rows(path, "tsv", source="1", target="2", defaults=("source", "target"))
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
def test_a_malformed_table_is_refused_with_its_line(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path, text, "x.csv")
    with pytest.raises(DataError) as caught:
        list(read_rows(path, "csv", **NAMED))
    assert str(caught.value).removeprefix(str(path)).startswith(message)


def test_missing_columns_name_the_words_to_add_to_the_command(tmp_path: Path) -> None:
    path = write(tmp_path, "id,english,german\n1,x,y\n", "x.csv")
    with pytest.raises(DataError, match=r"data\.source=english data\.target=german, or data"):
        list(read_rows(path, "csv", defaults=("source", "target")))
    with pytest.raises(DataError, match=r": set data\.target=german, or data\.source=1 data\.ta"):
        list(read_rows(path, "csv", source="english", target="ger", defaults=("source", "target")))


def test_words_to_add_can_be_pasted(tmp_path: Path) -> None:
    path = write(tmp_path, "English text,German text\nx,y\n", "x.csv")
    with pytest.raises(DataError, match="set 'data.source=English text' 'data.target=German text'"):
        list(read_rows(path, "csv", defaults=("source", "target")))


@pytest.mark.parametrize(("source", "target"), [("en", "de"), ("translation.en", "translation.de"), ("x.y.z", "de")])
def test_fields_are_named_by_path_or_by_language(tmp_path: Path, source: str, target: str) -> None:
    row = {"id": "1", "translation": {"en": "a", "de": "b"}, "x": {"y": {"z": "a"}}}
    path = write(tmp_path, json.dumps(row), "x.jsonl")
    found = read_rows(path, source=source, target=target, defaults=("source", "target"))
    assert list(found) == [Row("a", "b")]


def test_parquet_has_rows_with_types(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    import pyarrow
    from pyarrow import parquet

    rows = [{"translation": {"en": f"a\n{n}", "de": "b"}, "references": ["b", "c"]} for n in range(5)]
    path = tmp_path / "x.parquet"
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    found = list(read_rows(path, "parquet", source="en", target="de", defaults=("source", "target")))
    assert found == [Row(f"a {n}", "b", ("b", "c")) for n in range(5)]
    with pytest.raises(DataError, match=r"x\.parquet: not a Parquet file"):
        list(read_rows(write(tmp_path, b"PAR1", "x.parquet"), "parquet"))


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UnavailableError, match=r"pip install 'attnkit\[parquet\]'"):
        list(read_rows(tmp_path / "x.parquet", "parquet"))


def test_labels_of_a_table_may_be_numbers(tmp_path: Path) -> None:
    path = write(tmp_path, "a,b\nx,1\ny,bad\n", "x.csv")
    rows = read_rows(path, "csv", **NAMED, labels=("bad", "good"))
    assert [row.target for row in rows] == ["good", "bad"]


def opened(folder: Path, train: str = "x.csv", **changes: Any) -> Corpus:
    data = DataConfig(train=str(folder / train), source="a", target="b", **changes)
    return Corpus.open(data, "translation")


@given(
    sources=st.lists(st.integers(0, 30), min_size=40, max_size=80),
    sizes=st.tuples(st.integers(1, 8), st.integers(0, 8)),
    seed=st.integers(0, 5),
)
def test_a_split_shares_no_source_and_loses_no_row(
    tmp_path_factory: pytest.TempPathFactory, sources: list[int], sizes: Any, seed: int
) -> None:
    folder = tmp_path_factory.mktemp("split")
    sources += range(100, 120)  # some that occur once
    lines = "".join(f"s{source}  x,t{at}\n" for at, source in enumerate(sources))
    write(folder, "a,b\n" + lines, "x.csv")
    split = {"valid": sizes[0], "test": sizes[1]}
    corpus = opened(folder, split=split, seed=seed)
    rows = {name: list(corpus.rows(name)) for name in corpus.splits}
    assert sorted(r.target for some in rows.values() for r in some) == sorted(f"t{at}" for at in range(len(sources)))
    owners = [{row.source for row in some} for some in rows.values()]
    assert sum(map(len, owners)) == len(set.union(*owners))
    for name, size in split.items():
        assert len(rows.get(name, [])) <= size
    again = opened(folder, split=split, seed=seed)
    assert {name: list(again.rows(name)) for name in again.splits} == rows
    prints = {corpus.fingerprint(name) for name in corpus.splits}
    assert len(prints) == len(corpus.splits)
    assert opened(folder, split=split, seed=seed + 1).fingerprint("valid") not in prints
    assert corpus.notes[0].startswith("data.split: ")


def test_a_split_that_cannot_be_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "a,b\n" + "x,y\n" * 9, "x.csv")
    with pytest.raises(DataError, match=r"9 rows \(1 distinct source\): too few for 3 valid rows and"):
        list(opened(tmp_path, split={"valid": 3}).rows("train"))
    with pytest.raises(RecipeError, match=r"data\.split\.valid: data\.valid names a file"):
        opened(tmp_path, valid="x.csv", split={"valid": 3})


@pytest.mark.parametrize(("name", "text"), [("x.csv", "a,b\n"), ("x.json", "[]")])
def test_a_file_without_rows_is_named(tmp_path: Path, name: str, text: str) -> None:
    path = write(tmp_path, text, name)
    with pytest.raises(DataError, match=f"^{path}: the train split has no rows$"):
        list(opened(tmp_path, name, split={"valid": 3}).rows("train"))


def test_texts_of_a_language_model_are_split_by_themselves(tmp_path: Path) -> None:
    texts = [f"t{at // 2}" for at in range(40)]
    write(tmp_path, "text\n" + "".join(f"{text}\n" for text in texts), "x.csv")
    data = DataConfig(train=str(tmp_path / "x.csv"), split={"valid": 6, "test": 4})
    corpus = Corpus.open(data, "language-modeling")
    rows = {name: [row.target for row in corpus.rows(name)] for name in corpus.splits}
    assert {name: len(some) for name, some in rows.items()} == {"train": 30, "valid": 6, "test": 4}
    assert sorted(text for some in rows.values() for text in some) == sorted(texts)
    assert sum(len({*some}) for some in rows.values()) == 20
    write(tmp_path, "text\n" + "a\n" * 9, "x.csv")
    with pytest.raises(DataError, match=r"9 rows \(1 distinct text\): too few for 6 valid, 4 test"):
        list(Corpus.open(data, "language-modeling").rows("train"))


def test_recipes_of_one_file(tmp_path: Path) -> None:
    write(tmp_path, "a,b\nx,y\n", "x.csv")
    path = write(tmp_path, "task: translation\ndata: {train: x.csv}\n", "r.yaml")
    with pytest.raises(RecipeError, match=r"or take rows of data\.train: data\.split\.valid=500"):
        load(path)
    recipe = load(path, ["data.split.valid=5"]).variants["base"]
    assert recipe.eval.splits == ("valid",)
    assert "split:" in dump(recipe)
    both = load(path, ["data.split={valid: 5, test: 5}"]).variants["base"]
    assert both.eval.splits == ("test",)


def test_recipes_without_a_split_are_as_before() -> None:
    recipe = load("quickstart").variants["linear"]
    assert "split" not in dump(recipe).partition("eval:")[0]
    assert digest(recipe) == digest(
        recipe.model_copy(update={"data": DataConfig(**{**recipe.data.model_dump(), "split": {}})})
    )


@pytest.fixture
def datasets(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The library, as far as it is called."""

    class Rows(list[Any]):
        _fingerprint = "f1"

    def load_dataset(name: str, config: str | None) -> dict[str, Rows]:
        if name != "own/books":
            raise FileNotFoundError(f"no data set {name}\nmore")
        pairs = [{"translation": {"en": f"a {n}", "de": config}} for n in range(4)]
        return {"train": Rows(pairs), "validation": Rows(pairs[:1])}

    module = ModuleType("datasets")
    module.config = ModuleType("config")  # type: ignore[attr-defined]
    module.disable_progress_bars = lambda: None  # type: ignore[attr-defined]
    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return module


def test_a_data_set_of_hugging_face_is_a_corpus(datasets: ModuleType) -> None:
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
def test_hugging_face_reads_local_files(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    write(tmp_path, "a,b\nx,y\n", "train.csv")
    corpus = Corpus.open(DataConfig(train=f"hf:{tmp_path}", **NAMED), "translation", offline=True)
    assert list(corpus.rows("train")) == [Row("x", "y")]


def test_without_datasets_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UnavailableError, match=r"pip install 'attnkit\[datasets\]'"):
        Corpus.open(DataConfig(train="hf:own/books"), "translation")
