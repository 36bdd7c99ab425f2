"""The accuracy of a trained policy in each precision of `--stage=export`.

  python -m bench.export_precision            # 8 runs of DAPO; resumable
  python -m bench.export_precision --table    # only the table, from JSON

Every policy is evaluated as it was trained and as bfloat16, int8 and int4 on
the same prompts and the same noise, so that differences are paired by prompt.
Writes results/export_precision.{json,md}.
"""

import json
import pathlib
import subprocess
import sys

from bench import results, runs
from rl_reason.lab import ablate, comparison

NAME = "export_precision"
RUNS = results.RUNS / NAME
SEEDS = ablate.fresh_seeds("rl_reason export precision", 8)
STEPS = 30
PRECISIONS = "same", "bfloat16", "int8", "int4"
SCORES = "mean@4", "greedy"
SET = "val-core/arithmetic/acc"


def workdir(seed: int) -> pathlib.Path:
  """Returns the work directory of a run."""
  return RUNS / f"dapo-{seed}"


def evaluated(seed: int, precision: str) -> dict:
  """Evaluates the newest checkpoint of a run in a precision."""
  command = [sys.executable, "-m", "rl_reason.main", "--stage=evaluate"]
  command += [f"--workdir={workdir(seed)}", "--step=newest"]
  name = "evaluation-newest"
  if precision != "same":
    command.append(f"--config.export.precision={precision}")
    name += f",export.precision={precision}"
  subprocess.run(command, check=True, cwd=results.ROOT)
  values = json.loads((workdir(seed) / f"{name}.json").read_text())
  scores = {x: values[f"{SET}/{x}"] for x in SCORES}
  return dict(seed=seed, precision=precision, scores=scores)


def measure_all(_) -> dict:
  """Trains what is missing, and evaluates all policies."""
  fields = {"rl.steps": STEPS, "evaluate.every": 0}
  made = [
      runs.run("configs/dapo.py", workdir(seed), fields | {"seed": seed})
      for seed in SEEDS
  ]
  runs.make(made, parallel=2)
  found = [evaluated(seed, name) for seed in SEEDS for name in PRECISIONS]
  return dict(
      command=f"python -m bench.{NAME}",
      environment=results.environment(),
      seeds=SEEDS,
      runs=found,
  )


def page(result: dict) -> list[str]:
  """Returns the table in Markdown."""
  known = {(x["seed"], x["precision"]): x["scores"] for x in result["runs"]}
  out = [
      "# The accuracy of exported precisions",
      "",
      f"Made by `{result['command']}`; data in `{NAME}.json`. DAPO on the"
      f" built-in task, {STEPS} steps, {len(result['seeds'])} seeds"
      f" ({', '.join(map(str, result['seeds']))}); 1,000 held-out prompts."
      " Differences from the policy as it was trained are paired by seed, with"
      " 95% intervals (Student's t), in points.",
      "",
      "| `export.precision` | mean@4 | difference | greedy | difference |",
      "|---|---|---|---|---|",
  ]
  for name in PRECISIONS:
    cells = []
    for score in SCORES:
      pairs = [
          (known[seed, name][score], known[seed, "same"][score])
          for seed in result["seeds"]
      ]
      mean, _ = comparison.interval([x for x, _ in pairs])
      change, half = comparison.interval([100 * (x - y) for x, y in pairs])
      shown = (
          "the reference" if name == "same" else f"{change:+.2f} ± {half:.2f}"
      )
      cells += [f"{mean:.1%}", shown]
    out.append(results.row(name, *cells))
  return [*out, "", *results.footer(result)]


if __name__ == "__main__":
  results.main(__doc__, NAME, measure_all, page)
