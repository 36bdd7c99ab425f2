"""The main experiment on many seeds: DAPO, GRPO and two controls.

  python -m bench.training.seeds --jobs 2   # resumable; about two hours
  python -m bench.training.seeds --alone    # seconds of the default command
  python -m bench.training.seeds --collect  # table and figure of the runs made
  python -m bench.training.seeds --table    # only table and figure, from JSON

Writes results/seeds.json, results/seeds.md and results/seeds.png (the figure
needs matplotlib). Runs that results/seeds.json has are not made again: without
that file all are. The seeds are the default one and 15 of a hash. GRPO and the
shuffled control start from DAPO's SFT model of the same seed; the SFT control
trains its own model for longer.
"""

import itertools
import pathlib
import tempfile
from collections.abc import Sequence

import numpy as np

from bench import results, runs
from rl_reason.lab import ablate, comparison, jobs
from rl_reason.monitoring import run_log
from rl_reason.report import figures

NAME = "seeds"

SEEDS = (0, *ablate.fresh_seeds("rl_reason", 15))

ROWS = {
    "DAPO": ("configs/dapo.py", False),
    "GRPO": ("configs/grpo.py", True),
    "DAPO, shuffled rewards": ("configs/dapo.py:shuffled", True),
    "SFT only, equal compute": ("configs/sft_control.py", False),
}
COLUMNS = ("mean@4", "greedy", "maj@8", "pass@8")
CONTROL = "SFT only, equal compute"  # runs last, since it differs least
CORE = "val-core/arithmetic/acc/"


def directory(name: str, seed: int) -> pathlib.Path:
  """The work directory of a run."""
  config, _ = ROWS[name]
  slug = config.removeprefix("configs/").replace(".py", "").replace(":", "-")
  return results.RUNS / NAME / f"{slug}-{seed}"


def job(name: str, seed: int) -> jobs.Job:
  """A run, which may start from the SFT model of DAPO with the same seed."""
  config, reuses = ROWS[name]
  fields, bases = {"seed": seed} | runs.HELD_OUT, ()
  if reuses:
    bases = (directory("DAPO", seed),)
    fields["sft.reuse"] = str(bases[0])
  return runs.run(config, directory(name, seed), fields, bases)


def recorded() -> dict[tuple[str, int], dict]:
  """The runs of results/seeds.json by name and seed."""
  return {(x["name"], x["seed"]): x for x in results.read(NAME).get("runs", [])}


def make(parallel: int) -> None:
  """Makes the runs whose figures are not recorded."""
  # The control runs last, since it differs least.
  order = sorted(itertools.product(SEEDS, ROWS), key=lambda x: x[1] == CONTROL)
  known, wanted = recorded(), []
  for seed, name in order:
    one = job(name, seed)
    # A recorded run is made again only if other runs need it as a base.
    wanted.append(one._replace(row="") if (name, seed) in known else one)
  runs.make(wanted, parallel)


def read(name: str, seed: int) -> dict:
  """The evaluations and the learning curve of a run."""
  lines = run_log.read_metrics(directory(name, seed))
  rl = {m["step"]: m for m in lines if m["stage"] == "rl"}
  evaluations = [m for m in lines if m["stage"] == "evaluate"]
  skill = [m for m in lines if m["stage"] == "sft" and CORE + "greedy" in m]
  generated = {0: 0} | {k: m["tokens/generated"] for k, m in rl.items()}
  return dict(
      name=name,
      seed=seed,
      skill={k: m[CORE + k] for m in skill for k in COLUMNS},
      before={k: evaluations[0][CORE + k] for k in COLUMNS},
      after={k: evaluations[-1][CORE + k] for k in COLUMNS},
      steps=[m["step"] for m in evaluations],
      tokens=[generated[m["step"]] for m in evaluations],
      accuracy=[m[CORE + "mean@4"] for m in evaluations],
      length=[evaluations[i]["val-aux/response_length/mean"] for i in (0, -1)],
      logp_gap_max=max(
          (m["rollout/logp_gap_max"] for m in rl.values()), default=None
      ),
  )


def alone() -> dict:
  """Seconds of the README's command, and the load of the machine before it."""
  load = results.load()
  with tempfile.TemporaryDirectory() as directory:
    one = runs.run("configs/dapo.py", pathlib.Path(directory) / "run", {})
    runs.make([one])
    return dict(seconds=one.record()["seconds"], load=load)


def spread(values: Sequence[float], share: bool = True) -> str:
  """Returns 'mean ± half of the 95% interval (minimum to maximum)'."""
  mean, half = comparison.interval(values)
  scale, sign, digits = (100, "%", 1) if share else (1, "", 2)
  if half is None:
    return f"{scale * mean:.{digits}f}{sign}"
  numbers = (mean, half, min(values), max(values))
  middle, width, low, high = (f"{scale * x:.{digits}f}" for x in numbers)
  return f"{middle}{sign} ± {width} ({low} to {high})"


def page(result: dict) -> list[str]:
  """Returns the tables in Markdown."""
  found, seeds = result["runs"], result["seeds"]
  out = [
      f"| | {' | '.join(COLUMNS)} | length | seeds |",
      "|---" * (len(COLUMNS) + 3) + "|",
  ]

  def row(label, name, which):
    of_row = [r for r in found if r["name"] == name]
    cells = [spread([r[which][k] for r in of_row]) for k in COLUMNS]
    lengths = [r["length"][-(which == "after")] for r in of_row]
    length = f"{sum(lengths) / len(of_row):.1f}" if which != "skill" else ""
    out.append(results.row(label, *cells, length, len(of_row)))

  row("after SFT on the skill alone (256 prompts)", "DAPO", "skill")
  row("after SFT, before RL (skill, then habits)", "DAPO", "before")
  for name in ROWS:
    row(f"after: {name}", name, "after")
  out += [
      "",
      "By seed, mean@4: the accuracy that RL recovers is that of the skill.",
      "",
      "| seed | skill | before RL | " + " | ".join(ROWS) + " |",
      "|---" * (len(ROWS) + 3) + "|",
  ]
  for seed in seeds:
    of_seed = {r["name"]: r for r in found if r["seed"] == seed}
    first = of_seed["DAPO"]
    cells = [first["skill"]["mean@4"], first["before"]["mean@4"]]
    cells += [of_seed[x]["after"]["mean@4"] for x in ROWS if x in of_seed]
    texts = [f"{x:.1%}" for x in cells] + ["not run"] * (
        len(ROWS) - len(of_seed)
    )
    out.append(results.row(seed, *texts))
  gaps = [r["logp_gap_max"] for r in found if r["logp_gap_max"] is not None]
  out += [
      "",
      "Largest difference of a token's log-probability between sampler and"
      f" trainer: {max(gaps):.1e}.",
      "",
  ]
  if "alone" in result:
    out += [
        "The README's command, without a warm cache:"
        f" {result['alone']['seconds']:.0f} seconds (load average of the"
        f" machine in the minute before: {result['alone']['load']:.1f}).",
        "",
    ]
  return results.document(
      f"{len(seeds)} seeds of the main experiment",
      _finding(found),
      "What do RL, its verdicts and its compute give on the built-in task?"
      " Held-out accuracy on 1,000 prompts (mean of 4 samples, temperature 1,"
      " top-p 1): mean over seeds ± half the width of its 95% interval"
      " (Student's t), and least to most; bands of the figure: least to most."
      f" Data in `seeds.json`. Seeds: {', '.join(map(str, seeds))}.",
      f"![curves]({NAME}.png)",
      out,
      made="Made by `python -m bench.training.seeds`.",
      versions=results.footer(result),
  )


def _finding(runs: list[dict]) -> str:
  """Where each row ends."""

  def accuracy(name: str, which: str = "after") -> str:
    values = [100 * x[which]["mean@4"] for x in runs if x["name"] == name]
    middle, half = comparison.interval(values)
    return f"{middle:.1f}%" + ("" if half is None else f" ± {half:.1f}")

  ends = [f"{name} {accuracy(name)}" for name in ROWS if name != "DAPO"]
  return (
      f"DAPO goes from {accuracy('DAPO', 'before')} to {accuracy('DAPO')}"
      f" held-out accuracy; the other rows end at: {', '.join(ends)}."
  )


def readme_table(result: dict) -> list[str]:
  """Returns README's table in Markdown."""
  columns, found = ("mean@4", "greedy", "pass@8"), result["runs"]
  out = [
      f"| held-out accuracy, {len(result['seeds'])} seeds: mean ± 95% interval"
      " (min to max) | mean of 4 samples | greedy | pass@8 |",
      "|---|---|---|---|",
  ]
  for label, name, which in (
      ("before RL", "DAPO", "before"),
      ("after 40 steps of DAPO", "DAPO", "after"),
      ("after 40 steps of GRPO", "GRPO", "after"),
      ("DAPO with shuffled rewards", "DAPO, shuffled rewards", "after"),
      ("more SFT instead, equal compute", CONTROL, "after"),
  ):
    of_row = [r[which] for r in found if r["name"] == name]
    first, *rest = ([r[k] for r in of_row] for k in columns)
    means = [f"{np.mean(x):.1%}" for x in rest]
    out.append(results.row(label, spread(first), *means))
  return out


def readme_numbers(result: dict) -> list[str]:
  """Returns the phrases of README's text that have numbers of the runs."""
  by_name: dict[str, dict[int, dict]] = {name: {} for name in ROWS}
  for run in result["runs"]:
    by_name[run["name"]][run["seed"]] = run
  dapo, grpo = by_name["DAPO"], by_name["GRPO"]
  ahead = [
      100 * (dapo[x]["after"]["mean@4"] - grpo[x]["after"]["mean@4"])
      for x in result["seeds"]
  ]
  mean, half = comparison.interval(ahead)
  tokens = [
      np.mean([x["tokens"][-1] for x in y.values()]) for y in (dapo, grpo)
  ]
  skill = np.mean([x["skill"]["mean@4"] for x in dapo.values()])
  return [
      f"is one of the {len(result['seeds'])} and ends at"
      f" {dapo[SEEDS[0]]['after']['mean@4']:.1%}.",
      f"DAPO is {mean:.1f} ± {half:.1f} points ahead of GRPO.",
      f"generates {tokens[0] / tokens[1]:.1f} times as many tokens",
      f"the level of the skill alone ({skill:.1%})",
  ]


def figure(result: dict) -> dict:
  """Mean and range of accuracy against RL steps and generated tokens."""
  by_step, by_tokens = [], []
  for name, color in zip(ROWS, (0, 1, 3, 2), strict=True):
    of_row = [r for r in result["runs"] if r["name"] == name]
    accuracy_SE = np.array([r["accuracy"] for r in of_row])
    numbers = dict(
        y=accuracy_SE.mean(0), low=accuracy_SE.min(0), high=accuracy_SE.max(0)
    )
    tokens_E = np.mean([r["tokens"] for r in of_row], 0)
    for panel, x_E in ((by_step, of_row[0]["steps"]), (by_tokens, tokens_E)):
      panel.append(figures.series(name, x_E, color=color, **numbers))
  y = "held-out accuracy (mean@4)"
  panels = [
      figures.lines(by_step, x="RL steps", y=y, percent=True),
      figures.lines(by_tokens, x="generated tokens", percent=True),
  ]
  return figures.figure(
      figures.block(panels, columns=2, height=3.2), legend=True
  )


def flags(parser) -> None:
  """The flags."""
  parser.add_argument("--jobs", type=int, default=1, help="runs at a time")
  parser.add_argument("--alone", action="store_true")
  parser.add_argument("--collect", action="store_true")


def measure(given) -> dict:
  """Runs what is missing; returns the data."""
  result = results.read(NAME)
  if given.alone:
    return result | dict(alone=alone())
  if not given.collect:
    make(given.jobs)
  found = recorded()
  for seed, name in itertools.product(SEEDS, ROWS):
    if job(name, seed).finished():
      found[name, seed] = read(name, seed)
      place = directory(name, seed)
      result["environment"] = results.run_environment(place)
  return result | dict(
      command="python -m bench.training.seeds",
      seeds=[x for x in SEEDS if ("DAPO", x) in found],
      runs=[
          found[name, seed]
          for seed, name in itertools.product(SEEDS, ROWS)
          if (name, seed) in found
      ],
  )


if __name__ == "__main__":
  results.main(__doc__, NAME, measure, page, figure=figure, flags=flags)
