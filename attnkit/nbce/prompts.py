"""The rows of a Hugging Face model: contexts and prompts in a template, and in a chat's."""

from collections.abc import Sequence
from typing import Any

from attnkit.errors import UsageError
from attnkit.nbce.reader import PromptRow

TEMPLATE = "{context}\n\n{prompt}"
"""Without a context, only what follows it is read."""
SAMPLE = "a"


class Prompts:
    """Encodes rows so that all rows of a prompt end alike, whatever their context."""

    def __init__(
        self, tokenizer: Any, name: str, *, chat: bool = False, template: str = ""
    ) -> None:
        """Find the begin tokens.

        Args:
            tokenizer: of transformers.
            name: of the model, for errors.
            chat: put context and prompt into the user's message of the model's chat template.
            template: text with {context} and, behind it, {prompt}; default `TEMPLATE`.

        Raises:
            UsageError: the model has no chat template, or the template lacks a part.
        """
        self.tokenizer, self.chat = tokenizer, chat
        if chat and not getattr(tokenizer, "chat_template", None):
            raise UsageError(f"{name} has no chat template: leave it out (--chat)")
        parts = (template or TEMPLATE).split("{context}")
        if len(parts) != 2 or "{prompt}" not in parts[1] or "{prompt}" in parts[0]:
            raise UsageError(
                "a template needs {context} once and {prompt} behind it, as in "
                r"'{context}\n\n{prompt}'"
            )
        self.before, rest = parts
        self.after = rest.lstrip()
        self.gap = rest[: len(rest) - len(self.after)]
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        marks = {str(token) for token in added if token.special} | {*tokenizer.all_special_tokens}
        self.marks = tuple(sorted(mark for mark in marks if len(mark) > 1))
        self.start = () if chat else self._begin()

    def encode(self, text: str) -> list[int]:
        """The ids of some text, without those that the tokenizer adds."""
        return [int(id_) for id_ in self.tokenizer(text, add_special_tokens=False)["input_ids"]]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of some ids, special ones left out."""
        text: str = self.tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text

    def parts(self, context: str, prompt: str) -> tuple[str, str]:
        """The text of the template up to what all rows of a prompt end with, and that."""
        head = f"{self.before}{self._plain(context)}{self.gap}" if context else ""
        return head, self.after.replace("{prompt}", self._plain(prompt))

    def row(self, context: str, prompt: str) -> PromptRow:
        """The row of a prompt; context and prompt are encoded apart, so heads can be shared."""
        if not prompt.strip():
            return PromptRow((), ())
        head, asked = self.parts(context, prompt)
        if self.chat:
            message = [{"role": "user", "content": head + asked}]
            text: str = self.tokenizer.apply_chat_template(
                message, tokenize=False, add_generation_prompt=True
            )
            place = text.rfind(asked.strip())
            if place < 0:
                raise UsageError("the chat template changes the prompt: leave it out (--chat)")
            head, asked = text[:place], text[place:]
        return PromptRow((*self.start, *self.encode(head)), tuple(self._behind(asked)))

    def _plain(self, text: str) -> str:
        """The text, where the spelling of a special token is only text: a context that could end
        the user's turn would speak in another's name."""
        for mark in self.marks:
            text = text.replace(mark, f"{mark[0]} {mark[1:]}")
        return text

    def _behind(self, text: str) -> list[int]:
        """The ids of a text that follows another: some tokenizers mark the start of a text."""
        lead = self.encode("\n\n")
        whole = self.encode("\n\n" + text)
        if whole[: len(lead)] == lead and len(whole) > len(lead):
            return whole[len(lead) :]
        return self.encode(text)

    def _begin(self) -> tuple[int, ...]:
        """What the tokenizer puts before every text."""
        bare = self.encode(SAMPLE)
        whole = [int(id_) for id_ in self.tokenizer(SAMPLE)["input_ids"]]
        for place in range(len(whole) - len(bare) + 1):
            if whole[place : place + len(bare)] == bare:
                return tuple(whole[:place])
        return ()
