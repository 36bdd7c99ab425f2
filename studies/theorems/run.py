"""Theorems of policy gradients, computed with the functions of the package.

  python -m studies.theorems.run          # seconds; nothing is sampled
  python -m studies.theorems.run --table  # only page and figure, from JSON

Every expectation is a sum over all outcomes: over the numbers of correct
responses of a group, over all paths of a small Markov chain, over the arms of a
bandit. Writes theorems.json, .md and .png (the figure needs
matplotlib). tests/test_theorems.py compares these functions with the formulas.
"""

import functools
import itertools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bench import results
from rl_reason.algorithms import advantages, credit, surrogates
from rl_reason.report import figures

SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
TICKS = (2, 4, 8, 16, 32, 64)
ACCURACY = 0.3
LAMBDAS = (0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
TRUNCATED = 0.9  # the lambda that is cut off after some tokens
ARMS = (0.0, 0.2, 0.5, 1.0)  # rewards
CLIP, RATE, STEPS = 0.2, 0.2, 24


# --- baselines of groups -----------------------------------------------------


@functools.partial(jax.jit, static_argnums=0)
def _of_groups(name, rewards_NR, groups_R):
  function = jax.vmap(getattr(advantages, name), (0, None))
  return function(rewards_NR, groups_R)


def group_moments(
    name: str, size: int, accuracy: float
) -> tuple[float, float, float]:
  """Moments of an advantage over all groups of independent 0/1 rewards.

  Args:
    name: of a function of `advantages` that takes rewards and groups.
    size: K, responses in a group; at most the last of `SIZES`.
    accuracy: p, the chance of a correct response.

  Returns:
    Mean of A, variance of A in units of the variance of R, and the mean of the
    gradient A d log pi in units of the true gradient of p.
  """
  correct_N = np.arange(SIZES[-1] + 1)
  chance_N = np.array(
      [
          math.comb(size, n) * accuracy**n * (1 - accuracy) ** (size - n)
          for n in correct_N
      ]
  )
  # One program for all sizes: the rows behind K are another group.
  rewards_NR = 1.0 * (np.arange(SIZES[-1]) < correct_N[:, None])
  groups_R = np.arange(SIZES[-1]) >= size
  with jax.enable_x64(True):
    found = _of_groups(name, jnp.array(rewards_NR), jnp.array(groups_R))
    advantages_NK = np.asarray(found)[:, :size]
  rewards_NK = rewards_NR[:, :size]
  mean = chance_N @ advantages_NK.mean(1)
  variance = chance_N @ (advantages_NK**2).mean(1) - mean**2
  # d log pi by the logit of p is R - p, and dp by the logit is p (1 - p).
  gradient = chance_N @ (advantages_NK * (rewards_NK - accuracy)).mean(1)
  unit = accuracy * (1 - accuracy)
  return mean, variance / unit, gradient / unit


# --- targets of the critic ---------------------------------------------------


class Chain(NamedTuple):
  """A Markov chain that writes a response; it begins in state 0.

  Attributes:
    moves_SS: probability of the next state (second axis) in a state.
    rewards_S: reward of a token that leads to a state.
    tokens: T, of each response.
    gamma: discount per token.
  """

  moves_SS: np.ndarray
  rewards_S: np.ndarray
  tokens: int
  gamma: float = 1.0


# Nine tokens of ten leave a response as it was, good or bad; each token after
# which it is good adds a tenth to the return.
CHAIN = Chain(
    np.array([[0.9, 0.1], [0.1, 0.9]]), np.array([0.1, 0.0]), tokens=10
)
SHARE = 0.5  # what the critic predicts of the true value


def values(chain: Chain) -> np.ndarray:
  """True values of each state before each token, [T + 1, S]; 0 at the end."""
  found = [np.zeros(len(chain.rewards_S))]
  for _ in range(chain.tokens):
    found.append(chain.moves_SS @ (chain.rewards_S + chain.gamma * found[-1]))
  return np.array(found[::-1])


def paths(chain: Chain) -> tuple[np.ndarray, np.ndarray]:
  """All sequences of states, [N, T + 1], and their probabilities, [N]."""
  states = range(len(chain.rewards_S))
  states_NT = np.array(
      [(0, *x) for x in itertools.product(states, repeat=chain.tokens)]
  )
  return states_NT, chain.moves_SS[states_NT[:, :-1], states_NT[:, 1:]].prod(1)


_targets = jax.jit(credit.targets)  # one program for all lambdas


def first_targets(
    chain: Chain, critic_TS: np.ndarray, lam: float | np.ndarray
) -> np.ndarray:
  """The critic's target at the first token of each path, [N].

  Args:
    chain: the chain.
    critic_TS: [T + 1, S], the critic's values; the last row is not read.
    lam: lambda, or one for each token, [T].
  """
  states_NT, _ = paths(chain)
  critic_NT = critic_TS[np.arange(chain.tokens), states_NT[:, :-1]]
  with jax.enable_x64(True):
    found, _ = _targets(
        jnp.array(chain.rewards_S[states_NT[:, 1:]]),
        jnp.array(critic_NT),
        jnp.ones_like(critic_NT),
        gamma=chain.gamma,
        lam=jnp.broadcast_to(jnp.asarray(lam, float), chain.tokens),
    )
    return np.asarray(found[:, 0])


def after(steps: int, chain: Chain, lam: float = 1.0) -> np.ndarray:
  """lambda by token that ends the sum of TD errors after some tokens.

  With lam = 1 the target is the n-step return, otherwise the truncated
  lambda-return.
  """
  return lam * (np.arange(chain.tokens) < steps - 1)


def bias_and_variance(
    chain: Chain, critic_TS: np.ndarray, lam: float | np.ndarray
) -> tuple[float, float]:
  """Of the critic's target at the first token, over all paths."""
  _, chance_N = paths(chain)
  targets_N = first_targets(chain, critic_TS, lam)
  mean = chance_N @ targets_N
  bias = mean - values(chain)[0, 0]
  return bias, chance_N @ (targets_N - mean) ** 2


# --- a bandit ----------------------------------------------------------------


@functools.partial(jax.jit, static_argnames="dual_clip")
@jax.value_and_grad
def _objective(logits_A, old_A, rewards_A, clip, dual_clip):
  old_logps_A = jax.nn.log_softmax(old_A)
  chance_A = jnp.exp(old_logps_A)
  advantages_A = rewards_A - chance_A @ rewards_A
  rows = jax.nn.log_softmax(logits_A), old_logps_A, advantages_A
  loss_A1, _ = surrogates.ppo(
      *(x[:, None] for x in rows),
      jnp.ones((len(chance_A), 1)),
      clip_low=clip,
      clip_high=clip,
      dual_clip=dual_clip,
  )
  return -chance_A @ loss_A1[:, 0]


def surrogate(
    logits_A: np.ndarray,
    old_A: np.ndarray,
    rewards_A: np.ndarray,
    clip: float,
    dual_clip: float = 0.0,
) -> tuple[float, np.ndarray]:
  """Expected objective of PPO over the arms of a bandit, and its gradient.

  Args:
    logits_A: of the policy.
    old_A: logits of the policy that samples.
    rewards_A: of the arms; the advantage is their difference from the old
      policy's expected reward.
    clip: the epsilon of both bounds.
    dual_clip: as in `surrogates.ppo`.
  """
  with jax.enable_x64(True):
    arrays = (jnp.asarray(x, float) for x in (logits_A, old_A, rewards_A))
    value, slope_A = _objective(*arrays, clip, dual_clip)
    return float(value), np.asarray(slope_A)


def expected(logits_A: np.ndarray, rewards_A: np.ndarray) -> float:
  """Expected reward of the softmax policy."""
  chance_A = np.exp(logits_A - np.max(logits_A))
  return float(chance_A @ rewards_A / chance_A.sum())


def ascent(
    rewards_A: np.ndarray, clip: float, rate: float, steps: int
) -> list[tuple[float, float]]:
  """Surrogate and gain of reward after each gradient step from even odds.

  All steps are of one rollout: the old policy stays.
  """
  old_A = np.zeros(len(rewards_A))
  logits_A, found = old_A, []
  for _ in range(steps + 1):
    value, slope_A = surrogate(logits_A, old_A, rewards_A, clip)
    gain = expected(logits_A, rewards_A) - expected(old_A, rewards_A)
    found.append((value, gain))
    logits_A = logits_A + rate * slope_A
  return found


# --- data, page and figure ---------------------------------------------------


def measure(_) -> dict:
  """All numbers."""
  true_TS = values(CHAIN)
  critic_TS = SHARE * true_TS
  steps = range(1, CHAIN.tokens + 1)

  def moments(lams):
    found = [bias_and_variance(CHAIN, critic_TS, lam) for lam in lams]
    return dict(
        zip(("bias", "variance"), zip(*found, strict=True), strict=True)
    )

  names = "group_mean", "leave_one_out", "group_norm"
  groups = {
      name: [group_moments(name, size, ACCURACY)[1:] for size in SIZES]
      for name in names
  }
  return dict(
      command="python -m studies.theorems.run",
      environment=results.environment(),
      groups=groups,
      value=true_TS[0, 0],
      steps=moments(after(n, CHAIN) for n in steps),
      lambdas=moments(LAMBDAS),
      truncated=moments(after(n, CHAIN, TRUNCATED) for n in steps),
      ascent=ascent(np.array(ARMS), CLIP, RATE, STEPS),
  )


def page(result: dict) -> list[str]:
  """The page in Markdown."""
  about = (
      "Do the functions of the package have the bias and the variance that the"
      " theorems say? Data in `theorems.json`. Every number"
      " is a sum over all outcomes, and nothing is sampled;"
      " `tests/test_theorems.py` compares the same functions with formulas."
  )
  picture = (
      "![Variance of group baselines, bias and variance of targets, and the"
      " surrogate as a bound](theorems.png)"
  )
  out = [
      "## Baselines of groups",
      "",
      f"K independent rewards of 0 or 1, {ACCURACY:.0%} of them 1. The variance"
      " of A is in units of the variance of R; the gradient, the mean of A d"
      " log pi, is in units of the true gradient. R - mean has (K - 1) / K of"
      " both: its variance rises with K, because the mean cancels 1 / K of the"
      " response's own reward. Leave-one-out has K / (K - 1) of the variance"
      " and the whole gradient. The two advantages differ by the factor"
      " K / (K - 1), so their noise relative to their gradient is equal."
      " GRPO divides by the standard deviation of the group (of K - 1), and A"
      " is 0 where all rewards are equal: the variance of its A, without a"
      " unit, is (K - 1) / K times the share of groups whose rewards differ.",
      "",
      "| K | variance: R - mean | leave-one-out | GRPO | gradient: R - mean |"
      " leave-one-out |",
      "|---|---|---|---|---|---|",
  ]
  unit = ACCURACY * (1 - ACCURACY)
  for i, size in enumerate(SIZES):
    mean, others, norm = (x[i] for x in result["groups"].values())
    numbers = mean[0], others[0], unit * norm[0], mean[1], others[1]
    out.append(results.row(size, *(f"{x:.4f}" for x in numbers)))
  out += [
      "",
      "## Targets of the critic",
      "",
      f"A response of {CHAIN.tokens} tokens is good or bad after each token,"
      " and nine tokens of ten leave it as it was; each token after which it is"
      f" good adds 1/{CHAIN.tokens} to the return. The critic predicts"
      f" {SHARE:.0%} of the true value, which is {result['value']:.3f} at the"
      " first token. The tables have bias and standard deviation of the"
      " critic's target at the first token: n-step returns (n = 1 is TD(0), n ="
      f" {CHAIN.tokens} Monte Carlo), lambda-returns with lambda ="
      f" {TRUNCATED:g} whose sum of TD errors ends after n tokens, and complete"
      " lambda-returns.",
      "",
      "| n | n-step: bias | sd | truncated lambda-return: bias | sd |",
      "|---|---|---|---|---|",
  ]
  for i in range(CHAIN.tokens):
    cells = [_cells(result[x], i) for x in ("steps", "truncated")]
    out.append(results.row(i + 1, *cells[0], *cells[1]))
  out += ["", "| lambda | bias | sd |", "|---|---|---|"]
  for i, lam in enumerate(LAMBDAS):
    out.append(results.row(f"{lam:g}", *_cells(result["lambdas"], i)))
  value, gain = result["ascent"][-1]
  out += [
      "",
      "## The surrogate as a lower bound",
      "",
      "On a bandit the expected reward rises by at least the expected clipped"
      " surrogate, whatever the step: E[min(r A, clip(r) A)] <= E[r A] = J(new)"
      f" - J(old). Arms with rewards {', '.join(f'{x:g}' for x in ARMS)}, even"
      f" odds at the start, clip {CLIP:g}, {STEPS} gradient steps of {RATE:g}"
      f" on one rollout: the surrogate ends at {value:.4f}, the gain of reward"
      f" at {gain:.4f}. With the dual clip, which raises the surrogate where"
      " A < 0, the surrogate is no lower bound.",
  ]
  ends = [
      f"{found[0][0]:.2f} to {found[-1][0]:.2f} ({label})"
      for label, found in (
          ("R - mean", result["groups"]["group_mean"]),
          ("leave-one-out", result["groups"]["leave_one_out"]),
      )
  ]
  return results.document(
      "Theorems of policy gradients, by the functions of the package",
      f"From groups of {SIZES[0]} to {SIZES[-1]} the variance of the advantage,"
      f" in units of the reward's, goes from {results.joined(ends)}; the"
      " clipped"
      f" surrogate ends at {value:.4f} and the gain of reward at {gain:.4f}.",
      about,
      picture,
      out,
      made=f"Made by `{result['command']}`.",
      versions=results.footer(result),
  )


def _cells(moments: dict, i: int) -> tuple[str, str]:
  """Bias and standard deviation."""
  bias, variance = (moments[x][i] for x in ("bias", "variance"))
  return f"{round(bias, 4) + 0.0:.4f}", f"{math.sqrt(variance):.4f}"


def figure(result: dict) -> dict:
  """Points are of the package, grey curves of the formulas."""
  sizes = np.geomspace(SIZES[0], SIZES[-1], 40).tolist()
  reference = figures.REFERENCE
  groups = [
      figures.series("", sizes, [1 - 1 / k for k in sizes], color=reference),
      figures.series("", sizes, [k / (k - 1) for k in sizes], color=reference),
  ]
  for color, (name, label) in enumerate(
      {"group_mean": "R - mean", "leave_one_out": "leave-one-out"}.items()
  ):
    variance = [x[0] for x in result["groups"][name]]
    groups.append(
        figures.series(label, SIZES, variance, color=color, marker=True)
    )

  def moments(name, x):
    bias, variance = (np.array(result[name][k]) for k in ("bias", "variance"))
    curves = {
        "|bias|": abs(bias),
        "standard deviation": variance**0.5,
        "root mean square error": (bias**2 + variance) ** 0.5,
    }
    return [
        figures.series(label, x, y, color=i, marker=True)
        for i, (label, y) in enumerate(curves.items())
    ]

  tokens = range(1, CHAIN.tokens + 1)
  cut = figures.series(
      f"|bias|, lambda {TRUNCATED:g},\ncut off after n tokens",
      tokens,
      [abs(x) for x in result["truncated"]["bias"]],
      color=reference,
  )
  value, gain = zip(*result["ascent"], strict=True)
  done = range(STEPS + 1)
  ascents = [
      figures.series("gain of reward", done, gain),
      figures.series("clipped surrogate", done, value, color=1),
  ]
  panels = [
      figures.lines(
          groups,
          x="responses in a group, K",
          y="Var A / Var R",
          title="Group baselines (grey: formulas)",
          labels=True,
          ticks=TICKS,
      ),
      figures.lines(
          [*moments("steps", tokens), cut],
          x="n",
          title="n-step returns: TD(0) to Monte Carlo",
          labels=True,
      ),
      figures.lines(
          moments("lambdas", LAMBDAS),
          x="lambda",
          title="lambda-returns",
          labels=True,
      ),
      figures.lines(
          ascents,
          x="gradient steps on one rollout",
          title="A bandit: the surrogate is a lower bound",
          labels=True,
      ),
  ]
  return figures.figure(figures.block(panels, columns=2, height=2.6), width=10)


if __name__ == "__main__":
  results.main(__doc__, "theorems", measure, page, figure=figure)
