"""Measuring mechanisms: honest peaks and times, and failures that are results."""

import json
import math
import signal
from multiprocessing import Pipe
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from attnkit import mechanisms
from attnkit.bench.plan import BASELINE, PASSES, Sweep, Workload, candidate, sweeps
from attnkit.bench.schedule import Measure, Point, fit, measure
from attnkit.bench.worker import Inputs, Runner, serve
from attnkit.errors import UsageError
from attnkit.recipe import mechanism_registry
from attnkit.show import bench_tables

FORWARD, BOTH = PASSES
SMALL = Workload(heads=2, head_width=8, repeats=2, threads=1)

PROBE = '''"""Probe: does what an option says at longer lengths."""

import os
import signal
import time

import torch

from attnkit.attention import Attention, Out


class Probe(Attention):
    def __init__(self, shape, *, mode: str = "", amount: float = 0) -> None:
        super().__init__(shape)
        self.mode, self.amount = mode, amount

    def forward(self, q, k, v, mask, state=None, prior=None, bias=None, gates=None):
        if self.mode == "train" and self.training:
            raise ValueError("only\\nwhile training")
        if v.shape[2] >= 32:
            if self.mode == "memory":
                torch.ones(int(self.amount))
            if self.mode == "raise":
                raise ValueError("too long")
            if self.mode == "die":
                os.kill(os.getpid(), int(self.amount) or signal.SIGKILL)
        if self.mode == "sleep" and v.shape[2] > 64:
            time.sleep(self.amount)
        return Out(v * 2, None)
'''


@pytest.fixture
def probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A plug-in that does what its options say."""
    monkeypatch.setattr(mechanism_registry, "_plugged", {})
    path = tmp_path / "probe.py"
    path.write_text(PROBE)
    mechanisms.plug_in(path)
    return path


def points(words: list[str], lengths: list[int], **changes: object) -> dict[tuple[str, int], Point]:
    """Measured points by label and length."""
    setting = SMALL._replace(**changes)
    found = measure(sweeps([candidate(word) for word in words], lengths), setting)
    return {(point.label, point.length): point for point in found}


@pytest.mark.slow
def test_time_and_memory_of_both_passes_beside_the_baseline() -> None:
    notes: list[str] = []
    plan = sweeps([candidate("linear"), candidate("synthesizer-random:trainable=false")], [64, 128])
    found = list(measure(plan, SMALL._replace(causal=True), notes.append))
    labels = [BASELINE, "linear", "synthesizer-random:trainable=false"]
    assert [(p.length, p.label) for p in found] == [(n, x) for n in (64, 128) for x in labels]
    for point in found:
        for one in point.passes.values():
            assert (one.failure, one.why, len(one.samples)) == ("", "", 2)
            assert one.seconds is not None
            assert 0 < one.seconds < 1
            assert one.bytes is None or one.bytes >= 0
            assert one.ratio is not None
            assert one.ratio > 0
        if point.label == BASELINE:
            assert {one.ratio for one in point.passes.values()} == {1.0}
    assert "length 128: linear" in notes
    text = json.dumps(bench_tables.record(found, SMALL), allow_nan=False)
    assert set(json.loads(text)["exponents"]) == set(labels)


@pytest.mark.parametrize(
    "word",
    [
        "mixture:parts=[dot, {name: synthesizer-random, trainable: false}]",
        "synthesizer-dense",
        "gated-delta",
        "differential",
        "scaled-dot:key_heads=1",
    ],
)
def test_mechanisms_with_inputs_of_every_kind_run_alone_and_as_a_layer(word: str) -> None:
    for layer in (False, True):
        runner = Runner(candidate(word), Inputs(SMALL._replace(layer=layer, batch=2), 24))
        for kind in PASSES:
            runner.run(kind)


def test_layers_that_take_turns_are_all_run_and_timed_as_one(probe: Path) -> None:
    """A layer that sleeps and one that does not: half of the sleep is the time of a layer."""
    both = "interleaved:parts=[synthesizer-random, {name: probe, mode: sleep, amount: 0.2}]"
    runner = Runner(candidate(both), Inputs(SMALL, 65))
    assert [type(call.module).__name__ for call in runner.calls] == ["SynthesizerRandom", "Probe"]
    assert 0.1 <= runner.seconds(FORWARD) < 0.18


def test_the_peak_is_that_of_the_mechanism_alone_and_processes_end_silently(
    probe: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """50 MB held for a moment; earlier and later candidates do not show in it."""
    words = ["probe:mode=memory,amount=12500000", "probe"]
    found = points(words, [32], plugins=(probe,))
    assert capfd.readouterr().err == ""
    held = found[words[0], 32].passes[FORWARD].bytes
    if held is None:
        pytest.skip("this system does not tell the peak of a process")
    assert 49e6 < held < 54e6
    assert found["probe", 32].passes[FORWARD].bytes < 4e6


@pytest.mark.slow
def test_failures_are_results_and_the_others_go_on(probe: Path) -> None:
    words = ["probe:mode=memory,amount=1e15", "probe:mode=raise", "probe:mode=die", "probe"]
    found = points(words, [16, 32, 64], plugins=(probe,))
    huge, raising, dying, sound = words
    assert found[huge, 16].passes[FORWARD].failure == ""
    assert found[huge, 32].passes[FORWARD].failure == "out of memory"
    assert found[dying, 32].passes[BOTH].failure == "out of memory"
    assert found[raising, 32].passes[FORWARD].failure == "failed"
    assert found[raising, 32].passes[FORWARD].why == f"{raising} at 32: ValueError: too long"
    assert found[raising, 64].passes[BOTH] == Measure(failure="failed")
    assert found[sound, 64].passes[BOTH].ratio is not None
    table = bench_tables.points_table(list(found.values()), SMALL)
    assert any(cell.text == "out of memory" for row in table.rows for cell in row)
    assert f"{raising} at 32: ValueError: too long" in table.notes


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM, signal.SIGABRT, signal.SIGSEGV]
)  # those that no shell ignores
def test_a_process_that_died_is_a_result(number: int, probe: Path) -> None:
    word = f"probe:mode=die,amount={int(number)}"
    dead = points([word], [32], plugins=(probe,))[word, 32].passes[FORWARD]
    assert dead.why == f"{word} at 32: the process ended with code -{int(number)}"


def test_a_process_that_died_before_it_was_asked_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = points(["linear"], [16], plugins=(tmp_path / "removed.py",))["linear", 16]
    assert gone.passes[FORWARD].why == "linear at 16: the process ended with code 1"
    start = ForkServerProcess.start

    def dead(self: ForkServerProcess) -> None:
        start(self)
        self.terminate()
        self.join()

    monkeypatch.setattr(ForkServerProcess, "start", dead)
    gone = points(["linear"], [16])["linear", 16]
    assert gone.passes[FORWARD].why == "linear at 16: the process ended with code -15"


def test_a_measuring_process_ends_with_its_command() -> None:
    ours, theirs = Pipe(duplex=False)
    ours.close()
    serve(theirs, SMALL._replace(threads=None), candidate("linear"), 16, FORWARD)  # returns


def test_one_pass_may_fail_alone(probe: Path) -> None:
    point = points(["probe:mode=train"], [16], plugins=(probe,))["probe:mode=train", 16]
    assert [point.passes[kind].failure for kind in PASSES] == ["", "failed"]
    assert point.passes[BOTH].why.endswith("ValueError: only while training")


@pytest.mark.slow
def test_what_takes_longer_than_its_budget_is_ended(probe: Path) -> None:
    word = "probe:mode=sleep,amount=30"
    found = points([word], [16, 128, 256], plugins=(probe,), budget=3.0)
    slow = found[word, 128].passes[FORWARD]
    assert (slow.seconds, slow.failure) == (None, "> 3 s")
    assert slow.why == f"{word} at 128 exceeded the budget of 3 s per pass (--budget)"
    assert found[word, 256].passes[BOTH].failure == "> 3 s"
    assert found[BASELINE, 256].passes[BOTH].seconds is not None


def test_the_exponent_is_fitted_between_2048_and_16384_where_it_can_be() -> None:
    curve = [(n, 3e-9 * n**1.5 if n >= 2048 else 1.0) for n in (128, 2048, 4096, 16384, 65536)]
    found = fit(curve)
    assert found is not None
    assert math.isclose(found.exponent, 1.5)
    assert (found.low, found.high) == (2048, 16384)
    short = fit([(128, 1.0), (256, 4.0), (4096, 0.0)])
    assert short is not None
    assert math.isclose(short.exponent, 2)
    assert (short.low, short.high) == (128, 256)
    assert fit([(2048, 1.0)]) is None


def test_lengths_of_the_plan() -> None:
    plan = {lane.candidate.label: lane for lane in sweeps([candidate("linear"), candidate("dot")], None)}
    assert plan["linear"] == Sweep(candidate("linear"), (*plan["dot"].lengths, 65536))
    assert plan["dot"].lengths == plan[BASELINE].lengths
    assert plan["dot"].lengths[::7] == (128, 16384)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("liner", "called 'liner'; did you mean linear"),
        ("dot:key_haeds=2", "dot has no option 'key_haeds'; did you mean key_heads?"),
        ("dot:key_heads=two", "key_heads must be"),
        ("dot:key_heads", "'key_heads' must be KEY=VALUE"),
    ],
)
def test_a_wrong_subject_is_refused_with_what_would_be_right(text: str, message: str) -> None:
    with pytest.raises(UsageError, match="(?s)" + message.replace("?", r"\?")) as caught:
        candidate(text)
    assert "\n" not in str(caught.value)


def test_options_of_a_subject_are_typed_as_in_recipes() -> None:
    made = candidate("dot:key_heads=2,key_norm=true,entropy_scale={base: 64, floor: 2}")
    assert made.options == {"key_heads": 2, "key_norm": True, "entropy_scale": {"base": 64, "floor": 2}}


def test_tables_have_a_row_for_each_point_and_mechanism() -> None:
    one = Measure(0.00123, (0.00123,), 2.5, 1_230_000)
    gone = Measure(failure="out of memory", why="x at 4,096: out of memory")
    found = [Point("x", 2048, {FORWARD: one, BOTH: one}), Point("x", 4096, {FORWARD: one, BOTH: gone})]
    table = bench_tables.points_table(found, SMALL)
    assert [cell.text for cell in table.rows[0]] == [
        "2,048",
        "x",
        "1.23 ms",
        "2.50",
        "1.23 MB",
        "1.23 ms",
        "2.50",
        "1.23 MB",
    ]
    assert [cell.text for cell in table.rows[1]][-3:] == ["out of memory", "-", "-"]
    assert table.notes[-1] == gone.why
    assert table.title == "attention only, full, 2 heads of 8, float32, cpu"
    row = bench_tables.exponents_table(found).rows[0]
    assert [cell.text for cell in row] == ["x", "0.00", "-", "-", "2,048 to 4,096"]
    row = bench_tables.exponents_table(found[:1]).rows[0]
    assert [cell.text for cell in row] == ["x", "-", "-", "-", "-"]
