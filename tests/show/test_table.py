"""Tests of tables: comparisons and their notes, width of the screen, formats, hostile text."""

import csv
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from helpers import score_rows
from helpers.score_rows import compare_rows, fixed_difference, fixed_score, score_row, with_values
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from attnkit.cli.output import choose_columns
from attnkit.recipe.published import Published
from attnkit.runs.json_files import StoredSearch
from attnkit.scoring import Comparison, ScoreRow
from attnkit.scoring.results import BestSystem, PublishedFigures, SystemDifference
from attnkit.show import table_formats
from attnkit.show.comparison_notes import run_notes
from attnkit.show.comparison_tables import comparison_table
from attnkit.show.differences import few_items_note
from attnkit.show.table import NONE, Cell, Column, Table

SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
HOSTILE = "\x1b]0;x\x07[/b]\u202e&<|_*\\%${}#~^\n`"
RECIPE = "translation/multi30k"


def run(variant: str, seed: int, score: float, ter: float, **more: Any) -> ScoreRow:
    """Return a row of a comparison."""
    scores = {
        "bleu": fixed_score("bleu", score, SIGNATURE),
        "ter": fixed_score("ter", ter, "nrefs:1|case:lc|version:2.6.0"),
    }
    defaults = {
        "recipe": RECIPE,
        "seed": seed,
        "parameters": 5412864,
        "train_tokens_per_second": 7712.25,
        "sentences_per_second": 45.625,
        "run": f"runs/translation/multi30k/{variant}/seed-{seed}",
    }
    return score_row(variant, scores, **(defaults | more))


def against(variant: str, metric: str, difference: float | None, p: float, *why: str, **more: Any) -> SystemDifference:
    """Return the difference of a variant from the baseline."""
    base, row = run("vanilla", 1, 0, 0), run(variant, 1, 0, 0)
    tested = None if difference is None else fixed_difference(difference, p, 4 * p, **more)
    return score_rows.system_difference(base, row, metric, tested, *why)


def comparison(*rows: ScoreRow, **more: Any) -> Comparison:
    """Compare the given rows, or three variants with two seeds."""
    if rows:
        return compare_rows(*rows, **more)
    bleu, ter = (39.0, 40.0, 37.0, 37.5, 41.0, 41.5), (44.0, 43.0, 46.0, 45.0, 43.0, 42.0)
    systems = product(("vanilla", "synthesizer-random", "linear"), (1, 2))
    rows = tuple(run(*system, *scores) for system, *scores in zip(systems, bleu, ter, strict=True))
    differences = (
        against("synthesizer-random", "bleu", -2.25, 0.000999),
        against("synthesizer-random", "ter", 2.0, 0.02),
        against("linear", "bleu", 1.75, 0.008),
        against("linear", "ter", -1.0, 0.01),
    )
    worse = (rows[2], fixed_difference(1, 0.001, 0.001))
    best = tuple(
        BestSystem(rows[4], metric, ((rows[0], fixed_difference(1, p, p)), worse))
        for metric, p in (("bleu", 0.01), ("ter", 0.5))
    )
    defaults = {"baseline": "vanilla", "differences": differences, "resamples": 1000, "best": best}
    return compare_rows(*rows, **(defaults | more))


def shown(table: Table, width: int) -> str:
    """Return the text on a terminal of this width."""
    out = io.StringIO()
    Console(width=width, file=out).print(table)
    return out.getvalue()


def lines_of(width: int) -> list[str]:
    """Return the lines of the comparison on a screen of this width, with one space between columns."""
    return [" ".join(line.split()) for line in shown(comparison_table(comparison()), width).split("\n")]


def csv_rows(table: Table) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(table_formats.csv_text(table))))


def test_comparison_has_means_deviations_differences_and_stars() -> None:
    table = comparison_table(comparison())
    scores = ["BLEU", "difference", "TER", "difference"]
    costs = ["seeds", "parameters", "train tokens/s", "decode sentences/s"]
    assert [column.title for column in table.columns] == ["variant", *scores, *costs]
    assert [[row[column].text for row in table.rows] for column in range(5)] == [
        ["vanilla", "synthesizer-random", "linear"],
        ["39.50 \u00b1 0.71", "37.25 \u00b1 0.35", "41.25 \u00b1 0.35"],
        ["-", "-2.25 [-3.25, -1.25] p=0.004 **", "+1.75 [+0.75, +2.75] p=0.032 *"],
        ["43.50 \u00b1 0.71", "45.50 \u00b1 0.71", "42.50 \u00b1 0.71"],
        ["-", "+2.00 [+1.00, +3.00] p=0.080", "-1.00 [-2.00, 0.00] p=0.040 *"],
    ]
    assert [cell.text for cell in table.rows[0][5:]] == ["2", "5,412,864", "7,712", "45.6"]


def test_perplexities_differ_by_percent() -> None:
    """The values in CSV are in points, too."""
    rows = [run(name, 1, 100.0, 100.0) for name in ("vanilla", "linear")]
    rows = [replace(row, scores={"perplexity": row.scores["bleu"]}) for row in rows]
    difference = against("linear", "perplexity", 1.0, 0.1, percent=(1.0, -0.5, 2.5), within_margin=True, margin=3.0)
    table = comparison_table(comparison(*rows, differences=(difference,), resamples=1000))
    assert table.rows[1][2].text == "+1.00 % [-0.50, +2.50] p=0.400 level"
    assert any("level: the whole interval lies within 3 % of perplexity" in note for note in table.notes)
    row = csv_rows(table)[1]
    assert [row[f"perplexity_{name}"] for name in ("difference", "percent_low", "verdict")] == ["1.0", "-0.5", "level"]


def test_best_is_the_lowest_where_lower_is_better() -> None:
    table = comparison_table(comparison())
    best = [[number for number, cell in enumerate(row) if cell.best] for row in table.rows]
    assert best == [[], [], [1, 3]]


def test_systems_inseparable_from_the_best_are_marked_in_all_formats() -> None:
    """TER of vanilla is not significantly worse than that of linear."""
    table = comparison_table(comparison())
    marked = [[at for at, cell in enumerate(row) if cell.inseparable] for row in table.rows]
    assert marked == [[3], [], [1, 3]]
    for width in (200, 80, 36):
        text = shown(table, width)
        assert "^ 43.50 \u00b1 0.71" in text
        assert "^ 41.25 \u00b1 0.35" in text
        assert "^ 39.50" not in text
        assert "^: not separable from the best" in " ".join(text.split())
    assert "| ^ **42.50 \u00b1 0.71** |" in table_formats.markdown(table)
    assert r"& \textasciicircum{} \textbf{42.50 $\pm$ 0.71}" in table_formats.latex(table)
    assert [row["ter_not_separable_from_best"] for row in csv_rows(table)] == ["True", "False", "True"]
    rows = json.loads(table_formats.json_text(table))["rows"]
    assert [row["bleu_not_separable_from_best"] for row in rows] == [False, False, True]


def test_without_p_values_no_system_is_marked() -> None:
    differences = tuple(replace(difference, tested=None) for difference in comparison().differences)
    table = comparison_table(comparison(best=(), differences=differences, resamples=0))
    assert not any(cell.inseparable for row in table.rows for cell in row)
    assert any("eval.bootstrap is 0" in note for note in table.notes)
    assert "ter_not_separable_from_best" not in table_formats.csv_text(table)


def test_differences_of_one_seed_are_provisional() -> None:
    one_seed = tuple(
        replace(difference, tested=difference.tested and replace(difference.tested, seed_degrees=0))
        for difference in comparison().differences
    )
    notes = comparison_table(comparison(differences=one_seed)).notes
    (note,) = [note for note in notes if note.startswith("provisional, as each system has one seed: ")]
    assert note.endswith("cover other test sentences, not other training seeds")


def published(**changed: Any) -> tuple[PublishedFigures]:
    """Return published figures of one variant of the comparison."""
    defaults = {
        "source": "Some 2021, table 1",
        "comparable": False,
        "why": "another corpus",
        "split": None,
        "scores": {"vanilla": {"bleu": 27.67, "chrf": 5.0}},
    }
    return (PublishedFigures(RECIPE, Published.model_validate(defaults | changed)),)


def test_published_figures_have_a_column_and_their_source() -> None:
    table = comparison_table(comparison(published=published()))
    place = [column.title for column in table.columns].index("published BLEU")
    assert [row[place].text for row in table.rows] == ["(27.67)", "-", "-"]
    assert table.rows[0][place].dim
    assert not any("chrF" in column.title for column in table.columns)
    assert "published: Some 2021, table 1; not comparable: another corpus" in table.notes
    assert csv_rows(table)[0]["bleu_published"] == "27.67"


def test_note_of_training() -> None:
    facts = {"train_precision": "bf16", "train_device": "cpu", "train_threads": 2}
    rows = [run(name, 1, 1.0, 1.0, train_updates=n, **facts) for name, n in (("a", 900), ("b", 50))]
    notes = comparison_table(comparison(*rows)).notes
    assert "training: 50 to 900 updates in bf16 on cpu with 2 threads" in notes


def test_note_of_different_seeds() -> None:
    rows = [run("a", 1, 1.0, 1.0), run("a", 2, 1.0, 1.0), run("b", 1, 1.0, 1.0), run("c", 1, 1.0, 1.0)]
    notes = comparison_table(comparison(*rows)).notes
    assert "seeds: 1, 2 (a); 1 (b, c) (mean \u00b1 standard deviation over seeds)" in notes


def test_notes_of_signatures_sentences_seeds_significance_and_runs() -> None:
    *notes, inseparable, runs = comparison_table(comparison()).notes
    assert notes == [
        f"BLEU: {SIGNATURE}",
        "TER (lower is better): nrefs:1|case:lc|version:2.6.0",
        "sentences: 1000 of test",
        "seeds: 1, 2 (mean \u00b1 standard deviation over seeds)",
        "difference: to vanilla; p: two-sided, Holm-corrected for 2 variants (* below 0.05, ** below 0.01), by "
        "Student's t from the variance over sentences (paired bootstrap, 1000 resamples) and over seeds",
        "[low, high]: 95 % interval of the difference, not corrected; "
        "level: the whole interval lies within 1 point, for any p",
        "intervals and p cover other test sentences and other training seeds",
    ]
    assert inseparable.startswith("^: not separable from the best of the column: ")
    assert runs == "runs: runs/translation/multi30k/{vanilla,synthesizer-random,linear}/seed-{1,2}"


def test_note_of_scores_that_are_not_comparable() -> None:
    table = comparison_table(comparison(differences=(against("linear", "bleu", None, 1, "metric"),)))
    assert [row[2].text for row in table.rows] == ["-", "-", "-"]
    note = "not comparable, so not tested (differences in parentheses): linear to vanilla (other metric"
    assert any(text.startswith(note) for text in table.notes)


def test_splits_have_their_own_rows_and_best() -> None:
    rows = [run("a", 1, 1.0, 1.0), run("b", 1, 2.0, 2.0)]
    rows += [with_values(row, split="test_2017") for row in reversed(rows)]
    table = comparison_table(comparison(*rows))
    assert [[cell.text for cell in row[:3]] for row in table.rows] == [
        ["test", "a", "1.00"],
        ["test", "b", "2.00"],
        ["test_2017", "b", "2.00"],
        ["test_2017", "a", "1.00"],
    ]
    assert [row[2].best for row in table.rows] == [False, True, True, False]


@pytest.mark.parametrize("width", [20, 40, 60, 80, 100, 200])
def test_table_fits_the_screen(width: int) -> None:
    text = shown(comparison_table(comparison()), width)
    assert max(map(cell_len, text.split("\n"))) <= width
    for word in ("vanilla", "linear", "39.50", "41.25"):
        assert word in text


BELOW = ["+1.75 [+0.75, +2.75] p=0.032 * -1.00 [-2.00, 0.00] p=0.040 *"]


@pytest.mark.parametrize(
    ("width", "columns", "omitted", "below"),
    [
        (140, " 2 5,412,864 7,712 45.6", "", BELOW),
        (110, " 2 5,412,864", "train-tokens/s, decode-sentences/s; ", BELOW),
        (90, " 2", "parameters, train-tokens/s, decode-sentences/s; ", BELOW),
        (
            60,
            " 2",
            "parameters, train-tokens/s,",
            ["+1.75 -1.00", "[+0.75, +2.75] [-2.00, 0.00]", "p=0.032 * p=0.040 *"],
        ),
    ],
)
def test_narrow_screen_has_differences_below_and_omits_columns(
    width: int, columns: str, omitted: str, below: list[str]
) -> None:
    lines = lines_of(width)
    place = lines.index(f"linear ^ 41.25 \u00b1 0.35 ^ 42.50 \u00b1 0.71{columns}")
    assert lines[place + 1 : place + 1 + len(below)] == below
    notes = [line for line in lines if line.startswith("columns omitted")]
    note = f"columns omitted at width {width}: {omitted}"
    assert [line.startswith(note) for line in notes] == [True] * bool(omitted)


def test_very_narrow_screen_has_a_block_for_each_row() -> None:
    lines = lines_of(36)
    place = lines.index("linear")
    assert lines[place + 1 : place + 5] == [
        "BLEU ^ 41.25 \u00b1 0.35",
        "difference +1.75",
        "[+0.75, +2.75]",
        "p=0.032 *",
    ]
    assert lines[place + 12] == "decode sentences/s 45.6"


def hostile() -> Table:
    """Return a table whose texts are all hostile."""
    columns = (Column(HOSTILE, align="left"), Column(HOSTILE))
    return Table(HOSTILE, columns, ((Cell(HOSTILE, {"a": HOSTILE}), Cell("1", {"b": 1.5})),), (HOSTILE,))


@pytest.mark.parametrize("width", [20, 80])
def test_hostile_text_is_escaped_on_screen(width: int) -> None:
    text = shown(hostile(), width)
    assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "[/b]" in text.replace("\n", "")


def test_markdown_is_a_table_with_escaped_text() -> None:
    text = table_formats.markdown(comparison_table(comparison()))
    lines = text.split("\n")
    assert lines[0] == "**translation/multi30k: test**"
    assert lines[2].startswith("| variant | BLEU | difference | TER |")
    assert lines[3] == "| :--- |" + " ---: |" * 8
    assert lines[6].startswith("| linear | ^ **41.25 \u00b1 0.35** | +1.75 \\[+0.75, +2.75\\] p=0.032 \\* |")
    assert f"- BLEU: {SIGNATURE}".replace("|", "\\|") in lines
    escaped = table_formats.markdown(hostile())
    assert "\\\\x1b\\]0;x\\\\x07\\[/b\\]\\\\u202e\\&\\<\\|\\_\\*\\\\%\\${}#\\~^ \\`" in escaped
    assert escaped.count("\n") == 7


def test_latex_has_a_label_and_names_omitted_columns() -> None:
    columns = (Column("a", align="left"), Column("b"), Column("c d", priority=2))
    table = Table("x_y, z", columns, ((Cell("1"), Cell("2"), Cell("3")),))
    text = table_formats.latex(table)
    assert "graphicx}; omitted: c-d\n" in text
    (chosen,) = choose_columns([table], None)  # as of a command with the option --columns
    assert "omitted: c-d (--columns NAME,... shows them)\n" in table_formats.latex(chosen)
    assert r"\label{tab:x-y-z}" in text
    assert r"1 & 2 \\" in text


@pytest.mark.parametrize("width", [20, 30, 60])
def test_two_columns_of_text_are_complete_at_all_widths(width: int) -> None:
    text = "a [_] b p=1 [internationalisation]"
    columns = (Column("line 3", align="left"), Column("difference +1", align="left", wrap=True))
    table = Table("", columns, ((Cell("scaled-dot 38.0"), Cell(text, marked=True)),))
    lines = [line.strip() for line in shown(table, width).splitlines()]
    joined = " ".join(lines)
    assert (joined.count("difference +1"), joined.count("line 3")) == (1, 1)
    assert any("a [_] b" in line for line in lines)
    assert "[internationalisation]" in joined.replace(" ", "")


def test_full_short_and_no_notes() -> None:
    table = Table("t", (Column("a"),), (), ("long", "needed"), brief=frozenset({"needed"}))
    assert [table.with_notes(how).notes for how in ("none", "short", "full")] == [(), ("needed",), ("long", "needed")]
    assert replace(table, brief=None).with_notes("short").notes == table.notes


@pytest.mark.parametrize(("items", "stars"), [(5, "* and **"), (7, "**"), (8, "")])
def test_note_of_few_items(items: int, stars: str) -> None:
    note = few_items_note(items, "questions")
    assert (f"so {stars} are not reliable here" in note) == bool(note) == bool(stars)


def test_latex_is_a_booktabs_table_with_escaped_text() -> None:
    text = table_formats.latex(comparison_table(comparison()))
    assert r"\begin{tabular}{lrrr}" in text
    assert r"\toprule" in text
    assert r"linear & \textasciicircum{} \textbf{41.25 $\pm$ 0.35} & " in text
    assert r" & {\scriptsize +1.75 [+0.75, " in text
    assert r"& {\scriptsize $-$1.00 [$-$2.00, 0.00] p=0.040 *" in text
    escaped = table_formats.latex(hostile())
    assert (
        r"\textbackslash{}x1b]0;x\textbackslash{}x07[/b]\textbackslash{}u202e\&$<$\textbar{}\_*"
        r"\textbackslash{}\%\$\{\}\#\textasciitilde{}\textasciicircum{} `"
    ) in escaped


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="TeX is not installed: no pdflatex")
def test_latex_compiles_and_stays_on_the_page(tmp_path: Path) -> None:
    """Compile a comparison, hostile text, and more columns than fit."""
    wide = Table("w", tuple(Column(f"c{n}") for n in range(30)), ((Cell("1.0 [0.5, 1.5]"),) * 30,))
    tables = "\n".join(map(table_formats.latex, (comparison_table(comparison()), hostile(), wide)))
    head = r"\documentclass{article}\usepackage{booktabs,graphicx}\begin{document}"
    (tmp_path / "t.tex").write_text(f"{head}\n{tables}\n\\end{{document}}\n", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "t.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)
    log = done.stdout.decode("utf-8", "replace")
    assert done.returncode == 0, log[-2000:]
    assert re.findall(r"Overfull \\hbox.*", log) == []


def test_csv_has_full_precision_and_runs() -> None:
    rows = csv_rows(comparison_table(comparison()))
    assert [row["variant"] for row in rows] == ["vanilla", "synthesizer-random", "linear"]
    linear = rows[2]
    assert float(linear["bleu_sd"]) == pytest.approx(0.5**1.5)
    names = ("bleu", "bleu_difference", "bleu_low", "bleu_high", "bleu_p", "bleu_signature", "seeds")
    assert [linear[name] for name in names] == ["41.25", "1.75", "0.75", "2.75", "0.008", SIGNATURE, "1, 2"]
    assert linear["runs"].endswith("linear/seed-2")
    assert rows[0]["bleu_p"] == ""
    assert rows[0]["train_tokens_per_second"] == "7712.25"
    (only,) = csv_rows(hostile())
    assert only["a"].startswith("\\x1b]0;x")
    assert only["b"] == "1.5"


def test_json_has_the_rows_as_named_values() -> None:
    read = json.loads(table_formats.json_text(comparison_table(comparison())))
    assert read["title"] == "translation/multi30k: test"
    assert read["rows"][2]["bleu"] == 41.25
    assert len(read["notes"]) == 9


def test_note_of_the_baseline_names_its_recipe_and_run() -> None:
    """Both baselines are called base, so "difference: to base" was ambiguous."""
    a, b = (run("base", 1, 39.0, 44.0, recipe=name, run=f"runs/{name}/base/seed-1") for name in "AB")
    difference = score_rows.system_difference(a, b, "bleu", fixed_difference(0.5, 0.2, 0.8))
    notes = comparison_table(comparison(a, b, differences=(difference,), resamples=1000)).notes
    note = next(note for note in notes if note.startswith("difference"))
    assert note.startswith("difference: to base of A (runs/A/base/seed-1); p: ")


def test_notes_name_systems_with_their_recipes() -> None:
    rows = [
        run("base", seed, 39.0, 44.0, recipe=name, search=StoredSearch(beam=beam))
        for name, seed, beam in (("A", 1, 2), ("A", 2, 2), ("B", 3, 5))
    ]
    difference = score_rows.system_difference(rows[0], rows[2], "bleu", None, "search")
    notes = "\n".join(comparison_table(comparison(*rows, differences=(difference,), resamples=1000)).notes)
    assert "seeds: 1, 2 (base of A); 3 (base of B) (" in notes
    assert "(base of A); " in notes
    assert "base of B to base of A (other search)" in notes


def test_note_of_runs_is_expanded_by_a_shell() -> None:
    names = ["vanilla,lr=0.1", "vanilla,lr=0.2", "linear"]
    paths = [f"runs/a/{name}/seed-{seed}" for name in names for seed in (1, 2)]
    paths += [f"{name}/seed-{seed}.results.tar.xz" for name in ("runs/a/linear", "runs/a/dot") for seed in (1, 2)]
    paths += ["runs/a/wide/seed-1", "runs/b"]
    (note,) = run_notes([run("a", 1, 0, 0, run=path) for path in paths])
    command = ["bash", "-c", f"printf '%s\\n' {note.removeprefix('runs: ')}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == paths


@pytest.mark.parametrize(("width", "lines"), [(80, 1), (24, 3)])
def test_wrapped_column_breaks_between_words(width: int, lines: int) -> None:
    columns = (Column("name", align="left"), Column("keys", align="left", priority=1, wrap=True))
    table = Table("", columns, ((Cell("a-long-name"), Cell("one: 1, other: 2, last: 3")),))
    found = shown(table, width).splitlines()
    assert max(map(cell_len, found)) <= width
    assert len(found) == 2 + lines
    assert " ".join(" ".join(found[2:]).split()) == "a-long-name one: 1, other: 2, last: 3"


def test_chosen_columns_are_not_omitted() -> None:
    table = comparison_table(comparison())
    assert table.names()[:3] == ["variant", "BLEU", "difference"]
    chosen = table.choose(["decode-sentences/s", "bleu"])
    assert [column.title for column in chosen.columns] == ["variant", "BLEU", "decode sentences/s"]
    assert "decode sentences/s" in shown(chosen, 60)
    with_scores = table.choose(["difference"])  # differences are shown with their scores
    assert [column.title for column in with_scores.columns] == ["variant", "BLEU", "difference", "TER", "difference"]
    assert "train_tokens_per_second" not in table_formats.csv_text(chosen)


WORDS = st.lists(st.text("abcde-", min_size=1, max_size=9), max_size=8).map(" ".join)
WORDS = WORDS.filter(lambda text: text != NONE)  # the sign of a missing value


@given(st.lists(st.tuples(WORDS, WORDS, WORDS), min_size=1, max_size=4), st.integers(30, 120))
def test_words_that_fit_are_not_broken(rows: list[tuple[str, str, str]], width: int) -> None:
    heads = ("name", "some longer title", "text", "more")
    text = shown(Table.of_texts("", heads, [("key", *row) for row in rows], "a note"), width)
    assert max(map(cell_len, text.split("\n"))) <= width
    assert {word for row in rows for cell in row for word in cell.split()} <= {*text.split()}


def test_words_that_do_not_fit_are_broken_after_a_sign() -> None:
    table = Table("", (Column("a"),), (), (f"BLEU: {SIGNATURE}",))
    lines = [line.strip() for line in shown(table, 40).splitlines()]
    assert lines[-2:] == ["BLEU: nrefs:1|case:mixed|eff:no|tok:13a|", "smooth:exp|version:2.6.0"]
    assert "".join(shown(Table("", (), (), (SIGNATURE,)), 1).split()) == SIGNATURE
    assert f"BLEU: {SIGNATURE}" in shown(table, 80)
