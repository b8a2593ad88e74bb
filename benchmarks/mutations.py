"""Mistakes that are inserted into the code one at a time, and whether the tests of its package find them.

    python benchmarks/mutations.py [WORD ...]

A process imports everything that takes long to import; each child of it changes one module while it is imported.
Prints a line for each mistake (with words: only those with one of the words), and how many were found.
"""

import contextlib
import io
import os
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[1]
TABLE = r"""
# contract/test_every_mechanism.py mechanisms attention
attention/mask.py: cumsum(1) - 1) => cumsum(1))
attention/mask.py: <= self.q_pos[:, None, :, None] => < self.q_pos[:, None, :, None]
attention/mask.py: return earlier if self.layout => return visible if self.layout
attention/mask.py: (self.q_pos + 1 if self.causal => (self.q_pos if self.causal
attention/scored.py: return weights.masked_fill(~allowed, 0) => return weights
mechanisms/dot.py: and q.shape[2] == k.shape[2] =>
mechanisms/scaled_dot.py: **-0.5 => **-1.0
mechanisms/sigmoid.py: -self.keys_seen(mask) => self.keys_seen(mask)
mechanisms/sink.py: k_pos < self.keep => k_pos <= self.keep
mechanisms/sink.py: logs - total).exp() => logs).exp()
mechanisms/sink.py: first = keys - 1 - self.window => first = keys - self.window
# mechanisms/test_stick_breaking.py mechanisms/test_entmax.py
mechanisms/stick_breaking.py: return grad_log.sub_(shared) => return grad_log.sub_(shared - grad_log)
mechanisms/stick_breaking.py: mul_(scores.sigmoid()) => mul_(weights)
mechanisms/entmax.py: NEWTON, BISECTIONS = 16, => NEWTON, BISECTIONS = 3,
mechanisms/entmax.py: derivative = weights.sqrt() => derivative = weights
# attention/test_blocks.py
ops/recomputed_blocks.py: torch.set_rng_state(cpu_state) => pass
ops/recomputed_blocks.py: ctx.autocast, torch.enable_grad() => torch.enable_grad()
ops/recomputed_blocks.py: torch.enable_grad(), current_parameters => torch.enable_grad()
ops/recomputed_blocks.py: block_totals[index] += grad_part => block_totals[index] = grad_part
ops/recomputed_blocks.py: return a + b => return a
ops/recomputed_blocks.py: queries if bias is not None and => slice(None) if bias is not None and
ops/grouped_heads.py: if heads != weights.shape[1]: => if False:
# mechanisms/test_path.py
ops/recomputed_chunks.py: torch.set_rng_state(cpu) => pass
ops/recomputed_chunks.py: total += part => total = part
# ops/test_delta_chunks.py
ops/delta_chunks.py: diagonal(dim1=2, dim2=3).zero_() => diagonal(dim1=2, dim2=3)
ops/delta_chunks.py: (ends[c] * dstate).sum((1, 2)) => 0
ops/delta_chunks.py: (k, by_k + by_erase_keys, => (k, by_k,
# recipe/test_score_options.py
attention/scored.py: total + prior => total - prior
attention/scored.py: seen.log() / => seen /
attention/scored.py: F.normalize(k, dim=-1) => k
attention/scored.py: total / (self.shape.depth + 1) => total
attention/scored.py: q, factor = q * factor, None => factor = None
# layers contract
attention/scored.py: else scores + bias => else scores
# layers
layers/positions.py: first * cos - second * sin => first * cos + second * sin
layers/positions.py: -8.0 * steps => -4.0 * steps
layers/positions.py: math.log(self.max_distance / near) => math.log(self.max_distance)
# layers models
layers/positions.py: math.log(10000.0) => math.log(1000.0)
# search
search/beam.py: / length**length_penalty => / (length + 1)**length_penalty
search/beam.py: (stops & (logprob > -math.inf))[:, :beams] => stops & (logprob > -math.inf)
search/beam.py: 2 * spec.beam, live.shape[1] => spec.beam, live.shape[1]
search/beam.py: descending=True, stable=True => descending=False, stable=True
search/base.py: return min(max_length, left) => return max_length
search/base.py: min(k + 1, rows[0].numel()) => min(k, rows[0].numel())
# train/test_loss.py
train/loss.py: (smoothing - 1) * weights) => (0 - 1) * weights)
train/loss.py: share = -smoothing / size => share = -smoothing
# train/test_loss.py train/test_fit.py
train/loss.py: min(1.0, step / tailr.anneal) => step / tailr.anneal
# train/test_fit.py train/test_checkpoint.py
train/optimizer.py: mean[name] /= len(self.recent) => mean[name] /= self.count
train/optimizer.py: self.decay, (1 + step) / (10 => self.decay, (1 + step) / (9
train/optimizer.py: del self.recent[min(self.recent)] => del self.recent[max(self.recent)]
train/fit.py: or step % save_every == 0 =>
train/checkpoint.py: bad := tensors.not_finite(values) => bad := None
train/checkpoint.py: DISK.fsync_path(final.parent) => pass
train/checkpoint.py: and old not in keep =>
train/checkpoint.py: run.log.flush() => pass
# train
train/fit.py: if not math.isfinite(self.gradient_norm) => if False
train/batch_stream.py: self.epoch + 1, 0 => self.epoch, 0
# train/test_fit.py
train/fit.py: self.local_nll += losses.nll => self.local_nll += losses.total
# train/test_ranks.py
train/batch_stream.py: if number % ranks == rank => if rank == 0
# data/test_batch.py
data/batch.py: target_lengths + np.int32(1) => target_lengths + np.int32(0)
data/batch.py: PCG64((seed, epoch, purpose)) => PCG64((seed, 0, purpose))
data/batch.py: np.clip(capacity, 1, rows) => np.clip(capacity, 0, rows)
data/batch.py: outputs[:, :-1] = target => outputs[:, 1:] = target
data/batch.py: inputs[:, 0] = BOS => inputs[:, 0] = PAD
# nbce/test_merge.py
nbce/merge.py: (1 + beta) * pooled - beta * alone => (1 + beta) * pooled + beta * alone
nbce/merge.py: entropies - rule.eta => entropies + rule.eta
nbce/merge.py: torch.softmax(-entropies, 1) => torch.softmax(entropies, 1)
nbce/merge.py: - top_p, right=True) => - top_p / 2, right=True)
nbce/merge.py: (entropies - rule.eta * again.to(entropies.dtype)).argmin(1) => entropies.argmax(1)
# scoring/test_significance.py
scoring/significance.py: (len(p_values) - rank) => 1
scoring/significance.py: self.sentences / sentence_degrees => 1
scoring/significance.py: - share * spread.interaction =>
scoring/significance.py: len(scores) - 1 => len(scores)
scoring/significance.py: max(-low, high) <= bound => min(-low, high) <= bound
# scoring/metrics
scoring/metrics/base.py: 100 * sums[0] / max(sums[1], 1) => sums[0] / max(sums[1], 1)
# storage runs
storage/files.py: os.O_NOFOLLOW | =>
# storage
storage/files.py: f"{path.name}.tmp-{os.getpid()}" => path.name
storage/files.py: _FULL = frozenset({errno.ENOSPC, => _FULL = frozenset({
"""
"""After the names of the tests: file, a text in it, and its replacement."""


def changes() -> Iterator[tuple[str, str, str, str]]:
    """Yield the file, the text, its replacement and the tests of each mistake."""
    tests = ""
    for line in TABLE.strip().split("\n"):
        if line.startswith("# "):
            tests = line[2:]
            continue
        file, _, change = line.partition(": ")
        old, _, new = change.partition(" =>")
        yield file, old, new.strip(), tests


def replace_on_import(path: Path, old: str, new: str) -> None:
    """Replace a text of a module when it is imported."""
    source = path.read_text(encoding="utf-8")
    assert old in source, f"{path}: {old} is not there"
    code = compile(source.replace(old, new, 1), str(path), "exec")
    original = SourceFileLoader.get_code

    def get_code(self: SourceFileLoader, name: str) -> CodeType | None:
        return code if Path(self.path) == path else original(self, name)

    SourceFileLoader.get_code = get_code  # type: ignore[assignment, method-assign]


def found(file: str, old: str, new: str, tests: str) -> bool:
    """Return whether a test fails on the changed code, in a process of its own."""
    child = os.fork()
    if not child:
        code = 9
        try:
            import pytest

            replace_on_import(ROOT / "attnkit" / file, old, new)
            words = [
                "-x",
                "-n",
                "0",
                "-p",
                "no:cacheprovider",
                *(str(ROOT / "tests" / name) for name in tests.split()),
            ]
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                code = int(pytest.main(words))
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, 1):
        raise SystemExit(f"{file}: {old}: pytest ended with code {code}")
    return code == 1


def main(*words: str) -> None:
    import sacrebleu  # noqa: F401
    import torch
    import torch.fx.experimental.symbolic_shapes  # noqa: F401

    torch.set_num_threads(1)
    os.chdir(ROOT)
    same = "train/loss.py", "CHUNK = 2**22", "CHUNK = 2**22", "train/test_loss.py"
    assert not found(*same), "the tests fail without a mistake"
    chosen = [change for change in changes() if not words or any(word in " ".join(change[:3]) for word in words)]
    caught = 0
    for file, old, new, tests in chosen:
        good = found(file, old, new, tests)
        caught += good
        print("found " if good else "MISSED", f"{file}: {old} -> {new or '(nothing)'}", flush=True)
    print(f"{caught} of {len(chosen)} found")


if __name__ == "__main__":
    main(*sys.argv[1:])
