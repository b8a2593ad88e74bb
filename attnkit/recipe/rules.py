"""What a recipe may not ask for although each of its values is valid alone.

What a type cannot say: one generator a section, which yields each issue with the keys concerned,
the one to blame first.  No data is read: a corpus is known by its
card, files by their names.  Nothing here imports torch.
"""

from collections.abc import Callable, Iterator
from operator import attrgetter

from attnkit.recipe import corpus_cards
from attnkit.recipe.build import POSITIONS, SHAPE_OF, STACKS
from attnkit.recipe.data_rules import HUGGING_FACE, SPLITS, data_issues, splits_at_hand
from attnkit.recipe.issues import Issue
from attnkit.recipe.metrics import METRICS, metrics_that_read
from attnkit.recipe.schema import AttentionConfig, Recipe
from attnkit.recipe.settings import DEFAULTS, ONLY_WITH
from attnkit.text import RESERVED, quoted

SHORTEST_CORRUPTED = 16
"""Least data.max_length for span corruption: a shorter source could grow by the sentinels."""
OF_RUNNING_TEXT = ("word-perplexity", "total-variation")
"""Metrics of whole texts, which no objective with noise predicts."""
OF_POSITIONS = ("balanced-accuracy",)
"""Metrics of marked positions."""
LARGEST_TABLE = 16384
"""Most tokens of which all pairs are counted: a table of 1 GB."""


def issues_of(recipe: Recipe) -> Iterator[Issue]:
    """Everything that does not fit together, but for attention (`capability`)."""
    for rule in RULES:
        yield from rule(recipe)


def _only_with(recipe: Recipe) -> Iterator[Issue]:
    """Keys that do nothing with what another key says, which their types know."""
    for key, tags in ONLY_WITH.items():
        if attrgetter(key)(recipe) != DEFAULTS[key]:
            values = {tag.key: attrgetter(tag.key)(recipe) for tag in tags}
            if tag := next((tag for tag in tags if values[tag.key] not in tag.values), None):
                text = f"does nothing with `{tag.key}: {values[tag.key]}`; it is for "
                yield text + " and ".join(tag.values), key, tag.key


def _task(recipe: Recipe) -> Iterator[Issue]:
    task, shape, objective = recipe.task, recipe.model.shape, recipe.train.objective
    pairs = task != "language-modeling"
    if not pairs and shape == "encoder-decoder" and not recipe.corrupts:
        text = "language-modeling has no source to encode; use `model.shape: decoder`"
        yield text, "model.shape", "task"
    if not pairs and objective == "seq2seq":
        text = "seq2seq needs pairs of texts; language-modeling uses `train.objective: causal`"
        yield text, "train.objective", "task"
    if pairs and objective == "causal":
        text = f"causal is for language-modeling; {task} uses `train.objective: seq2seq`"
        yield text, "train.objective", "task"
    if recipe.task == "tagging" and shape == "encoder-decoder":
        text = "tagging predicts positions of its source; use `model.shape: decoder` or encoder"
        yield text, "model.shape", "task"
    if shape == "encoder" and task not in ("classification", "tagging") and not recipe.masks:
        instead = "encoder-decoder or decoder" if pairs else "`train.objective: masked`"
        text = f"an encoder alone writes no text; {task} needs {instead}"
        yield text, "model.shape", "task"
    if pairs and shape != "encoder-decoder" and not recipe.tokenizer.shared:
        text = f"one {shape} reads all text, so it needs one vocabulary; set it to true"
        yield text, "tokenizer.shared", "model.shape"


def _noise(recipe: Recipe) -> Iterator[Issue]:
    """What the objectives need that restore a text with noise."""
    objective, model = recipe.train.objective, recipe.model
    if objective not in SHAPE_OF:
        return
    if recipe.task != "language-modeling":
        text = f"{objective} learns from running text; {recipe.task} uses seq2seq"
        yield text, "train.objective", "task"
    elif model.shape != SHAPE_OF[objective]:
        why = "predicts tokens from both sides" if recipe.masks else "reads one text and writes one"
        text = f"{objective} {why}: use `model.shape: {SHAPE_OF[objective]}`"
        yield text, "model.shape", "train.objective"
    elif model.type != "transformer":
        yield f"{objective} needs a transformer", "model.type", "train.objective"
    if recipe.corrupts and recipe.data.max_length < SHORTEST_CORRUPTED:
        text = f"span-corruption needs texts of {SHORTEST_CORRUPTED} tokens at least"
        yield text, "data.max_length", "train.objective"
    if metric := next((n for n in OF_RUNNING_TEXT if n in recipe.eval.metrics), None):
        text = f"{metric} is of running text; use perplexity"
        yield text, "eval.metrics", "train.objective"


def _metrics(recipe: Recipe) -> Iterator[Issue]:
    """Metrics, and the one that validation monitors, are of what the task's models give."""
    task, labels = recipe.task, metrics_that_read("labels")
    monitor, asked = recipe.train.monitor, recipe.eval.metrics
    if task in ("language-modeling", "tagging") and monitor not in ("loss", "accuracy"):
        text = f"{task} decodes nothing to score; use `loss` or `accuracy`"
        yield text, "train.monitor", "task"
    for key, names in (("eval.metrics", asked), ("train.monitor", (monitor,))):
        for name in names:
            reads = METRICS[name].reads if name in METRICS else "outputs" * (name == "rouge")
            if reads == "labels" and task != "classification":
                text = f"{name} is for classification; {task} chooses no labels"
            elif reads in ("outputs", "contexts") and task == "classification":
                text = f"{name} scores texts; classification has {', '.join(labels)}"
            elif reads == "contexts" and task != "question-answering":
                text = f"{name} is for question-answering, which chooses contexts; remove it"
            elif key != "eval.metrics":
                continue
            elif reads == "outputs" and task in ("language-modeling", "tagging"):
                text = f"{name} needs decoded text; {task} has perplexity and accuracy"
            elif name in OF_POSITIONS and task != "tagging":
                text = f"{name} is over the answers of marked positions, for tagging; use accuracy"
            elif name == "word-perplexity" and task == "tagging":
                text = "word-perplexity is of running text; tagging has perplexity and accuracy"
            elif reads == "probabilities" and task == "question-answering":
                text = f"{name} is not measured of questions; use answer-match, answer-f1 or rouge"
            else:
                continue
            yield text, key, "task"
            break
        vectors = [
            name for name in names if name in METRICS and METRICS[name].family == "embedding"
        ]
        if vectors and recipe.eval.vectors is None:
            text = f"{vectors[0]} needs word vectors; name their file by eval.vectors"
            yield text, key


def _total_variation(recipe: Recipe) -> Iterator[Issue]:
    metric = "total-variation"
    if metric not in recipe.eval.metrics:
        return
    corpus, length = recipe.data.corpus, recipe.data.max_length
    line = corpus_cards.load(corpus).line_tokens if corpus in corpus_cards.names() else None
    if line is None:
        text = f"{metric} needs a corpus whose source is known: toy-topics or toy-chains; remove it"
        yield text, "eval.metrics", "data.corpus"
        return
    if recipe.tokenizer.type != "word":
        text = f"{metric} compares distributions over words; set tokenizer.type=word"
        yield text, "tokenizer.type", "eval.metrics"
    if line % length:
        near = max(size for size in range(1, length) if line % size == 0)
        text = f"{metric} needs blocks that divide a line of {line} tokens; {near} does"
        yield text, "data.max_length", "eval.metrics"


def _lengths(recipe: Recipe) -> Iterator[Issue]:
    """What can be scored at several lengths; `capability` says which models reach them."""
    if not recipe.eval.lengths:
        return
    if recipe.task in ("recall", "tagging"):
        known, longest = corpus_cards.row_length(recipe.data.corpus), max(recipe.eval.lengths)
        if known is None:
            text = "needs a generated corpus, whose rows can have any length; remove it"
            yield text, "eval.lengths", "data.corpus"
        elif not 2 <= min(recipe.eval.lengths) <= longest <= known.most:
            text = f"{recipe.data.corpus} has rows of {known.unit}: lengths are 2 to {known.most:,}"
            yield text, "eval.lengths"
    elif recipe.corrupts:
        text = "is for the objectives causal and masked; remove it"
        yield text, "eval.lengths", "train.objective"
    elif "total-variation" in recipe.eval.metrics:
        text = "total-variation is of blocks of data.max_length; remove it or eval.lengths"
        yield text, "eval.metrics", "eval.lengths"


def _questions(recipe: Recipe) -> Iterator[Issue]:
    if recipe.task != "question-answering":
        return
    gold, other = recipe.data.gold, recipe.data.other
    if other > 1 - gold + 1e-9:
        text = (
            f"data.gold {gold:g} and data.other {other:g} are more than all rows; {1 - gold:g} is"
        )
        text += " the most that this gold leaves to other"
        yield text, "data.other", "data.gold"
    windows = [name for name in recipe.contexts.methods if name in ("window", "retrieval")]
    if windows and recipe.model.shape == "encoder-decoder":
        text = f"{windows[0]} needs `model.shape: decoder`; an encoder reads one context at a time"
        yield text, "contexts.methods", "model.shape"


def _data(recipe: Recipe) -> Iterator[Issue]:
    data = recipe.data
    yield from data_issues(data, recipe.task)
    named = splits_at_hand(data)
    for split in ("train", "valid"):
        if data.corpus is None and named and split not in named:
            value, way = str(getattr(data, named[0])), "name its file"
            if value.startswith(HUGGING_FACE):
                way = f"set data.{split}={value} for its own split"
            text = f"data.{named[0]} needs data.{split} beside it; {way}"
            if split == "valid":
                text += ", or take rows of data.train: data.split.valid=500"
            yield text, f"data.{named[0]}"
    card = corpus_cards.load(str(data.corpus)) if data.corpus in corpus_cards.names() else None
    for split in recipe.eval.splits:
        if card and split not in card.splits:
            text = f"{card.name} has no split {quoted(split)}; it has {', '.join(card.splits)}"
        elif card or not {"train", "valid"} <= {*named} or split in named:
            continue
        elif split not in SPLITS:
            text = f"names {quoted(split)}; it can be train, valid or test"
        else:
            text = f"names {split}, but there is no data.{split}"
        yield text, "eval.splits"


def _tokenizer(recipe: Recipe) -> Iterator[Issue]:
    """No room for any piece beside the special ones."""
    spec = recipe.tokenizer
    if spec.model is not None:
        return
    least = len(RESERVED) + len(spec.special) + 1
    if spec.size < least:
        text = f"{spec.size} is too small: reserved and special tokens and one piece make {least}"
        yield text, "tokenizer.size", "tokenizer.special"


def _model(recipe: Recipe) -> Iterator[Issue]:
    model = recipe.model
    if model.width % model.heads:
        most = min(model.width, 4 * model.heads)
        divisors = (n for n in range(1, most + 1) if model.width % n == 0)
        near = min(divisors, key=lambda n: (abs(n - model.heads), n))
        text = f"{model.heads} heads do not divide the width {model.width}; {near} would"
        yield text, "model.heads", "model.width"
    elif model.positions == "rope" and model.width // model.heads % 2:
        wide = model.width // model.heads
        text = f"rope turns pairs, but heads are {wide} wide (width / heads); make that even"
        yield text, "model.positions", "model.heads", "model.width"
    if model.positions == "sinusoidal" and model.width % 2:
        text = f"sinusoidal positions need an even width; {model.width + 1} would do"
        yield text, "model.width", "model.positions"
    if model.tie == "all" and not recipe.tokenizer.shared and model.shape == "encoder-decoder":
        text = "two vocabularies cannot share one embedding; use `model.tie: decoder` or none"
        yield text, "model.tie", "tokenizer.shared"
    kind = f"shape {model.shape}" if model.type == "transformer" else f"type {model.type}"
    for stack in ("encoder", "decoder"):
        layers = getattr(model.layers, stack)
        absent = model.count_based or stack not in STACKS[model.shape]
        optional = stack == "encoder" != model.shape and model.type == "transformer"
        if absent and layers:
            text = f"a model of {kind} has no {stack}; remove it"
            yield text, f"model.layers.{stack}"
        elif not absent and not layers and not optional:
            text = "needs at least one layer; 1 is the least"
            yield text, f"model.layers.{stack}"
    for role in ("encoder", "decoder", "cross"):
        if role not in model.places and getattr(model.attention, role) != AttentionConfig():
            text = f"a model of {kind} has no {role} attention; remove it"
            yield text, f"model.attention.{role}"


def _model_type(recipe: Recipe) -> Iterator[Issue]:
    """What models other than transformers need."""
    model, size = recipe.model, recipe.tokenizer.size
    if model.type in ("recurrent", "convolutional"):
        if model.shape != "encoder-decoder":
            text = f"a {model.type} model is an encoder-decoder; for a decoder use `transformer`"
            yield text, "model.shape", "model.type"
            return
    elif model.type != "transformer" and recipe.task != "language-modeling":
        text = f"{model.type} is a language model; use `task: language-modeling` or another type"
        yield text, "model.type", "task"
        return
    if model.positions not in (allowed := POSITIONS.get(model.type, (model.positions,))):
        text = f"a {model.type} model has {' or '.join(allowed)}, got {model.positions}; remove it"
        yield text, "model.positions", "model.type"
    if model.type == "recurrent" and model.width % 2:
        text = f"each direction of the encoder has half the width; {model.width + 1} is even"
        yield text, "model.width", "model.type"
    if model.type == "naive-bayes-attention" and model.tie != "none":
        text = "naive-bayes-attention has a table of its own for the output; use none or remove it"
        yield text, "model.tie", "model.type"
    pairs = model.type == "naive-bayes" or (model.type == "n-gram" and model.order > 1)
    if pairs and size > LARGEST_TABLE:
        text = f"{model.type} keeps a table of all pairs of tokens, {size**2 * 4 / 1e9:.1f} GB"
        text += f"; {LARGEST_TABLE} is the most"
        yield text, "tokenizer.size", "model.type"
    if recipe.train.init and model.count_based:
        text = f"a {model.type} model is counted; it starts from no weights"
        yield text, "train.init", "model.type"


def _train(recipe: Recipe) -> Iterator[Issue]:
    train = recipe.train
    if train.patience and not train.valid_every:
        text = "counts validations, but valid_every is 0 (only at the end); set train.valid_every"
        yield text, "train.patience", "train.valid_every"
    if train.ema and train.average > 1:
        text = "ema and average both average weights; keep one of them"
        yield text, "train.ema", "train.average"
    if train.average > 1 and not train.valid_every:
        text = "averages weights of validations, but valid_every is 0; set train.valid_every"
        yield text, "train.average", "train.valid_every"
    if train.schedule in ("cosine", "linear") and train.min_lr > train.lr:
        text = f"is above the peak train.lr {train.lr:g}"
        yield text, "train.min_lr", "train.lr"
    if train.schedule in ("inverse-sqrt", "noam") and not train.warmup:
        text = f"{train.schedule} falls from the end of the warm-up, so it needs at least 1"
        yield text, "train.warmup", "train.schedule"


def _search(recipe: Recipe) -> Iterator[Issue]:
    search = recipe.search
    if search.min_length >= search.max_length:
        text = f"must be below search.max_length {search.max_length}, which counts the end token"
        yield text, "search.min_length", "search.max_length"
    if search.n_best > (most := search.width):
        text = f"{search.method} search finds {most} at most; use {most} or a wider search.beam"
        yield text, "search.n_best", "search.beam", "search.method"


RULES: tuple[Callable[[Recipe], Iterator[Issue]], ...] = (
    *(_only_with, _task, _noise, _questions, _data, _tokenizer, _model, _model_type),
    *(_train, _search, _metrics, _total_variation, _lengths),
)
