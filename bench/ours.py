"""rl_reason as a worker: all that bench knows of our interfaces is here.

A maker takes a job and returns a step: a call does the work once, waits for
it, and returns facts.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from bench import harness, worker
from rl_reason import (
    advantages,
    hf,
    model,
    objective,
    rollout as rollout_lib,
    sharding,
    step as step_lib,
    surrogates,
    weights,
)
from rl_reason.structs import Batch, Prompts, Rollouts, TrainState

Step = Callable[[], dict]


def shape(job: dict) -> model.ModelConfig:
  """The static shape of the job's model."""
  return dataclasses.replace(
      hf.find(job["weights"]).cfg,
      dtype=job["dtype"],
      remat=job["options"].get("remat", "none"),
  )


def load(job: dict):
  """Shape and parameters of the job's directory."""
  cfg, source = shape(job), hf.find(job["weights"])
  return cfg, hf.load(source, model.table(cfg), mesh())


def mesh() -> jax.sharding.Mesh:
  """One device."""
  return sharding.make_mesh(data=1, fsdp=1, tensor=1, devices=jax.devices()[:1])


def sampler(job: dict, cfg: model.ModelConfig) -> Callable:
  """(params, key) -> the parts of a round, all under way.

  Rows decode together until the last of a part ends. The sampler takes no
  limits by row, so a part runs to its longest limit, which costs the same.
  """
  prompts = np.array(job["prompts"], np.int32)[:: job["group"]]
  group, size = job["group"], job["options"]["batch"] // job["group"]
  calls = []
  for at in worker.batches(list(range(len(prompts))), size):
    limits = job["limits"][at[0] * group : (at[-1] + 1) * group]
    part = Prompts(
        tokens_NP=jnp.array(prompts[at]),
        start_N=jnp.zeros(len(at), jnp.int32),
        ids_N=jnp.array(at, jnp.int32),
    )
    call = functools.partial(
        rollout_lib.sample,
        cfg=cfg,
        group_size=group,
        max_tokens=max(limits),
        eos=-1,  # a token that never comes
        pad=harness.PAD,
    )
    calls.append((call, part))
  return lambda params, key: [call(params, x, key) for call, x in calls]


def rollout(job: dict) -> Step:
  """Sampling alone; of a row that a limit ends, what is behind it is waste."""
  cfg, params = load(job)
  sample = sampler(job, cfg)
  limits_B = np.array(job["limits"])

  def step() -> dict:
    parts: list[Rollouts] = sharding.fetch(sample(params, jax.random.key(0)))
    lengths_B = np.concatenate([x.lengths_B for x in parts])
    return dict(tokens=int(np.minimum(lengths_B, limits_B).sum()))

  return step


def trainer(job: dict, cfg: model.ModelConfig, params):
  """The state, and jit: (state, batch [1, A, B]) -> (state, metrics): GRPO."""
  tx = step_lib.make_optimizer(
      lr=job["lr"],
      schedule="constant",
      warmup=0,
      total=1,
      b1=0.9,
      b2=0.999,
      eps=1e-8,
      weight_decay=0.0,
      clip_norm=1.0,
  )
  where = step_lib.state_shardings(model.table(cfg), tx, mesh())
  terms = objective.Objective(
      surrogate=surrogates.ppo,
      reduction=weights.seq_mean_token_mean,
  )
  update = functools.partial(
      step_lib.rl_update,
      coefs=dict(kl=np.float32(0), entropy=np.float32(0)),
      cfg=cfg,
      tx=tx,
      temperature=1.0,
      objective=terms,
  )
  state = step_lib.new_state(params, tx, where)
  return state, jax.jit(update, donate_argnums=0, out_shardings=(where, None))


def scorer(job: dict, cfg: model.ModelConfig) -> Callable:
  """jit: (params, tokens [A, B, L], start [A, B]) -> log-probs [A, B, T]."""

  def logps(params, tokens_ABL, start_AB):
    def one(rows):
      return model.response_logps(params, cfg, *rows, job["response"])[0]

    return jax.lax.map(one, (tokens_ABL, start_AB))

  return jax.jit(logps)


def batch(job: dict, tokens_BL, mask_BT, old_logps_BT, advantages_B) -> Batch:
  """What the update reads, cut into its micro-batches: [1, A, B, ...]."""
  rows = len(tokens_BL)
  zeros_BT = np.zeros(mask_BT.shape, np.float32)
  whole = Batch(
      tokens_BL=np.asarray(tokens_BL, np.int32),
      start_B=np.zeros(rows, np.int32),
      groups_B=np.arange(rows, dtype=np.int32) // job["group"],
      mask_BT=mask_BT,
      advantages_BT=np.float32(np.reshape(advantages_B, (-1, 1)) * mask_BT),
      old_logps_BT=old_logps_BT,
      ref_logps_BT=zeros_BT,
      right_B=np.zeros(rows, np.float32),
      age_B=np.zeros(rows, np.int32),
      values_BT=zeros_BT,
      returns_BT=zeros_BT,
  )
  return step_lib.split(whole, 1, rows // job["options"]["micro"])


def update(job: dict) -> Step:
  """One optimizer step on given responses."""
  cfg, params = load(job)
  prompts, responses = np.array(job["prompts"]), np.array(job["responses"])
  tokens_BL = np.concatenate([prompts, responses], 1)
  mask_BT = np.arange(job["response"]) < np.array(job["limits"])[:, None]
  micro = len(prompts) // job["options"]["micro"]
  cut = step_lib.split(
      (np.int32(tokens_BL), np.zeros(len(prompts), np.int32)), micro
  )
  old = scorer(job, cfg)(params, *cut)
  rows = batch(
      job,
      tokens_BL,
      mask_BT,
      np.asarray(old).reshape(mask_BT.shape),
      np.array(job["advantages"]),
  )
  state, learn = trainer(job, cfg, params)
  held: list[TrainState] = [state]
  del params, state

  def step() -> dict:
    new, metrics = learn(held.pop(), rows)
    held.append(jax.block_until_ready(new))
    return dict(grad_norm=float(metrics["grad_norm"]))

  return step


def rl_step(job: dict) -> Step:
  """Sample, score the log-probs, credit, update: as stages/rl.py, one round."""
  cfg, params = load(job)
  sample, logps = sampler(job, cfg), scorer(job, cfg)
  state, learn = trainer(job, cfg, params)
  held: list[TrainState] = [state]
  del params, state
  micro = len(job["prompts"]) // job["options"]["micro"]

  def step() -> dict:
    state = held.pop()
    key = jax.random.fold_in(jax.random.key(0), state.step)
    parts = sharding.fetch(sample(state.params, key))
    r: Rollouts = jax.tree.map(lambda *x: np.concatenate(x), *parts)
    cut = step_lib.split((r.tokens_BL, r.start_B), micro)
    old_BT = np.asarray(logps(state.params, *cut)).reshape(r.mask_BT.shape)
    rewards_B = np.arange(len(r.lengths_B), dtype=np.float32)
    advantages_B = advantages.group_norm(rewards_B, r.ids_B)
    rows = batch(job, r.tokens_BL, r.mask_BT, old_BT, advantages_B)
    new, metrics = learn(state, rows)
    held.append(jax.block_until_ready(new))
    tokens = int(r.lengths_B.sum())
    return dict(tokens=tokens, grad_norm=float(metrics["grad_norm"]))

  return step


TASKS = dict(rollout=rollout, update=update, rl_step=rl_step)


def serve(turns: worker.Turns) -> None:
  """Takes turns with what the job names."""
  worker.repeat(turns, TASKS[turns.job["task"]](turns.job))


if __name__ == "__main__":
  worker.serve(dict.fromkeys(TASKS, serve))
