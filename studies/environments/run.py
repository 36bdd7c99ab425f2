"""Environments on five seeds: games, questions, programs, reasoning_gym.

  python -m studies.environments.run --jobs 2   # resumable; an hour of 2 cores
  python -m studies.environments.run --collect  # of the runs made so far
  python -m studies.environments.run --table    # only the pages, from JSON

The control of `calculator` has a single turn, environment.max_turns = 1: the
policy can ask, and gets no answer. Writes environments.json, .md and
.png (the figure needs matplotlib). Runs that environments.json has are
not made again: without that file all are. The seeds are the default one and 4
of a hash. The row reasoning_gym needs the extra of that name.
"""

import functools
import itertools
import pathlib
import re

import numpy as np

from bench import results, runs
from bench.training import seeds
from rl_reason import tasks
from rl_reason.checks import config_files
from rl_reason.data import held_out
from rl_reason.features.environments import lines
from rl_reason.lab import ablate, jobs
from rl_reason.monitoring import run_log
from rl_reason.report import figures

SEEDS = (0, *ablate.fresh_seeds("rl_reason environments", 4))
ALONE = {"environment.max_turns": 1}
ROWS = {
    "calculator": ("configs/calculator.py", {}),
    "guess": ("configs/guess.py", {}),
    "calculator, no answers": ("configs/calculator.py", ALONE),
    "lines": ("configs/lines.py", {}),
    "reasoning_gym": ("configs/reasoning_gym.py", {}),
}
NAME = "environments"


def directory(name: str, seed: int) -> pathlib.Path:
  """The work directory of a run."""
  slug = name.replace(", ", "-").replace(" ", "-")
  return results.RUNS / NAME / f"{slug}-{seed}"


def recorded() -> dict[tuple[str, int], dict]:
  """The runs of environments.json by name and seed."""
  return {(x["name"], x["seed"]): x for x in results.read(NAME).get("runs", [])}


def job(name: str, seed: int) -> jobs.Job:
  """A run."""
  config, fields = ROWS[name]
  fields = {"seed": seed} | runs.HELD_OUT | fields
  return runs.run(config, directory(name, seed), fields)


def environment(name: str, seed: int) -> dict:
  """Machine and versions of a run."""
  return results.run_environment(directory(name, seed))


def read(name: str, seed: int) -> dict:
  """The evaluations of a run: accuracy, turns and tokens, by difficulty too.

  Responses of one turn have no `turns` and `returns`.
  """
  logged = run_log.read_metrics(directory(name, seed))
  found = [x for x in logged if x["stage"] == "evaluate"]
  headline = re.compile(r"val-core/(.*)/(acc/mean@\d+)")
  task, accuracy = next(
      filter(None, map(headline.fullmatch, found[0]))
  ).groups()
  prefix = f"val-aux/{task}/difficulty_"
  levels = sorted(
      int(key.removeprefix(prefix).partition("/")[0])
      for key in found[0]
      if key.startswith(prefix) and key.endswith("/turns/mean")
  )
  by_level = {"accuracy": accuracy, "turns": "turns/mean"}
  of_turns = {
      label: [x[f"val-aux/{label}/mean"] for x in found]
      for label in ("turns", "returns")
      if f"val-aux/{label}/mean" in found[0]
  }
  return dict(
      name=name,
      seed=seed,
      commit=environment(name, seed)["git commit"],
      steps=[x["step"] for x in found],
      accuracy=[x[f"val-core/{task}/{accuracy}"] for x in found],
      greedy=[x[f"val-core/{task}/acc/greedy"] for x in found],
      **of_turns,
      tokens=[x["val-aux/response_length/mean"] for x in found],
      by_difficulty={
          str(level): {
              label: [found[i][f"{prefix}{level}/{key}"] for i in (0, -1)]
              for label, key in by_level.items()
          }
          for level in levels
      },
  )


def optimum() -> dict[str, float]:
  """Mean turns of bisection on the held-out games: by difficulty, '' of all."""
  c = config_files.read("configs/guess.py")
  task, levels = tasks.get(c.task.name), tuple(c.task.difficulties)
  rows = held_out.rows_of_task(task, levels, c.evaluate.prompts)
  turns = {
      str(level): [int(x.answer) for x in rows if x.difficulty == level]
      for level in levels
  }
  turns[""] = [int(x.answer) for x in rows]
  return {level: float(np.mean(values)) for level, values in turns.items()}


def page(result: dict) -> list[str]:
  """The tables in Markdown."""
  found = result["runs"]
  of = {name: [x for x in found if x["name"] == name] for name in ROWS}
  best = optimum()
  numbers = functools.partial(seeds.spread, share=False)

  def cells(name, at):
    rows = of[name]
    return [
        seeds.spread([x["accuracy"][at] for x in rows]),
        *(
            numbers([x[key][at] for x in rows]) if key in rows[0] else ""
            for key in ("turns", "returns", "tokens")
        ),
        str(len(rows)),
    ]

  about = (
      "Does RL teach what each environment asks for? Data in"
      " `environments.json`."
      " Held-out prompts, 4 samples each (`lines`: 16) at temperature 1: mean"
      " over seeds ± half the width of its 95% interval, and least to most."
      f" Seeds: {', '.join(map(str, SEEDS))}. Tokens are the policy's own."
      " `reasoning_gym` has one turn: words, spelled backward."
  )
  out = [
      "| | accuracy | turns | sum of rewards | tokens | seeds |",
      "|---|---|---|---|---|---|",
  ]
  for name, (label, at) in itertools.product(
      ROWS, (("before RL", 0), ("after RL", -1))
  ):
    if of[name]:
      out.append(results.row(f"{name}: {label}", *cells(name, at)))
  out += [
      "",
      f"Bisection needs {best['']:.2f} turns. By difficulty (bits) of `guess`:",
      "",
      "| bits | before RL | after RL | bisection |",
      "|---|---|---|---|",
  ]
  values = lambda name, level, key, at: [  # noqa: E731
      x["by_difficulty"][level][key][at] for x in of[name]
  ]
  for level in of["guess"][0]["by_difficulty"]:
    before, after = (
        numbers(values("guess", level, "turns", i)) for i in (0, 1)
    )
    out.append(results.row(level, before, after, f"{best[level]:.2f}"))
  out += [
      "",
      "`calculator` by difficulty (terms of the sum): questions per response"
      " (turns minus one), and accuracy with and without answers.",
      "",
      "| terms | questions before RL | after RL | accuracy after RL |"
      " without answers |",
      "|---|---|---|---|---|",
  ]
  for level in of["calculator"][0]["by_difficulty"]:
    asked = (
        numbers([x - 1 for x in values("calculator", level, "turns", i)])
        for i in (0, 1)
    )
    right = (
        seeds.spread(values(name, level, "accuracy", 1))
        if of[name]
        else "not run"
        for name in ("calculator", "calculator, no answers")
    )
    out.append(results.row(level, *asked, *right))
  if of["lines"]:
    out += ["", programs(of["lines"])]
  commits = sorted({x["commit"] for x in found if "commit" in x})
  words = []
  for name in ROWS:
    if of[name]:
      ends = [
          seeds.spread([x["accuracy"][at] for x in of[name]]).partition(" (")[0]
          for at in (0, -1)
      ]
      words.append(f"{name} from {ends[0]} to {ends[1]}")
  return results.document(
      "Environments",
      f"In RL the held-out accuracy goes, by environment: {', '.join(words)}.",
      about,
      "![curves](environments.png)",
      out,
      made="Made by `python -m studies.environments.run`.",
      versions=[
          f"Commits of runs recorded with theirs: {', '.join(commits)}.",
          "",
          *results.footer(result),
      ],
  )


def programs(runs: list[dict]) -> str:
  """What the two policies that need no learning reach on `lines`."""
  count = len(lines.SLOPES)
  guesses = [1 - ((count - 1) / count) ** n for n in range(count + 1)]
  return (
      f"`lines`, up to {count} programs: a policy that guesses slopes passes in"
      f" {guesses[-1]:.1%} of the rows after"
      f" {sum(1 - x for x in guesses[:-1]):.2f} programs, one that repeats none"
      f" in 100% after {(count + 1) / 2:.2f}. Seeds: {len(runs)}."
  )


def figure(result: dict) -> dict:
  """Turns against bisection, and accuracy and questions, by RL step."""

  def curves(names, values):
    out = []
    for color, name in enumerate(names):
      rows = [x for x in result["runs"] if x["name"] == name]
      if rows:
        runs = [values(x) for x in rows]
        label = name.replace(", ", ",\n")
        steps, mean = rows[0]["steps"], np.mean(runs, 0)
        out.append(figures.series(label, steps, mean, color=color, runs=runs))
    return out

  (guess,) = curves(["guess"], lambda x: x["turns"])
  steps = guess["x"]
  bisection = figures.series(
      "bisection", steps, [optimum()[""]] * len(steps), color=figures.REFERENCE
  )
  calculator = ("calculator", "calculator, no answers")
  accuracy = lambda x: x["accuracy"]  # noqa: E731
  panels = [
      figures.lines(
          [guess | dict(label="DAPO"), bisection],
          **dict(title="guess: turns of a game", x="", labels=True),
      ),
      figures.lines(
          curves(calculator, accuracy),
          **dict(title="calculator: held-out accuracy", x=""),
          **dict(labels=True, percent=True),
      ),
      figures.lines(
          curves(calculator, lambda x: [t - 1 for t in x["turns"]]),
          **dict(title="calculator: questions per response", x="RL step"),
          labels=True,
      ),
      figures.lines(
          curves(("lines", "reasoning_gym"), accuracy),
          **dict(title="lines, reasoning_gym: held-out accuracy", x="RL step"),
          **dict(labels=True, percent=True),
      ),
  ]
  return figures.figure(
      figures.block(panels, columns=2, height=2.6),
      note="Thick: mean over the seeds; thin: single runs",
  )


def flags(parser) -> None:
  """The flags."""
  parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
  parser.add_argument("--collect", action="store_true")
  parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS))


def measure(given) -> dict:
  """Runs what is missing; returns the data."""
  order = [(name, seed) for name in ROWS for seed in SEEDS]
  result, found = results.read(NAME), recorded()
  if not given.collect:
    wanted = [x for x in order if x[0] in given.rows and x not in found]
    runs.make([job(*x) for x in wanted], given.jobs)
  for x in order:
    if job(*x).finished():
      found[x] = read(*x)
      result["environment"] = environment(*x)
  return result | dict(
      command="python -m studies.environments.run",
      runs=[found[x] for x in order if x in found],
  )


if __name__ == "__main__":
  results.main(__doc__, NAME, measure, page, figure=figure, flags=flags)
