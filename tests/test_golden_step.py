"""One whole RL update against NumPy: model, loss, gradient and optimizer.

`reference` computes the loss in float64 without JAX; central differences of
it are the gradient that `rl_update` has to apply. First the parts, then every
config from its verdicts to its next parameters.
"""

import dataclasses
import functools
import importlib
import itertools
import types
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import padded
import pytest
import reference
from conftest import ROOT

from rl_reason import checks, config
from rl_reason.algorithms import objective, reductions, surrogates
from rl_reason.models import attention, critic, decoder, parameters
from rl_reason.scale import packed_attention, sharding
from rl_reason.structs import Experience, Rollouts, TrainState
from rl_reason.training import (
    dynamic_sampling,
    experience,
    rl,
    session,
    step,
    value as value_stage,
)

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
  monkeypatch.setattr(step, "jnp", Wide())
  monkeypatch.setattr(critic, "jnp", Wide())
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
      for name, x in reference.flat(shapes).items()
  }


def on_device(leaves, dtype):
  return jax.tree.map(lambda x: jnp.array(x, dtype), reference.nested(leaves))


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
  logps_BT = reference.response_logps(
      reference.nested(leaves), cfg, tokens_BL, start_B, T, RL["temperature"]
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
      right_B=np.array([1, 0, 1, 0, 0, 1, 0, 1], np.float32)[:rows],
      age_B=np.zeros(rows, np.int32),
      values_BT=np.zeros((rows, T)),
      returns_BT=np.zeros((rows, T)),
  )


@functools.cache
def program(cfg, tx, **keywords):
  """jit: one RL step; compiled once for each shape of the batch."""
  keywords = RL | keywords
  apart = ("temperature", "max_kl")
  options = {k: keywords.pop(k) for k in apart if k in keywords}
  options["objective"] = objective.Objective(**keywords)
  return quick_jit(functools.partial(step.rl_update, cfg=cfg, tx=tx, **options))


def update(params, batch, cuts, cfg, tx, coefs=COEFS, **keywords):
  """`rl_update` on so many minibatches, and micro-batches of each."""
  params = jax.tree.map(jnp.asarray, params)
  zero = jnp.zeros((), jnp.int32)
  floats = params["embed"].dtype
  batch = jax.tree.map(
      lambda x: x.astype(floats) if x.dtype == np.float64 else x, batch
  )
  cut = padded.split(batch, cuts[0])
  return program(cfg, tx, **keywords)(
      TrainState(params, tx.init(params), zero, zero),
      cut,
      padded.packed(cut, cuts[1]),
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
  return step.make_optimizer(name=name, **defaults | keywords)


SGD = optimizer("sgd")  # at rate 1 the parameters move by minus the gradient
ADAMW = dict(lr=1e-2, warmup=4, weight_decay=0.1, clip_norm=0.5)
MATRICES = {"embed", "head"} | {
    f"layers/{name}" for name in ("q", "k", "v", "o", "gate", "up", "down")
}


def moved(leaves, state):
  """The gradient that SGD at rate 1 has applied. Flat tree."""
  after = reference.flat(jax.device_get(state.params))
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
        reference.slope(loss, leaves, {name: along}),
        rtol=1e-6,
        atol=1e-8 * scale,
        err_msg=f"{name} {place}",
    )
  along = {k: rng.normal(size=x.shape) for k, x in leaves.items()}
  np.testing.assert_allclose(
      sum((grads[k] * along[k]).sum() for k in grads),
      reference.slope(loss, leaves, along, h=1e-6),
      rtol=1e-6,
  )


# --- the forward pass --------------------------------------------------------


@pytest.mark.parametrize(
    "variant",
    [
        dict(),
        dict(qkv_bias=False, qk_norm=False, tied=True),
        dict(qkv_bias=False, kv_heads=1, rope_theta=1e4),
    ],
    ids=["bias+qk_norm+untied", "plain, tied", "qk_norm, one kv head"],
)
def test_forward_matches_numpy(variant):
  """fp32 logits and log-probs of padded rows; NumPy never sees the padding."""
  cfg = dataclasses.replace(CFG, **variant)
  leaves = random_leaves(cfg)
  tokens_BL, start_B, _ = random_rows(4)

  @quick_jit
  def run(params):
    hidden_BLD = padded.hidden(params, cfg, tokens_BL, start_B)
    packed = padded.micro(tokens_BL, start_B, np.ones((4, T), bool))
    scored = decoder.packed_logps(params, cfg, packed, 0.8)
    return decoder.logits(params, cfg, hidden_BLD), *scored

  logits_BLV, logps_BT, entropy_BT = run(on_device(leaves, jnp.float32))
  params = reference.nested(leaves)
  wanted_BT = reference.response_logps(params, cfg, tokens_BL, start_B, T, 0.8)
  np.testing.assert_allclose(logps_BT, wanted_BT, rtol=1e-5, atol=1e-5)
  for b, start in enumerate(start_B):
    wanted_LV = reference.row_logits(params, cfg, tokens_BL[b, start:])
    np.testing.assert_allclose(
        logits_BLV[b, start:], wanted_LV, rtol=1e-5, atol=1e-5
    )
    probs_TV = np.exp(wanted_LV[-T - 1 : -1] / 0.8)
    probs_TV /= probs_TV.sum(-1, keepdims=True)
    entropy_T = -(probs_TV * np.log(probs_TV)).sum(-1)
    np.testing.assert_allclose(entropy_BT[b], entropy_T, rtol=1e-5, atol=1e-5)


# --- the loss and its gradient -----------------------------------------------


def test_gradient_is_that_of_the_loss(wide):
  """DAPO's loss plus k3: value to 1e-10, gradient to 1e-6 of differences."""
  leaves = random_leaves(wide)
  batch = random_batch(leaves, wide)

  def loss(leaves):
    return reference.rl_loss(
        reference.nested(leaves),
        wide,
        batch,
        temperature=RL["temperature"],
        reduction="prompt_token_mean",
        beta=COEFS["kl"],
        low=0.2,
        high=0.28,
        dual=3.0,
    )

  params = on_device(leaves, jnp.float64)
  state, metrics = update(params, batch, [1, 2], wide, SGD)
  assert state.params["norm"].dtype == jnp.float64
  np.testing.assert_allclose(metrics["loss"], loss(leaves), rtol=1e-10)
  assert 0 < metrics["pg_clipfrac"] < 1, "some tokens are clipped, not all"
  assert 0 < metrics["pg_clipfrac_lower"] < 1

  assert_gradient(moved(leaves, state), loss, leaves)


# --- cutting the rows --------------------------------------------------------


@pytest.fixture(scope="module")
def whole():
  """fp32 parameters, a batch, and the SGD update of it in one piece."""
  leaves = random_leaves(SMALL)
  batch = random_batch(leaves, SMALL)
  params = on_device(leaves, jnp.float32)
  state, metrics = update(params, batch, [1, 1], SMALL, SGD)
  return params, batch, jax.device_get(state.params), metrics


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


@pytest.mark.parametrize("micro_batches", [2, 4])
def test_micro_batches_change_nothing(whole, micro_batches):
  """Though groups span them and their numbers of tokens differ."""
  params, batch, _, _ = whole
  got = update(params, batch, [1, micro_batches], SMALL, SGD)
  assert_same_update(got, whole)


def test_padding_rows_change_nothing(whole):
  """Four more rows without a mask: they take no place."""
  params, batch, _, _ = whole
  some = jax.tree.map(lambda x: x[:4], batch)
  empty = jax.tree.map(lambda x: x[4:], batch).replace(
      mask_BT=np.zeros((4, T), bool),
      groups_B=np.array([-1, -1, -2, 7], np.int32),
      old_logps_BT=np.full((4, T), np.nan),
      advantages_BT=np.full((4, T), 5.0),
  )
  longer = jax.tree.map(lambda *x: np.concatenate(x), some, empty)
  state, metrics = update(params, some, [1, 1], SMALL, SGD)
  assert_same_update(
      update(params, longer, [1, 4], SMALL, SGD),
      (params, some, jax.device_get(state.params), metrics),
  )


@pytest.mark.parametrize(
    "field", ["old_logps_BT", "ref_logps_BT", "advantages_BT"]
)
def test_what_the_mask_hides_may_be_anything(whole, field):
  params, batch, _, _ = whole
  hidden_BT = np.where(batch.mask_BT, getattr(batch, field), np.nan)
  got = update(params, batch.replace(**{field: hidden_BT}), [1, 1], SMALL, SGD)
  assert_same_update(got, whole)


def test_a_batch_of_padding_does_nothing(whole):
  params, batch, _, _ = whole
  empty = batch.replace(mask_BT=np.zeros_like(batch.mask_BT))
  state, metrics = update(params, empty, [1, 2], SMALL, SGD)
  jax.tree.map(np.testing.assert_array_equal, state.params, params)
  assert metrics["grad_norm"] == metrics["loss"] == metrics["entropy"] == 0
  assert metrics["update_skipped"] == 1 and state.step == 1


def test_minibatches_are_updates_one_after_the_other(whole):
  """[2, 1, 4]: the second half meets the parameters of the first step."""
  params, batch, _, _ = whole
  first, second = (
      jax.tree.map(lambda x, n=n: x[n : n + 4], batch) for n in (0, 4)
  )
  state, metrics = update(params, batch, [2, 1], SMALL, SGD)
  a, metrics_a = update(params, first, [1, 1], SMALL, SGD)
  b, metrics_b = update(a.params, second, [1, 1], SMALL, SGD)
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5),
      state.params,
      b.params,
  )
  both = {k: (metrics_a[k], metrics_b[k]) for k in metrics_a}
  for name, wanted in {
      "loss": np.mean(both["loss"]),
      "grad_norm": np.mean(both["grad_norm"]),
      "log_ratio_max": np.max(both["log_ratio_max"]),
      "first_log_ratio_max": both["log_ratio_max"][0],
      "update_skipped": 0,
  }.items():
    np.testing.assert_allclose(metrics[name], wanted, rtol=1e-4, err_msg=name)
  assert state.step == 1, "steps of the stage, not of the optimizer"


# --- the optimizer -----------------------------------------------------------


def test_adamw_matches_numpy():
  """Three steps of given gradients: warm-up, clipping, decay of matrices.

  Rates are 1/4, 2/4 and 3/4 of 0.01. The second gradient is small enough to
  pass the limit on the norm, 0.5, the others are cut. Then one is infinite:
  nothing moves, neither parameters nor moments, and it is counted.
  """
  tx = optimizer("adamw", **ADAMW)
  rng = np.random.default_rng(4)
  leaves, moments = random_leaves(CFG), None
  params = on_device(leaves, jnp.float32)
  zero = jnp.zeros((), jnp.int32)
  state = TrainState(params, tx.init(params), zero, zero)
  optimize = quick_jit(lambda state, grads: step.optimize(state, tx, grads))
  for t, size in enumerate([1.0, 0.01, 0.3], start=1):
    grads = {k: rng.normal(0, size, x.shape) for k, x in leaves.items()}
    state, metrics = optimize(state, on_device(grads, jnp.float32))
    clipped, norm = reference.clip_by_norm(grads, ADAMW["clip_norm"])
    assert (norm > ADAMW["clip_norm"]) == (t != 2)
    leaves, moments = reference.adamw(
        leaves,
        clipped,
        moments,
        t,
        lr=ADAMW["lr"] * t / 4,
        b1=0.9,
        b2=0.95,
        eps=1e-8,
        decay=ADAMW["weight_decay"],
        decayed=MATRICES,
    )
    np.testing.assert_allclose(metrics["grad_norm"], norm, rtol=1e-5)
    assert metrics["update_skipped"] == 0
    for name, value in reference.flat(jax.device_get(state.params)).items():
      np.testing.assert_allclose(
          value, leaves[name], rtol=1e-6, atol=1e-6, err_msg=f"{name}, step {t}"
      )
  assert state.skipped == 0

  for skipped, bad in enumerate([np.inf, np.nan], start=1):
    broken = dict(grads, norm=grads["norm"] * bad)
    after, metrics = optimize(state, on_device(broken, jnp.float32))
    jax.tree.map(np.testing.assert_array_equal, after.params, state.params)
    jax.tree.map(
        np.testing.assert_array_equal, after.opt_state, state.opt_state
    )
    assert metrics["update_skipped"] == 1
    assert after.skipped == skipped
    state = after


def test_rl_update_is_adamw_of_the_gradient(wide):
  """End to end: the parameters after one update are NumPy's."""
  leaves = random_leaves(wide)
  batch = random_batch(leaves, wide)
  params = on_device(leaves, jnp.float64)
  state, _ = update(params, batch, [1, 2], wide, SGD)
  grads, _ = reference.clip_by_norm(moved(leaves, state), ADAMW["clip_norm"])
  wanted, _ = reference.adamw(
      leaves,
      grads,
      None,
      1,
      lr=ADAMW["lr"] / 4,
      b1=0.9,
      b2=0.95,
      eps=1e-8,
      decay=ADAMW["weight_decay"],
      decayed=MATRICES,
  )
  tx = optimizer("adamw", **ADAMW)
  state, _ = update(params, batch, [1, 2], wide, tx)
  for name, value in reference.flat(jax.device_get(state.params)).items():
    np.testing.assert_allclose(value, wanted[name], rtol=1e-6, atol=1e-9)


def test_a_bad_minibatch_is_skipped_alone(whole):
  """A NaN advantage in the second half: the first half's update stays."""
  params, batch, _, _ = whole
  bad = batch.replace(advantages_BT=batch.advantages_BT.copy())
  bad.advantages_BT[7, 0] = np.nan
  state, metrics = update(params, bad, [2, 1], SMALL, SGD)
  first = jax.tree.map(lambda x: x[:4], batch)
  wanted, _ = update(params, first, [1, 1], SMALL, SGD)
  jax.tree.map(
      lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-5),
      state.params,
      wanted.params,
  )
  assert metrics["update_skipped"] == state.skipped == 1


# --- every config, from verdicts to parameters -------------------------------

# Eight responses: two groups of four, or eight prompts with one response each.
LENGTHS = np.array([5, 5, 2, 3, 1, 4, 2, 5])
RIGHT = np.array([0.0, 1, 0, 1, 0, 0, 0, 0])  # the second group: no variance
TRUNCATED = np.array([1, 0, 0, 0, 0, 0, 0, 1], bool)
# Log-ratios of tokens: 1, inside of every clip, outside on both sides, beyond
# CISPO's bound and the dual clip. GSPO looks at means of rows: the same there.
RATIOS = np.array([0, 0.1, -0.15, 0.5, -0.5, 1.8, 2.6])
ROW_RATIOS = np.array([0.3, 0.01, -0.2, 0.2, 0.0, 0.1, -0.1, 0.02])


@dataclasses.dataclass
class Known:
  """What an advantage is made from, of the eight rows, by NumPy alone."""

  c: Any
  rewards_B: np.ndarray  # a KL in the reward included
  rewards_BT: np.ndarray
  groups_B: np.ndarray
  mask_BT: np.ndarray
  values_BT: np.ndarray


def clipped(low, high, dual=0.0):
  def loss(logps_BT, _, old_BT, advantages_BT, mask_BT):
    out_BT = np.zeros(mask_BT.shape)
    for at in zip(*np.nonzero(mask_BT), strict=True):
      out_BT[at] = reference.policy_loss(
          logps_BT[at] - old_BT[at], advantages_BT[at], low, high, dual
      )
    return out_BT

  return loss


def gspo(logps_BT, _, old_BT, advantages_BT, mask_BT):
  """One number a response, for each of its tokens."""
  out_BT = np.zeros(mask_BT.shape)
  for b, mask in enumerate(mask_BT):
    (advantage,) = set(advantages_BT[b, mask])
    out_BT[b, mask] = reference.gspo(
        logps_BT[b, mask], old_BT[b, mask], advantage, 0.03, 0.04
    )
  return out_BT


def cispo(logps_BT, here_BT, old_BT, advantages_BT, mask_BT):
  """The weights stay where they are, at `here_BT`: no gradient."""
  out_BT = np.zeros(mask_BT.shape)
  for at in zip(*np.nonzero(mask_BT), strict=True):
    out_BT[at] = reference.cispo(
        logps_BT[at], old_BT[at], advantages_BT[at], 1.0, 4.0, here_BT[at]
    )
  return out_BT


def log_likelihood(logps_BT, _, old_BT, advantages_BT, mask_BT):
  return -advantages_BT * logps_BT * mask_BT


@dataclasses.dataclass
class Paper:
  """An algorithm by its paper; the config has to say the same.

  Attributes:
    advantage: of a `Known`: one number a response or a token.
    loss: per token, of log-probs (twice: the second are constants), old ones,
      advantages and mask.
    reduction: by its name in `reference`.
    wrong: reward of a wrong answer; a right one has 1.
    overlong: whether DAPO's soft punishment is on.
    kl: estimator and place of a KL to the reference.
    nll: factor of the right responses' likelihood.
    whiten: advantages over all tokens.
    targets: lambda of the critic's targets; None: there is no critic.
    group: whether there are several responses to a prompt.
    fields: what shows only outside of an update.
  """

  advantage: Callable
  loss: Callable = clipped(0.2, 0.2)
  reduction: str = "seq_mean_token_mean"
  wrong: float = -1.0
  overlong: bool = False
  kl: tuple[str, str] = ("none", "loss")
  nll: float = 0.0
  whiten: bool = False
  targets: float | None = None
  group: bool = True
  fields: dict = dataclasses.field(default_factory=dict)


def of_group(function, *more):
  """An advantage from rewards and groups."""
  return lambda x: getattr(reference, function)(x.rewards_B, x.groups_B, *more)


GRPO = Paper(of_group("group_norm", 1e-6, 1))
DAPO = dataclasses.replace(
    GRPO,
    loss=clipped(0.2, 0.28, 10.0),
    reduction="token_mean",
    overlong=True,
    fields={"dynamic_sampling.enabled": True},
)
PPO = Paper(
    lambda x: reference.gae(x.rewards_BT, x.values_BT, x.mask_BT, 1.0, 0.95),
    whiten=True,
    targets=0.95,
    group=False,
)
REINFORCE = Paper(
    lambda x: x.rewards_B - x.rewards_B.mean(),
    loss=log_likelihood,
    reduction="seq_mean_token_sum",
    group=False,
    fields={"updates.minibatches": 1, "updates.epochs": 1},  # on-policy
)
PAPERS = {
    "ppo": PPO,
    "grpo": GRPO,
    "dr_grpo": Paper(of_group("group_mean"), reduction="constant", wrong=0.0),
    "reinforce": REINFORCE,
    "rloo": dataclasses.replace(
        REINFORCE,
        advantage=of_group("leave_one_out"),
        kl=("k1", "reward"),
        group=True,
    ),
    "reinforce_pp": Paper(
        lambda x: reference.returns_to_go(x.rewards_BT, x.mask_BT),
        kl=("k1", "reward"),
        whiten=True,
        group=False,
    ),
    "reinforce_pp_baseline": Paper(
        of_group("group_mean"), kl=("k2", "loss"), whiten=True
    ),
    "dapo": DAPO,
    "countdown": DAPO,
    "vapo": dataclasses.replace(
        PPO,
        advantage=lambda x: reference.gae_length_adaptive(
            x.rewards_BT, x.values_BT, x.mask_BT, 1.0, x.c.advantage.args.alpha
        ),
        loss=clipped(0.2, 0.28),
        reduction="token_mean",
        nll=0.1,
        targets=1.0,
        group=True,
    ),
    "gspo": dataclasses.replace(GRPO, loss=gspo),
    "cispo": dataclasses.replace(GRPO, loss=cispo, reduction="token_mean"),
    "max_rl": Paper(of_group("max_rl"), wrong=0.0),
    "lite_ppo": Paper(
        lambda x: reference.group_mean_batch_std(
            x.rewards_B, x.groups_B, np.ones(8), 1e-6, 1
        ),
        reduction="token_mean",
    ),
}


def small(name):
  """A config cut down to these rows; its algorithm stays."""
  c = importlib.import_module(f"configs.{name}").get_config()
  checks.fields(c)
  fields = config.flat(c)
  for field, wanted in PAPERS[name].fields.items():
    assert fields[field] == wanted, field
  assert (c.rollout.group_size > 1) == PAPERS[name].group
  assert (c.reward.overlong_buffer > 0) == PAPERS[name].overlong
  assert (c.critic.pretrain_steps > 0) == (name == "vapo")
  group = 4 if PAPERS[name].group else 1
  c.rollout.update(batch=16, group_size=group, max_prompt=P, max_tokens=T)
  c.updates.update(minibatches=1, token_budget=2 * (P + T))
  c.optimizer.update(name="sgd", lr=1.0, clip_norm=0.0)
  c.critic.lr = 1.0
  c.reward.overlong_buffer = min(c.reward.overlong_buffer, 3)
  checks.fields(c)
  return c


def eight_rows(c, leaves, cfg):
  """The responses, and the reference's log-probs."""
  rng = np.random.default_rng(5)
  tokens_BL, start_B, _ = random_rows(8)
  mask_BT = np.arange(T) < LENGTHS[:, None]
  mask_BT[1, 2] = False
  logps_BT = reference.response_logps(
      reference.nested(leaves), cfg, tokens_BL, start_B, T
  )
  ratios_BT = np.zeros((8, T))
  for right in (0, 1):  # every ratio with both signs of the advantage
    some = mask_BT & (right == RIGHT)[:, None]
    ratios_BT[some] = np.resize(RATIOS, some.sum())
  if c.surrogate.name == "gspo":
    means_B = reference.row_mean(ratios_BT, mask_BT)
    ratios_BT += (ROW_RATIOS - means_B)[:, None]
  group_B = np.arange(8, dtype=np.int32) // c.rollout.group_size
  rows = Experience(
      rollouts=Rollouts(
          tokens_BL=tokens_BL,
          start_B=start_B,
          ids_B=group_B,
          mask_BT=mask_BT,
          logps_BT=logps_BT,
          lengths_B=LENGTHS,  # int64: else the punishment is in float32
          truncated_B=TRUNCATED,
      ),
      correct_B=RIGHT,
      scores_NB=(),
      old_logps_BT=logps_BT - ratios_BT,
      known_B=np.zeros(8, np.int32),
      age_B=np.zeros(8, np.int32),
      types_B=np.full(8, 3, np.int32),
      problems_B=group_B,
  )
  return rows, rows.old_logps_BT + rng.choice([0.3, -0.4, 1.0], (8, T))


def critic_leaves(leaves, seed):
  """Another trunk and a head. Flat tree."""
  rng = np.random.default_rng(seed)
  out = {
      f"trunk/{name}": x + rng.normal(0, 0.1, x.shape)
      for name, x in leaves.items()
      if name != "head"
  }
  width = len(leaves["norm"])
  return out | {
      "value_head/value": rng.normal(0, 0.5, (width, 1)),
      "value_head/bias": np.array([0.3]),
  }


def numpy_values(leaves, cfg, rows):
  """V of the prefix before each token; heads as in `critic`."""
  params = reference.nested(leaves)
  trunk = params["trunk"] | dict(head=np.eye(cfg.width))  # logits: its states
  cfg = dataclasses.replace(cfg, tied=False)
  out_BT = []
  for tokens_L, start in zip(rows.tokens_BL, rows.start_B, strict=True):
    hidden_LD = reference.row_logits(trunk, cfg, tokens_L[start:])
    head = params["value_head"]
    out_BT.append((hidden_LD @ head["value"] + head["bias"])[-T - 1 : -1, 0])
  return np.array(out_BT)


def one_device(c, cfg):
  """What the stages' functions read of a run."""
  mesh = sharding.make_mesh(1, 1, 1, jax.devices()[:1])
  nothing = dict.fromkeys(f.name for f in dataclasses.fields(session.Run))
  some = dict(cfg=cfg, critic_cfg=session.critic_config(c, cfg))
  return session.Run(**nothing | dict(config=c, mesh=mesh) | some)


class Quick:
  """A jit-ed function of the library, compiled as `quick_jit` does."""

  def __init__(self, fn):
    self._fn, self._compiled = fn, None

  def __call__(self, *args):
    self._compiled = self._compiled or self._fn.lower(*args).compile(OPTIONS)
    return self._compiled(*args)


def layout(rows, order_B):
  """One minibatch in several micro-batches of two packed rows."""
  order_MB = order_B[None]
  cut = jax.tree.map(lambda x: x[order_MB], rows.rollouts)
  packed_M = padded.packed(cut, len(order_B) // 2)
  assert packed_M.segments_RL.any((-2, -1)).sum() > 1
  return experience.Layout(order_MB, packed_M)


def score(run, program, params, cut):
  """`Maker.score`, without a maker."""
  maker = types.SimpleNamespace(_run=run)
  return experience.Maker.score(maker, program, params, cut)


@functools.cache
def golden(name, cfg):
  """One RL step of a config by the library, and what NumPy knows of it.

  Eight rows and eight of padding, in several micro-batches; and in another
  order, in others.
  """
  c, paper = small(name), PAPERS[name]
  leaves = random_leaves(cfg)
  rows, ref_BT = eight_rows(c, leaves, cfg)
  mask_BT = rows.rollouts.mask_BT
  empty = dynamic_sampling.padding(rows, 8, c.rollout.group_size)
  both = dynamic_sampling.concatenate([rows, empty])
  ref_BT = np.concatenate([ref_BT, np.full((8, T), np.nan)])

  # NumPy.
  rewards_B = np.where(RIGHT > 0, 1.0, paper.wrong)
  if paper.overlong:
    rewards_B += [
        reference.soft_overlong(n, T, c.reward.overlong_buffer) for n in LENGTHS
    ]
  kl_BT = (rows.old_logps_BT - ref_BT[:8]) * mask_BT
  coef = c.kl.coef * (paper.kl == ("k1", "reward"))
  critics = [critic_leaves(leaves, seed) for seed in (0, 1)]
  known = Known(
      c=c,
      rewards_B=rewards_B - coef * kl_BT.sum(1),
      rewards_BT=reference.per_token(rewards_B, mask_BT, kl_BT, coef),
      groups_B=rows.rollouts.ids_B,
      mask_BT=mask_BT,
      values_BT=numpy_values(critics[0], cfg, rows.rollouts),
  )
  advantages_BT = np.asarray(paper.advantage(known))
  if advantages_BT.ndim == 1:
    advantages_BT = np.repeat(advantages_BT[:, None], T, 1)
  if paper.whiten:
    advantages_BT = reference.whiten(advantages_BT, mask_BT)
  advantages_BT = advantages_BT * mask_BT

  # The library. One update is cut out of many: it stays off-policy.
  run = one_device(c, cfg)
  whole = importlib.import_module(f"configs.{name}").get_config()
  asked = mock.Mock(return_value=config.on_policy(whole))
  with jax.set_mesh(run.mesh), mock.patch.object(config, "on_policy", asked):
    more = dict(ref_logps_BT=ref_BT)
    others = dict(
        entropy_BT=np.zeros((16, T)),
        progress=np.float64(0),
        kl_coef=np.float64(c.kl.coef),
    )
    if config.has_critic(c):
      first = on_device(critics[0], jnp.float64)
      values = Quick(experience._values(run))
      more["values_BT"] = score(run, values, first, layout(both, np.arange(16)))
    facts = run.put(experience.facts(both) | more | others)
    assign = Quick(experience._assign(run))
    assigned = jax.device_get(assign(facts))
    batch = experience.batch(run, both, assigned, **more)
    orders = np.arange(16), np.random.default_rng(6).permutation(16)
    cuts = [
        experience.minibatches(run, batch, layout(both, order))
        for order in orders
    ]
    coefs = dict(kl=c.kl.coef, entropy=c.loss.entropy_coef)
    coefs = run.put({k: np.float64(x) for k, x in coefs.items()})
    tx, where = rl._optimizer(run)
    params = on_device(leaves, jnp.float64)
    update = Quick(rl._update(run, tx, where))
    updated = [
        jax.device_get(update(step.new_state(params, tx, where), *cut, coefs))
        for cut in cuts
    ]
    judged = []
    if config.has_critic(c):
      tx, where = value_stage.optimizer(run, c.rl.steps)
      params = on_device(critics[1], jnp.float64)
      update = Quick(value_stage.make_update(run, tx, where))
      judged = [
          jax.device_get(update(step.new_state(params, tx, where), *cut))
          for cut in cuts
      ]
  return types.SimpleNamespace(
      c=c,
      cfg=cfg,
      paper=paper,
      leaves=leaves,
      rows=rows,
      ref_BT=ref_BT[:8],
      known=known,
      advantages_BT=advantages_BT,
      critics=critics,
      more=more,
      assigned=assigned,
      updated=updated,
      judged=judged,
  )


@pytest.fixture(params=PAPERS)
def one(request, wide):
  return golden(request.param, wide)


def test_every_config_has_a_golden_step():
  """But of those that change data and models, not the algorithm."""
  names = {path.stem for path in ROOT.glob("configs/*.py")}
  others = {"base", "sft", "reward_model", "dapo_qwen", "gsm8k_scratch"}
  assert names - others - {"__init__"} == PAPERS.keys()


def test_rewards_and_advantages_of_a_config(one):
  """The padding gets none; what it holds (NaN) reaches nobody."""
  near = dict(rtol=1e-9, atol=1e-9)
  got = one.assigned
  np.testing.assert_allclose(got["rewards_B"][:8], one.known.rewards_B, **near)
  np.testing.assert_allclose(
      got["advantages_BT"][:8], one.advantages_BT, **near
  )
  assert not got["advantages_BT"][8:].any()
  constant = np.ptp(one.known.rewards_B[4:]) == 0
  if constant and one.paper.group and not one.paper.whiten:
    assert not one.advantages_BT[4:].any() and one.advantages_BT[:4].any()


def test_loss_and_gradient_of_a_config(one):
  paper, r = one.paper, one.rows.rollouts

  def logps(leaves):
    return reference.response_logps(
        reference.nested(leaves), one.cfg, r.tokens_BL, r.start_B, T
    )

  here_BT = logps(one.leaves)

  def loss(leaves):
    logps_BT = logps(leaves)
    loss_BT = paper.loss(
        logps_BT, here_BT, one.rows.old_logps_BT, one.advantages_BT, r.mask_BT
    )
    if paper.kl == ("k2", "loss"):
      loss_BT += one.c.kl.coef * (logps_BT - one.ref_BT) ** 2 / 2
    out = reference.reduce(paper.reduction, loss_BT, r.mask_BT, r.ids_B)
    right_BT = r.mask_BT * (RIGHT > 0)[:, None]
    return out - paper.nll * reference.masked_mean(logps_BT, right_BT)

  state, metrics = one.updated[0]
  np.testing.assert_allclose(metrics["actor/loss"], loss(one.leaves), rtol=1e-9)
  assert metrics["actor/staleness_max"] == 0
  if paper.loss is not log_likelihood:
    assert 0 < metrics["actor/pg_clipfrac"] < 1
  assert (metrics["actor/pg_clipfrac_lower"] > 0) == (
      one.c.surrogate.args.get("dual_clip", 0) > 0
  )
  assert_gradient(moved(one.leaves, state), loss, one.leaves)


def test_micro_batches_change_no_config(one):
  """Rows and padding in another order, other rows in a micro-batch."""
  updates = [x for x in (one.updated, one.judged) if x]
  for (whole, metrics), (mixed, other) in updates:
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-11),
        whole.params,
        mixed.params,
    )
    for name in metrics:
      np.testing.assert_allclose(
          other[name], metrics[name], rtol=1e-9, atol=1e-12, err_msg=name
      )


@pytest.mark.parametrize("name", ["ppo", "vapo"])
def test_the_critic_of_a_config(name, wide):
  """Values, targets, and the step on them: clipped at half from the old."""
  x = golden(name, wide)
  r, lam = x.rows.rollouts, x.paper.targets
  old_BT = x.known.values_BT
  near = dict(rtol=1e-9, atol=1e-9)
  np.testing.assert_allclose(
      x.more["values_BT"][:8][r.mask_BT], old_BT[r.mask_BT], **near
  )
  targets_BT = old_BT + reference.gae(
      x.known.rewards_BT, old_BT, r.mask_BT, 1.0, lam
  )
  np.testing.assert_allclose(
      x.assigned["returns_BT"][:8][r.mask_BT], targets_BT[r.mask_BT], **near
  )
  moved_far = []

  def loss(leaves):
    values_BT = numpy_values(leaves, x.cfg, r)
    moved_far.append(np.abs(values_BT - old_BT)[r.mask_BT] > 0.5)
    losses = [
        reference.value_loss(values_BT[at], old_BT[at], targets_BT[at], 0.5)
        for at in zip(*np.nonzero(r.mask_BT), strict=True)
    ]
    return sum(losses) / len(losses)

  state, metrics = x.judged[0]
  leaves = x.critics[1]
  np.testing.assert_allclose(metrics["critic/vf_loss"], loss(leaves), rtol=1e-9)
  assert 0 < np.mean(moved_far) < 1
  assert_gradient(moved(leaves, state), loss, leaves)
