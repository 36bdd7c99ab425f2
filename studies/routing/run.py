"""The gap between sampler and trainer of a mixture of experts, with replay.

  python -m studies.routing.run            # resumable: one seed after the other
  python -m studies.routing.run --table    # only the table, from JSON

A decoder with experts learns the built-in task by SFT, and then by GRPO from
responses that a sampler with rounded weights drew. All runs start from one SFT
model; a seed decides prompts and sampling. Runs of a seed differ in the weights
of the sampler, and in whether the trainer replays the sampler's choices of
experts. In every step both passes of the trainer are made, with replay and
without, and compared with the sampler. Writes routing.{json,md}.
"""

import dataclasses
import functools
import itertools
import statistics
import time

import jax
import numpy as np

from bench import results
from rl_reason import tasks
from rl_reason.algorithms import (
    advantages,
    credit,
    objective,
    reductions,
    surrogates,
)
from rl_reason.collect import experience, grading
from rl_reason.data import pipelines, tokenizer
from rl_reason.devices.randomness import key
from rl_reason.features.routing_replay import recorded_routes
from rl_reason.lab import ablate
from rl_reason.models import decoder, experts
from rl_reason.rollout import sampler, sampler_weights
from rl_reason.stages import demonstrations, supervised
from rl_reason.training import packing, step
from rl_reason.training.optimizer import first_state, make_optimizer

SEEDS = ablate.fresh_seeds("rl_reason routing replay", 5)
SKILL, HABITS = 900, 60  # steps of SFT
STEPS, BATCH, GROUP, MINIBATCHES = 16, 128, 8, 4
LAST = 4  # steps whose accuracy is the final one
LR = 2e-4  # of RL, as in configs/grpo.py
MAX_PROMPT, MAX_TOKENS = 12, 48
PACKED_ROWS = 16
RUNS = {  # weights of the sampler, replay, steps
    "same": ("same", False, STEPS),
    "bfloat16": ("bfloat16", False, 1),
    "int8": ("int8", False, STEPS),
    "int8, replay": ("int8", True, STEPS),
}
BEYOND = np.log(1.1)  # of the log-probs of a token: 10% of its probability

TASK = tasks.get("arithmetic")
TOK = tokenizer.load("", TASK.ALPHABET)
CFG = decoder.ModelConfig(
    vocab=len(TOK),
    layers=2,
    width=64,
    heads=4,
    kv_heads=2,
    head_dim=16,
    mlp=64,
    experts=8,
    experts_per_token=2,
)
ADAM = dict(b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.0, clip_norm=1.0)
SAMPLING = dict(
    cfg=CFG,
    group_size=GROUP,
    max_tokens=MAX_TOKENS,
    eos=(TOK.eos_token_id,),
    pad=TOK.pad_token_id,
    record=recorded_routes.record,
)


def optimizer(lr: float, schedule: str, total: int):
  """AdamW, as the configs have it."""
  return make_optimizer(lr=lr, schedule=schedule, warmup=0, total=total, **ADAM)


@functools.cache
def sft_program(steps: int, lr: float):
  """jit: a step of SFT."""
  tx = optimizer(lr, "cosine", steps)
  cfg = dataclasses.replace(CFG, router_aux=1e-3)
  update = functools.partial(supervised.sft_update, cfg=cfg, tx=tx)
  return tx, jax.jit(update)


@functools.cache
def rl_program():
  """jit: the update of RL."""
  tx = optimizer(LR, "constant", STEPS * MINIBATCHES)
  loss = objective.Objective(surrogates.ppo, reductions.token_mean)
  update = functools.partial(
      step.rl_update, cfg=CFG, tx=tx, temperature=1.0, objective=loss
  )
  return tx, jax.jit(update)


@jax.jit
def credited(inputs):
  """Rewards of +1 and -1, advantages relative to the group."""
  return credit.rewards_and_advantages(
      inputs,
      reward=functools.partial(credit.outcome, max_tokens=MAX_TOKENS),
      assign=functools.partial(credit.assign, advantage=advantages.group_norm),
  )


@step.map_micro_batches
def passes(params, packed):
  """Log-probs and agreement [B, T], without and with replay."""
  out = []
  for rows in packed.replace(record=None), packed:
    logps_BT, _, routing = decoder.packed_logps(params, CFG, rows)
    agree_X = experts.agreement(routing, experts.by_layer(packed.record, CFG))
    out.append((logps_BT, agree_X[packed.source_BT]))
  return out


@functools.cache
def learned():
  """The policy after both phases of SFT."""
  seed = SEEDS[0]
  rows = pipelines.RowSource(TASK, "arithmetic", (2, 3, 4, 5, 6), seed)
  params = decoder.init(CFG, key(None, seed, "parameters"))
  phases = (
      ("skill", dict(careful=1), SKILL, 4e-3),
      (
          "habits",
          dict(careful=2, leap=2, direct=3, ramble=1, sloppy=2),
          HABITS,
          3e-4,
      ),
  )
  for purpose, styles, steps, lr in phases:
    tx, update = sft_program(steps, lr)
    state = first_state(params, tx)
    batches = demonstrations.batches(rows, purpose, 64, styles)
    for pairs in itertools.islice(batches, steps):
      tokens_BL, start_B, mask_BT = demonstrations.pack(
          TOK, pairs, MAX_PROMPT, MAX_TOKENS
      )
      packed = packing.pack(tokens_BL, start_B, mask_BT, PACKED_ROWS)
      state, _ = update(state, packed, mask_BT)
    params = state.params
  return params


def trained(seed: int, rows: pipelines.RowSource, params, kind, replay, steps):
  """Metrics of each step of RL."""
  tx, update = rl_program()
  state = first_state(params, tx)
  _, prompt_stream = rows.prompts("rollout prompts")
  make = functools.partial(sampler_weights.make, cfg=CFG, weights=kind)
  make = jax.jit(make)
  out = []
  for _ in range(steps):
    drawn = [next(prompt_stream)[0] for _ in range(BATCH // GROUP)]
    ids, problems = zip(*drawn, strict=True)
    texts = [row.prompt for row in problems]
    prompts = pipelines.pack_prompts(TOK, texts, ids, MAX_PROMPT)
    noise = key(None, seed, "rollout")
    rollouts = jax.device_get(
        sampler.sample(make(state.params), prompts, noise, **SAMPLING)
    )
    _, correct_B, _ = grading.start_grading(TASK, TOK, rollouts, problems)()
    plan = packing.plan(
        rollouts, packed_rows=PACKED_ROWS, minibatches=MINIBATCHES
    )
    compared = step.forward(None, passes, state.params, plan)
    found = dict(accuracy=float(correct_B.mean()))
    for name, (logps_BT, agree_BT) in zip(
        ("own", "replay"), compared, strict=True
    ):
      found |= {
          f"{name}_{x}": v for x, v in gap(rollouts, logps_BT, agree_BT).items()
      }
    graded = experience.graded(rollouts, correct_B)
    graded = experience.with_old_logps(graded, compared[replay][0])
    batch = step.train_batch(
        graded, jax.device_get(credited(experience.credit_inputs(graded)))
    )
    if not replay:
      packed_M = plan.packed_M.replace(record=None)
      plan = plan._replace(packed_M=packed_M)
    coefs = dict(kl=np.float32(0), entropy=np.float32(0))
    data = step.minibatches(None, batch, plan)
    state, metrics = update(state, *data, coefs)
    found["grad_norm"] = float(metrics["grad_norm"])
    found["entropy"] = float(metrics["entropy"])
    out.append(found)
  return out


def gap(rollouts, logps_BT, agree_BT) -> dict[str, float]:
  """How far the trainer is from the sampler, over the response tokens."""
  mask_BT = rollouts.mask_BT
  ratio = (logps_BT - rollouts.logps_BT)[mask_BT].astype(np.float64)
  return dict(
      agreement=float(agree_BT[mask_BT].mean()),
      mean=float(np.abs(ratio).mean()),
      max=float(np.abs(ratio).max()),
      beyond=float((np.abs(ratio) > BEYOND).mean()),
      kl=float(np.mean(np.expm1(ratio) - ratio)),
  )


def seed_runs(seed: int, out: dict[str, list[dict[str, float]]]) -> None:
  """Adds the runs of a seed that are missing."""
  for name, how in RUNS.items():
    if name in out:
      continue
    rows = pipelines.RowSource(TASK, "arithmetic", (2, 3, 4, 5, 6), seed)
    params = learned()
    start = time.monotonic()
    out[name] = trained(seed, rows, params, *how)
    accuracy = [x["accuracy"] for x in out[name]]
    print(
        f"seed {seed}, {name}: accuracy {accuracy[0]:.1%} to"
        f" {statistics.mean(accuracy[-LAST:]):.1%},"
        f" {time.monotonic() - start:.0f} s",
        flush=True,
    )


def page(result: dict) -> list[str]:
  """routing.md."""
  runs = result["runs"]
  seeds = list(runs)

  def of_steps(name, metric, reduce=statistics.mean, steps=slice(None)):
    return [reduce([x[metric] for x in runs[s][name][steps]]) for s in seeds]

  about = (
      "Do sampler and trainer choose the same experts, and does replaying the"
      " sampler's choice help? Data in `routing.json`."
      f" {CFG.layers} layers, {CFG.experts} experts of which a token uses"
      f" {CFG.experts_per_token}; {STEPS} steps of GRPO (bfloat16: the"
      f" first of them), {BATCH} responses each. Seeds"
      f" {', '.join(seeds)}: mean (minimum to maximum)."
  )
  lines = [
      "## Log-probs of the sampler against those of the trainer",
      "",
      "The trainer computes in float32, the sampler with the weights of the"
      " first column. Agreement: share of the sampler's experts that the"
      " trainer's routers choose, too. Gap: |log-prob of the trainer - of the"
      " sampler|, mean over the tokens, and the largest. Beyond: tokens whose"
      " probability differs by more than 10%. KL by the non-negative"
      " estimator, nats per token. Rows of the same weights are the same"
      " responses, of the run without replay.",
      "",
      "| rollout.weights | trainer | agreement | mean gap | largest gap |"
      " beyond | KL |",
      "|---|---|---|---|---|---|---|",
  ]
  words = []
  for name in RUNS:
    if RUNS[name][1]:
      continue
    for which, text in ("own", "own routing"), ("replay", "replay"):
      cells = [
          results.spread(of_steps(name, f"{which}_agreement"), ".2%"),
          results.spread(of_steps(name, f"{which}_mean"), ".1e"),
          results.spread(of_steps(name, f"{which}_max", max), ".2g"),
          results.spread(of_steps(name, f"{which}_beyond"), ".2%"),
          results.spread(of_steps(name, f"{which}_kl"), ".1e"),
      ]
      lines.append(results.row(name, text, *cells))
  lines += [
      "",
      "## Training",
      "",
      f"Accuracy of the sampled responses, in the first step and in the last"
      f" {LAST}; the largest norm of a gradient (before clipping at 1); entropy"
      " in the last steps.",
      "",
      "| rollout.weights | accuracy, first | last | largest gradient | entropy"
      " |",
      "|---|---|---|---|---|",
  ]
  last = slice(-LAST, None)
  for name in RUNS:
    if RUNS[name][-1] < STEPS:
      continue
    cells = [
        results.spread(of_steps(name, "accuracy", steps=slice(1)), ".1%"),
        results.spread(of_steps(name, "accuracy", steps=last), ".1%"),
        results.spread(of_steps(name, "grad_norm", max), ".2f"),
        results.spread(of_steps(name, "entropy", steps=last), ".3f"),
    ]
    lines.append(results.row(name, *cells))
    words.append(f"{cells[1]} ({name})")
  kl = [
      statistics.mean(of_steps("int8", f"{which}_kl"))
      for which in ("own", "replay")
  ]
  return results.document(
      "Routing of a mixture of experts, in the sampler and in the trainer",
      "With int8 weights replay changes the KL of sampler and trainer from"
      f" {kl[0]:.1e} to {kl[1]:.1e} nats per token; the accuracy at the end is"
      f" {results.joined(words)}.",
      about,
      lines,
      made="Made by `python -m studies.routing.run`.",
      versions=results.footer(result),
  )


def measure(_) -> dict:
  """Runs the seeds that are missing, each of which is kept at once."""
  result = results.read("routing") or dict(runs={})
  for seed in SEEDS:
    seed_runs(seed, result["runs"].setdefault(str(seed), {}))
    result["environment"] = results.environment()
    results.write_data("routing", result)
  return result


if __name__ == "__main__":
  results.main(__doc__, "routing", measure, page)
