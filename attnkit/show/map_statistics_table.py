"""Each head's numbers as a table: how spread its weights are, how far and at what it looks."""

from attnkit.analysis.map_statistics import statistics
from attnkit.analysis.maps import AttentionMaps
from attnkit.analysis.word_attention import rank_heads
from attnkit.show.attention_matrix import NAMES, mechanisms, notes
from attnkit.show.table import NONE, Cell, Column, Table

_SPECIAL = "shares are of each query's attention: on the first key, on the last one of the text, "
_MEANINGS = {
    "encoder": f"distance: in tokens; {_SPECIAL}on the end token, on all special tokens",
    "decoder": (
        "distance: in tokens; shares are of each query's attention: on the first key, on the "
        "query's own token, on the end token, on all special tokens"
    ),
    "cross": (
        f"distance: between relative positions, 0 to 1; {_SPECIAL}on the end token, on all special "
        "tokens"
    ),
}


def statistics_table(maps: AttentionMaps) -> Table:
    """A row a head: entropy in bits and as a share of the largest, distance, shares.

    What means nothing for a head is "-": the entropy of rows that are no distributions, the
    share of an end token that is not there.  The last column, where any layer has it, is half
    the L1 distance from exact softmax attention.
    """
    approximate = any(layer.distance for layer in maps.layers)
    several = len({layer.mechanism for layer in maps.layers}) > 1
    columns = [Column("layer", "left"), Column("head", "left", key=True)]
    if several:
        columns.append(Column("mechanism", "left", priority=1))
    last = "itself" if maps.kind == "decoder" else "last"
    columns += [
        Column("entropy bits"), Column("of maximum", priority=4), Column("distance", priority=1),
        Column("first", priority=2), Column(last, priority=3), Column("end", priority=3),
        Column("special", priority=5),
    ]  # fmt: skip
    if approximate:
        columns.append(Column("from softmax", priority=1))
    rows = []
    for layer, of_layer in zip(maps.layers, statistics(maps), strict=True):
        for at, (head, numbers) in enumerate(zip(maps.heads, of_layer, strict=True)):
            row = [Cell(str(n), {name: n}) for name, n in (("layer", layer.number), ("head", head))]
            if several:
                row.append(Cell(layer.mechanism, {"mechanism": layer.mechanism}))
            row += [_number(name, value) for name, value in numbers._asdict().items()]
            if approximate:
                row.append(_number("softmax", layer.distance[at] if layer.distance else None))
            rows.append(tuple(row))
    title = f"{NAMES[maps.kind]}, each head: {mechanisms(maps)}"
    meanings = [_MEANINGS[maps.kind]]
    if approximate:
        meanings.append(
            "from softmax: mean of half the L1 distance of rows; 0 to 1 without negative weights"
        )
    footnotes = (*meanings, *notes(maps, distance=False))
    return Table(title, tuple(columns), tuple(rows), footnotes)


CAVEAT = (
    "with many heads one can be found for almost any story: choose it first, and see whether it "
    "does the same in other sentences, and what is lost without it (attnkit probe heads)"
)


def reading_table(maps: AttentionMaps, reader: str, read: str) -> Table:
    """A row a head: how much of one word it reads at another, and what it reads most.

    Raises UsageError where a word is not in the text.
    """
    columns = (
        Column("layer", "left"), Column("head", "left", key=True), Column(f"{reader} -> {read}"),
        Column("reads most", "left", priority=1), Column("weight", priority=1),
    )  # fmt: skip
    rows = tuple(
        (
            Cell(str(one.layer), {"layer": one.layer}),
            Cell(str(one.head), {"head": one.head}),
            _number("weight", one.weight),
            Cell(one.most_read, {"most_read": one.most_read}),
            _number("highest", one.highest),
        )
        for one in rank_heads(maps, reader, read)
    )
    title = f"{NAMES[maps.kind]}: what {reader} reads of {read}, each head"
    meaning = (
        "weights: summed over the tokens of a word, averaged over those of the word that reads"
    )
    return Table(title, columns, rows, (meaning, CAVEAT))


def _number(name: str, value: float | None) -> Cell:
    return Cell(NONE if value is None else f"{value:.2f}", {name: value})
