"""toy-listops: nested lists of digits under an operator, each with a digit as its answer.

Operators are minimum, maximum, median (the mean of the two middle values, rounded down), and the sum modulo 10.  Rows
are written as Long Range Arena feeds them to its models: operators without their opening brackets, and X for a closing
bracket.

Source: Nangia and Bowman 2018, "ListOps: A Diagnostic Dataset for Latent Tree Learning"; depths, arguments and lengths
as in Tay et al. 2021, "Long Range Arena", lra_benchmarks/data/listops.py; words as in
lra_benchmarks/listops/input_pipeline.py.
"""

from collections.abc import Callable, Iterator
from statistics import median

from attnkit.data.draw import Draw
from attnkit.data.rows import Row

VERSION = 1
SIZES = {"train": 96000, "valid": 2000, "test": 2000}
DEPTH, ARGUMENTS, NESTED = 10, 10, 0.25
"""Maximum depth, maximum number of arguments of a list, and share of arguments that are lists."""
SHORTEST, LONGEST = 500, 2000
"""Exclusive bounds of the length in tokens."""
END = "X"
"""Token for the end of a list."""

OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "MIN": min,
    "MAX": max,
    "MED": lambda values: int(median(values)),
    "SM": lambda values: sum(values) % 10,
}
words = " ".join((*OPERATORS, *map(str, range(10)), END))


def rows(split: str, size: int, seed: int) -> Iterator[Row]:
    """Yield `size` rows of a split; lists that are too short or too long are drawn again."""
    draw = Draw(f"{VERSION}/listops/{split}/{seed}")
    for _ in range(size):
        while True:
            tokens = list[str]()
            answer = _write(draw, 1, tokens)
            if SHORTEST < len(tokens) < LONGEST:
                yield Row(" ".join(tokens), str(answer))
                break


def _write(draw: Draw, depth: int, tokens: list[str]) -> int:
    """Append a list of this depth to the tokens and return its value."""
    operator = draw.choice([*OPERATORS])
    tokens.append(operator)
    values = list[int]()
    for _ in range(draw.randint(2, ARGUMENTS)):
        if depth < DEPTH - 1 and len(tokens) < LONGEST and draw.chance(NESTED):
            values.append(_write(draw, depth + 1, tokens))
        else:
            values.append(draw.randrange(10))
            tokens.append(str(values[-1]))
    tokens.append(END)
    return OPERATORS[operator](values)
