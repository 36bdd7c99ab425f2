"""One whole RL update against NumPy: model, loss, gradient and optimizer.

`reference` computes the loss in float64 without JAX; central differences of
it are the gradient that `rl_update` has to apply.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference

from rl_reason import model, step
from rl_reason.structs import Batch, TrainState

CFG = model.ModelConfig(
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
    reduction="prompt_token_mean",
    kl="k3",
    kl_coef=0.3,
    clip_low=0.2,
    clip_high=0.28,
    dual_clip=3.0,
)


# Compiling is most of the time that these tests take.
quick_jit = functools.partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0}
)


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
  monkeypatch.setattr(model, "jnp", Wide())
  monkeypatch.setattr(step, "jnp", Wide())
  with jax.enable_x64(True):
    yield dataclasses.replace(CFG, dtype="float64")


def random_leaves(cfg, seed=0):
  """Parameters that are not special: norms off 1, biases off 0. Flat tree."""
  rng = np.random.default_rng(seed)
  shapes = jax.tree.map(
      lambda row: np.zeros(row.shape),
      model.table(cfg),
      is_leaf=lambda x: isinstance(x, model.Param),
  )
  return {
      name: rng.normal(1, 0.3, x.shape)
      if name.split("/")[-1].endswith("norm") or "norm_" in name
      else rng.normal(0, 0.5, x.shape)
      for name, x in reference.flat(shapes).items()
  }


def on_device(leaves, dtype):
  return jax.tree.map(
      lambda x: jnp.array(x, dtype), reference.nested(leaves)
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
  logps_BT = reference.response_logps(
      reference.nested(leaves), cfg, tokens_BL, start_B, T, RL["temperature"]
  )
  cases = list(itertools.product([0, 0.1, -0.15, 0.5, -0.5, 1.5], [1, -1]))
  case_BT = np.cumsum(mask_BT).reshape(mask_BT.shape) % len(cases)
  log_ratio_BT, sign_BT = np.moveaxis(np.array(cases)[case_BT], -1, 0)
  to_ref_BT = rng.choice([0.3, -0.4, 1.0, -4.0], (rows, T))
  return Batch(
      tokens_BL=tokens_BL,
      start_B=start_B,
      groups_B=np.array([7, 7, 7, 3, 3, 9, 7, 9])[:rows].astype(np.int32),
      mask_BT=mask_BT,
      advantages_BT=sign_BT * rng.uniform(0.2, 2, (rows, T)),
      # Outside of the mask an old log-prob may be anything.
      old_logps_BT=np.where(mask_BT, logps_BT - log_ratio_BT, -np.inf),
      ref_logps_BT=logps_BT - to_ref_BT,
  )


@functools.cache
def program(cfg, tx, **keywords):
  """jit: one RL step; compiled once for each shape of the batch."""
  keywords = RL | keywords
  return quick_jit(
      functools.partial(step.rl_update, cfg=cfg, tx=tx, **keywords)
  )


def update(params, batch, cuts, cfg, tx, **keywords):
  """`rl_update` on rows cut as [M, A, B / (M A)]: new state, metrics."""
  params = jax.tree.map(jnp.asarray, params)
  zero = jnp.zeros((), jnp.int32)
  floats = params["embed"].dtype
  batch = jax.tree.map(
      lambda x: x.astype(floats) if x.dtype == np.float64 else x, batch
  )
  return program(cfg, tx, **keywords)(
      TrainState(params, tx.init(params), zero, zero),
      step.split(batch, *cuts),
  )


def optimizer(name, **keywords):
  keywords = dict(
      lr=1.0,
      schedule="constant",
      warmup=0,
      total=10,
      b1=0.9,
      b2=0.95,
      eps=1e-8,
      weight_decay=0.0,
      clip_norm=0.0,
  ) | keywords
  return step.make_optimizer(name=name, **keywords)


SGD = optimizer("sgd")  # at rate 1 the parameters move by minus the gradient
ADAMW = dict(lr=1e-2, warmup=4, weight_decay=0.1, clip_norm=0.5)
MATRICES = {"embed", "head"} | {
    f"layers/{name}" for name in ("q", "k", "v", "o", "gate", "up", "down")
}


def moved(leaves, state):
  """The gradient that SGD at rate 1 has applied. Flat tree."""
  after = reference.flat(jax.device_get(state.params))
  return {k: x - after[k] for k, x in leaves.items()}


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
    hidden_BLD, _ = model.forward(params, cfg, tokens_BL, start_B)
    scored = model.response_logps(params, cfg, tokens_BL, start_B, T, 0.8)
    return model.logits(params, cfg, hidden_BLD), *scored

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
  clip = dict(low=RL["clip_low"], high=RL["clip_high"], dual=RL["dual_clip"])

  def loss(leaves):
    return reference.rl_loss(
        reference.nested(leaves),
        wide,
        batch,
        temperature=RL["temperature"],
        reduction=RL["reduction"],
        beta=RL["kl_coef"],
        **clip,
    )

  params = on_device(leaves, jnp.float64)
  state, metrics = update(params, batch, [1, 2], wide, SGD)
  assert state.params["norm"].dtype == jnp.float64
  np.testing.assert_allclose(metrics["loss"], loss(leaves), rtol=1e-10)
  assert 0 < metrics["pg_clipfrac"] < 1, "some tokens are clipped, not all"
  assert 0 < metrics["pg_clipfrac_lower"] < 1

  grads = moved(leaves, state)
  rng = np.random.default_rng(3)
  scale = max(np.abs(g).max() for g in grads.values())
  for name, grad in grads.items():  # one entry of every parameter
    place = tuple(rng.integers(0, n) for n in grad.shape)
    along = np.zeros(grad.shape)
    along[place] = 1
    np.testing.assert_allclose(
        grad[place],
        reference.slope(loss, leaves, {name: along}),
        rtol=1e-6,
        atol=1e-9 * scale,
        err_msg=f"{name} {place}",
    )
  along = {k: rng.normal(size=x.shape) for k, x in leaves.items()}
  np.testing.assert_allclose(
      sum((grads[k] * along[k]).sum() for k in grads),
      reference.slope(loss, leaves, along, h=1e-6),
      rtol=1e-6,
  )


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
  """Four more rows without a mask, in a micro-batch of their own."""
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
      update(params, longer, [1, 2], SMALL, SGD),
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
