"""The main experiment on fresh seeds: DAPO, GRPO and two controls.

  python -m bench.seeds            # about 20 minutes on 2 cores; resumable
  python -m bench.seeds --table    # only table and figure, from JSON

Writes results/seeds.json, results/seeds.md and results/seeds.png (the figure
needs matplotlib). GRPO and the shuffled control start from DAPO's SFT model of
the same seed; the SFT control trains its own model for longer.
"""

import argparse
import json
import pathlib
import subprocess
import sys
import time

from rl_reason import ablate

ROOT = pathlib.Path(__file__).parents[1]
RUNS = ROOT / "runs" / "seeds"
OUT = ROOT / "results" / "seeds.json"

SEEDS = list(ablate.fresh_seeds("rl_reason", 5))

ROWS = {
    "DAPO": ("configs/dapo.py", False),
    "GRPO": ("configs/grpo.py", True),
    "DAPO, shuffled rewards": ("configs/dapo.py:shuffled", True),
    "SFT only, equal compute": ("configs/sft.py:control", False),
}
COLUMNS = ("mean@4", "greedy", "maj@8", "pass@8")


def run(name: str, seed: int) -> dict:
  """Returns evaluations, learning curve and seconds of one run."""
  config, reuse = ROWS[name]
  slug = config.removeprefix("configs/").replace(".py", "").replace(":", "-")
  workdir = RUNS / f"{slug}-{seed}"
  done = workdir / "seconds.json"
  if not done.exists():
    command = [
        sys.executable,
        "-m",
        "rl_reason.main",
        f"--config={config}",
        f"--config.seed={seed}",
        f"--workdir={workdir}",
    ]
    if reuse:
      command.append(f"--config.sft.reuse={RUNS / f'dapo-{seed}'}")
    print(*command, flush=True)
    start = time.monotonic()
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    done.write_text(json.dumps(time.monotonic() - start))
  lines = [
      json.loads(line)
      for line in (workdir / "metrics.jsonl").read_text().splitlines()
  ]
  rl = {m["step"]: m for m in lines if m["stage"] == "rl"}
  evaluations = [m for m in lines if m["stage"] == "evaluate"]
  core = "val-core/arithmetic/acc/"
  skill = [m for m in lines if m["stage"] == "skill" and core + "greedy" in m]
  return dict(
      name=name,
      seed=seed,
      skill={k: m[core + k] for m in skill for k in COLUMNS},
      seconds=json.loads(done.read_text()),
      before={k: evaluations[0][core + k] for k in COLUMNS},
      after={k: evaluations[-1][core + k] for k in COLUMNS},
      steps=[m["step"] for m in evaluations],
      tokens=[
          rl[m["step"]]["tokens/generated"] if m["step"] else 0
          for m in evaluations
      ],
      accuracy=[m[core + "mean@4"] for m in evaluations],
      length=[evaluations[i]["val-aux/response_length/mean"] for i in (0, -1)],
      logp_gap_max=max(
          (m["rollout/logp_gap_max"] for m in rl.values()), default=None
      ),
  )


def environment() -> dict:
  """Returns the environment that the first run recorded."""
  first = RUNS / f"dapo-{SEEDS[0]}" / "environment.json"
  return json.loads(first.read_text())


def spread(values: list[float]) -> str:
  """Returns 'mean (minimum to maximum)' in percent."""
  mean = sum(values) / len(values)
  return f"{mean:.1%} ({min(values):.1%} to {max(values):.1%})"


def table(result: dict) -> str:
  """Returns the table in Markdown."""
  out = [
      "# Five seeds of the main experiment",
      "",
      "Made by `python -m bench.seeds`; data in `seeds.json`. Held-out accuracy"
      " on 1,000 prompts (mean of 4 samples, temperature 1, top-p 1): mean over"
      f" seeds {', '.join(map(str, SEEDS))} (minimum to maximum).",
      "",
      "| | " + " | ".join(COLUMNS) + " | length | seconds |",
      "|---" * (len(COLUMNS) + 3) + "|",
  ]
  runs = result["runs"]

  def row(name, runs, which, seconds):
    cells = [spread([r[which][k] for r in runs]) for k in COLUMNS]
    lengths = [r["length"][-(which == "after")] for r in runs]
    length = f"{sum(lengths) / len(runs):.1f}" if which != "skill" else ""
    return f"| {name} | {' | '.join(cells)} | {length} | {seconds} |"

  for name in ROWS:
    of_row = [r for r in runs if r["name"] == name]
    if not of_row:
      continue
    if name == "DAPO":
      out.append(
          row("after SFT on the skill alone (256 prompts)", of_row, "skill", "")
      )
      out.append(
          row("after SFT, before RL (skill, then habits)", of_row, "before", "")
      )
    times = [r["seconds"] for r in of_row]
    note = "" if not ROWS[name][1] else ", SFT shared"
    seconds = f"{min(times):.0f}-{max(times):.0f}{note}"
    out.append(row(f"after: {name}", of_row, "after", seconds))
  gaps = [r["logp_gap_max"] for r in runs if r["logp_gap_max"] is not None]
  out += [
      "",
      "Largest difference of a token's log-probability between sampler and"
      " trainer:"
      f" {max(gaps):.1e}.",
      "",
      "Seconds: the complete command without a warm cache; the machine had"
      " other work at the same time.",
      "",
      "Versions: "
      + ", ".join(f"{k} {v}" for k, v in flat(result["environment"])),
      "",
  ]
  return "\n".join(out)


def flat(environment: dict):
  """Yields (name, value) of the simple fields, versions first."""
  for name, value in environment.get("versions", {}).items():
    yield name, value
  for name, value in environment.items():
    if isinstance(value, (str, int, float)):
      yield name, value


def figure(result: dict) -> None:
  """Draws accuracy against RL steps and against generated tokens."""
  import matplotlib

  matplotlib.use("Agg")
  import matplotlib.pyplot as plt

  colors = ["#1f6feb", "#d97706", "#6b7280", "#16a34a"]
  fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
  for color, name in zip(colors, ROWS, strict=True):
    of_row = [r for r in result["runs"] if r["name"] == name]
    for i, r in enumerate(of_row):
      label = name if i == 0 else None
      if len(r["steps"]) == 1:  # without RL: a level, not a curve
        for axis in axes:
          axis.axhline(r["accuracy"][-1], color=color, lw=0.8, label=label)
          label = None
        continue
      style = dict(color=color, lw=1.2, label=label)
      axes[0].plot(r["steps"], r["accuracy"], **style)
      millions = [t / 1e6 for t in r["tokens"]]
      axes[1].plot(millions, r["accuracy"], **style | dict(label=None))
  axes[0].set(xlabel="RL steps", ylabel="held-out accuracy (mean@4)")
  axes[0].set_ylim(0, 1)
  axes[1].set(xlabel="generated tokens (millions)")
  for axis in axes:
    axis.grid(alpha=0.25)
    axis.spines[["top", "right"]].set_visible(False)
  fig.legend(loc="upper center", ncol=4, frameon=False, fontsize=9)
  fig.tight_layout(rect=(0, 0, 1, 0.92))
  fig.savefig(OUT.with_suffix(".png"), dpi=130)


def main() -> None:
  """Runs what is missing, then writes table and figure."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--table", action="store_true")
  if parser.parse_args().table:
    result = json.loads(OUT.read_text())
  else:
    result = dict(command="python -m bench.seeds", seeds=SEEDS, runs=[])
    for seed in SEEDS:
      for name in ROWS:
        result["runs"].append(run(name, seed))
        result["environment"] = environment()
        OUT.parent.mkdir(exist_ok=True)
        OUT.write_text(json.dumps(result, indent=1))
  OUT.with_suffix(".md").write_text(table(result))
  figure(result)


if __name__ == "__main__":
  main()
