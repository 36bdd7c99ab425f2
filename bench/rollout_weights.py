"""Rounded weights, keys and values: how far from the trainer do rollouts get?

  python -m bench.rollout_weights            # 21 short runs; resumable
  python -m bench.rollout_weights --table    # only the table, from JSON

Short runs of GRPO on fresh seeds, those of a seed from one SFT model, alike but
for the weights that sample and their cache. Then the policy that sampled with
its own samples again with each kind. Writes results/rollout_weights.{json,md}.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import threading

import jax
import numpy as np

from bench import harness
from rl_reason import ablate, config
from rl_reason.monitoring import display, metrics
from rl_reason.report import environment
from rl_reason.training import experience, rl, session

ROOT = pathlib.Path(__file__).parents[1]
RUNS = ROOT / "runs" / "rollout_weights"
OUT = ROOT / "results" / "rollout_weights.json"

SEEDS = ablate.fresh_seeds("rl_reason", 3)
STEPS = 20
ROUNDS = 10  # of generation, when the trained policy is measured
KINDS = {  # rollout.weights, rollout.cache
    "same": ("same", "same"),
    "bfloat16 weights": ("bfloat16", "same"),
    "int8 weights": ("int8", "same"),
    "int8 cache": ("same", "int8"),
    "int8 both": ("int8", "int8"),
}
ROWS = {  # of KINDS, loss.correction
    **{kind: (kind, "none") for kind in KINDS},
    "int8 weights, truncated": ("int8 weights", "truncate"),
    "int8 both, truncated": ("int8 both", "truncate"),
}
ACCURACY = "val-core/arithmetic/acc/mean@4"


def place(name: str, seed: int) -> pathlib.Path:
  """The work directory of a run."""
  return RUNS / f"{name.replace(',', '').replace(' ', '-')}-{seed}"


def train(name: str, seed: int) -> dict:
  """One run; its accuracies, and what it measured of its own rollouts."""
  kind, correction = ROWS[name]
  weights, cache = KINDS[kind]
  workdir = place(name, seed)
  command = [
      *(sys.executable, "-m", "rl_reason.main", "--config=configs/grpo.py"),
      f"--workdir={workdir}",
      f"--config.seed={seed}",
      f"--config.rl.steps={STEPS}",
      "--config.evaluate.every=0",
      f"--config.rollout.weights={weights}",
      f"--config.rollout.cache={cache}",
      f"--config.loss.correction={correction}",
  ]
  if name != "same":
    command.append(f"--config.sft.reuse={place('same', seed)}")
  print(*command, flush=True)
  env = os.environ | {"JAX_COMPILATION_CACHE_DIR": str(RUNS / "compiled")}
  subprocess.run(
      command, cwd=ROOT, env=env, check=True, stdout=subprocess.DEVNULL
  )
  lines = metrics.read_jsonl(workdir / "metrics.jsonl")
  steps = [x for x in lines if x["stage"] == "rl"]
  before, *_, after = (x[ACCURACY] for x in lines if x["stage"] == "evaluate")
  return dict(
      name=name,
      seed=seed,
      before=before,
      after=after,
      kl=float(np.mean([x["rollout/sampler_trainer_kl"] for x in steps])),
      gap=max(x["rollout/logp_gap_max"] for x in steps),
  )


def measure(kind: str, seed: int) -> dict:
  """The KL per token of a trained policy's sampler to its trainer."""
  workdir = place("same", seed)
  c = config.unflat(config.load(workdir / "config.json"))
  c.rollout.weights, c.rollout.cache = KINDS[kind]
  silent = display.Display(False)
  run = session.make_run(c, workdir, silent, threading.Event())
  with jax.set_mesh(run.mesh):
    params, _, _ = rl.load(run, "newest")
    maker = experience.Maker(run, "another round")
    weights, gaps = maker.weights(params), []
    for _ in range(ROUNDS):
      rows = maker.generate(weights)
      r = rows.rollouts
      logps_BT, _ = maker.logps(params, maker.layout(r))
      gaps.append((r.logps_BT - logps_BT)[r.mask_BT].astype(np.float64))
  run.log.close()
  silent.close()
  gap = np.concatenate(gaps)
  # Of the same mean as the gap itself, and of less variance: it is >= 0.
  kl = np.expm1(-gap) + gap
  return dict(
      kind=kind,
      seed=seed,
      tokens=len(gap),
      kl=float(kl.mean()),
      mean=float(gap.mean()),
      error=float(gap.std() / len(gap) ** 0.5),
      largest=float(np.abs(gap).max()),
      beyond=float((np.abs(gap) > np.log(2)).mean()),
  )


def over(runs: list[dict], name: str, form: str) -> str:
  """mean (least to most) over seeds."""
  x = [run[name] for run in runs]
  mean = sum(x) / len(x)
  return f"{mean:{form}} ({min(x):{form}} to {max(x):{form}})"


def table(result: dict) -> str:
  """Markdown."""
  seeds = ", ".join(map(str, result["seeds"]))
  out = [
      "# Rollouts with rounded weights, keys and values",
      "",
      "Made by `python -m bench.rollout_weights`; data in"
      f" `rollout_weights.json`. Seeds {seeds}: mean (least to most).",
      "",
      f"## GRPO, {STEPS} steps, sampled with each",
      "",
      "Held-out accuracy, mean of 4 samples of 1,000 prompts, the model's own"
      " weights. KL: `rollout/sampler_trainer_kl`, mean of the steps, nats a"
      " token; gap: the largest `rollout/logp_gap_max`.",
      "",
      "| rollout.weights, cache | before RL | after | KL | gap |",
      "|---|---|---|---|---|",
  ]
  for name in ROWS:
    some = [x for x in result["runs"] if x["name"] == name]
    cells = [
        over(some, "before", ".1%"),
        over(some, "after", ".1%"),
        over(some, "kl", ".1e"),
        f"{max(x['gap'] for x in some):.1e}",
    ]
    out.append(f"| {name} | {' | '.join(cells)} |")
  count = min(x["tokens"] for x in result["policies"])
  out += [
      "",
      "## A trained policy, sampled with each",
      "",
      f"The policy after the runs of `same`, {count:,} tokens or more a seed."
      " KL per token by the estimator that is never negative; beyond: share of"
      " tokens whose probability is off by a factor of 2.",
      "",
      "| rollout.weights, cache | KL | largest gap | beyond |",
      "|---|---|---|---|",
  ]
  for kind in KINDS:
    some = [x for x in result["policies"] if x["kind"] == kind]
    cells = [
        over(some, "kl", ".1e"),
        over(some, "largest", ".1e"),
        over(some, "beyond", ".1e"),
    ]
    out.append(f"| {kind} | {' | '.join(cells)} |")
  return "\n".join([*out, "", *harness.footer(result), ""])


def main() -> None:
  """Runs what is missing, then writes the table."""
  parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
  parser.add_argument("--table", action="store_true")
  if parser.parse_args().table:
    result = json.loads(OUT.read_text())
  else:
    result = dict(
        command="python -m bench.rollout_weights",
        seeds=SEEDS,
        environment=environment.describe(),
        runs=[train(name, seed) for seed in SEEDS for name in ROWS],
        policies=[measure(kind, seed) for seed in SEEDS for kind in KINDS],
    )
    OUT.write_text(json.dumps(result, indent=1) + "\n")
  OUT.with_suffix(".md").write_text(table(result))


if __name__ == "__main__":
  main()
