"""What readers of Hugging Face models share: rows made by a template, which may be a chat's."""

from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from attnkit.errors import DataError, UsageError
from attnkit.huggingface import Pretrained
from attnkit.huggingface.opening import one_line
from attnkit.models.base import CachePositions, Decode
from attnkit.nbce.reader import ContextReader, PromptRow, mapped

TEMPLATE = "{context}\n\n{prompt}"
"""Without a context, only what follows it is read."""
CHAT_TEMPLATE = "{context}\n\nQuestion: {prompt}\nAnswer in a few words:"
"""Of the user's message in a chat: models that follow instructions would answer in paragraphs."""


class TemplatedReader(ContextReader):
    """A model of transformers; all rows of a prompt end alike, whatever their context."""

    special = 4

    def __init__(self, opened: Pretrained, *, chat: bool, template: str) -> None:
        """Read the template, and find what the tokenizer puts before every text.

        `chat` puts context and prompt into the user's message of the model's chat template;
        `template` has {context} and, behind it, {prompt}; where it is empty, it is `TEMPLATE`, in
        a chat `CHAT_TEMPLATE`.

        Raises UsageError: the model has no chat template, or the template lacks a part.
        """
        self.model, self.tokenizer = opened.model, opened.tokenizer
        self.name, self.chat = opened.name, chat
        if chat and not getattr(self.tokenizer, "chat_template", None):
            raise UsageError(f"{self.name} has no chat template: leave it out (--chat)")
        self.template = template or (CHAT_TEMPLATE if chat else TEMPLATE)
        parts = self.template.split("{context}")
        if len(parts) != 2 or "{prompt}" not in parts[1] or "{prompt}" in parts[0]:
            raise UsageError(
                "a template needs {context} once and {prompt} behind it, as in "
                r"'{context}\n\n{prompt}'"
            )
        self.before, rest = parts
        self.after = rest.lstrip()
        self.gap = rest[: len(rest) - len(self.after)]
        added = getattr(self.tokenizer, "added_tokens_decoder", {}).values()
        marks = {str(token) for token in added if token.special}
        marks |= {*self.tokenizer.all_special_tokens}
        self.marks = tuple(sorted(mark for mark in marks if len(mark) > 1))
        bare, whole = self.encode("a"), [int(id_) for id_ in self.tokenizer("a")["input_ids"]]
        places = range(len(whole) - len(bare) + 1)
        start = next((p for p in places if whole[p : p + len(bare)] == bare), 0)
        self.begin_ids = () if chat else tuple(whole[:start])

    def end_ids(self, size: int) -> frozenset[int]:
        """Ids of a vocabulary of `size` tokens that end a text, as generation has them."""
        found = self.model.generation_config.eos_token_id if self.model.can_generate() else None
        if found is None:
            found = self.tokenizer.eos_token_id
        some = found if isinstance(found, list | tuple) else [found]
        return frozenset(int(id_) for id_ in some if id_ is not None and 0 <= id_ < size)

    def encode(self, text: str) -> list[int]:
        return [int(id_) for id_ in self.tokenizer(text, add_special_tokens=False)["input_ids"]]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, special ones left out."""
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def select(
        self, state: Decode, rows: Int[Tensor, " R"], begun: Int[Tensor, " b"] | None = None
    ) -> Decode:
        seen = state.moving[-1]
        count = len(seen.valid if isinstance(seen, CachePositions) else seen)
        if len(rows) == count and torch.equal(rows, torch.arange(count, device=rows.device)):
            return state
        return Decode(mapped(lambda some: some[0][rows], state.moving), ())

    def texts(self, context: str, prompt: str) -> tuple[str, str]:
        """The text of the template up to what all rows of a prompt end with, and that."""
        head = f"{self.before}{self._plain(context)}{self.gap}" if context else ""
        tail = self.after.replace("{prompt}", self._plain(prompt))
        if not self.chat:
            return head, tail
        message = [{"role": "user", "content": head + tail}]
        try:
            text: str = self.tokenizer.apply_chat_template(
                message, tokenize=False, add_generation_prompt=True
            )
        except Exception as error:  # it is a program of the model's own
            raise DataError(
                f"{self.name}: its chat template fails: {one_line(error)}: leave it out (--chat)"
            ) from error
        place = text.rfind(tail.strip())
        if place < 0:
            raise UsageError("the chat template changes the prompt: leave it out (--chat)")
        return text[:place], text[place:]

    def row(self, context: str, prompt: str) -> PromptRow:
        if not prompt.strip():
            return PromptRow((), ())
        head, tail = self.texts(context, prompt)
        ids = self._encode_behind("\n\n", tail)
        return PromptRow((*self.begin_ids, *self.encode(head)), tuple(ids))

    def _encode_behind(self, lead: str, text: str) -> list[int]:
        """The ids of a text that follows another: some tokenizers mark where a text starts."""
        before, whole = self.encode(lead), self.encode(lead + text)
        if whole[: len(before)] == before and len(whole) > len(before):
            return whole[len(before) :]
        return self.encode(text.removeprefix(" "))

    def _plain(self, text: str) -> str:
        """The text with the spellings of special tokens broken up.

        A context that could end the user's turn would speak in another's name.
        """
        for mark in self.marks:
            text = text.replace(mark, f"{mark[0]} {mark[1:]}")
        return text
