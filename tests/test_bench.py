"""bench/ at tiny dims, ours alone: a peer needs an environment of its own."""

import dataclasses
import json
import re
import subprocess
import sys

import numpy as np
import pytest
from conftest import ROOT

from bench import (
    gpu,
    harness,
    memory,
    ours,
    rl_step,
    rollout,
    rollout_weights,
    scaling,
    update,
)

TAIL = harness.Size(16, 6, 12, tail=True, group=4)
EVEN = dataclasses.replace(TAIL, tail=False)
SMALL = dict(slots=8, micro=8)
TABLES = {t.TABLE.name: t.TABLE for t in (rollout, update, rl_step, memory)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
  """Weights are made once."""
  path = tmp_path_factory.mktemp("runs")
  (path / "bench").mkdir()
  return path


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch, tmp_path, runs):
  """Nothing is written where the committed tables are."""
  monkeypatch.setattr(harness, "RESULTS", tmp_path / "results")
  monkeypatch.setattr(harness, "RUNS", runs)


def small(table, size):
  return dataclasses.replace(
      table, cases=dict(one=size), tried=dict(ours=[SMALL])
  )


def given(table, *flags):
  return harness.arguments(table, ["--dims=tiny", "--repeats=2", *flags])


def test_lengths_are_a_fixed_trace_with_a_heavy_tail():
  trace = harness.lengths(256, 512, 100)
  assert trace == harness.lengths(256, 512, 100)
  assert 1 <= min(trace) and max(trace) <= 512
  assert 80 < np.mean(trace) < 110
  assert np.median(trace) < 0.75 * np.mean(trace)
  assert max(trace) > 4 * np.mean(trace)


def test_a_table_is_measured_in_turns_and_written():
  table = small(rollout.TABLE, TAIL)
  result = harness.compare(table, given(table))
  found = result["cases"]["one"]["systems"]["ours"]
  assert len(found["seconds"]) == 2 and min(found["seconds"]) > 0
  assert found["first"] > max(found["seconds"])  # it compiled
  assert found["peak_mib"] > 50
  assert found["tokens"] == sum(harness.lengths(16, 12, 12 * 100 / 512))
  harness.write("bench_x", result, harness.page(table, result))
  assert json.loads((harness.RESULTS / "bench_x.json").read_text()) == result
  row = (harness.RESULTS / "bench_x.md").read_text().split("| one | ")[1]
  assert row.startswith("ours | slots 8, micro 8 | ") and " 1.00 (" in row


@pytest.mark.slow
@pytest.mark.parametrize("task", ["update", "rl_step"])
def test_ours_learns(task):
  what = harness.job(task, EVEN, "tiny", "float32", SMALL)
  step = ours.TASKS[task](what)
  first = step()["grad_norm"]
  assert np.isfinite(first) and first > 0
  assert step()["grad_norm"] != first  # the state went on


def test_ours_samples_what_the_job_asks_for():
  what = harness.job("rollout", TAIL, "tiny", "float32", SMALL)
  answer = ours.rollout(what)()
  harness.check(what, dict(ours=answer))
  with pytest.raises(RuntimeError, match="ours: 1 tokens, not"):
    harness.check(what, dict(ours=dict(tokens=1)))


def test_a_sweep_decides_the_options(monkeypatch):
  table = small(update.TABLE, EVEN)
  slow, quick, broken = (dict(micro=m) for m in (4, 8, 16))
  table = dataclasses.replace(table, tried=dict(ours=[slow, quick, broken]))
  key = table.key("one", "ours", given(table))
  assert harness.best(key, [slow, quick]) == slow  # none yet: the first

  def race(jobs, *_, **__):
    if jobs["ours"]["options"] == dict(micro=16):
      raise RuntimeError("ours died")
    seconds = {4: [2.0, 2.0, 0.1], 8: [1.0, 1.0, 9.0]}
    micro = jobs["ours"]["options"]["micro"]
    return dict(ours=dict(seconds=seconds[micro], peak_mib=1.0))

  monkeypatch.setattr(harness, "race", race)
  harness.sweep(table, ["ours"], given(table))
  assert harness.best(key, [slow, quick, broken]) == quick
  assert harness.best(key, [slow, broken]) == slow
  page = (harness.RESULTS / f"{harness.SWEEP}.md").read_text()
  assert "micro 4 | 2.000 | 0.100 to 2.000 |" in page
  assert "micro 16 | did not run |" in page


def test_a_worker_that_dies_is_named():
  what = harness.job("rollout", EVEN, "tiny", "float32", dict(batch=8))
  what["weights"] = "nowhere"
  with pytest.raises(RuntimeError, match="ours died, see .*nowhere"):
    harness.race(dict(ours=what), harness.ENVIRONMENTS, 1)


def test_a_peer_that_is_not_installed_says_how(tmp_path):
  with pytest.raises(SystemExit, match="bench.peers --install tunix"):
    harness.race(dict(tunix=dict(task="update")), tmp_path, 1)


def test_ratios_are_of_medians_and_of_pairs():
  assert harness.ratios([1, 2, 4], [4, 4, 2]) == [2, 0.5, 4]


def test_options_fit_the_rows():
  for table in TABLES.values():
    for case, size in table.cases.items():
      for name in ("ours", *harness.PEERS):
        for options in table.options(case, name):
          for size_of in ("batch", "micro"):
            assert size.rows % options.get(size_of, 1) == 0
            assert options.get(size_of, size.group) % size.group == 0


def test_peers_take_part_without_their_libraries():
  # They are compiled, not run: what they import is not here.
  for name in harness.PEERS:
    text = (ROOT / "bench" / "peers" / f"{name}.py").read_text()
    compile(text, name, "exec")
    said = set(re.findall(r"job\[\"(\w+)\"\]", text))
    jobs = set(harness.job("update", EVEN, "tiny", "float32", SMALL))
    assert said <= jobs | {"products", "attention"}  # of bench.products
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


@pytest.mark.slow
def test_one_device_against_its_limits():
  flags = "--dims=tiny --dtype=float32 --rows=8 --group=4 --prompt=4"
  flags += " --response=8 --repeats=1 --copy_mib=8 --product=128 --remat=none"
  flags += " --tail --slots=4"
  result = gpu.measure(gpu.arguments(flags.split()))
  assert all(0 < result["share"][task] < 1.5 for task in gpu.TASKS)
  assert "| update |" in "\n".join(gpu.page(result))


def test_work_is_counted_by_hand():
  cfg = ours.shape(harness.job("update", EVEN, "tiny", "bfloat16", {}))
  size = harness.Size(8, 4, 10, tail=False, group=2)
  todo = gpu.work(cfg, size, [10] * 8, 8)
  # embed, norm; a layer: q, o, k, v, their biases, mlp, norms
  layer = 2 * 32 * 32 + 2 * 32 * 16 + 32 + 2 * 16 + 3 * 32 * 64 + 2 * 32
  weights = 64 * 32 + 32 + 2 * layer
  cache = 2 * 2 * 2 * 8 * (4 + 5)  # k and v, layers, heads, width, tokens
  assert todo["decode_bytes"] == 10 * 2 * (weights + 8 * cache)
  products = 2 * (2 * (layer - 128) + 64 * 32)
  attention = 2 * 2 * 2 * 32  # scores and values, layers, operations a token
  assert todo["forward_flops"] == 8 * 14 * (products + attention * 7)
  assert todo["prefill_flops"] == 4 * 4 * (products + attention * 2)
  few = gpu.work(cfg, size, [10, 2, 2, 2], 2)  # 8 tokens a slot; 10 is longest
  seen = 10 * (4 + 5) + 3 * 2 * (4 + 1)
  assert few["decode_bytes"] == 2 * (10 * weights + cache // (4 + 5) * seen)


@pytest.mark.slow
def test_scaling_is_measured_and_drawn():
  pytest.importorskip("matplotlib")
  point = dict(rows=2, length=40, micro=2, layers=1)
  result = scaling.run("tiny", 1, dict(depth=[point]))
  (found,) = result["axes"]["depth"]
  assert found["compile"] > max(found["seconds"]) > 0
  deeper = found | dict(layers=2, seconds=[7.0, 8.0, 9.0])
  result["axes"] = {axis: [found, deeper] for axis in scaling.AXES}
  page = "\n".join(scaling.page(result))
  assert "| depth | 2 | 8.000 | 7.000 to 9.000 |" in page
  harness.RESULTS.mkdir()
  scaling.figure(result)
  assert (harness.RESULTS / "bench_scaling.png").stat().st_size > 10_000


def test_the_table_of_rounded_rollouts():
  """From what runs and measurements say; they take minutes, so here made up."""
  some = dict(kl=2e-4, tokens=1234, largest=0.5, beyond=0.0)
  runs = [
      dict(name=name, seed=seed, before=0.25, after=0.5 + seed, gap=0.1, **some)
      for name in rollout_weights.ROWS
      for seed in (0, 0.25)
  ]
  policies = [dict(kind=kind, **some) for kind in rollout_weights.KINDS]
  facts = dict(environment=dict(jax="0.10.2", XLA_FLAGS=""))
  text = rollout_weights.table(
      dict(seeds=[0, 1], runs=runs, policies=policies, **facts)
  )
  wanted = "| int8 both | 25.0% (25.0% to 25.0%) | 62.5% (50.0% to 75.0%) |"
  assert wanted in text and "1,234 tokens or more" in text
  assert text.endswith("Ours: jax 0.10.2.\n")
