"""Models trained by sentencepiece itself, as other projects publish them."""

import io
from collections.abc import Iterable

import sentencepiece


def train(lines: Iterable[str], size: int, **settings: object) -> bytes:
    """Train a model on lines, with attnkit's special ids unless `settings` change them."""
    model = io.BytesIO()
    ids = {"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3}
    quiet = {"minloglevel": 2, "hard_vocab_limit": False, "num_threads": 1}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=size, **(ids | quiet | settings)
    )
    return model.getvalue()
