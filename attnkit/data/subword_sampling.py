"""Random segmentations of words into the pieces of a vocabulary: unigram sampling, BPE dropout.

sentencepiece can sample too, but seeds its generator anew in every process, so that a resumed training would see other
data. Here a segmentation is a pure function of (texts, pieces, alpha, seed). Pieces never cross a space, so that words
are segmented one by one.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import cycle
from random import Random

from attnkit.data.text_form import MARK

# Maximum number of draws per word and call. Further occurrences reuse them in turn: this bounds the cost of frequent
# words, and each occurrence still has the exact distribution.
_DRAWS = 1000

# sentencepiece's score of a character without a piece, relative to the lowest score.
_UNKNOWN_PENALTY = -10.0

Pieces = Mapping[str, tuple[int, float]]
"""Id and score of each piece: a log-probability (unigram) or minus its rank (BPE)."""


class Segmenter:
    """Sampler of segmentations of text without special tokens."""

    def __init__(self, pieces: Pieces, unknown: int, alpha: float) -> None:
        """`pieces` has no special tokens; `unknown` is the id of a character without a piece."""
        self.pieces, self.unknown, self.alpha = pieces, unknown, alpha

    def draws(self, text: str, number: int, random: Random) -> list[list[int]]:
        """Return the ids of `number` independent segmentations."""
        raise NotImplementedError


class UnigramSampler(Segmenter):
    """Sampler that draws segmentations in proportion to the product of their pieces' p ** alpha.

    Forward sums over the lattice of pieces, then a draw from the end to the start, as in Kudo 2018 (arXiv 1804.10959,
    section 3.2, with l unlimited).
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
        """Return, for each end, the pieces that end there: (cumulative probability, start, id)."""
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
            # Rounding may leave the last sum below a draw in [0, 1).
            arcs[end][-1] = (math.inf, *here[-1][1:])
        return arcs


class BpeDropout(Segmenter):
    """BPE that skips each possible merge of each step with probability alpha.

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
    """Return the ids of one random segmentation of each text, whose words are separated by single spaces.

    `special` maps texts that are always one token to their ids.
    """
    random = Random(seed)
    words = Counter(word for text in texts for word in text.split(" ") if word)
    draws = {
        word: cycle(_segment(word, segmenter, special, min(number, _DRAWS), random)) for word, number in words.items()
    }
    return [[id_ for word in text.split(" ") if word for id_ in next(draws[word])] for text in texts]


def _segment(
    word: str, segmenter: Segmenter, special: Mapping[str, int], number: int, random: Random
) -> list[list[int]]:
    """Return `number` segmentations of a word; a run of unknown characters is one token."""
    # Longest match first, as in sentencepiece.
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
