"""Kills runs of all algorithms at random instants; all end with the same bits.

  python tests/slow/kills.py --workdir=DIR --kills=200

What was done is in DIR/kills.json: the same command goes on where it ended.
"""

import argparse
import json
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import jax  # noqa: E402
import numpy as np  # noqa: E402
from conftest import child_env, restore_arrays  # noqa: E402
from feature_fields import there  # noqa: E402

FLAGS = (
    "--config.sft.steps=60",
    "--config.checkpoint.sft_every=20",
    # Kills between two checkpoints: steps are lost, and are repeated.
    "--config.rl.steps=7",
    "--config.checkpoint.every=3",
    "--config.evaluate.every=0",
)
KEEP = (
    *(
        f"--config.{name.replace('__', '.')}={x}"
        for name, x in there(
            rollout__replay=2, correction__name="truncate"
        ).items()
    ),
    "--config.updates.epochs=2",
)
# Every preset, and what carries state from one step to the next.
RUNS: dict[str, tuple[str, ...]] = {
    **{
        name: (f"--config=configs/{name}.py:smoke",)
        for name in "cispo dr_grpo grpo gspo lite_ppo max_rl ppo reinforce"
        " reinforce_pp reinforce_pp_baseline rloo vapo".split()
    },
    "dapo": ("--config=configs/dapo.py:smoke", *KEEP),
    "lora": ("--config=configs/dapo.py:smoke", *KEEP, "--config.lora.rank=4"),
}


def start(workdir, cache, *flags, how=("-m", "rl_reason.main"), **options):
  """A process that runs, or resumes, what the flags say."""
  return subprocess.Popen(
      [sys.executable, *how, *FLAGS, *flags, f"--workdir={workdir}"],
      cwd=ROOT,
      env=child_env(cache),
      stdout=subprocess.PIPE,
      stderr=subprocess.STDOUT,
      text=True,
      **options,
  )


def finish(process, code=0):
  """Its output, when it has ended as it should."""
  out, _ = process.communicate(timeout=3000)
  assert process.returncode == code, out
  return out


def logged(workdir, name="metrics.jsonl"):
  """The lines of a log, without times."""
  return [
      {
          key: value
          for key, value in json.loads(line).items()
          if not key.startswith(("timing_s/", "perf/"))
      }
      for line in (workdir / name).read_text().splitlines()
  ]


def outcome(workdir):
  """Everything that must not depend on how often the run was killed."""
  checkpoints = workdir / "checkpoints" / "rl"
  last = max(checkpoints.iterdir(), key=lambda p: int(p.name))
  state = restore_arrays(last / "state")
  leaves = [np.asarray(x) for x in jax.tree.leaves(state)]
  host = json.loads((last / "host.json").read_text())
  return (
      [(x.dtype.str, x.tobytes()) for x in leaves],
      {k: v for k, v in host.items() if k != "logs"},
      logged(workdir),
      logged(workdir, "samples.jsonl"),
  )


def equal(a, b):
  """Asserts that two runs have ended with the same bits."""
  for x, y in zip(outcome(a), outcome(b), strict=True):
    assert x == y


def main(folder: pathlib.Path, kills: int, names=tuple(RUNS)) -> dict[str, int]:
  """Kills until there were so many; returns the kills of each run by name."""
  folder.mkdir(parents=True, exist_ok=True)
  record, cache = folder / "kills.json", folder / "compiled"
  done = json.loads(record.read_text()) if record.exists() else {}
  rng = random.Random(time.time_ns())
  while sum(done.values()) < kills:
    name = min(names, key=lambda x: done.get(x, 0))
    whole, flags = folder / name / "undisturbed", RUNS[name]
    clock = folder / name / "seconds"
    if not clock.exists():
      finish(start(whole, cache, *flags))
      began = time.monotonic()  # with programs that are compiled
      finish(start(folder / name / "clock", cache, *flags))
      clock.write_text(str(time.monotonic() - began))
    # A run that is killed until it ends in spite of that.
    victim, found = folder / name / str(time.time_ns()), 0
    while True:
      process = start(victim, cache, *flags)
      time.sleep(rng.uniform(0.1, 1.0) * float(clock.read_text()))
      if process.poll() is not None or sum(done.values()) + found == kills:
        break
      process.kill()
      finish(process, -signal.SIGKILL)
      found += 1
    finish(process)
    equal(victim, whole)
    shutil.rmtree(victim)
    done[name] = done.get(name, 0) + found
    record.write_text(json.dumps(done))
    print(f"{sum(done.values())} of {kills} kills: {done}", flush=True)
  return done


if __name__ == "__main__":
  parser = argparse.ArgumentParser(description=__doc__)
  parser.add_argument("--workdir", type=pathlib.Path, required=True)
  parser.add_argument("--kills", type=int, default=200)
  parser.add_argument(
      "--runs", nargs="*", default=list(RUNS), choices=list(RUNS)
  )
  args = parser.parse_args()
  main(args.workdir, args.kills, args.runs)
