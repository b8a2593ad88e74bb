"""Tests of the rules of question-answering recipes: keys that do not fit together raise."""

import pytest
from helpers.recipe_texts import GOOD, check_error, error_message, read
from helpers.trained import tokenizer

from attnkit import mechanisms, models
from attnkit.errors import RecipeError
from attnkit.nbce.run_reader import LanguageModelReader

TASK = "task: question-answering\n"
TOY = TASK + "data: {corpus: toy-passages}\n"
DECODER = TOY + "model: {shape: decoder}\n"
OWN = TASK + "data: {train: %s, valid: v.jsonl}\n"


WRONG = [
    (
        TASK + "data: {corpus: toy-passages, gold: 0.9, other: 0.2}\n",
        "2:48: data.other: data.gold 0.9 and data.other 0.2 add up to more than 1; set data.other to at most 0.1",
    ),
    (TASK + "data: {corpus: toy-passages, gold: 0.9}\n", "2:36: data.gold: data.gold 0.9 and "),
    (TASK + "data: {corpus: toy-passages, gold: 1.5}\n", "2:36: data.gold: must be a number"),
    (TOY + "eval: {metrics: [perplexity]}\n", "3:17: eval.metrics: perplexity does not apply to ques"),
    (TOY + "eval: {metrics: [accuracy]}\n", "3:17: eval.metrics: accuracy does not apply to question"),
    (
        TOY + "contexts: {methods: [entropy, window]}\n",
        "3:21: contexts.methods: window needs `model.shape: decoder`; an encoder reads one context",
    ),
    (TOY + "contexts: {methods: [retrieval]}\n", "3:21: contexts.methods: retrieval needs `mo"),
    (TOY + "contexts: {methods: [mean, mean]}\n", "3:21: contexts.methods: names mean twice"),
    (TOY + "contexts: {methods: [entropie]}\n", "did you mean [entropy]?"),
    (TOY + "contexts: {counts: [1, 2, 2]}\n", "3:20: contexts.counts: names 2 twice; name each"),
    (TOY + "contexts: {counts: [0]}\n", "[whole number >= 1, ...], got [0]; did you mean [1]?"),
    (TOY + "contexts: {counts: []}\n", "3:20: contexts.counts: must be a non-empty list"),
    (TOY + "contexts: {beta: -2}\n", "3:18: contexts.beta: must be a number >= -1"),
    (TOY + "contexts: {eta: -1}\n", "3:17: contexts.eta: must be a number >= 0"),
    (TOY + "contexts: {top_p: 1.5}\n", "3:19: contexts.top_p: must be a number >= 0 and <= 1"),
    (TOY + "contexts: {alpha: -1}\n", "3:19: contexts.alpha: must be a number >= 0"),
    (TOY + "train: {objective: causal}\n", "3:20: train.objective: causal is for language-model"),
    (DECODER + "tokenizer: {shared: false}\n", "4:21: tokenizer.shared: `model.shape: decoder` r"),
    (TASK + "data: {corpus: toy-translation}\n", "1:7: task: toy-translation is for translation"),
    ("task: summarization\ndata: {corpus: nq-passages}\n", "nq-passages is for question-answer"),
    (TASK + "data: {corpus: nq-passages, size: 9}\n", "2:35: data.size: only generated corpora"),
    (
        TASK + "data: {corpus: xquad-en}\neval: {splits: [train]}\n",
        "3:16: eval.splits: xquad-en has no split 'train'; it has valid, test",
    ),
    (OWN % "[q.txt, a.txt]", "2:15: data.train: question-answering needs one .jsonl file of questi"),
    (OWN % "q.txt", "2:15: data.train: question-answering needs one .jsonl file of questi"),
    (
        GOOD + "eval: {metrics: [bleu, context-found]}\n",
        "3:17: eval.metrics: context-found does not apply to translation; choose from bleu, chrf, ter",
    ),
    (
        GOOD + "contexts: {counts: [1, 3]}\n",
        "3:20: contexts.counts: has no effect with `task: translation`; it is for question-answering",
    ),
    ("task: translation\ndata: {corpus: toy-translation, gold: 0.5}\n", "2:39: data.gold: has no effect"),
]


@pytest.mark.parametrize(("text", "message"), WRONG)
def test_keys_that_do_not_fit_raise_with_position_and_remedy(text: str, message: str) -> None:
    check_error(message, text)


WINDOW = TOY + "contexts: {methods: [entropy, window]}\n"
SUMS = "its attention keeps sums over all tokens, from which the begin token of each window cannot be removed"
WORDS = [word for word in mechanisms.names() if (facts := mechanisms.facts(word)).causal and not facts.composite]
DISTANCES = "its attention depends on distances between keys, and windows share their positions"


@pytest.mark.parametrize(
    ("attention", "word", "why"),
    [
        *((word, word, SUMS) for word in ("linear", "gated-delta", "mesa", "decay")),
        *((word, word, DISTANCES) for word in ("local", "atrous", "sparse", "block-topk")),
        *((word, word, DISTANCES) for word in ("forgetting", "selective", "stick-breaking")),
        ("{name: local, window: 8}", "local", DISTANCES),
        ("{name: sink, window: 8}", "sink", DISTANCES),
        ("{name: interleaved, parts: [scaled-dot, linear]}", "linear", SUMS),
        ("{name: interleaved, parts: [dot, dot, {name: local, window: 8}]}", "local", DISTANCES),
    ],
)
def test_window_method_raises_if_a_layer_cannot_read_several_windows(attention: str, word: str, why: str) -> None:
    text = WINDOW + f"model: {{shape: decoder, layers: 3, attention: {attention}}}\n"
    assert error_message(text, kind=RecipeError) == (
        f"r.yaml:3:21: contexts.methods: window does not work with {word}: {why}; remove window, "
        "or use `model.attention: scaled-dot`"
    )
    read(text.replace("window]", "retrieval]"))


@pytest.mark.parametrize("word", WORDS)
def test_recipe_refuses_the_window_method_if_the_model_does(word: str) -> None:
    text = f"{WINDOW}model: {{shape: decoder, layers: 1, width: 8, heads: 2, attention: {word}}}\n"
    recipe = read(text.replace(", window]", "]")).variants["base"]
    refusal = LanguageModelReader(models.build(recipe.model, (9, 9), 8), tokenizer(), "toy").window_refusal
    if refusal:
        assert refusal in error_message(text, kind=RecipeError)
    else:
        read(text)


@pytest.mark.parametrize(
    "text",
    [
        TOY,
        DECODER + "contexts: {methods: [window, retrieval, best, cad, entropy-free, mean-whole]}\n",
        TASK + "data: {corpus: toy-passages, gold: 1, other: 0}\n",
        TASK + "data: {corpus: toy-passages, gold: 0.7, other: 0.3}\n",
        TASK + "data: {corpus: xquad-en}\n",
        OWN % "t.jsonl",
        OWN % "t.jsonl.gz",
        TOY + "eval: {metrics: [answer-match, answer-f1, context-found, rouge, bleu]}\n",
        TOY + "eval: {splits: [test, ordered, coupled]}\n",
        "task: language-modeling\ndata: {corpus: nq-passages}\n",
        GOOD + "eval: {metrics: [answer-match, answer-f1]}\n",
    ],
)
def test_keys_that_fit_together_are_accepted(text: str) -> None:
    assert list(read(text).variants) == ["base"]
