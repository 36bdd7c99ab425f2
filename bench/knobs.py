"""Four knobs: every combination of three settings each, on three seeds.

  python -m bench.knobs            # resumable; about 25 CPU-minutes
  python -m bench.knobs --collect  # of the runs made so far
  python -m bench.knobs --table    # only the pages, from JSON

Reward shape, clip bound, group size and length punishment of GRPO on the
default task. Writes results/knobs.{json,md,html}; results/plans/knobs.md is the
plan.
"""

import itertools
from collections.abc import Iterator
from typing import Any

from bench import results
from rl_reason.lab import ablate, jobs
from rl_reason.monitoring import run_log
from rl_reason.report import charts, scores

NAME = "knobs"
SEEDS = ablate.fresh_seeds("rl_reason four knobs", 3)
# The settings of each knob, and the fields of each setting.
KNOBS: dict[str, dict[str, dict[str, Any]]] = {
    "group size": {f"{n}": {"rollout.group_size": n} for n in (2, 8, 32)},
    "clip bound": {
        f"{e:g}": {f"surrogate.args.clip_{x}": e for x in ("low", "high")}
        for e in (0.005, 0.02, 0.2)
    },
    "reward shape": {
        "verdict": {},
        "verdict + steps": {"reward.functions": "steps"},
        "steps alone": {
            "reward.functions": "steps",
            "reward.correct": 0.0,
            "reward.incorrect": 0.0,
        },
    },
    "length punishment": {
        "none": {},
        "coefficient 1": {"reward.overlong_buffer": 44},
        "coefficient 2": {
            "reward.overlong_buffer": 44,
            "reward.overlong_coef": 2.0,
        },
    },
}
COMMON = {
    "rl.steps": 24,
    "rollout.batch": 128,
    "updates.minibatches": 4,
    "evaluate.prompts": 192,
    "evaluate.interim_prompts": 96,
    "evaluate.batch": 96,
    "evaluate.samples": 2,
    "evaluate.mean_of": 2,
    "evaluate.every": 6,
    "checkpoint.every": 24,
    "log.samples_every": 24,
    "log.loggers": "",
}
RUNS_PER_PROCESS = 30  # compiled programs stay in memory: about 1 GB
# Measures of RL: key of the metric.
MEASURES = {
    "length": "response_length/mean",
    "entropy": "actor/entropy",
    "training accuracy": "train/accuracy",
    "clipped": "actor/pg_clipfrac",
}


def cells() -> Iterator[tuple[str, ...]]:
  """The settings of each cell, in the order of `KNOBS`."""
  return itertools.product(*KNOBS.values())


def plan() -> list[jobs.Job]:
  """SFT of each seed, then the runs by `fraction` and by seed."""
  rows = []
  for cell in cells():
    fields: dict[str, Any] = {}
    for knob, setting in zip(KNOBS.values(), cell, strict=True):
      fields |= knob[setting]
    rows.append((", ".join(cell), "configs/grpo.py", fields))
  c = ablate.ladder(
      title="Four knobs",
      question="",
      seeds=SEEDS,
      reference=rows[0][0],
      rows=rows,
      common=COMMON,
  )
  found = ablate.plan(c, results.RUNS / NAME, "cells")
  return sorted(found, key=lambda job: (bool(job.row), fraction(job)))


def fraction(job: jobs.Job) -> int:
  """Which third of the grid a run belongs to; 0 for SFT.

  The settings of a third are balanced: each pair of settings of two knobs
  occurs three times, so main effects can be read from one third.
  """
  return sum(indices(job)) % 3 if job.row else 0


def indices(job: jobs.Job) -> list[int]:
  """The number of each knob's setting."""
  settings = job.row.split(", ")
  knobs = zip(KNOBS.values(), settings, strict=True)
  return [list(knob).index(x) for knob, x in knobs]


def read(job: jobs.Job) -> dict[str, Any]:
  """The curves of a run: evaluations by `steps`, measures of each RL step."""
  lines = run_log.read_metrics(job.workdir)
  evaluations = scores.of_stage(lines, "evaluate")
  _, key = scores.headline(scores.scores(evaluations[0]))
  spent = charts.spent(lines, "tokens")
  out: dict[str, Any] = dict(
      cell=indices(job),
      seed=job.seed,
      seconds=round(job.record()["seconds"], 1),
      accuracy=[_short(x[key]) for x in evaluations],
      tokens=[spent[x["step"]] for x in evaluations],
  )
  rl = scores.of_stage(lines, "rl")
  return out | {
      name: [_short(x[metric]) for x in rl] for name, metric in MEASURES.items()
  }


def _short(x: float) -> float:
  """Four digits: the data are kept in the repository."""
  return float(f"{x:.4g}")


def flags(parser) -> None:
  """The flags."""
  parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
  parser.add_argument("--collect", action="store_true")


def measure(given) -> dict:
  """Runs what is missing; returns the data."""
  todo = plan()
  if not given.collect:
    stop = jobs.stop_on_signals()
    failed = jobs.run(
        todo, stop, parallel=given.jobs, runs_per_process=RUNS_PER_PROCESS
    )
    if failed:
      raise SystemExit(f"failed: {', '.join(failed)}")
  done = [job for job in todo if job.row and job.finished()]
  return dict(
      command="python -m bench.knobs",
      seeds=list(SEEDS),
      knobs={name: list(settings) for name, settings in KNOBS.items()},
      fields={name: list(x.values()) for name, x in KNOBS.items()},
      common=COMMON,
      steps=[0, 6, 12, 18, 24],
      environment=results.run_environment(done[0].workdir) if done else {},
      mixed=mixed(done),
      runs=[read(job) for job in done],
  )


def mixed(done: list[jobs.Job]) -> list[str]:
  """The entries of machine and versions in which runs differ."""
  found = [results.run_environment(job.workdir) for job in done]
  names = found[0] if found else ()
  return [x for x in names if len({str(y.get(x)) for y in found}) > 1]


def page(result: dict) -> list[str]:
  """The page in Markdown."""
  return ["# Four knobs"]


if __name__ == "__main__":
  results.main(__doc__, NAME, measure, page, flags=flags)
