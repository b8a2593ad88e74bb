"""Texts as ids for the model of a run: encoded, completed by search, checked."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from torch import nn

from attnkit.analysis.maps import Token
from attnkit.analysis.recorder import attention_layers
from attnkit.data.rare_words import rare_words, unlike_note
from attnkit.data.text_form import MARK
from attnkit.data.tokenizer import BOS, EOS, PAD, Tokenizer, Vocabulary
from attnkit.errors import DataError, UsageError
from attnkit.models.base import Model, position_limit
from attnkit.recipe import Recipe
from attnkit.recipe.schema import SearchConfig
from attnkit.search import search_all
from attnkit.search.decoding import clamp_max_length

SPECIAL_IDS = frozenset({PAD, BOS, EOS})
"""Ids without text."""


class ModelInput(NamedTuple):
    """Input of the model for one text, and its output."""

    source: list[int]
    """Source with EOS; empty if the model has no source."""
    ids: list[int]
    """Decoder input: BOS and the output; in a language model, the prompt comes before the output."""
    output: list[int]
    """Output without BOS and EOS."""
    complete: bool = True
    """Whether the output ended with EOS, not at the maximum length."""


def describe_search(spec: SearchConfig) -> str:
    """Return a search in words: greedy, beam 5, sampled, seed 1."""
    if spec.method == "beam" and spec.beam > 1:
        return f"beam {spec.beam}"
    return f"sampled, seed {spec.seed}" if spec.method == "sample" else "greedy"


class InputBuilder:
    """Converts texts to inputs of one model."""

    def __init__(self, model: Model, tokenizer: Tokenizer, recipe: Recipe) -> None:
        self.model, self.tokenizer = model, tokenizer
        self.prompts, self.max_length = recipe.prompts, recipe.data.max_length
        self.shape = str(model.shape)
        self.source_limit = source_limit(model)
        self.vocabulary = tokenizer.target if self.prompts else tokenizer.source

    def encode(self, text: str, name: str) -> ModelInput:
        """Return a source with EOS or a prompt with BOS. Raises UsageError if it is empty, DataError if too long."""
        ids = self.vocabulary.encode([text])[0]
        if not ids:
            raise UsageError(f"{name} is empty: give at least one word")
        if self.shape == "decoder":
            _check_length(len(ids) + 1 + (not self.prompts), self.model.limit, name)
        else:
            _check_length(len(ids) + 1, self.source_limit, name)
        if self.prompts:
            return ModelInput([], [BOS, *ids], [])
        return ModelInput([*ids, EOS], [], [])

    def with_target(self, source: ModelInput, target: str, name: str) -> ModelInput:
        """Return the input with a given output. Raises UsageError if it is empty, DataError if it is too long."""
        output = self.tokenizer.target.encode([target])[0]
        if not output:
            raise UsageError(f"the target of {name} is empty: give at least one word")
        model_input = self._with_output(source, output, complete=True)
        _check_length(self._row_offset(source) + len(model_input.ids), self.model.limit, f"{name} with its target")
        return model_input

    def with_search(self, source: ModelInput, spec: SearchConfig) -> ModelInput:
        """Return the input with the best output of a search.

        Raises:
            UsageError: If the search finds no output.
            DataError: If the model produces NaN, or has no position left for an output.
        """
        spec = clamp_max_length(self.model, spec.model_copy(update={"n_best": 1}), self.max_length)
        sources = [source.ids if self.prompts else source.source]
        (hypotheses,) = search_all(self.model, sources, spec, lines=[0], prompts=self.prompts)
        if not hypotheses:
            raise UsageError("the search found no output: loosen the constraints of search")
        return self._with_output(source, hypotheses[0].ids, hypotheses[0].complete)

    def _row_offset(self, source: ModelInput) -> int:
        """Return the position of the output in the row of a decoder that reads the source in the same row."""
        return len(source.source) if self.shape == "decoder" else 0

    def _with_output(self, source: ModelInput, output: list[int], complete: bool) -> ModelInput:
        """Append an output to the input."""
        ids = [*(source.ids or [BOS]), *output]
        if not complete and self.model.limit is not None:
            # the model never reads the last token that fits into its positions
            ids = ids[: self.model.limit - self._row_offset(source)]
        return ModelInput(source.source, ids, output, complete)

    def note(self, text: str, model_input: ModelInput) -> str:
        """Return warnings, if any: the input is longer than, or unlike, the training data; the output was cut."""
        length = max(len(model_input.source), len(model_input.ids) - 1)
        unlike = unlike_note(rare_words(self.vocabulary, [text]))
        notes = [unlike] if unlike else []
        if length > self.max_length:
            notes.append(f"a sequence has {length} tokens, more than in training ({self.max_length}, data.max_length)")
        if not model_input.complete:
            notes.append(f"the output was truncated to {len(model_input.output)} tokens")
        return "; ".join(notes)


def _check_length(tokens: int, limit: int | None, name: str) -> None:
    if limit is not None and tokens > limit:
        raise DataError(
            f"{name}: {tokens} tokens, special tokens included, but the model reads at most {limit}: "
            "shorten the text, or train with a larger data.max_length"
        )


def source_limit(model: Model) -> int | None:
    """Return the maximum number of tokens that an encoder reads, if it has weights for positions."""
    layers = nn.ModuleList(attention_layers(model).get("encoder", []))
    return position_limit(layers, getattr(getattr(model, "embed_source", None), "table", None))


def tokens_of(parts: Sequence[tuple[Vocabulary, Sequence[int]]], special: Collection[str]) -> tuple[Token, ...]:
    """Return the tokens of ids grouped into words; each part has its own vocabulary, and parts are concatenated.

    A piece begins a word if it starts with U+2581 or follows a special token. `special` are further pieces that
    separate texts, such as turn separators.
    """
    tokens: list[Token] = []
    word, in_text = -1, False
    for vocabulary, ids in parts:
        for id_, piece in zip(ids, vocabulary.pieces(ids), strict=True):
            if id_ in SPECIAL_IDS or piece in special:
                tokens.append(Token(piece, id_, None, special=True))
                in_text = False
                continue
            word += piece.startswith(MARK) or not in_text
            in_text = True
            tokens.append(Token(piece, id_, word))
    return tuple(tokens)
