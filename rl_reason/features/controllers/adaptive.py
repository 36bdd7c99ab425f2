"""Controllers: functions of numbers on the host, by the names of a config."""

from typing import Annotated

from rl_reason.base.bounds import Positive


def adaptive_kl(
    coef: float,
    kl: float,
    rows: int,
    *,
    target: Positive,
    horizon: Annotated[float, (1, None)] = 10_000,
) -> float:
  """The next KL coefficient: proportional control (arXiv:1909.08593, eq 3).

  coef * (1 + clip(kl / target - 1, -.2, .2) * rows / horizon), with coef, kl
  (mean over the response tokens, in nats) and rows (responses) of one step.

  Keywords: target is the KL to hold, in nats per token; horizon the number of
  responses over which an error of 20% changes the coefficient by about 20%.
  """
  error = min(max(kl / target - 1, -0.2), 0.2)
  return coef * (1 + error * rows / horizon)


def adaptive_entropy(
    coef: float,
    entropy: float,
    *,
    target: Positive,
    step: Positive = 1e-3,
) -> tuple[float, float]:
  """The next entropy coefficient c, and the one in the loss (2505.22312, 4.2).

  Skywork-OR1: c rises by a fixed step while the entropy is at most the target,
  and falls above it, never below 0. The bonus is in the loss, with c, only
  while the entropy is at most the target. As in TRL, the entropy is that of
  the step before.

  Keywords: target is the entropy to hold, a mean over response tokens in nats;
  step the change of the coefficient per RL step.
  """
  low = entropy <= target
  coef = max(0.0, coef + (step if low else -step))
  return coef, coef if low else 0.0
