"""What RL on short sums leaves of longer ones, other operators, other numbers.

  python -m studies.out_of_distribution.run            # resumable
  python -m studies.out_of_distribution.run --seeds 4  # only the first seeds
  python -m studies.out_of_distribution.run --develop 0  # a seed not reported
  python -m studies.out_of_distribution.run --collect  # of the runs made so far
  python -m studies.out_of_distribution.run --table    # only the page

SFT sees three operators and up to six operands; RL, by GRPO or DAPO from the
same SFT model, sees two operators and up to four operands. plan.md has the
hypotheses. Writes out_of_distribution.{json,md}.
"""

import itertools
import json
import pathlib
from typing import Any, NamedTuple

import numpy as np

from bench import results, runs
from rl_reason.lab import ablate, jobs
from studies.verdicts import decided, within

NAME = "out_of_distribution"
SEEDS = ablate.fresh_seeds("rl_reason out of distribution", 16)
SFT, GRPO, DAPO = "SFT", "GRPO", "DAPO"
ROWS = {GRPO: "configs/grpo.py", DAPO: "configs/dapo.py"}
STEPS = 30
FIELDS = {
    "task.name": "operators",
    "task.difficulties": (2, 3, 4, 12, 13, 14),
    "sft.difficulties": tuple(
        10 * kind + operands for kind in range(3) for operands in range(2, 7)
    ),
    "rollout.max_prompt": 16,
    "rollout.max_tokens": 48,
    "rl.steps": STEPS,
    "evaluate.prompts": 100,
    "evaluate.interim_prompts": 100,
    "evaluate.every": 0,
}


EVALUATION = {
    "evaluate.prompts": 500,
    "evaluate.samples": 4,
    "evaluate.mean_of": 4,
    "evaluate.batch": 250,
    "rollout.max_prompt": 16,
    "rollout.max_tokens": 64,
}
OWN = (2, 3, 4, 12, 13, 14)
PERTURBED = "numbers"


class Set(NamedTuple):
  """A column: held-out problems of the task `operators`.

  Attributes:
    title: in the table.
    difficulties: of the problems.
    perturbed: whether the numbers of each problem are exchanged.
  """

  title: str
  difficulties: tuple[int, ...]
  perturbed: bool = False

  @property
  def metric(self) -> str:
    """The accuracy of the set in an evaluation."""
    label = f"operators-{'+'.join(map(str, self.difficulties))}"
    end = f"~{PERTURBED}" if self.perturbed else ""
    return f"val-core/{label}{end}/acc/mean@4"


SETS = {
    "own": Set("as in RL: 2 to 4 operands, + and -", OWN),
    "numbers": Set("the same with other numbers", OWN, perturbed=True),
    "longer": Set("5 and 6 operands, + and -", (5, 6, 15, 16)),
    "operator": Set("2 to 4 operands, *", (22, 23, 24)),
    "both": Set("5 and 6 operands, *", (25, 26)),
    "longest": Set("7 and 8 operands, + and -", (7, 8, 17, 18)),
}
SEEN = ("longer", "operator", "both")  # by SFT, and not by RL


def directory(name: str, seed: int) -> pathlib.Path:
  """The work directory of a run, or of an evaluation of it."""
  return results.RUNS / NAME / f"{name.lower()}-{seed}"


def training(name: str, seed: int) -> jobs.Job:
  """A run; DAPO begins with the SFT model of GRPO."""
  fields: dict[str, Any] = FIELDS | {"seed": seed} | runs.HELD_OUT
  bases: tuple[pathlib.Path, ...] = ()
  if name == DAPO:
    bases = (directory(GRPO, seed),)
    fields["sft.reuse"] = str(bases[0])
  return runs.run(ROWS[name], directory(name, seed), fields, bases)


def evaluated(name: str, seed: int) -> pathlib.Path:
  """The file with the scores of a run's policies, which it makes."""
  workdir = directory(name, seed)
  path = workdir / "sets.json"
  if path.exists():
    return path
  steps = dict(sft=SFT, newest=name) if name == GRPO else dict(newest=name)
  tasks = ",".join(
      f"operators({'+'.join(map(str, x.difficulties))})"
      for x in SETS.values()
      if not x.perturbed
  )
  runs.command(
      "--stage=evaluate",
      f"--workdir={workdir}",
      f"--step={','.join(steps)}",
      *(f"--config.{field}={x}" for field, x in EVALUATION.items()),
      f"--config.evaluate.tasks={tasks}",
      f"--config.evaluate.perturb={PERTURBED}",
  )
  found = {}
  for step, row in steps.items():
    (file,) = workdir.glob(f"evaluation-{step}*.json")
    values = json.loads(file.read_text())
    found[row] = {x: round(values[y.metric], 5) for x, y in SETS.items()}
  path.write_text(json.dumps(found))
  return path


def flags(parser) -> None:
  """The flags."""
  parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
  parser.add_argument("--seeds", type=int, default=len(SEEDS))
  parser.add_argument("--develop", type=int, help="a seed that is not reported")
  parser.add_argument("--collect", action="store_true", help="run nothing")


def measure(given) -> dict:
  """Runs what is missing, seed by seed; returns the data."""
  wanted = SEEDS[: given.seeds]
  if given.develop is not None:
    wanted = (given.develop,)
  if not given.collect:
    every = itertools.product(wanted, ROWS)
    runs.make([training(name, seed) for seed, name in every], given.jobs)
    for seed, name in itertools.product(wanted, ROWS):
      print(seed, evaluated(name, seed).read_text(), flush=True)
  if given.develop is not None:
    raise SystemExit  # a development seed is not reported
  made, found = [], None
  for seed in SEEDS:
    paths = [directory(name, seed) / "sets.json" for name in ROWS]
    if all(x.exists() for x in paths):
      found = found or results.run_environment(paths[0].parent)
      of_rows = [json.loads(x.read_text()) for x in paths]
      made.append(
          dict(seed=seed, scores={k: v for x in of_rows for k, v in x.items()})
      )
  return dict(
      command=f"python -m studies.{NAME}.run",
      environment=found or {},
      seeds=list(SEEDS),
      runs=made,
  )


# --- page --------------------------------------------------------------------


def points(result: dict, row: str, name: str) -> np.ndarray:
  """The accuracy of a row on a set in percent, by seed."""
  return np.asarray([100 * x["scores"][row][name] for x in result["runs"]])


def gains(result: dict, row: str, name: str, base: str = SFT) -> np.ndarray:
  """A row minus another on a set in points, by seed."""
  return points(result, row, name) - points(result, base, name)


def retained(result: dict, row: str, name: str) -> np.ndarray:
  """A row's gain on a set minus its gain on its own problems, by seed."""
  return gains(result, row, name) - gains(result, row, "own")


def verdicts(result: dict) -> list[tuple[str, str, str]]:
  """Each hypothesis of plan.md: what was found, the verdict."""
  out = []

  def add(words: str, values: np.ndarray, verdict: str) -> None:
    out.append((words, f"{results.mean(values, '+.1f')} points", verdict))

  for row in ROWS:
    for name in SEEN:
      found = gains(result, row, name)
      words = f"1. {row} gains on: {SETS[name].title}"
      add(words, found, decided(found, 1))
      found = retained(result, row, name)
      words = f"2. {row} gains less there than on the problems of RL"
      add(f"{words}: {SETS[name].title}", found, decided(found, -1))
    found = gains(result, row, "longest")
    words = f"3. {row} gains less than 5 points on: {SETS['longest'].title}"
    add(words, found, decided(found, -1, -5.0))
    found = points(result, row, "numbers") - points(result, row, "own")
    words = f"4. {row}: other numbers change the accuracy by less than 3 points"
    add(words, found, within(found, 3.0))
  for name in SEEN:
    found = gains(result, DAPO, name, GRPO)
    words = f"5. DAPO ends within 5 points of GRPO on: {SETS[name].title}"
    add(words, found, within(found, 5.0))
  return out


def headline(result: dict) -> str:
  """The finding with its numbers."""
  parts = [
      f"{results.mean(gains(result, GRPO, name), '+.1f')} points on problems of"
      f" {SETS[name].title}"
      for name in SEEN
  ]
  own = results.mean(gains(result, GRPO, "own"), "+.1f")
  return (
      f"RL on sums of 2 to 4 operands with + and - adds {own} points there by"
      f" GRPO, and {results.joined(parts)}, which SFT has seen and RL has not."
  )


def page(result: dict) -> list[str]:
  """The page in Markdown."""
  if not result["runs"]:
    return ["# Out of distribution", "", "No run has been made."]
  table = [
      results.row("", *(x.title for x in SETS.values())),
      results.row(*["---"] * (1 + len(SETS))),
  ]
  for row in (SFT, *ROWS):
    cells = [results.mean(points(result, row, x), ".1f") for x in SETS]
    table.append(results.row(row, *cells))
  for row in ROWS:
    cells = [results.mean(gains(result, row, x), "+.1f") for x in SETS]
    table.append(results.row(f"{row} - {SFT}", *cells))
  expected = ["| expectation | found | verdict |", "|---|---|---|"]
  expected += [results.row(*x) for x in verdicts(result)]
  return results.document(
      "Out of distribution: longer problems, another operator, other numbers",
      headline(result),
      "What does RL on easy problems change on problems that it has never seen?"
      " SFT sees chains of +, - and * with 2 to 6 operands; RL, 30 steps from"
      " the same SFT model, sees + and - with 2 to 4 operands. The plan is"
      f" [plan.md](plan.md), the data are in `{NAME}.json`.",
      [
          "Accuracy in percent (mean@4 of 500 held-out prompts), mean of"
          f" {len(result['runs'])} seeds ± half of the width of the 95%"
          " interval (Student's t).",
          "",
          *table,
      ],
      expected,
      made=f"Made by `{result['command']}`.",
      versions=results.footer(result),
  )


if __name__ == "__main__":
  results.main(__doc__, NAME, measure, page, flags=flags)
