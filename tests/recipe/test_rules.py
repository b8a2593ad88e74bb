"""Tests of rules between the keys of a recipe, which are checked before any data is read."""

import pytest
from helpers.recipe_texts import GOOD, check_error, error_message, read

from attnkit.recipe.schema import AttentionConfig, Roles

LM = "task: language-modeling\ndata: {corpus: wikitext-2}\n"
FILES = "task: translation\ndata: {%s}\n"
LM_FILES = "task: language-modeling\ndata: {%s}\n"
NB, NBA = (LM + f"model: {{type: {word}}}\n" for word in ("naive-bayes", "naive-bayes-attention"))
RNN, CONV = (GOOD + f"model: {{type: {word}}}\n" for word in ("recurrent", "convolutional"))
LABELS = "task: classification\ndata: {train: a.jsonl, valid: a.jsonl, labels: [no, yes]}\n"
MASKED = LM + "model: {shape: encoder}\ntrain: {objective: masked}\n"
RECALL, OWN_RECALL = (
    f"task: recall\ndata: {{{x}}}\n" for x in ("corpus: toy-induction", "train: a.csv, valid: b.csv")
)
TAGS = "task: tagging\ndata: {corpus: toy-parity}\nmodel: {shape: decoder}\n"
SPANS = LM + "train: {objective: span-corruption}\n"
MULTI30K = "task: translation\ndata: {corpus: multi30k, source: en, target: de}\n"


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        (GOOD, "train.objective=masked", "masked learns from running text; translation uses seq"),
        (GOOD, "model.shape=encoder", "model.shape: an encoder writes no text; translation"),
        (LM, "model.shape=encoder-decoder", "model.shape: language-modeling has no source"),
        (LM, "train.objective=seq2seq", "train.objective: seq2seq needs pairs of texts"),
        (GOOD, "train.objective=causal", "train.objective: causal is for language-modeling"),
        (GOOD, "model.shape=decoder tokenizer.shared=false", "decoder` reads source and target"),
        (GOOD, "model.type=naive-bayes", "model.type: naive-bayes is a language model; use `tas"),
        (GOOD, "model.type=n-gram", "model.type: n-gram is a language model; use `task: languag"),
        (NB, "model.order=2", "model.order: has no effect with `model.type: naive-bayes`; it is"),
        (LM, "model.naive_bayes.beta=1", "model.naive_bayes.beta: has no effect with `model.type"),
        (NB, "model.naive_bayes.decay=.5", "with `model.naive_bayes.weights: entropy`; it is for"),
        (NB, "tokenizer.size=32000", "stores all pairs of tokens, 4.1 GB; use at most 16384"),
        (NB, "model.layers.decoder=2", "a model of type naive-bayes has no decoder; remove it"),
        (NB, "model.attention.decoder=linear", "a model of type naive-bayes has no decoder atte"),
        (NB, "model.positions=rope", "must be none for a naive-bayes model, got rope; remove it"),
        (NBA, "model.tie=all", "model.tie: naive-bayes-attention has a separate output table; use model.tie=none"),
        (NBA, "model.naive_bayes.pool=max", "model.naive_bayes.pool: has no effect with `model.type: naive-bay"),
        (LM, "train.monitor=bleu", "bleu does not apply to language-modeling; choose from loss, accuracy"),
        (LM, "eval.metrics=perplexity,bleu", "bleu does not apply to language-modeling; choose from a"),
        (LM, "data.source=en", "data.source: a language model has no source"),
        (LABELS, "data.labels=[yes]", "data.labels: name at least two labels"),
        (LABELS, "data.labels=[yes,yes]", "data.labels: labels must be different"),
        (LABELS, 'data.labels=[yes,""]', "data.labels: labels must be different, non-empty"),
        (LABELS, r'data.labels=["a\x20b","a\x20\x20b"]', "data.labels: labels must be different"),
        (LABELS, "data.corpus=sst2", "data.labels: sst2 has labels negative, positive; remove"),
        (GOOD, "data.labels=[a,b]", "data.labels: has no effect with `task: translation`"),
        (LABELS, "eval.metrics=bleu", "bleu does not apply to classification; choose from label-accuracy"),
        (GOOD, "eval.metrics=matthews", "eval.metrics: matthews does not apply to translation; choos"),
        (LABELS, "model.shape=encoder tokenizer.shared=false", "encoder` reads source and target with one v"),
        (LABELS, "model.shape=encoder model.type=recurrent", "a recurrent model is an encoder-dec"),
        (LABELS, "train.objective=causal", "causal is for language-modeling; classification uses"),
        (MASKED, "model.shape=decoder", "model.shape: masked predicts tokens from both sides: use"),
        (MASKED, "model.type=naive-bayes-attention", "model.type: masked needs a transformer"),
        (MASKED, "eval.metrics=word-perplexity", "eval.metrics: word-perplexity is a metric"),
        (MASKED, "train.objective=causal", "an encoder writes no text; language-modeling ne"),
        (LM, "eval.lengths=[8,8]", "eval.lengths: names 8 twice; name each once"),
        (RECALL, "eval.lengths=[4,129]", "toy-induction has rows of 2 to 128 words"),
        (OWN_RECALL, "eval.lengths=8", "eval.lengths: needs a generated corpus, whose rows can have any length; rem"),
        (GOOD, "task=recall", "toy-translation is for translation, not for recall"),
        (GOOD, "eval.lengths=8", "eval.lengths: has no effect with `task: translation`"),
        (SPANS, "eval.lengths=8", "eval.lengths: is for the objectives causal and masked"),
        (LM, "model.positions=learned eval.lengths=999", "eval.lengths: learned positions end a"),
        (
            LM,
            "model.attention=synthesizer-random eval.lengths=257",
            "eval.lengths: synthesizer-random has weights for data.max_length (256) positions",
        ),
        (TAGS, "model.shape=encoder-decoder", "model.shape"),
        (TAGS, "eval.metrics=[bleu]", "bleu does not apply to tagging; choose from accuracy, balanced"),
        (GOOD, "train.objective=span-corruption", "span-corruption learns from running text; tr"),
        (SPANS, "model.shape=decoder", "model.shape: span-corruption reads one text and writes"),
        (SPANS, "data.max_length=15", "data.max_length: span-corruption needs texts of at least 16 t"),
        (SPANS, "eval.metrics=word-perplexity", "word-perplexity is a metric of running text; use perpl"),
        (GOOD, "data.test=a.jsonl", "own splits; to read files, set data.corpus=null"),
        (GOOD, "data.train=a.jsonl", "data.train: needs data.valid too"),
        (GOOD, "data.corpus=toy-translation data.train=a.jsonl", "own splits; to read files, set data.corpus=null"),
        (FILES % "rows: 1", "", "r.yaml:2:14: data: needs a corpus (`attnkit recipe list --corp"),
        (GOOD, "data.train=hf:a/b", "data.train: needs data.valid too; set data.valid to a file, or take"),
        (FILES % "train: [a, b]", "", "data.train: needs data.valid too"),
        (FILES % "valid: [a, b]", "", "data.valid: needs data.train too"),
        (FILES % "train: [a, b, c], valid: [a, b]", "", "must be one file, or two aligned files"),
        (FILES % "train: [], valid: [a, b]", "", "must be one file, or two aligned files, got 0"),
        (FILES % "train: a.txt, valid: [a, b]", "", "data.train: translation needs pairs: two"),
        (FILES % "train: a.txt, valid: [a, b]", "", "hf:NAME, or one .jsonl, .json, .csv, .tsv"),
        (
            LM_FILES % "train: a.txt, split: {valid: 1}",
            "",
            "data.split.valid: plain text has no rows to split; cut the file",
        ),
        (FILES % "train: a.txt, valid: [a, b]", "", "has columns, set its format: data.format=csv"),
        (FILES % "train: a.csv, split: {valid: 1}, valid: b.csv", "", "data.valid names a file"),
        (FILES % 'train: "a\\0b", valid: [a, b]', "", "a path must be a file name"),
        (
            FILES % "train: a.jsonl, valid: [a, b], format: lines",
            "",
            "data.train: `data.format: lines` reads two aligned files [source, target]",
        ),
        (
            FILES % "train: a.jsonl, valid: [a, b], format: jsonl",
            "",
            "data.valid: `data.format: jsonl` reads one file, got two",
        ),
        (LM_FILES % "train: [a, b], valid: c", "", "data.train: language-modeling reads one file, got two aligned"),
        (FILES % "train: [a, b], valid: [c, d], size: 3", "", "data.size: only generated corpora"),
        (FILES % "train: [a, b], valid: [c, d]", "eval.splits=tset", "the data has no split 'tset'; it has tra"),
        (FILES % "train: [a, b], valid: [c, d]", "eval.splits=test", "the data has no split 'test'; it has tr"),
        (FILES % "train: [a, b], valid: [c, d], source: x, target: x", "", "are both x; name two"),
        (GOOD, "data.corpus=toy-transltion", "no corpus is called 'toy-transltion'; did you mea"),
        (GOOD, "data.corpus=zzz", "no corpus is called 'zzz'; `attnkit recipe list --corpora`"),
        (GOOD, "task=dialogue", "task: toy-translation is for translation, not for dialogue"),
        (GOOD, "data.format=jsonl", "data.format: is for your own files"),
        (GOOD, "data.source=fr data.target=en", "data.source: toy-translation has no 'fr'; choose"),
        (GOOD, "data.source=de", "data.corpus: toy-translation has en, de; choose one as data.targ"),
        (GOOD, "data.source=de data.target=de", "data.target: source and target are both de"),
        (GOOD, "eval.splits=test_2017", "no split 'test_2017'; it has train, valid, test"),
        (MULTI30K, "data.size=10", "data.size: only generated corpora have a size"),
        (MULTI30K, "data.target=null", "data.target: multi30k has en, de, fr; choose one as"),
        (GOOD, "model.heads=3", "model.heads: width 256 is not divisible by 3 heads; use model.heads=2"),
        (GOOD, "model.width=250", "model.width: width 250 is not divisible by 4 heads; use model.heads=5"),
        (GOOD, "model.width=1073741824 model.heads=1073741823", "heads; use model.heads=4096"),
        (GOOD, "model.width=30 model.heads=2 model.positions=rope", "rope needs an even width / heads, got 15"),
        (GOOD, "model.width=5 model.heads=1", "model.width: sinusoidal positions need an even"),
        (GOOD, "tokenizer.shared=false model.tie=all", "model.tie: two vocabularies cannot share"),
        (GOOD, "model.layers.decoder=0", "model.layers.decoder: must be at least 1"),
        (GOOD, "model.type=rnn", "model.type: must be one of transformer, recurrent, conv"),
        (GOOD, "model.cell=gru", "model.cell: has no effect with `model.type: transformer`; it is "),
        (RNN, "model.ff=64", "model.ff: has no effect with `model.type: recurrent`; it is for "),
        (RNN, "model.positions=rope", "model.positions: must be none for a recurrent model, got rope; rem"),
        (CONV, "model.positions=sinusoidal", "must be learned or none for a convolutional model, got sin"),
        (RNN, "model.shape=decoder", "model.shape: a recurrent model is an encoder-decoder; for"),
        (LM, "model.type=convolutional", "model.type: a convolutional model is an encoder-decoder"),
        (RNN, "model.width=9", "model.width: each direction of the encoder has half the width; use model.width=10"),
        (RNN, "model.attention.encoder=dot", "a model of type recurrent has no encoder attention"),
        (CONV, "model.attention.decoder=dot", "a model of type convolutional has no decoder att"),
        (RNN, "model.attention=linformer", "with `cross: scaled-dot`"),
        (LM, "model.layers.encoder=2", "a model of shape decoder has no encoder; remove it"),
        (LM, "model.attention.cross=linear", "a model of shape decoder has no cross attention"),
        (GOOD, "train.patience=3 train.valid_every=0", "train.patience: counts validations, but"),
        (GOOD, "train.ema=0.9 train.average=3", "train.ema: ema and average both average weights"),
        (GOOD, "train.average=3 train.valid_every=0", "train.average: averages the weights at valid"),
        (GOOD, "train.min_lr=1e-5", "train.min_lr: has no effect with `train.schedule: inver"),
        (GOOD, "train.schedule=cosine train.min_lr=1", "must be at most the peak train.lr 0.001"),
        (GOOD, "eval.metrics=total-variation", "total-variation needs a corpus with a known source"),
        (GOOD, "train.tailr.gamma=0.1", "train.tailr.gamma: has no effect with `train.loss: cross"),
        (GOOD, "train.loss=tailr train.tailr.gamma=1.5", "<= 1, got '1.5'; did you mean 1.0?"),
        (GOOD, "train.warmup=0", "train.warmup: inverse-sqrt decays from the end of the warm-up"),
        (GOOD, "train.seeds=1,2,1", "train.seeds: names 1 twice; name each once"),
        (GOOD, "eval.tokenize=13a,itnl", "eval.tokenize: must be one of 13a, intl, "),
        (GOOD, "eval.metrics=meteors", "got 'meteors'; did you mean [meteor]?"),
        (GOOD, "eval.metrics=bleu,embedding-greedy", "embedding-greedy needs word vectors; set"),
        (GOOD, "train.monitor=embedding-greedy", "train.monitor: embedding-greedy needs word vec"),
        (GOOD, "train.monitor=length-ratio", "train.monitor: must be one of loss, bleu, chrf,"),
        (GOOD, "search.min_length=100", "search.min_length: must be below max_length 100"),
        (GOOD, r'tokenizer.special=["a\x20b"]', "special: 'a b' must be text without white space"),
        (GOOD, 'tokenizer.special=[""]', "special: '' must be text without white space"),
        (GOOD, r'tokenizer.special=["\0"]', r"special: '\x00' must be text without white space"),
        (GOOD, "tokenizer.special=[x,x]", "tokenizer.special: names x twice; name each once"),
        (GOOD, "tokenizer.size=5 tokenizer.special=[x]", "tokenizer.size: size 5 is too small for r"),
        (GOOD, "search.n_best=6", "search.n_best: must be at most 5 for beam search"),
        (GOOD, "search.method=greedy search.n_best=2", "must be at most 1 for greedy search"),
        (GOOD, "search.top_p=0.9", "search.top_p: has no effect with `search.method: beam`; it"),
    ],
)
def test_keys_that_do_not_fit_together_raise(text: str, overrides: str, message: str) -> None:
    check_error(message, text, *overrides.split())


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        (GOOD, "data.source=de data.target=en"),
        (GOOD, "data.size=10 data.seed=3"),
        (GOOD, "model.shape=decoder"),
        (GOOD, "model.layers.encoder=0"),
        (RNN, "model.cell=sru model.heads=4 model.positions=none model.attention=additive"),
        (CONV, "model.kernel=5 model.positions=none model.width=9"),
        (GOOD, "model.positions=rope model.width=32 model.heads=16"),
        (GOOD, "model.positions=none model.width=5 model.heads=5"),
        (GOOD, "train.average=3 train.choose=best"),
        (GOOD, "train.schedule=cosine train.min_lr=1e-4 train.warmup=0"),
        (GOOD, "search.method=sample search.top_p=0.9 search.temperature=0.7 search.n_best=9"),
        (GOOD, "search.method=greedy"),
        (GOOD, "eval.tokenize=[13a,intl]"),
        (GOOD, "eval.metrics=meteor,embedding-greedy,word-perplexity eval.vectors=v.vec"),
        (LM, ""),
        (LM, "train.monitor=accuracy eval.metrics=perplexity,accuracy"),
        (LM, "model.positions=rope model.attention=linear"),
        (MULTI30K, "eval.splits=test,test_2017"),
        (LM_FILES % "corpus: multi30k, target: de", ""),
        (FILES % "train: a.jsonl.gz, valid: [c, d]", ""),
        (FILES % "train: a, valid: b, format: jsonl, size: null", ""),
        (LM_FILES % "train: a.txt, valid: b.gz, test: [c]", ""),
    ],
)
def test_keys_that_fit_together_are_accepted(text: str, overrides: str) -> None:
    assert list(read(text, *overrides.split()).variants) == ["base"]


@pytest.mark.parametrize(("text", "positions"), [(RNN, "none"), (CONV, "learned")])
def test_model_type_sets_heads_and_positions(text: str, positions: str) -> None:
    file = read(text, "model.attention=additive")
    model = file.variants["base"].model
    assert (model.heads, model.positions, model.places) == (1, positions, ("cross",))
    assert file.origins["base"]["model.heads"] == "derived"
    assert model.attention == Roles(cross=AttentionConfig(name="additive"))
    assert read(text, "model.heads=2").variants["base"].model.heads == 2


def test_error_has_the_position_of_the_key_that_was_set() -> None:
    assert error_message(GOOD + "model: {width: 30}\n").startswith("r.yaml:3:16: model.width: width 30 is")
    assert error_message(GOOD + "model: {heads: 3, width: 256}\n").startswith("r.yaml:3:16: model.heads")


def test_rows_of_plain_text_are_not_suggested_for_validation() -> None:
    text, jsonl = (error_message(LM_FILES % f"train: {name}") for name in ("a.txt", "a.jsonl"))
    assert text.endswith("data.train: needs data.valid too; set data.valid to a file")
    assert jsonl.endswith("data.valid to a file, or take rows of data.train: data.split.valid=500")
