"""A tiny model, rows on every branch of the loss, and gradients by NumPy.

`reference` computes the loss in float64 without JAX; central differences of it
are the gradient that an update has to apply.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import reference_model

from rl_reason.algorithms import loss_terms, objective, reductions, surrogates
from rl_reason.base.structs import TrainState
from rl_reason.models import (
    attention,
    critic,
    decoder,
    packed_attention,
    parameters,
    rope,
    squared_probabilities,
)
from rl_reason.training import optimizer as optimizer_lib, step

CFG = decoder.ModelConfig(
    vocab=11,
    layers=2,
    width=8,
    heads=4,
    kv_heads=2,
    head_dim=4,
    mlp=12,
    rope_theta=100.0,
    qkv_bias=True,
    qk_norm=True,
    tied=False,
    logprob_chunk=3,  # 5 response tokens: two chunks, the second padded
)
# For what does not depend on the model: less to compile.
SMALL = dataclasses.replace(CFG, qkv_bias=False, qk_norm=False, tied=True)
P, T = 4, 5  # slots of a prompt and of a response
RL = dict(
    temperature=0.8,
    surrogate=functools.partial(
        surrogates.ppo, clip_low=0.2, clip_high=0.28, dual_clip=3.0
    ),
    reduction=reductions.prompt_token_mean,
    kl="k3",
)
COEFS = dict(kl=0.3, entropy=0.0)


def cheap_options():
  """Compiling is most of the time that these tests take."""
  found = {}
  for option in (
      {"xla_backend_optimization_level": 0},
      {"xla_cpu_use_fusion_emitters": False},  # not in every jaxlib
  ):
    try:
      jax.jit(lambda: 0).lower().compile(option)
    except jax.errors.JaxRuntimeError:
      continue
    found |= option
  return found


OPTIONS = cheap_options()
quick_jit = functools.partial(jax.jit, compiler_options=OPTIONS)


class Wide:
  """jax.numpy whose float32 is float64.

  The library computes norms, softmax and log-probs in float32 by name. With
  that name widened, rounding (1e-7) no longer hides an error in a formula.
  """

  float32 = jnp.float64

  def __getattr__(self, name):
    return getattr(jnp, name)


@pytest.fixture
def wide(monkeypatch):
  monkeypatch.setattr(attention, "jnp", Wide())
  monkeypatch.setattr(packed_attention, "jnp", Wide())
  monkeypatch.setattr(decoder, "jnp", Wide())
  monkeypatch.setattr(squared_probabilities, "jnp", Wide())
  monkeypatch.setattr(step, "jnp", Wide())
  monkeypatch.setattr(critic, "jnp", Wide())
  monkeypatch.setattr(rope, "jnp", Wide())
  with jax.enable_x64(True):
    yield dataclasses.replace(CFG, dtype="float64")


def random_leaves(cfg, seed=0):
  """Parameters that are not special: norms off 1, biases off 0. Flat tree."""
  rng = np.random.default_rng(seed)
  shapes = jax.tree.map(
      lambda row: np.zeros(row.shape),
      decoder.table(cfg),
      is_leaf=parameters.is_param,
  )
  return {
      name: rng.normal(1, 0.3, x.shape)
      if name.split("/")[-1].endswith("norm") or "norm_" in name
      else rng.normal(0, 0.5, x.shape)
      for name, x in reference_model.flat(shapes).items()
  }


def on_device(leaves, dtype):
  return jax.tree.map(
      lambda x: jnp.array(x, dtype), reference_model.nested(leaves)
  )


def random_rows(rows, seed=1):
  """Tokens, starts and masks: prompts and responses of all lengths.

  Row 2 has no response token that counts; row 1 has a hole in its mask.
  """
  rng = np.random.default_rng(seed)
  start_B = np.array([0, 2, 1, 3, 0, 1, 2, 3])[:rows]
  tokens_BL = rng.integers(2, CFG.vocab, (rows, P + T)).astype(np.int32)
  tokens_BL[np.arange(P + T) < start_B[:, None]] = 0
  length_B = np.array([5, 5, 0, 3, 1, 4, 2, 5])[:rows]
  mask_BT = np.arange(T) < length_B[:, None]
  mask_BT[1, 2] = False
  return tokens_BL, start_B.astype(np.int32), mask_BT


def random_batch(leaves, cfg, rows=8):
  """A batch whose tokens lie on every branch of the loss.

  New over old policy is 1, inside the clip range, outside on both sides, and
  beyond the dual clip, each with both signs of the advantage; the reference is
  near, far, and beyond the cap of k3.
  """
  rng = np.random.default_rng(2)
  tokens_BL, start_B, mask_BT = random_rows(rows)
  logps_BT = reference_model.response_logps(
      reference_model.nested(leaves),
      cfg,
      tokens_BL,
      start_B,
      T,
      RL["temperature"],
  )
  cases = list(itertools.product([0, 0.1, -0.15, 0.5, -0.5, 1.5], [1, -1]))
  case_BT = np.cumsum(mask_BT).reshape(mask_BT.shape) % len(cases)
  log_ratio_BT, sign_BT = np.moveaxis(np.array(cases)[case_BT], -1, 0)
  to_ref_BT = rng.choice([0.3, -0.4, 1.0, -4.0], (rows, T))
  return padded.Rows(
      tokens_BL=tokens_BL,
      start_B=start_B,
      groups_B=np.array([7, 7, 7, 3, 3, 9, 7, 9])[:rows].astype(np.int32),
      mask_BT=mask_BT,
      advantages_BT=sign_BT * rng.uniform(0.2, 2, (rows, T)),
      # Outside of the mask an old log-prob may be anything.
      old_logps_BT=np.where(mask_BT, logps_BT - log_ratio_BT, -np.inf),
      ref_logps_BT=logps_BT - to_ref_BT,
      correct_B=np.array([1, 0, 1, 0, 0, 1, 0, 1], np.float32)[:rows],
      staleness_B=np.zeros(rows, np.int32),
      values_BT=np.zeros((rows, T)),
      returns_BT=np.zeros((rows, T)),
  )


@functools.cache
def program(cfg, tx, **keywords):
  """jit: one RL step; compiled once for each shape of the batch."""
  keywords = dict(admits=step.every_update) | RL | keywords
  names = "temperature", "admits"
  options = {name: keywords.pop(name) for name in names}
  functions = [keywords.pop(name) for name in ("surrogate", "reduction")]
  terms = loss_terms.terms(**keywords)
  options["objective"] = objective.Objective(
      *functions, terms, keywords.get("on_policy", False)
  )
  return quick_jit(functools.partial(step.rl_update, cfg=cfg, tx=tx, **options))


def update(params, batch, counts, cfg, tx, coefs=COEFS, **keywords):
  """`rl_update`; counts are minibatches, and micro-batches of each."""
  params = jax.tree.map(jnp.asarray, params)
  zero = jnp.zeros((), jnp.int32)
  floats = params["embed"].dtype
  batch = jax.tree.map(
      lambda x: x.astype(floats) if x.dtype == np.float64 else x, batch
  )
  batch_M = padded.split(batch, counts[0])
  return program(cfg, tx, **keywords)(
      TrainState(params, tx.init(params), zero, zero),
      batch_M,
      padded.packed(batch_M, counts[1]),
      coefs,
  )


def optimizer(name, **keywords):
  defaults = dict(
      lr=1.0,
      schedule="constant",
      warmup=0,
      total=10,
      b1=0.9,
      b2=0.95,
      eps=1e-8,
      weight_decay=0.0,
      clip_norm=0.0,
  )
  return optimizer_lib.make_optimizer(name=name, **defaults | keywords)


SGD = optimizer("sgd")  # at rate 1 the parameters move by minus the gradient
ADAMW = dict(lr=1e-2, warmup=4, weight_decay=0.1, clip_norm=0.5)
MATRICES = {"embed", "head"} | {
    f"layers/{name}" for name in ("q", "k", "v", "o", "gate", "up", "down")
}


def moved(leaves, state):
  """The gradient that SGD at rate 1 has applied. Flat tree."""
  after = reference_model.flat(jax.device_get(state.params))
  return {k: x - after[k] for k, x in leaves.items()}


def assert_gradient(grads, loss, leaves):
  """An entry of every parameter, and all of them in one direction."""
  rng = np.random.default_rng(7)
  scale = max(np.abs(g).max() for g in grads.values())
  assert scale > 1e-3
  for name, grad in grads.items():
    place = tuple(rng.integers(0, n) for n in grad.shape)
    along = np.zeros(grad.shape)
    along[place] = 1
    np.testing.assert_allclose(
        grad[place],
        reference_model.slope(loss, leaves, {name: along}),
        rtol=1e-6,
        atol=1e-8 * scale,
        err_msg=f"{name} {place}",
    )
  along = {k: rng.normal(size=x.shape) for k, x in leaves.items()}
  np.testing.assert_allclose(
      sum((grads[k] * along[k]).sum() for k in grads),
      reference_model.slope(loss, leaves, along, h=1e-6),
      rtol=1e-6,
  )


def assert_same_update(got, whole):
  """Same SGD step (1e-5 of the largest) and the same metrics."""
  state, metrics = got
  params, _, wanted, wanted_metrics = whole
  steps = jax.tree.map(lambda a, b: np.asarray(a) - b, params, wanted)
  largest = max(np.abs(x).max() for x in jax.tree.leaves(steps))
  assert largest > 0.01
  near = dict(rtol=0, atol=1e-5 * largest)
  jax.tree.map(
      lambda a, b: np.testing.assert_allclose(a, b, **near),
      jax.device_get(state.params),
      wanted,
  )
  for name, value in wanted_metrics.items():
    np.testing.assert_allclose(
        metrics[name], value, rtol=1e-4, atol=1e-6, err_msg=name
    )
