"""Attention maps of one sentence through the systems of a report."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from attnkit.analysis.maps import Capture, Kind
from attnkit.errors import AttnkitError
from attnkit.recipe import places
from attnkit.runs import Run
from attnkit.scoring.evaluated_lines import CorpusLine
from attnkit.show.attention_matrix import NAMES, mechanisms, notes
from attnkit.show.map_picture import picture
from attnkit.show.report.blocks import Block, Drawing, Figure, Fold, Note, ReportSection

MOST = 12
"""Systems whose maps are drawn, at most: each model is loaded."""
KINDS_SHOWN = 2
SHOWN = 9
"""Layers and heads that are drawn of each system, about."""
PREFERRED: tuple[Kind, ...] = ("cross", "encoder", "decoder")
WORDS = 10
"""Words of the test sentence that is taken, about."""


def map_section(
    systems: Mapping[str, Run], lines: Sequence[CorpusLine], sentence: str | None
) -> ReportSection:
    """Maps of the kinds of attention in which the systems differ, one figure a system.

    Args:
        systems: name -> run.
        lines: of the test set: one of them is read, with its reference as the output.
        sentence: what is read instead; each model writes its own output.

    Raises:
        UsageError, DataError: no model can read the sentence.
    """
    if sentence is None and not lines:
        return ReportSection("Attention maps", [Note("No maps: choose a text by --sentence.")])
    text, target = (sentence, None) if sentence is not None else _test_sentence(lines)
    kinds = _kinds(list(systems.values()))
    figures: dict[Kind, list[Figure]] = {kind: [] for kind in kinds}
    faults: list[tuple[str, AttnkitError]] = []
    for number, (name, run) in enumerate(list(systems.items())[:MOST], 1):
        try:
            captured = _captured(run, text, target, kinds)
            for kind, maps in captured.maps.items():
                shown = replace(captured, model=name, maps={kind: maps.spread(SHOWN)})
                drawn = picture([shown], kind, "svg")
                said = [f"{name}: {NAMES[kind]}, {mechanisms(maps)}", *notes(maps), *drawn.warnings]
                if target is None:
                    said.append(f"output: {captured.output} ({captured.how})")
                if note := captured.facts.get("note"):
                    said.append(note)
                drawing = Drawing(said[0], drawn.data)
                figures[kind].append(Figure(f"maps-{kind}-{number}", [drawing], "; ".join(said)))
        except AttnkitError as error:
            faults.append((name, error))
    if sentence is not None and len(faults) == min(MOST, len(systems)):
        raise faults[0][1]
    blocks: list[Block] = [Note(f"Sentence: {text}")]
    if target:
        blocks.append(Note(f"Output, given to every model: {target}"))
    blocks += [Note(f"{name}: no maps: {error}") for name, error in faults]
    if left_out := list(systems)[MOST:]:
        blocks.append(Note(f"Left out: maps of {', '.join(left_out)} (attnkit visualize-attn)"))
    blocks += [Fold(NAMES[kind].capitalize(), some, True) for kind, some in figures.items() if some]
    return ReportSection("Attention maps", blocks)


def _test_sentence(lines: Sequence[CorpusLine]) -> tuple[str, str]:
    """The first line with about so many words, and its reference."""
    line = min(lines, key=lambda one: abs(len(one.source.split()) - WORDS))
    return line.source, line.references[0]


def _kinds(runs: Sequence[Run]) -> list[Kind]:
    """The kinds of attention in which the runs differ; without any the first that they have."""
    found = {
        kind: {repr(getattr(run.recipe.model.attention, kind)) for run in runs
               if kind in places(run.recipe)}
        for kind in PREFERRED
    }  # fmt: skip
    different = [kind for kind, some in found.items() if len(some) > 1]
    return (different or [kind for kind, some in found.items() if some][:1])[:KINDS_SHOWN]


def _captured(run: Run, text: str, target: str | None, kinds: Sequence[Kind]) -> Capture:
    """Loads the model."""
    from attnkit.analysis.capture import capture

    here = [kind for kind in kinds if kind in places(run.recipe)]
    target = None if run.recipe.model.shape == "encoder" else target  # which writes nothing
    return capture(run, text, target=target, kinds=here or None, device="cpu")
