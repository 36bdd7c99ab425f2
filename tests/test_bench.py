"""Benchmarks: jobs, options, sweeps and pages, without a measurement."""

import argparse
import dataclasses
import re
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

from bench import harness, real, results, tables
from bench.libraries import memory, rl_step, rollout, update
from bench.memory import collectives
from bench.speed import gpu
from bench.tools import spine
from rl_reason.models import decoder

EVEN = harness.Size(16, 6, 12, tail=False, group=4)
TABLES = {t.TABLE.name: t.TABLE for t in (rollout, update, rl_step, memory)}


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path):
  """The committed tables are not overwritten, and no weights are made."""
  monkeypatch.setattr(results, "RESULTS", tmp_path / "results")
  monkeypatch.setattr(results, "RUNS", tmp_path)
  monkeypatch.setattr(harness, "weights", lambda dims: "weights")


def test_lengths_are_a_fixed_trace_with_a_heavy_tail():
  trace = harness.lengths(256, 512, 100)
  assert trace == harness.lengths(256, 512, 100)
  assert 1 <= min(trace) and max(trace) <= 512
  assert 80 < np.mean(trace) < 110
  assert np.median(trace) < 0.75 * np.mean(trace)
  assert max(trace) > 4 * np.mean(trace)


def test_a_sweep_decides_the_options(monkeypatch):
  slow, fast, broken = (dict(micro=m) for m in (4, 8, 16))
  options = dict(ours=[slow, fast, broken])
  table = dataclasses.replace(
      update.TABLE, cases=dict(one=EVEN), options=options
  )
  flags = tables.arguments(table, ["--dims=tiny", "--repeats=2"])
  key = table.key("one", "ours", flags)
  assert tables.best(key, [slow, fast]) == slow  # none yet: the first

  def race(jobs, *_, **__):
    if jobs["ours"]["options"] == dict(micro=16):
      raise RuntimeError("ours died")
    seconds = {4: [2.0, 2.0, 0.1], 8: [1.0, 1.0, 9.0]}
    micro = jobs["ours"]["options"]["micro"]
    return dict(ours=dict(seconds=seconds[micro], peak_mib=1.0))

  monkeypatch.setattr(harness, "race", race)
  tables.sweep(table, ["ours"], flags)
  assert tables.best(key, [slow, fast, broken]) == fast
  assert tables.best(key, [slow, broken]) == slow
  page = (results.RESULTS / f"{tables.SWEEP}.md").read_text()
  assert "micro 4 | 2.000 | 0.100 to 2.000 |" in page
  assert "micro 16 | did not run |" in page


def test_a_peer_that_is_not_installed_says_how(tmp_path):
  with pytest.raises(SystemExit, match="bench.peers --install tunix"):
    harness.race(dict(tunix=dict(task="update")), tmp_path, 1)


def test_ratios_are_of_medians_and_of_pairs():
  assert tables.ratios([1, 2, 4], [4, 4, 2]) == [2, 0.5, 4]


def test_options_fit_the_rows():
  for table in TABLES.values():
    for case, size in table.cases.items():
      for name in ("ours", *harness.PEERS):
        for options in table.options_of(case, name):
          for size_of in ("batch", "micro"):
            assert size.rows % options.get(size_of, 1) == 0
            assert options.get(size_of, size.group) % size.group == 0


def test_peers_take_part_without_their_libraries():
  # They are compiled, not run: what they import is not here.
  for name in harness.PEERS:
    text = (ROOT / "bench" / "peers" / f"{name}.py").read_text()
    compile(text, name, "exec")
    read = set(re.findall(r"job\[\"(\w+)\"\]", text))
    jobs = set(harness.job("update", EVEN, "tiny", "float32", {}))
    assert read <= jobs | {"products", "attention"}  # of studies.products.run
    assert "rl_reason" not in text  # it is not installed there


def test_bench_worker_needs_the_standard_library_only():
  code = "import bench.worker, sys; print('numpy' in sys.modules)"
  out = subprocess.run(
      [sys.executable, "-S", "-c", code],
      cwd=ROOT,
      capture_output=True,
      text=True,
      check=True,
  )
  assert out.stdout.strip() == "False"


def test_work_is_counted_by_hand():
  cfg = decoder.ModelConfig(
      **harness.shape("tiny"), qkv_bias=True, dtype="bfloat16"
  )
  size = harness.Size(8, 4, 10, tail=False, group=2)
  work = gpu.work(cfg, size, [10] * 8, 8)
  # embed, norm; a layer: q, o, k, v, their biases, mlp, norms
  layer = 2 * 32 * 32 + 2 * 32 * 16 + 32 + 2 * 16 + 3 * 32 * 64 + 2 * 32
  weights = 64 * 32 + 32 + 2 * layer
  cache = 2 * 2 * 2 * 8 * (4 + 5)  # k and v, layers, heads, width, tokens
  assert work["decode_bytes"] == 10 * 2 * (weights + 8 * cache)
  products = 2 * (2 * (layer - 128) + 64 * 32)
  attention = 2 * 2 * 2 * 32  # scores and values, layers, operations a token
  assert work["forward_flops"] == 8 * 14 * (products + attention * 7)
  assert work["prefill_flops"] == 4 * 4 * (products + attention * 2)
  few = gpu.work(cfg, size, [10, 2, 2, 2], 2)  # 8 tokens a slot; 10 is longest
  seen = 10 * (4 + 5) + 3 * 2 * (4 + 1)
  assert few["decode_bytes"] == 2 * (10 * weights + cache // (4 + 5) * seen)


HLO = """
HloModule step

%layer (p: (s32[], bf16[8,4])) -> (s32[], bf16[8,4]) {
  %p = (s32[], bf16[8,4]{1,0}) parameter(0)
  %g = bf16[64,4]{1,0:T(8,128)} all-gather(%x), dimensions={0}
  ROOT %s = (s32[], bf16[8,4]{1,0}) tuple(%i, %x)
}

%norm (q: f32[4]) -> f32[4] {
  ROOT %r = f32[4]{0} all-reduce(%q), to_apply=%add
}

%layers (p: (s32[], bf16[8,4])) -> (s32[], bf16[8,4]) {
  ROOT %w = (s32[], bf16[8,4]{1,0}) while(%p), condition=%c, body=%layer, \
backend_config={"known_trip_count":{"n":"28"}}
}

ENTRY %main (a: f32[4]) -> f32[4] {
  %a = f32[4]{0} parameter(0)
  %b = (s32[], bf16[8,4]{1,0}) while(%t), condition=%c, body=%layers
  %n = f32[4]{0} conditional(%ok, %a, %a), branch_computations={%norm, %skip}
  %e = (f32[16]{0}, f32[4]{0}) reduce-scatter-start(%a), dimensions={0}
  ROOT %d = f32[4]{0} reduce-scatter-done(%e)
}
"""


def test_collectives_are_counted_with_the_trips_of_their_loops():
  """By hand; a loop of unknown length counts once."""
  found = [
      (x["kind"], x["bytes"], x["calls"]) for x in collectives.largest(HLO)
  ]
  assert found == [
      ("all-gather", 64 * 4 * 2, 28),
      ("reduce-scatter", 16 * 4, 1),
      ("all-reduce", 4 * 4, 1),
  ]


def test_branches_and_the_way_of_the_config_are_counted_by_hand(tmp_path):
  """One branch of an algorithm, one of a feature; two calls get the config."""
  for name, text in {
      "stages/rl.py": """
from rl_reason.stages import parts
class Loop:
  def train(self): pass
def train(c, rows):
  x = 1 if c.rl.staleness else 2
  if state.critic is not None:
    return parts.build(c, x)
  return len(rows)
""",
      "stages/parts.py": """
def build(config: dict, x): return x
def build(c, x): return [y for y in x if odd(y)] and other(x, config=c)
def other(x, *, config): return lambda: config
""",
  }.items():
    path = tmp_path / "rl_reason" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
  found = list(spine.branches(tmp_path / "rl_reason" / "stages" / "rl.py"))
  assert sorted(found) == [
      "rl.py train: c.rl.staleness",
      "rl.py train: state.critic is not None",
  ]
  assert [spine.needed_by(x) for x in sorted(found)] == [
      (False, "old data"),
      (True, "PPO, VAPO"),
  ]
  assert spine.needed_by("rl.py train: strange") == (False, "unknown")
  parts = "rl_reason.stages.parts"
  assert spine.trip(tmp_path) == [(parts, "build"), (parts, "other")]
  assert [x.name for x in spine.binds(tmp_path)] == ["parts.py"]


def test_the_load_of_bench_real_is_of_before_its_first_case(monkeypatch):
  """That of a later case is the benchmark's own."""
  loads = iter((0.25, 2.0, 2.0))
  monkeypatch.setattr(results, "load", lambda: next(loads))
  monkeypatch.setattr(
      harness, "race", lambda *args: {"ours": dict(seconds=[1.0])}
  )
  monkeypatch.setattr(harness, "check", lambda *args: None)
  cases = ["sampling, tail", "step, 32 rows"]
  flags = argparse.Namespace(
      **dict(peer=[], case=cases, repeats=1, environments=None),
      **dict(dims="4m", dtype="float32"),
  )
  found = real.measure(flags)
  assert found["environment"]["load"] == 0.25
  assert found["command"].startswith("python -m bench.real ")
