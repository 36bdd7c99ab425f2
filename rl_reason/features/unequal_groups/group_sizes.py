"""Unequal groups: how many responses each prompt of a batch gets.

A function takes the expected accuracy or length of each prompt, [N] float, and
returns group sizes, [N] int, which sum to `num_responses` and are at least
`least`. `rollout.group_sizes.name = "equal"` calls no function.
"""

from typing import Annotated

import numpy as np

# A group of one has no signal.
AtLeastTwo = Annotated[int, (2, None)]


def by_length(
    expected_length_N: np.ndarray, num_responses: int, *, least: AtLeastTwo = 2
) -> np.ndarray:
  """About as many tokens for each prompt: G proportional to 1 / length."""
  return proportional(1 / expected_length_N, num_responses, least)


def by_variance(
    expected_accuracy_N: np.ndarray,
    num_responses: int,
    *,
    least: AtLeastTwo = 2,
) -> np.ndarray:
  """G proportional to p (1 - p) at accuracy p.

  The variance of a group's mean reward, p (1 - p) / G, is then about the same
  for all prompts.
  """
  variance_N = expected_accuracy_N * (1 - expected_accuracy_N)
  return proportional(variance_N + 0.01, num_responses, least)


def proportional(
    need_N: np.ndarray, num_responses: int, least: int
) -> np.ndarray:
  """Shares responses out in proportion to the need of each prompt.

  A prompt whose share would be below `least` gets `least` responses, and the
  other prompts share the rest. Needs are positive; remainders go to the largest
  fractions.

  Raises:
    ValueError: there are too few responses for N groups of `least`.
  """
  if num_responses < least * len(need_N):
    raise ValueError(
        f"{num_responses} rows for {len(need_N)} groups of {least}"
    )
  at_floor_N = np.zeros(len(need_N), bool)
  while True:
    rest = num_responses - least * at_floor_N.sum()
    open_N = np.where(at_floor_N, 0, need_N)
    share_N = np.where(
        at_floor_N, least, rest * open_N / max(open_N.sum(), 1e-30)
    )
    if (share_N >= least).all():
      break
    at_floor_N |= share_N < least
  size_N = np.floor(share_N).astype(int)
  order_N = np.argsort(size_N - share_N, kind="stable")
  size_N[order_N[: num_responses - size_N.sum()]] += 1
  return size_N
