"""Tests of metrics against sacrebleu, rouge-score and values computed by hand."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.wordnet import only_wordnet
from sacrebleu.metrics import BLEU, CHRF, TER

from attnkit.errors import DataError, UnavailableError, UsageError
from attnkit.recipe.metrics import METRICS, metric_facts
from attnkit.recipe.schema import EvalConfig
from attnkit.scoring import TEACHER_FORCED, TEXT, Score, expand, score
from attnkit.scoring.metrics import check_available

TEXT_OF_WORDS = "the dog cat runs over a red bridge , and Anna's bike stops . \u00fcber Stra\u00dfe"


def sentences(count: int, seed: int) -> list[str]:
    """Return lines of 0 to 19 words."""
    draw, words = random.Random(seed), TEXT_OF_WORDS.split()
    return [" ".join(draw.choices(words, k=draw.randrange(20))) for _ in range(count)]


@pytest.mark.parametrize("tokenize", ["13a", "intl", "zh", "char", "none"])
@pytest.mark.parametrize("lowercase", [False, True])
def test_bleu_equals_that_of_sacrebleu(tokenize: str, lowercase: bool) -> None:
    hypotheses, references = sentences(40, 4), sentences(40, 5)
    metric = BLEU(lowercase=lowercase, tokenize=tokenize, force=True)
    expected = metric.corpus_score(hypotheses, [references]).score
    settings = EvalConfig(tokenize=tokenize, lowercase=lowercase)
    ours = score(["bleu"], hypotheses, [[line] for line in references], settings)["bleu"]
    assert ours.value == pytest.approx(expected, abs=1e-12)
    assert ours.signature == str(metric.get_signature())


def test_chrf_and_ter_with_several_references_equal_those_of_sacrebleu() -> None:
    hypotheses, streams = sentences(60, 1), [sentences(60, 2), sentences(60, 3)]
    ours = score(["chrf", "ter"], hypotheses, [*zip(*streams, strict=True)], EvalConfig())
    for name, metric in {"chrf": CHRF(), "ter": TER()}.items():
        expected = metric.corpus_score(hypotheses, streams).score
        assert ours[name].value == pytest.approx(expected, abs=1e-12)


def test_number_of_references_may_vary_by_line() -> None:
    hypotheses = ["the red cat runs", "a dog stops ."]
    streams = [["the red cat stops", "the dog stops ."], ["a red cat runs", None]]
    references = [["the red cat stops", "a red cat runs"], ["the dog stops ."]]
    ours = score(["bleu", "chrf", "ter", "rouge1", "exact-match"], hypotheses, references, EvalConfig())
    assert ours["bleu"].value == BLEU().corpus_score(hypotheses, streams).score
    assert all("nrefs:var" in result.signature for result in ours.values())


def test_bleu1_and_bleu4_have_their_order_in_the_signature() -> None:
    hypotheses, references = sentences(40, 6), sentences(40, 7)
    ours = score(["bleu", "bleu1", "bleu4"], hypotheses, [[line] for line in references], EvalConfig())
    unigram = BLEU(max_ngram_order=1).corpus_score(hypotheses, [references]).score
    assert ours["bleu1"].value == pytest.approx(unigram, abs=1e-12)
    assert ours["bleu4"].value == ours["bleu"].value
    assert "|order:1|version:" in ours["bleu1"].signature
    assert "|order:4|version:" in ours["bleu4"].signature


def test_rouge_equals_that_of_rouge_score_with_stemmer() -> None:
    from rouge_score.rouge_scorer import RougeScorer

    names = ["rouge1", "rouge2", "rougeL", "rougeLsum"]
    hypotheses = ["Cats were running.\nDogs slept .", *sentences(30, 8)]
    references = [["A cat runs.\nThe dogs sleep .", "cats ran"]]
    references += [[a, b] for a, b in zip(sentences(30, 9), sentences(30, 10), strict=True)]
    scorer = RougeScorer(names, use_stemmer=True)
    ours = score(["rouge"], hypotheses, references, EvalConfig())
    assert list(ours) == names
    for name in names:
        best = [
            max(scorer.score(reference, text)[name].fmeasure for reference in line)
            for text, line in zip(hypotheses, references, strict=True)
        ]
        assert ours[name].value == pytest.approx(100 * sum(best) / len(best), abs=1e-10)
        assert ours[name].statistics[:, 0].tolist() == best
        assert f"nrefs:2|type:{name}|measure:f|refs:max|stemmer:yes|" in ours[name].signature


def test_rouge_lsum_splits_sentences_as_the_recipe_says() -> None:
    """Two exchanged sentences match in full only when the text is split into sentences, by default at newlines."""
    text, reference = "a b c. d e f.", [["d e f. a b c."]]
    for settings, mode, expected in (
        (EvalConfig(), "newline", 50),
        (EvalConfig(sentences="punctuation"), "punctuation", 100),
    ):
        ours = score(["rougeLsum"], [text], reference, settings)["rougeLsum"]
        assert ours.value == pytest.approx(expected)
        assert f"sentences:{mode}" in ours.signature


def test_exact_match_counts_equal_lines_with_any_reference() -> None:
    ours = score(["exact-match"], ["a b ", "a", "B"], [["x", "a b"], ["b"], ["b"]], EvalConfig())
    assert ours["exact-match"].value == pytest.approx(100 / 3)


@pytest.fixture
def everything(tmp_path: Path) -> Iterator[EvalConfig]:
    """Provide settings with which every metric can be computed."""
    vectors = "".join(f"{word} {n} 1\n" for n, word in enumerate(TEXT_OF_WORDS.split()))
    (tmp_path / "vectors.txt").write_text(vectors, encoding="utf-8")
    with only_wordnet(tmp_path, "dog", "hound"):
        yield EvalConfig(vectors=str(tmp_path / "vectors.txt"))


def test_score_is_a_function_of_its_summed_statistics(everything: EvalConfig) -> None:
    hypotheses, references = sentences(30, 11), [[line] for line in sentences(30, 12)]
    for name, found in score(TEXT, hypotheses, references, everything).items():
        assert len(found.statistics) == 30
        assert Score.of(name, found.statistics[::-1], "").value == pytest.approx(found.value)


def test_texts_equal_to_their_references_have_the_best_score(everything: EvalConfig) -> None:
    lines = [line for line in sentences(40, 13) if line.count(" ") > 6]
    shuffled = random.Random(1).sample(lines, len(lines))
    references = [[line] for line in lines]
    whole, mixed = (score(TEXT, hypotheses, references, everything) for hypotheses in (lines, shuffled))
    for name, value in whole.items():
        facts = METRICS[name]
        if facts.family == "diversity":
            assert value.value == mixed[name].value
        elif name == "meteor":
            assert 99 < value.value < 100  # the penalty of one chunk
        else:
            best = 0 if facts.better == "lower" else 1000 if name == "cider" else 100
            assert value.value == pytest.approx(best), name
        if facts.better == "higher":
            assert mixed[name].value <= value.value + 1e-9


def test_length_ratio_equals_that_of_sacrebleu() -> None:
    hypotheses, streams = sentences(40, 16), [sentences(40, 17), sentences(40, 18)]
    expected = BLEU(force=True).corpus_score(hypotheses, streams)
    ours = score(["length-ratio"], hypotheses, [*zip(*streams, strict=True)], EvalConfig())["length-ratio"]
    assert ours.value == pytest.approx(100 * expected.sys_len / expected.ref_len)
    assert ours.signature.startswith("nrefs:2|tok:13a|refs:closest|version:sacrebleu-")


def test_several_tokenizers_give_one_bleu_each() -> None:
    hypotheses, references = ["don't stop !", "a b"], [["don't stop!"], ["a c"]]
    names = ["chrf", "bleu", "length-ratio"]
    both = score(names, hypotheses, references, EvalConfig(tokenize=("none", "13a")))
    assert list(both) == ["chrf", "bleu", "bleu-13a", "length-ratio"]
    for tokenize, column in (("none", "bleu"), ("13a", "bleu-13a")):
        alone = score(names, hypotheses, references, EvalConfig(tokenize=tokenize))
        assert both[column].value == alone["bleu"].value
        assert both[column].signature == alone["bleu"].signature
        assert (both["length-ratio"] == alone["length-ratio"]) is (tokenize == "none")
    assert metric_facts("bleu-13a").title == "BLEU (13a)"
    assert metric_facts("bleu4-ja-mecab").title == "BLEU-4 (ja-mecab)"


def test_japanese_is_tokenized_by_mecab() -> None:
    pytest.importorskip("MeCab")
    text, reference = "\u732b\u304c\u597d\u304d", "\u732b\u304c\u3044\u308b"
    found = score(["bleu1"], [text], [[reference]], EvalConfig(tokenize="ja-mecab"))["bleu1"]
    assert found.value == pytest.approx(200 / 3)
    assert "|tok:ja-mecab-" in found.signature


def test_empty_texts_score_without_error(everything: EvalConfig) -> None:
    ours = score(TEXT, ["", ""], [["a b"], [""]], everything)
    positive = {name: value.value for name, value in ours.items() if value.value}
    assert positive == {"ter": 100, "exact-match": 50, "answer-match": 50}
    assert ours.keys() == {*TEXT}


def test_teacher_forced_metrics_are_not_scored_on_text() -> None:
    assert score(TEACHER_FORCED, ["a"], [["a"]], EvalConfig()) == {}


def test_unknown_metric_raises_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match=r"unknown metric 'blue': did you mean bleu\?"):
        expand(["blue"])


def test_tokenizer_without_its_package_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    from sacrebleu.tokenizers import tokenizer_ja_mecab

    monkeypatch.setattr(tokenizer_ja_mecab, "MeCab", None)
    with pytest.raises(UnavailableError, match=r"ja-mecab needs .*: pip install 'attnkit\[ja\]', or choose char"):
        score(["bleu"], ["a"], [["a"]], EvalConfig(tokenize="ja-mecab"))


def test_tokenizer_that_would_download_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sacrebleu.utils

    monkeypatch.setattr(sacrebleu.utils, "SACREBLEU_DIR", str(tmp_path))
    with pytest.raises(UnavailableError, match="scoring never downloads"):
        score(["bleu"], ["a"], [["a"]], EvalConfig(tokenize="flores200"))
    tokenized = [name for name in TEXT if METRICS[name].cut_by == "tokenize"]
    assert {"cider", "distinct-2"} < {*tokenized}
    for name in tokenized:
        with pytest.raises(UnavailableError, match="scoring never downloads"):
            check_available([name], EvalConfig(tokenize="flores200"))


@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (["a", "b"], [["a"], ["b"], ["c"]], "2 hypotheses but 3 lines of references"),
        (["a", "b"], [["a"], []], "line 2 has no reference"),
        ([], [], "nothing to score"),
    ],
)
def test_missing_references_raise(hypotheses: list[str], references: list[list[str]], message: str) -> None:
    with pytest.raises(DataError, match=message):
        score(["bleu"], hypotheses, references, EvalConfig())
