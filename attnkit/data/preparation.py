"""Data for training from a recipe: corpus, tokenizer, encoded splits.

All data is cached by content, so that a second call only opens files. The name of a cache entry is a hash of
everything it depends on: the corpus' fingerprint, the recipe's settings, and the version of sentencepiece.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import sentencepiece

from attnkit.data.corpus import Corpus, require_split
from attnkit.data.corpus_files import Progress
from attnkit.data.encoded import FORMAT, Encoded, LabelRows, Ragged, RowEncoder, encode
from attnkit.data.objectives import FIXED, MASK, apply_objective, check_marked, objective_of, sentinels
from attnkit.data.rows import Counts, Row
from attnkit.data.text_form import MARK
from attnkit.data.tokenizer import (
    TRAINING_CHARACTERS,
    TRAINING_VERSION,
    UNKNOWN_WORD,
    LabelVocabulary,
    Tokenizer,
    Vocabulary,
    subsample,
)
from attnkit.errors import DataError
from attnkit.recipe import schema
from attnkit.recipe.data_rules import split_notes
from attnkit.storage import files
from attnkit.storage.cache import cache_dir, note_text, read_note, read_or_build
from attnkit.storage.files import sha256_json, write_synced

_REPORT_EVERY = 10_000


@dataclass(frozen=True)
class TokenizerFacts:
    """Training data of a cached tokenizer."""

    digest: str
    rows: int
    seen: int
    """Rows of the corpus, of which `rows` were used."""
    unknown_words: int
    """Number of times that the text has `UNKNOWN_WORD` as a word."""


@dataclass(frozen=True)
class PreparedData:
    """Data of one recipe."""

    corpus: Corpus
    tokenizer: Tokenizer
    train: Encoded
    valid: Encoded
    reports: list[str]
    """Lines for the user about rows and vocabularies."""
    digest: str
    """SHA-256 in hexadecimal of tokenizer, train and valid."""
    cache: Path
    stream: Encoded
    """Encoded training split before its objective or labels are applied."""


def prepare(
    recipe: schema.Recipe,
    *,
    data_dir: Path | None = None,
    cache: Path | None = None,
    offline: bool = False,
    progress: Progress | None = None,
    tokenizer: Tokenizer | None = None,
) -> PreparedData:
    """Open the corpus, train the tokenizer and encode train and valid, or load them from the cache.

    Args:
        recipe: One variant.
        tokenizer: Tokenizer of the initial weights (`train.init`) instead of a trained one.
        data_dir, offline, progress: As in `Corpus.open`.
        cache: Folder for downloads, tokenizers and encoded splits; default: `cache_dir()`.

    Raises:
        RecipeError: The tokenizer's settings do not fit together or do not fit the text.
        MissingInputError: The corpus, a split or the tokenizer's model does not exist.
        DataError: A file is malformed, or no row of a split is usable.
        OutputPathError, OutputError: The cache cannot be written.
    """
    root = cache or cache_dir()
    corpus = Corpus.open(recipe.data, recipe.task, data_dir=data_dir, cache=root, offline=offline, progress=progress)
    if tokenizer is None:
        tokenizer, reports = _tokenizer(recipe, corpus, root, progress)
    else:
        reports = [f"tokenizer: from train.init, {len(tokenizer.source):,} pieces"]
    if recipe.model.shape == "encoder" and recipe.task == "classification":
        tokenizer = tokenizer.with_labels(recipe.data.labels)
    _check_labels(tokenizer, recipe.data.labels)
    if recipe.tokenizer.sampling:
        for vocabulary in tokenizer:  # raises now if the model cannot sample
            vocabulary.sample([], alpha=1, seed=0)
    splits = []
    for name in ("train", "valid"):
        split = encode_split(corpus, tokenizer, recipe, name, cache=root, progress=progress)
        reports += [f"{name}: {line}" for line in split.counts.lines()]
        splits.append(split)
    _check_lengths(recipe, corpus, tokenizer, root)
    reports += [*corpus.notes, *split_notes(recipe)]
    digest = sha256_json([tokenizer.digest, *(split.digest for split in splits)])
    train, valid = (
        _with_objective(recipe, tokenizer, split, FIXED, f"{corpus.name}: {name}")
        for name, split in zip(("train", "valid"), splits, strict=True)
    )
    return PreparedData(corpus, tokenizer, train, valid, reports, digest, root, splits[0])


def _with_objective(
    recipe: schema.Recipe, tokenizer: Tokenizer, split: Encoded, noise: tuple[int, int], name: str
) -> Encoded:
    """Return a split as training reads it: with noise, with labels as targets, or unchanged."""
    if isinstance(tokenizer.target, LabelVocabulary) and isinstance(split.target, Ragged):
        return replace(split, target=LabelRows(split.target))
    tokens, longest = len(split.target.ids), recipe.data.max_length
    if recipe.corrupts and tokens < longest:
        raise DataError(
            f"{name} has {tokens:,} tokens, but span corruption needs at least data.max_length "
            f"({longest:,}): lower data.max_length, or use more text"
        )
    if recipe.task == "tagging":
        check_marked(split, tokenizer.target, name)
    return apply_objective(split, tokenizer.target, objective_of(recipe), longest, noise)


def _check_lengths(recipe: schema.Recipe, corpus: Corpus, tokenizer: Tokenizer, cache: Path) -> None:
    """Raise DataError if a scored split is shorter than the maximum of `eval.lengths`."""
    longest = max(recipe.eval.lengths, default=0)
    if recipe.task in ("recall", "tagging"):
        check_rows_fit(recipe, tokenizer.source)
        return
    for name in recipe.eval.splits if longest else ():
        tokens = len(encode_split(corpus, tokenizer, recipe, name, cache=cache).target.ids)
        check_reaches(f"{corpus.name}: {name}", tokens, longest)


def check_rows_fit(recipe: schema.Recipe, vocabulary: Vocabulary | None = None) -> None:
    """Raise DataError if generated rows of `eval.lengths` exceed `data.max_length`.

    Without a vocabulary each word counts as one token, the minimum.
    """
    longest = max(recipe.eval.lengths, default=0)
    if not longest or recipe.task not in ("recall", "tagging"):
        return
    row = next(Corpus.open(recipe.data, recipe.task).rows("train", length=longest))
    tokens = vocabulary.encode(row[:2]) if vocabulary else [text.split() for text in row[:2]]
    number, limit = max(map(len, tokens)), recipe.data.max_length
    if number >= limit:
        raise DataError(
            f"eval.lengths: a row of length {longest:,} has {number + 1:,} tokens, end token included; "
            f"raise data.max_length ({limit:,})"
        )


def check_reaches(name: str, tokens: int, longest: int) -> None:
    """Raise DataError if a text is shorter than the maximum of `eval.lengths`."""
    if tokens < longest:
        raise DataError(
            f"{name} has {tokens:,} tokens, fewer than the maximum of eval.lengths ({longest:,}): lower "
            "the maximum, or use more text"
        )


def _check_labels(tokenizer: Tokenizer, labels: Sequence[str]) -> None:
    """Raise DataError if two labels have the same tokens."""
    seen: dict[tuple[int, ...], str] = {}
    for label, ids in zip(labels, tokenizer.target.encode(labels), strict=True):
        if (other := seen.setdefault(tuple(ids), label)) != label:
            raise DataError(
                f"data.labels: the tokenizer gives {label} and {other} the same tokens; choose other labels, "
                "or set model.shape=encoder"
            )


def check_splits(
    recipe: schema.Recipe,
    *,
    data_dir: Path | None = None,
    cache: Path | None = None,
    offline: bool = False,
    fetch: bool = True,
    progress: Progress | None = None,
) -> list[str]:
    """Read the splits for evaluation, so that their faults are reported before training.

    Returns the splits that were not checked because `fetch` is False and they need a download. Raises
    MissingInputError or DataError if a split is missing, malformed or empty.
    """
    corpus = Corpus.open(recipe.data, recipe.task, data_dir=data_dir, cache=cache, offline=offline, progress=progress)
    unchecked = []
    for name in dict.fromkeys(("train", "valid", *recipe.eval.splits)):
        require_split(corpus.name, name, corpus.splits)
        if name == "train":  # read by training anyway
            continue
        if not fetch and not corpus.available(name):
            unchecked.append(name)
        else:
            deque(corpus.rows(name), 0)
    return unchecked


def encode_split(
    corpus: Corpus,
    tokenizer: Tokenizer,
    recipe: schema.Recipe,
    name: str,
    *,
    cache: Path | None = None,
    sample: tuple[float, int] | None = None,
    suffix: str = "",
    progress: Progress | None = None,
) -> Encoded:
    """Return a split as ids, from the cache if it is there.

    Training rows follow `data.too_long`; rows of other splits are truncated, never dropped. `sample` is (alpha, seed)
    of subword sampling; `suffix` distinguishes samples in the cache.

    Raises MissingInputError if the corpus lacks the split, DataError if a file is malformed or no row is usable.
    """
    max_length, stream = recipe.data.max_length, recipe.task == "language-modeling"
    too_long = recipe.data.too_long if name == "train" else "truncate"
    # The key has everything that the ids depend on.
    fingerprint = corpus.fingerprint(name)
    model = sentencepiece.__version__, fingerprint, tokenizer.digest
    key = sha256_json(["split", FORMAT, *model, max_length, too_long, stream])
    counts = Counts()
    encoder = RowEncoder(tokenizer, max_length, too_long == "truncate", stream, sample)
    path = (cache or cache_dir()) / "encoded" / f"{key}{suffix}"
    report = None if progress is None else lambda done: progress(name, done, None)
    split = encode(_while_unchanged(corpus, name, fingerprint, counts), encoder, path, counts, report)
    if not len(split):
        raise DataError(
            f"{corpus.name}: the {name} split has no usable rows ({'; '.join(split.counts.lines())}); "
            "check the files, or raise data.max_length"
        )
    return split


def _while_unchanged(corpus: Corpus, name: str, fingerprint: str, counts: Counts) -> Iterator[Row]:
    """Yield the rows of a split; raise DataError after the last row if its files have changed."""
    yield from corpus.rows(name, counts)
    if corpus.fingerprint(name) != fingerprint:
        raise DataError(
            f"{corpus.name}: a file of the {name} split changed during encoding; run the same command "
            "again when the file is complete"
        )


def train_epoch(prepared: PreparedData, recipe: schema.Recipe, epoch: int, seed: int) -> Encoded:
    """Return the training split of one epoch (from 0), with new samples or noise.

    A pure function of (corpus, recipe, seed, epoch). Rows that are too long in one epoch may fit in another, so plan
    each epoch from the result. The cache keeps one epoch of a seed.
    """
    split = _sampled(prepared, recipe, epoch, seed) if recipe.tokenizer.sampling else prepared.stream
    return _with_objective(recipe, prepared.tokenizer, split, (seed, epoch + 1), prepared.corpus.name)


def _sampled(prepared: PreparedData, recipe: schema.Recipe, epoch: int, seed: int) -> Encoded:
    """Return the training split of one epoch with new segmentations (`tokenizer.sampling`)."""
    alpha = recipe.tokenizer.sampling
    split = encode_split(
        prepared.corpus,
        prepared.tokenizer,
        recipe,
        "train",
        cache=prepared.cache,
        sample=(alpha, int(sha256_json(["sampling", seed, epoch])[:8], 16)),
        suffix=f"-{sha256_json([alpha, seed])[:16]}-{epoch}",
    )
    for other in split.path.parent.glob(f"{split.path.name.rpartition('-')[0]}-*"):
        if other.is_dir() and other != split.path and files.owner(other) is None:
            # Another run may remove it at the same time, or still read it: its mapping stays valid.
            with suppress(OSError):
                files.remove(other)
    return split


def _tokenizer(
    recipe: schema.Recipe, corpus: Corpus, cache: Path, progress: Progress | None
) -> tuple[Tokenizer, list[str]]:
    """Return the tokenizer of a recipe, trained at the first call, and lines about it for the user."""
    spec, form = recipe.tokenizer, recipe.data.normalize
    controls = sentinels(recipe.data.max_length) if recipe.corrupts else (MASK,) * recipe.masks
    if spec.model is not None:
        tokenizer = Tokenizer.train(spec, (), controls=controls, form=form)
        return tokenizer, [f"tokenizer: {spec.model}, {len(tokenizer.source):,} pieces"]
    section = spec.model_dump(mode="json", exclude={"model", "sampling"})
    fingerprint = corpus.fingerprint("train")
    limits = [TRAINING_VERSION, TRAINING_CHARACTERS, sentencepiece.__version__]
    key = sha256_json(["tokenizer", limits, section, controls, form, fingerprint])

    def build(draft: Path) -> None:
        rows, seen = subsample(_reporting(corpus.rows("train"), progress))
        rows += [Row(corpus.words, "")] if corpus.words else []
        texts = (text for row in rows for text in row[:2] if UNKNOWN_WORD in text)
        settings, unknown = spec, sum(text.split().count(UNKNOWN_WORD) for text in texts)
        if unknown and UNKNOWN_WORD not in spec.special:
            # with its space, so that it is one token in the text
            settings = spec.model_copy(update={"special": (*spec.special, MARK + UNKNOWN_WORD)})
        trained = Tokenizer.train(settings, rows, controls=controls, form=form)
        trained.save(draft)
        write_synced(draft / "meta.json", note_text(vars(TokenizerFacts(trained.digest, len(rows), seen, unknown))))

    def read(path: Path) -> tuple[Tokenizer, TokenizerFacts]:
        facts, saved = read_note(path / "meta.json", TokenizerFacts), Tokenizer.load(path, form)
        if facts is None or saved.digest != facts.digest:
            raise DataError(f"{path}: the model does not match its SHA-256")
        return saved, facts

    tokenizer, facts = read_or_build(cache / "tokenizers" / key, read, build)
    lines = []
    for name, vocabulary in ({"shared": tokenizer.source} if tokenizer.shared else tokenizer._asdict()).items():
        line = f"tokenizer: {spec.type}, {name}, {len(vocabulary):,} pieces"
        if len(vocabulary) < spec.size:
            line += f" instead of {spec.size:,}: the text yields no more"
        lines.append(line)
    if words := facts.unknown_words:
        lines.append(
            f"tokenizer: the text contains the word {UNKNOWN_WORD} ({words:,} times), which has a piece of its own"
        )
    if facts.rows < facts.seen:
        lines.append(f"tokenizer: trained on {facts.rows:,} of {facts.seen:,} rows")
    return tokenizer, lines


def _reporting(rows: Iterator[Row], progress: Progress | None) -> Iterator[Row]:
    for number, row in enumerate(rows, start=1):
        yield row
        if progress is not None and number % _REPORT_EVERY == 0:
            progress("tokenizer", number, None)
