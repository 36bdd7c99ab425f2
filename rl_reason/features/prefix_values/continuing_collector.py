"""Returns of prefixes by rollouts: VinePPO (arXiv:2410.01679, section 4).

The value of a prefix is the mean return of responses that the policy of the
step samples from it. The sampler continues a prefix (`rollout.continuation`);
verifier and reward functions judge the whole
response, as they judge any other.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from rl_reason.base.structs import Array, Experience, Tree
from rl_reason.collect.collector import RolloutCollector
from rl_reason.collect.experience import credit_inputs
from rl_reason.rollout.sampler import Sampled


class ContinuingCollector(RolloutCollector):
  """A collector that continues the prefixes of a batch that end with a step.

  Args:
    continuations: of a prefix.
    prefixes: that are continued at a time: with their continuations at most the
      slots of the sampler.
    reward: `credit.outcome`, keywords bound: the return of a response.
    steps: of the run, on which the weights of the reward's terms depend.
    **options: of `RolloutCollector`.
  """

  def __init__(
      self,
      *args,
      continuations: int,
      prefixes: int,
      reward: Callable[[dict], Array],
      steps: int,
      **options,
  ):
    super().__init__(*args, **options)
    self._continuations, self._prefixes = continuations, prefixes
    self._reward, self._steps = reward, steps

  def finish(
      self,
      rows: Experience,
      metrics: dict[str, Any],
      *,
      weights: Tree,
      step: int,
  ) -> tuple[Experience, dict[str, Any]]:
    """The result of `dynamic_sampling.fill_batch`, with returns of prefixes.

    A response leaves the loss if a prefix of it has no return, because the
    verifier or a reward function failed on all continuations.

    Args:
      rows: the batch, with steps.
      metrics: generated tokens among them; those of continuations are added.
      weights: sampler weights of this step.
      step: completed RL steps.
    """
    assert rows.steps is not None
    # A prefix ends with a step, and the response goes on after it.
    goes_on_BT = np.pad(rows.rollouts.mask_BT[:, 1:], ((0, 0), (0, 1)))
    is_real_B1 = rows.age_B[:, None] >= 0
    found = np.argwhere(rows.steps.ends_BT & goes_on_BT & is_real_B1)
    returns_BT = np.zeros(goes_on_BT.shape, np.float32)
    tokens = 0
    for start in range(0, len(found), self._prefixes):
      some = found[start : start + self._prefixes]
      returns_N, generated = self._continued(rows, some, weights, step)
      returns_BT[tuple(some.T)] = returns_N
      tokens += generated
    failed_B = ~np.isfinite(returns_BT).all(1)
    rows = rows.replace(
        correct_B=np.where(failed_B, np.float32(-1), rows.correct_B),
        steps=rows.steps.replace(returns_BT=np.nan_to_num(returns_BT)),
    )
    return rows, metrics | {
        "tokens/generated": metrics["tokens/generated"] + tokens,
        "tokens/continuations": tokens,
        "train/prefixes": len(found),
        "train/prefixes_failed": int((~np.isfinite(returns_BT)).sum()),
    }

  def _continued(
      self, rows: Experience, prefixes: np.ndarray, weights: Tree, step: int
  ) -> tuple[np.ndarray, int]:
    """Mean returns [N] of prefixes [N, 2], (row, last token); new tokens."""
    count, size = self._continuations, self._prefixes
    # Calls have one shape: the last one is filled up with complete rows.
    padding = np.zeros((size - len(prefixes), 2), int)
    row_N, last_N = np.concatenate([prefixes, padding]).T
    is_real_N = np.arange(size) < len(prefixes)
    prompt_ids = rows.rollouts.ids_B[row_N].astype(np.int64)
    # An id seeds noise: row and place are parts of it; padding's is negative.
    length = rows.rollouts.mask_BT.shape[1]
    ids_N = (prompt_ids * len(rows.age_B) + row_N) * length + last_N
    ids_N = np.where(is_real_N, ids_N % (1 << 31), -1 - np.arange(size))
    ids_N = ids_N.astype(np.int32)

    row_B, last_B, ids_B, is_real_B = (
        np.repeat(x, count) for x in (row_N, last_N, ids_N, is_real_N)
    )
    begun = jax.tree.map(lambda x: x[row_B], rows.rollouts).replace(
        ids_B=ids_B,
        mask_BT=np.arange(length) <= last_B[:, None],
        lengths_B=(last_B + 1).astype(np.int32),
        truncated_B=np.ones(len(row_B), bool),
    )
    rows_N = [self.prompts.row(prompt_id) for prompt_id in prompt_ids.tolist()]
    rows_B = [row for row in rows_N for _ in range(count)]
    parts = self._sample(
        weights,
        ids_N.tolist(),
        rows_N,
        np.full(size, count),
        rows_B,
        lambda: None,
        resumed=Sampled(begun, ~is_real_B),
        group_size=count,
    )
    rollouts, grader, scores = self._grade(parts, rows_B)
    continued = self._experience(rollouts, grader.correct_B, rows_B)
    continued = self._score(continued, scores.scores_UB, rows_B)

    progress = np.float32(step / self._steps)
    inputs = credit_inputs(continued, progress=progress)
    returns_B = np.asarray(self._reward(inputs))
    returns_NG = returns_B.reshape(size, count)[is_real_N]
    known_NG = np.isfinite(returns_NG)
    total_N = np.where(known_NG, returns_NG, 0).sum(1)
    known_N = known_NG.sum(1)
    mean_N = np.where(known_N > 0, total_N / np.maximum(known_N, 1), np.nan)
    new_B = rollouts.lengths_B - begun.lengths_B
    return mean_N, int(new_B[is_real_B].sum())
