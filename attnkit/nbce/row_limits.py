"""Whether rows of contexts fit a model, and how long answers may be."""

from collections.abc import Sequence

from attnkit.nbce.reader import ContextReader
from attnkit.recipe.schema import SearchConfig

SHORTEST = 8  # an answer is not shortened below this to make contexts fit


def fitted(
    reader: ContextReader,
    contexts: Sequence[str],
    prompts: Sequence[str],
    spec: SearchConfig,
    fixed: bool,
) -> tuple[SearchConfig, list[str]]:
    """The search, with answers shortened to what rows leave room for unless their length is fixed.

    Also sentences on that, and on rows longer than those that the model was trained on.

    Raises UsageError: a row does not fit the model.
    """
    prompt = max(prompts, key=lambda text: reader.row("", text).longest)
    row = max((reader.row(text, prompt) for text in contexts), key=lambda row: row.longest)
    bare, length, notes = reader.row("", prompt).longest, spec.max_length, list[str]()
    if not fixed and reader.limit is not None:
        length = max(SHORTEST, min(length, reader.limit - row.longest))
    answer = length if fixed else SHORTEST
    window = row.longest - bare - reader.excess(row, answer)
    advice = f"split the context (--window {window})" if window > 0 else "shorten the prompt"
    reader.check([row], length, advice)
    if length < spec.max_length:
        notes.append(f"--max-length is {length}: there is no room for longer answers")
    if reader.trained is not None and row.longest - 1 > reader.trained:
        window = reader.trained + 1 - answer - bare
        advice = f"--window {window}" if window > 0 else "a shorter prompt"
        notes.append(
            f"the longest row has {row.longest - 1:,} tokens, but {reader.name} was trained on "
            f"rows of at most {reader.trained:,}: its answers may be unreliable; {advice} would fit"
        )
    return spec.model_copy(update={"max_length": length}), notes
