"""Text is text: whatever a corpus spells is learned, read and written back."""

import unicodedata
from functools import cache

import pytest
import sentencepiece
from helpers import sentencepiece_models
from hypothesis import example, given
from hypothesis import strategies as st

from attnkit.data.rows import Row
from attnkit.data.text_form import clean, from_model, normal_form, to_model
from attnkit.data.tokenizer import UNK, Tokenizer, Vocabulary, unknown_note
from attnkit.recipe.schema import TokenizerConfig
from attnkit.text import RESERVED

TYPES = ("unigram", "bpe", "word", "char")
MARKERS = (*RESERVED, "<mask>", "<extra_id_0>", "__eot__", "\u2581\u2581</s>", "<0x41>", "\u2047")
ODD = ("\0", "\u2585", "\u2581", "\ufdd0", "\ufffe", "\ufeff", "\u200b", "\u200d", "\ufffd", "\x85")

PARTS = st.characters(exclude_categories=["Cs"]) | st.sampled_from((*MARKERS, *ODD, " ", "a", "ab"))
TEXTS = st.lists(PARTS, min_size=1, max_size=12).map("".join)


def learned(kind: str, lines: list[str], shared: bool = True, **settings: object) -> Tokenizer:
    spec = TokenizerConfig.model_validate({"type": kind, "size": 3000, "shared": shared, **settings})
    return Tokenizer.train(spec, [Row(line, line[::-1]) for line in lines], controls=("<mask>",))


def marked(left: str, right: str) -> list[str]:
    """Lines between markers."""
    words = ["two red cats", "a dog", "five very old red dogs", "cats and a dog", "old"]
    return [f"{left} {words[i % 5]} {right}" for i in range(40)]


@pytest.mark.parametrize("kind", TYPES)
@given(lines=st.lists(TEXTS, min_size=1, max_size=4))
@example(lines=["a \u2585 b"])
@example(lines=["\0"])
def test_what_was_learned_from_is_read_and_written(kind: str, lines: list[str]) -> None:
    if not any(map(clean, lines)):
        return
    vocabulary = learned(kind, [*lines, "a"]).source
    ids = vocabulary.encode(lines)
    assert vocabulary.decode(ids) == [clean(line) for line in lines]
    assert not any(id_ <= 3 for row in ids for id_ in row)
    assert not vocabulary.unknown(lines)


@pytest.mark.sampled(7)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("marker", MARKERS)
def test_a_marker_is_read_like_any_other_word(kind: str, shared: bool, marker: str) -> None:
    """As many ids as with letters in the place of the marker's, none of them reserved."""
    lines = marked(marker, marker)
    tokenizer = learned(kind, lines, shared)
    for vocabulary, side in ((tokenizer.source, lines), (tokenizer.target, [x[::-1] for x in lines])):
        ids = vocabulary.encode(side)
        assert vocabulary.decode(ids) == [clean(line) for line in side]
        assert min(map(min, ids)) > 3
    assert tokenizer.target.encode(["<mask>"])[0] != [tokenizer.target.id_of("<mask>")]


@pytest.mark.parametrize("kind", TYPES)
def test_reserved_spellings_cost_what_other_letters_cost(kind: str) -> None:
    """The same text with another letter in its markers has equally many pieces."""
    words = [line[4:-5].replace("s", "") for line in marked("<s>", "</s>")]
    with_reserved, plain = ([f"<{x}> {w} </{x}>" for w in words] for x in "sq")
    sizes = [[*map(len, learned(kind, x, size=40).source.encode(x))] for x in (with_reserved, plain)]
    assert sizes[0] == sizes[1]


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        ("Schal", ["Sc", "ha", "l"]),
        ("ha", ["ha"]),
        ("hahaman", ["ha", "ha", "man"]),
        ("Mannha", ["Mann", "ha"]),
        ("mahan", ["ma", "ha", "n"]),
        ("harmanha", ["ha", "r", "man", "ha"]),
    ],
)
@pytest.mark.parametrize("kind", ["unigram", "bpe", "char"])
def test_special_symbols_are_one_piece_wherever_they_stand(kind: str, word: str, parts: list[str]) -> None:
    """Also where a unigram model knows likelier pieces across them."""
    lines = ["Schal Schule al mann man ha hat Mannha", "Sch al ma han harm"] * 30
    vocabulary = learned(kind, lines, size=80, special=("man", "ha")).source
    pieces = vocabulary.pieces(vocabulary.encode([f"al {word} al"])[0])
    joined, spans = "", []
    for piece in pieces:
        text = piece.replace("\u2581", " ")
        spans.append((len(joined), len(joined) + len(text)))
        joined += text
    place, wanted = 4, []
    for part in parts:
        if part in ("man", "ha"):
            wanted.append((place, place + len(part)))
        place += len(part)
    assert joined == f" al {word} al"
    assert set(wanted) <= set(spans)
    assert vocabulary.decode(vocabulary.encode([word])) == [word]


def test_a_model_of_words_keeps_words_with_special_symbols_in_them() -> None:
    lines = ["Schal Schule mann man ha hat"] * 3
    vocabulary = learned("word", lines, size=80, special=("man", "ha", "__rare__")).source
    assert vocabulary.pieces(vocabulary.encode(["Schal ha __rare__"])[0]) == [
        "\u2581Schal",
        "\u2581ha",
        "\u2581__rare__",
    ]
    assert vocabulary.id_of("ha") == vocabulary.encode(["ha"])[0][0]


def test_special_words_are_among_few_words() -> None:
    lines = [f"w{i} w{i} w{i}" for i in range(200)]
    vocabulary = learned("word", lines, size=20, special=("__rare__",)).source
    assert len(vocabulary) <= 20
    assert vocabulary.encode(["__rare__"]) == [[vocabulary.id_of("__rare__")]]


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_spellings_for_the_model_are_undone(text: str) -> None:
    spelled = to_model(clean(text))
    assert from_model(spelled) == clean(text)
    assert not {"\0", "\u2585"} & set(spelled)


@pytest.mark.parametrize("form", ["nfc", "nfkc"])
@given(text=st.text())
def test_normal_forms_are_those_of_unicodedata(form: str, text: str) -> None:
    assert normal_form(text, form) == unicodedata.normalize(form.upper(), text)  # type: ignore[arg-type]
    assert normal_form(text, "none") == text


@cache
def of_form(form: str) -> Tokenizer:
    lines = [unicodedata.normalize("NFC", line) for line in ("größe déjà", "weiße Männer", "한국")]
    spec = TokenizerConfig(type="bpe", size=60)
    return Tokenizer.train(spec, [Row(x, x) for x in lines * 9], form=form)  # type: ignore[arg-type]


@pytest.mark.parametrize("word", ["größe", "déjà", "weiße", "Männer", "한국", "ﬁ ½"])
def test_decomposed_text_is_read_as_composed(word: str) -> None:
    composed, other = (unicodedata.normalize(form, word) for form in ("NFC", "NFD"))
    vocabulary = of_form("nfc").source
    assert vocabulary.encode([composed]) == vocabulary.encode([other])
    if other != composed:
        assert UNK in of_form("none").source.encode([other])[0]
    compatible = unicodedata.normalize("NFKC", word)
    assert of_form("nfkc").source.encode([word]) == of_form("nfkc").source.encode([compatible])


def test_what_is_unknown_is_counted_by_hand() -> None:
    vocabulary = learned("bpe", ["abc <s>"] * 5, special=("xyz",)).source
    found = vocabulary.unknown(["a\u03b1\u03b1 \u03b2 c", "abc xyz <s>", "\u03b1z"])
    assert found == {"\u03b1": 3, "\u03b2": 1, "z": 1}
    assert unknown_note(found) == (
        "the tokenizer has no piece for 5 characters of the input, most often '\u03b1' (U+03B1), 3 times"
    )
    one = vocabulary.unknown(["\u03b1"])
    assert unknown_note(one) == "the tokenizer has no piece for 1 character of the input: '\u03b1' (U+03B1)"
    words = learned("word", ["abc def"] * 5).source
    assert words.unknown(["abc ghi def", "ghi jkl"]) == {"ghi": 2, "jkl": 1}
    assert unknown_note(words.unknown(["ghi"])) == "the tokenizer has no piece for 1 word of the input: 'ghi'"
    assert unknown_note(words.unknown(["abc"])) == ""


def test_models_of_others_are_read_as_sentencepiece_reads_them() -> None:
    """They put a space before a text, and control tokens are spelled plainly."""
    model = sentencepiece_models.train(
        ["Schal man ha Schule", "ha al man"] * 20, 40, user_defined_symbols=["ha", "<mask>"]
    )
    vocabulary, direct = Vocabulary(model), sentencepiece.SentencePieceProcessor()
    direct.LoadFromSerializedProto(model)
    for text in ("Schal ha man", "hahaSchal", "a </s> b"):
        assert vocabulary.encode([text])[0] == direct.encode(text)
    assert vocabulary.id_of("<mask>") == direct.piece_to_id("<mask>")
    assert vocabulary.pieces(range(4)) == [*RESERVED]


def test_a_word_for_unknown_words_is_one_piece_also_at_the_start() -> None:
    spec = TokenizerConfig(type="bpe", size=40).model_copy(update={"special": ("\u2581<unk>",)})
    vocabulary = Tokenizer.train(spec, [Row("", "the <unk> cat"), Row("", "a <unk>")] * 9).target
    texts = ["<unk> the cat", "the <unk> cat", "<unk>"]
    assert not vocabulary.unknown(texts)
    pieces = [vocabulary.pieces(ids).count("\u2581<unk>") for ids in vocabulary.encode(texts)]
    assert pieces == [1, 1, 1]
    assert vocabulary.decode(vocabulary.encode(texts)) == texts


@pytest.mark.parametrize(
    "settings",
    [
        {"remove_extra_whitespaces": False},
        {"add_dummy_prefix": False},
        {"byte_fallback": True, "control_symbols": ["<ctl>"], "add_dummy_prefix": False},
    ],
    ids=str,
)
def test_other_settings_of_sentencepiece_are_kept(settings: dict[str, object]) -> None:
    """No spelling reaches a control token or a byte, and ids are sentencepiece's own."""
    settings = {"model_type": "bpe", "user_defined_symbols": ["<q>"], **settings}
    line = "the cat <q> dog < > 0 x 4 1 c t l A"
    model = sentencepiece_models.train([line] * 20, 400, normalization_rule_name="identity", **settings)
    vocabulary, direct = Vocabulary(model), sentencepiece.SentencePieceProcessor()
    direct.LoadFromSerializedProto(model)
    space = settings.get("add_dummy_prefix", True) is False
    for text in ("the cat<q>dog", "a <ctl> <0x41> c", "<q>", "the cat"):
        given = f" {text}" if space and settings.get("remove_extra_whitespaces") is False else text
        assert vocabulary.encode([text])[0] == direct.encode(given)
