"""Surrogates: values and gradients, at and beyond every clip."""

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import reference_model
from by_hand import DTYPES, public, quick_jit
from hypothesis import given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from rl_reason.algorithms import reductions, surrogate_variants, surrogates

NAMES = ["ppo", "reinforce", "gspo", "cispo"]
VARIANTS = ["sapo", "gmpo", "dppo", "vespo", "ppo_sequence_mask"]
NEAR = {
    "float32": dict(rtol=2e-6, atol=2e-6),
    "float64": dict(rtol=1e-12, atol=1e-13),
}
QUICK = settings(max_examples=15, deadline=None, derandomize=True)
DAPO = dict(clip_low=0.2, clip_high=0.28)


def function(name):
  place = surrogates if name in NAMES else surrogate_variants
  return getattr(place, name)


@functools.cache
def program(name, static):
  """jit: -> d sum(w * loss) / d logps, loss and flags."""

  def total(logps_BT, old_BT, advantages_BT, w_BT, mask_BT, clip):
    loss_BT, aux = function(name)(
        logps_BT, old_BT, advantages_BT, mask_BT, **clip, **dict(static)
    )
    return jnp.sum(jnp.where(mask_BT, w_BT * loss_BT, 0)), (loss_BT, aux)

  return quick_jit(jax.grad(total, has_aux=True))


def call(
    name, logps, old, advantage, mask=True, dtype="float32", w=1.0, **clip
):
  """Loss, d loss / d logp and the flags of each token.

  Filled up with padding, so that there is one shape and one program.
  """
  arrays = np.broadcast_arrays(
      *map(np.atleast_2d, (logps, old, advantage, w, mask))
  )
  seen = tuple(map(slice, arrays[0].shape))
  filled = [np.zeros((5, 6), x.dtype) for x in arrays]
  for x, y in zip(filled, arrays, strict=True):
    x[seen] = y
  parameters = inspect.signature(function(name)).parameters.values()
  clip = {
      p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY
  } | clip
  static = tuple((k, clip.pop(k)) for k in ("dual_clip",) if k in clip)
  with jax.enable_x64(dtype == "float64"):
    *floats, mask_BT = filled
    out = program(name, static)(
        *(jnp.array(x, dtype) for x in floats), mask_BT, clip
    )
  grad_BT, (loss_BT, aux) = jax.tree.map(lambda x: np.asarray(x)[seen], out)
  assert loss_BT.dtype == grad_BT.dtype == aux["ratio"].dtype == dtype
  assert set(aux) == {"ratio", "clipped", "clipped_lower"}
  assert aux["clipped"].dtype == aux["clipped_lower"].dtype == bool
  return loss_BT, grad_BT, aux


def of_tokens(name, log_ratios, advantage, dtype="float32", **clip):
  """The same for one response whose old log-probs are 0."""
  loss_BT, grad_BT, aux = call(
      name, [log_ratios], 0.0, [advantage], dtype=dtype, **clip
  )
  return loss_BT[0], grad_BT[0], {k: x[0] for k, x in aux.items()}


# --- PPO ---------------------------------------------------------------------


@DTYPES
def test_ppo_by_hand(dtype):
  """eps .2 / .28 on ratios 1.5 and 0.5, for both signs of the advantage.

  A = +1: min(1.5, 1.28) = 1.28, the upper bound binds, no gradient;
          min(0.5, 0.80) = 0.50, free: d(-r A)/d logp = -r A = -0.5
  A = -1: min(-1.5, -1.28) = -1.5, free: gradient +1.5;
          min(-0.5, -0.80) = -0.8, the lower bound binds, no gradient
  """
  log_ratios = np.log([1.5, 0.5, 1.5, 0.5])
  loss, grad, aux = of_tokens("ppo", log_ratios, [1, 1, -1, -1], dtype, **DAPO)
  np.testing.assert_allclose(loss, [-1.28, -0.5, 1.5, 0.8], **NEAR[dtype])
  np.testing.assert_allclose(grad, [0, -0.5, 1.5, 0], **NEAR[dtype])
  assert aux["clipped"].tolist() == [True, False, False, True]
  assert aux["clipped_lower"].tolist() == [False] * 4
  np.testing.assert_allclose(aux["ratio"], [1.5, 0.5, 1.5, 0.5], **NEAR[dtype])


def test_every_surrogate_has_numbers_by_hand():
  tested = {x[5:-8] for x in globals() if x.endswith("_by_hand")}
  assert public(surrogates) == set(NAMES) <= tested
  assert public(surrogate_variants) == set(VARIANTS) <= tested


@DTYPES
def test_reinforce_by_hand(dtype):
  """-A log p with log p = -1 and -2; only the ratio reads the old log-probs."""
  loss, grad, aux = call(
      "reinforce", [[-1.0, -2.0]], [[-1.0, -1.0]], [[2.0, -3.0]], True, dtype
  )
  np.testing.assert_allclose(loss, [[2, -6]], **NEAR[dtype])
  np.testing.assert_allclose(grad, [[-2, 3]], **NEAR[dtype])
  np.testing.assert_allclose(aux["ratio"], [[1, np.exp(-1)]], **NEAR[dtype])
  assert not aux["clipped"].any() and not aux["clipped_lower"].any()


def test_defaults():
  """PPO .2, GSPO 3e-4 / 4e-4, CISPO 0 to 5; log ratios up to 20; no dual."""
  ratios = np.log([[1.3, 0.7, 6.0]])
  for name, bound in [("ppo", 1.2), ("gspo", 1.0004), ("cispo", 5.0)]:
    for ratio in ratios[0, [0, 2]]:
      loss, _, _ = call(name, [[ratio]], 0.0, 1.0, True, "float64")
      weight = min(np.exp(ratio), bound) * (ratio if name == "cispo" else 1)
      np.testing.assert_allclose(loss, [[-weight]], rtol=1e-12)
  for name, bound in [("ppo", 0.8), ("gspo", 0.9997), ("cispo", 0.7)]:
    loss, _, _ = call(name, ratios[:, 1:2], 0.0, -1.0, True, "float64")
    weight = bound * (ratios[0, 1] if name == "cispo" else 1)
    np.testing.assert_allclose(loss, [[weight]], rtol=1e-12)


@DTYPES
def test_dual_clip_caps_bad_tokens_only(dtype):
  """c = 3, A = -2: the loss r * 2 stops at 6 for r > 3.

  r = 4: 8 -> 6 without gradient; r = 2.5: 5 stays; r = 0.5: the lower bound,
  0.8 * 2 = 1.6; A = +2, r = 4: the upper bound, -1.28 * 2 = -2.56.
  """
  some = "ppo", np.log([4, 2.5, 0.5, 4]), [-2, -2, -2, 2], dtype
  loss, grad, aux = of_tokens(*some, dual_clip=3.0, **DAPO)
  np.testing.assert_allclose(loss, [6, 5, 1.6, -2.56], **NEAR[dtype])
  np.testing.assert_allclose(grad, [0, 5, 0, 0], **NEAR[dtype])
  assert aux["clipped_lower"].tolist() == [True, False, False, False]
  assert aux["clipped"].tolist() == [False, False, True, True]
  loss, grad, _ = of_tokens(*some, **DAPO)
  np.testing.assert_allclose([loss[0], grad[0]], 8, **NEAR[dtype])  # no cap


@DTYPES
@pytest.mark.parametrize("name", ["ppo", "gspo", "cispo"])
def test_log_ratio_is_clamped(name, dtype):
  """To +-20 unless told otherwise; here to +-ln 10. Each token is a row."""
  wide = dict(clip_low=1.0, clip_high=1e12)
  logps, advantage = np.log([[8.0], [16.0], [1e-9]]), [[-1], [-1], [1]]
  loss, grad, aux = call(
      name, logps, 0.0, advantage, True, dtype, log_ratio_max=np.log(10), **wide
  )
  np.testing.assert_allclose(aux["ratio"][:, 0], [8, 10, 0.1], **NEAR[dtype])
  if name == "cispo":  # a weight, not a limit of the gradient
    np.testing.assert_allclose(grad[:, 0], [8, 10, -0.1], **NEAR[dtype])
  else:
    np.testing.assert_allclose(loss[:, 0], [8, 10, -0.1], **NEAR[dtype])
    np.testing.assert_allclose(grad[:, 0], [8, 0, 0], **NEAR[dtype])
  _, _, aux = call(name, [[25.0], [-25.0]], 0.0, -1.0, True, dtype, **wide)
  np.testing.assert_allclose(aux["ratio"][:, 0], np.exp([20, -20]), rtol=2e-6)


EIGHTHS = st.integers(-24, 24).map(lambda n: n / 8)
TOKENS = hnp.arrays(float, 6, elements=EIGHTHS)


@DTYPES
@given(log_ratios=TOKENS, advantage=TOKENS)
@QUICK
def test_ppo_matches_numpy(dtype, log_ratios, advantage):
  clip = dict(clip_low=0.2, clip_high=0.28, dual_clip=3.0)
  loss, grad, aux = of_tokens("ppo", log_ratios, advantage, dtype, **clip)
  wanted = np.array(
      [
          reference.policy_loss(d, a, 0.2, 0.28, 3.0)
          for d, a in zip(log_ratios, advantage, strict=True)
      ]
  )
  np.testing.assert_allclose(loss, wanted, **NEAR[dtype])
  # Zero where a clip decides, and only there: else that of -r A.
  free = np.isclose(wanted, -np.exp(log_ratios) * advantage, rtol=1e-12)
  assert (aux["clipped"] | aux["clipped_lower"]).tolist() == (~free).tolist()
  np.testing.assert_allclose(grad, wanted * free, **NEAR[dtype])


# --- GSPO --------------------------------------------------------------------


@DTYPES
def test_gspo_by_hand(dtype):
  """Ratios 1.21, 1 and 9, the last one outside the mask: s = sqrt(1.21) = 1.1.

  A token that weighs 1/2 has the gradient -s A / 2. With an upper bound of 1.05
  nothing moves for A > 0: 1.05 < 1.1; for A < 0 the bound does not bind.
  """
  mask = np.array([[True, True, False]])
  some = "gspo", np.log([[1.21, 1, 9]]), 0.0
  wide, narrow = dict(clip_low=0.2, clip_high=0.2), dict(clip_high=0.05)
  for clip, advantage, loss, grad, clipped in [
      (wide, 2, -2.2, -1.1, False),
      (wide, -2, 2.2, 1.1, False),
      (narrow, 2, -2.1, 0, True),
      (narrow, -2, 2.2, 1.1, False),
  ]:
    got = call(*some, advantage, mask, dtype, w=0.5, **clip)
    np.testing.assert_allclose(got[0][0, :2], loss, **NEAR[dtype])
    np.testing.assert_allclose(got[1][0], [grad, grad, 0], **NEAR[dtype])
    np.testing.assert_allclose(got[2]["ratio"][0, :2], 1.1, **NEAR[dtype])
    assert (got[2]["clipped"][0, :2] == clipped).all()
    assert not got[2]["clipped_lower"].any()


@given(
    data=st.tuples(
        hnp.arrays(float, (4, 5), elements=EIGHTHS),
        hnp.arrays(bool, (4, 5)),
        hnp.arrays(float, (4, 1), elements=EIGHTHS),
    )
)
@QUICK
def test_gspo_is_the_loss_of_whole_responses(data):
  """Eq 5, value and gradient, if the advantage is constant in a row."""
  logps_BT, mask_BT, advantage_B1 = data
  old_BT = np.full((4, 5), -0.1)
  clip = dict(clip_low=0.2, clip_high=0.3)
  rows = np.flatnonzero(mask_BT.any(1))
  with jax.enable_x64(True):
    w_BT = np.asarray(
        reductions.seq_mean_token_mean(jnp.array(mask_BT, float), None)
    )

  def eq_5(logps_BT):
    return sum(
        reference.gspo(
            logps_BT[b, mask_BT[b]],
            old_BT[b, mask_BT[b]],
            advantage_B1[b, 0],
            clip["clip_low"],
            clip["clip_high"],
        )
        for b in rows
    ) / max(len(rows), 1)

  loss_BT, grad_BT, _ = call(
      "gspo", logps_BT, old_BT, advantage_B1, mask_BT, "float64", w_BT, **clip
  )
  np.testing.assert_allclose(
      (w_BT * loss_BT).sum(), eq_5(logps_BT), rtol=1e-12, atol=1e-13
  )
  assert (grad_BT[~mask_BT] == 0).all()
  for b in rows:
    along = {"x": np.zeros((4, 5))}
    along["x"][b, np.flatnonzero(mask_BT[b])[-1]] = 1
    slope = reference_model.slope(
        lambda leaves: eq_5(leaves["x"]), {"x": logps_BT}, along
    )
    got = (grad_BT * along["x"]).sum()
    np.testing.assert_allclose(got, slope, rtol=1e-6, atol=1e-8)
    alike_T = grad_BT[b, mask_BT[b]]
    np.testing.assert_allclose(alike_T, alike_T[0], rtol=1e-12)


@DTYPES
def test_gspo_with_an_advantage_for_each_token(dtype):
  """Eq 14: one ratio (1, of e and 1/e), tokens weighed by their own A."""
  loss, grad, _ = call("gspo", [[1.0, -1.0]], 0.0, [[3.0, -2.0]], True, dtype)
  np.testing.assert_allclose(loss, [[-3, 2]], **NEAR[dtype])
  np.testing.assert_allclose(grad, [[-3, 2]], **NEAR[dtype])


# --- CISPO, REINFORCE --------------------------------------------------------


@DTYPES
def test_cispo_by_hand(dtype):
  """Ratios 8, 1.5, 0.5 with an upper clip of 5: weights 5, 1.5, 0.5.

  log p is ln(ratio), old log-probs being 0. The gradient is -weight * A, also
  of the token that is clipped. With eps_low .2 the last one weighs 0.8.
  """
  logps, advantage = np.log([8, 1.5, 0.5]), [1, -2, 1]
  for low, last in [(1.0, 0.5), (0.2, 0.8)]:
    weight = np.array([5, 1.5, last])
    loss, grad, aux = of_tokens(
        "cispo", logps, advantage, dtype, clip_low=low, clip_high=4.0
    )
    np.testing.assert_allclose(loss, -weight * advantage * logps, **NEAR[dtype])
    np.testing.assert_allclose(grad, -weight * advantage, **NEAR[dtype])
    assert aux["clipped"].tolist() == [True, False, low == 0.2]
    assert not aux["clipped_lower"].any()


@given(logps=TOKENS, advantage=TOKENS, old=TOKENS)
@QUICK
def test_cispo_and_reinforce_match_numpy(logps, advantage, old):
  """Gradients by differences, CISPO's weight held where it is."""
  logps, old = logps - 3, old - 3
  some = [logps], [old], [advantage], True, "float64"
  loss, grad, _ = call("cispo", *some, clip_low=0.2, clip_high=0.28)
  h = 1e-6
  for t, (logp, before, a) in enumerate(
      zip(logps, old, advantage, strict=True)
  ):

    def at(x, logp=logp, before=before, a=a):
      return reference.cispo(x, before, a, 0.2, 0.28, weight_logp=logp)

    slope = (at(logp + h) - at(logp - h)) / (2 * h)
    np.testing.assert_allclose(loss[0, t], at(logp), rtol=1e-12, atol=1e-13)
    np.testing.assert_allclose(grad[0, t], slope, rtol=1e-6, atol=1e-8)
    assert (grad[0, t] == 0) == (a == 0), "no token stops learning"
  loss, grad, aux = call("reinforce", *some)
  np.testing.assert_array_equal(loss[0], -advantage * logps)
  np.testing.assert_array_equal(grad[0], -advantage)
  np.testing.assert_allclose(aux["ratio"][0], np.exp(logps - old), rtol=1e-12)


# --- variants ----------------------------------------------------------------


@DTYPES
def test_sapo_by_hand(dtype):
  """tau 2 for A > 0, ln 3 for A < 0: gates 4 / tau sigmoid(tau (r - 1)).

  r = 1 + ln(3) / 2: sigmoid(ln 3) = 3/4, the gate is 2 * 3/4 = 3/2, and its
  slope by log p 4 r (3/4) (1/4) = 3 r / 4. r = 2, A < 0: the same sigmoid, the
  gate is 3 / ln 3 and its slope 3/2. r = 1: the slope is 1.
  """
  high = 1 + np.log(3) / 2
  loss, grad, aux = of_tokens(
      "sapo",
      np.log([high, 2, 1]),
      [2, -2, 2],
      dtype,
      tau_positive=2.0,
      tau_negative=np.log(3),
  )
  np.testing.assert_allclose(loss, [-3, 6 / np.log(3), -2], **NEAR[dtype])
  np.testing.assert_allclose(grad, [-1.5 * high, 3, -2], **NEAR[dtype])
  np.testing.assert_allclose(aux["ratio"], [high, 2, 1], **NEAR[dtype])
  assert not aux["clipped"].any()
  far = [[25.0], [-25.0]]
  _, _, aux = call("sapo", far, 0.0, 1.0, True, dtype)
  np.testing.assert_allclose(aux["ratio"][:, 0], np.exp([20, -20]), rtol=2e-6)


@DTYPES
def test_gmpo_by_hand(dtype):
  """Positive advantages clip log r above .4, negative ones below -.4.

  A = 2: .1, .5, -.9 become .1, .4, -.9: s = exp(-.4 / 3). A = -1: .3, -.6
  become .3, -.4: s = exp(-.05). The gradient of a token that weighs 1/|o| is
  -s A / |o|, and 0 if the token is clipped.
  """
  mask = np.array([[1, 1, 1], [1, 1, 0]]) > 0
  loss, grad, aux = call(
      *("gmpo", [[0.1, 0.5, -0.9], [0.3, -0.6, 9]], 0.0, [[2.0], [-1.0]]),
      *(mask, dtype, mask / mask.sum(1, keepdims=True)),
  )
  s = np.exp([-0.4 / 3, -0.05])
  want = np.array([[-2 * s[0]], [s[1]]]) * mask
  np.testing.assert_allclose(loss * mask, want, **NEAR[dtype])
  free = [[1 / 3, 0, 1 / 3], [1 / 2, 0, 0]]
  np.testing.assert_allclose(grad, want * free, **NEAR[dtype])
  clipped = [[False, True, False], [False, True, False]]
  assert (aux["clipped"] & mask).tolist() == clipped


@DTYPES
def test_dppo_by_hand(dtype):
  """Bounds .2 / .3 on p - p_old, with a ratio of at most 2.

  A = 1: .4 to .6 and .4 to .8 (ratios 1.5 and 2), a rise of .2 and of .4: only
  the second has no loss. .01 to .04 is a ratio of 4, which weighs 2. A = -1: .5
  to .4 falls by .1, .5 to .25 by .25: the second has none; .5 to .9 has risen.
  """
  old = np.array([[0.4, 0.4, 0.01, 0.5, 0.5, 0.5]])
  new = np.array([[0.6, 0.8, 0.04, 0.4, 0.25, 0.9]])
  sign = np.array([[1, 1, 1, -1, -1, -1]])
  loss, grad, aux = call(
      *("dppo", np.log(new), np.log(old), sign, True, dtype),
      **dict(change_low=0.2, change_high=0.3, ratio_max=2.0),
  )
  weight = np.array([[1.5, 0, 2, 0.8, 0, 1.8]])
  np.testing.assert_allclose(loss, -weight * sign * np.log(new), **NEAR[dtype])
  np.testing.assert_allclose(grad, -weight * sign, **NEAR[dtype])
  assert aux["clipped"].tolist() == [[False, True, False, False, True, False]]


@DTYPES
def test_vespo_by_hand(dtype):
  """W = 2 (of 1/2 and 4; a third token is masked), A = 3 and A = -3.

  Weights 2^2 exp(-3) and 2^3 exp(-2), for both tokens; their losses are
  -weight A log p, with log p = ln(1/2) and ln(4).
  """
  mask = np.array([[True, True, False]])
  for advantage, weight in [(3, 4 * np.exp(-3)), (-3, 8 * np.exp(-2))]:
    loss, grad, aux = call(
        "vespo", np.log([[0.5, 4, 9]]), 0.0, advantage, mask, dtype
    )
    want = -weight * advantage * np.log([0.5, 4])
    np.testing.assert_allclose(loss[0, :2], want, **NEAR[dtype])
    np.testing.assert_allclose(
        grad[0], [-weight * advantage] * 2 + [0], **NEAR[dtype]
    )
    np.testing.assert_allclose(aux["ratio"][0, :2], 2, **NEAR[dtype])


@DTYPES
def test_ppo_sequence_mask_by_hand(dtype):
  """Means of -log r: .6, .4 (a third token is masked) and -.1; delta is .5.

  Only the first response is far, and of it only tokens with A < 0 leave. Of the
  second, r = e^-.7 and e^-.1 with A = -1: the first is below .8, the second is
  free. Of the third r = e^.1, free.
  """
  logps = [[-0.6, -0.6, 9], [-0.7, -0.1, -9], [0.1, 0.1, 0.1]]
  advantage = np.array([[-1, 1, 0], [-1, -1, 0], [-1, -1, -1]])
  mask = np.array([[1, 1, 0], [1, 1, 0], [1, 1, 1]]) > 0
  loss, grad, aux = call(
      "ppo_sequence_mask", logps, 0.0, advantage, mask, dtype
  )
  r = np.exp([-0.6, -0.1, 0.1])
  want = [[0, -r[0], 0], [0.8, r[1], 0], [r[2]] * 3]
  np.testing.assert_allclose(loss * mask, want, **NEAR[dtype])
  free = np.array([[0, 1, 0], [0, 1, 0], [1, 1, 1]])
  np.testing.assert_allclose(grad, want * free, **NEAR[dtype])
  clipped = [[True, False, False], [True, False, False], [False] * 3]
  assert (aux["clipped"] & mask).tolist() == clipped


def test_the_drift_of_a_sequence_is_measured_from_the_sampler():
  """The trainer's old log-probs have not moved; the sampler's are .6 above."""
  zeros, ones = jnp.zeros((2, 3)), jnp.ones((2, 3), bool)
  mask = ones.at[1, 2].set(False)
  sampler = jnp.array([[0.6] * 3, [0.6, 0.2, 99]])  # a mean of .4
  of = surrogate_variants.ppo_sequence_mask
  loss, aux = of(zeros, zeros, zeros - 1, mask, sampler)
  assert loss.tolist() == [[0] * 3, [1] * 3]
  assert aux["clipped"].tolist() == [[True] * 3, [False] * 3]
  assert of(zeros, zeros, zeros - 1, mask)[0].tolist() == [[1] * 3] * 2
  # Positive responses stay.
  loss, _ = of(zeros, zeros, zeros + 1, mask, sampler)
  assert loss.tolist() == [[-1] * 3] * 2


@pytest.mark.parametrize("name", ["ppo", "gspo", "cispo", "gmpo", "dppo"])
def test_tokens_without_an_advantage_are_not_clipped(name):
  """Ratios of e^-2 and e^2, which each bound would stop."""
  function = getattr(
      surrogate_variants if name in VARIANTS else surrogates, name
  )
  logps = jnp.array([[-2.0, -2, -2], [2, 2, 2]])
  bounds = dict(clip_high=0.1) if name == "cispo" else {}
  mask = jnp.ones((2, 3), bool)
  for advantage, clipped in ((0.0, False), (-1.0, True), (1.0, True)):
    _, aux = function(
        logps, jnp.zeros((2, 3)), jnp.full((2, 3), advantage), mask, **bounds
    )
    assert bool(aux["clipped"].any()) == clipped


def test_defaults_of_variants_are_the_published_ones():
  clamp = dict(log_ratio_max=20.0)
  wanted = dict(
      sapo=dict(tau_positive=1.0, tau_negative=1.05) | clamp,
      gmpo=dict(clip_low=0.4, clip_high=0.4),
      dppo=dict(change_low=0.2, change_high=0.2, ratio_max=20.0) | clamp,
      vespo=dict(
          k_positive=2.0, lam_positive=3.0, k_negative=3.0, lam_negative=2.0
      )
      | clamp,
      ppo_sequence_mask=dict(clip_low=0.2, clip_high=0.2, delta=0.5) | clamp,
  )
  for name in VARIANTS:
    assert function(name).__kwdefaults__ == wanted[name], name


# --- all of them -------------------------------------------------------------


@DTYPES
@pytest.mark.parametrize(
    ("name", "clip"),
    [(name, {}) for name in NAMES + VARIANTS] + [("ppo", dict(dual_clip=3.0))],
)
def test_on_policy_gradient_is_minus_advantage(name, clip, dtype):
  """At r = 1 nothing clips, whatever the sign: plain REINFORCE.

  (Written with max for A < 0, as some write-ups do, it would be 0 there.)
  """
  advantage = np.array([2.0, 0.5, 0.0, -0.5, -2.0])
  logps = [[-0.1, -3.0, 0.0, -30.0, -1.7]]
  _, grad, aux = call(name, logps, logps, advantage, True, dtype, **clip)
  near = dict(rtol=2e-7, atol=0) if name in VARIANTS else dict(rtol=0)
  np.testing.assert_allclose(grad[0], -advantage, **near)
  assert (aux["ratio"] == 1).all()
  assert not aux["clipped"].any() and not aux["clipped_lower"].any()


@pytest.mark.parametrize("name", NAMES + VARIANTS)
def test_what_is_hidden_does_not_leak(name):
  """Numbers that are not stay where they are: neighbours do not see them."""
  rng = np.random.default_rng(0)
  some = [rng.normal(size=(3, 4)) for _ in range(3)]
  mask_BT = np.array([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]]) > 0
  loss, grad, _ = call(name, *some, mask_BT)
  for bad in (np.nan, np.inf, -np.inf):
    hidden = [np.where(mask_BT, x, bad) for x in some]
    loss_, grad_, _ = call(name, *hidden, mask_BT)
    np.testing.assert_array_equal(loss_[mask_BT], loss[mask_BT])
    np.testing.assert_array_equal(grad_[mask_BT], grad[mask_BT])


@DTYPES
@pytest.mark.parametrize("name", NAMES + VARIANTS)
def test_extreme_log_probs_stay_finite(name, dtype):
  """Log-probs of 0 and of tokens that all but cannot happen."""
  logps, old = [[-1e4], [0], [-1e4], [-1e-30]], [[0], [-1e4], [-1e4], [0]]
  loss, grad, _ = call(name, logps, old, [[5], [-5], [5], [-5]], True, dtype)
  assert np.isfinite(loss).all() and np.isfinite(grad).all()


@pytest.mark.parametrize("name", NAMES + VARIANTS)
@pytest.mark.parametrize("odd", range(4))
def test_shapes_are_checked(name, odd):
  """A [B, 1] advantage or a [B] mask would broadcast in silence."""
  for shape in [(2, 1), (3,)]:
    arrays = [jnp.zeros((2, 3))] * 4
    arrays[odd] = jnp.zeros(shape)
    with pytest.raises(AssertionError):
      function(name)(*arrays)
