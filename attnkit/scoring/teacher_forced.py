"""Teacher-forced scores, of a model's probabilities given the references.

Perplexity, accuracy, calibration error, and total variation between the model's next-token distributions and those
that the text was drawn from.
"""

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from attnkit import __version__
from attnkit.data.batch import collate, plan
from attnkit.data.encoded import Blocks, Encoded, LabelRows, Ragged
from attnkit.data.objectives import SIGNATURES, MarkedTargets, apply_objective
from attnkit.data.rows import Counts, Row
from attnkit.data.synthetic.known_source import END, SOURCES
from attnkit.data.tokenizer import EOS, PAD, LabelVocabulary, Tokenizer
from attnkit.distributed import group
from attnkit.errors import NotFiniteError
from attnkit.models.base import LogProbabilities, Model
from attnkit.recipe.metrics import metric_facts
from attnkit.recipe.schema import Recipe
from attnkit.scoring.metrics import Score

BATCH_TOKENS = 8192
"""Maximum of rows * longest side in a batch, padding included."""
CONFIDENCE_BINS = 15
"""Number of equal intervals of confidence (Guo et al. 2017)."""
LOGITS_AT_ONCE = 2**22
"""Maximum number of logits in memory: 16 MB in float32."""


def teacher_forced(model: Model, encoded: Encoded) -> NDArray[np.float64]:
    """Return sums over the predictions of a model for each row: [rows, 5 + CONFIDENCE_BINS].

    The columns are nll in nats, correct tokens, tokens, correct tokens and tokens weighted so that every answer of
    marked positions counts equally (0 for other targets), and for each interval of confidence (the probability of the
    most probable token) the sum of confidence minus correctness. Every token of the target and its EOS count once. The
    cross-entropy is plain, whatever the training loss was; a token is correct if no token is more probable. The model
    runs in evaluation mode; its mode is restored.

    Raises NotFiniteError if the model returns NaN or infinity.
    """
    out: NDArray[np.float64] = sum(group.all_gather_object(_part(model, encoded)), np.zeros(()))
    if not np.isfinite(out).all():
        raise NotFiniteError("the model outputs NaN or infinity: its weights are damaged; train again")
    return out


@torch.inference_mode()
def _part(model: Model, encoded: Encoded) -> NDArray[np.float64]:
    """Return the sums over this rank's share of the batches; other rows are zero."""
    out = np.zeros((len(encoded), 5 + CONFIDENCE_BINS))
    shares = np.zeros(model.output.out_features)
    if isinstance(encoded.target, MarkedTargets):
        answers, counts = np.unique(encoded.target.ids[encoded.target.ids != PAD], return_counts=True)
        shares[answers] = 1 / (len(answers) * counts)
    for rows, targets, hidden in hidden_states(model, encoded, group.rank(), group.world_size()):
        nll, correct, confidence = _predictions(model.output, hidden, targets)
        share = shares[targets.cpu().numpy()]
        for column, values in enumerate((nll, correct, np.ones(len(rows)), correct * share, share)):
            out[:, column] += np.bincount(rows, values, minlength=len(out))
        interval = np.nan_to_num(confidence * CONFIDENCE_BINS).astype(int)  # NaN: `teacher_forced` raises
        interval = np.minimum(interval, CONFIDENCE_BINS - 1)
        np.add.at(out, (rows, 5 + interval), confidence - correct)
    return out


def hidden_states(
    model: Model, encoded: Encoded, rank: int = 0, ranks: int = 1
) -> Iterator[tuple[NDArray[np.int64], Int[Tensor, " N"], Float[Tensor, "N W"]]]:
    """Yield for each batch the row of each predicted token, the token, and the hidden state that predicts it.

    The tokens of a row are contiguous and in order. The model runs in evaluation mode; its mode is restored. Each of
    several ranks takes every `ranks`-th batch.
    """
    device = model.output.weight.device
    lengths = None if encoded.source is None else encoded.source.lengths
    training = model.training
    model.eval()
    batches = plan(lengths, encoded.target.lengths, batch_tokens=BATCH_TOKENS, seed=0, epoch=0, shuffle=False)
    for rows in islice(batches, rank, None, ranks):
        batch = collate(encoded, rows)
        tensors = batch.to(device)
        hidden = model.hidden(tensors.source, tensors.input)
        row_of = (batch.output != PAD).nonzero()[:, 0].numpy()
        yield rows[row_of], tensors.targets, tensors.predicting(hidden)
    model.train(training)


def teacher_forced_scores(
    metrics: Sequence[str],
    model: Model,
    tokenizer: Tokenizer,
    rows: Sequence[Row],
    *,
    max_length: int,
    stream: bool,
    objective: str = "seq2seq",
) -> dict[str, Score]:
    """Return the teacher-forced scores among the `metrics`; statistics are per row, or per block of a stream.

    All but word perplexity are per token, so they compare models of one vocabulary, which is therefore part of the
    signature. Word perplexity divides the same nll by the number of words between spaces plus one end of line per row:
    it compares models of any vocabularies. If the `objective` adds noise, always the same, scores are of the tokens
    that it takes out of the text.
    """
    names = [name for name in metrics if metric_facts(name).family == "model"]
    if not names:
        return {}
    encoded = encode_rows(rows, tokenizer, max_length, stream=stream)
    words = _words(rows, encoded, tokenizer, max_length)
    encoded = apply_objective(encoded, tokenizer.target, objective, max_length)
    nll, correct, tokens, hits, shares, *gaps = teacher_forced(model, encoded).T
    cut = f"cut:{encoded.counts.truncated}"
    if stream or encoded.counts.truncated:
        cut = f"blocks:{max_length}" if stream else f"{cut}|max-length:{max_length}"
    cut += f"|{SIGNATURES[objective]}" if objective in SIGNATURES else ""
    vocabulary = f"vocabulary:{len(tokenizer.target)}-{tokenizer.digest[:8]}"
    tables = {
        "accuracy": ((correct, tokens), f"unit:token|{vocabulary}"),
        "balanced-accuracy": ((hits, shares), f"unit:answer|{vocabulary}"),
        "perplexity": ((nll, tokens), f"unit:token|{vocabulary}"),
        "word-perplexity": ((nll, tokens * (words / max(tokens.sum(), 1))), "unit:word"),
        "calibration-error": ((*gaps, tokens), f"bins:{len(gaps)}|unit:token|{vocabulary}"),
    }
    out = {}
    for name in names:
        columns, unit = tables[name]
        out[name] = Score.of(name, np.stack(columns, 1), f"nrefs:1|{unit}|{cut}|version:attnkit-{__version__}")
    return out


def _words(rows: Sequence[Row], encoded: Encoded, tokenizer: Tokenizer, max_length: int) -> int:
    """Return the number of words in the predicted text, plus one end of line per row; cut rows count what is left."""
    if encoded.source is None:
        return sum(len(row.target.split()) + 1 for row in rows if row.target.strip())
    texts = [row.target for row in rows]
    cut = (encoded.target.lengths == max_length - 1).nonzero()[0].tolist()
    for row, text in zip(cut, tokenizer.target.decode([encoded.target[row].tolist() for row in cut]), strict=True):
        texts[row] = text
    return sum(len(text.split()) + 1 for text in texts)


def encode_rows(rows: Sequence[Row], tokenizer: Tokenizer, max_length: int, *, stream: bool) -> Encoded:
    """Return rows as ids in memory; no row is dropped, longer rows are cut and counted.

    As in training, source rows end with EOS, and a stream is cut into blocks of `max_length` tokens.
    """
    counts = Counts(rows=len(rows), kept=len(rows))
    target = tokenizer.target.encode([row.target for row in rows])
    if stream:
        blocks = Blocks(np.array([i for ids in target if ids for i in (*ids, EOS)], dtype=np.uint32), max_length)
        return Encoded(None, blocks, counts, "", Path())
    source = tokenizer.source.encode([row.source for row in rows])
    max_tokens = max_length - 1  # without EOS
    counts.truncated = sum(max(len(s), len(t)) > max_tokens for s, t in zip(source, target, strict=True))
    sources = _ragged([[*ids[:max_tokens], EOS] for ids in source])
    targets = _ragged([ids[:max_tokens] for ids in target])
    if isinstance(tokenizer.target, LabelVocabulary):
        targets = LabelRows(targets)
    return Encoded(sources, targets, counts, "", Path())


def _ragged(rows: Sequence[Sequence[int]]) -> Ragged:
    offsets = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return Ragged(np.array([i for row in rows for i in row], dtype=np.uint32), offsets)


def _predictions(
    output: nn.Linear | LogProbabilities, hidden: Float[Tensor, "N W"], targets: Int[Tensor, " N"]
) -> tuple[NDArray[np.float64], ...]:
    """Return nll, correctness and confidence of each token; logits are computed in chunks."""
    chunks, size = [], max(1, LOGITS_AT_ONCE // output.out_features)
    for h, y in zip(torch.split(hidden, size), torch.split(targets, size), strict=True):
        logits = output(h).float()
        target_logits = logits.gather(1, y[:, None])[:, 0]
        normalizer, highest = logits.logsumexp(-1).double(), logits.amax(-1)
        confidence = (highest.double() - normalizer).exp()
        chunks.append(torch.stack((normalizer - target_logits.double(), target_logits >= highest, confidence)))
    return tuple(torch.cat(chunks, 1).cpu().numpy())


@torch.inference_mode()
def total_variation(model: Model, tokenizer: Tokenizer, rows: Sequence[Row], recipe: Recipe) -> Score:
    """Return half the sum of |p - q| over the vocabulary, averaged over the tokens of the text.

    p is the model's distribution of a token given the previous tokens of its block, q that of the source given the
    same tokens. Statistics are per block.

    Args:
        model: a language model; runs in evaluation mode, and its mode is restored.
        tokenizer: must have one token per word.
        rows: lines of an embedded corpus whose source is known (`line_tokens` of its card).
    """
    source, block = SOURCES[str(recipe.data.corpus)], recipe.data.max_length
    encoded = encode_rows(rows, tokenizer, block, stream=True)
    ids, words = {END: EOS}, {EOS: END}
    for word in source.next_words(()):
        (ids[word],) = tokenizer.target.encode([word])[0]
        words[ids[word]] = word
    out = np.zeros((len(encoded), 2))
    for token_rows, targets, hidden in hidden_states(model, encoded):
        probabilities = model.output(hidden).double().softmax(-1).cpu().numpy()  # [tokens, vocabulary]
        for row in np.unique(token_rows):
            mask = token_rows == row
            text, p = [words[i] for i in targets.numpy(force=True)[mask].tolist()], probabilities[mask]
            q = np.zeros_like(p)
            for t in range(len(text)):
                shares = source.next_tokens(text[:t], block)
                q[t, [ids[word] for word in shares]] = list(shares.values())
            out[row] = np.abs(p - q).sum() / 2, len(text)
    return Score.of("total-variation", out, f"nrefs:1|unit:token|blocks:{block}|version:attnkit-{__version__}")
