"""rl_reason as a worker of the benchmarks.

A function of `TASKS` takes a job and returns a step: each call does the work
once, waits for it, and returns what it measured.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from bench import harness, worker
from rl_reason import hf
from rl_reason.algorithms import advantages, objective, reductions, surrogates
from rl_reason.base.structs import (
    Batch,
    Packed,
    Prompts,
    Rollouts,
    TrainState,
    Tree,
)
from rl_reason.devices import device_mesh, sharding
from rl_reason.models import attention, decoder
from rl_reason.rollout import sampler as rollout_lib, sampler_weights
from rl_reason.training import (
    optimizer,
    packing,
    shared_prompts,
    step as step_lib,
)

Step = Callable[[], dict]


def shape(job: dict) -> decoder.ModelConfig:
  """Returns the static shape of the job's model."""
  return dataclasses.replace(
      hf.find(job["weights"]).cfg,
      dtype=job["dtype"],
      remat=job["options"].get("remat", "dots"),
      attention=job["options"].get("attention", "xla"),
  )


def load(job: dict):
  """Returns shape and parameters of the job's model."""
  cfg, source = shape(job), hf.find(job["weights"])
  return cfg, hf.load(source, decoder.table(cfg), mesh())


def mesh() -> jax.sharding.Mesh:
  """Returns a mesh of one device."""
  return device_mesh.make_mesh(
      data=1, fsdp=1, tensor=1, devices=jax.devices()[:1]
  )


def policy_weights(cfg: decoder.ModelConfig) -> Callable[[Tree], Tree]:
  """Returns fp32 parameters -> the sampler's weights, as in a run."""
  if cfg.dtype == "float32":
    return lambda params: params
  make = functools.partial(sampler_weights.make, cfg=cfg, weights="same")
  return jax.jit(make)


def sampler(job: dict, cfg: decoder.ModelConfig) -> Callable:
  """Returns (params, key) -> Rollouts; each row ends at its length limit."""
  tokens_NP = np.array(job["prompts"], np.int32)[:: job["group"]]
  prompts = Prompts(
      tokens_NP=jnp.array(tokens_NP),
      start_N=jnp.zeros(len(tokens_NP), jnp.int32),
      ids_N=jnp.arange(len(tokens_NP)),
  )

  def sample(params, key) -> Rollouts:
    return rollout_lib.sample(
        params,
        prompts,
        key,
        limits_B=jnp.array(job["limits"]),
        cfg=cfg,
        group_size=job["group"],
        max_tokens=job["response"],
        eos=-1,  # no token has this id
        pad=harness.PAD,
        slots=job["options"].get("slots", 0),
    )

  return sample


def rollout(job: dict) -> Step:
  """Samples all rows of the job."""
  cfg, params = load(job)
  sample = sampler(job, cfg)
  params = policy_weights(cfg)(params)

  def step() -> dict:
    rollouts = sharding.fetch(sample(params, jax.random.key(0)))
    return dict(tokens=int(rollouts.lengths_B.sum()))

  return step


def trainer(job: dict, cfg: decoder.ModelConfig, params, on_policy=False):
  """Returns the state of GRPO and jit: (state, batch, packed) -> new state."""
  tx = optimizer.make_optimizer(
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
  where = optimizer.state_shardings(decoder.table(cfg), tx, mesh())
  terms = objective.Objective(
      surrogate=surrogates.ppo,
      reduction=reductions.seq_mean_token_mean,
      on_policy=on_policy,
  )
  update = functools.partial(
      step_lib.rl_update,
      coefs=dict(kl=np.float32(0), entropy=np.float32(0)),
      cfg=cfg,
      tx=tx,
      temperature=1.0,
      objective=terms,
  )
  state = optimizer.new_state(params, tx, where)
  return state, jax.jit(update, donate_argnums=0, out_shardings=(where, None))


def pack(job: dict, tokens_BL, mask_BT) -> Packed:
  """Packs one minibatch into micro-batches of `options['micro']` rows.

  With the option `share`, a packed row has the prompt of a group once.
  """
  start_B = np.zeros(len(tokens_BL), np.int32)
  micro, pack = job["options"]["micro"], packing.pack
  if job["options"].get("share"):
    pack = functools.partial(shared_prompts.pack, join=micro)
  packed = pack(tokens_BL, start_B, mask_BT, micro)
  return jax.tree.map(lambda x: x[None], packed)


def batch(job: dict, mask_BT, old_logps_BT, advantages_B) -> Batch:
  """Returns the inputs of the update besides the tokens: [1, B, ...]."""
  zeros_BT = np.zeros(mask_BT.shape, np.float32)
  none_B = np.zeros(len(mask_BT), np.int32)
  rows = Batch(
      groups_B=np.arange(len(mask_BT), dtype=np.int32) // job["group"],
      mask_BT=mask_BT,
      advantages_BT=np.float32(np.array(advantages_B)[:, None] * mask_BT),
      old_logps_BT=old_logps_BT,
      ref_logps_BT=zeros_BT,
      correct_B=np.float32(none_B),
      staleness_B=none_B,
      values_BT=zeros_BT,
      returns_BT=zeros_BT,
  )
  return jax.tree.map(lambda x: x[None], rows)


def update(job: dict) -> Step:
  """Takes one optimizer step on the responses of the job."""
  cfg, params = load(job)
  tokens = job["prompts"], job["responses"]
  tokens_BL = np.concatenate([np.array(x, np.int32) for x in tokens], 1)
  mask_BT = np.arange(job["response"]) < np.array(job["limits"])[:, None]
  packed_M = pack(job, tokens_BL, mask_BT)
  logps_MBT, _ = step_lib.logps_program(cfg, 1.0)(params, packed_M)
  (old_BT,) = np.array(logps_MBT)
  rows = batch(job, mask_BT, old_BT, job["advantages"])
  state, learn = trainer(job, cfg, params)
  states: list[TrainState] = [state]  # an update donates its state
  del params, state

  def step() -> dict:
    new, metrics = learn(states.pop(), rows, packed_M)
    states.append(jax.block_until_ready(new))
    return dict(grad_norm=float(metrics["grad_norm"]))

  return step


def rl_step(job: dict) -> Step:
  """Samples, computes advantages, updates once: one on-policy step of RL."""
  cfg, params = load(job)
  sample, weights = sampler(job, cfg), policy_weights(cfg)
  state, learn = trainer(job, cfg, params, on_policy=True)
  states: list[TrainState] = [state]  # an update donates its state
  del params, state

  def step() -> dict:
    state = states.pop()
    key = jax.random.fold_in(jax.random.key(0), state.step)
    r = sharding.fetch(sample(weights(state.params), key))
    packed_M = pack(job, r.tokens_BL, r.mask_BT)
    rewards_B = np.arange(len(r.lengths_B), dtype=np.float32)
    advantages_B = advantages.group_norm(rewards_B, r.ids_B)
    rows = batch(job, r.mask_BT, r.logps_BT, advantages_B)
    new, metrics = learn(state, rows, packed_M)
    states.append(jax.block_until_ready(new))
    tokens = int(r.lengths_B.sum())
    return dict(tokens=tokens, grad_norm=float(metrics["grad_norm"]))

  return step


def products(job: dict) -> Step:
  """Times the parts of an update one by one (see `products.PRODUCTS`)."""
  rng = np.random.default_rng(0)

  def normal(*shape):
    return jnp.asarray(rng.normal(size=shape), jnp.float32)

  def part(fn, *args) -> Callable[[], float]:
    fn = jax.jit(fn).lower(*args).compile()
    return lambda: worker.fastest(lambda: jax.block_until_ready(fn(*args)))

  parts = {}
  for name, (transposed, (m, k, n)) in job["products"].items():
    a = normal(k, m) if transposed else normal(m, k)
    how = (((0 if transposed else 1,), (0,)), ((), ()))
    product = functools.partial(jax.lax.dot_general, dimension_numbers=how)
    parts[name] = part(product, a, normal(k, n))

  x = job["attention"]
  rows = x["rows"], x["length"], x["kv"]
  q, k, v = normal(*rows, x["group"], x["dim"]), *normal(2, *rows, x["dim"])
  ones = jnp.ones(rows[:2], jnp.int32)

  def ours(segments, q, k, v):
    return attention.packed(segments)("xla", 0, q, k, v, None)[0]

  def softmax(segments, q, k, v):
    scores = jnp.einsum("BLKQC,BSKC->BKQLS", q * x["dim"] ** -0.5, k)
    at = jnp.arange(segments.shape[1])
    same = segments[:, :, None] == segments[:, None]
    visible = same & (at[:, None] >= at)
    scores = jnp.where(visible[:, None, None], scores, -1e30)
    return jnp.einsum("BKQLS,BSKC->BLKQC", jax.nn.softmax(scores, -1), v)

  for name, fn in (("attention", ours), ("attention, full softmax", softmax)):

    def total(segments, q, k, v, fn=fn):
      return jnp.sum(fn(segments, q, k, v) * q)

    parts[name] = part(jax.grad(total, (1, 2, 3)), ones, q, k, v)
  return lambda: dict(parts={name: run() for name, run in parts.items()})


TASKS = dict(rollout=rollout, update=update, rl_step=rl_step, products=products)


def serve(turns: worker.Turns) -> None:
  """Takes turns with the task of the job."""
  worker.repeat(turns, TASKS[turns.job["task"]](turns.job))


if __name__ == "__main__":
  worker.serve(dict.fromkeys(TASKS, serve))
