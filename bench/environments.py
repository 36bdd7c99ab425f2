"""Environments on five seeds: `guess` against bisection, `calculator`'s calls.

  python -m bench.environments --jobs 2   # resumable; an hour on 2 quiet cores
  python -m bench.environments --collect  # of the runs made so far
  python -m bench.environments --table    # only table and figure, from JSON

The control of `calculator` has a single turn, environment.max_turns = 1: the
policy can ask, and gets no answer. Writes results/environments.json, .md and
.png (the figure needs matplotlib). The seeds are the default one and 4 of a
hash.
"""

import argparse
import functools
import itertools
import json
import pathlib
from concurrent import futures

import numpy as np

from bench import harness, seeds, tables
from rl_reason import ablate, config, tasks
from rl_reason.data import held_out

SEEDS = (0, *ablate.fresh_seeds("rl_reason environments", 4))
ALONE = "--config.environment.max_turns=1"
ROWS = {
    "calculator": ("configs/calculator.py",),
    "guess": ("configs/guess.py",),
    "calculator, no answers": ("configs/calculator.py", ALONE),
}
NAME = "environments"


def directory(name: str, seed: int) -> pathlib.Path:
  """The work directory of a run; it has a file `done` once it has finished."""
  slug = name.replace(", ", "-").replace(" ", "-")
  return harness.RUNS / NAME / f"{slug}-{seed}"


def run(job: tuple[str, int]) -> None:
  """Makes a run, or the rest of it."""
  name, seed = job
  workdir, (config, *options) = directory(name, seed), ROWS[name]
  if not (workdir / "done").exists():
    seeds.train(config, workdir, f"--config.seed={seed}", *options)
    (workdir / "done").touch()


def read(name: str, seed: int) -> dict:
  """The evaluations of a run: accuracy, turns and tokens, by difficulty too."""
  task = name.partition(",")[0]
  text = (directory(name, seed) / "metrics.jsonl").read_text()
  lines = [json.loads(line) for line in text.splitlines()]
  found = [x for x in lines if x["stage"] == "evaluate"]
  prefix = f"val-aux/{task}/difficulty_"
  levels = sorted(
      int(key.removeprefix(prefix).partition("/")[0])
      for key in found[0]
      if key.startswith(prefix) and key.endswith("/turns/mean")
  )
  by_level = {"accuracy": "acc/mean@4", "turns": "turns/mean"}
  return dict(
      name=name,
      seed=seed,
      steps=[x["step"] for x in found],
      accuracy=[x[f"val-core/{task}/acc/mean@4"] for x in found],
      turns=[x["val-aux/turns/mean"] for x in found],
      returns=[x["val-aux/returns/mean"] for x in found],
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
  c = config.read("configs/guess.py")
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
  runs = result["runs"]
  of = {name: [x for x in runs if x["name"] == name] for name in ROWS}
  best = optimum()
  numbers = functools.partial(seeds.spread, share=False)

  def cells(name, at):
    rows = of[name]
    return [
        seeds.spread([x["accuracy"][at] for x in rows]),
        *(
            numbers([x[key][at] for x in rows])
            for key in ("turns", "returns", "tokens")
        ),
    ]

  out = [
      "# Environments: guess and calculator",
      "",
      "Made by `python -m bench.environments`; data in `environments.json`."
      " Held-out prompts, 4 samples each at temperature 1: mean over seeds ±"
      " half the width of its 95% interval, and least to most. Seeds:"
      f" {', '.join(str(x['seed']) for x in of['guess'])}. Tokens are the"
      " policy's own.",
      "",
      "| | accuracy | turns | sum of rewards | tokens |",
      "|---|---|---|---|---|",
  ]
  for name, (label, at) in itertools.product(
      ROWS, (("before RL", 0), ("after RL", -1))
  ):
    if of[name]:
      out.append(f"| {name}: {label} | " + " | ".join(cells(name, at)) + " |")
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
    out.append(f"| {level} | {before} | {after} | {best[level]:.2f} |")
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
    out.append(f"| {level} | " + " | ".join([*asked, *right]) + " |")
  return [*out, "", *tables.footer(result)]


def figure(result: dict) -> None:
  """Draws turns against bisection, and accuracy and questions, by RL step."""
  import matplotlib

  matplotlib.use("Agg")
  import matplotlib.pyplot as plt

  def draw(axis, name, values, color, label):
    rows = [x for x in result["runs"] if x["name"] == name]
    for x in rows:
      axis.plot(x["steps"], values(x), color=color, lw=0.7, alpha=0.5)
    if rows:
      mean = np.mean([values(x) for x in rows], 0)
      axis.plot(rows[0]["steps"], mean, color=color, lw=2, label=label)

  fig, axes = plt.subplots(1, 3, figsize=(11, 3.4))
  turns, blue, gray = (lambda x: x["turns"]), "#1f6feb", "#6b7280"
  draw(axes[0], "guess", turns, blue, "DAPO")
  axes[0].axhline(optimum()[""], color="#16a34a", ls="--", label="bisection")
  axes[0].set(title="guess", ylabel="turns of a game")
  for name, color in (("calculator", blue), ("calculator, no answers", gray)):
    draw(axes[1], name, lambda x: x["accuracy"], color, name)
    asked = lambda x: [t - 1 for t in x["turns"]]  # noqa: E731
    draw(axes[2], name, asked, color, name)
  axes[1].set(title="calculator", ylabel="held-out accuracy")
  axes[2].set(title="calculator", ylabel="questions per response")
  for axis in axes:
    axis.set(xlabel="RL step")
    axis.grid(alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
  fig.tight_layout()
  fig.savefig(harness.RESULTS / f"{NAME}.png", dpi=130)


def main() -> None:
  """Runs what is missing, then writes data, table and figure."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
  parser.add_argument("--collect", action="store_true")
  parser.add_argument("--table", action="store_true")
  args = parser.parse_args()
  jobs = [(name, seed) for name in ROWS for seed in SEEDS]
  if not args.table:
    if not args.collect:
      with futures.ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(run, jobs))
    made = [x for x in jobs if (directory(*x) / "done").exists()]
    environment = directory(*made[0]) / "environment.json"
    result = dict(
        command="python -m bench.environments",
        environment=json.loads(environment.read_text()),
        runs=[read(*x) for x in made],
    )
    harness.write_data(NAME, result)
  result = harness.read(NAME)
  harness.write(NAME, result, page(result))
  figure(result)


if __name__ == "__main__":
  main()
