"""All algorithms x three tasks x 32 seeds: ranks at equal steps and tokens.

  python -m studies.table.run            # resumable; 12 hours of 2 cores
  python -m studies.table.run --tasks calculator --rows grpo
  python -m studies.table.run --collect  # of the runs made so far
  python -m studies.table.run --table    # only the pages, from JSON

The command goes seed by seed: of each seed it makes the runs of all algorithms
on all tasks (configs/ablations/table.py) before the next seed. Runs that
table.json has are not made again. Data of new runs go to runs/table, so
that the checkout stays that of the commit that the runs record; --collect adds
them to table.json, and writes .md and .png (the figure needs
matplotlib).
"""

import argparse
import functools
import json
import pathlib
from collections.abc import Iterable
from typing import Any

import numpy as np
from scipy import interpolate

from bench import results
from rl_reason.base import config as config_lib
from rl_reason.checks import config_files
from rl_reason.configs.ablations import table as algorithms
from rl_reason.lab import ablate, comparison, jobs
from rl_reason.monitoring import run_log
from rl_reason.report import charts, figures, scores
from studies.table import ranks

NAME = "table"
CONFIG = "configs/ablations/table.py"
TASKS = ("arithmetic", "countdown", "calculator")
REFERENCE, BASE = "dapo", "grpo"
PAIRS = (
    *(("reinforce_pp", "grpo"), ("lite_ppo", "grpo"), ("max_rl", "grpo")),
    *(("rloo", "ppo"), ("grpo", "ppo")),
    *((loss, "grpo") for loss in algorithms.LOSSES),
)
NEW = results.RUNS / NAME / "table.json"  # of runs that git does not have
CURVES = {  # of each RL step
    "reward": "critic/rewards/mean",
    "length": "response_length/mean",
    "entropy": "actor/entropy",
}
# The SFT model on the prompts of the evaluations between the first and the last
# step, so that accuracies at equal tokens are all of these prompts: a run of
# two steps whose updates are too small for float32, evaluated after the first.
START = "start"
_FEW = {"rl.steps": 2, "evaluate.every": 1, "optimizer.lr": 1e-30}
DIGITS = 4
RUNS_PER_PROCESS = 20  # the cheapest way, see studies.many_seeds.run


@functools.cache
def ladder(task: str):
  """The ablation of a task."""
  return config_files.read(f"{CONFIG}:{task}")


def seeds() -> tuple[int, ...]:
  """The final seeds."""
  return tuple(ladder(TASKS[0]).seeds)


def rows(task: str) -> list[str]:
  """The algorithms that are defined on a task."""
  return [name for name, *_ in ladder(task).rows]


def plan(seed: int) -> dict[str, list[jobs.Job]]:
  """The jobs of a seed by task: shared models, START, then the rows."""
  out = {}
  for task in TASKS:
    c = ladder(task).copy_and_resolve_references()
    c.seeds = (seed,)
    planned = ablate.plan(c, results.RUNS / NAME, task)
    at = [x.row for x in planned].index(BASE)
    planned.insert(at, start(planned[at]))
    out[task] = planned
  return out


def start(job: jobs.Job) -> jobs.Job:
  """START of the seed and the task of a job."""
  workdir = job.workdir.with_name(f"{START}-{job.seed}")
  args = [x for x in job.args if not x.startswith("--workdir=")]
  args += [f"--config.{k}={x}" for k, x in _FEW.items()]
  return job._replace(
      name=f"{START}, seed {job.seed}",
      workdir=workdir,
      args=[*args, f"--workdir={workdir}"],
      fields=job.fields | _FEW,
      row=START,
  )


def read(task: str, job: jobs.Job) -> dict[str, Any] | None:
  """The curves of a run; None if it has not reached its last step.

  A run that was refused at its end, because its policy is broken, counts. While
  a run ends, it has its last line, but not yet its seconds.
  """
  seconds = job.record().get("seconds")
  if seconds is None:
    return None
  lines = run_log.read_metrics(job.workdir)
  found = scores.of_stage(lines, "evaluate")
  if not found or found[-1]["step"] < job.fields["rl.steps"]:
    return None
  accuracy, best = scores.headline(scores.scores(found[0]))
  tokens = charts.spent(lines, "tokens")
  steps = [x["step"] for x in found]
  values = [scores.scores(x) for x in found]
  curves = scores.of_stage(lines, "rl")
  return dict(
      task=task,
      row=job.row,
      seed=job.seed,
      seconds=round(seconds, 1),
      environment=results.run_environment(job.workdir),
      steps=steps,
      tokens=[_short(tokens.get(x), 9) for x in steps],
      accuracy=[_short(x[accuracy].value) for x in values],
      best=[_short(x[best].value) for x in values],
      **{
          name: [_short(x.get(key)) for x in curves]
          for name, key in CURVES.items()
      },
  )


def _short(x: float | None, digits: int = DIGITS) -> float | None:
  """Rounds to a few digits: the data are kept in the repository."""
  return None if x is None else float(f"{x:.{digits}g}")


def recorded(result: dict) -> dict[tuple[str, str, int], dict]:
  """The runs of table.json by task, row and seed."""
  return {(x["task"], x["row"], x["seed"]): x for x in result.get("runs", [])}


def missing(planned: dict[str, list[jobs.Job]], known) -> list[jobs.Job]:
  """The jobs of a seed without the rows that are known."""
  return [
      job
      for task, of_task in planned.items()
      for job in of_task
      if not job.row or (task, job.row, job.seed) not in known
  ]


def added(
    result: dict, planned: dict[str, list[jobs.Job]]
) -> tuple[list[dict], list[dict]]:
  """The environments and the runs of the data and of the finished jobs."""
  found, environments = recorded(result), result.get("environments", [])
  for task, of_task in planned.items():
    for job in of_task:
      key = task, job.row, job.seed
      if not job.row or key in found or not (run := read(task, job)):
        continue
      if run["environment"] not in environments:
        environments = [*environments, run["environment"]]
      run["environment"] = environments.index(run["environment"])
      found[key] = run
  return environments, list(found.values())


def collect(result: dict, planned: dict[str, list[jobs.Job]]) -> dict:
  """Adds the finished runs of a seed to the data."""
  environments, runs = added(result, planned)
  order = {x: i for i, x in enumerate(seeds())}
  return dict(
      command="python -m studies.table.run",
      reference=REFERENCE,
      seeds=list(seeds()),
      fields={
          task: config_lib.flat(ladder(task).common)
          | dict(rows=[list(x) for x in ladder(task).rows])
          for task in TASKS
      },
      environments=environments,
      runs=sorted(
          runs,
          key=lambda x: (
              order.get(x["seed"], len(order)),
              TASKS.index(x["task"]),
              [START, *rows(x["task"])].index(x["row"]),
          ),
      ),
  )


def make(given: argparse.Namespace) -> int:
  """Makes the runs that are missing, seed by seed; returns the exit code."""
  stop, failed = jobs.stop_on_signals(), []
  for number, seed in enumerate(seeds()[: given.seeds], 1):
    planned = {x: y for x, y in plan(seed).items() if x in given.tasks}
    wanted = missing(planned, recorded(data()))
    wanted = [x for x in wanted if x.row in ("", *(given.rows or [x.row]))]
    if any(job.row for job in wanted):
      jobs.say(f"seed {number} of {given.seeds}: {seed}")

      def save(planned=planned):
        comparison.save(collect(data(), planned), NEW)

      failed += jobs.run(
          wanted,
          stop,
          parallel=given.jobs,
          on_finished=save,
          runs_per_process=RUNS_PER_PROCESS,
      )
      if (result := collect(data(), planned))["runs"]:
        comparison.save(result, NEW)
    if stop.is_set():
      return 143
  for name in failed:
    jobs.say(f"FAILED: {name}")
  return int(bool(failed))


def data() -> dict:
  """The data of the repository, with the runs that are not yet part of it."""
  result = results.read(NAME)
  if not NEW.exists():
    return result
  new = json.loads(NEW.read_text())
  known = recorded(result)
  if known.keys() <= recorded(new).keys():
    return new
  environments = list(result["environments"])
  for key, run in recorded(new).items():
    if key in known:
      continue
    environment = new["environments"][run["environment"]]
    if environment not in environments:
      environments.append(environment)
    known[key] = run | dict(environment=environments.index(environment))
  return result | dict(environments=environments, runs=list(known.values()))


# --- the page ----------------------------------------------------------------


def values(result: dict, task: str, axis: str) -> tuple[float, dict]:
  """Accuracy at the last point of an axis that all runs of a task reach.

  The first and the last evaluation are of more prompts than those in between.
  At equal steps the last one counts; at equal tokens those in between, and for
  the first one START, so that all accuracies are of the same prompts. Seeds
  without START are left out there.

  Args:
    result: the data.
    task: the task.
    axis: 'steps' or 'tokens'. Between evaluations accuracy is interpolated by
      monotone cubic polynomials: straight lines are below a learning curve,
      and most for rows that generate many tokens between two evaluations.

  Returns:
    the point, and {row: {seed: accuracy}}.
  """
  runs = [x for x in result["runs"] if x["task"] == task]
  starts = {x["seed"]: x["accuracy"][1] for x in runs if x["row"] == START}
  runs = [
      x
      for x in runs
      if x["row"] != START and (axis == "steps" or x["seed"] in starts)
  ]
  last = -2 if axis == "tokens" else -1
  end = min((x[axis][last] for x in runs), default=0)
  out: dict[str, dict[int, float]] = {row: {} for row in rows(task)}
  for x in runs:
    accuracy = list(x["accuracy"])
    if axis == "tokens":
      accuracy[0] = starts[x["seed"]]
    stop = len(accuracy) + last + 1
    points, known = x[axis][:stop], accuracy[:stop]
    if end > points[0]:
      at = float(interpolate.PchipInterpolator(points, known)(end))
    else:  # value pretraining generates tokens before RL
      at = known[0]
    out[x["row"]][x["seed"]] = at
  return end, out


def complete(
    by_row: dict[str, dict[int, float]],
) -> tuple[list[str], list[int]]:
  """The rows that are complete, but for the newest seed, and their seeds."""
  most = max(map(len, by_row.values()), default=0)
  names = [k for k, x in by_row.items() if x and len(x) >= most - 1]
  first = by_row[names[0]] if names else {}
  return names, [s for s in first if all(s in by_row[k] for k in names)]


def ranked(
    by_row: dict[str, dict[int, float]],
) -> tuple[list[str], list[int], ranks.Ranks | None]:
  """`complete`, and the ranks of these rows on these seeds."""
  names, shared = complete(by_row)
  values_NK = np.array([[by_row[k][s] for k in names] for s in shared])
  return names, shared, ranks.ranks(values_NK) if shared else None


def _cells(by_row: dict[str, dict[int, float]]) -> dict[str, list[Any]]:
  """Seeds, accuracy, difference from DAPO, and rank of each row.

  A row that is not complete has the numbers of its own seeds, and no rank.
  """
  names, shared, found = ranked(by_row)
  out = {}
  for name, of_row in by_row.items():
    own = shared if name in names and shared else list(of_row)
    cells = [len(own), "–", "–", "–"]
    if own:
      mean, half = comparison.interval([of_row[s] for s in own])
      margin = "" if half is None else f" ± {100 * half:.1f}"
      cells[1] = f"{mean:.1%}{margin}"
    if points := differences(by_row, name, own):
      cells[2] = results.mean(points, "+.1f")
    if found is not None and name in names:
      at = names.index(name)
      cells[3] = f"{found.low_K[at]} to {found.high_K[at]}"
    out[name] = cells
  return out


def differences(
    by_row: dict, name: str, seeds: Iterable[int] | None = None
) -> list[float]:
  """Points between a row and DAPO on the seeds that both have."""
  if name == REFERENCE:
    return []
  known, of_row = by_row[REFERENCE], by_row[name]
  seeds = of_row if seeds is None else seeds
  return [100 * (of_row[s] - known[s]) for s in seeds if s in known]


def hypotheses(result: dict) -> list[str]:
  """What plan.md asks of the 13 algorithms and of the losses."""
  out = []
  for task in TASKS:
    for axis in ("steps", "tokens"):
      _, by_row = values(result, task, axis)
      old = {k: x for k, x in by_row.items() if k in algorithms.ALGORITHMS}
      names, _, found = ranked(old)
      if found is not None and REFERENCE in names:
        at = names.index(REFERENCE)
        out.append(
            f"- {task}, equal {axis}: {REFERENCE} has the rank"
            f" {found.low_K[at]} to {found.high_K[at]} among the"
            f" {len(names)} algorithms."
        )
  for task in TASKS:
    names, _, found = ranked(values(result, task, "steps")[1])
    losses = [x for x in algorithms.LOSSES if x in names]
    if found is None or BASE not in names or not losses:
      continue
    column, cells = names.index(BASE), []
    for name in losses:
      at = names.index(name)
      mean, half = found.mean_KK[at, column], found.half_KK[at, column]
      cells.append(f"{name} {100 * mean:+.1f} ± {100 * half:.1f}")
    out.append(
        f"- {task}, equal steps: points of the losses from {BASE}, with"
        f" intervals of all pairs of rows at once: {', '.join(cells)}."
    )
  return ["## Hypotheses", "", *out, ""] if out else []


def pairs(result: dict) -> list[str]:
  """Rows that papers compare with another one than DAPO, on the first task."""
  runs = {
      (x["row"], x["seed"]): x
      for x in result["runs"]
      if x["task"] == TASKS[0] and x["row"] != START
  }
  out = []
  for row, other in PAIRS:
    both = [
        (x, runs[other, seed])
        for (name, seed), x in runs.items()
        if name == row and (other, seed) in runs
    ]
    cells = []
    for key in ("accuracy", "best"):
      points = [100 * (x[key][-1] - y[key][-1]) for x, y in both]
      cells.append(results.mean(points, "+.1f"))
    if both:
      out.append(results.row(row, other, *cells, len(both)))
  if not out:
    return []
  return [
      f"Pairs of rows that papers compare, on {TASKS[0]} at the last step, in"
      " points, each with the 95% interval of this pair alone:",
      "",
      "| row | less | mean@4 | pass@4 | seeds |",
      "|---|---|---|---|---|",
      *out,
      "",
  ]


def agreement(result: dict) -> list[str]:
  """Lines on whether the tasks agree about the order of the algorithms."""
  from scipy import stats

  means = {}
  for task in TASKS:
    _, by_row = values(result, task, "steps")
    names, shared = complete(by_row)
    if shared:
      means[task] = {
          k: float(np.mean([by_row[k][s] for s in shared]))
          for k in names
          if k in algorithms.ALGORITHMS
      }
  out = []
  for i, a in enumerate(means):
    for b in list(means)[i + 1 :]:
      both = [k for k in means[a] if k in means[b]]
      tau = stats.kendalltau(*([means[x][k] for k in both] for x in (a, b)))
      out.append(f"- {a} and {b}: {tau.statistic:+.2f}")
  if not out:
    return []
  head = (
      "Kendall's rank correlation of the means of the algorithms at equal"
      " steps (1: the same order; 0: unrelated):"
  )
  return [head, "", *out, ""]


def page(result: dict) -> list[str]:
  """Returns the tables in Markdown."""
  counts = {
      task: min(map(len, values(result, task, "steps")[1].values()))
      for task in TASKS
  }
  wanted, total = len(result["seeds"]), sum(map(len, map(rows, TASKS)))
  made = sum(x["row"] != START for x in result["runs"])
  seconds = [x["seconds"] for x in result["runs"] if x["row"] != START]
  undefined = {
      task: sorted(set(rows(TASKS[0])) - set(rows(task))) for task in TASKS
  }
  but = "".join(
      f", but for {results.joined(x)} on {task}, whose rewards are not 0 or 1"
      for task, x in undefined.items()
      if x
  )
  about = [
      "Which algorithm is best, at equal steps and at equal tokens, and does"
      " the order depend on the task? All algorithms run on all tasks"
      f"{but}. Data in `table.json`. Each row is"
      " the unchanged config of an algorithm with the task's fields"
      " (`configs/ablations/table.py`); the rows of a seed share their SFT"
      " model. Accuracy is mean@4 on held-out prompts: mean over seeds ± half"
      " the width of its 95% interval (Student's t). Difference: points from"
      " dapo, paired by seed, with the 95% interval of this pair alone. Rank:"
      " the ranks that the seeds do not exclude, with 95% confidence for all"
      " rows at once (bootstrap over seeds, simultaneous intervals of all"
      f" pairs; `ranks.py`); ranks need at least {ranks.LEAST} seeds.",
      "",
      "The first and the last evaluation of a run are of more prompts than the"
      " evaluations in between. Accuracy at equal steps is that of the last"
      " evaluation. Accuracy at equal tokens is of the prompts of the"
      " evaluations in between, with the SFT model on the same prompts as"
      " start, and with monotone cubic interpolation, so that the two columns"
      " of accuracy cannot be compared. A row whose value pretraining takes"
      " more tokens than the comparison has the accuracy of its SFT model.",
      "",
      f"**{made} of {wanted * total} runs are made**: "
      + ", ".join(f"{task} {n} of {wanted} seeds" for task, n in counts.items())
      + " have all rows."
      + (
          " The same command continues with the next seed."
          if min(counts.values()) < wanted
          else ""
      )
      + f" They took {sum(seconds) / 3600:.1f} hours of one core, without the"
      " SFT models and the value pretraining that rows share. A row that is not"
      " complete has the numbers of its own seeds, and no rank.",
  ]
  out, words = [], []
  for task in TASKS:
    step, by_step = values(result, task, "steps")
    tokens, by_tokens = values(result, task, "tokens")
    if not any(by_step.values()):
      continue
    cells, at_tokens = _cells(by_step), _cells(by_tokens)
    spent = {
        name: [
            x["tokens"][-1]
            for x in result["runs"]
            if (x["task"], x["row"]) == (task, name)
        ]
        for name in by_step
    }
    out += [
        f"## {task}",
        "",
        f"| | seeds | at step {step} | difference | rank | at"
        f" {comparison.amount(tokens)} generated tokens | difference | rank"
        f" | tokens of {step} steps |",
        "|---" * 9 + "|",
    ]

    def mean(name, by_step=by_step):
      return np.mean(list(by_step[name].values()) or [0.0])

    best = max(by_step, key=mean)
    words.append(f"{best} {cells[best][1]} (rank {cells[best][3]}) on {task}")
    for name in sorted(by_step, key=mean, reverse=True):
      used = comparison.amount(np.mean(spent[name])) if spent[name] else "–"
      of_name = [*cells[name], *at_tokens[name][1:]]
      out.append(results.row(name, *of_name, used))
    out += ["", _before(result, task), ""]
    for name in set(rows(TASKS[0])) - set(by_step):
      out += [
          f"{name} is not defined on {task}: its rewards are not 0 or 1.",
          "",
      ]
  out += [*hypotheses(result), *agreement(result), *pairs(result)]
  commits = sorted({x["git commit"] for x in result["environments"]})
  footer = results.footer(dict(environment=result["environments"][-1]))
  if len(commits) > 1:
    footer = [f"Commits of the runs: {', '.join(commits)}.", "", *footer]
  return results.document(
      "All algorithms on three tasks",
      f"Highest accuracy at equal steps: {results.joined(words)}.",
      about,
      "![ranks](table.png)",
      out,
      made="Made by `python -m studies.table.run`.",
      versions=footer,
  )


def _before(result: dict, task: str) -> str:
  """What the SFT models of a task reach, in a sentence."""
  common, runs = ladder(task).common, result["runs"]
  of_task = [x for x in runs if x["task"] == task]
  few = [x["accuracy"][1] for x in of_task if x["row"] == START]
  many = [x["accuracy"][0] for x in of_task if x["row"] == REFERENCE]
  out = (
      f"After SFT: {np.mean(many):.1%} of {common['evaluate.prompts']} prompts"
  )
  if few:
    count = common["evaluate.interim_prompts"]
    out += f", {np.mean(few):.1%} of the {count} prompts at equal tokens"
  return out + "."


def figure(result: dict) -> dict[str, Any]:
  """Differences from DAPO by task, at equal steps and at equal tokens."""
  blocks = []
  for task in TASKS:
    panels = []
    for axis in ("steps", "tokens"):
      end, by_row = values(result, task, axis)
      shown: list[tuple] = []
      for name in by_row:
        if points := differences(by_row, name):
          shown.append((name, points, *comparison.interval(points)))
        else:
          shown.append((name, [], 0.0 if name == REFERENCE else None, None))
      what = "RL steps" if axis == "steps" else "generated tokens"
      x = f"{task}: points, at {comparison.amount(end)} {what}"
      panels.append(figures.forest(shown, x=x, names=axis == "steps"))
    blocks.append(figures.block(panels, columns=2, height=3.4))
  note = (
      "Held-out accuracy (mean@4): difference from DAPO, paired by seed, 95%"
      " interval; filled where it excludes 0; dots: seeds."
  )
  return figures.figure(*blocks, note=note)


def draw(result: dict) -> None:
  """Writes table.md and, with matplotlib, table.png."""
  results.write_page(NAME, page(result))
  path: pathlib.Path = results.folder(NAME) / f"{NAME}.png"
  try:
    figures.draw(figure(result), path)
  except ModuleNotFoundError as e:
    print(f"no {path}: {e.name} is not installed")


def main() -> int:
  """Runs the command and returns the exit code."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  flag = parser.add_argument
  flag("--table", action="store_true", help="run nothing: from the data")
  flag("--collect", action="store_true", help="run nothing: read finished runs")
  flag("--jobs", type=int, default=2, help="runs at a time")
  flag("--seeds", type=int, default=len(seeds()), help="only the first ones")
  flag("--tasks", nargs="+", choices=TASKS, default=TASKS, help="only these")
  known = sorted({START, *(row for task in TASKS for row in rows(task))})
  flag(
      "--rows",
      nargs="+",
      choices=known,
      metavar="ROW",
      help=f"only these; {START}: SFT models",
  )
  given = parser.parse_args()
  if not (given.table or given.collect):
    return make(given)
  if given.collect and (result := data()):
    comparison.save(collect(result, {}), results.folder(NAME) / f"{NAME}.json")
  if not (result := results.read(NAME)):
    parser.error(f"{NAME}.json: there are no data yet")
  draw(result)
  return 0


if __name__ == "__main__":
  raise SystemExit(main())
