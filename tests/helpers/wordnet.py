"""A WordNet of one synset, in the files that nltk reads."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

HEADER = "  1 WordNet 3.0 Copyright of the test\n"


@contextmanager
def only_wordnet(folder: Path, *words: str) -> Iterator[None]:
    """Let nltk find only a WordNet in which these words are synonyms; without words, let it find none."""
    write_wordnet(folder, words)
    import nltk
    from nltk.corpus.reader.wordnet import WordNetCorpusReader
    from nltk.corpus.util import LazyCorpusLoader

    others = LazyCorpusLoader("omw-1.4", WordNetCorpusReader)  # other languages, never read
    fresh = LazyCorpusLoader("wordnet", WordNetCorpusReader, others)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nltk.data, "path", [str(folder)])
        patch.setattr(nltk.corpus, "wordnet", fresh)
        yield
    for file in vars(fresh).get("_data_file_map", {}).values():
        file.close()


def write_wordnet(folder: Path, words: Sequence[str]) -> None:
    """Write the files where nltk finds them below its folder of data."""
    if not words:
        return
    corpus = folder / "corpora" / "wordnet"
    corpus.mkdir(parents=True)
    (corpus / "lexnames").write_text("00\tnoun.all\t1\n")
    (corpus / "index.sense").write_text("")
    for name in ("adj", "adv", "noun", "verb"):
        for file in (f"{name}.exc", f"index.{name}"):
            (corpus / file).write_text("")
        (corpus / f"data.{name}").write_text(HEADER)
    offset = len(HEADER)
    lemmas = " ".join(f"{word} 0" for word in words)
    synset = f"{offset:08d} 00 n {len(words):02x} {lemmas} 000 | of the test  \n"
    (corpus / "data.noun").write_text(HEADER + synset)
    index = "".join(f"{word} n 1 0 1 0 {offset:08d}  \n" for word in sorted(words))
    (corpus / "index.noun").write_text(index)
