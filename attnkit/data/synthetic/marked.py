"""Generated rows in which only marked positions are predicted, as in published benchmarks.

A row has as many target tokens as source tokens, with `NOTHING` at positions that are not predicted.  The card of a
corpus names the writer of its rows and the settings of this writer.

    parity       tokens 1 and 2; the last position has the parity of the twos (Grazzi et al. 2025)
    permutations permutations of three things; each position has the product of all up to it (Siems et al. 2025, after
                 Merrill et al. 2024)
    recall       keys with values, then keys again among fillers, at gaps that follow a power law; each has its value
                 (MQAR, Arora et al. 2024; the code of Zoology)
    reversal     numbers, and the same in reverse order; nothing is marked, because the target is a text of its own
                 (the tutorial of JoeyNMT, Kreutzer et al. 2019)
    and of MAD (Poli et al. 2024, "Mechanistic Design and Scaling of Hybrid Architectures"):
    memorization keys of a fixed map, each followed by an insert token that has the key's value
    in-context   pairs of keys and values, with noise among them; a repeated key has its value
    fuzzy        the same, with keys and values of one to three tokens
    selective    tokens among blanks, then as many blanks, which have the tokens in order
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import permutations
from typing import ClassVar, NamedTuple

from attnkit.data.draw import Draw
from attnkit.data.rows import Row
from attnkit.data.text_form import NOTHING
from attnkit.recipe.corpus_cards import Marked

Pairs = Iterator[tuple[int | str, int | str]]
"""Source and target token of each position; the target is `NOTHING` if it is not predicted."""


class Length(NamedTuple):
    """Number of tokens in a row and, in recall, of pairs among them."""

    tokens: int
    pairs: int = 0


def parity(draw: Draw, length: Length, settings: Marked, split: str) -> Pairs:
    bits = [draw.randint(1, 2) for _ in range(length.tokens)]
    yield from ((bit, NOTHING) for bit in bits[:-1])
    yield bits[-1], 1 + bits.count(2) % 2


def reversal(draw: Draw, length: Length, settings: Marked, split: str) -> Pairs:
    numbers = [draw.randrange(settings.vocabulary) for _ in range(length.tokens)]
    yield from zip(numbers, reversed(numbers), strict=True)


SYMMETRIC = tuple(permutations(range(3)))


def permuted(draw: Draw, length: Length, settings: Marked, split: str) -> Pairs:
    total = SYMMETRIC[0]
    for _ in range(length.tokens):
        step = draw.randrange(len(SYMMETRIC))
        total = (total[SYMMETRIC[step][0]], total[SYMMETRIC[step][1]], total[SYMMETRIC[step][2]])
        yield step, SYMMETRIC.index(total)


def recall(draw: Draw, length: Length, settings: Marked, split: str) -> Pairs:
    half, space = settings.vocabulary // 2, length.tokens // 2 - length.pairs
    keys = [1 + place for place in draw.distinct(half - 1, length.pairs)]
    values = [half + place for place in draw.distinct(settings.vocabulary - half, length.pairs)]
    yield from ((token, NOTHING) for pair in zip(keys, values, strict=True) for token in pair)
    # Draws without replacement from p(gap) ~ gap^-0.99: the largest of u^(1/p) (Efraimidis and Spirakis 2006).
    weights = ((draw.uniform() ** (gap**0.99), gap) for gap in range(1, space + 1))
    gaps = [gap - 1 for _, gap in sorted(weights, reverse=True)[: length.pairs]]
    queries = dict(zip(gaps, zip(keys, values, strict=True), strict=True))
    for place in range(2 * space):
        if place % 2 == 0 and place // 2 in queries:
            yield queries[place // 2]
        else:
            yield draw.randrange(settings.vocabulary) if settings.random_fill else 0, NOTHING


@cache
def values_of(vocabulary: int) -> list[int]:
    """Return the value of each key, which does not depend on the seed of the rows."""
    half = (vocabulary - 1) // 2
    return Draw(f"mad/{vocabulary}").sample(range(half, vocabulary - 1))


def memorization(draw: Draw, length: Length, settings: Marked, split: str) -> Pairs:
    insert, values = settings.vocabulary - 1, values_of(settings.vocabulary)
    for _ in range(length.tokens // 2):
        key = draw.randrange(insert // 2)
        yield key, NOTHING
        yield insert, values[key]


def in_context(draw: Draw, length: Length, settings: Marked, split: str) -> Pairs:
    tokens = settings.vocabulary - settings.noise_tokens
    half, seen, row = tokens // 2, dict[int, int](), list[tuple[int, bool]]()
    pairs = length.tokens // 2
    clean_pair = draw.randrange(pairs)  # index of a pair that is not noise
    for pair in range(pairs - 1):
        if pair != clean_pair and draw.chance(settings.noise):
            row += [(draw.randint(tokens, settings.vocabulary - 1), False) for _ in range(2)]
            continue
        key = draw.randrange(half)
        row += [(key, False), (seen.get(key, draw.randint(half, tokens - 1)), key in seen)]
        seen[key] = row[-1][0]
    key = draw.choice([*seen] or [0])
    row += [(key, False), (seen.get(key, half), True)]
    yield from _shifted(row, split)


def fuzzy(draw: Draw, length: Length, settings: Marked, split: str) -> Pairs:
    pad = settings.vocabulary - 1
    half, longest = pad // 2, 3
    seen, row = dict[tuple[int, ...], tuple[int, ...]](), list[tuple[int, bool]]()

    def motif(low: int, high: int, size: int) -> tuple[int, ...]:
        return tuple(low + place for place in draw.distinct(high - low, size))

    def key() -> tuple[int, ...]:  # outside of training, of maximum length
        return motif(0, half, draw.randint(1, longest) if split == "train" else longest)

    def value() -> tuple[int, ...]:
        return motif(half, pad, draw.randint(1, longest))

    probe, answer = key(), value()
    end = length.tokens - len(probe) - len(answer)
    start = draw.randrange(end - len(probe) - len(answer))
    while len(row) < end - 2 * longest:
        first = len(row) >= start and probe not in seen
        source = probe if first else key()
        target = seen.get(source) or (answer if source == probe else value())
        row += [(token, False) for token in source] + [(token, source in seen) for token in target]
        seen[source] = target
    row += [(token, False) for token in probe] + [(token, True) for token in answer]
    yield from _shifted([(pad, False)] * (length.tokens + 1 - len(row)) + row, split)


def _shifted(row: list[tuple[int, bool]], split: str) -> Pairs:
    """Yield each token with the next one as its target: all of them in training, otherwise the marked ones."""
    for (token, _), (after, marked) in zip(row, row[1:], strict=False):
        yield token, after if marked or split == "train" else NOTHING


def selective(draw: Draw, length: Length, settings: Marked, split: str) -> Pairs:
    count, copy, blank = settings.copied, settings.vocabulary - 1, settings.vocabulary - 2
    text = [draw.randrange(blank) for _ in range(count)]
    blanks = [0] * count
    for _ in range(length.tokens - 2 * count - 1):
        blanks[draw.randrange(count)] += 1
    for token, before in zip(text, blanks, strict=True):
        yield from [(blank, NOTHING)] * before
        yield token, NOTHING
    yield copy, NOTHING
    yield from ((blank, token) for token in text)


WRITERS: dict[str, Callable[[Draw, Length, Marked, str], Pairs]] = {
    "parity": parity,
    "reversal": reversal,
    "permutations": permuted,
    "recall": recall,
    "memorization": memorization,
    "in-context": in_context,
    "fuzzy": fuzzy,
    "selective": selective,
}


@dataclass(frozen=True)
class MarkedRows:
    """Generator of one corpus."""

    corpus: str
    settings: Marked
    VERSION: ClassVar = 1

    @property
    def SIZES(self) -> dict[str, int]:  # noqa: N802 (as other generators call it)
        """Number of rows in each split."""
        return {"train": 0, "valid": 0, "test": 0} | {
            split: sum(part.rows for part in parts) for split, parts in self.settings.splits.items()
        }

    @property
    def words(self) -> str:
        """All tokens that a row can contain."""
        return " ".join(map(str, (*range(self.settings.vocabulary), NOTHING)))

    def rows(self, split: str, size: int, seed: int, length: int = 0) -> Iterator[Row]:
        """Yield `size` rows of a split, all of `length` or, if it is 0, of the lengths in the card."""
        parts = [part for part in self.settings.splits[split] for _ in range(part.rows)]
        draw = Draw(f"{self.VERSION}/{self.corpus}/{split}/{seed}/{length}")
        write = WRITERS[self.settings.writer]
        for number in range(size):
            part = parts[number * len(parts) // size if size > len(parts) else number]
            tokens = length or draw.randint(*part.tokens)
            pairs = [*write(draw, Length(tokens, part.pairs), self.settings, split)]
            source, target = zip(*pairs, strict=True)
            yield Row(" ".join(map(str, source)), " ".join(map(str, target)))
