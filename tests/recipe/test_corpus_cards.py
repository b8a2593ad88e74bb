"""Tests of corpus cards: complete, consistent, and correct about the files that they describe."""

import hashlib
from importlib.resources import files
from itertools import pairwise
from pathlib import Path, PurePosixPath

import pytest

from attnkit.data.synthetic.generators import generator_of
from attnkit.errors import RecipeError
from attnkit.recipe import corpus_cards

NAMED = ["multi30k", "multi30k-official", "wmt14-en-de", "wmt14-en-fr", "cnn-dailymail", "personachat", "wikitext-2"]
NAMED += ["toy-translation", "toy-summarization", "toy-dialogue"]


def test_documented_corpora_have_cards() -> None:
    assert set(NAMED) <= set(corpus_cards.names())


@pytest.mark.parametrize("name", corpus_cards.names())
def test_card_is_complete_and_consistent(name: str) -> None:
    card = corpus_cards.load(name)
    assert card.name == name
    assert card.downloads or card.obtain, "obtain: say how to get the files without a url"
    paths = [PurePosixPath(file.path) for file in card.files()]
    assert len(set(paths)) == len(paths), "splits: a path occurs twice"
    assert not any(path.is_absolute() or ".." in path.parts for path in paths), (
        "splits: paths are below the folder of the corpus"
    )
    assert all("\n" not in text for text in (card.title, card.obtain or "", card.note or "")), (
        "title, obtain, note: write `>-` before a text of several lines"
    )
    sides = {"lines": {*card.languages}, "generated": set()}.get(card.format, {"rows"})
    for split, held in card.splits.items():
        assert held.keys() == sides, f"splits.{split}: format {card.format} has {sides or 'none'}"
        assert len({len(parts) for parts in held.values()}) <= 1, f"splits.{split}: each language has as many files"
    fields = {*card.languages} if card.task == "translation" else {"source", "target"}
    assert card.columns.keys() <= fields, f"columns: names the fields of {sorted(fields)}"
    assert (card.task == "classification") == bool(card.labels), "labels: are for classification"
    assert (card.task == "recall" or card.marked is not None) == (card.length is not None), (
        "length: is for task recall and for marked"
    )
    for file in card.files():
        assert file.archive is None or file.archive in card.archives, f"{file.path}: archive"
        assert (file.archive is None) == (file.member is None), f"{file.path}: archive and member"
        assert not (file.archive and file.url), f"{file.path}: archive or url"


@pytest.mark.parametrize("name", corpus_cards.names())
def test_only_toy_corpora_have_a_generator(name: str) -> None:
    card = corpus_cards.load(name)
    assert (card.format == "generated") == name.startswith("toy-"), "toy-NAME is generated"
    if card.format != "generated":
        return
    try:
        generator, splits = generator_of(card), []
    except ModuleNotFoundError as error:
        pytest.fail(f"neither in TASKS of recall.py, nor `marked` in the card, nor a module: {error}")
    assert {*card.splits} == {*generator.SIZES}, "splits of the card and SIZES of the generator"
    for split in card.splits:
        rows, same_seed, other_seed = ([*generator.rows(split, 3, seed)] for seed in (1, 1, 2))
        assert rows == same_seed, f"{split}: random numbers come from `Draw`, seeded as in recall.py"
        assert rows != other_seed, f"{split}: seed `Draw` by the seed, too"
        splits.append(rows)
    assert all(one != other for one, other in pairwise(splits)), "seed `Draw` by the split, too"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("jsonl\n", "json\n", "format: Input should be 'lines', 'jsonl', "),
        ("licence:", "license:", "licence: Field required"),
        ("title:", "title", "not a YAML mapping: mapping values are not allowed here in "),
    ],
)
def test_malformed_card_raises_with_its_key(monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str) -> None:
    text = (files("attnkit.data") / "cards" / "sst2.yaml").read_text("utf-8")
    monkeypatch.setattr(Path, "read_text", lambda *_: text.replace(old, new, 1))
    with pytest.raises(RecipeError, match=rf"sst2\.yaml: {message}"):
        corpus_cards.load.__wrapped__("sst2")


@pytest.mark.parametrize("name", ["mutli30k", "../cards/multi30k"])
def test_unknown_corpus_raises_with_the_nearest_name(name: str) -> None:
    with pytest.raises(RecipeError, match=rf"^no corpus is called '{name}'; did you mean multi30k\?$"):
        corpus_cards.load(name)


@pytest.mark.parametrize("name", corpus_cards.names())
def test_files_have_the_sizes_and_hashes_of_their_card(corpora: Path, name: str) -> None:
    card = corpus_cards.load(name)
    folder = corpora / (card.folder or name)
    if not folder.is_dir():
        pytest.skip(f"there is no folder {folder}")
    for file in card.files():
        path = folder / file.path
        assert path.is_file(), path
        if file.sha256 is None:
            continue
        content = path.read_bytes()
        found = f"size: {len(content)}, sha256: {hashlib.sha256(content).hexdigest()}"
        assert found == f"size: {file.size}, sha256: {file.sha256}", path
