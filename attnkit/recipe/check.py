"""What a recipe may not ask for although each of its values is valid alone.

Each rule is a generator over one recipe that yields the keys concerned, the one to blame first,
and the reason with a way out.  Nothing here reads data or imports torch.
"""

import re
from collections.abc import Iterator
from operator import attrgetter
from typing import Any

from attnkit.recipe import corpus_cards
from attnkit.recipe.build import POSITIONS, SHAPE_OF, STACKS, Built
from attnkit.recipe.contexts_config import ContextsConfig
from attnkit.recipe.data_rules import SPLITS, Fault, data_faults
from attnkit.recipe.metrics import METRICS, metrics_that_read
from attnkit.recipe.problems import Key, Position, Problems
from attnkit.recipe.schema import (
    AttentionConfig,
    NaiveBayesConfig,
    Recipe,
    TailrConfig,
    places_of,
)
from attnkit.recipe.settings import field_at
from attnkit.text import RESERVED, quoted

SHORTEST_CORRUPTED = 16
"""Least data.max_length for span corruption: a shorter source could grow by the sentinels."""
OF_RUNNING_TEXT = ("word-perplexity", "total-variation")
"""Metrics of whole texts, which no objective with noise predicts."""
TYPES_WITH = {
    "cell": ("recurrent",),
    "kernel": ("convolutional",),
    "ff": ("transformer",),
    "norm": ("transformer",),
    "activation": ("transformer",),
    "activation_dropout": ("transformer",),
    "order": ("n-gram",),
    **{f"naive_bayes.{name}": ("naive-bayes",) for name in NaiveBayesConfig.model_fields},
    "naive_bayes.residual": ("naive-bayes", "naive-bayes-attention"),
}
"""Keys of the model section that only some types of models read."""
_SPLIT = re.compile("[\\s\u2581\0\ud800-\udfff]")
"""What no piece may have: white space, its sign in pieces, and what tokenizers replace."""
LARGEST_TABLE = 16384
"""Most tokens of which all pairs are counted: a table of 1 GB."""


def check(built: Built, problems: Problems, start: Position) -> None:
    """Note everything that does not fit together; `start` is the place of defaults."""
    for fault in (fault for rule in RULES for fault in rule(built)):
        keys: list[Key] = [tuple(key.split(".")) for key in fault.keys]
        place, key = built.place(*keys) or (start, keys[0])
        problems.add(place, key, fault.text)


def _task(built: Built) -> Iterator[Fault]:
    recipe = built.recipe
    task, shape, objective = recipe.task, recipe.model.shape, recipe.train.objective
    pairs = task != "language-modeling"
    yield from _noise(recipe)
    if task == "language-modeling" and shape == "encoder-decoder" and not recipe.corrupts:
        text = "language-modeling has no source to encode; use `model.shape: decoder`"
        yield Fault(("model.shape", "task"), text)
    if task == "language-modeling" and objective == "seq2seq":
        text = "seq2seq needs pairs of texts; language-modeling uses `train.objective: causal`"
        yield Fault(("train.objective", "task"), text)
    if pairs and objective == "causal":
        text = f"causal is for language-modeling; {task} uses `train.objective: seq2seq`"
        yield Fault(("train.objective", "task"), text)
    if shape == "encoder" and task != "classification" and not recipe.masks:
        instead = "encoder-decoder or decoder" if pairs else "`train.objective: masked`"
        text = f"an encoder alone writes no text; {task} needs {instead}"
        yield Fault(("model.shape", "task"), text)
    if pairs and shape != "encoder-decoder" and not recipe.tokenizer.shared:
        text = f"one {shape} reads all text, so it needs one vocabulary; set it to true"
        yield Fault(("tokenizer.shared", "model.shape"), text)
    if task != "question-answering" and "context-found" in recipe.eval.metrics:
        text = "context-found is for question-answering, which chooses contexts; remove it"
        yield Fault(("eval.metrics", "task"), text)
    yield from _label_metrics(recipe)
    if task != "language-modeling":
        return
    if recipe.train.monitor not in ("loss", "accuracy"):
        text = "language-modeling decodes nothing to score; use `loss` or `accuracy`"
        yield Fault(("train.monitor", "task"), text)
    for metric in recipe.eval.metrics:
        if metric == "rouge" or METRICS[metric].reads != "probabilities":
            text = f"{metric} needs decoded text; language-modeling has perplexity and accuracy"
            yield Fault(("eval.metrics", "task"), text)
            return


def _noise(recipe: Recipe) -> Iterator[Fault]:
    """What the objectives need that restore a text with noise."""
    objective, model = recipe.train.objective, recipe.model
    if objective not in SHAPE_OF:
        return
    if recipe.task != "language-modeling":
        text = f"{objective} learns from running text; {recipe.task} uses seq2seq"
        yield Fault(("train.objective", "task"), text)
    elif model.shape != SHAPE_OF[objective]:
        why = "reads one text and writes another"
        why = "predicts tokens from both sides" if recipe.masks else why
        text = f"{objective} {why}: use `model.shape: {SHAPE_OF[objective]}`"
        yield Fault(("model.shape", "train.objective"), text)
    elif model.type != "transformer":
        yield Fault(("model.type", "train.objective"), f"{objective} needs a transformer")
    if recipe.corrupts and recipe.data.max_length < SHORTEST_CORRUPTED:
        text = f"span-corruption needs texts of {SHORTEST_CORRUPTED} tokens at least"
        yield Fault(("data.max_length", "train.objective"), text)
    if metric := next((n for n in OF_RUNNING_TEXT if n in recipe.eval.metrics), None):
        text = f"{metric} is of running text; use perplexity"
        yield Fault(("eval.metrics", "train.objective"), text)


def _lengths(built: Built) -> Iterator[Fault]:
    """What can be scored at several lengths; `capability` says which models reach them."""
    recipe = built.recipe
    if not recipe.eval.lengths:
        return
    if recipe.task == "recall":
        known, longest = corpus_cards.row_length(recipe.data.corpus), max(recipe.eval.lengths)
        if known is None:
            text = "needs a generated corpus, whose rows can have any length; remove it"
            yield Fault(("eval.lengths", "data.corpus"), text)
        elif not 2 <= min(recipe.eval.lengths) <= longest <= known.most:
            text = f"{recipe.data.corpus} has rows of 2 to {known.most:,} {known.unit}"
            yield Fault(("eval.lengths",), text)
    elif recipe.task != "language-modeling":
        text = f"does nothing with `task: {recipe.task}`; it is for language-modeling and recall"
        yield Fault(("eval.lengths", "task"), text)
    elif recipe.corrupts:
        text = "is for the objectives causal and masked; remove it"
        yield Fault(("eval.lengths", "train.objective"), text)
    elif "total-variation" in recipe.eval.metrics:
        text = "total-variation is of blocks of data.max_length; remove it or eval.lengths"
        yield Fault(("eval.metrics", "eval.lengths"), text)


def _label_metrics(recipe: Recipe) -> Iterator[Fault]:
    """Metrics of labels are for classification, which has no others of what a model writes."""
    classifies, known = recipe.task == "classification", metrics_that_read("labels")
    for key, names in (("eval.metrics", recipe.eval.metrics),
                       ("train.monitor", (recipe.train.monitor,))):  # fmt: skip
        for name in names:
            if name in known and not classifies:
                text = f"{name} is for classification; {recipe.task} chooses no labels"
            elif classifies and (name == "rouge" or (name in METRICS and METRICS[name].reads
                                 not in ("labels", "probabilities"))):  # fmt: skip
                text = f"{name} scores texts; classification has {', '.join(known)}"
            else:
                continue
            yield Fault((key, "task"), text)
            return


def _questions(built: Built) -> Iterator[Fault]:
    recipe = built.recipe
    if recipe.task != "question-answering":
        text = f"does nothing with `task: {recipe.task}`; it is for question-answering"
        for section, names in (
            ("data", ("gold", "other")),
            ("contexts", ContextsConfig.model_fields),
        ):
            for name in names:
                value = getattr(getattr(recipe, section), name)
                if value != field_at((section, name)).default:
                    yield Fault((f"{section}.{name}",), text)
        return
    left = 1 - recipe.data.gold
    if recipe.data.other > left + 1e-9:
        text = (
            f"data.gold {recipe.data.gold:g} and data.other {recipe.data.other:g} are more than "
            f"all rows; {left:g} is the most that this gold leaves to other"
        )
        yield Fault(("data.other", "data.gold"), text)
    for metric in recipe.eval.metrics:
        if metric in (*metrics_that_read("probabilities"), *metrics_that_read("labels")):
            text = f"{metric} is not measured of questions; use answer-match, answer-f1 or rouge"
            yield Fault(("eval.metrics", "task"), text)
            return
    for method in recipe.contexts.methods:
        if method in ("window", "retrieval") and recipe.model.shape == "encoder-decoder":
            text = f"{method} needs `model.shape: decoder`; an encoder reads one context at a time"
            yield Fault(("contexts.methods", "model.shape"), text)
            return


def _data(built: Built) -> Iterator[Fault]:
    data = built.recipe.data
    yield from data_faults(data, built.recipe.task)
    named = [split for split in SPLITS if getattr(data, split) is not None]
    for split in ("train", "valid"):
        if data.corpus is None and named and split not in named:
            text = f"data.{named[0]} needs data.{split} beside it; name its file"
            yield Fault((f"data.{named[0]}",), text)


def _model(built: Built) -> Iterator[Fault]:
    model, tokenizer = built.recipe.model, built.recipe.tokenizer
    if model.width % model.heads:
        most = min(model.width, 4 * model.heads)
        divisors = (n for n in range(1, most + 1) if model.width % n == 0)
        near = min(divisors, key=lambda n: (abs(n - model.heads), n))
        text = f"{model.heads} heads do not divide the width {model.width}; {near} would"
        yield Fault(("model.heads", "model.width"), text)
    elif model.positions == "rope" and model.width // model.heads % 2:
        wide = model.width // model.heads
        text = f"rope turns pairs, but heads are {wide} wide (width / heads); make that even"
        yield Fault(("model.positions", "model.heads", "model.width"), text)
    if model.positions == "sinusoidal" and model.width % 2:
        text = f"sinusoidal positions need an even width; {model.width + 1} would do"
        yield Fault(("model.width", "model.positions"), text)
    if model.tie == "all" and not tokenizer.shared and model.shape == "encoder-decoder":
        text = "two vocabularies cannot share one embedding; use `model.tie: decoder` or none"
        yield Fault(("model.tie", "tokenizer.shared"), text)
    kind = f"shape {model.shape}" if model.type == "transformer" else f"type {model.type}"
    for stack in ("encoder", "decoder"):
        layers = getattr(model.layers, stack)
        absent = model.counted or stack not in STACKS[model.shape]
        if absent and layers:
            text = f"a model of {kind} has no {stack}; remove it"
            yield Fault((f"model.layers.{stack}",), text)
        elif (
            not absent
            and not layers
            and (stack in (model.shape, "decoder") or model.type != "transformer")
        ):
            yield Fault((f"model.layers.{stack}",), "needs at least one layer; 1 is the least")
    for role in ("encoder", "decoder", "cross"):
        if role not in model.places and getattr(model.attention, role) != AttentionConfig():
            text = f"a model of {kind} has no {role} attention; remove it"
            yield Fault((f"model.attention.{role}",), text)


def _model_type(built: Built) -> Iterator[Fault]:
    """Keys that the model's type has no use for."""
    model = built.recipe.model
    for name, types in TYPES_WITH.items():
        key = f"model.{name}"
        default = field_at(("model", *name.split("."))).default
        if model.type not in types and attrgetter(name)(model) != default:
            text = f"does nothing with `model.type: {model.type}`; it is for {' and '.join(types)}"
            yield Fault((key, "model.type"), f"{text} models")
    if model.type == "transformer":
        return
    if places_of(model.type, model.shape) == ("cross",):
        if model.shape != "encoder-decoder":
            text = f"a {model.type} model is an encoder-decoder; for a decoder use `transformer`"
            yield Fault(("model.shape", "model.type"), text)
            return
    elif built.recipe.task != "language-modeling":
        text = f"{model.type} is a language model; use `task: language-modeling` or another type"
        yield Fault(("model.type", "task"), text)
        return
    if model.positions not in (allowed := POSITIONS[model.type]):
        text = f"a {model.type} model has {' or '.join(allowed)}, got {model.positions}; remove it"
        yield Fault(("model.positions", "model.type"), text)
    if model.type == "recurrent" and model.width % 2:
        text = f"each direction of the encoder has half the width; {model.width + 1} is even"
        yield Fault(("model.width", "model.type"), text)


def _naive_bayes(built: Built) -> Iterator[Fault]:
    """What models of naive Bayes, and counted ones, need."""
    model, how = built.recipe.model, built.recipe.model.naive_bayes
    if model.type == "naive-bayes-attention" and model.tie != "none":
        text = "naive-bayes-attention has a table of its own for the output; use none or remove it"
        yield Fault(("model.tie", "model.type"), text)
    pairs = model.type == "naive-bayes" or (model.type == "n-gram" and model.order > 1)
    size = built.recipe.tokenizer.size
    if pairs and size > LARGEST_TABLE:
        text = (
            f"{model.type} keeps a table of all pairs of tokens, {size**2 * 4 / 1e9:.1f} GB; "
            f"{LARGEST_TABLE} is the most"
        )
        yield Fault(("tokenizer.size", "model.type"), text)
    for key, needed, given in (
        ("weights", "pool: weighted", how.pool == "weighted"),
        ("decay", "weights: recency", how.weights == "recency"),
        ("normalize", "estimate: skip-gram", how.estimate == "skip-gram"),
    ):
        default = NaiveBayesConfig.model_fields[key].default
        if model.type == "naive-bayes" and not given and getattr(how, key) != default:
            text = f"does nothing without `model.naive_bayes.{needed}`; set that, or remove it"
            yield Fault((f"model.naive_bayes.{key}",), text)


def _train(built: Built) -> Iterator[Fault]:
    train = built.recipe.train
    if train.init and built.recipe.model.counted:
        text = f"a {built.recipe.model.type} model is counted; it starts from no weights"
        yield Fault(("train.init", "model.type"), text)
    if train.patience and not train.valid_every:
        text = "counts validations, but valid_every is 0 (only at the end); set train.valid_every"
        yield Fault(("train.patience", "train.valid_every"), text)
    if train.ema and train.average > 1:
        text = "ema and average both average weights; keep one of them"
        yield Fault(("train.ema", "train.average"), text)
    if train.average > 1 and not train.valid_every:
        text = "averages weights of validations, but valid_every is 0; set train.valid_every"
        yield Fault(("train.average", "train.valid_every"), text)
    if train.min_lr > 0 and train.schedule not in ("cosine", "linear"):
        text = f"does nothing with the schedule {train.schedule}; it is for cosine and linear"
        yield Fault(("train.min_lr", "train.schedule"), text)
    elif train.min_lr > train.lr:
        yield Fault(("train.min_lr", "train.lr"), f"is above the peak train.lr {train.lr:g}")
    if train.loss != "tailr":
        for name, field in TailrConfig.model_fields.items():
            if getattr(train.tailr, name) != field.default:
                text = f"does nothing with the loss {train.loss}; set train.loss=tailr or remove it"
                yield Fault((f"train.tailr.{name}", "train.loss"), text)
    if train.schedule in ("inverse-sqrt", "noam") and not train.warmup:
        text = f"{train.schedule} falls from the end of the warm-up, so it needs at least 1"
        yield Fault(("train.warmup", "train.schedule"), text)


def _tokenizer(built: Built) -> Iterator[Fault]:
    """Special tokens that cannot be pieces of their own, and no room for any other piece."""
    spec = built.recipe.tokenizer
    if spec.model is not None:
        return
    for piece in spec.special:
        if _SPLIT.search(piece) or not piece:
            yield Fault(("tokenizer.special",), f"{quoted(piece)} must be text without white space")
    least = len(RESERVED) + len(spec.special) + 1
    if spec.size < least:
        text = f"{spec.size} is too small: reserved and special tokens and one piece make {least}"
        yield Fault(("tokenizer.size", "tokenizer.special"), text)


def _lists(built: Built) -> Iterator[Fault]:
    for key in ("train.seeds", "eval.metrics", "eval.splits", "eval.lengths", "contexts.counts",
                "contexts.methods", "tokenizer.special", "eval.tokenize"):  # fmt: skip
        values: tuple[Any, ...] | str = attrgetter(key)(built.recipe)
        if isinstance(values, str):
            continue
        twice = next((v for i, v in enumerate(values) if v in values[:i]), None)
        if twice is not None:
            yield Fault((key,), f"names {twice} twice; name each once")


def _search(built: Built) -> Iterator[Fault]:
    search = built.recipe.search
    if search.min_length >= search.max_length:
        text = f"must be below search.max_length {search.max_length}, which counts the end token"
        yield Fault(("search.min_length", "search.max_length"), text)
    most = {"beam": search.beam, "greedy": 1}.get(search.method)
    if most is not None and search.n_best > most:
        text = f"{search.method} search finds {most} at most; use {most} or a wider search.beam"
        yield Fault(("search.n_best", "search.beam", "search.method"), text)
    for name in ("temperature", "top_k", "top_p"):
        default = field_at(("search", name)).default
        if search.method != "sample" and getattr(search, name) != default:
            text = f"does nothing with `search.method: {search.method}`; use sample or remove it"
            yield Fault((f"search.{name}", "search.method"), text)


def _vectors(built: Built) -> Iterator[Fault]:
    recipe = built.recipe
    if recipe.eval.vectors is not None:
        return
    for key, names in (
        ("eval.metrics", recipe.eval.metrics),
        ("train.monitor", (recipe.train.monitor,)),
    ):
        for name in names:
            if name in METRICS and METRICS[name].family == "embedding":
                text = f"{name} needs word vectors; name their file by eval.vectors"
                yield Fault((key,), text)
                return


def _total_variation(built: Built) -> Iterator[Fault]:
    recipe, metric = built.recipe, "total-variation"
    if metric not in recipe.eval.metrics:
        return
    corpus, length = recipe.data.corpus, recipe.data.max_length
    line = corpus_cards.load(corpus).line_tokens if corpus in corpus_cards.names() else None
    if line is None:
        text = f"{metric} needs a corpus whose source is known: toy-topics or toy-chains; remove it"
        yield Fault(("eval.metrics", "data.corpus"), text)
        return
    if recipe.tokenizer.type != "word":
        text = f"{metric} compares distributions over words; set tokenizer.type=word"
        yield Fault(("tokenizer.type", "eval.metrics"), text)
    if line % length:
        near = max(size for size in range(1, length) if line % size == 0)
        text = f"{metric} needs blocks that divide a line of {line} tokens; {near} does"
        yield Fault(("data.max_length", "eval.metrics"), text)


def _splits(built: Built) -> Iterator[Fault]:
    data, asked = built.recipe.data, built.recipe.eval.splits
    if data.corpus in corpus_cards.names():
        card = corpus_cards.load(str(data.corpus))
        for split in asked:
            if split not in card.splits:
                text = f"{card.name} has no split {quoted(split)}; it has {', '.join(card.splits)}"
                yield Fault(("eval.splits",), text)
    elif data.train is not None and data.valid is not None:
        for split in asked:
            if split not in SPLITS:
                text = f"names {quoted(split)}; it can be train, valid or test"
                yield Fault(("eval.splits",), text)
            elif getattr(data, split) is None:
                yield Fault(("eval.splits",), f"names {split}, but there is no data.{split}")


RULES = (
    _task, _questions, _data, _tokenizer, _model, _model_type, _naive_bayes, _train, _lists,
    _search, _vectors, _total_variation, _lengths, _splits,
)  # fmt: skip
"""Rules for one recipe, in the order of its sections."""
