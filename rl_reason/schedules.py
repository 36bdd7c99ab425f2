"""Learning-rate schedules over the optimizer steps of a stage."""

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
