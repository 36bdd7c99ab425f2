"""The accuracy of a trained policy in each precision of `--stage=export`.

  python -m studies.export_precision.run --runs=runs/ablations/baselines
  python -m studies.export_precision.run --table    # only the table, from JSON

The policies are those of the DAPO row of configs/ablations/baselines.py, whose
runs must have ended. Every policy is evaluated as it was trained and in the
other precisions on the same prompts and the same noise. Hypotheses:
plan.md. Writes export_precision.{json,md}.
"""

import json
import pathlib

from bench import results, runs
from rl_reason.lab import ablate, comparison

NAME = "export_precision"
SEEDS = ablate.fresh_seeds("rl_reason baselines", 8)
PRECISIONS = "same", "bfloat16", "int8", "int4"
SCORES = "mean@4", "greedy"
SET = "val-core/arithmetic/acc"


def evaluated(workdir: pathlib.Path, precision: str) -> dict[str, float]:
  """Evaluates the newest checkpoint of a run in a precision."""
  command = ["--stage=evaluate", f"--workdir={workdir}", "--step=newest"]
  name = "evaluation-newest"
  if precision != "same":
    command.append(f"--config.export.precision={precision}")
    name += f",export.precision={precision}"
  runs.command(*command)
  values = json.loads((workdir / f"{name}.json").read_text())
  return {x: values[f"{SET}/{x}"] for x in SCORES}


def measure_all(flags) -> dict:
  """Evaluates all policies."""
  found = []
  for seed in SEEDS:
    workdir = flags.runs / f"dapo-{seed}"
    if not workdir.exists():
      raise SystemExit(
          f"{workdir}: no run; configs/ablations/baselines.py first"
      )
    for name in PRECISIONS:
      scores = evaluated(workdir.absolute(), name)
      found.append(dict(seed=seed, precision=name, scores=scores))
  return dict(
      command=f"python -m studies.{NAME}.run",
      environment=results.environment(),
      seeds=SEEDS,
      runs=found,
  )


def page(result: dict) -> list[str]:
  """Returns the table in Markdown."""
  known = {(x["seed"], x["precision"]): x["scores"] for x in result["runs"]}
  about = (
      "Does a policy keep its accuracy if it is exported with fewer bits? DAPO"
      f" on the built-in task, 30 steps, {len(result['seeds'])} seeds"
      f" ({', '.join(map(str, result['seeds']))}); 500 held-out prompts."
      " Differences from the policy as it was trained are paired by seed, with"
      " 95% intervals (Student's t), in points. Data in"
      f" `{NAME}.json`."
  )
  out = [
      "| `export.precision` | mean@4 | difference | greedy | difference |",
      "|---|---|---|---|---|",
  ]
  words = []
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
    if name != "same":
      words.append(f"{cells[1]} points in {name}")
    out.append(results.row(name, *cells))
  return results.document(
      "The accuracy of exported precisions",
      f"The accuracy ({SCORES[0]}) of the exported policy differs from the"
      f" trained one's by {results.joined(words)}.",
      about,
      out,
      made=f"Made by `{result['command']}`.",
      versions=results.footer(result),
  )


if __name__ == "__main__":
  results.main(
      __doc__,
      NAME,
      measure_all,
      page,
      flags=lambda parser: parser.add_argument(
          "--runs",
          type=pathlib.Path,
          default=results.RUNS / "ablations/baselines",
      ),
  )
