"""How to make many runs on two cores: processes, one process, or one program.

  python -m studies.many_seeds.run            # 10 minutes on 2 quiet cores
  python -m studies.many_seeds.run --table    # only the page, from JSON

Whole runs of GRPO from one SFT model: a process for each run on one core, or on
both cores; one process that makes several runs, one after another, on one core;
and two such processes side by side.
And a prototype: the programs of an RL step with a leading axis of seeds
(`jax.vmap`), against one call for each seed.
Writes studies/many_seeds/many_seeds.{json,md}.
"""

import argparse
import functools
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from bench import results, runs
from rl_reason.lab import jobs

NAME = "many_seeds"
CONFIG = "configs/grpo.py"
RUNS = 2  # of each way
SHORT = {  # what a run costs besides its steps
    "rl.steps": 4,
    "evaluate.validation": False,
    "evaluate.samples": 4,
    "evaluate.prompts": 128,
    "evaluate.interim_prompts": 128,
    "evaluate.batch": 128,
    "evaluate.every": 0,
    "log.loggers": "",
}
SFT = {"sft.steps": 20, "sft.habits.steps": 0, "sft.threshold": 0.0}


class Way(NamedTuple):
  """A way to make runs: its cores, runs of a process, processes at a time."""

  cores: int = 1
  per_process: int = 1
  parallel: int = 1


WAYS = {
    "a process for each run, on one core": Way(),
    "one process, run after run, on one core": Way(per_process=RUNS),
    "a process for each run, on both cores": Way(cores=2),
    "two processes side by side, run after run, on a core each": Way(
        2, RUNS, 2
    ),
}
SEEDS = (1, 2, 4, 8)
REPEATS = 5


# --- whole runs --------------------------------------------------------------


def made(
    place: pathlib.Path, name: str, seeds: list[int], fields: dict, way: Way
) -> dict[str, float]:
  """Makes runs in a way; returns the seconds of a run, of all processes."""
  own = sorted(os.sched_getaffinity(0))
  before, begun = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
  todo = [
      runs.run(CONFIG, place / f"{name}-{seed}", fields | {"seed": seed})
      for seed in seeds
  ]
  os.sched_setaffinity(0, own[-way.cores :])
  try:
    failed = jobs.run(
        todo,
        threading.Event(),
        parallel=way.parallel,
        runs_per_process=way.per_process,
    )
  finally:
    os.sched_setaffinity(0, own)
  if failed:
    raise SystemExit(f"failed: {', '.join(failed)}")
  seconds = time.monotonic() - begun
  after = resource.getrusage(resource.RUSAGE_CHILDREN)
  cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
  return dict(
      seconds=round(seconds / len(seeds), 2),
      cpu_seconds=round(cpu / len(seeds), 2),
  )


def whole_runs() -> dict[str, dict[str, float]]:
  """Seconds of a run in all ways; each begins with a full cache.

  Each process makes `RUNS` runs, or as many processes make one run each.
  """
  out: dict[str, dict[str, float]] = {}
  with tempfile.TemporaryDirectory() as scratch:
    place = pathlib.Path(scratch)
    made(place, "sft", [0], SHORT | SFT | {"rl.steps": 0}, Way())
    fields = SHORT | SFT | {"sft.reuse": str(place / "sft-0")}
    for number, (name, way) in enumerate(WAYS.items()):
      # XLA compiles for a number of threads: fills the cache.
      threads = way.cores // way.parallel
      if threads not in {WAYS[x].cores // WAYS[x].parallel for x in out}:
        made(place, f"first{number}", [0], fields | {"rl.steps": 1}, way)
      seeds = list(range(1, 1 + RUNS * way.parallel))
      out[name] = made(place, f"way{number}", seeds, fields, way)
      print(name, out[name], flush=True)
  return out


# --- the programs of a step with an axis of seeds ----------------------------


def programs() -> dict[str, tuple[Callable, Callable[[int], tuple]]]:
  """The programs of a step of GRPO by name, each with its arguments.

  A program takes one seed; the arguments are of a number of seeds, with a
  leading axis. Lengths are drawn as in the middle of a run, and all responses
  end at their lengths, so that every seed does the same work in every way.
  """
  import functools

  import jax
  import jax.numpy as jnp
  import numpy as np

  from bench import ours
  from rl_reason import tasks
  from rl_reason.base.structs import Batch
  from rl_reason.checks import config_checks
  from rl_reason.data import pipelines, tokenizer
  from rl_reason.models import decoder
  from rl_reason.rollout import decode_loop, sampler
  from rl_reason.stages import build_step, model, optimizers
  from rl_reason.training import optimizer, packing, step as step_lib

  c, _ = config_checks.checked(CONFIG, {})
  task = tasks.get(c.task.name)
  tok = tokenizer.load("", task.ALPHABET)
  cfg = model.policy_shape(c, None, tok, lambda _: None)
  total, group = c.rollout.batch, c.rollout.group_size
  longest, slots = c.rollout.max_tokens, c.rollout.max_prompt
  of_task = pipelines.Problems(task, c.task.difficulties, 0)
  prompts = pipelines.pack_prompts(
      tok,
      [of_task[i][1].prompt for i in range(total // group)],
      range(total // group),
      slots,
  )
  prompts = jax.tree.map(jnp.asarray, prompts)
  engine = sampler.Sampler(
      cfg=cfg,
      group_size=group,
      max_tokens=longest,
      eos=-1,  # no token has this id: responses end at their lengths
      pad=tok.pad_token_id,
      slots=c.rollout.slots,
  )
  rng = np.random.default_rng(0)

  def lengths():
    return np.clip(rng.normal(25, 7, total).astype(int), 6, longest)

  def sample(params, key, limits_B):
    queue, rows = engine.start(params, prompts, key, 1.0, None, limits_B, 0.0)
    bursts = -(-longest // decode_loop.BURST) + 1
    queue, _, _ = decode_loop.decode(
        params,
        queue,
        rows,
        cfg=cfg,
        eos=-1,
        filters=None,
        bursts=bursts,
    )
    return engine.finish(prompts, None, queue)[0]

  optimizer_of, _ = optimizers.of_policy(c, cfg, ours.mesh())
  update = functools.partial(
      step_lib.rl_update,
      coefs=dict(kl=np.float32(0), entropy=np.float32(0)),
      cfg=cfg,
      tx=optimizer_of,
      temperature=1.0,
      objective=build_step.objective(c, on_policy=False),
  )

  def old_logps(params, packed_M):
    def micro_batch(micro, member_B):
      logps_BT, _, _ = decoder.packed_logps(params, cfg, micro, 1.0)
      return packing.zero_others(member_B, logps_BT)

    return jax.lax.map(functools.partial(packing.fold, micro_batch), packed_M)

  make = jax.jit(functools.partial(decoder.init, cfg))
  plan = functools.partial(
      packing.plan,
      packed_rows=build_step.packed_rows(c, ours.mesh()),
      minibatches=c.updates.minibatches,
  )

  def batch(rollouts, order_MB):
    mask_BT = rollouts.mask_BT
    zeros_BT, none_B = np.zeros(mask_BT.shape, np.float32), np.zeros(total)
    rows = Batch(
        groups_B=rollouts.ids_B,
        mask_BT=mask_BT,
        advantages_BT=np.float32(rng.normal(size=(total, 1)) * mask_BT),
        old_logps_BT=np.float32(rollouts.logps_BT),
        ref_logps_BT=zeros_BT,
        correct_B=np.float32(none_B),
        staleness_B=none_B.astype(np.int32),
        values_BT=zeros_BT,
        returns_BT=zeros_BT,
    )
    return jax.tree.map(lambda x: x[order_MB], rows)

  def stacked(trees):
    return jax.tree.map(lambda *x: jnp.stack(x), *trees)

  once = jax.jit(sample)

  def one(seed):
    params = make(jax.random.key(seed))
    key, limits_B = jax.random.key(100 + seed), jnp.asarray(lengths())
    rollouts = jax.device_get(once(params, key, limits_B))
    planned = plan(rollouts)
    state = optimizer.new_state(params, optimizer_of, None)
    rows = batch(rollouts, planned.order_MB)
    return dict(
        sampling=(params, key, limits_B),
        log_probs=(params, planned.packed_M),
        update=(state, rows, planned.packed_M),
    )

  made = [one(seed) for seed in range(max(SEEDS))]
  of = dict(sampling=sample, log_probs=old_logps, update=update)
  return {
      name: (
          function,
          lambda count, name=name: stacked([x[name] for x in made[:count]]),
      )
      for name, function in of.items()
  }


def step_programs() -> dict[str, dict[str, dict[str, float]]]:
  """CPU and wall seconds per seed of each program, by the number of seeds."""
  import jax

  out: dict[str, dict] = {}
  for name, (function, arguments) in programs().items():
    single = jax.jit(function)
    for count in SEEDS:
      args = arguments(count)
      many = single if count == 1 else jax.jit(jax.vmap(function))
      args = jax.tree.map(lambda x: x[0], args) if count == 1 else args
      begun = time.monotonic()
      jax.block_until_ready(many(*args))
      first = time.monotonic() - begun
      wall, cpu = [], []
      for _ in range(REPEATS):
        begun, before = time.monotonic(), time.process_time()
        jax.block_until_ready(many(*args))
        wall.append((time.monotonic() - begun) / count)
        cpu.append((time.process_time() - before) / count)
      out.setdefault(name, {})[str(count)] = dict(
          first=round(first, 2),
          seconds=round(statistics.median(wall), 4),
          cpu_seconds=round(statistics.median(cpu), 4),
      )
      print(name, count, out[name][str(count)], file=sys.stderr, flush=True)
  return out


def in_child(cores: int) -> dict[str, Any]:
  """`step_programs` in a process on some cores: XLA has a thread for each."""
  own = sorted(os.sched_getaffinity(0))
  os.sched_setaffinity(0, own[-cores:])
  try:
    done = subprocess.run(
        [sys.executable, "-m", "studies.many_seeds.run", "--child"],
        cwd=results.ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
  finally:
    os.sched_setaffinity(0, own)
  return json.loads(done.stdout.splitlines()[-1])


def measure(given: argparse.Namespace) -> dict:
  """Measures the programs of a step, and whole runs."""
  result = results.read(NAME)
  load = dict(result.get("load", {}))
  if given.only != "runs":
    load["programs"] = results.load()
    result["programs"] = in_child(1)
  if given.only != "programs":
    load["runs"] = results.load()
    result["runs"] = whole_runs()
  return result | dict(load=load, environment=results.environment())


def page(result: dict) -> list[str]:
  """Returns the tables in Markdown."""
  of_one = {k: x["1"]["cpu_seconds"] for k, x in result["programs"].items()}
  whole = {
      n: sum(x[n]["cpu_seconds"] for x in result["programs"].values())
      for n in map(str, SEEDS)
  }
  most = str(SEEDS[-1])
  load = ", ".join(f"{x:g} ({k})" for k, x in result["load"].items())
  about = (
      "Which way to make many runs costs the fewest CPU seconds? Data in"
      " `many_seeds.json`. CPU seconds are those of all processes of a"
      " measurement. The load"
      f" average of the machine, which has {result['environment']['cpu count']}"
      f" cores, was {load} at the beginning."
  )
  finding = (
      "A leading axis of seeds (`jax.vmap`) costs"
      f" {whole[most] / whole['1']:.1f} times the CPU seconds of one call for"
      f" each seed ({most} seeds, sampling, log-probs and update together)"
  )
  out = [
      "Sampling loses most: under"
      " `vmap`, a loop whose length depends on the data runs until the last"
      " seed has ended, and copies the key/value caches of all seeds in each"
      " pass. Real runs would lose more, since their seeds differ in the"
      " number of micro-batches and, with dynamic sampling, of rounds.",
      "",
      "CPU seconds per seed of the programs of an RL step of GRPO (256"
      " responses, on one core), by the number of seeds in a call; in brackets,"
      " relative to one seed:",
      "",
      "| seeds in a call | "
      + " | ".join(x.replace("_", "-") for x in result["programs"])
      + " | all three |",
      "|---" * (len(result["programs"]) + 2) + "|",
  ]
  for n in map(str, SEEDS):
    cells = [
        f"{x[n]['cpu_seconds']:.3f} ({x[n]['cpu_seconds'] / of_one[k]:.1f})"
        for k, x in result["programs"].items()
    ]
    out.append(
        results.row(n, *cells, f"{whole[n]:.3f} ({whole[n] / whole['1']:.1f})")
    )
  document = functools.partial(
      results.document,
      "The cheapest way to make many runs on two cores",
      made="Made by `python -m studies.many_seeds.run`.",
      versions=results.footer(result),
  )
  if "runs" not in result:
    return document(f"{finding}.", about, out)
  first, together, both, side = (result["runs"][x]["cpu_seconds"] for x in WAYS)
  out += [
      "",
      f"Runs of {SHORT['rl.steps']} steps with two evaluations of"
      f" {SHORT['evaluate.prompts']} prompts, from one SFT model and with a"
      f" full cache of compiled programs; seconds of a run, where a process"
      f" makes {RUNS} runs, or {RUNS} processes make one each:",
      "",
      "| | CPU seconds of a run | seconds of a run |",
      "|---|---|---|",
  ]
  for name, x in result["runs"].items():
    out.append(results.row(name, x["cpu_seconds"], x["seconds"]))
  out += [
      "",
      f"A process that makes {RUNS} runs imports, traces and loads programs"
      " once. One process on both cores takes"
      f" {both / first:.2f} times the CPU seconds of one core, and two"
      f" processes side by side {side / together:.2f} times those of one"
      " process alone. By the clock the fastest way is"
      f" \"{min(result['runs'], key=lambda x: result['runs'][x]['seconds'])}\";"
      " `studies.table.run` uses two pinned processes, of many runs each"
      " (`jobs.run(runs_per_process=...)`).",
  ]
  finding += (
      f"; a process that makes {RUNS} runs takes {together / first:.2f} times"
      " those of a process for each run."
  )
  return document(finding, about, out)


def flags(parser: argparse.ArgumentParser) -> None:
  """The flags."""
  parser.add_argument("--only", choices=("runs", "programs"))


if __name__ == "__main__":
  if sys.argv[1:] == ["--child"]:
    print(json.dumps(step_programs()))
  else:
    results.main(__doc__, NAME, measure, page, flags=flags)
