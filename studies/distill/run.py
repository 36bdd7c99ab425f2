"""A skill for half the size: on-policy distillation against RL of the student.

  python -m studies.distill.run --jobs 2    # resumable; four runs a seed
  python -m studies.distill.run --seeds 4   # only the first seeds
  python -m studies.distill.run --develop 0 # a seed that is not reported
  python -m studies.distill.run --collect   # the data of the runs made so far
  python -m studies.distill.run --table     # only page and figure, from JSON

The teacher is a run of configs/dapo.py. The student has half of its parameters
and SFT of its own; it learns from the teacher (configs/distill.py), in both
forms, or by DAPO, from the same SFT model. plan.md has the
hypotheses. Writes distill.{json,md,png}.
"""

import itertools
import pathlib
from typing import Any

import numpy as np

from bench import results, runs
from bench.training import seeds
from rl_reason.lab import ablate, comparison, jobs
from rl_reason.monitoring import run_log
from rl_reason.report import figures, scores

NAME = "distill"
SEEDS = ablate.fresh_seeds("rl_reason distill", 16)
CORE = "val-core/arithmetic/acc/"
COLUMNS = ("mean@4", "greedy", "pass@8")
TEACHER, RL = "teacher: DAPO", "student: DAPO"
FULL, SAMPLED = "student: full KL", "student: sampled"
ROWS = {
    TEACHER: "configs/dapo.py",
    RL: "configs/dapo.py",
    FULL: "configs/distill.py",
    SAMPLED: "configs/distill.py:sampled",
}
STUDENT = {"model.mlp": 64}  # of 192: half of the parameters
# Of the plan: the share of RL's tokens, and the points that may be lost.
SHARE, LOST = 0.1, 2.0


def directory(name: str, seed: int) -> pathlib.Path:
  """The work directory of a run."""
  return results.RUNS / NAME / f"{ablate.slug(name)}-{seed}"


def job(name: str, seed: int) -> jobs.Job:
  """A run; those of the student share its SFT model."""
  fields: dict[str, Any] = {"seed": seed} | runs.HELD_OUT
  bases: tuple[pathlib.Path, ...] = ()
  if name == RL:
    # The student has less skill; the plan says how much is enough.
    fields |= STUDENT | {"sft.threshold": 0.0}
  elif name != TEACHER:
    bases = directory(TEACHER, seed), directory(RL, seed)
    fields["kl.reference"], fields["sft.reuse"] = map(str, bases)
  return runs.run(ROWS[name], directory(name, seed), fields, bases)


def read(name: str, seed: int) -> dict[str, Any]:
  """Evaluations with the generated tokens, and the KL to the teacher."""
  lines = run_log.read_metrics(directory(name, seed))
  evaluations = scores.of_stage(lines, "evaluate")
  rl = scores.of_stage(lines, "rl")
  generated = {x["step"]: x["tokens/generated"] for x in rl}
  return dict(
      name=name,
      seed=seed,
      steps=[x["step"] for x in evaluations],
      tokens=[generated.get(x["step"], 0) for x in evaluations],
      kl=[round(x["kl/reference"], 5) for x in rl if "kl/reference" in x],
      **{k: [x[CORE + k] for x in evaluations] for k in COLUMNS},
  )


def flags(parser) -> None:
  """The flags."""
  parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
  parser.add_argument("--seeds", type=int, default=len(SEEDS))
  parser.add_argument("--develop", type=int, nargs="+", default=[])
  parser.add_argument("--collect", action="store_true", help="run nothing")


def measure(given) -> dict:
  """Runs what is missing, seed by seed; returns the data."""
  wanted = given.develop or SEEDS[: given.seeds]
  if not given.collect:
    every = itertools.product(wanted, ROWS)
    runs.make([job(name, seed) for seed, name in every], given.jobs)
  if given.develop:
    for seed, name in itertools.product(given.develop, ROWS):
      found = read(name, seed)
      last = found["tokens"][-1], found["mean@4"][0], found["mean@4"][-1]
      print(seed, name, *last)
    raise SystemExit  # a development seed is not reported
  every = itertools.product(SEEDS, ROWS)
  made = [(name, seed) for seed, name in every if job(name, seed).finished()]
  return dict(
      command=f"python -m studies.{NAME}.run",
      environment=results.run_environment(directory(*made[0])),
      runs=[read(*x) for x in made],
  )


# --- page and figure ----------------------------------------------------------


def by_seed(result: dict) -> dict[int, dict[str, dict]]:
  """{seed: {row: run}} of the seeds with all rows."""
  found: dict[int, dict[str, dict]] = {}
  for run in result["runs"]:
    found.setdefault(run["seed"], {})[run["name"]] = run
  return {seed: rows for seed, rows in found.items() if len(rows) == len(ROWS)}


def verdicts(found: dict[int, dict[str, dict]]) -> list[tuple[str, str, str]]:
  """Hypothesis, numbers and verdict, as the plan has them."""
  if len(found) < len(SEEDS):
    return [("all", f"{len(found)} of {len(SEEDS)} seeds", "open")]

  def points(row: str, other: str) -> list[float]:
    return [
        100 * (x[row]["mean@4"][-1] - x[other]["mean@4"][-1])
        for x in found.values()
    ]

  def text(values: list[float]) -> tuple[float, float, str]:
    mean, half = comparison.interval(values)
    half = half or 0.0
    return mean, half, f"{mean:+.1f} ± {half:.1f} points"

  def decide(holds: bool, refuted: bool) -> str:
    return "holds" if holds else "refuted" if refuted else "undecided"

  mean, half, words = text(points(FULL, RL))
  most = max(
      x[FULL]["tokens"][-1] / x[RL]["tokens"][-1] for x in found.values()
  )
  words += f" against DAPO, at most {most:.1%} of its tokens"
  few = most <= SHARE
  passed = decide(few and mean - half > -LOST, not few or mean + half < -LOST)
  first = "1: the skill is passed on", words, passed
  mean, half, words = text(points(FULL, SAMPLED))
  verdict = decide(mean > half, mean < -half)
  return [first, ("2: full above sampled", words, verdict)]


def page(result: dict) -> list[str]:
  """Returns the tables in Markdown."""
  found = by_seed(result)
  about = (
      "Does a student learn a skill from a teacher with fewer tokens than by RL"
      " of its own? [plan.md](plan.md)"
      " has the hypotheses, and what would refute them. Held-out accuracy on"
      " 1,000 prompts, mean of 4 samples at temperature 1; mean over seeds ±"
      " half the width of its 95% interval (Student's t), and least to most."
      f" {len(found)} of {len(SEEDS)} seeds have been run. Bands of the figure:"
      " least to most."
  )
  out = [
      "| | mean@4 | greedy | pass@8 | generated tokens |",
      "|---|---|---|---|---|",
  ]
  for name, at, label in (
      (RL, 0, "student before RL and distillation"),
      *((x, -1, f"after: {x}") for x in ROWS),
  ):
    of_row = [x[name] for x in found.values()]
    if of_row:
      cells = [seeds.spread([x[k][at] for x in of_row]) for k in COLUMNS]
      tokens = np.mean([x["tokens"][at] for x in of_row])
      out.append(results.row(label, *cells, f"{tokens:,.0f}"))
  out += ["", "| hypothesis | measured | verdict |", "|---|---|---|"]
  known = verdicts(found)
  out += [results.row(*x) for x in known]
  words = [f"{x}: {measured}, {verdict}" for x, measured, verdict in known]
  return results.document(
      "A skill for half the size: distillation against RL of the student",
      f"Hypotheses {'; '.join(words)}.",
      about,
      f"![curves]({NAME}.png)",
      out,
      made=f"Made by `python -m studies.{NAME}.run`.",
      versions=results.footer(result),
  )


def figure(result: dict) -> dict:
  """Accuracy of the student against the tokens that it has generated."""
  lines = []
  for color, name in enumerate((RL, FULL, SAMPLED)):
    of_row = [x[name] for x in by_seed(result).values()]
    if not of_row:
      continue
    y_SE = np.array([x["mean@4"] for x in of_row])
    lines.append(
        figures.series(
            name,
            np.mean([x["tokens"] for x in of_row], 0),
            y=y_SE.mean(0),
            low=y_SE.min(0),
            high=y_SE.max(0),
            color=color,
        )
    )
  panel = figures.lines(
      lines,
      x="generated tokens",
      y="held-out accuracy (mean@4)",
      percent=True,
  )
  return figures.figure(
      figures.block([panel], columns=1, height=3.2), legend=True
  )


if __name__ == "__main__":
  results.main(__doc__, NAME, measure, page, figure=figure, flags=flags)
