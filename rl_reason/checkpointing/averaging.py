"""Averages of the parameters of several checkpoints of a run.

'20+30+40' is the mean of the parameters of three steps (stochastic weight
averaging, arXiv:1803.05407). '20+30+40@0.9' is their exponential moving
average, which begins with the first one: a = .9 a + .1 x for each later x.
Sums are in float32, in the order of the steps.
"""

import functools
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl_reason.base.structs import Tree


class Average(NamedTuple):
  """Steps whose parameters are averaged.

  Attributes:
    steps: two or more, oldest first.
    decay: of the exponential moving average; None for the mean.
  """

  steps: tuple[int, ...]
  decay: float | None

  def weights(self) -> list[float]:
    """The weight of each step; they sum to 1."""
    count, decay = len(self.steps), self.decay
    if decay is None:
      return [1 / count] * count
    later = [(1 - decay) * decay ** (count - 1 - n) for n in range(1, count)]
    return [decay ** (count - 1), *later]


def parse(text: str) -> Average | None:
  """The steps of '20+30+40' or '20+30+40@0.9'; None for another text.

  Raises:
    ValueError: steps are not in order, or the decay is not between 0 and 1.
  """
  found = re.fullmatch(r"(\d+(?:\+\d+)+)(?:@(\d*\.?\d+))?", text)
  if not found:
    return None
  steps = tuple(map(int, found[1].split("+")))
  if list(steps) != sorted(set(steps)):
    raise ValueError("name each step once, oldest first")
  decay = float(found[2]) if found[2] else None
  if decay is not None and not 0 < decay < 1:
    raise ValueError("the decay after @ must be between 0 and 1")
  return Average(steps, decay)


def combine(
    weights: Sequence[float], read: Sequence[Callable[[], Tree]]
) -> Tree:
  """The weighted sum of trees, in float32; two are in memory at a time.

  Args:
    weights: of each tree.
    read: reads each tree.
  """
  total = _scaled(read[0](), jnp.float32(weights[0]))
  for weight, one in zip(weights[1:], read[1:], strict=True):
    total = _plus(total, one(), jnp.float32(weight))
  return total


@jax.jit
def _scaled(tree: Tree, weight) -> Tree:
  return jax.tree.map(lambda x: weight * x.astype(jnp.float32), tree)


@functools.partial(jax.jit, donate_argnums=0)
def _plus(total: Tree, tree: Tree, weight) -> Tree:
  return jax.tree.map(
      lambda a, x: a + weight * x.astype(jnp.float32), total, tree
  )
