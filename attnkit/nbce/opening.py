"""Readers opened from finished runs and Hugging Face models."""

from pathlib import Path
from typing import TYPE_CHECKING

from attnkit.device import pick_device
from attnkit.errors import UsageError
from attnkit.nbce.reader import ContextReader
from attnkit.runs import Run, is_run
from attnkit.runs.demo import named

if TYPE_CHECKING:
    from attnkit.huggingface import Pretrained


def open_model(
    name: str | Path,
    *,
    device: str = "auto",
    dtype: str = "float32",
    offline: bool = False,
    chat: bool = False,
    template: str = "",
) -> ContextReader:
    """Open a folder with manifest.json as a run; otherwise a Hugging Face model, from a folder or from the hub.

    The other arguments are as in `attnkit.huggingface.open_model`.

    Args:
        chat: use the chat template of a Hugging Face model and ask for a short answer.
        template: text that contains {context} and, after it, {prompt}.

    Raises:
        MissingInputError: The model does not exist, or a path is not a folder.
        UsageError: The model cannot read several contexts or does not take an option.
        UnavailableError: transformers, the device or the network is not available.
        DataError: The model's files are damaged.
    """
    if is_run(str(name)):
        options = {"dtype": dtype != "float32", "chat": chat, "template": template}
        if refused := [option for option, is_set in options.items() if is_set]:
            raise UsageError(f"{name} is a run; remove {refused[0]}, which is for Hugging Face models only")
        return open_run(Run.open(name), pick_device(device))
    from attnkit import huggingface

    opened = huggingface.open_model(name, device=device, dtype=dtype, offline=offline)
    return pretrained_reader(opened, chat=chat, template=template)


def pretrained_reader(opened: "Pretrained", *, chat: bool, template: str) -> ContextReader:
    """Return the reader of an opened Hugging Face model; raises UsageError like `open_model`."""
    from attnkit.nbce.huggingface_reader import HuggingFaceEncoderDecoder, HuggingFaceReader

    if opened.shape == "encoder-decoder":
        return HuggingFaceEncoderDecoder(opened, chat=chat, template=template)
    return HuggingFaceReader(opened, chat=chat, template=template)


def open_run(run: Run, device: str = "cpu") -> ContextReader:
    """Return the reader of a finished run; raises UsageError if the model has no decoder."""
    from attnkit.nbce.run_reader import EncoderDecoderReader, LanguageModelReader

    if run.recipe.model.shape == "encoder":
        raise UsageError(f"{run.path}: a model of shape encoder cannot generate text")
    model, tokenizer, name = run.model(device), run.tokenizer(), named(str(run.path))
    max_length = run.recipe.data.max_length
    if model.shape == "encoder-decoder":
        return EncoderDecoderReader(model, tokenizer, name, max_length)
    pairs = run.recipe.task != "language-modeling"
    return LanguageModelReader(model, tokenizer, name, pairs=pairs, trained_length=max_length)
