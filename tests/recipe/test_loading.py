"""Tests of loading recipes: types, overrides, variants, parents, origins of values, names and paths."""

from pathlib import Path

import pytest
from helpers.recipe_texts import GOOD, error_message, read, write

import attnkit
from attnkit.errors import MissingInputError, RecipeError
from attnkit.recipe import Recipe, dump, library, load, load_resolved, resolve
from attnkit.recipe.find import name_of
from attnkit.recipe.schema import AttentionConfig, Layers


def base(text: str, *overrides: str) -> Recipe:
    """Return the only variant of a recipe."""
    return read(text, *overrides).variants["base"]


def attention_of(recipe: Recipe) -> tuple[str, str, str]:
    roles = recipe.model.attention
    return roles.encoder.name, roles.decoder.name, roles.cross.name


def test_minimal_recipe_has_all_defaults_and_one_variant() -> None:
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
def test_schema_decides_the_type_of_a_value(section: str, key: str, text: str, value: object) -> None:
    found = getattr(getattr(base(f"{GOOD}{section}.{key}: {text}\n"), section), key)
    assert found == value
    assert type(found) is type(value)


def test_languages_no_and_on_stay_text() -> None:
    data = base("task: translation\ndata: {train: [a, b], valid: [c, d], source: no, target: on}\n").data
    assert (data.source, data.target) == ("no", "on")


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
    assert getattr(getattr(base(GOOD, override), section), name) == value


@pytest.mark.parametrize("override", ["train=null", "data.split=", "data={split: null}"])
def test_override_without_effect_raises(override: str) -> None:
    expected = "command line: .*: must be a mapping of keys, such as `.*`, got (null|nothing)$"
    with pytest.raises(RecipeError, match=expected):
        read(GOOD, override)


def test_last_override_wins_and_overrides_win_over_variants() -> None:
    file = read(GOOD + "variants:\n  a: {train.lr: 1}\n  b: {}\n", "train.lr=2", "train.lr=3")
    assert [recipe.train.lr for recipe in file.variants.values()] == [3, 3]
    assert file.origins["a"]["train.lr"] == "command line"


def test_override_of_one_variant_wins_in_that_variant_only() -> None:
    text = GOOD + "variants:\n  a: {}\n  a.b: {}\n"
    file = read(text, "variants.a.b.train.lr=3", "variants.a={train: {steps: 2}}", "train.lr=2")
    assert [(r.train.lr, r.train.steps) for r in file.variants.values()] == [(2, 2), (3, 1000)]


def test_variants_change_the_recipe_in_nested_or_dotted_keys() -> None:
    variants = "variants:\n  plain:\n  nested: {train: {steps: 20}}\n  dotted: {train.steps: 30}\n"
    text = f"{GOOD}train: {{lr: 0.5, steps: 10}}\n{variants}"
    file = read(text)
    assert [(r.train.lr, r.train.steps) for r in file.variants.values()] == [(0.5, 10), (0.5, 20), (0.5, 30)]
    assert file.baseline == "plain"
    assert read(text + "baseline: dotted\n").baseline == "dotted"
    assert read(text, "baseline=nested").baseline == "nested"


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("scaled-dot", ("scaled-dot",) * 3),
        ("linear", ("linear",) * 3),
        ("{name: linear}", ("linear",) * 3),
        ("{encoder: linear}", ("linear", "scaled-dot", "scaled-dot")),
        ("{encoder: linear, decoder: synthesizer-random}", ("linear", "synthesizer-random", "scaled-dot")),
    ],
)
def test_attention_is_one_name_for_all_places_or_one_for_each(text: str, names: tuple[str, str, str]) -> None:
    assert attention_of(base(f"{GOOD}model: {{attention: {text}}}\n")) == names


def test_attention_setting_replaces_the_whole_previous_setting() -> None:
    text = (
        f"{GOOD}model: {{attention: {{encoder: linear, cross: dot}}}}\n"
        "variants:\n  a: {model.attention: {decoder: dot}}\n"
        "  b: {model: {attention: {decoder: dot}}}\n  c: {model.attention.decoder: dot}\n"
    )
    names = {name: attention_of(recipe) for name, recipe in read(text).variants.items()}
    assert names["a"] == names["b"] == ("scaled-dot", "dot", "scaled-dot")
    assert names["c"] == ("linear", "dot", "dot")


def test_options_of_a_mechanism_get_the_types_of_its_code() -> None:
    place = "{name: synthesizer-random, trainable: false, attention_dropout: 1e-1}"
    text = f"{GOOD}model: {{attention: {{encoder: {place}}}}}\n"
    expected = {"name": "synthesizer-random", "trainable": False, "attention_dropout": 0.1}
    assert base(text).model.attention.encoder == AttentionConfig.model_validate(expected)
    changed = base(text, "model.attention.encoder.trainable=true")
    assert changed.model.attention.encoder.options() == {"trainable": True, "attention_dropout": 0.1}


LM = "task: language-modeling\ndata: {corpus: wikitext-2}\n"


def test_decoder_only_model_has_only_decoder_attention_and_layers() -> None:
    recipe = base(LM + "model: {attention: synthesizer-random, layers: 2}\n")
    assert recipe.model.shape == "decoder"
    assert recipe.model.layers == Layers(encoder=0, decoder=2)
    assert attention_of(recipe) == ("scaled-dot", "synthesizer-random", "scaled-dot")


def test_values_that_depend_on_other_keys_are_derived_unless_set() -> None:
    file = read(LM)
    recipe, origins = file.variants["base"], file.origins["base"]
    assert (recipe.train.objective, recipe.eval.metrics) == ("causal", ("perplexity",))
    for key in ("model.shape", "train.objective", "eval.metrics", "model.layers.encoder"):
        assert origins[key] == "derived"
    assert base(GOOD + "tokenizer: {shared: false}\n").model.tie == "decoder"
    assert base(GOOD + "tokenizer: {shared: false}\nmodel: {tie: none}\n").model.tie == "none"
    paths = "task: translation\ndata: {train: [a, b], valid: [c, d]}\n"
    assert base(paths).eval.splits == ("valid",)
    assert base(paths.replace("}", ", test: e.jsonl}")).eval.splits == ("test",)


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
def test_bleu_tokenizer_depends_on_the_target_language(data: str, tokenize: str) -> None:
    text = f"task: translation\ndata: {{{data}}}\n"
    file = read(text)
    assert file.variants["base"].eval.tokenize == tokenize
    assert file.origins["base"]["eval.tokenize"] == ("default" if tokenize == "13a" else "derived")
    assert base(text + "eval: {tokenize: intl}\n").eval.tokenizers == ("intl",)
    assert base(text + "eval: {tokenize: [char, zh]}\n").eval.tokenizers == ("char", "zh")


@pytest.mark.parametrize("tokenize", ["13a", "[13a, zh]"])
def test_run_keeps_the_bleu_tokenizer_of_its_recipe(tokenize: str) -> None:
    """Earlier versions scored Chinese with 13a if the recipe set no tokenizer."""
    text = "task: translation\ndata: {corpus: tatoeba-enzh, source: en, target: zh}\n"
    recipe = base(text + f"eval: {{tokenize: {tokenize}}}\n")
    assert load_resolved(write(dump(recipe), "recipe.yaml")) == recipe


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


def test_extends_forms_chains_and_each_value_has_its_origin() -> None:
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


def test_extends_finds_a_shipped_recipe_unless_a_file_has_its_name() -> None:
    child = load(write("extends: translation/norm\ntrain: {steps: 5}\n", "child.yaml")).variants
    shipped = load("translation/norm").variants
    assert list(child) == list(shipped)
    name = next(iter(child))
    assert child[name].data == shipped[name].data
    assert child[name].train.steps == 5
    write(GOOD, "quickstart")
    assert list(load(write("extends: quickstart\n", "mine.yaml")).variants) == ["base"]


def test_extends_refuses_missing_recipes_and_cycles() -> None:
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
def test_name_is_the_path_below_recipes_or_the_stem(path: str, name: str) -> None:
    assert load(write(GOOD, path)).name == name
    assert name_of(Path(path).absolute()) == name


def test_name_does_not_depend_on_the_working_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    write(GOOD, "recipes/translation/r.yaml")
    monkeypatch.chdir("recipes/translation")
    assert load("r.yaml").name == "translation/r"


@pytest.mark.parametrize("path", ["...yaml", "-x.yaml", "a b.yaml", ".hidden.yaml", "\u202e.yaml"])
def test_file_name_that_cannot_name_a_run_folder_raises(path: str) -> None:
    with pytest.raises(RecipeError, match="cannot name a run folder; use at most 64 ASCII"):
        load(write(GOOD, path))


def test_recipe_is_found_by_path_or_by_shipped_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("mt", r"^no recipe 'mt': it is a folder, and no shipped .*; did you mean mt/a\.yaml or mt/b\.yaml\?$"),
        ("empty", "it is a folder, .*; `attnkit recipe list`"),
        ("recipes/quickstart.yaml", r"did you mean quickstart\?"),
        ("zzz.yaml", "`attnkit recipe list` lists the shipped recipes"),
        *((path, "no recipe '") for path in ("", ".", "a\0b", "x" * 5000, "\udcff\ud800", "/")),
    ],
)
def test_path_without_a_recipe_raises(path: str, message: str) -> None:
    write(GOOD, "mt/b.yaml")
    write(GOOD, "mt/a.yaml")
    Path("empty").mkdir()
    with pytest.raises(MissingInputError, match=message):
        load(path)


def test_library_is_in_the_package_or_in_a_checkout_beside_it() -> None:
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
def test_own_files_replace_a_corpus_that_was_set_before(text: str, overrides: list[str]) -> None:
    write(GOOD, "parent.yaml")
    data = base(text, *overrides).data
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
def test_corpus_replaces_files_that_were_set_before(text: str, override: str, train: tuple[str, str] | None) -> None:
    data = base(text, override).data
    assert data.train == train
    assert (data.corpus is None) == (train is not None)
