"""Tests of benchmarks of mechanisms: time, peak memory, failures as results, tables."""

import json
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

PROBE = '''"""Probe: sleeps, raises, dies or allocates memory at longer lengths, as its options say."""

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
    """Load the plug-in and return its path."""
    monkeypatch.setattr(mechanism_registry, "_plugged", {})
    path = tmp_path / "probe.py"
    path.write_text(PROBE)
    mechanisms.plug_in(path)
    return path


def points(words: list[str], lengths: list[int], **changes: object) -> dict[tuple[str, int], Point]:
    """Return measured points by label and length."""
    found = measure(sweeps([candidate(word) for word in words], lengths), SMALL._replace(**changes))
    return {(point.label, point.length): point for point in found}


@pytest.mark.slow
def test_time_and_memory_of_both_passes_and_the_baseline() -> None:
    notes: list[str] = []
    plan = sweeps([candidate("linear"), candidate("synthesizer-random:trainable=false")], [64, 128])
    found = list(measure(plan, SMALL._replace(causal=True), notes.append))
    labels = [BASELINE, "linear", "synthesizer-random:trainable=false"]
    assert [(p.length, p.label) for p in found] == [(n, x) for n in (64, 128) for x in labels]
    for point in found:
        for result in point.passes.values():
            assert (result.failure, result.why, len(result.samples)) == ("", "", 2)
            assert result.seconds is not None
            assert 0 < result.seconds < 1
            assert result.bytes is None or result.bytes >= 0
            assert result.ratio is not None
            assert result.ratio > 0
            assert result.ratio == 1 or point.label != BASELINE
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
@pytest.mark.parametrize("layer", [False, True])
def test_mechanisms_run_alone_and_as_a_layer(word: str, layer: bool) -> None:
    runner = Runner(candidate(word), Inputs(SMALL._replace(layer=layer, batch=2), 24))
    for kind in PASSES:
        runner.run(kind)


def test_time_of_interleaved_layers_is_their_mean(probe: Path) -> None:
    """Of a layer that sleeps and one that does not: half of the sleep."""
    both = "interleaved:parts=[synthesizer-random, {name: probe, mode: sleep, amount: 0.2}]"
    runner = Runner(candidate(both), Inputs(SMALL, 65))
    assert [type(call.module).__name__ for call in runner.calls] == ["SynthesizerRandom", "Probe"]
    assert 0.1 <= runner.seconds(FORWARD) < 0.18


def test_peak_is_that_of_the_mechanism_only(probe: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """50 MB allocated for a moment do not change the peak of other candidates; processes end without output."""
    words = ["probe:mode=memory,amount=12500000", "probe"]
    found = points(words, [32], plugins=(probe,))
    assert capfd.readouterr().err == ""
    peak = found[words[0], 32].passes[FORWARD].bytes
    if peak is None:
        pytest.skip("the system does not report the peak memory of a process")
    assert 49e6 < peak < 54e6
    assert found["probe", 32].passes[FORWARD].bytes < 4e6


@pytest.mark.slow
def test_failures_are_results_and_do_not_stop_other_candidates(probe: Path) -> None:
    words = ["probe:mode=memory,amount=1e15", "probe:mode=raise", "probe:mode=die", "probe"]
    found = points(words, [16, 32, 64], plugins=(probe,))
    huge, raising, dying, plain = words
    assert found[huge, 16].passes[FORWARD].failure == ""
    assert found[huge, 32].passes[FORWARD].failure == "out of memory"
    assert found[dying, 32].passes[BOTH].failure == "out of memory"
    assert found[raising, 32].passes[FORWARD].failure == "failed"
    assert found[raising, 32].passes[FORWARD].why == f"{raising} at 32: ValueError: too long"
    assert found[raising, 64].passes[BOTH] == Measure(failure="failed")
    assert found[plain, 64].passes[BOTH].ratio is not None
    table = bench_tables.points_table(list(found.values()), SMALL)
    assert any(cell.text == "out of memory" for row in table.rows for cell in row)
    assert f"{raising} at 32: ValueError: too long" in table.notes


@pytest.mark.sampled(5)
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGALRM, signal.SIGABRT, signal.SIGSEGV]
)  # signals that no shell ignores
def test_killed_process_is_a_result(number: int, probe: Path) -> None:
    word = f"probe:mode=die,amount={int(number)}"
    found = points([word], [32], plugins=(probe,))[word, 32].passes[FORWARD]
    assert found.why == f"{word} at 32: the process ended with code -{int(number)}"


def test_process_that_ends_at_its_start_is_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    point = points(["linear"], [16], plugins=(tmp_path / "removed.py",))["linear", 16]
    assert point.passes[FORWARD].why == "linear at 16: the process ended with code 1"
    start = ForkServerProcess.start

    def start_and_terminate(self: ForkServerProcess) -> None:
        start(self)
        self.terminate()
        self.join()

    monkeypatch.setattr(ForkServerProcess, "start", start_and_terminate)
    point = points(["linear"], [16])["linear", 16]
    assert point.passes[FORWARD].why == "linear at 16: the process ended with code -15"


def test_worker_ends_if_its_pipe_is_closed() -> None:
    reader, writer = Pipe(duplex=False)
    reader.close()
    serve(writer, SMALL._replace(threads=None), candidate("linear"), 16, FORWARD)  # returns


def test_only_the_backward_pass_may_fail(probe: Path) -> None:
    point = points(["probe:mode=train"], [16], plugins=(probe,))["probe:mode=train", 16]
    assert [point.passes[kind].failure for kind in PASSES] == ["", "failed"]
    assert point.passes[BOTH].why.endswith("ValueError: only while training")


@pytest.mark.slow
def test_pass_beyond_its_budget_is_stopped(probe: Path) -> None:
    word = "probe:mode=sleep,amount=30"
    found = points([word], [16, 128, 256], plugins=(probe,), budget=3.0)
    slow = found[word, 128].passes[FORWARD]
    assert (slow.seconds, slow.failure) == (None, "> 3 s")
    assert slow.why == f"{word} at 128 exceeded the budget of 3 s per pass (--budget)"
    assert found[word, 256].passes[BOTH].failure == "> 3 s"
    assert found[BASELINE, 256].passes[BOTH].seconds is not None


def test_exponent_is_fitted_between_2048_and_16384_if_possible() -> None:
    curve = [(n, 3e-9 * n**1.5 if n >= 2048 else 1.0) for n in (128, 2048, 4096, 16384, 65536)]
    found = fit(curve)
    short = fit([(128, 1.0), (256, 4.0), (4096, 0.0)])
    assert found is not None
    assert short is not None
    assert (found.exponent, short.exponent) == pytest.approx((1.5, 2), rel=1e-9)
    assert (found.low, found.high, short.low, short.high) == (2048, 16384, 128, 256)
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
        ("dot:key_haeds=2", r"dot has no option 'key_haeds'; did you mean key_heads\?"),
        ("dot:key_heads=two", "key_heads must be"),
        ("dot:key_heads", "'key_heads' must be KEY=VALUE"),
    ],
)
def test_invalid_candidate_raises_in_one_line(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^.*{message}.*$"):
        candidate(text)


def test_options_of_a_candidate_have_the_types_of_recipes() -> None:
    found = candidate("dot:key_heads=2,key_norm=true,entropy_scale={base: 64, floor: 2}")
    assert found.options == {"key_heads": 2, "key_norm": True, "entropy_scale": {"base": 64, "floor": 2}}


def test_tables_of_points_and_exponents() -> None:
    result = Measure(0.00123, (0.00123,), 2.5, 1_230_000)
    failed = Measure(failure="out of memory", why="x at 4,096: out of memory")
    found = [Point("x", 2048, {FORWARD: result, BOTH: result}), Point("x", 4096, {FORWARD: result, BOTH: failed})]
    table = bench_tables.points_table(found, SMALL)
    assert [cell.text for cell in table.rows[0]] == ["2,048", "x", *["1.23 ms", "2.50", "1.23 MB"] * 2]
    assert [cell.text for cell in table.rows[1]][-3:] == ["out of memory", "-", "-"]
    assert table.notes[-1] == failed.why
    assert table.title == "attention only, full, 2 heads of 8, float32, cpu"
    row = bench_tables.exponents_table(found).rows[0]
    assert [cell.text for cell in row] == ["x", "0.00", "-", "-", "2,048 to 4,096"]
    row = bench_tables.exponents_table(found[:1]).rows[0]
    assert [cell.text for cell in row] == ["x", "-", "-", "-", "-"]
