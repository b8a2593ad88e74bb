"""Tables of `attnkit probe` about heads and layers: ablation, noise, entropy, rank, attention between words."""

from collections.abc import Mapping, Sequence
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, NamedTuple

from attnkit.recipe.metrics import direction_note, metric_facts
from attnkit.show.differences import signed, significance, significance_note
from attnkit.show.table import PLUS_MINUS, Cell, Column, Table, Value

if TYPE_CHECKING:
    from attnkit.analysis.head_ablation import HeadPlace, Importance
    from attnkit.analysis.map_entropy import HeadEntropy
    from attnkit.analysis.map_rank import LayerRanks
    from attnkit.analysis.maps import AttentionMaps
    from attnkit.analysis.score_noise import NoiseEffects, NoisyPart
    from attnkit.scoring import Score

CAVEAT = (
    "with many heads, some head fits almost any hypothesis: choose a head first, test the head "
    "on other sentences, and ablate the head (attnkit probe heads)"
)


def heads_table(title: str, importance: "Importance") -> Table:
    """Return a row for the whole model, and a row for each ablated head."""

    def of_metric(name: str) -> list[Column]:
        effects = {place: by_metric[name] for place, by_metric in importance.effects.items()}
        whole, max_loss = importance.whole[name].value, max(effect.loss for effect in effects.values())

        def loss(place: "HeadPlace | None") -> str:
            if place is None:
                return ""
            return signed(effects[place].loss) + significance(effects[place].p_corrected)

        def score(place: "HeadPlace | None") -> float:
            return whole if place is None else effects[place].score

        def best(place: "HeadPlace | None") -> bool:
            return place is not None and effects[place].loss == max_loss

        return [Column(metric_facts(name).title, score, "{:.2f}"), Column("loss", loss, under=True, best=best)]

    def record(place: "HeadPlace | None") -> dict[str, Value]:
        named: dict[str, Value] = dict.fromkeys(("kind", "layer", "head"))
        if place is None:
            for name, whole in importance.whole.items():
                named |= {name: whole.value, f"{name}_loss": 0.0}
            return named
        named |= place._asdict()
        for name, effect in importance.effects[place].items():
            named |= {
                name: effect.score,
                f"{name}_loss": effect.loss,
                f"{name}_p": effect.p,
                f"{name}_p_corrected": effect.p_corrected,
            }
        return named

    fields = [
        Column("without", lambda place: place.kind if place else "nothing", align="left"),
        Column("layer", lambda place: place.layer if place else "", key=True),
        Column("head", lambda place: place.head if place else "", key=True),
        *(field for name in importance.whole for field in of_metric(name)),
    ]
    notes = [
        *_signatures(importance.whole),
        f"rows: {importance.rows:,}",
        "loss: how much worse than the full model; "
        + significance_note("rows", importance.resamples, len(importance.effects), "heads"),
        "no loss does not mean that a head is unused: other heads may compensate for the ablation",
    ]
    rows = [None, *importance.effects]
    return Table.of(f"{title}, one head ablated", rows, fields, notes, record=record)


def effects_table(title: str, effects: "NoiseEffects", together: str) -> Table:
    """Return a row for the model without noise, and a row for each noisy part and sigma.

    `together` is the name of the part in which all layers are noisy.
    """

    def sigma(condition: "tuple[NoisyPart, float] | None") -> Cell:
        value = condition[1] if condition else 0.0
        return Cell(f"{value:g}", {"sigma": value})

    def part(condition: "tuple[NoisyPart, float] | None") -> Cell:
        kind, layer = condition[0] if condition else (None, None)
        name = kind or (together if condition else "nothing")
        return Cell(name if layer is None else f"{name}, layer {layer}", {"kind": kind, "layer": layer})

    def of_metric(name: str) -> list[Column]:
        clean, worse = effects.clean[name].value, metric_facts(name).better == "lower"

        def score(condition: "tuple[NoisyPart, float] | None") -> Cell:
            values = effects.noisy[condition][name] if condition else [clean]
            center, spread = mean(values), stdev(values) if values[1:] else None
            text = f"{center:.2f}" + (f" {PLUS_MINUS} {spread:.2f}" if spread is not None else "")
            return Cell(text, {name: center, f"{name}_sd": spread if condition else 0.0})

        def loss(condition: "tuple[NoisyPart, float] | None") -> Cell:
            lost = (mean(effects.noisy[condition][name]) - clean) * (1 if worse else -1) if condition else 0.0
            return Cell(signed(lost) if condition else "", {f"{name}_loss": lost})

        return [Column(metric_facts(name).title, score), Column("loss", loss, under=True)]

    columns = [Column("noise on", part, align="left"), Column("sigma", sigma)]
    columns += [column for name in effects.clean for column in of_metric(name)]
    notes = [
        *_signatures(effects.clean),
        f"rows: {effects.rows:,}",
        "sigma: standard deviation of the noise, which is added before the softmax and after the "
        "mask; loss: how much worse than without noise",
    ]
    if effects.seeds > 1:
        notes.append(f"mean and standard deviation over {effects.seeds} draws of the noise")
    return Table.of(title, [None, *effects.noisy], columns, notes)


def _signatures(scores: "Mapping[str, Score]") -> list[str]:
    return [f"{metric_facts(name).title}{direction_note(name)}: {score.signature}" for name, score in scores.items()]


def entropy_table(title: str, entropies: "Sequence[HeadEntropy]") -> Table:
    """Return a row for each head and stage, grouped by head."""
    fields = [
        Column("attention", lambda head: head.kind, name="kind", align="left", key=True),
        Column("layer", lambda head: head.layer.number, align="left", key=True),
        Column("head", lambda head: head.head, align="left", key=True),
        Column("stage", lambda head: head.stage.name, align="left"),
        Column("step", lambda head: head.stage.step, "{:,}", priority=2),
        Column("entropy bits", lambda head: head.spread.entropy, "{:.2f}", "entropy"),
        Column("of maximum", lambda head: head.spread.share, "{:.2f}", "share"),
        Column("gradient", lambda head: head.spread.gradient, "{:.2f}"),
    ]
    if len({head.layer.mechanism for head in entropies}) > 1:
        fields.insert(3, Column("mechanism", lambda head: head.layer.mechanism, align="left", priority=1))
    heads = dict.fromkeys((head.kind, head.layer.number, head.head) for head in entropies)
    order = {key: index for index, key in enumerate(heads)}
    rows = sorted(entropies, key=lambda head: order[head.kind, head.layer.number, head.head])
    notes = [
        "entropy: of each query's weights, in bits, averaged over queries; of maximum: as a share of "
        "the maximum, log2 of the number of visible keys",
        "gradient: half the L1 norm of the derivative of the weights with respect to the scores, 1 - sum p^2",
    ]
    if any(head.spread.entropy is None for head in entropies):
        notes.append("-: rows are not distributions (negative weights, or sums other than 1)")
    if any(head.spread.gradient is None for head in entropies):
        notes.append("a map without a softmax has no gradient with respect to scores")
    return Table.of(title, rows, fields, notes)


class RankRow(NamedTuple):
    """Ranks of the maps of a layer of a run."""

    run: str
    layer: "LayerRanks"


def rank_table(title: str, rows: Sequence[RankRow]) -> Table:
    """Return a row for each layer of each run."""
    from attnkit.analysis.map_rank import THRESHOLD

    def over_heads(
        title: str, name: str, ranks: str, form: str = "{:,.1f}", reduce: Any = mean, priority: int = 0
    ) -> Column:
        def value(row: RankRow) -> float:
            return float(reduce([getattr(head, ranks) for head in row.layer.heads.values()]))

        return Column(title, value, form, name, priority=priority)

    fields = [
        Column("attention", lambda row: row.layer.kind, align="left"),
        Column("layer", lambda row: row.layer.layer.number, align="left"),
        Column("mechanism", lambda row: row.layer.layer.mechanism, align="left", priority=3),
        over_heads("effective rank", "effective_rank", "effective"),
        over_heads("lowest", "lowest", "effective", reduce=min, priority=2),
        over_heads("highest", "highest", "effective", reduce=max, priority=2),
        over_heads("of maximum", "share", "share", "{:.2f}", priority=1),
        over_heads("numerical rank", "numerical_rank", "numerical"),
    ]
    if len({row.run for row in rows}) > 1:
        fields.insert(0, Column("run", lambda row: row.run, align="left"))
    notes = (
        "effective rank: exp of the entropy of the normalized singular values; of maximum: as a "
        f"share of the tokens; numerical rank: singular values above {THRESHOLD:g} of the largest",
        "averaged over rows and heads; lowest, highest: over heads",
    )
    return Table.of(title, rows, fields, notes)


def reading_table(maps: "AttentionMaps", reader: str, read: str) -> Table:
    """Return a row for each head: its weight from the word `reader` to the word `read`, and the word it reads most.

    Raises UsageError if a word is not in the text.
    """
    from attnkit.analysis.word_attention import rank_heads
    from attnkit.show.attention_matrix import NAMES

    fields = (
        Column("layer", lambda head: head.layer, align="left"),
        Column("head", lambda head: head.head, align="left", key=True),
        Column(f"{reader} -> {read}", lambda head: head.weight, "{:.2f}", "weight"),
        Column("reads most", lambda head: head.most_read, str, "most_read", align="left", priority=1),
        Column("weight", lambda head: head.highest, "{:.2f}", "highest", priority=1),
    )
    title = f"{NAMES[maps.kind]}: weight from {reader} to {read} in each head"
    meaning = "weights: summed over the tokens of the word read, averaged over the tokens of the reading word"
    return Table.of(title, rank_heads(maps, reader, read), fields, (meaning, CAVEAT))
