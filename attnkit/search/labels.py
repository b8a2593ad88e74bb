"""Answers of a model to lines of text: ranked labels in classification, otherwise decoded outputs."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnkit.data.tokenizer import BOS, EOS, PAD, Tokenizer
from attnkit.distributed import group
from attnkit.errors import NotFiniteError
from attnkit.models.base import Model
from attnkit.recipe.schema import Recipe, SearchConfig
from attnkit.search.base import score_type
from attnkit.search.decoding import EMPTY_LINE, Engine, LineCounts, batches, encode_lines, pad, translate


def answer_lines(
    model: Model | Engine,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    recipe: Recipe,
    spec: SearchConfig,
    *,
    block: int = 2048,
    counts: LineCounts | None = None,
) -> Iterator[list[tuple[str, float]]]:
    """Yield for each text the ranked labels of the recipe (`classify`), or the outputs (`translate`)."""
    max_source = recipe.data.max_length
    if recipe.task == "classification":
        return classify(
            cast(Model, model),
            tokenizer,
            texts,
            recipe.data.labels,
            max_source=max_source,
            batch_tokens=spec.batch_tokens,
            block=block,
            counts=counts,
        )
    return translate(
        model, tokenizer, texts, spec, max_source=max_source, block=block, prompts=recipe.prompts, counts=counts
    )


def classify(
    model: Model,
    tokenizer: Tokenizer,
    texts: Iterable[str],
    labels: Sequence[str],
    *,
    max_source: int,
    batch_tokens: int,
    block: int = 2048,
    counts: LineCounts | None = None,
) -> Iterator[list[tuple[str, float]]]:
    """Yield for each text, in order, all labels with their log-probabilities (nats), most probable first.

    A model that writes text scores each label as its whole output, EOS included ("rank classification" of Sanh et al.
    2021, "Multitask Prompted Training Enables Zero-Shot Task Generalization"): no answer is outside the labels,
    whatever the model would generate. These probabilities need not sum to 1.

    Args:
        model: runs in evaluation mode; its mode is restored.
        texts: one line each; a line without text gets ("", 0) in place of every label.
        labels: in the order in which labels of equal probability are ranked.
        max_source: maximum number of tokens in a source, EOS included; longer sources are cut and counted.
        batch_tokens: maximum of texts * labels * maximum source length in a batch.
        block: number of texts that are read and answered at a time.
        counts: updated after each block.

    Raises NotFiniteError if the model returns NaN or infinity.
    """
    counts = LineCounts() if counts is None else counts
    remaining = iter(texts)
    # the main process reads for all ranks
    while lines := group.broadcast_object(list(islice(remaining, block))):
        sources = encode_lines(tokenizer, lines, max_source, counts)
        rows = [row for row, ids in enumerate(sources) if ids]
        label_ids, scores = tokenizer.target.encode(labels), dict[int, list[float]]()
        all_batches = batches([len(sources[row]) for row in rows], beams=len(labels), budget=batch_tokens)
        for indices in islice(all_batches, group.rank(), None, group.world_size()):
            batch = [rows[index] for index in indices]
            source = pad([sources[row] for row in batch], model.output.weight.device)
            log_probs = label_log_probs(model, source, label_ids)
            if not log_probs.isfinite().all():
                raise NotFiniteError("the model outputs NaN or infinity: its weights are damaged; train again")
            scores |= zip(batch, log_probs.tolist(), strict=True)
        counts.lines += len(lines)
        counts.empty += len(lines) - len(rows)
        scores = {row: values for part in group.all_gather_object(scores) for row, values in part.items()}
        for row in range(len(lines)):
            scored = zip(labels, scores.get(row, ()), strict=row in scores)
            yield sorted(scored, key=lambda pair: -pair[1]) or [EMPTY_LINE] * len(labels)


@torch.inference_mode()
def label_log_probs(model: Model, source: Int[Tensor, "B S"], labels: Sequence[Sequence[int]]) -> Float[Tensor, "B L"]:
    """Return the log-probabilities of labels (ids without EOS) for each source.

    Each source is encoded once; each label is then a separate output, padded on the right. An encoder with a
    classification head has one logit per label, and its probabilities sum to 1.
    """
    training = model.training
    model.eval()
    try:
        rows = len(source)
        if model.shape == "encoder":
            logits: Tensor = model(source, None)[:, 0, [ids[0] for ids in labels]]  # [B, L]
            return logits.log_softmax(-1, dtype=score_type(logits))
        outputs = pad([[*ids, EOS] for ids in labels], source.device).repeat(rows, 1)  # [B L, T]
        inputs = torch.cat((outputs.new_full((len(outputs), 1), BOS), outputs[:, :-1]), 1)
        repeated = torch.arange(rows, device=source.device).repeat_interleave(len(labels))
        logits, _ = model.step(inputs, model.start(source, rows=rows).select(repeated, None))
        log_probs = logits.log_softmax(-1, dtype=score_type(logits))  # [B L, T, V]
        log_probs = log_probs.gather(2, outputs[:, :, None])[:, :, 0]  # [B L, T]
        return log_probs.masked_fill(outputs == PAD, 0).sum(1).view(rows, len(labels))  # [B, L]
    finally:
        model.train(training)
