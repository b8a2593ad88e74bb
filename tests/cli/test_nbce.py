"""`attnkit nbce` from files to answers, in every form; and what it refuses."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from helpers.cli import Cli, Result
from helpers.trained import LENGTH, make_run

from attnkit.nbce.answer import ask
from attnkit.nbce.merge import Rule
from attnkit.nbce.opening import open_run
from attnkit.nbce.reader import ContextReader
from attnkit.nbce.run_reader import LanguageModelReader
from attnkit.recipe.schema import SearchConfig
from attnkit.runs import Run

TEXTS = ("ein roter hund", "zwei katzen", "eine sehr rote katze")
SHORT = ("--max-length", "8")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("nbce")
    return {task: make_run(folder, task, task=task) for task in ("language-modeling", "translation")}


@pytest.fixture
def nbce(runs: dict[str, Run], tmp_path: Path, cli: Cli) -> Any:
    """The command in this process, in a folder with a context in each of three files."""
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_text(text)
    lines = [{"text": TEXTS[0]}, TEXTS[1], {"text": TEXTS[2], "more": 1}]
    (tmp_path / "all.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def call(*words: str, stdin: str = "", task: str = "language-modeling") -> Result:
        return cli("nbce", str(runs[task].path), *words, stdin=stdin)

    call.run = runs["language-modeling"].path  # type: ignore[attr-defined]
    return call


FILES = ("--context", "0.txt", "--context", "1.txt", "--context", "2.txt")
ASK = (*FILES, "--prompt", "ein", *SHORT)


PLAIN = Rule()
GREEDY = SearchConfig(method="greedy", max_length=8)


def expected(
    run: Run, prompts: list[str], method: str = "entropy", rule: Rule = PLAIN, spec: SearchConfig = GREEDY
) -> list[str]:
    replies = ask(open_run(run), method, [list(TEXTS)] * len(prompts), prompts, spec, rule)
    return [reply.text.strip() for reply in replies]


@pytest.mark.parametrize("task", ["language-modeling", "translation"])
def test_the_answer_is_that_of_the_merged_contexts(nbce: Any, runs: Any, task: str) -> None:
    done = nbce(*ASK, task=task)
    assert done.code == 0, done.err
    assert done.out == expected(runs[task], ["ein"])[0] + "\n"


def test_files_lines_and_standard_input_are_the_same_contexts(nbce: Any) -> None:
    answer = nbce(*ASK).out
    assert nbce("--contexts", "all.jsonl", "--prompt", "ein", *SHORT).out == answer
    lines = Path("all.jsonl").read_text()
    assert nbce("--contexts", "-", "--prompt", "ein", *SHORT, stdin=lines).out == answer
    mixed = ("--context", "-", "--context", "1.txt", "--context", "2.txt", "--prompt", "ein")
    assert nbce(*mixed, *SHORT, stdin=TEXTS[0]).out == answer


def test_folders_patterns_and_several_files_are_the_same_contexts(nbce: Any) -> None:
    answer = nbce(*ASK).out
    Path("notes").mkdir()
    for number, text in enumerate(TEXTS):
        Path(f"notes/{number}.md").write_text(text)
    for words in (
        ("--context", "0.txt", "1.txt", "2.txt"),
        ("--context", "notes"),
        ("--context", "[012].txt"),
        ("--context=0.txt", "1.txt", "--context", "2.txt"),
        ("--context", "all.jsonl"),
    ):
        done = nbce(*words, "--prompt", "ein", *SHORT)
        assert (done.code, done.out) == (0, answer), done.err


def test_piped_prompts_are_answered_line_by_line(nbce: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the contexts kept in memory; an empty line has an empty answer."""
    together = nbce(*FILES, "--prompt", "ein", "--prompt", "zwei", *SHORT).out.splitlines()
    read = []
    begin = LanguageModelReader._read

    def counted(self: Any, rows: Any) -> Any:
        read.append(rows)
        return begin(self, rows)

    monkeypatch.setattr(LanguageModelReader, "_read", counted)
    done = nbce(*FILES, "--prompts", "-", *SHORT, stdin="ein\n\nzwei\nein\n")
    assert done.out.splitlines() == [together[0], "", together[1], together[0]]
    assert len(read) == 1  # the contexts; questions are scored
    done = nbce(*FILES, "--prompts", "-", *SHORT, "--json", stdin="ein\nzwei\n")
    assert [json.loads(line)["prompt"] for line in done.out.splitlines()] == [1, 2]


@pytest.mark.parametrize("method", ["retrieval", "best", "entropy", "window"])
def test_a_text_names_its_source_beside_it_as_tables_do(
    nbce: Any, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    table = nbce(*ASK, "--pool", method, "--baseline", "concat").out
    done = nbce(*ASK, "--pool", method)
    said = [line for line in done.err.splitlines() if "attnkit: warning:" not in line]
    assert len(done.out.splitlines()) == 1
    assert len(said) == (method != "window")
    assert all(line in table for line in said)


def test_a_choice_is_made_by_probability(nbce: Any, runs: Any) -> None:
    reader, words = open_run(runs["language-modeling"]), ["hund", "katze", "rote katzen"]
    (wanted,) = ask(reader, "entropy", [TEXTS], ["ein"], SearchConfig(), choices=words)
    asked = (*FILES, "--prompt", "ein", "--choices", "hund,katze, rote katzen")
    done = nbce(*asked)
    assert done.code == 0, done.err
    first, *lines = done.out.splitlines()
    assert first == wanted.text
    assert [line.split(maxsplit=1)[1] for line in lines[:3]] == words
    row = json.loads(nbce(*asked, "--json").out)
    assert list(row["probabilities"]) == words
    assert list(row["probabilities"].values()) == pytest.approx([*wanted.probabilities.values()], abs=1e-6)
    several = nbce(*asked, "--prompt", "zwei", "--baseline", "best")
    assert "%)" in several.out
    assert len(nbce(*asked, "--prompt", "zwei").out.splitlines()) == 2


def test_nothing_is_loaded_before_options_are_checked(nbce: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnkit.nbce.open_model", lambda *_, **__: pytest.fail("opened"))
    for words, code in (
        (("--beta", "-2"), 2),
        (("--context", "gone.txt"), 66),
        (("--pool", "weighted", "--weights", "1,0"), 2),
    ):
        assert nbce(*ASK, *words).code == code


def test_prompts_are_answered_one_a_line_as_each_is_alone(nbce: Any, runs: Any) -> None:
    Path("prompts.txt").write_text("zwei\neine\n")
    done = nbce(*ASK, "--prompts", "prompts.txt")
    prompts = ["ein", "zwei", "eine"]
    assert done.out.splitlines() == expected(runs["language-modeling"], prompts)


@pytest.mark.parametrize(
    ("words", "method", "rule"),
    [
        (["--pool", "mean", "--beta", "-1"], "mean", Rule("mean", beta=-1)),
        (["--pool", "weighted", "--weights", "1,0,0"], "weighted", Rule("weighted", weights=(1.0, 0.0, 0.0))),
        (["--beta", "1", "--eta", "2", "--top-p", "0.5"], "entropy", Rule("entropy", 1, 2, 0.5)),
        *((["--pool", word], word, PLAIN) for word in ("retrieval", "best", "concat", "window")),
    ],
)
def test_options_of_merging_reach_the_rule(nbce: Any, runs: Any, words: list[str], method: str, rule: Rule) -> None:
    wanted = expected(runs["language-modeling"], ["ein"], method, rule)[0]
    assert nbce(*ASK, *words).out == wanted + "\n"


def test_beams_and_samples_are_reproducible(nbce: Any, runs: Any) -> None:
    spec = SearchConfig(method="beam", beam=3, max_length=8)
    beam = expected(runs["language-modeling"], ["ein"], spec=spec)[0]
    assert [nbce(*ASK, "--beam", "3").out for _ in range(2)] == [f"{beam}\n"] * 2
    drawn = [nbce(*ASK, "--sample", "--seed", seed).out for seed in ("1", "1", "2", "3", "4")]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def test_a_temperature_means_sampling_and_almost_none_is_greedy(nbce: Any) -> None:
    greedy = nbce(*ASK).out
    assert nbce(*ASK, "--temperature", "0").out == greedy
    assert nbce(*ASK, "--temperature", "0.00001").out == greedy
    hot = {nbce(*ASK, "--temperature", "9", "--seed", str(seed)).out for seed in range(3)}
    assert hot != {greedy}


def test_json_has_an_object_for_each_prompt_and_method(nbce: Any) -> None:
    done = nbce(*ASK, "--prompt", "zwei", "--json", "--trace", "--baseline", "best", "--baseline", "none")
    rows = [json.loads(line) for line in done.out.splitlines()]
    methods = ["entropy", "best", "none"]
    assert [(row["prompt"], row["method"]) for row in rows] == [
        (number, method) for number in (1, 2) for method in methods
    ]
    assert rows[0]["text"] + "\n" == nbce(*ASK).out
    trace = rows[0]["trace"]
    assert "".join(token["text"] for token in trace["tokens"]) == rows[0]["text"]
    assert [one["name"] for one in trace["contexts"]] == ["0.txt", "1.txt", "2.txt"]
    assert [one["text"] for one in trace["contexts"]] == list(TEXTS)
    assert "trace" not in rows[1]
    assert len(rows[1]["scores"]) == 3
    assert [one["number"] for one in trace["contexts"]] == [1, 2, 3]
    assert rows[1]["source"] == f"{rows[1]['context'] - 1}.txt"


def test_objects_and_tables_name_the_context_that_spoke_without_a_trace(
    nbce: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (traced,) = map(json.loads, nbce(*ASK, "--json", "--trace").out.splitlines())
    (row,) = map(json.loads, nbce(*ASK, "--json").out.splitlines())
    named = row["context"] and f"{row['context'] - 1}.txt"
    assert traced["source"] == row["source"] == named
    assert traced["trace"]["source"] == row["context"]
    assert "trace" not in row
    line = nbce(*ASK, "--baseline", "none").out.splitlines()[2]
    told = "source unclear (at most " if row["context"] is None else f"from context {row['context']}"
    assert f" {told}" in line
    assert 1 / 3 <= row["share"] <= 1


def test_methods_stand_side_by_side(nbce: Any, runs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = nbce(*ASK, "--baseline", "concat", "--baseline", "none")
    run = runs["language-modeling"]
    methods = ("entropy", "concat", "none")
    for line, method in zip(done.out.splitlines()[2:], methods, strict=True):
        assert " ".join(line.split()).startswith(f"{method} {expected(run, ['ein'], method)[0]}")


def one_row(run: Run, method: str, **options: Any) -> str:
    replies = ask(open_run(run), method, [list(TEXTS)], ["ein"], GREEDY, **options)
    return replies[0].text.strip()


def test_options_of_baselines_reach_them(nbce: Any, runs: Any) -> None:
    def said(*words: str) -> dict[str, Any]:
        done = nbce(*ASK, "--json", *words)
        return {row["method"]: row for row in map(json.loads, done.out.splitlines())}

    run = runs["language-modeling"]
    strong = said("--baseline", "cad", "--alpha", "3")["cad"]["text"]
    assert strong == one_row(run, "cad", alpha=3.0)
    assert strong != one_row(run, "cad")
    Path("long.txt").write_text(" ".join(TEXTS * 10))
    concat = said("--context", "long.txt", "--baseline", "concat", *SHORT)["concat"]
    (note,) = concat["notes"]
    assert note.startswith("the last ")
    assert note.endswith(f"truncated to fit {LENGTH + 1 + 8} tokens, output included")
    long = "ein " * 2 * LENGTH  # longer than what it was trained on: no context has room
    (note,) = said("--prompt", long, "--baseline", "concat")["concat"]["notes"]
    assert re.match(r"the last (\d+) of \1 context tokens were truncated", note)


def test_a_trace_names_the_contexts_that_spoke(nbce: Any) -> None:
    done = nbce(*ASK, "--trace")
    lines = done.out.splitlines()
    assert lines[0] + "\n" == nbce(*ASK).out
    assert lines[2] == "3 contexts, pool entropy, beta 0.25, eta 0.1, top-p 0.95"
    assert any(re.match(r"A \d+\.\d% \d \d\.txt: ", line) for line in lines)


def test_long_contexts_are_split_and_told_of(nbce: Any) -> None:
    Path("long.txt").write_text(" ".join(TEXTS * 10))
    long = ("--context", "long.txt", "--prompt", "ein", *SHORT)
    split = nbce(*long, "--window", "6", "--json", "--trace")
    assert split.code == 0, split.err
    assert "split into windows of 6 tokens (" in split.err
    contexts = json.loads(split.out)["trace"]["contexts"]
    assert len(contexts) > 10
    text = Path("long.txt").read_text()
    for one in contexts:
        (part,) = one["parts"]
        assert text[part["start"] : part["end"]] == one["text"]


def test_empty_and_repeated_contexts_are_left_out_and_told_of(nbce: Any) -> None:
    Path("empty.txt").write_text(" \n")
    done = nbce(*ASK, "--context", "empty.txt", "--context", "0.txt")
    assert done.out == nbce(*ASK).out
    assert "1 empty context skipped: empty.txt" in done.err
    assert "1 duplicate context skipped: 0.txt = 0.txt" in done.err


def test_control_characters_reach_no_terminal(nbce: Any) -> None:
    Path("bad.txt").write_text("ein \x1b[31mroter\x00 hund\u202e")
    done = nbce("--context", "bad.txt", "--prompt", "ein\x1b[2J", *SHORT, "--trace")
    assert done.code == 0, done.err
    assert not any(sign in done.out for sign in "\x1b\x00\u202e")


def test_a_context_that_is_too_long_is_refused_with_the_way_out(nbce: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit that a model with learned positions has."""
    Path("long.txt").write_text(" ".join(TEXTS * 20))

    def opened(*words: Any) -> ContextReader:
        reader = open_run(*words)
        reader.limit = LENGTH
        return reader

    monkeypatch.setattr("attnkit.nbce.opening.open_run", opened)
    done = nbce("--context", "long.txt", "--prompt", "ein")
    assert done.code == 2
    assert f"do not fit the {LENGTH} positions of" in done.err
    window = re.search(r"split the context \(--window ([0-9]+)\)", done.err)
    assert window is not None
    assert nbce("--context", "long.txt", "--prompt", "ein", "--window", window[1]).code == 0
    done = nbce("--context", "long.txt", "--prompt", "ein", "--window", "20", *SHORT)
    assert "(--window 14)" in done.err
    done = nbce("--context", "long.txt", "--prompt", "ein " * 20, *SHORT)
    assert "an output of 8 (--max-length) do not fit" in done.err
    assert done.err.endswith("shorten the prompt\n")
    done = nbce("--context", "long.txt", "--prompt", "ein", "--window", "8")
    assert done.code == 0, done.err
    assert "--max-length is reduced to 14: a longer output does not fit" in done.err
    done = nbce(*SHORT, "--context", "long.txt", "--prompt", "ein", "--window", "8", "--baseline", "concat")
    assert "context tokens were truncated" in " ".join(done.out.split())


def beyond(done: Result) -> tuple[str, ...] | None:
    """Longest row, trained length and way out of the warning; None where there is none."""
    assert done.code == 0, done.err
    text = re.compile(
        r"the longest row has ([0-9,]+) tokens, but \S+ was trained on rows of at most ([0-9,]+): "
        r".*; use (.*)"
    )
    assert done.err.count("warning: the longest row") <= 1
    found = text.search(done.err)
    return found.groups() if found else None


@pytest.mark.parametrize("more", [(), SHORT, (*SHORT, "--baseline", "concat")])
def test_rows_beyond_the_trained_length_are_told_of_with_what_fits(nbce: Any, more: tuple[str, ...]) -> None:
    """Sinusoidal positions have no end, but a model knows only those that it has met."""
    text = " ".join(TEXTS * 10)
    Path("long.txt").write_text(text)
    asked = ("--context", "long.txt", "--context", "0.txt", "--prompt", "ein", "--prompt", "zwei")
    found = beyond(nbce(*asked, *more, "--json"))
    assert found is not None
    reader = open_run(Run.open(nbce.run))
    tokens = max(reader.row(text, prompt).longest for prompt in ("ein", "zwei")) - 1
    assert found[:2] == (str(tokens), str(LENGTH))
    assert re.fullmatch(r"--window \d+", found[2])
    assert beyond(nbce(*asked, *more, *found[2].split())) is None


def test_nothing_is_said_of_rows_within_the_trained_length(nbce: Any) -> None:
    reader = open_run(Run.open(nbce.run))
    room = LENGTH - len(reader.encode("ein"))
    words = "ein"
    while len(reader.encode(f"{words} ein")) <= room:
        words += " ein"
    Path("full.txt").write_text(words)
    asked = ("--context", "full.txt", "--prompt", "ein", *SHORT)
    assert reader.row(words, "ein").longest == LENGTH + 1
    assert beyond(nbce(*asked)) is None
    Path("full.txt").write_text(f"{words} ein")
    assert beyond(nbce(*asked)) is not None


def test_a_source_that_is_too_long_names_a_window_that_fits(nbce: Any) -> None:
    Path("long.txt").write_text(" ".join(TEXTS * 10))
    asked = ("--context", "long.txt", "--prompt", "ein", *SHORT)
    done = nbce(*asked, task="translation")
    window = re.search(r"split the context \(--window ([0-9]+)\)", done.err)
    assert (done.code, window is None) == (2, False)
    assert nbce(*asked, "--window", window[1], task="translation").code == 0
    done = nbce(*asked, "--window", str(int(window[1]) + 6), task="translation")
    assert done.code == 2
