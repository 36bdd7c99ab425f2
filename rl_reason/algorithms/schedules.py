"""Learning-rate schedules."""

import optax


def learning_rate(
    kind: str, *, peak: float, warmup: int, total: int
) -> optax.Schedule:
  """Linear warm-up to `peak`, then constant, cosine or linear decay.

  Step t of the warm-up has peak * (t + 1) / warmup, so that the first update
  has a learning rate above 0.

  Args:
    kind: 'constant', 'cosine' or 'linear'.
    peak: highest learning rate.
    warmup: optimizer steps of warm-up; 0 for none.
    total: optimizer steps of the stage; decays end there, at 0.

  Raises:
    ValueError: unknown kind.
  """
  steps = max(total - warmup, 1)  # also if the warm-up outlasts the stage
  decays = {
      "constant": lambda: optax.constant_schedule(peak),
      "cosine": lambda: optax.cosine_decay_schedule(peak, steps),
      "linear": lambda: optax.linear_schedule(peak, 0.0, steps),
  }
  if kind not in decays:
    raise ValueError(f"schedule {kind!r}: one of {sorted(decays)}")
  if not warmup:
    return decays[kind]()
  # The warm-up reaches the peak in its last step, warmup - 1.
  warm = optax.linear_schedule(peak / warmup, peak, max(warmup - 1, 1))
  return optax.join_schedules([warm, decays[kind]()], [warmup])
