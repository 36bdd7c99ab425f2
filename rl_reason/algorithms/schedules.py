"""Learning rates, and coefficients that follow what they control."""

import optax


def learning_rate(
    kind: str, *, peak: float, warmup: int, total: int, floor: float = 0.0
) -> optax.Schedule:
  """Linear warm-up to `peak`, then constant, cosine or linear decay.

  Step t of the warm-up has peak * (t + 1) / warmup: the first update learns.

  Args:
    kind: 'constant', 'cosine' or 'linear'.
    peak: highest learning rate.
    warmup: optimizer steps of warm-up; 0 is none.
    total: optimizer steps of the stage; decays end there.
    floor: learning rate at the end of a decay, as a share of the peak.

  Returns:
    A function from the optimizer step to the learning rate.

  Raises:
    ValueError: another kind.
  """
  steps = max(total - warmup, 1)
  after = {
      "constant": lambda: optax.constant_schedule(peak),
      "cosine": lambda: optax.cosine_decay_schedule(peak, steps, floor),
      "linear": lambda: optax.linear_schedule(peak, peak * floor, steps),
  }
  if kind not in after:
    raise ValueError(f"schedule {kind!r}: one of {sorted(after)}")
  if not warmup:
    return after[kind]()
  warm = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
  return optax.join_schedules([warm, after[kind]()], [warmup])


def adaptive_kl(
    coef: float, kl: float, *, target: float, horizon: float, rows: int
) -> float:
  """The next KL coefficient: proportional control (arXiv:1909.08593, eq 3).

  coef (1 + clip(kl / target - 1, -.2, .2) rows / horizon).

  Args:
    coef: the one that held while `kl` was measured.
    kl: of the responses of this step.
    target: KL to hold; 0 keeps the coefficient.
    horizon: responses over which an error of 20% changes the coefficient by
      about 20%; 10,000 is usual.
    rows: responses of this step.
  """
  if not target:
    return coef
  error = min(max(kl / target - 1, -0.2), 0.2)
  return coef * (1 + error * rows / horizon)


def adaptive_entropy(
    coef: float, entropy: float, *, target: float, step: float
) -> float:
  """The next entropy coefficient: up below the target, down above it.

  As in Skywork-OR1 (arXiv:2505.22312, sec 4.2): by a fixed step, never below 0.

  Args:
    coef: the one that held while `entropy` was measured.
    entropy: mean over the tokens of this step, in nats.
    target: entropy to hold; 0 keeps the coefficient.
    step: by how much the coefficient moves.
  """
  if not target:
    return coef
  return max(0.0, coef + (step if entropy < target else -step))
