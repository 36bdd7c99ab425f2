"""The main experiment on many seeds: DAPO, GRPO and two controls.

  python -m bench.seeds --jobs 2   # resumable; about two hours on 2 quiet cores
  python -m bench.seeds --alone    # adds the seconds of the default command
  python -m bench.seeds --collect  # table and figure of the runs made so far
  python -m bench.seeds --table    # only table and figure, from JSON

Writes results/seeds.json, results/seeds.md and results/seeds.png (the figure
needs matplotlib). Runs that results/seeds.json has are not made again: without
that file all are. The seeds are the default one and 15 of a hash. GRPO and the
shuffled control start from DAPO's SFT model of the same seed; the SFT control
trains its own model for longer.
"""

import argparse
import functools
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent import futures

from bench import tables
from rl_reason.lab import ablate, comparison
from rl_reason.report import machine

ROOT = pathlib.Path(__file__).parents[1]
RUNS = ROOT / "runs" / "seeds"
OUT = ROOT / "results" / "seeds.json"

SEEDS = (0, *ablate.fresh_seeds("rl_reason", 15))

ROWS = {
    "DAPO": ("configs/dapo.py", False),
    "GRPO": ("configs/grpo.py", True),
    "DAPO, shuffled rewards": ("configs/dapo.py:shuffled", True),
    "SFT only, equal compute": ("configs/sft.py:control", False),
}
COLUMNS = ("mean@4", "greedy", "maj@8", "pass@8")
CONTROL = "SFT only, equal compute"  # runs last, since it differs least
CORE = "val-core/arithmetic/acc/"
HELD_OUT = "--config.evaluate.validation=False"  # in curves; it chooses nothing


def directory(name: str, seed: int) -> pathlib.Path:
  """The work directory of a run; it has a file `done` once it has finished."""
  config, _ = ROWS[name]
  slug = config.removeprefix("configs/").replace(".py", "").replace(":", "-")
  return RUNS / f"{slug}-{seed}"


def recorded() -> dict[tuple[str, int], dict]:
  """The runs of results/seeds.json by name and seed."""
  result = json.loads(OUT.read_text()) if OUT.exists() else {}
  return {(x["name"], x["seed"]): x for x in result.get("runs", [])}


def run(name: str, seed: int) -> None:
  """Makes a run, or the rest of it, unless its figures are recorded."""
  if (name, seed) not in recorded():
    make(name, seed)


def make(name: str, seed: int) -> pathlib.Path:
  """Returns the directory of a run, which is made if it is missing."""
  config, reuse = ROWS[name]
  workdir = directory(name, seed)
  if not (workdir / "done").exists():
    options = [f"--config.seed={seed}", HELD_OUT]
    if reuse:
      options.append(f"--config.sft.reuse={make('DAPO', seed)}")
    train(config, workdir, *options)
    (workdir / "done").touch()
  return workdir


def read(name: str, seed: int) -> dict:
  """The evaluations and the learning curve of a run."""
  text = (directory(name, seed) / "metrics.jsonl").read_text()
  lines = [json.loads(line) for line in text.splitlines()]
  rl = {m["step"]: m for m in lines if m["stage"] == "rl"}
  evaluations = [m for m in lines if m["stage"] == "evaluate"]
  skill = [m for m in lines if m["stage"] == "skill" and CORE + "greedy" in m]
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


def train(
    config: str, workdir: pathlib.Path, *options: str, **variables: str
) -> None:
  """Runs the command of the README with further options and variables."""
  command = [sys.executable, "-m", "rl_reason.main", f"--config={config}"]
  command += [f"--workdir={workdir}", *options]
  print(*command, flush=True)
  env = os.environ | variables
  subprocess.run(
      command, cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL
  )


def runs_of(seed: int) -> None:
  """The runs of a seed that share one SFT, DAPO's."""
  for name in ROWS:
    if name != CONTROL:
      run(name, seed)


def alone() -> dict:
  """Seconds of the README's command, and the load of the machine before it."""
  load = os.getloadavg()[0]
  with tempfile.TemporaryDirectory() as directory:
    start = time.monotonic()
    train("configs/dapo.py", pathlib.Path(directory) / "run")
    return dict(seconds=time.monotonic() - start, load=load)


def spread(values: Sequence[float], share: bool = True) -> str:
  """Returns 'mean ± half of the 95% interval (minimum to maximum)'."""
  mean, half = comparison.interval(values)
  scale, sign, digits = (100, "%", 1) if share else (1, "", 2)
  if half is None:
    return f"{scale * mean:.{digits}f}{sign}"
  numbers = (mean, half, min(values), max(values))
  middle, width, low, high = (f"{scale * x:.{digits}f}" for x in numbers)
  return f"{middle}{sign} ± {width} ({low} to {high})"


def table(result: dict) -> str:
  """Returns the table in Markdown."""
  runs, seeds = result["runs"], result["seeds"]
  out = [
      f"# {len(seeds)} seeds of the main experiment",
      "",
      "Made by `python -m bench.seeds`; data in `seeds.json`. Held-out accuracy"
      " on 1,000 prompts (mean of 4 samples, temperature 1, top-p 1): mean over"
      " seeds ± half the width of its 95% interval (Student's t), and least to"
      f" most. Seeds: {', '.join(map(str, seeds))}.",
      "",
      f"| | {' | '.join(COLUMNS)} | length | seeds |",
      "|---" * (len(COLUMNS) + 3) + "|",
  ]

  def row(label, name, which):
    found = [r for r in runs if r["name"] == name]
    cells = [spread([r[which][k] for r in found]) for k in COLUMNS]
    lengths = [r["length"][-(which == "after")] for r in found]
    length = f"{sum(lengths) / len(found):.1f}" if which != "skill" else ""
    cells += [length, str(len(found))]
    out.append(f"| {label} | {' | '.join(cells)} |")

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
    of_seed = {r["name"]: r for r in runs if r["seed"] == seed}
    first = of_seed["DAPO"]
    cells = [first["skill"]["mean@4"], first["before"]["mean@4"]]
    cells += [of_seed[x]["after"]["mean@4"] for x in ROWS if x in of_seed]
    texts = [f"{x:.1%}" for x in cells] + ["not run"] * (
        len(ROWS) - len(of_seed)
    )
    out.append(f"| {seed} | {' | '.join(texts)} |")
  gaps = [r["logp_gap_max"] for r in runs if r["logp_gap_max"] is not None]
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
  return "\n".join([*out, *tables.footer(result), ""])


def figure(result: dict) -> None:
  """Draws mean and range of accuracy against RL steps and generated tokens."""
  import matplotlib

  matplotlib.use("Agg")
  import matplotlib.pyplot as plt
  import numpy as np

  colors = ["#1f6feb", "#d97706", "#6b7280", "#16a34a"]
  fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
  for color, name in zip(colors, ROWS, strict=True):
    of_row = [r for r in result["runs"] if r["name"] == name]
    accuracy_SE = np.array([r["accuracy"] for r in of_row])
    mean_E = accuracy_SE.mean(0)
    low_E, high_E = accuracy_SE.min(0), accuracy_SE.max(0)
    millions_E = np.mean([r["tokens"] for r in of_row], 0) / 1e6
    for axis, x_E in zip(axes, (of_row[0]["steps"], millions_E), strict=True):
      if len(mean_E) == 1:  # without RL: a level, not a curve
        axis.axhline(mean_E[0], color=color, lw=1.6, label=name)
        axis.axhspan(low_E[0], high_E[0], color=color, alpha=0.15, lw=0)
        continue
      axis.plot(x_E, mean_E, color=color, lw=1.6, label=name)
      axis.fill_between(x_E, low_E, high_E, color=color, alpha=0.15, lw=0)
  axes[0].set(xlabel="RL steps", ylabel="held-out accuracy (mean@4)")
  axes[0].set_ylim(0, 1)
  axes[1].set(xlabel="generated tokens (millions)")
  for axis in axes:
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
  handles, labels = axes[0].get_legend_handles_labels()
  fig.legend(
      handles, labels, loc="upper center", ncol=4, frameon=False, fontsize=9
  )
  fig.tight_layout(rect=(0, 0, 1, 0.92))
  fig.savefig(OUT.with_suffix(".png"), dpi=130)


def main() -> None:
  """Runs what is missing, then writes table and figure."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--jobs", type=int, default=1, help="seeds at a time")
  parser.add_argument("--alone", action="store_true")
  parser.add_argument("--collect", action="store_true")
  parser.add_argument("--table", action="store_true")
  args = parser.parse_args()
  result = json.loads(OUT.read_text()) if OUT.exists() else {}
  if args.alone:
    result["alone"] = alone()
  elif not args.table:
    if not args.collect:
      with futures.ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(runs_of, SEEDS))
        list(pool.map(functools.partial(run, CONTROL), SEEDS))
    runs = recorded()
    for seed, name in itertools.product(SEEDS, ROWS):
      if (directory(name, seed) / "done").exists():
        runs[name, seed] = read(name, seed)
        result["environment"] = machine.read(directory(name, seed))
    result |= dict(
        command="python -m bench.seeds",
        seeds=[x for x in SEEDS if ("DAPO", x) in runs],
        runs=[
            runs[name, seed]
            for seed, name in itertools.product(SEEDS, ROWS)
            if (name, seed) in runs
        ],
    )
  OUT.write_text(json.dumps(result, indent=1))
  OUT.with_suffix(".md").write_text(table(result))
  figure(result)


if __name__ == "__main__":
  main()
