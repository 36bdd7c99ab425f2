"""Theorems about the algorithms, and the worked numbers of docs/errata.md.

Expectations are sums over all outcomes (`studies/theorems/run.py`), in float64.
"""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from by_hand import QUICK, close, quick_jit
from conftest import ROOT
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from bench import results
from rl_reason.algorithms import (
    advantages,
    reductions,
    surrogates,
)
from rl_reason.features.mismatch_corrections import corrections
from studies.theorems import run as theorems

# --- the worked numbers of papers and write-ups ------------------------------

PAGE = (ROOT / "docs" / "errata.md").read_text()
SECTION = PAGE.partition("## Worked numbers")[2].partition("\n## ")[0]
ROWS = re.findall(r"^\| .* \| (.*) \|$", SECTION, re.M)[1:]
REWARDS = (0.7, 0.5, 0.9)
LENGTHS = np.array([3, 10, 20, 30])
CELLS = 1000  # of [0, 1]


def clip_ceiling(*old, high):
  """Largest probabilities whose gradient is not 0, for A = 1."""
  old_A1 = jnp.array(old)[:, None]
  ratio_T = jnp.linspace(1, 1.5, 5001)

  def total(logps_AT):
    log_AT = jnp.broadcast_to(jnp.log(old_A1), logps_AT.shape)
    ones_AT = jnp.ones_like(logps_AT)
    return surrogates.ppo(logps_AT, log_AT, ones_AT, ones_AT, clip_high=high)[
        0
    ].sum()

  moves_AT = jax.grad(total)(jnp.log(old_A1 * ratio_T)) != 0
  return (old_A1 * ratio_T * moves_AT).max(1)


def rewards_of_a_group():
  """R - mean; by the standard deviation of G - 1, of G; leave-one-out."""
  arrays = jnp.array(REWARDS), jnp.zeros(3, int)
  return jnp.concatenate(
      [
          advantages.group_mean(*arrays),
          advantages.group_norm(*arrays),
          advantages.group_norm(*arrays, ddof=0),
          advantages.leave_one_out(*arrays),
      ]
  )


def weights(name):
  """Of a token of each response, and of each whole response."""
  mask_BT = 1.0 * (np.arange(30) < LENGTHS[:, None])
  w_BT = getattr(reductions, name)(jnp.array(mask_BT), jnp.zeros(4, int))
  return jnp.concatenate([w_BT[:, 0], w_BT.sum(1)])


@quick_jit
def integral():
  """Mean of x^2 over [0, 1], by samples of density 2 x.

  As if on-policy, 1/2; by the ratio 1 / (2 x), 1/3; by PPO's clip at 1.2, .6
  (1 / 2.4)^4 + (1 - (1 / 2.4)^3) / 3; by the ratio up to 2, (1 / 4)^4 + (1 -
  (1 / 4)^3) / 3.
  """
  x_T = (np.arange(CELLS) + 0.5) / CELLS
  old_BT, flat_BT = (jnp.log(jnp.array([x])) for x in (2 * x_T, 0 * x_T + 1))
  square_BT, ones_BT = jnp.array([x_T**2]), jnp.ones((1, CELLS))

  def mean(factor_BT):
    return (2 * x_T * factor_BT).mean()

  def objective(logps_BT, **clip):
    return mean(
        -surrogates.ppo(logps_BT, old_BT, square_BT, ones_BT, **clip)[0]
    )

  truncated_BT = corrections.truncate(flat_BT, old_BT, ones_BT, high=2.0)
  return (
      objective(old_BT),
      objective(flat_BT, clip_low=1.0, clip_high=1e4),
      objective(flat_BT),
      mean(square_BT * truncated_BT),
  )


def group_variances():
  """Variance of A for K = 2, 4, 8, in units of the variance of R."""
  return [
      theorems.group_moments(name, size, 0.3)[1]
      for name in ("group_mean", "leave_one_out")
      for size in (2, 4, 8)
  ]


WORKED = {  # in the order of the rows
    "clip": quick_jit(functools.partial(clip_ceiling, 0.01, 0.9, high=0.2)),
    "clip-higher": quick_jit(functools.partial(clip_ceiling, 0.01, high=0.28)),
    "rewards": quick_jit(rewards_of_a_group),
    "sample level": quick_jit(
        functools.partial(weights, "seq_mean_token_mean")
    ),
    "token level": quick_jit(functools.partial(weights, "token_mean")),
    "integral": integral,
    "variances": group_variances,
}


@pytest.mark.parametrize(
    ("row", "name"), [*zip(ROWS, WORKED, strict=True)], ids=WORKED
)
def test_worked_numbers(row, name):
  """The last cell of a row has exactly these numbers, to three digits."""
  with jax.enable_x64(True):
    found = [round(float(x), 12) + 0.0 for x in WORKED[name]()]  # no -0
  assert [f"{x:.3g}" for x in found] == re.findall(r"-?\d+(?:\.\d+)?", row)


def test_the_integral_by_its_formula():
  with jax.enable_x64(True):
    on_policy, weighted, clipped, truncated = integral()
  # The midpoints of 1,000 cells are off by 1e-7.
  close(on_policy, 1 / 2, atol=3e-7)
  close(weighted, 1 / 3, atol=1e-7)
  close(clipped, 0.6 / 2.4**4 + (1 - 2.4**-3) / 3, atol=1e-6)
  close(truncated, 4**-4 + (1 - 4**-3) / 3, atol=1e-6)


# --- baselines of groups -----------------------------------------------------

ACCURACIES = st.floats(0.05, 0.95)


@pytest.mark.parametrize("size", [2, 3, 8, 13])
@given(p=ACCURACIES)
@QUICK
def test_moments_of_group_baselines(size, p):
  """R - mean has (K - 1) / K of variance and gradient; leave-one-out is whole.

  GRPO's A: the squares of a group add up to K - 1, unless all are equal.
  """
  share = (size - 1) / size
  found = theorems.group_moments("group_mean", size, p)
  close(found, (0, share, share), rtol=1e-9, atol=1e-12)
  found = theorems.group_moments("leave_one_out", size, p)
  close(found, (0, 1 / share, 1), rtol=1e-9, atol=1e-12)
  mean, variance, _ = theorems.group_moments("group_norm", size, p)
  differ = 1 - p**size - (1 - p) ** size
  close((mean, variance * p * (1 - p)), (0, share * differ), atol=1e-5)


@pytest.mark.parametrize("size", [2, 8])
def test_variance_of_rewards_of_any_size(size):
  """Normal rewards, 20,000 groups: within 5 standard errors of the variance."""
  groups = 20_000
  rewards_NK = np.random.default_rng(size).normal(3, 2, (groups, size))
  error = 5 * (2 / groups / (size - 1)) ** 0.5
  share = (size - 1) / size
  for name, factor in (("group_mean", share), ("leave_one_out", 1 / share)):
    function = jax.vmap(getattr(advantages, name), (0, None))
    found = quick_jit(function)(jnp.array(rewards_NK), jnp.zeros(size, int))
    close(np.mean(np.square(found)) / 4, factor, rtol=error)


def test_a_simulation_of_a_write_up_agrees():
  """.502, .749, .874 and 2.01, 1.33, 1.14: within its own noise."""
  wanted = [0.502, 0.749, 0.874, 2.01, 1.33, 1.14]
  close(group_variances(), wanted, rtol=0.006)


# --- TD, n-step, Monte Carlo and lambda --------------------------------------

TOKENS, STATES = 4, 3
EIGHTHS = st.integers(-8, 8).map(lambda n: n / 8)


@st.composite
def chains(draw):
  """A chain, and a critic that is wrong by anything, but 0 at the end."""
  odds_SS = draw(
      hnp.arrays(float, (STATES, STATES), elements=st.integers(1, 9))
  )
  chain = theorems.Chain(
      odds_SS / odds_SS.sum(1, keepdims=True),
      draw(hnp.arrays(float, STATES, elements=EIGHTHS)),
      TOKENS,
      draw(st.sampled_from([0.5, 0.9, 1.0])),
  )
  wrong_TS = draw(hnp.arrays(float, (TOKENS + 1, STATES), elements=EIGHTHS))
  wrong_TS[-1] = 0
  return chain, wrong_TS


def later_errors(chain, wrong_TS):
  """Expected critic's error after n tokens, n = 0 to T, discounted: [T + 1]."""
  state_S, found = np.eye(STATES)[0], []
  for t, wrong_S in enumerate(wrong_TS):
    found.append(chain.gamma**t * state_S @ wrong_S)
    state_S = state_S @ chain.moves_SS
  return np.array(found)


def mixture(lam, steps):
  """Weights of the returns of 1 to `steps` steps in a lambda-return."""
  weights_N = (1 - lam) * lam ** np.arange(steps)
  weights_N[-1] = lam ** (steps - 1)
  return weights_N


@given(case=chains())
@QUICK
def test_n_step_targets_are_rewards_and_a_later_value(case):
  """On each path r_0 + ... + gamma^n V(s_n); the bias is the error there."""
  chain, wrong_TS = case
  critic_TS = theorems.values(chain) + wrong_TS
  states_NT, _ = theorems.paths(chain)
  errors_T = later_errors(chain, wrong_TS)
  rewards_NT = chain.rewards_S[states_NT[:, 1:]]
  discounts_T = chain.gamma ** np.arange(TOKENS)
  for n in range(1, TOKENS + 1):
    lam_T = theorems.after(n, chain)
    wanted_N = rewards_NT[:, :n] @ discounts_T[:n]
    wanted_N += chain.gamma**n * critic_TS[n, states_NT[:, n]]
    got_N = theorems.first_targets(chain, critic_TS, lam_T)
    close(got_N, wanted_N, rtol=1e-9, atol=1e-12)
    bias, _ = theorems.bias_and_variance(chain, critic_TS, lam_T)
    close(bias, errors_T[n], atol=1e-12)


@given(case=chains(), lam=st.sampled_from([0.3, 0.95]), n=st.integers(1, 4))
@QUICK
def test_bias_of_lambda_returns_whole_and_truncated(case, lam, n):
  """A mixture of n-step returns; what is cut off is (gamma lam)^n A_n."""
  chain, wrong_TS = case
  critic_TS = theorems.values(chain) + wrong_TS
  errors_T = later_errors(chain, wrong_TS)
  for steps, lams in (
      (TOKENS, lam),
      (n, theorems.after(n, chain, lam)),
  ):
    bias, _ = theorems.bias_and_variance(chain, critic_TS, lams)
    wanted = mixture(lam, steps) @ errors_T[1 : steps + 1]
    close(bias, wanted, atol=1e-12)
  states_NT, chance_N = theorems.paths(chain)
  values_NT = critic_TS[np.arange(TOKENS), states_NT[:, :-1]]
  rewards_NT = chain.rewards_S[states_NT[:, 1:]]
  next_NT = np.append(values_NT[:, 1:], 0 * values_NT[:, :1], axis=1)
  deltas_NT = rewards_NT + chain.gamma * next_NT - values_NT
  left_T = (chain.gamma * lam) ** np.arange(n, TOKENS)
  whole, cut = (
      chance_N @ theorems.first_targets(chain, critic_TS, x)
      for x in (lam, theorems.after(n, chain, lam))
  )
  close(whole - cut, chance_N @ (deltas_NT[:, n:] @ left_T), atol=1e-12)


@given(case=chains())
@QUICK
def test_targets_of_a_right_critic_have_no_bias_and_add_up_variance(case):
  """TD errors are then uncorrelated: (gamma lam)^2j of each one's variance."""
  chain, _ = case
  true_TS = theorems.values(chain)
  later_TS = chain.rewards_S + chain.gamma * true_TS[1:]
  spread_TS = (later_TS**2) @ chain.moves_SS.T - true_TS[:-1] ** 2
  state_S, of_error_T = np.eye(STATES)[0], []
  for spread_S in spread_TS:
    of_error_T.append(state_S @ spread_S)
    state_S = state_S @ chain.moves_SS
  weights_T = chain.gamma ** (2 * np.arange(TOKENS))
  seen = []
  for lam in (0.0, 0.5, 0.95, 1.0):
    weighted_T = weights_T * lam ** (2 * np.arange(TOKENS))
    bias, variance = theorems.bias_and_variance(chain, true_TS, lam)
    close(bias, 0, atol=1e-12)
    close(variance, weighted_T @ of_error_T, atol=1e-12)
    seen.append(variance)
  for n in range(1, TOKENS + 1):
    found = theorems.bias_and_variance(chain, true_TS, theorems.after(n, chain))
    wanted = weights_T[:n] @ of_error_T[:n]
    close(found, (0, wanted), atol=1e-12)
  assert (np.diff(seen) >= -1e-12).all()


def test_monte_carlo_does_not_ask_the_critic():
  """lambda 1: no bias and one variance, whatever the values; TD(0) has both."""
  chain = theorems.CHAIN
  true_TS = theorems.values(chain)
  found = [
      theorems.bias_and_variance(chain, share * true_TS, 1.0)
      for share in (0.0, 0.5, 1.0)
  ]
  close(found, [found[0]] * 3, atol=1e-12)
  bias, variance = theorems.bias_and_variance(chain, 0.5 * true_TS, 0.0)
  assert bias < -0.2 and variance < found[0][1] / 10


# --- the clipped surrogate on a bandit ---------------------------------------

LOGITS = hnp.arrays(
    float, 4, elements=st.integers(-24, 24).map(lambda n: n / 8)
)


@given(old_A=LOGITS, new_A=LOGITS, rewards_A=LOGITS)
@QUICK
def test_the_reward_rises_by_at_least_the_surrogate(old_A, new_A, rewards_A):
  """Without a clip by exactly that much."""
  gain = theorems.expected(new_A, rewards_A) - theorems.expected(
      old_A, rewards_A
  )
  for clip in (0.05, 0.2):
    value, _ = theorems.surrogate(new_A, old_A, rewards_A, clip)
    assert value <= gain + 1e-12
  chance_A = np.exp(old_A - old_A.max())
  chance_A /= chance_A.sum()
  value, slope_A = theorems.surrogate(old_A, old_A, rewards_A, 0.2)
  reward_A = rewards_A - chance_A @ rewards_A
  close(value, 0, atol=1e-12)
  close(slope_A, chance_A * reward_A, atol=1e-12)  # that of the reward


def test_without_a_clip_the_surrogate_is_the_gain():
  old_A, new_A = np.log([0.1, 0.2, 0.3, 0.4]), np.log([0.15, 0.25, 0.25, 0.35])
  value, _ = theorems.surrogate(new_A, old_A, np.array([1.0, 0, 0, -1]), 1.0)
  close(value, (0.15 - 0.35) - (0.1 - 0.4), atol=1e-12)


@given(rewards_A=LOGITS)
@QUICK
def test_small_steps_raise_the_reward_with_every_rollout(rewards_A):
  """Eight gradient steps, beyond the clip, on each of six rollouts."""
  rewards_A, logits_A = rewards_A / 3, np.zeros(4)
  for _ in range(6):
    old_A = logits_A
    before = theorems.expected(old_A, rewards_A)
    for _ in range(8):
      _, slope_A = theorems.surrogate(logits_A, old_A, rewards_A, 0.2)
      logits_A = logits_A + 0.4 * slope_A
      value, _ = theorems.surrogate(logits_A, old_A, rewards_A, 0.2)
      gain = theorems.expected(logits_A, rewards_A) - before
      assert gain >= value - 1e-12
      assert value > 0 or np.ptp(rewards_A) == 0


def test_with_a_dual_clip_the_surrogate_is_no_lower_bound():
  """Even odds, two arms of reward 0 and two of 1: ratios 1.9 and .1.

  J falls from .5 to .05, by .45. The surrogate is (1.9 (-.5) + .1 (.5)) / 2 =
  -.45; with c = 1.5 it is (1.5 (-.5) + .1 (.5)) / 2 = -.35.
  """
  rewards_A = np.array([0.0, 0, 1, 1])
  some = np.log([0.95, 0.95, 0.05, 0.05]), np.zeros(4), rewards_A, 0.2
  close(theorems.surrogate(*some)[0], -0.45, atol=1e-12)
  close(theorems.surrogate(*some, dual_clip=1.5)[0], -0.35, atol=1e-12)


# --- the committed data ------------------------------------------------------


def test_the_committed_numbers_are_those_of_the_code():
  wanted, found = results.read("theorems"), theorems.measure(None)
  for data in (wanted, found):
    del data["environment"], data["command"]
  assert wanted.keys() == found.keys()
  for path, x in jax.tree_util.tree_leaves_with_path(wanted):
    y = functools.reduce(
        lambda y, k: y[getattr(k, "key", getattr(k, "idx", None))], path, found
    )
    close(x, y, rtol=1e-6, atol=1e-9, err_msg=str(path))
