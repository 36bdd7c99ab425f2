"""The path of docs/first_run.md on a few seeds: SFT, export, GRPO.

  python -m bench.training.first_run           # resumable; 15 minutes, 2 cores
  python -m bench.training.first_run --screen  # the screen only, of seed 0
  python -m bench.training.first_run --table   # only the page, from JSON

Each seed runs the commands that the document prints, in a directory with the
files that it prints, with `--config.seed`. Writes results/first_run.json and
results/first_run.md; `tests/test_first_run.py` compares the document with them.
"""

import json
import os
import pathlib
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import time

from bench import results
from bench.training import seeds as seeds_lib

NAME = "first_run"
DOCUMENT = results.ROOT / "docs" / "first_run.md"
TINY, RUN = "--config=my_run.py:tiny", "--config=my_run.py"
WORKDIR = "--workdir=runs/my_run"  # which has the seed in its name otherwise
CORE, ACCURACY = "val-core/test/acc/", "mean@4"
COLUMNS = (ACCURACY, "greedy", "pass@8")
STEPS = (1, 2, 3, 5, 10, 15)
METRICS = {  # of a step of RL
    "reward": "critic/rewards/mean",
    "steps": "reward/my_reward:steps/mean",
    "accuracy": "train/accuracy",
    "groups with signal": "train/groups_with_signal",
    "entropy": "actor/entropy",
    "PPO KL": "actor/ppo_kl",
    "gradient norm": "actor/grad_norm",
    "length": "response_length/mean",
    "truncated": "response_length/clip_ratio",
}
FORMATS = {  # of the means in the document's table
    "accuracy": ".0%",
    "groups with signal": ".0f",
    "reward": ".2f",
    "steps": ".2f",
    "length": ".0f",
    "truncated": ".1%",
    "entropy": ".2f",
    "PPO KL": ".4f",
    "gradient norm": ".1f",
}
SHOWN = (  # beginnings of the lines that the document prints
    *("200 of 200 rows", "4,476 of", "85 of", "the first prompt", "238 rows"),
    *("held-out accuracy", "validation accuracy at step 10", "step 1:"),
    *("greedy:", "pass@8:", "response length"),
)


def files(text: str) -> dict[str, str]:
  """Name -> code of the files that the document prints."""
  blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.DOTALL)
  return {
      re.search(r"\bin (my_\w+\.py)", code.split('"""')[1])[1]: code
      for code in blocks
  }


def commands(text: str) -> list[list[str]]:
  """The commands that the document prints, as words, in its order."""
  text = re.sub(r"\\\n\s*", " ", text)
  found = re.findall(r"^ {4}(python .*)$", text, re.MULTILINE)
  return [shlex.split(line, comments=True)[1:] for line in found]


def write_files(directory: pathlib.Path) -> None:
  """Writes the files of the document."""
  directory.mkdir(parents=True, exist_ok=True)
  for name, code in files(DOCUMENT.read_text()).items():
    (directory / name).write_text(code)


def call(words: list[str], directory: pathlib.Path) -> tuple[str, float]:
  """Runs a command of the document; returns what it prints, and seconds.

  Raises:
    SystemExit: the command fails.
  """
  path = os.pathsep.join([str(results.ROOT), os.environ.get("PYTHONPATH", "")])
  start = time.monotonic()
  done = subprocess.run(
      [sys.executable, *words],
      cwd=directory,
      env=os.environ | {"PYTHONPATH": path},
      capture_output=True,
      text=True,
      check=False,
  )
  if done.returncode:
    raise SystemExit(f"{shlex.join(words)}: {done.stdout}{done.stderr}")
  return done.stdout, time.monotonic() - start


def train(seed: int, directory: pathlib.Path) -> tuple[list[str], dict]:
  """Runs the commands up to the end of RL, with a seed.

  Returns:
    the lines that they print, without the time; seconds by command.
  """
  done = directory / "done.json"
  if done.exists():
    return json.loads(done.read_text())
  shutil.rmtree(directory, ignore_errors=True)
  write_files(directory)
  lines, seconds = [], {}
  for words in commands(DOCUMENT.read_text()):
    extra = [f"--config.seed={seed}"] if words[2:3] == [TINY] else []
    if words[2:] == [RUN]:
      extra = [f"--config.seed={seed}", WORKDIR]
    out, taken = call([*words, *extra], directory)
    lines += [re.sub(r"^\[\d+:\d\d\] ", "", x) for x in out.splitlines()]
    seconds[shlex.join(words)] = round(taken, 1)
    if words[2:] == [RUN]:
      break
  done.write_text(json.dumps([lines, seconds]))
  return lines, seconds


def run(seed: int) -> tuple[list[str], dict]:
  """The lines of the screen, and what the commands reach with a seed."""
  directory = results.RUNS / NAME / str(seed)
  screen, seconds = train(seed, directory)
  logged = (directory / "runs" / "my_run" / "metrics.jsonl").read_text()
  lines = [json.loads(x) for x in logged.splitlines()]
  evaluated = [x for x in lines if CORE + ACCURACY in x]  # before and after
  rl = {x["step"]: x for x in lines if x["stage"] == "rl"}
  return screen, dict(
      seed=seed,
      seconds=seconds,
      before={k: evaluated[0][CORE + k] for k in COLUMNS},
      after={k: evaluated[-1][CORE + k] for k in COLUMNS},
      length=[evaluated[i]["val-aux/response_length/mean"] for i in (0, -1)],
      alerts=sorted({k for x in lines for k in x if k.startswith("alert/")}),
      steps={str(k): {m: rl[k][x] for m, x in METRICS.items()} for k in STEPS},
  )


def shown(lines: list[str]) -> list[str]:
  """The lines of the screen that the document prints, each once."""
  return list(dict.fromkeys(x for x in lines if x.startswith(SHOWN)))


def measure(flags) -> dict:
  """The data of all seeds; with --screen, only the lines of the screen anew."""
  if flags.screen:
    (results.RUNS / NAME / "0" / "done.json").unlink(missing_ok=True)
    return results.read(NAME) | dict(screen=shown(run(0)[0]))
  load, made, screens = results.load(), [], []
  for seed in range(flags.seeds):
    screen, found = run(seed)
    screens.append(screen)
    made.append(found)
    print(found["before"], found["after"], flush=True)
  environment = results.environment(load)
  return dict(runs=made, screen=shown(screens[0]), environment=environment)


def means(result: dict, metric: str) -> list[str]:
  """Means over the seeds at the steps of the document's table."""
  values = [
      statistics.mean(x["steps"][k][metric] for x in result["runs"])
      for k in ("1", "3", "10")
  ]
  return [f"{value:{FORMATS[metric]}}" for value in values]


def cells(result: dict) -> list[str]:
  """The cells with means in the document's table, as they are there."""
  return [f"| {' | '.join(means(result, x))} |" for x in FORMATS]


def claims(result: dict) -> list[str]:
  """Sentences of the document."""
  found = result["runs"]

  def of(which, column):
    return seeds_lib.spread([x[which][column] for x in found])

  def took(flag):
    [name] = [
        x
        for x in found[0]["seconds"]
        if flag in x.split() and "--stage" not in x
    ]
    values = [x["seconds"][name] for x in found]
    return f"took {min(values):.0f} to {max(values):.0f} s on two busy cores"

  alerts = "alerts" if any(x["alerts"] for x in found) else "none"
  lengths = [statistics.mean(x["length"][i] for x in found) for i in (0, 1)]
  return [
      f"Over {len(found)} seeds accuracy rises from {of('before', ACCURACY)} to"
      f" {of('after', ACCURACY)} (mean@4,",
      f"greedy accuracy from {of('before', 'greedy')} to"
      f" {of('after', 'greedy')}.",
      f"responses grow from {lengths[0]:.0f} to {lengths[1]:.0f} tokens.",
      f"Values are means of {len(found)} seeds",
      f"The first command {took(TINY)}",
      f"The run {took(RUN)}",
      f"This run has {alerts}.",
  ]


def spread(values: list[float], digits: int = 3) -> str:
  """'mean (least to most)'."""
  mean, low, high = sum(values) / len(values), min(values), max(values)
  return f"{mean:.{digits}g} ({low:.{digits}g} to {high:.{digits}g})"


def page(result: dict) -> list[str]:
  """The tables in Markdown."""
  found = result["runs"]
  out = [
      results.row("", *COLUMNS, "length"),
      "|---" * (len(COLUMNS) + 2) + "|",
  ]
  for label, which in (("before RL", "before"), ("after 15 steps", "after")):
    cells = [seeds_lib.spread([x[which][k] for x in found]) for k in COLUMNS]
    lengths = [x["length"][-(which == "after")] for x in found]
    out.append(results.row(label, *cells, f"{sum(lengths) / len(found):.1f}"))
  out += [
      "",
      "Metrics of steps of RL: mean over seeds, and least to most.",
      "",
      results.row("step", *METRICS),
      "|---" * (len(METRICS) + 1) + "|",
  ]
  for step in map(str, STEPS):
    cells = [spread([x["steps"][step][m] for x in found]) for m in METRICS]
    out.append(results.row(step, *cells))
  alerts = sorted({y for x in found for y in x["alerts"]})
  out += [
      "",
      f"Alerts: {', '.join(f'`{x}`' for x in alerts) or 'none'}.",
      "",
      results.row("command", "seconds"),
      "|---|---|",
      *(
          results.row(f"`python {k}`", spread([x["seconds"][k] for x in found]))
          for k in found[0]["seconds"]
      ),
  ]
  before, after = (
      seeds_lib.spread([x[which][COLUMNS[0]] for x in found])
      for which in ("before", "after")
  )
  return results.document(
      f"The first run on {len(found)} seeds",
      f"In {STEPS[-1]} steps of RL the held-out accuracy ({COLUMNS[0]}) goes"
      f" from {before} to {after}.",
      results.busy(result["environment"]),
      "Does a run on rows of files and a reward of one's own learn? The"
      " commands are those of [docs/first_run.md](../docs/first_run.md); data"
      " in `first_run.json`. Held-out accuracy on 200 questions: mean over"
      " seeds ± half the width of its 95% interval (Student's t), and least to"
      " most.",
      out,
      made="Made by `python -m bench.training.first_run`.",
      versions=results.footer(result),
  )


def _flags(parser) -> None:
  parser.add_argument("--seeds", type=int, default=5)
  parser.add_argument("--screen", action="store_true")


if __name__ == "__main__":
  results.main(__doc__, NAME, measure, page, flags=_flags)
