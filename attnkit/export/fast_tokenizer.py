"""A sentencepiece model as a fast tokenizer of transformers, in the one file tokenizer.json."""

import importlib
from typing import Any

from attnkit.data.subword_sampling import MARK
from attnkit.data.tokenizer import BOS, EOS, RESERVED, UNK, Vocabulary
from attnkit.errors import DataError
from attnkit.huggingface.quiet import transformers

UNIGRAM, BPE, WORD = 1, 2, 3
"""`TrainerSpec.ModelType` of sentencepiece; 4 is characters."""
BLANK = r"[\s\x1c-\x1f\u2581]+"
"""What `data.tokenizer.clean` takes for white space."""
NORMAL, USER_DEFINED = 1, 4
"""`SentencePiece.Type` of sentencepiece."""
UNLIKELY = -1000.0
"""Log-probability of reserved pieces, so that text that reads like one is spelled."""


def fast_tokenizer(vocabulary: Vocabulary, template: str, **options: Any) -> Any:
    """A PreTrainedTokenizerFast that gives the ids of `vocabulary`.

    Args:
        vocabulary: a sentencepiece model.
        template: what stands around a text, as $A </s>.
        options: further arguments of the class.

    Raises:
        DataError: the model has settings of sentencepiece that tokenizers has no counterpart of.
    """
    library: Any = importlib.import_module("tokenizers")
    schema: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    proto = schema.ModelProto.FromString(vocabulary.model)
    trained = proto.trainer_spec
    words = trained.model_type == WORD
    if words or trained.byte_fallback or not trained.split_by_whitespace:
        raise DataError(
            "the tokenizer has whole words, byte fallback or pieces across spaces, and so no exact "
            "counterpart in transformers; use one of type unigram, bpe or char"
        )
    made = library.Tokenizer(_model(library.models, proto))
    cut, clean = library.Regex(BLANK), library.normalizers
    steps = [clean.Replace(cut, " "), clean.Strip()]
    if charsmap := proto.normalizer_spec.precompiled_charsmap:
        steps += [clean.Precompiled(charsmap), clean.Replace(cut, " "), clean.Strip()]
    made.normalizer = clean.Sequence(steps)
    split = library.pre_tokenizers
    special = [piece.piece for piece in proto.pieces if piece.type == USER_DEFINED]
    parts = [split.Metaspace(MARK, "always")]
    if special:  # longer ones first, as sentencepiece has it
        found = "|".join(map(_escaped, sorted(special, key=len, reverse=True)))
        parts.append(split.Split(library.Regex(found), "isolated"))
    made.pre_tokenizer = split.Sequence(parts)
    text = library.decoders
    collapse = text.Replace(library.Regex(" {2,}"), " ")
    spaces = [text.Metaspace(MARK, "always"), text.Fuse(), collapse, text.Strip(" ", 1, 1)]
    made.decoder = text.Sequence(spaces)
    ends = [(RESERVED[BOS], BOS), (RESERVED[EOS], EOS)]
    made.post_processor = library.processors.TemplateProcessing(template, special_tokens=ends)
    names = dict(zip(("pad_token", "unk_token", "bos_token", "eos_token"), RESERVED, strict=True))
    return transformers().PreTrainedTokenizerFast(
        tokenizer_object=made,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        model_input_names=["input_ids", "attention_mask"],
        **names,
        **options,
    )


def _model(models: Any, proto: Any) -> Any:
    """The segmentation: the most probable pieces, or merges (of characters: none)."""
    if proto.trainer_spec.model_type == UNIGRAM:
        made = (NORMAL, USER_DEFINED)
        scored = [(p.piece, p.score if p.type in made else UNLIKELY) for p in proto.pieces]
        return models.Unigram(scored, unk_id=UNK)
    ids = {piece.piece: id_ for id_, piece in enumerate(proto.pieces)}
    # sentencepiece gives the piece that is merged first the lowest id
    merges = [
        (piece[:cut], piece[cut:])
        for piece in ids
        for cut in range(1, len(piece))
        if proto.trainer_spec.model_type == BPE and piece[:cut] in ids and piece[cut:] in ids
    ]
    return models.BPE(ids, merges, unk_token=RESERVED[UNK], fuse_unk=True, ignore_merges=True)


def _escaped(text: str) -> str:
    """Text as a pattern of the regular expressions of tokenizers."""
    return "".join(f"\\x{{{ord(letter):x}}}" for letter in text)
