"""The table of heads by what one word reads of another."""

from attnkit.analysis.maps import AttentionMaps
from attnkit.analysis.word_attention import rank_heads
from attnkit.show.attention_matrix import NAMES
from attnkit.show.table import Column, Table

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
