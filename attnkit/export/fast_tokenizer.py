"""A sentencepiece model as a fast tokenizer of transformers, in the one file tokenizer.json."""

import importlib
from typing import Any

from attnkit.data.text_form import CARRIED, MARK, NONCHARACTERS
from attnkit.data.tokenizer import BOS, EOS, UNK, Vocabulary, control
from attnkit.errors import DataError
from attnkit.huggingface.quiet import transformers
from attnkit.text import RESERVED

UNIGRAM, BPE, WORD = 1, 2, 3
"""`TrainerSpec.ModelType` of sentencepiece; 4 is characters."""
BLANK = r"[\s\x1c-\x1f\u2581]+"
"""What `data.text_form.clean` takes for white space."""
CONTROL = [control(name) for name in RESERVED]
"""Spellings that no text can have, whatever those of the model are."""


def fast_tokenizer(vocabulary: Vocabulary, template: str, **options: Any) -> Any:
    """A PreTrainedTokenizerFast that gives the ids of `vocabulary`.

    `template` is what stands around a text, as `$A EOS`; `options` are arguments of the class.

    Raises DataError: tokenizers has no counterpart of a setting of the sentencepiece model.
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
            *(steps.Replace(text, spelled) for text, spelled in CARRIED.items()),
        ]
    )
    found = "|".join(  # longer ones first, as in sentencepiece
        "".join(f"\\x{{{ord(letter):x}}}" for letter in symbol.replace(" ", MARK))
        for symbol in sorted(vocabulary.symbols, key=len, reverse=True)
    )
    parts = [words.Split(library.Regex(found), "isolated")] if found else []
    made.pre_tokenizer = words.Sequence([words.Metaspace(MARK, "always"), *parts])
    text = library.decoders
    carried = [text.Replace(spelled, letter) for letter, spelled in CARRIED.items()]
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
    """The segmentation: the most probable pieces, or merges (of characters: none)."""
    names = [*CONTROL, *(piece.piece for piece in pieces[len(CONTROL) :])]
    if kind == UNIGRAM:
        scores = (piece.score for piece in pieces)
        return models.Unigram([*zip(names, scores, strict=True)], unk_id=UNK)
    ids = {name: id_ for id_, name in enumerate(names)}
    # sentencepiece gives the piece that is merged first the lowest id
    merges = [
        (piece[:cut], piece[cut:])
        for piece in ids
        for cut in range(1, len(piece))
        if kind == BPE and piece[:cut] in ids and piece[cut:] in ids
    ]
    return models.BPE(ids, merges, unk_token=CONTROL[UNK], fuse_unk=True, ignore_merges=True)
