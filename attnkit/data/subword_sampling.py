"""Random segmentations of words into the pieces of a vocabulary: unigram sampling, BPE dropout.

sentencepiece can sample too, but its generator is salted anew in every process, so that a resumed
training would see other data.  Here a segmentation is a pure function of (texts, pieces, alpha,
seed).  Pieces never cross a space, so that words are segmented one by one.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import cycle
from random import Random

from attnkit.data.text_form import MARK

# Draws of one word in one call; further occurrences take them in turn, so that the most frequent
# words cost no more, and each occurrence still has the exact distribution.
_DRAWS = 1000

# What sentencepiece adds to the lowest score for a character without a piece.
_UNKNOWN_PENALTY = -10.0

Pieces = Mapping[str, tuple[int, float]]
"""Each piece with its id and its score: a log-probability (unigram) or minus its rank (BPE)."""


class Segmenter:
    """Draws segmentations of a stretch of text without special tokens."""

    def __init__(self, pieces: Pieces, unknown: int, alpha: float) -> None:
        """`pieces` has no special tokens; `unknown` is the id of a character without a piece."""
        self.pieces, self.unknown, self.alpha = pieces, unknown, alpha

    def draws(self, text: str, number: int, random: Random) -> list[list[int]]:
        """Ids of `number` independent segmentations."""
        raise NotImplementedError


class UnigramSampler(Segmenter):
    """A segmentation with probability proportional to the product of its pieces' p ** alpha.

    Forward sums over the lattice of pieces, then a draw from the end to the start, as in Kudo
    2018 (arXiv 1804.10959, section 3.2, with l unlimited).
    """

    def draws(self, text: str, number: int, random: Random) -> list[list[int]]:
        arcs = self._arcs(text)
        draws = []
        for _ in range(number):
            ids, end = [], len(text)
            while end:
                point = random.random()
                _, end, id_ = next(arc for arc in arcs[end] if arc[0] > point)
                ids.append(id_)
            draws.append(ids[::-1])
        return draws

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.pieces), default=1)

    @cached_property
    def _unknown(self) -> tuple[int, float]:
        """Id and score of a character without a piece."""
        lowest = min((score for _, score in self.pieces.values()), default=0.0)
        return self.unknown, lowest + _UNKNOWN_PENALTY

    def _arcs(self, text: str) -> list[list[tuple[float, int, int]]]:
        """For each end, the pieces that end there: (probability up to and with it, start, id)."""
        forward = [0.0]
        arcs: list[list[tuple[float, int, int]]] = [[]]
        for end in range(1, len(text) + 1):
            here = []
            for start in range(max(0, end - self._longest), end):
                otherwise = self._unknown if start == end - 1 else None
                if piece := self.pieces.get(text[start:end], otherwise):
                    here.append((forward[start] + self.alpha * piece[1], start, piece[0]))
            top = max(here)[0]
            total = sum(math.exp(log - top) for log, _, _ in here)
            forward.append(top + math.log(total))
            running = 0.0
            arcs.append([])
            for log, start, id_ in here:
                running += math.exp(log - top) / total
                arcs[end].append((running, start, id_))
            # Rounding may leave the last sum below the point that is drawn.
            arcs[end][-1] = (math.inf, *here[-1][1:])
        return arcs


class BpeDropout(Segmenter):
    """BPE in which each possible merge of each step is left out with probability alpha.

    Provilkov, Emelianenko and Voita 2020 (arXiv 1910.13267, algorithm 1); alpha 0 is plain BPE.
    """

    def draws(self, text: str, number: int, random: Random) -> list[list[int]]:
        missing, draws = (self.unknown, 0.0), []
        for _ in range(number):
            symbols = list(text)
            while True:
                best, start = -math.inf, -1
                for i in range(len(symbols) - 1):
                    piece = self.pieces.get(symbols[i] + symbols[i + 1])
                    if piece and piece[1] > best and random.random() >= self.alpha:
                        best, start = piece[1], i
                if start < 0:
                    break
                symbols[start : start + 2] = [symbols[start] + symbols[start + 1]]
            draws.append([self.pieces.get(symbol, missing)[0] for symbol in symbols])
        return draws


def sample(texts: Sequence[str], segmenter: Segmenter, special: Mapping[str, int], seed: int) -> list[list[int]]:
    """Ids of one random segmentation of each text.

    Args:
        texts: words with single spaces between them.
        segmenter: draws for what is not special.
        special: text that is always one token, and its id.
        seed: any integer.
    """
    random = Random(seed)
    words = Counter(word for text in texts for word in text.split(" ") if word)
    draws = {
        word: cycle(_word(word, segmenter, special, min(number, _DRAWS), random)) for word, number in words.items()
    }
    return [[id_ for word in text.split(" ") if word for id_ in next(draws[word])] for text in texts]


def _word(word: str, segmenter: Segmenter, special: Mapping[str, int], number: int, random: Random) -> list[list[int]]:
    """`number` segmentations of one word; runs of unknown characters count as one token."""
    # Longest first, as sentencepiece matches.
    names = sorted(map(re.escape, special), key=len, reverse=True)
    parts = re.split(f"({'|'.join(names) or '(?!)'})", MARK + word)
    draws: list[list[int]] = [[] for _ in range(number)]
    for part in parts:
        if part in special:
            more = [[special[part]]] * number
        else:
            more = segmenter.draws(part, number, random) if part else [[]] * number
        draws = [before + after for before, after in zip(draws, more, strict=True)]
    unknown = segmenter.unknown
    return [[id_ for i, id_ in enumerate(ids) if id_ != unknown or i == 0 or ids[i - 1] != unknown] for ids in draws]
