"""docs/errata.md: each number of its errata is computed here."""

import itertools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conftest import ROOT

from rl_reason.algorithms import (
    advantage_variants,
    advantages,
    kl,
    reductions,
    schedules,
    surrogates,
    values,
    variants,
)
from rl_reason.features.earlier_steps import history
from rl_reason.features.mixed_values import critic_mixture
from rl_reason.features.token_reweighting import token_factors
from rl_reason.features.unequal_groups import group_sizes

pytestmark = pytest.mark.slow
PAGE = (ROOT / "docs" / "errata.md").read_text()
ERRATA = re.findall(r"^\| .* \|$", PAGE.split("## Errata")[-1], re.M)[1:]
ONE_BT = jnp.ones((1, 1))


def show(x: float) -> str:
  """A number as the page has it: three digits."""
  return f"{float(x) + 0.0:.3g}"  # no -0


def clip_below():
  """Gradients at r = 1, A = -1, of max(r A, .8 A) and of ppo."""
  theirs = jax.grad(lambda r: jnp.maximum(-r, -0.8))(1.0)
  ours = jax.grad(
      lambda x: -surrogates.ppo(x * ONE_BT, 0 * ONE_BT, -ONE_BT, ONE_BT)[
          0
      ].sum()
  )(0.0)
  return theirs, ours


def lambda_by_offset():
  """Weight of the reward at offset 3 of 4 tokens."""
  lam = [0.95 * math.exp(-j / 4) for j in range(4)]
  ours = advantage_variants.gae_exp_complexity(
      jnp.array([[0.0, 0, 0, 1]]),
      jnp.zeros((1, 4)),
      jnp.ones((1, 4)),
      jnp.zeros(1),
      decay=1.0,
      slope=0.0,
  )[0, 0]
  return lam[3] ** 3, ours


def value_mixture():
  """Share of the pretrained value at an explained variance of -2."""
  ours = critic_mixture.mixture(1.0, 0.0, 0.0, -2.0, mix=0.5)
  return 0.5 / (1 - 2), ours


def group_of_one():
  """Advantage of a group of one; sizes for lengths 1 and 15 of 16 rows."""
  alone = advantages.group_norm(jnp.ones(1), jnp.zeros(1, int))[0]
  return alone, group_sizes.by_length(np.array([1.0, 15.0]), 16).min()


def own_baseline():
  """Share of the true gradient at accuracy .1 and .9, in groups of two.

  Correct responses have one token, incorrect ones 16; weights are |o|^-1/2.
  """

  def share(p, exclude):
    out = 0.0
    for pair in itertools.product((1, 0), repeat=2):
      rewards_B, chance = np.array(pair, float), np.prod(
          [p if x else 1 - p for x in pair]
      )
      mask_BT = np.arange(16) < np.where(rewards_B > 0, 1, 16)[:, None]
      if exclude:
        advantages_B = np.array(
            advantage_variants.length_weighted(
                jnp.array(rewards_B), jnp.zeros(2, int), jnp.array(mask_BT)
            )
        )
      else:
        weights_B = mask_BT.sum(1) ** -0.5
        advantages_B = rewards_B - weights_B @ rewards_B / weights_B.sum()
      out += chance * (advantages_B * (rewards_B - p)).mean()
    return out / (p * (1 - p))

  assert share(0.1, True) == pytest.approx(1)
  return share(0.1, False), share(0.9, False)


def unscaled_mixture():
  """Share of a whitened part in a sum with rewards of +-100, and here."""
  rewards_B = jnp.array([1.0, -1, 1, -1])
  here = [
      advantage_variants.hierarchical(
          x, jnp.array([0, 0, 1, 1]), jnp.ones(4, bool)
      )
      for x in (rewards_B, 100 * rewards_B)
  ]
  np.testing.assert_allclose(*here, rtol=1e-4)
  return 1 / (1 + 100), 0.5


def length_penalty():
  """Penalties at the limit of 20,480 tokens: log(1 + |o|), and here."""
  penalty = [
      variants.logquad(
          jnp.zeros(1), jnp.full(1, x), jnp.full(1, 20480), 20480, coef=1.0
      )[0]
      for x in (1.0, 0.0)
  ]
  assert penalty == [-1, -1]
  return math.log(1 + 20480), -penalty[0]


def length_weight():
  """The factor of a response of four times the median, alpha .5."""
  lengths_B = np.array([1, 4, 16])
  mask_BT = jnp.array(np.arange(16) < lengths_B[:, None], jnp.float32)
  return (token_factors.length_factor(mask_BT, 0.5)[2],)


def two_hot():
  """The mean of the distribution of a return of .33."""
  weights = values.two_hot(jnp.array(0.33), 41, -2.0, 2.0)
  return (weights @ np.linspace(-2, 2, 41),)


def ties():
  """Rank advantages of seven equal rewards below one: first, last; here."""
  ours = advantage_variants.rank(jnp.array([0.0] * 7 + [1]), jnp.zeros(8, int))
  return (1 - 4.5) / 4, (7 - 4.5) / 4, ours[0]


def old_samples():
  """Weight of a response that is now a tenth as likely."""
  ours = history.past_weights(
      jnp.log(jnp.array([[0.05]])), jnp.log(jnp.array([[0.5]])), ONE_BT
  )
  return 1.0, ours[0]


def cut_ratio():
  """Gradient of the objective at r = .05, A = 1, by the bound of log r."""

  def gradient(bound):
    return -jax.grad(
        lambda x: surrogates.ppo(
            x * ONE_BT, 0 * ONE_BT, ONE_BT, ONE_BT, log_ratio_max=bound
        )[0].sum()
    )(math.log(0.05))

  return gradient(math.log(10)), gradient(20.0)


def warmup():
  """Share of the learning rate in step 100 of a warm-up of 10 steps."""
  ours = schedules.learning_rate("constant", peak=1.0, warmup=10, total=1000)
  assert float(ours(0)) == pytest.approx(0.1)
  return min(1, 10 / 100), ours(100)


def trust_region():
  """KL(old || new) of the last quarter of the steps, staleness 0 and 8."""
  table = (ROOT / "studies" / "staleness" / "staleness.md").read_text()
  rows = [x.split(" | ") for x in table.splitlines() if x.startswith("| S = ")]
  at = [x for x in table.splitlines() if "update KL" in x][0].split(" | ")
  column = [i for i, x in enumerate(at) if x.startswith("update KL")][0]
  kls = {x[0].strip("| "): float(x[column].split()[0]) for x in rows}
  return kls["S = 0"], kls["S = 8, none"]


def group_variance():
  """Variance of R - mean, in units of the variance of R: G = 2 and G = 16."""

  def variance(size):
    rewards_G = np.zeros(size)
    rewards_G[0] = 1  # one of the independent rewards changes by one
    advantages_G = advantages.group_mean(
        jnp.array(rewards_G), jnp.zeros(size, int)
    )
    return (advantages_G**2).sum()

  return variance(2), variance(16)


def k3_gradient():
  """Gradients of k3 and of k2 at d = 1: k2's is that of the reverse KL."""
  gradients = [
      jax.grad(lambda x, f=f: f(x * ONE_BT, 0 * ONE_BT).sum())(1.0)
      for f in (kl.k3, kl.k2)
  ]
  return tuple(gradients)


def equal_rewards():
  """(R - mean) / (std + 1e-6) of sixteen float32 .7, and group_norm."""
  rewards_B = np.full(16, 0.7, np.float32)
  mean = np.float32(rewards_B.cumsum(dtype=np.float32)[-1] / np.float32(16))
  off = rewards_B - mean
  std = np.sqrt((off**2).sum() / 15)
  ours = advantages.group_norm(jnp.array(rewards_B), jnp.zeros(16, int))
  return abs(off[0] / (std + 1e-6)), ours[0]


def lambda_of_short_responses():
  """VAPO's 1 - 1 / (.05 |o|) at 10 tokens; A of a reward there, 9 tokens on."""
  rewards_BT = jnp.zeros((1, 10)).at[0, -1].set(1.0)
  ours = advantages.gae_length_adaptive(
      rewards_BT, jnp.zeros((1, 10)), jnp.ones((1, 10)), alpha=0.05
  )
  return 1 - 1 / (0.05 * 10), ours[0, 0]


def token_means():
  """Weight of a token of one of two prompts, with 1 and 3 tokens."""
  mask_BT = jnp.array([[1.0, 0, 0], [1, 1, 1]])
  prompts_B = jnp.array([0, 1])
  return (
      reductions.prompt_token_mean(mask_BT, prompts_B)[0, 0],
      reductions.token_mean(mask_BT, prompts_B)[0, 0],
  )


# In the order of the rows.
PROOFS = (
    *(clip_below, lambda_by_offset, value_mixture, group_of_one),
    *(own_baseline, unscaled_mixture, length_penalty, length_weight),
    *(two_hot, ties, old_samples, cut_ratio, warmup, trust_region),
    *(group_variance, k3_gradient, equal_rewards),
    *(lambda_of_short_responses, token_means),
)


@pytest.mark.parametrize(
    "at", range(len(PROOFS)), ids=lambda at: PROOFS[at].__name__
)
def test_the_numbers_of_an_erratum(at):
  written = re.findall(r"-?\d+(?:\.\d+)?", ERRATA[at])
  for number in PROOFS[at]():
    assert show(number) in written


def test_each_erratum_has_a_proof():
  assert len(ERRATA) == len(PROOFS)
