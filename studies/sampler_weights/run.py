"""The mismatch of sampler and trainer with rounded weights, keys and values.

  python -m studies.sampler_weights.run            # 21 short runs; resumable
  python -m studies.sampler_weights.run --table    # only the table, from JSON

Short runs of GRPO on fresh seeds. The runs of a seed start from one SFT model
and differ only in the precision of the sampler's weights and KV cache. Then the
trained policy of the unrounded run is sampled in each precision. Writes
sampler_weights.{json,md}.
"""

import pathlib
import threading

import jax
import numpy as np

from bench import results, runs
from rl_reason.base import config
from rl_reason.devices import device_mesh
from rl_reason.lab import ablate
from rl_reason.monitoring import display, run_log
from rl_reason.stages import build_step, collectors, scorer, trained_parameters
from rl_reason.stages.session import Session

NAME = "sampler_weights"
RUNS = results.RUNS / NAME

SEEDS = ablate.fresh_seeds("rl_reason", 3)
STEPS = 20
ROUNDS = 10  # rounds of generation that measure the trained policy
PRECISIONS = {  # rollout.weights, rollout.cache
    "same": ("same", "same"),
    "bfloat16 weights": ("bfloat16", "same"),
    "int8 weights": ("int8", "same"),
    "int8 cache": ("same", "int8"),
    "int8 both": ("int8", "int8"),
}
ROWS = {  # key of PRECISIONS, importance-sampling correction
    **{name: (name, "none") for name in PRECISIONS},
    "int8 weights, truncated": ("int8 weights", "truncate"),
    "int8 both, truncated": ("int8 both", "truncate"),
}
ACCURACY = "val-core/arithmetic/acc/mean@4"


def workdir(name: str, seed: int) -> pathlib.Path:
  """Returns the work directory of a run."""
  return RUNS / f"{name.replace(',', '').replace(' ', '-')}-{seed}"


def train(name: str, seed: int) -> dict:
  """Trains a row; returns accuracies and the mismatch during training."""
  precision, correction = ROWS[name]
  weights, cache = PRECISIONS[precision]
  fields = {
      "seed": seed,
      "rl.steps": STEPS,
      "evaluate.every": 0,
      "rollout.weights": weights,
      "rollout.cache": cache,
      "correction.name": correction,
  }
  if name != "same":
    fields["sft.reuse"] = str(workdir("same", seed))
  one = runs.run("configs/grpo.py", workdir(name, seed), fields)
  runs.make([one], JAX_COMPILATION_CACHE_DIR=str(RUNS / "compiled"))
  lines = run_log.read_metrics(workdir(name, seed))
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


def measure(precision: str, seed: int) -> dict:
  """Returns the KL per token from a trained policy's sampler to its trainer."""
  folder = workdir("same", seed)
  c = config.unflat(config.load(folder / "config.json"))
  c.rollout.weights, c.rollout.cache = PRECISIONS[precision]
  silent = display.Display(False)
  mesh, _ = device_mesh.make_meshes(**c.mesh)
  session = Session(c, folder, mesh, mesh, silent, threading.Event())
  model, output, engine = session.model, session.output, session.engine
  with jax.set_mesh(mesh):
    params, _, _ = trained_parameters.rl(
        c, "newest", model=model, output=output
    )
    logps = build_step.logps(c, model.cfg, mesh, silent)
    plan = build_step.planner(c, mesh)
    collector = collectors.collector(
        c,
        session,
        "another round",
        engine=engine,
        rewards=scorer.rewards(c, session, mesh),
    )
    weights = engine.weights(params, c.rollout.weights)
    gaps = []
    for _ in range(ROUNDS):
      r = collector.collect(weights).rollouts
      logps_BT, *_ = logps(params, plan(r))
      gaps.append((r.logps_BT - logps_BT)[r.mask_BT].astype(np.float64))
  output.log.close()
  silent.close()
  gap = np.concatenate(gaps)
  # Unbiased, of lower variance than the mean gap, and never negative.
  kl = np.expm1(-gap) + gap
  return dict(
      kind=precision,
      seed=seed,
      tokens=len(gap),
      kl=float(kl.mean()),
      mean=float(gap.mean()),
      error=float(gap.std() / len(gap) ** 0.5),
      largest=float(np.abs(gap).max()),
      beyond=float((np.abs(gap) > np.log(2)).mean()),
  )


def page(result: dict) -> list[str]:
  """Returns the tables in Markdown."""
  numbers = ", ".join(map(str, result["seeds"]))

  def over_seeds(found, name, form):
    return results.spread([x[name] for x in found], form)

  about = (
      "Does training suffer if the sampler rounds? Data in"
      f" `sampler_weights.json`. Seeds {numbers}: mean (minimum to maximum)."
  )
  out = [
      f"## GRPO, {STEPS} steps, rollouts in each precision",
      "",
      "Held-out accuracy, mean of 4 samples of 1,000 prompts, evaluated without"
      " rounding. KL: `rollout/sampler_trainer_kl`, mean over the steps, in"
      " nats per token; gap: the largest `rollout/logp_gap_max`.",
      "",
      "| rollout.weights, cache | before RL | after | KL | gap |",
      "|---|---|---|---|---|",
  ]
  words = []
  for name in ROWS:
    found = [x for x in result["runs"] if x["name"] == name]
    cells = [
        over_seeds(found, "before", ".1%"),
        over_seeds(found, "after", ".1%"),
        over_seeds(found, "kl", ".1e"),
        f"{max(x['gap'] for x in found):.1e}",
    ]
    out.append(results.row(name, *cells))
    words.append(f"{cells[1]} with {name}")
  count = min(x["tokens"] for x in result["policies"])
  out += [
      "",
      "## A trained policy, sampled in each precision",
      "",
      f"The policy after the runs of `same`, at least {count:,} tokens per"
      " seed. KL per token by the non-negative estimator; beyond: fraction of"
      " tokens whose probability is off by more than a factor of 2.",
      "",
      "| rollout.weights, cache | KL | largest gap | beyond |",
      "|---|---|---|---|",
  ]
  for precision in PRECISIONS:
    found = [x for x in result["policies"] if x["kind"] == precision]
    cells = [
        over_seeds(found, "kl", ".1e"),
        over_seeds(found, "largest", ".1e"),
        over_seeds(found, "beyond", ".1e"),
    ]
    out.append(results.row(precision, *cells))
  return results.document(
      "Rollouts with rounded weights, keys and values",
      f"After {STEPS} steps the accuracy is {results.joined(words)}.",
      about,
      out,
      made="Made by `python -m studies.sampler_weights.run`.",
      versions=results.footer(result),
  )


def measure_all(_) -> dict:
  """Runs what is missing, and returns all numbers of the page."""
  load = results.load()
  found = [train(name, seed) for seed in SEEDS for name in ROWS]
  policies = [measure(name, seed) for seed in SEEDS for name in PRECISIONS]
  return dict(
      command="python -m studies.sampler_weights.run",
      environment=results.environment(load),
      seeds=SEEDS,
      runs=found,
      policies=policies,
  )


if __name__ == "__main__":
  results.main(__doc__, NAME, measure_all, page)
