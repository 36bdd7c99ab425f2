"""The responses of recent RL steps, and their importance weights."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rl_reason.base import feature
from rl_reason.base.structs import Array, Experience, Rollouts, Tree
from rl_reason.stages import collectors


@struct.dataclass
class History:
  """Responses of recent RL steps, newest last.

  Attributes:
    tokens_HL, start_H, mask_HT: as in Rollouts; an empty place has no mask.
    logps_HT: float32, of the policy that sampled them.
    rewards_H: float32.
    problems_H: int32, as in Experience.
  """

  tokens_HL: Array
  start_H: Array
  mask_HT: Array
  logps_HT: Array
  rewards_H: Array
  problems_H: Array


def from_rows(rows: Experience, rewards_B: Array) -> History:
  """A batch as history; padding and failed rewards become empty places."""
  rollouts, graded_B = rows.rollouts, np.isfinite(rewards_B)
  mask_BT = rollouts.mask_BT & graded_B[:, None]
  return History(
      tokens_HL=rollouts.tokens_BL,
      start_H=rollouts.start_B,
      mask_HT=mask_BT,
      logps_HT=np.where(mask_BT, rows.old_logps_BT, 0),
      rewards_H=np.where(graded_B, rewards_B, 0),
      problems_H=np.where((rows.age_B >= 0) & graded_B, rows.problems_B, -1),
  )


def empty(no_rows: Experience, steps: int) -> History:
  """An empty history of `steps` steps, in the shapes of a batch of padding."""
  one = from_rows(no_rows, no_rows.correct_B)
  return jax.tree.map(lambda x: np.concatenate([x] * steps), one)


def append(history: History, rows: Experience, rewards_B: Array) -> History:
  """Appends a batch to the history and drops the oldest batch."""
  new = from_rows(rows, rewards_B)
  return jax.tree.map(
      lambda old, x: np.concatenate([old[len(x) :], x]), history, new
  )


def credit_inputs(
    history: History,
    params: Tree,
    *,
    logps: Callable[[Tree, Rollouts], Array],
    batch: int,
    ratio_limit: float,
) -> dict[str, Array]:
  """The inputs of `credit` from the history.

  Args:
    history: H responses, a multiple of `batch`.
    params: of the current policy.
    logps: (params, rollouts) -> log-probs [batch, T].
    batch: responses of a training step.
    ratio_limit: upper bound of the importance ratios of old responses.
  """
  parts = []
  for first in range(0, len(history.start_H), batch):
    part = slice(first, first + batch)
    zeros_B = np.zeros(batch, np.int32)
    rows = Rollouts(
        tokens_BL=history.tokens_HL[part],
        start_B=history.start_H[part],
        ids_B=zeros_B,
        mask_BT=history.mask_HT[part],
        logps_BT=history.logps_HT[part],
        lengths_B=zeros_B,
        truncated_B=zeros_B,
    )
    parts.append(logps(params, rows))
  weights_H = past_weights(
      np.concatenate(parts),
      history.logps_HT,
      history.mask_HT,
      limit=ratio_limit,
  )
  return dict(
      past_rewards_H=history.rewards_H,
      past_problems_H=history.problems_H,
      past_weights_H=np.asarray(weights_H),
  )


def past_weights(
    logps_HT: Array, past_logps_HT: Array, mask_HT: Array, *, limit: float = 2.0
) -> Array:
  """Importance weight of earlier responses: min(pi / pi_then, limit).

  logps_HT are those of the current policy, past_logps_HT those of the policy
  that sampled. Returns [H]; 0 for an empty slot, a row without a token.
  """
  log_HT = jnp.where(mask_HT > 0, logps_HT - past_logps_HT, 0)
  log_HT = jnp.broadcast_to(log_HT.sum(1, keepdims=True), log_HT.shape)
  # Clamped: products over long responses overflow fp32.
  ratio_HT = jnp.where(mask_HT > 0, jnp.exp(jnp.clip(log_HT, -20, 20)), 0)
  return jnp.max(jnp.minimum(ratio_HT, limit), 1)


def of_config(c) -> History:
  """An empty history in the shapes of a config."""
  no_rows = collectors.empty_rows(c, c.rollout.batch)
  return empty(no_rows, c.advantage.history)


class EarlierSteps(feature.Part):
  """The history of a run.

  Args:
    history: of step 0.
    logps: see `credit_inputs`.
    batch: see `credit_inputs`.
    ratio_limit: see `credit_inputs`.
  """

  def __init__(
      self,
      history: History,
      *,
      logps: Callable[[Tree, Rollouts], Array],
      batch: int,
      ratio_limit: float,
  ):
    self.history = history
    self._inputs = functools.partial(
        credit_inputs, logps=logps, batch=batch, ratio_limit=ratio_limit
    )

  def inputs(self, params: Tree, plan: Any) -> dict[str, Array]:
    """Rewards, prompts and importance weights of earlier responses."""
    return self._inputs(self.history, params)

  def after(self, state, rows: Experience, credit: dict, entropy_BT) -> None:
    """Remembers the step."""
    self.history = append(self.history, rows, credit["rewards_B"])

  def arrays(self) -> dict[str, History]:
    """The history."""
    return dict(history=self.history)

  def restore(self, arrays: dict[str, Any], host: dict) -> None:
    """Goes on with a saved history."""
    self.history = arrays["history"]
