"""Constraints between the keys of a recipe, which types cannot express.

No data is read: a corpus is represented by its card, files by their names.  Nothing here imports torch.
"""

from collections.abc import Iterator
from operator import attrgetter

from attnkit.recipe import corpus_cards
from attnkit.recipe.build import POSITIONS, SHAPE_OF, STACKS
from attnkit.recipe.data_rules import data_issues, split_issues
from attnkit.recipe.issues import Issue
from attnkit.recipe.metrics import METRICS, MONITORS, ROUGE, metric_refusal, metrics_of, metrics_of_answers
from attnkit.recipe.schema import AttentionConfig, Recipe
from attnkit.recipe.settings import DEFAULTS, ONLY_WITH
from attnkit.text import RESERVED

MIN_CORRUPTED_LENGTH = 16
"""Minimum data.max_length for span corruption: the sentinels could make a shorter source longer."""
RUNNING_TEXT_METRICS = ("word-perplexity", "total-variation")
"""Metrics of whole texts, which masked and span-corruption models do not predict."""
MAX_SUGGESTED_HEADS = 4096
"""Maximum number of heads that a message suggests; larger divisors of the width are not searched."""
MAX_TABLE = 16384
"""Maximum number of tokens for a table of all pairs of tokens (1 GB)."""


def issues_of(recipe: Recipe) -> Iterator[Issue]:
    """Yield all conflicts between keys, except those of attention (`capability`)."""
    yield from _only_with(recipe)
    yield from data_issues(recipe.data, recipe.task)
    yield from split_issues(recipe.data, recipe.eval.splits)
    yield from _model(recipe)
    yield from _training(recipe)
    yield from _scoring(recipe)
    yield from _stacks(recipe)
    yield from _metrics(recipe)
    yield from _lengths(recipe)
    yield from _total_variation(recipe)


def _only_with(recipe: Recipe) -> Iterator[Issue]:
    """Yield keys that have no effect with the value of another key, according to the tags of their types."""
    for key, tags in ONLY_WITH.items():
        if attrgetter(key)(recipe) != DEFAULTS[key]:
            values = {tag.key: attrgetter(tag.key)(recipe) for tag in tags}
            if tag := next((tag for tag in tags if values[tag.key] not in tag.values), None):
                text = f"has no effect with `{tag.key}: {values[tag.key]}`; it is for "
                yield text + " and ".join(tag.values), key, tag.key


def _model(recipe: Recipe) -> Iterator[Issue]:
    model, task, size = recipe.model, recipe.task, recipe.tokenizer.size
    type_, shape, width, heads = model.type, model.shape, model.width, model.heads
    pairs, separate = task != "language-modeling", not recipe.tokenizer.shared
    cross_only = type_ in ("recurrent", "convolutional")
    counted = type_ in POSITIONS and not cross_only
    divisors = [n for n in range(1, min(width, 4 * heads, MAX_SUGGESTED_HEADS) + 1) if width % n == 0]
    nearest = min(divisors, key=lambda n: (abs(n - heads), n))
    positions = POSITIONS.get(type_, (model.positions,))
    fits = not (cross_only and shape != "encoder-decoder") and not (counted and pairs)
    table = type_ == "naive-bayes" or (type_ == "n-gram" and model.order > 1)
    min_size = len(RESERVED) + len(recipe.tokenizer.special) + 1
    if cross_only and shape != "encoder-decoder":
        yield f"a {type_} model is an encoder-decoder; for a decoder use `transformer`", "model.shape", "model.type"
    if counted and pairs:
        yield f"{type_} is a language model; use `task: language-modeling` or another type", "model.type", "task"
    if not pairs and shape == "encoder-decoder" and not recipe.corrupts:
        yield "language-modeling has no source to encode; use `model.shape: decoder`", "model.shape", "task"
    if task == "tagging" and shape == "encoder-decoder":
        yield "tagging predicts positions of its source; use `model.shape: decoder` or encoder", "model.shape", "task"
    if shape == "encoder" and task not in ("classification", "tagging") and not recipe.masks:
        text = f"an encoder writes no text; {task} needs " + (
            "encoder-decoder or decoder" if pairs else "`train.objective: masked`"
        )
        yield text, "model.shape", "task"
    if pairs and shape != "encoder-decoder" and separate:
        text = f"`model.shape: {shape}` reads source and target with one vocabulary; set tokenizer.shared=true"
        yield text, "tokenizer.shared", "model.shape"
    if recipe.tokenizer.model is None and size < min_size:
        text = f"size {size} is too small for reserved and special tokens and one piece; use at least {min_size}"
        yield text, "tokenizer.size", "tokenizer.special"
    if width % heads:
        text = f"width {width} is not divisible by {heads} heads; use model.heads={nearest}"
        yield text, "model.heads", "model.width"
    if not width % heads and model.positions == "rope" and width // heads % 2:
        text = f"rope needs an even width / heads, got {width // heads}"
        yield text, "model.positions", "model.heads", "model.width"
    if model.positions == "sinusoidal" and width % 2:
        yield f"sinusoidal positions need an even width; use model.width={width + 1}", "model.width", "model.positions"
    if fits and model.positions not in positions:
        text = f"must be {' or '.join(positions)} for a {type_} model, got {model.positions}; remove it"
        yield text, "model.positions", "model.type"
    if model.tie == "all" and separate and shape == "encoder-decoder":
        text = "two vocabularies cannot share one embedding; use `model.tie: decoder` or none"
        yield text, "model.tie", "tokenizer.shared"
    if fits and type_ == "recurrent" and width % 2:
        yield (
            f"each direction of the encoder has half the width; use model.width={width + 1}",
            "model.width",
            "model.type",
        )
    if type_ == "naive-bayes-attention" and model.tie != "none":
        yield "naive-bayes-attention has a separate output table; use model.tie=none", "model.tie", "model.type"
    if table and size > MAX_TABLE:
        text = f"{type_} stores all pairs of tokens, {size**2 * 4 / 1e9:.1f} GB; use at most {MAX_TABLE}"
        yield text, "tokenizer.size", "model.type"
    if recipe.train.init and model.count_based:
        yield f"a {type_} model starts from counts, not from weights; remove train.init", "train.init", "model.type"


def _training(recipe: Recipe) -> Iterator[Issue]:
    train, task, model = recipe.train, recipe.task, recipe.model
    objective, noise = train.objective, train.objective in SHAPE_OF
    text_only = task == "language-modeling"
    shape = SHAPE_OF.get(objective, model.shape)
    why = "predicts tokens from both sides" if recipe.masks else "reads one text and writes another"
    if text_only and objective == "seq2seq":
        text = "seq2seq needs pairs of texts; language-modeling uses `train.objective: causal`"
        yield text, "train.objective", "task"
    if not text_only and objective == "causal":
        yield f"causal is for language-modeling; {task} uses `train.objective: seq2seq`", "train.objective", "task"
    if noise and not text_only:
        yield f"{objective} learns from running text; {task} uses seq2seq", "train.objective", "task"
    if noise and text_only and model.shape != shape:
        yield f"{objective} {why}: use `model.shape: {shape}`", "model.shape", "train.objective"
    if noise and text_only and model.shape == shape and model.type != "transformer":
        yield f"{objective} needs a transformer", "model.type", "train.objective"
    if recipe.corrupts and recipe.data.max_length < MIN_CORRUPTED_LENGTH:
        text = f"span-corruption needs texts of at least {MIN_CORRUPTED_LENGTH} tokens"
        yield text, "data.max_length", "train.objective"
    if train.patience and not train.valid_every:
        text = "counts validations, but valid_every is 0 (only at the end); set train.valid_every"
        yield text, "train.patience", "train.valid_every"
    if train.ema and train.average > 1:
        yield "ema and average both average weights; keep one of them", "train.ema", "train.average"
    if train.average > 1 and not train.valid_every:
        text = "averages the weights at validations, but valid_every is 0; set train.valid_every"
        yield text, "train.average", "train.valid_every"
    if train.schedule in ("cosine", "linear") and train.min_lr > train.lr:
        yield f"must be at most the peak train.lr {train.lr:g}", "train.min_lr", "train.lr"
    if train.schedule in ("inverse-sqrt", "noam") and not train.warmup:
        text = f"{train.schedule} decays from the end of the warm-up; set at least train.warmup=1"
        yield text, "train.warmup", "train.schedule"


def _scoring(recipe: Recipe) -> Iterator[Issue]:
    (key, misfit), metrics, task = recipe.search.misfit, recipe.eval.metrics, recipe.task
    gold, other = recipe.data.gold, recipe.data.other
    running = [name for name in RUNNING_TEXT_METRICS if name in metrics]
    windows = [name for name in recipe.contexts.methods if name in ("window", "retrieval")]
    encodes, questions = recipe.model.shape == "encoder-decoder", task == "question-answering"
    if running and recipe.train.objective in SHAPE_OF:
        yield f"{running[0]} is a metric of running text; use perplexity", "eval.metrics", "train.objective"
    if questions and other > 1 - gold + 1e-9:
        text = (
            f"data.gold {gold:g} and data.other {other:g} add up to more than 1; set data.other to at "
            f"most {1 - gold:g}"
        )
        yield text, "data.other", "data.gold"
    if questions and encodes and windows:
        text = f"{windows[0]} needs `model.shape: decoder`; an encoder reads one context at a time"
        yield text, "contexts.methods", "model.shape"
    if key:
        yield misfit, f"search.{key}", "search.beam", "search.method"


def _stacks(recipe: Recipe) -> Iterator[Issue]:
    """Yield layers and mechanisms of parts that the model lacks, and required parts without layers."""
    model = recipe.model
    kind = f"shape {model.shape}" if model.type == "transformer" else f"type {model.type}"
    for stack in ("encoder", "decoder"):
        layers = getattr(model.layers, stack)
        absent = model.count_based or stack not in STACKS[model.shape]
        optional = stack == "encoder" != model.shape and model.type == "transformer"
        if absent and layers:
            yield f"a model of {kind} has no {stack}; remove it", f"model.layers.{stack}"
        elif not absent and not layers and not optional:
            yield "must be at least 1", f"model.layers.{stack}"
    for role in ("encoder", "decoder", "cross"):
        if role not in model.places and getattr(model.attention, role) != AttentionConfig():
            text = f"a model of {kind} has no {role} attention; remove it"
            yield text, f"model.attention.{role}"


def _metrics(recipe: Recipe) -> Iterator[Issue]:
    """Yield metrics, including the monitored one, that do not fit what models of the task produce."""
    task, allowed = recipe.task, metrics_of(recipe.task)
    if task == "question-answering":  # scores the answers, not the pairs used in training
        allowed = metrics_of_answers()
    monitors = [name for name in MONITORS if name in ("loss", "accuracy", *allowed)]
    for key, names, known in (
        ("eval.metrics", recipe.eval.metrics, allowed),
        ("train.monitor", (recipe.train.monitor,), monitors),
    ):
        expanded = [ROUGE[0] if name == "rouge" else name for name in names]
        if unsupported := [name for name in expanded if name not in known]:
            yield metric_refusal(unsupported[0], task, known), key, "task"
        vectors = [n for n in expanded if n in METRICS and METRICS[n].family == "embedding"]
        if vectors and recipe.eval.vectors is None:
            yield f"{vectors[0]} needs word vectors; set eval.vectors to their file", key


def _total_variation(recipe: Recipe) -> Iterator[Issue]:
    metric = "total-variation"
    if metric not in recipe.eval.metrics:
        return
    corpus, length = recipe.data.corpus, recipe.data.max_length
    line = corpus_cards.load(corpus).line_tokens if corpus in corpus_cards.names() else None
    if line is None:
        text = f"{metric} needs a corpus with a known source, toy-topics or toy-chains; remove the metric"
        yield text, "eval.metrics", "data.corpus"
        return
    if recipe.tokenizer.type != "word":
        text = f"{metric} compares distributions over words; set tokenizer.type=word"
        yield text, "tokenizer.type", "eval.metrics"
    if line % length:
        nearest = max(size for size in range(1, length) if line % size == 0)
        text = f"{metric} needs blocks that divide a line of {line} tokens; use data.max_length={nearest}"
        yield text, "data.max_length", "eval.metrics"


def _lengths(recipe: Recipe) -> Iterator[Issue]:
    """Yield conflicts of `eval.lengths`; `capability` checks which models reach these lengths."""
    if not recipe.eval.lengths:
        return
    if recipe.task in ("recall", "tagging"):
        row_length, longest = corpus_cards.row_length(recipe.data.corpus), max(recipe.eval.lengths)
        if row_length is None:
            text = "needs a generated corpus, whose rows can have any length; remove it"
            yield text, "eval.lengths", "data.corpus"
        elif not 2 <= min(recipe.eval.lengths) <= longest <= row_length.most:
            text = f"{recipe.data.corpus} has rows of 2 to {row_length.most:,} {row_length.unit}"
            yield text, "eval.lengths"
    elif recipe.corrupts:
        text = "is for the objectives causal and masked; remove it"
        yield text, "eval.lengths", "train.objective"
    elif "total-variation" in recipe.eval.metrics:
        text = "total-variation scores blocks of data.max_length; remove total-variation or eval.lengths"
        yield text, "eval.metrics", "eval.lengths"
