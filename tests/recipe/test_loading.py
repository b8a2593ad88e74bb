"""Files, overrides, variants and parents become one typed recipe a variant."""

from pathlib import Path

import pytest
from helpers.recipe_texts import GOOD, error_message, read, write

import attnkit
from attnkit.errors import MissingInputError, RecipeError
from attnkit.recipe import Recipe, dump, library, load, load_resolved, resolve
from attnkit.recipe.find import name_of
from attnkit.recipe.schema import AttentionConfig, Layers


def only(text: str, *overrides: str) -> Recipe:
    """The single variant of a recipe."""
    return read(text, *overrides).variants["base"]


def test_the_least_recipe_has_all_defaults_and_one_variant() -> None:
    file = read(GOOD)
    assert (file.name, file.path, file.baseline) == ("r", Path("r.yaml"), None)
    assert list(file.variants) == ["base"]
    assert file.variants["base"] == Recipe.model_validate(
        {"task": "translation", "data": {"corpus": "toy-translation"}}
    )


@pytest.mark.parametrize(
    ("section", "key", "text", "value"),
    [
        ("train", "lr", "1e-3", 0.001),
        ("train", "lr", "1", 1.0),
        ("train", "lr", ".5", 0.5),
        ("train", "steps", "7", 7),
        ("train", "compile", "true", True),
        ("train", "precision", "bf16", "bf16"),
        ("train", "seeds", "[3]", (3,)),
        ("train", "betas", "[0, 0.5]", (0.0, 0.5)),
        ("data", "seed", "0", 0),
        ("tokenizer", "special", "[no, 1e-3, '~', 2024-01-01]", ("no", "1e-3", "~", "2024-01-01")),
        ("eval", "tokenize", "13a", "13a"),
        ("eval", "tokenize", "char", "char"),
        ("model", "norm", "post", "post"),
        ("model", "positions", "none", "none"),
    ],
)
def test_the_schema_decides_what_a_text_means(section: str, key: str, text: str, value: object) -> None:
    if section == "data":
        recipe = only(GOOD.replace("}", f", {key}: {text}}}"))
    else:
        recipe = only(f"{GOOD}{section}: {{{key}: {text}}}\n")
    found = getattr(getattr(recipe, section), key)
    assert found == value
    assert type(found) is type(value)


def test_a_language_called_no_stays_text() -> None:
    text = "task: translation\ndata: {train: [a, b], valid: [c, d], source: no, target: on}\n"
    assert (only(text).data.source, only(text).data.target) == ("no", "on")


@pytest.mark.parametrize(
    ("override", "key", "value"),
    [
        ("train.lr=2e-3", "train.lr", 0.002),
        ("train.seeds=1,2", "train.seeds", (1, 2)),
        ("train.seeds=[1, 2]", "train.seeds", (1, 2)),
        ("train.seeds=[4]", "train.seeds", (4,)),
        ("eval.metrics=chrf", "eval.metrics", ("chrf",)),
        ("eval.metrics=bleu,chrf", "eval.metrics", ("bleu", "chrf")),
        ("train.betas=0.8,0.9", "train.betas", (0.8, 0.9)),
        ("tokenizer.special=['a,b', c]", "tokenizer.special", ("a,b", "c")),
        ("tokenizer.special=[]", "tokenizer.special", ()),
        ("tokenizer.model=null", "tokenizer.model", None),
        ("tokenizer.model='a=b,c.model'", "tokenizer.model", "a=b,c.model"),
        ("tokenizer.model='null'", "tokenizer.model", "null"),
        (" train.steps = 5 ", "train.steps", 5),
        ("model.layers=2", "model.layers", Layers(encoder=2, decoder=2)),
        ("model.layers.encoder=1", "model.layers", Layers(encoder=1, decoder=3)),
        ("train={steps: 9, lr: 1}", "train.steps", 9),
    ],
)
def test_overrides_set_any_key(override: str, key: str, value: object) -> None:
    section, name = key.split(".")
    assert getattr(getattr(only(GOOD, override), section), name) == value


@pytest.mark.parametrize("override", ["train=null", "data.split=", "data={split: null}"])
def test_an_override_that_would_do_nothing_is_refused(override: str) -> None:
    expected = "command line: .*: must be a mapping of keys, such as `.*`, got (null|nothing)$"
    with pytest.raises(RecipeError, match=expected):
        read(GOOD, override)


def test_the_last_override_wins_and_overrides_win_over_variants() -> None:
    file = read(GOOD + "variants:\n  a: {train.lr: 1}\n  b: {}\n", "train.lr=2", "train.lr=3")
    assert [recipe.train.lr for recipe in file.variants.values()] == [3, 3]
    assert file.origins["a"]["train.lr"] == "command line"


def test_an_override_of_one_variant_wins_in_that_variant_alone() -> None:
    text = GOOD + "variants:\n  a: {}\n  a.b: {}\n"
    file = read(text, "variants.a.b.train.lr=3", "variants.a={train: {steps: 2}}", "train.lr=2")
    assert [(r.train.lr, r.train.steps) for r in file.variants.values()] == [(2, 2), (3, 1000)]


def test_variants_change_the_recipe_in_nested_or_dotted_keys() -> None:
    text = (
        GOOD
        + "train: {lr: 0.5, steps: 10}\n"
        + "variants:\n  plain:\n  nested: {train: {steps: 20}}\n  dotted: {train.steps: 30}\n"
    )
    file = read(text)
    assert [(r.train.lr, r.train.steps) for r in file.variants.values()] == [(0.5, 10), (0.5, 20), (0.5, 30)]
    assert file.baseline == "plain"
    assert read(text + "baseline: dotted\n").baseline == "dotted"
    assert read(text, "baseline=nested").baseline == "nested"


WORDS = {
    "scaled-dot": ("scaled-dot",) * 3,
    "linear": ("linear",) * 3,
    "{name: linear}": ("linear",) * 3,
    "{encoder: linear}": ("linear", "scaled-dot", "scaled-dot"),
    "{encoder: linear, decoder: synthesizer-random}": ("linear", "synthesizer-random", "scaled-dot"),
}


@pytest.mark.parametrize("text", WORDS)
def test_attention_is_a_word_for_all_places_or_a_word_for_each(text: str) -> None:
    roles = only(f"{GOOD}model: {{attention: {text}}}\n").model.attention
    assert (roles.encoder.name, roles.decoder.name, roles.cross.name) == WORDS[text]


def test_an_attention_setting_replaces_the_whole_of_the_one_before() -> None:
    text = (
        f"{GOOD}model: {{attention: {{encoder: linear, cross: dot}}}}\n"
        "variants:\n  a: {model.attention: {decoder: dot}}\n"
        "  b: {model: {attention: {decoder: dot}}}\n  c: {model.attention.decoder: dot}\n"
    )
    names = {
        name: [getattr(r.model.attention, role).name for role in ("encoder", "decoder", "cross")]
        for name, r in read(text).variants.items()
    }
    assert names["a"] == names["b"] == ["scaled-dot", "dot", "scaled-dot"]
    assert names["c"] == ["linear", "dot", "dot"]


def test_options_of_a_mechanism_get_the_types_of_its_code() -> None:
    place = "{name: synthesizer-random, trainable: false, attention_dropout: 1e-1}"
    recipe = only(f"{GOOD}model: {{attention: {{encoder: {place}}}}}\n")
    assert recipe.model.attention.encoder == AttentionConfig.model_validate(
        {"name": "synthesizer-random", "trainable": False, "attention_dropout": 0.1}
    )
    changed = only(f"{GOOD}model: {{attention: {{encoder: {place}}}}}\n", "model.attention.encoder.trainable=true")
    assert changed.model.attention.encoder.options() == {"trainable": True, "attention_dropout": 0.1}


def test_a_decoder_alone_takes_only_its_own_place_and_stack() -> None:
    text = "task: language-modeling\ndata: {corpus: wikitext-2}\n"
    recipe = only(text + "model: {attention: synthesizer-random, layers: 2}\n")
    assert recipe.model.shape == "decoder"
    assert recipe.model.layers == Layers(encoder=0, decoder=2)
    names = [getattr(recipe.model.attention, role).name for role in ("encoder", "decoder", "cross")]
    assert names == ["scaled-dot", "synthesizer-random", "scaled-dot"]


def test_what_follows_from_other_keys_is_derived_unless_it_is_set() -> None:
    file = read("task: language-modeling\ndata: {corpus: wikitext-2}\n")
    recipe, origins = file.variants["base"], file.origins["base"]
    assert (recipe.train.objective, recipe.eval.metrics) == ("causal", ("perplexity",))
    for key in ("model.shape", "train.objective", "eval.metrics", "model.layers.encoder"):
        assert origins[key] == "derived"
    assert only(GOOD + "tokenizer: {shared: false}\n").model.tie == "decoder"
    assert only(GOOD + "tokenizer: {shared: false}\nmodel: {tie: none}\n").model.tie == "none"
    paths = "task: translation\ndata: {train: [a, b], valid: [c, d]}\n"
    assert only(paths).eval.splits == ("valid",)
    assert only(paths.replace("}", ", test: e.jsonl}")).eval.splits == ("test",)


@pytest.mark.parametrize(
    ("data", "tokenize"),
    [
        ("corpus: tatoeba-enzh, source: en, target: zh", "zh"),
        ("corpus: tatoeba-enzh, source: zh, target: en", "13a"),
        ("corpus: tatoeba-enja, source: en, target: ja", "none"),
        ("corpus: multi30k, source: en, target: de", "13a"),
        ("train: [a, b], valid: [c, d], source: en, target: ja", "ja-mecab"),
        ("train: [a, b], valid: [c, d], target: zh-Hant", "zh"),
        ("train: [a, b], valid: [c, d], target: ko_KR", "ko-mecab"),
    ],
)
def test_the_tokenizer_of_bleu_follows_from_the_target_language(data: str, tokenize: str) -> None:
    text = f"task: translation\ndata: {{{data}}}\n"
    file = read(text)
    assert file.variants["base"].eval.tokenize == tokenize
    expected = "default" if tokenize == "13a" else "derived"
    assert file.origins["base"]["eval.tokenize"] == expected
    assert only(text + "eval: {tokenize: intl}\n").eval.tokenizers == ("intl",)
    assert only(text + "eval: {tokenize: [char, zh]}\n").eval.tokenizers == ("char", "zh")


def test_a_run_keeps_the_tokenizer_that_its_recipe_had(tmp_path: Path) -> None:
    """Earlier versions scored Chinese with 13a where the recipe was silent."""
    text = "task: translation\ndata: {corpus: tatoeba-enzh, source: en, target: zh}\n"
    for tokenize in ("13a", "[13a, zh]"):
        recipe = only(text + f"eval: {{tokenize: {tokenize}}}\n")
        path = tmp_path / "recipe.yaml"
        path.write_text(dump(recipe), encoding="utf-8")
        assert load_resolved(path) == recipe


def test_every_value_has_an_origin() -> None:
    text = GOOD + "model: {layers: 2}\nvariants:\n  a: {}\n  b: {model.attention: linear}\n"
    file = read(text, "train.lr=1")
    assert list(file.origins) == ["a", "b"]
    origins = file.origins["b"]
    assert origins["task"] == "r.yaml:1:7"
    assert origins["model.layers.encoder"] == origins["model.layers.decoder"] == "r.yaml:3:17"
    assert origins["model.attention.cross"] == "r.yaml:6:24"
    assert file.origins["a"]["model.attention.cross"] == "default"
    assert origins["train.lr"] == "command line"
    assert origins["train.steps"] == "default"


def test_extends_inherits_the_settings_and_the_variants() -> None:
    write(GOOD + "train: {lr: 0.5}\nvariants: {a: {}, b: {}}\nbaseline: b\n", "sub/base.yaml")
    child = load(write("extends: base.yaml\ntrain: {steps: 5}\n", "sub/child.yaml"))
    recipe = child.variants["a"]
    assert (list(child.variants), child.baseline) == (["a", "b"], "b")
    assert (recipe.train.lr, recipe.train.steps) == (0.5, 5)
    assert child.origins["a"]["train.lr"] == "sub/base.yaml:3:13"
    own = load(write("extends: base.yaml\nvariants: {c: {}, d: {}}\n", "sub/own.yaml"))
    assert (list(own.variants), own.baseline) == (["c", "d"], "c")
    chosen = load(write("extends: base.yaml\nbaseline: a\n", "sub/chosen.yaml"))
    assert chosen.baseline == "a"


def test_extends_chains_and_each_value_says_where_it_is_from() -> None:
    write(GOOD + "train: {lr: 0.5, steps: 1, warmup: 1}\nvariants: {a: {}, b: {}}\n", "one/r.yaml")
    write("extends: ../one/r.yaml\ntrain: {lr: 0.25, steps: 2}\nbaseline: b\n", "two/r.yaml")
    file = load(write("extends: two/r.yaml\ntrain: {lr: 0.125}\n", "three.yaml"))
    train, origins = file.variants["a"].train, file.origins["a"]
    assert (train.lr, train.steps, train.warmup, file.baseline) == (0.125, 2, 1, "b")
    assert [origins[f"train.{key}"] for key in ("lr", "steps", "warmup")] == [
        "three.yaml:2:13",
        "two/r.yaml:2:26",
        "two/../one/r.yaml:3:36",
    ]
    write("extends: two/r.yaml\ntrain: {lr: 0}\n", "four.yaml")
    write("extends: ../one/r.yaml\ntrain: {stps: 2}\n", "two/r.yaml")
    message = error_message("extends: four.yaml\n", kind=RecipeError).splitlines()
    assert [line.split(" ")[0] for line in message] == ["four.yaml:2:13:", "two/r.yaml:2:9:"]


def test_extends_takes_the_name_of_a_shipped_recipe_unless_a_file_has_it() -> None:
    child = load(write("extends: translation/norm\ntrain: {steps: 5}\n", "child.yaml"))
    shipped = load("translation/norm")
    assert list(child.variants) == list(shipped.variants)
    name = next(iter(child.variants))
    assert child.variants[name].data == shipped.variants[name].data
    assert child.variants[name].train.steps == 5
    write(GOOD, "quickstart")
    assert list(load(write("extends: quickstart\n", "mine.yaml")).variants) == ["base"]


def test_extends_names_what_is_missing_and_refuses_a_circle() -> None:
    write("extends: r.yaml\n", "b.yaml")
    message = error_message("task: dialogue\nextends: b.yaml\n", kind=RecipeError)
    assert message == (
        "b.yaml:1:10: extends: forms a cycle: 'r.yaml' extends 'b.yaml' extends 'r.yaml'; remove one `extends`"
    )
    message = error_message("extends: gone.yaml\n", kind=MissingInputError)
    assert message.startswith("r.yaml:1:10: extends: no recipe 'gone.yaml': no such file")
    message = error_message("extends: translation/mutli30k\n", kind=MissingInputError)
    assert message.endswith("did you mean translation/multi30k?")
    assert "must be a recipe file" in error_message("extends: [a]\n", kind=RecipeError)
    assert "is allowed only at the top" in error_message(GOOD, "extends=b.yaml")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("r.yaml", "r"),
        ("deep/er/r.yaml", "r"),
        ("recipes/translation/multi30k.yaml", "translation/multi30k"),
        ("recipes/old/recipes/a/b.yaml", "a/b"),
        ("a.b.yaml", "a.b"),
    ],
)
def test_the_name_is_the_path_below_recipes_or_the_stem(path: str, name: str) -> None:
    assert load(write(GOOD, path)).name == name
    assert name_of(Path(path).absolute()) == name


def test_the_name_does_not_depend_on_the_current_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    write(GOOD, "recipes/translation/r.yaml")
    monkeypatch.chdir("recipes/translation")
    assert load("r.yaml").name == "translation/r"


@pytest.mark.parametrize("path", ["...yaml", "-x.yaml", "a b.yaml", ".hidden.yaml", "\u202e.yaml"])
def test_a_file_that_cannot_name_a_run_folder_is_refused(path: str) -> None:
    with pytest.raises(RecipeError, match="cannot name a run folder; use at most 64 ASCII"):
        load(write(GOOD, path))


def test_a_recipe_is_found_by_path_or_by_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnkit.recipe.find.library", lambda: tmp_path / "shipped" / "recipes")
    write(GOOD, "shipped/recipes/quickstart.yaml")
    write(GOOD, "shipped/recipes/translation/multi30k.yaml")
    assert load("quickstart").name == "quickstart"
    assert load("translation/multi30k").name == "translation/multi30k"
    Path("quickstart").mkdir()
    assert resolve("quickstart").suffix == ".yaml"
    with pytest.raises(MissingInputError, match=r"no recipe 'quickstrt': .*; did you mean quicks"):
        load("quickstrt")
    with pytest.raises(MissingInputError, match=r"did you mean translation/multi30k\?"):
        load("multi30k")


def test_a_folder_is_no_recipe_and_its_recipes_are_named() -> None:
    """The message said only that there is no recipe '.'."""
    write(GOOD, "mt/b.yaml")
    write(GOOD, "mt/a.yaml")
    with pytest.raises(MissingInputError) as caught:
        load("mt")
    assert str(caught.value) == (
        "no recipe 'mt': it is a folder, and no shipped recipe has this name; did you mean mt/a.yaml or mt/b.yaml?"
    )
    Path("empty").mkdir()
    with pytest.raises(MissingInputError, match=r"it is a folder, .*; `attnkit recipe list`"):
        load("empty")
    with pytest.raises(MissingInputError, match=r"did you mean quickstart\?"):
        load("recipes/quickstart.yaml")
    with pytest.raises(MissingInputError, match=r"`attnkit recipe list` lists the shipped recipes"):
        load("zzz.yaml")
    write(GOOD, "own.yaml")
    assert load("own.yaml").path == Path("own.yaml")


@pytest.mark.parametrize("path", ["", ".", "a\0b", "x" * 5000, "\udcff\ud800", "/"])
def test_a_name_that_no_file_can_have_is_a_missing_input(path: str) -> None:
    with pytest.raises(MissingInputError):
        load(path)


def test_the_library_lies_in_the_package_or_in_a_checkout_beside_it() -> None:
    package = Path(attnkit.__file__).resolve().parent
    installed = "site-packages" in package.parts
    assert library() == (package / "_recipes" if installed else package.parent / "recipes")
    assert (library() / "quickstart.yaml").is_file()


OWN = "train: [a.en, a.de], valid: [b.en, b.de]"


@pytest.mark.parametrize(
    ("text", "overrides"),
    [
        (GOOD, ["data.train=[a.en, a.de]", "data.valid=[b.en, b.de]"]),
        (GOOD, ["data.valid=[b.en, b.de]", "data.train=[a.en, a.de]"]),
        (GOOD, ["data.corpus=null", "data.train=[a.en, a.de]", "data.valid=[b.en, b.de]"]),
        (GOOD.replace("}", ", size: 9}"), ["data.train=[a.en, a.de]", "data.valid=[b.en, b.de]"]),
        (GOOD + f"variants: {{base: {{data: {{{OWN}}}}}}}\n", []),
        (f"extends: parent.yaml\ndata: {{{OWN}}}\n", []),
    ],
)
def test_own_files_take_the_place_of_a_corpus_that_was_named_before(text: str, overrides: list[str]) -> None:
    write(GOOD, "parent.yaml")
    data = read(text, *overrides).variants["base"].data
    assert (data.corpus, data.size) == (None, None)
    assert data.train == ("a.en", "a.de")


@pytest.mark.parametrize(
    ("text", "override", "train"),
    [
        (f"task: translation\ndata: {{{OWN}}}\n", "data.corpus=toy-translation", None),
        (f"task: translation\ndata: {{{OWN}}}\n", "data.corpus=null", ("a.en", "a.de")),
        (GOOD, "data.train=null", None),
    ],
)
def test_a_corpus_takes_the_place_of_files(text: str, override: str, train: tuple[str, str] | None) -> None:
    data = read(text, override).variants["base"].data
    assert data.train == train
    assert (data.corpus is None) == (train is not None)
