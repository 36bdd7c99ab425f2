"""The expected bands of the configs, from committed runs.

  python -m bench.training.bands        # writes rl_reason/monitoring/bands.json
  python -m bench.training.bands --run  # only results/band_runs.json, resumable

A config has the band of 16 runs: of studies/table/table.json (accuracy, and
reward, length and entropy of each step), of results/seeds.json (accuracy), of
studies/xor/xor.json (accuracy, and length and entropy of each step), or, where
no study has 16 runs of the config, of results/band_runs.json (as the table). A
step in which a run has no rows is not part of the band. A config without runs
is listed without a band, and its runs say so.

Shapes here: N seeds; D values of a run, all metrics and steps.
"""

import argparse
import collections
import itertools
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from bench import results
from rl_reason.base import config as config_lib, json_files
from rl_reason.checks import config_checks
from rl_reason.configs.ablations import table as algorithms
from rl_reason.lab import ablate, comparison, jobs
from rl_reason.monitoring import bands
from studies.table import run as table

PATH = results.ROOT / "rl_reason" / "monitoring" / "bands.json"
SEEDS = 16
EDGE = 0.002  # keeps log-odds of 0 and 1 finite
ROWS = {"dapo": "DAPO", "grpo": "GRPO"}  # of results/seeds.json
# Tasks of the table whose config is the row of DAPO.
TASKS = ("countdown", "calculator")
# The configs of results/band_runs.json by task. Those of the first have the
# evaluations and the number of steps of the table; the others have their own.
RUNS = "band_runs"
CONFIGS_BY_TASK = {
    table.TASKS[0]: (
        *("gdpo", "pass_at_k", "opo", "w_reinforce", "otb", "deepseek_v3_2"),
        *("m2po", "scale_rl", "token_sum", "abs_kl"),
    ),
    "chain": ("chain",),
    "lines": ("lines",),
    "guess": ("guess",),
}
CONFIGS = (
    *(*algorithms.ALGORITHMS, *TASKS, *algorithms.LOSSES),
    *(*itertools.chain(*CONFIGS_BY_TASK.values()), "xor"),
)

Curves = dict[str, tuple[list[int], np.ndarray]]  # metric -> steps, [N, steps]


def band(values_ND: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
  """The band that holds all values of a further run at once.

  A run's score is its largest distance from the mean of the other runs, in
  their standard deviations. The band has the width at which the largest score
  of the N runs is on its border: the score of a further run, of which any order
  among the N + 1 is as likely, is larger with a probability of 1 / (N + 1)
  (conformal prediction; for curves Diquigiovanni, Fontana and Vantini, Journal
  of Multivariate Analysis, 2022).

  Returns:
    the lowest and the highest values, [D] each.
  """
  count = len(values_ND)
  floor = 0.05 * np.median(values_ND.std(0, ddof=1))
  scores = []
  for n in range(count):
    others = np.delete(values_ND, n, 0)
    spread_D = np.maximum(others.std(0, ddof=1), floor)
    away_D = np.abs(values_ND[n] - others.mean(0))
    # A value that is the same in all runs is expected to stay the same.
    safe_D = np.where(spread_D > 0, spread_D, 1)
    scores.append((away_D / safe_D).max())
  half_D = max(scores) * np.maximum(values_ND.std(0, ddof=1), floor)
  mean_D = values_ND.mean(0)
  return mean_D - half_D, mean_D + half_D


def of_table(config: str) -> Curves:
  """The curves of the first `SEEDS` runs in table.json; {} if fewer."""
  return _curves(table.NAME, *_in_table(config))


def _in_table(config: str) -> tuple[str, str]:
  """The task and the row that a config would have in table.json."""
  return (config, "dapo") if config in TASKS else (table.TASKS[0], config)


def of_own_runs(config: str) -> Curves:
  """The curves of the `SEEDS` runs in results/band_runs.json; {} if fewer."""
  found = [task for task, x in CONFIGS_BY_TASK.items() if config in x]
  return _curves(RUNS, found[0], config) if found else {}


def _curves(name: str, task: str, row: str) -> Curves:
  runs = [
      x
      for x in results.read(name).get("runs", [])
      if (x["task"], x["row"]) == (task, row)
  ][:SEEDS]
  if len(runs) < SEEDS:
    return {}
  accuracy_NS = np.array([x["accuracy"] for x in runs])
  return {bands.ACCURACY: (runs[0]["steps"], accuracy_NS)} | {
      metric: _known([x[key] for x in runs])
      for key, metric in table.CURVES.items()
  }


def _known(values: list[list[float | None]]) -> tuple[list[int], np.ndarray]:
  """The steps in which all runs have a value, and the values, [N, steps]."""
  values_NS = np.array(values, float)
  known_S = np.isfinite(values_NS).all(0)
  return [int(x) + 1 for x in np.flatnonzero(known_S)], values_NS[:, known_S]


def of_seeds(config: str) -> Curves:
  """The curves in results/seeds.json; {} without."""
  runs = [
      x
      for x in results.read("seeds").get("runs", [])
      if x["name"] == ROWS.get(config)
  ]
  if len(runs) < SEEDS:
    return {}
  accuracy_NS = np.array([x["accuracy"] for x in runs])
  return {bands.ACCURACY: (runs[0]["steps"], accuracy_NS)}


def of_parities() -> Curves:
  """The curves of DAPO in studies/xor/xor.json."""
  runs = [x for x in results.read("xor").get("runs", []) if x["name"] == "DAPO"]
  if len(runs) < SEEDS:
    return {}
  curves = {
      table.CURVES[key]: _known([comparison.column(x["rl"], key) for x in runs])
      for key in ("length", "entropy")
  }
  accuracy_NS = np.array([x["mean@4"] for x in runs])
  return {bands.ACCURACY: (runs[0]["steps"], accuracy_NS)} | curves


def entry(config: str, base: dict[str, Any]) -> dict[str, Any]:
  """What bands.json has for a config."""
  fields = _flat(config)
  found = {
      table.NAME: of_table(config),
      "seeds": of_seeds(config),
      RUNS: of_own_runs(config),
  }
  if config == "xor":
    found["xor"] = of_parities()
  source = next((name for name, x in found.items() if x), "seeds")
  curves = found[source]
  out = dict(
      fields={k: x for k, x in fields.items() if base.get(k) != x},
      absent=[k for k in base if k not in fields],
      seeds=SEEDS if curves else 0,
      source=f"{results.folder(source).relative_to(results.ROOT)}/{source}.json"
      if curves
      else "",
      metrics={},
  )
  if not curves:
    return out
  values = [
      _logit(y) if metric == bands.ACCURACY else y
      for metric, (_, y) in curves.items()
  ]
  low_D, high_D = band(np.concatenate(values, 1))
  at = 0
  for metric, (steps, _) in curves.items():
    low, high = low_D[at : at + len(steps)], high_D[at : at + len(steps)]
    if metric == bands.ACCURACY:
      low, high = _share(low), _share(high)
    out["metrics"][metric] = dict(
        step=list(steps), low=_short(low), high=_short(high)
    )
    at += len(steps)
  return out


def _logit(share: np.ndarray) -> np.ndarray:
  """Log-odds: accuracy near 1 varies less upwards than downwards."""
  return np.log((share + EDGE) / (1 - share + EDGE))


def _share(logit: np.ndarray) -> np.ndarray:
  """The inverse of `_logit`, between 0 and 1."""
  odds = np.exp(logit)
  return np.clip((odds * (1 + EDGE) - EDGE) / (1 + odds), 0, 1)


def _flat(config: str) -> dict[str, Any]:
  """The fields of a config, as config.json of a run has them."""
  c, _ = config_checks.checked(f"configs/{config}.py", {})
  return json.loads(json.dumps(config_lib.flat(c)))


def _short(values) -> list[float]:
  return [float(f"{x:.4g}") for x in values]


def plan(tasks: Sequence[str]) -> dict[str, list[jobs.Job]]:
  """The jobs of results/band_runs.json by task, on seeds of the table."""
  out = {}
  for task in tasks:
    configs = CONFIGS_BY_TASK[task]
    fields = dict(table.ladder(table.TASKS[0]).common)
    if task != table.TASKS[0]:
      fields = {"log.loggers": "", "rl.max_steps_without_update": 0}
    c = ablate.ladder(
        title="Runs for the expected bands",
        question="Where do runs of this config stay?",
        seeds=table.seeds()[:SEEDS],
        reference=configs[0],
        common=fields,
        rows=[(x, f"configs/{x}.py", {}) for x in configs],
    )
    out[task] = ablate.plan(c, results.RUNS / table.NAME, task)
  return out


def run(tasks: Sequence[str], parallel: int) -> int:
  """Makes the missing runs of results/band_runs.json; returns the exit code."""
  stop, planned = jobs.stop_on_signals(), plan(tasks)

  def save():
    environments, runs = table.added(results.read(RUNS), planned)
    if runs:
      comparison.save(
          dict(
              command="python -m bench.training.bands --run",
              environments=environments,
              runs=runs,
          ),
          results.RESULTS / f"{RUNS}.json",
      )

  failed = jobs.run(
      table.missing(planned, table.recorded(results.read(RUNS))),
      stop,
      parallel=parallel,
      on_finished=save,
      runs_per_process=table.RUNS_PER_PROCESS,
  )
  save()
  for name in failed:
    jobs.say(f"FAILED: {name}")
  return 143 if stop.is_set() else int(bool(failed))


def measure() -> dict[str, Any]:
  """The content of bands.json."""
  base = _flat("grpo")
  return dict(base=base, configs={x: entry(x, base) for x in CONFIGS})


def _outside(known: bands.Band, run: dict[str, Any]) -> bool:
  """Whether a run of studies/table/table.json leaves a band at any step."""
  values = {bands.ACCURACY: zip(run["steps"], run["accuracy"], strict=True)}
  for name, key in table.CURVES.items():
    values[key] = zip(itertools.count(1), run[name], strict=False)
  return any(
      bool(value is not None and known.left(metric, step, value))
      for metric, points in values.items()
      for step, value in points
  )


def _against(runs: list[dict], grpo: dict[int, float]) -> list[str]:
  """Accuracy of runs, and points from GRPO; '–' for runs of another task."""
  ends = {x["seed"]: x["accuracy"][-1] for x in runs}
  if not ends or runs[0]["task"] != table.TASKS[0]:
    return ["–", "–"]
  gains = [100 * (x - grpo[seed]) for seed, x in ends.items()]
  shares = [100 * x for x in ends.values()]
  return [results.mean(shares, ".1f"), results.mean(gains, "+.1f")]


def page(result: dict) -> list[str]:
  """Returns the page of all bands in Markdown, from bands.json."""
  further = collections.defaultdict(list)
  for x in results.read(table.NAME)["runs"]:
    further[x["task"], x["row"]].append(x)
  about = (
      "How often does a run that is like the others leave the band that runs"
      " are compared with, `rl_reason/monitoring/bands.json`? Each band holds"
      " all metrics"
      f" and steps of {SEEDS} runs at once (conformal prediction), so that a"
      f" further run leaves it with a probability of 1 in {SEEDS + 1}, and one"
      " unusual run makes it wide. Accuracy: the band of held-out accuracy at"
      " its last step. Outside: the runs of further seeds in `table.json` that"
      " leave the band at any step. The runs of `band_runs.json` on arithmetic"
      " have the seeds and SFT models of GRPO in `table.json`: mean accuracy at"
      " the last step, and points from GRPO, paired by seed, with 95% intervals"
      " (Student's t)."
  )
  out = [
      "| config | runs of | metrics | band of the accuracy | outside"
      " | accuracy, % | from GRPO |",
      "|---|---|---|---|---|---|---|",
  ]
  grpo = {x["seed"]: x["accuracy"][-1] for x in further[table.TASKS[0], "grpo"]}
  left, total = 0, 0
  for name, x in bands.recorded()["configs"].items():
    if not x["seeds"]:
      out.append(results.row(f"`configs/{name}.py`", *"–" * 6))
      continue
    known = bands.of(name, x)
    step, (low, high) = max(known.metrics[bands.ACCURACY].items())
    tested = further[_in_table(name)][SEEDS:]
    count = sum(_outside(known, run) for run in tested)
    left, total = left + count, total + len(tested)
    out.append(
        results.row(
            f"`configs/{name}.py`",
            f"`{pathlib.Path(x['source']).name}`",
            len(known.metrics),
            f"{low:.1%} to {high:.1%} at step {step}",
            f"{count} of {len(tested)}" if tested else "–",
            *_against(
                [run for run in result["runs"] if run["row"] == name], grpo
            ),
        )
    )
  out += [
      "",
      f"`{RUNS}.json` has the runs of the configs that no study has on {SEEDS}"
      f" seeds, made by `{result['command']}` on the first {SEEDS} seeds of"
      " `table.json`. Recipes and configs that need a model, data or a server"
      " from elsewhere have no band, nor have configs of several stages or"
      " phases; a run of these says nothing about a band.",
      "",
  ]
  commits = sorted({x["git commit"] for x in result["environments"]})
  return results.document(
      "Expected bands of the configs",
      f"{left} of {total} further runs leave their band, {left / total:.1%};"
      f" 1 in {SEEDS + 1}, {1 / (SEEDS + 1):.1%}, is expected.",
      about,
      out,
      made="Made by `python -m bench.pages` from `bands.json`, and the runs by"
      f" `{result['command']}`.",
      versions=[
          f"Commits of these runs: {', '.join(commits)}.",
          "",
          *results.footer(dict(environment=result["environments"][-1])),
      ],
  )


def text(data: dict[str, Any]) -> str:
  """The file: one line for the base, and for each config."""
  configs = ",\n".join(
      f"  {json.dumps(k)}: {json.dumps(x)}" for k, x in data["configs"].items()
  )
  base = json.dumps(data["base"])
  return f'{{\n "base": {base},\n "configs": {{\n{configs}\n }}\n}}\n'


def main() -> int:
  """Runs the command and returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  flag = parser.add_argument
  flag("--run", action="store_true", help="make the missing runs, and no bands")
  tasks = tuple(CONFIGS_BY_TASK)
  flag("--tasks", nargs="+", choices=tasks, default=tasks, help="only these")
  flag("--jobs", type=int, default=2, help="runs at a time")
  given = parser.parse_args()
  if given.run:  # without new bands, which would change the tree of later runs
    return run(given.tasks, given.jobs)
  data = measure()
  json_files.write_text(PATH, text(data))
  for name, x in data["configs"].items():
    print(f"{name}: {x['seeds']} seeds, {', '.join(x['metrics']) or 'no band'}")
  return 0


if __name__ == "__main__":
  raise SystemExit(main())
