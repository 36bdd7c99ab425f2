"""A tiny model and its arguments, shared by tests."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from padded import Rows

from rl_reason import tasks
from rl_reason.data import pipelines, tokenizer
from rl_reason.devices import sharding
from rl_reason.models import decoder
from rl_reason.rollout import sampler
from rl_reason.training import optimizer as optimizer_lib

TASK = tasks.get("arithmetic")
TOK = tokenizer.load("", TASK.ALPHABET)
CFG = decoder.ModelConfig(
    vocab=len(TOK),
    layers=2,
    width=32,
    heads=4,
    kv_heads=2,
    head_dim=8,
    mlp=64,
    logprob_chunk=16,
)
P, T = 12, 24
SAMPLER = dict(cfg=CFG, eos=TOK.eos_token_id, pad=TOK.pad_token_id)


@functools.cache
def _params(seed):
  return jax.device_get(decoder.init(CFG, jax.random.key(seed)))


def params(seed=0):
  """Made anew each time: on the devices of the current mesh."""
  return jax.tree.map(jnp.asarray, _params(seed))


def prompts(count, seed=0):
  rows = pipelines.Problems(TASK, (2, 3, 4, 5, 6), seed)
  texts = [rows[i][1].prompt for i in range(count)]
  return pipelines.pack_prompts(TOK, texts, range(count), P)


def optimizer(**change):
  """AdamW without decay or clip, at a constant rate; with changes."""
  usual = dict(lr=1e-2, schedule="constant", warmup=0, total=1)
  adam = dict(b1=0.9, b2=0.95, eps=1e-8, weight_decay=0.0, clip_norm=0.0)
  return optimizer_lib.make_optimizer(**usual | adam | change)


def engine(**change) -> sampler.Sampler:
  return sampler.Sampler(**SAMPLER | dict(max_tokens=256) | change)


def started(mesh, count, **change):
  """Queue and slots of a rollout that has just started."""
  rows, weights = prompts(count), params()
  if mesh is not None:
    rows = sharding.put(mesh, rows, "batch")
    weights = sharding.put(mesh, weights)
  start = sampler.program(engine(**change), "start", None)
  return start(weights, rows, jax.random.key(0), 1.0, None, T, 0.0)


def batch(minibatches, rows, seed=0, group=4) -> Rows:
  """Random rows with the shapes of a real RL step, [M, B, ...]."""
  rng = np.random.default_rng(seed)
  total = minibatches * rows
  start_B = rng.integers(0, 6, total).astype(np.int32)
  lengths_B = rng.integers(1, T + 1, total)
  mask_BT = np.arange(T) < lengths_B[:, None]
  flat = Rows(
      tokens_BL=rng.integers(2, CFG.vocab, (total, P + T)).astype(np.int32),
      start_B=start_B,
      groups_B=np.arange(total, dtype=np.int32) // group,
      mask_BT=mask_BT,
      advantages_BT=(rng.normal(size=(total, 1)) * mask_BT).astype(np.float32),
      old_logps_BT=rng.normal(-2.9, 0.2, (total, T)).astype(np.float32),
      ref_logps_BT=rng.normal(-2.9, 0.2, (total, T)).astype(np.float32),
      correct_B=rng.integers(0, 2, total).astype(np.float32),
      staleness_B=np.zeros(total, np.int32),
      values_BT=rng.normal(size=(total, T)).astype(np.float32),
      returns_BT=rng.normal(size=(total, T)).astype(np.float32),
  )
  return jax.tree.map(
      lambda x: x.reshape(minibatches, rows, *x.shape[1:]), flat
  )


def sampled(mesh, **options):
  """Responses to 16 prompts, four each, on a mesh."""
  with jax.set_mesh(mesh):
    return sampler.sample(
        sharding.put(mesh, params()),
        sharding.put(mesh, prompts(16), "batch"),
        jax.random.key(0),
        group_size=4,
        max_tokens=T,
        **options,
        **SAMPLER,
    )
