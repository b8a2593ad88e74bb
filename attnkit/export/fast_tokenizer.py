"""Conversion of a sentencepiece model to a fast tokenizer of transformers (tokenizer.json)."""

import importlib
from typing import Any

from attnkit.data.text_form import MARK, NONCHARACTERS, SUBSTITUTES
from attnkit.data.tokenizer import BOS, EOS, UNK, Vocabulary, control
from attnkit.errors import DataError
from attnkit.huggingface.quiet import transformers
from attnkit.text import RESERVED

UNIGRAM, BPE, WORD = 1, 2, 3
"""Values of `TrainerSpec.ModelType` of sentencepiece; 4 is char."""
BLANK = r"[\s\x1c-\x1f\u2581]+"
"""White space as in `data.text_form.clean`."""
CONTROL = [control(name) for name in RESERVED]
"""Spellings of the control tokens, which cannot occur in text."""


def fast_tokenizer(vocabulary: Vocabulary, template: str, **options: Any) -> Any:
    """Build a PreTrainedTokenizerFast with the ids of `vocabulary`, and special tokens as in `template` (`$A EOS`).

    Raises DataError if the library tokenizers has no counterpart of a setting of the sentencepiece model.
    """
    library: Any = importlib.import_module("tokenizers")
    schema: Any = importlib.import_module("sentencepiece.sentencepiece_model_pb2")
    proto = schema.ModelProto.FromString(vocabulary.model)
    spec, pieces, pre_tokenizers = proto.trainer_spec, proto.pieces, library.pre_tokenizers
    if spec.model_type == WORD or spec.byte_fallback or not spec.split_by_whitespace:
        raise DataError(
            "a tokenizer with whole words, byte fallback or pieces across spaces has no exact "
            "counterpart in transformers; use type unigram, bpe or char"
        )
    tokenizer = library.Tokenizer(_model(library.models, pieces, spec.model_type))
    normalizers, spaces = library.normalizers, library.Regex(BLANK)
    charsmap = proto.normalizer_spec.precompiled_charsmap
    precompiled = [normalizers.Precompiled(charsmap)] if charsmap else []
    forms = {"nfc": [normalizers.NFC()], "nfkc": [normalizers.NFKC()], "none": []}
    tokenizer.normalizer = normalizers.Sequence(
        [
            *precompiled,
            *forms[vocabulary.form],
            normalizers.Replace(library.Regex(NONCHARACTERS), "\ufffd"),
            normalizers.Replace(spaces, " "),
            normalizers.Strip(),
            *(normalizers.Replace(letter, spelled) for letter, spelled in SUBSTITUTES.items()),
        ]
    )
    symbols = "|".join(  # longer symbols first, as in sentencepiece
        "".join(f"\\x{{{ord(letter):x}}}" for letter in symbol.replace(" ", MARK))
        for symbol in sorted(vocabulary.symbols, key=len, reverse=True)
    )
    split_symbols = [pre_tokenizers.Split(library.Regex(symbols), "isolated")] if symbols else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Metaspace(MARK, "always"), *split_symbols])
    decoders = library.decoders
    substitutes = [decoders.Replace(spelled, letter) for letter, spelled in SUBSTITUTES.items()]
    strip = [decoders.Replace(library.Regex(p), to) for p, to in ((" +", " "), ("^ | $", ""))]
    tokenizer.decoder = decoders.Sequence([decoders.Metaspace(MARK, "always"), decoders.Fuse(), *substitutes, *strip])
    ends = [(CONTROL[id_], id_) for id_ in (BOS, EOS)]
    template = template.replace("BOS", CONTROL[BOS]).replace("EOS", CONTROL[EOS])
    tokenizer.post_processor = library.processors.TemplateProcessing(template, special_tokens=ends)
    roles = (f"{name}_token" for name in ("pad", "unk", "bos", "eos"))
    return transformers().PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,
        model_input_names=["input_ids", "attention_mask"],
        **dict(zip(roles, CONTROL, strict=True)),
        **options,
    )


def _model(models: Any, pieces: Any, kind: int) -> Any:
    """Build the segmentation model: Unigram, or BPE, which for characters has no merges."""
    names = [*CONTROL, *(piece.piece for piece in pieces[len(CONTROL) :])]
    if kind == UNIGRAM:
        scores = (piece.score for piece in pieces)
        return models.Unigram([*zip(names, scores, strict=True)], unk_id=UNK)
    ids = {name: id_ for id_, name in enumerate(names)}
    # in sentencepiece the ids of pieces are the order of merges
    merges = [
        (piece[:cut], piece[cut:])
        for piece in ids
        for cut in range(1, len(piece))
        if kind == BPE and piece[:cut] in ids and piece[cut:] in ids
    ]
    return models.BPE(ids, merges, unk_token=CONTROL[UNK], fuse_unk=True, ignore_merges=True)
