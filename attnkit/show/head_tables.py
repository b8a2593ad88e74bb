"""Tables of heads: their numbers, and what one word reads of another."""

from attnkit.analysis.map_statistics import statistics
from attnkit.analysis.maps import AttentionMaps
from attnkit.analysis.word_attention import rank_heads
from attnkit.show.attention_matrix import NAMES, mechanisms, notes
from attnkit.show.table import Column, Table

_SPECIAL = "shares are of each query's attention: on the first key, on the last one of the text, "
_MEANINGS = {
    "encoder": f"distance: in tokens; {_SPECIAL}on the end token, on all special tokens",
    "decoder": (
        "distance: in tokens; shares are of each query's attention: on the first key, on the "
        "query's own token, on the end token, on all special tokens"
    ),
    "cross": (f"distance: between relative positions, 0 to 1; {_SPECIAL}on the end token, on all special tokens"),
}


def statistics_table(maps: AttentionMaps) -> Table:
    """A row a head: entropy in bits and as a share of the largest, distance, shares.

    What means nothing for a head is "-": the entropy of rows that are no distributions, the
    share of an end token that is not there.  The last column, where any layer has it, is half
    the L1 distance from exact softmax attention.
    """
    heads = [
        (layer, at, head, numbers)
        for layer, of_layer in zip(maps.layers, statistics(maps), strict=True)
        for at, (head, numbers) in enumerate(zip(maps.heads, of_layer, strict=True))
    ]

    def number(title: str, name: str, priority: int) -> Column:
        return Column(title, lambda it: getattr(it[3], name), "{:.2f}", name, priority=priority)

    fields = [
        Column("layer", lambda it: it[0].number, align="left"),
        Column("head", lambda it: it[2], align="left", key=True),
    ]
    if len({layer.mechanism for layer in maps.layers}) > 1:
        fields.append(Column("mechanism", lambda it: it[0].mechanism, align="left", priority=1))
    fields += [
        number("entropy bits", "entropy", 0),
        number("of maximum", "spread", 4),
        number("distance", "distance", 1),
        number("first", "first", 2),
        number("itself" if maps.kind == "decoder" else "last", "last", 3),
        number("end", "end", 3),
        number("special", "special", 5),
    ]
    meanings = [_MEANINGS[maps.kind]]
    if any(layer.distance for layer in maps.layers):
        fields.append(
            Column(
                "from softmax", lambda it: it[0].distance and it[0].distance[it[1]], "{:.2f}", "softmax", priority=1
            )
        )
        meanings.append("from softmax: mean of half the L1 distance of rows; 0 to 1 without negative weights")
    title = f"{NAMES[maps.kind]}, each head: {mechanisms(maps)}"
    return Table.of(title, heads, fields, (*meanings, *notes(maps, distance=False)))


CAVEAT = (
    "with many heads one can be found for almost any story: choose it first, and see whether it "
    "does the same in other sentences, and what is lost without it (attnkit probe heads)"
)


def reading_table(maps: AttentionMaps, reader: str, read: str) -> Table:
    """A row a head: how much of one word it reads at another, and what it reads most.

    Raises UsageError where a word is not in the text.
    """
    fields = (
        Column("layer", lambda one: one.layer, align="left"),
        Column("head", lambda one: one.head, align="left", key=True),
        Column(f"{reader} -> {read}", lambda one: one.weight, "{:.2f}", "weight"),
        Column("reads most", lambda one: one.most_read, str, "most_read", align="left", priority=1),
        Column("weight", lambda one: one.highest, "{:.2f}", "highest", priority=1),
    )
    title = f"{NAMES[maps.kind]}: what {reader} reads of {read}, each head"
    meaning = "weights: summed over the tokens of a word, averaged over those of the word that reads"
    return Table.of(title, rank_heads(maps, reader, read), fields, (meaning, CAVEAT))
