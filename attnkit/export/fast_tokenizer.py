"""A sentencepiece model as a fast tokenizer of transformers, in the one file tokenizer.json."""

import importlib
from typing import Any

from attnkit.data.subword_sampling import MARK
from attnkit.data.tokenizer import BOS, EOS, UNK, Vocabulary
from attnkit.errors import DataError
from attnkit.huggingface.quiet import transformers
from attnkit.text import RESERVED

UNIGRAM, BPE, WORD = 1, 2, 3
"""`TrainerSpec.ModelType` of sentencepiece; 4 is characters."""
NORMAL, USER_DEFINED = 1, 4
"""`SentencePiece.Type` of sentencepiece."""
BLANK = r"[\s\x1c-\x1f\u2581]+"
"""What `data.tokenizer.clean` takes for white space."""
UNLIKELY = -1000.0
"""Log-probability of reserved pieces, so that text that reads like one is spelled."""


def fast_tokenizer(vocabulary: Vocabulary, template: str, **options: Any) -> Any:
    """A PreTrainedTokenizerFast that gives the ids of `vocabulary`.

    `template` is what stands around a text, as $A </s>; `options` are arguments of the class.

    Raises:
        DataError: tokenizers has no counterpart of a setting of the sentencepiece model.
    """
    library: Any = importlib.import_module("tokenizers")
    schema: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    proto = schema.ModelProto.FromString(vocabulary.model)
    spec, pieces, words = proto.trainer_spec, proto.pieces, library.pre_tokenizers
    if spec.model_type == WORD or spec.byte_fallback or not spec.split_by_whitespace:
        raise DataError(
            "the tokenizer has whole words, byte fallback or pieces across spaces, and so no exact "
            "counterpart in transformers; use one of type unigram, bpe or char"
        )
    made = library.Tokenizer(_model(library.models, pieces, spec.model_type))
    steps, blank = library.normalizers, library.Regex(BLANK)
    charsmap = proto.normalizer_spec.precompiled_charsmap
    first = [steps.Precompiled(charsmap)] if charsmap else []
    made.normalizer = steps.Sequence([*first, steps.Replace(blank, " "), steps.Strip()])
    special = [piece.piece for piece in pieces if piece.type == USER_DEFINED]
    found = "|".join(  # longer ones first, as in sentencepiece
        "".join(f"\\x{{{ord(letter):x}}}" for letter in piece)
        for piece in sorted(special, key=len, reverse=True)
    )
    parts = [words.Split(library.Regex(found), "isolated")] if special else []
    made.pre_tokenizer = words.Sequence([words.Metaspace(MARK, "always"), *parts])
    text = library.decoders
    once = [text.Replace(library.Regex(p), to) for p, to in ((" +", " "), ("^ | $", ""))]
    made.decoder = text.Sequence([text.Metaspace(MARK, "always"), text.Fuse(), *once])
    ends = [(RESERVED[id_], id_) for id_ in (BOS, EOS)]
    made.post_processor = library.processors.TemplateProcessing(template, special_tokens=ends)
    roles = (f"{name}_token" for name in ("pad", "unk", "bos", "eos"))
    return transformers().PreTrainedTokenizerFast(
        tokenizer_object=made, clean_up_tokenization_spaces=False, split_special_tokens=True,
        model_input_names=["input_ids", "attention_mask"],
        **dict(zip(roles, RESERVED, strict=True)), **options,
    )  # fmt: skip


def _model(models: Any, pieces: Any, kind: int) -> Any:
    """The segmentation: the most probable pieces, or merges (of characters: none)."""
    if kind == UNIGRAM:
        text = (NORMAL, USER_DEFINED)
        scored = [(p.piece, p.score if p.type in text else UNLIKELY) for p in pieces]
        return models.Unigram(scored, unk_id=UNK)
    ids = {piece.piece: id_ for id_, piece in enumerate(pieces)}
    # sentencepiece gives the piece that is merged first the lowest id
    merges = [
        (piece[:cut], piece[cut:])
        for piece in ids
        for cut in range(1, len(piece))
        if kind == BPE and piece[:cut] in ids and piece[cut:] in ids
    ]
    return models.BPE(ids, merges, unk_token=RESERVED[UNK], fuse_unk=True, ignore_merges=True)
