"""Interleaved attention: layer l has part l mod n, as in layers of local and of global attention.

`parts` lists two or more mechanisms, each a word or {name: word} with its options; the layers of a place take them in
turn, starting with the first, so [local, local, local, scaled-dot] makes every fourth layer global. Each layer is
entirely that of its part: its projections, its cost, its decoding state. A place can do what all of its parts can;
rotary positions rotate the queries and keys of the parts that have both. Source: Brown et al. 2020, "Language Models
are Few-Shot Learners", section 2.1 (dense and locally banded layers alternate); Gemma Team 2024, "Gemma 2: Improving
Open Language Models at a Practical Size", section 2 (local and global layers); Lieber et al. 2024, "Jamba: A Hybrid
Transformer-Mamba Language Model", section 2 (recurrent layers between attention layers).

Worked number: parts [local, local, scaled-dot] make layers 0 to 4 local, local, scaled-dot, local, local.
"""

from typing import Any

from attnkit.attention import Attention, Shape


class Interleaved(Attention):
    """Declaration of the options only: `mechanisms.layer_schedule` selects the part that a layer is built with."""

    composite = "parts"
    layered = True

    def __init__(self, shape: Shape, *, parts: tuple[str | dict[str, Any], ...]) -> None:
        super().__init__(shape)
