"""Tests of `attnkit nbce`: contexts and prompts from files, options, every output format, warnings and errors."""

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
FILES = ("--context", "0.txt", "--context", "1.txt", "--context", "2.txt")
ASK = (*FILES, "--prompt", "ein", *SHORT)
LONG = ("--context", "long.txt", "--prompt", "ein")
DEFAULT = Rule()
GREEDY = SearchConfig(method="greedy", max_length=8)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    folder = tmp_path_factory.mktemp("nbce")
    return {task: make_run(folder, task, task=task) for task in ("language-modeling", "translation")}


@pytest.fixture(scope="module")
def model(runs: dict[str, Run]) -> Run:
    """The run of a language model."""
    return runs["language-modeling"]


@pytest.fixture
def nbce(runs: dict[str, Run], cli: Cli) -> Any:
    """Run `attnkit nbce RUN` in a folder with a context in each of three files, and longer ones."""
    for number, text in enumerate(TEXTS):
        Path(f"{number}.txt").write_text(text)
    lines = [{"text": TEXTS[0]}, TEXTS[1], {"text": TEXTS[2], "more": 1}]
    Path("all.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    Path("long.txt").write_text(" ".join(TEXTS * 10))

    def call(*words: str, stdin: str = "", task: str = "language-modeling", code: int = 0) -> Result:
        done: Result = cli("nbce", str(runs[task].path), *words, stdin=stdin, code=code)
        return done

    return call


def rows_of(done: Result) -> list[dict[str, Any]]:
    """Return the objects of JSON lines."""
    return [json.loads(line) for line in done.out.splitlines()]


def expected(
    run: Run, *prompts: str, method: str = "entropy", rule: Rule = DEFAULT, spec: SearchConfig = GREEDY, **options: Any
) -> list[str]:
    """Return the answers to prompts, "ein" by default, about TEXTS."""
    prompts = prompts or ("ein",)
    replies = ask(open_run(run), method, [list(TEXTS)] * len(prompts), prompts, spec, rule, **options)
    return [reply.text.strip() for reply in replies]


@pytest.mark.parametrize("task", ["language-modeling", "translation"])
def test_answer_is_that_of_the_merged_contexts(nbce: Any, runs: dict[str, Run], task: str) -> None:
    assert nbce(*ASK, task=task).out.splitlines() == expected(runs[task])


@pytest.mark.parametrize(
    ("words", "stdin"),
    [
        ("--contexts all.jsonl", ""),
        ("--contexts -", "all.jsonl"),
        ("--context - --context 1.txt --context 2.txt", "0.txt"),
        ("--context 0.txt 1.txt 2.txt", ""),
        ("--context notes", ""),
        ("--context [012].txt", ""),
        ("--context=0.txt 1.txt --context 2.txt", ""),
        ("--context all.jsonl", ""),
    ],
)
def test_contexts_come_from_files_folders_patterns_and_standard_input(nbce: Any, words: str, stdin: str) -> None:
    Path("notes").mkdir()
    for number, text in enumerate(TEXTS):
        Path(f"notes/{number}.md").write_text(text)
    text = Path(stdin).read_text() if stdin else ""
    assert nbce(*words.split(), "--prompt", "ein", *SHORT, stdin=text).out == nbce(*ASK).out


def test_piped_prompts_are_answered_line_by_line(nbce: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The contexts are read once and kept in memory; an empty line has an empty answer."""
    together = nbce(*FILES, "--prompt", "ein", "--prompt", "zwei", *SHORT).out.splitlines()
    calls = []
    read = LanguageModelReader._read

    def count(self: Any, rows: Any) -> Any:
        calls.append(rows)
        return read(self, rows)

    monkeypatch.setattr(LanguageModelReader, "_read", count)
    done = nbce(*FILES, "--prompts", "-", *SHORT, stdin="ein\n\nzwei\nein\n")
    assert done.out.splitlines() == [together[0], "", together[1], together[0]]
    assert len(calls) == 1  # the contexts; questions are scored
    done = nbce(*FILES, "--prompts", "-", *SHORT, "--json", stdin="ein\nzwei\n")
    assert [row["prompt"] for row in rows_of(done)] == [1, 2]


@pytest.mark.parametrize("method", ["retrieval", "best", "entropy", "window"])
def test_source_of_an_answer_is_named_as_in_tables(nbce: Any, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    table = nbce(*ASK, "--pool", method, "--baseline", "concat").out
    done = nbce(*ASK, "--pool", method)
    notes = [line for line in done.err.splitlines() if "attnkit: warning:" not in line]
    assert len(done.out.splitlines()) == 1
    assert len(notes) == (method != "window")
    assert all(note in table for note in notes)


def test_choice_is_made_by_probability(nbce: Any, model: Run) -> None:
    choices = ["hund", "katze", "rote katzen"]
    (reply,) = ask(open_run(model), "entropy", [TEXTS], ["ein"], SearchConfig(), choices=choices)
    words = (*FILES, "--prompt", "ein", "--choices", "hund,katze, rote katzen")
    first, *lines = nbce(*words).out.splitlines()
    assert first == reply.text
    assert [line.split(maxsplit=1)[1] for line in lines[:3]] == choices
    (row,) = rows_of(nbce(*words, "--json"))
    assert list(row["probabilities"]) == choices
    assert list(row["probabilities"].values()) == pytest.approx([*reply.probabilities.values()], abs=1e-6)
    assert "%)" in nbce(*words, "--prompt", "zwei", "--baseline", "best").out
    assert len(nbce(*words, "--prompt", "zwei").out.splitlines()) == 2


def test_options_are_checked_before_the_model_is_loaded(nbce: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attnkit.nbce.open_model", lambda *_, **__: pytest.fail("opened"))
    nbce(*ASK, "--beta", "-2", code=2)
    nbce(*ASK, "--context", "gone.txt", code=66)
    nbce(*ASK, "--pool", "weighted", "--weights", "1,0", code=2)


def test_each_prompt_is_answered_as_if_alone(nbce: Any, model: Run) -> None:
    Path("prompts.txt").write_text("zwei\neine\n")
    done = nbce(*ASK, "--prompts", "prompts.txt")
    assert done.out.splitlines() == expected(model, "ein", "zwei", "eine")


@pytest.mark.parametrize(
    ("words", "method", "rule"),
    [
        (["--pool", "mean", "--beta", "-1"], "mean", Rule("mean", beta=-1)),
        (["--pool", "weighted", "--weights", "1,0,0"], "weighted", Rule("weighted", weights=(1.0, 0.0, 0.0))),
        (["--beta", "1", "--eta", "2", "--top-p", "0.5"], "entropy", Rule("entropy", 1, 2, 0.5)),
        *((["--pool", word], word, DEFAULT) for word in ("retrieval", "best", "concat", "window")),
    ],
)
def test_merging_options_are_used(nbce: Any, model: Run, words: list[str], method: str, rule: Rule) -> None:
    assert nbce(*ASK, *words).out.splitlines() == expected(model, method=method, rule=rule)


def test_beams_and_samples_are_reproducible(nbce: Any, model: Run) -> None:
    (beam,) = expected(model, spec=SearchConfig(method="beam", beam=3, max_length=8))
    assert [nbce(*ASK, "--beam", "3").out for _ in range(2)] == [f"{beam}\n"] * 2
    drawn = [nbce(*ASK, "--sample", "--seed", seed).out for seed in ("1", "1", "2", "3", "4")]
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) > 1


def test_temperature_means_sampling_and_almost_none_is_greedy(nbce: Any) -> None:
    greedy = nbce(*ASK).out
    assert nbce(*ASK, "--temperature", "0").out == greedy
    assert nbce(*ASK, "--temperature", "0.00001").out == greedy
    hot = {nbce(*ASK, "--temperature", "9", "--seed", str(seed)).out for seed in range(3)}
    assert hot != {greedy}


def test_json_has_an_object_for_each_prompt_and_method(nbce: Any) -> None:
    rows = rows_of(nbce(*ASK, "--prompt", "zwei", "--json", "--trace", "--baseline", "best", "--baseline", "none"))
    assert [(row["prompt"], row["method"]) for row in rows] == [
        (number, method) for number in (1, 2) for method in ("entropy", "best", "none")
    ]
    assert rows[0]["text"] + "\n" == nbce(*ASK).out
    trace = rows[0]["trace"]
    assert "".join(token["text"] for token in trace["tokens"]) == rows[0]["text"]
    assert [(context["number"], context["name"], context["text"]) for context in trace["contexts"]] == [
        (number + 1, f"{number}.txt", text) for number, text in enumerate(TEXTS)
    ]
    assert "trace" not in rows[1]
    assert len(rows[1]["scores"]) == 3
    assert rows[1]["source"] == f"{rows[1]['context'] - 1}.txt"


def test_json_and_tables_name_the_source_without_a_trace(nbce: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    (traced,) = rows_of(nbce(*ASK, "--json", "--trace"))
    (row,) = rows_of(nbce(*ASK, "--json"))
    name = row["context"] and f"{row['context'] - 1}.txt"
    assert traced["source"] == row["source"] == name
    assert traced["trace"]["source"] == row["context"]
    assert "trace" not in row
    line = nbce(*ASK, "--baseline", "none").out.splitlines()[2]
    source = "source unclear (at most " if row["context"] is None else f"from context {row['context']}"
    assert f" {source}" in line
    assert 1 / 3 <= row["share"] <= 1


def test_methods_are_compared_in_a_table(nbce: Any, model: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    done = nbce(*ASK, "--baseline", "concat", "--baseline", "none")
    for line, method in zip(done.out.splitlines()[2:], ("entropy", "concat", "none"), strict=True):
        assert " ".join(line.split()).startswith(f"{method} {expected(model, method=method)[0]}")


def test_baseline_options_are_used(nbce: Any, model: Run) -> None:
    def answer(method: str, *words: str) -> dict[str, Any]:
        return {row["method"]: row for row in rows_of(nbce(*ASK, "--json", "--baseline", method, *words))}[method]

    strong = answer("cad", "--alpha", "3")["text"]
    assert [strong] == expected(model, method="cad", alpha=3.0)
    assert [strong] != expected(model, method="cad")
    (note,) = answer("concat", "--context", "long.txt")["notes"]
    assert note.startswith("the last ")
    assert note.endswith(f"truncated to fit {LENGTH + 1 + 8} tokens, output included")
    prompt = "ein " * 2 * LENGTH  # longer than in training: no room is left for contexts
    (note,) = answer("concat", "--prompt", prompt)["notes"]
    assert re.match(r"the last (\d+) of \1 context tokens were truncated", note)


def test_trace_names_the_contexts_of_each_token(nbce: Any) -> None:
    lines = nbce(*ASK, "--trace").out.splitlines()
    assert lines[0] + "\n" == nbce(*ASK).out
    assert lines[2] == "3 contexts, pool entropy, beta 0.25, eta 0.1, top-p 0.95"
    assert any(re.match(r"A \d+\.\d% \d \d\.txt: ", line) for line in lines)


def test_long_contexts_are_split_with_a_note(nbce: Any) -> None:
    split = nbce(*LONG, *SHORT, "--window", "6", "--json", "--trace")
    assert "split into windows of 6 tokens (" in split.err
    contexts = json.loads(split.out)["trace"]["contexts"]
    assert len(contexts) > 10
    text = Path("long.txt").read_text()
    for context in contexts:
        (part,) = context["parts"]
        assert text[part["start"] : part["end"]] == context["text"]


def test_empty_and_duplicate_contexts_are_skipped_with_a_note(nbce: Any) -> None:
    Path("empty.txt").write_text(" \n")
    done = nbce(*ASK, "--context", "empty.txt", "--context", "0.txt")
    assert done.out == nbce(*ASK).out
    assert "1 empty context skipped: empty.txt" in done.err
    assert "1 duplicate context skipped: 0.txt = 0.txt" in done.err


def test_control_characters_are_not_printed(nbce: Any) -> None:
    Path("bad.txt").write_text("ein \x1b[31mroter\x00 hund\u202e")
    done = nbce("--context", "bad.txt", "--prompt", "ein\x1b[2J", *SHORT, "--trace")
    assert not any(sign in done.out for sign in "\x1b\x00\u202e")


def test_too_long_context_is_an_error_with_options_that_fit(nbce: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader has a limit, like that of a model with learned positions."""
    Path("long.txt").write_text(" ".join(TEXTS * 20))

    def open_limited(*words: Any) -> ContextReader:
        reader = open_run(*words)
        reader.limit = LENGTH
        return reader

    monkeypatch.setattr("attnkit.nbce.opening.open_run", open_limited)
    done = nbce(*LONG, code=2)
    assert f"do not fit the {LENGTH} positions of" in done.err
    nbce(*LONG, "--window", fitting_window(done))
    assert "(--window 14)" in nbce(*LONG, "--window", "20", *SHORT, code=2).err
    done = nbce("--context", "long.txt", "--prompt", "ein " * 20, *SHORT, code=2)
    assert "an output of 8 (--max-length) do not fit" in done.err
    assert done.err.endswith("shorten the prompt\n")
    done = nbce(*LONG, "--window", "8")
    assert "--max-length is reduced to 14: a longer output does not fit" in done.err
    done = nbce(*LONG, *SHORT, "--window", "8", "--baseline", "concat")
    assert "context tokens were truncated" in " ".join(done.out.split())


def fitting_window(done: Result) -> str:
    """Return the window that an error suggests."""
    found = re.search(r"split the context \(--window ([0-9]+)\)", done.err)
    assert found
    return found[1]


def length_warning(done: Result) -> tuple[str, ...] | None:
    """Return the longest row, the trained length and the suggestion of a warning; None without one."""
    text = r"the longest row has ([0-9,]+) tokens, but \S+ was trained on rows of at most ([0-9,]+): .*; use (.*)"
    assert done.err.count("warning: the longest row") <= 1
    found = re.search(text, done.err)
    return found.groups() if found else None


@pytest.mark.parametrize("more", [(), SHORT, (*SHORT, "--baseline", "concat")])
def test_rows_beyond_the_trained_length_warn_with_a_window_that_fits(
    nbce: Any, model: Run, more: tuple[str, ...]
) -> None:
    """Sinusoidal positions have no limit, but a model knows only the positions of its training."""
    words = (*LONG, "--context", "0.txt", "--prompt", "zwei", *more)
    warning = length_warning(nbce(*words, "--json"))
    assert warning is not None
    reader, text = open_run(model), Path("long.txt").read_text()
    tokens = max(reader.row(text, prompt).longest for prompt in ("ein", "zwei")) - 1
    assert warning[:2] == (str(tokens), str(LENGTH))
    assert re.fullmatch(r"--window \d+", warning[2])
    assert length_warning(nbce(*words, *warning[2].split())) is None


def test_rows_within_the_trained_length_give_no_warning(nbce: Any, model: Run) -> None:
    reader = open_run(model)
    room = LENGTH - len(reader.encode("ein"))
    words = "ein"
    while len(reader.encode(f"{words} ein")) <= room:
        words += " ein"
    assert reader.row(words, "ein").longest == LENGTH + 1
    for text, warned in ((words, False), (f"{words} ein", True)):
        Path("full.txt").write_text(text)
        done = nbce("--context", "full.txt", "--prompt", "ein", *SHORT)
        assert (length_warning(done) is not None) == warned


def test_too_long_source_names_a_window_that_fits(nbce: Any) -> None:
    window = fitting_window(nbce(*LONG, *SHORT, task="translation", code=2))
    nbce(*LONG, *SHORT, "--window", window, task="translation")
    nbce(*LONG, *SHORT, "--window", str(int(window) + 6), task="translation", code=2)
