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
    forms = {"nfc": [steps.NFC()], "nfkc": [steps.NFKC()], "none": []}
    made.normalizer = steps.Sequence(
        [
            *first,
            *forms[vocabulary.form],
            steps.Replace(library.Regex(NONCHARACTERS), "\ufffd"),
            steps.Replace(blank, " "),
            steps.Strip(),
            *(steps.Replace(text, spelled) for text, spelled in SUBSTITUTES.items()),
        ]
    )
    found = "|".join(  # longer symbols first, as in sentencepiece
        "".join(f"\\x{{{ord(letter):x}}}" for letter in symbol.replace(" ", MARK))
        for symbol in sorted(vocabulary.symbols, key=len, reverse=True)
    )
    parts = [words.Split(library.Regex(found), "isolated")] if found else []
    made.pre_tokenizer = words.Sequence([words.Metaspace(MARK, "always"), *parts])
    text = library.decoders
    carried = [text.Replace(spelled, letter) for letter, spelled in SUBSTITUTES.items()]
    once = [text.Replace(library.Regex(p), to) for p, to in ((" +", " "), ("^ | $", ""))]
    made.decoder = text.Sequence([text.Metaspace(MARK, "always"), text.Fuse(), *carried, *once])
    ends = [(CONTROL[id_], id_) for id_ in (BOS, EOS)]
    template = template.replace("BOS", CONTROL[BOS]).replace("EOS", CONTROL[EOS])
    made.post_processor = library.processors.TemplateProcessing(template, special_tokens=ends)
    roles = (f"{name}_token" for name in ("pad", "unk", "bos", "eos"))
    return transformers().PreTrainedTokenizerFast(
        tokenizer_object=made,
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
