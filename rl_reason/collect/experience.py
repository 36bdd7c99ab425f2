"""Rows of experience on the host: groups, selection, padding, concatenation.

Packing, dynamic sampling and the collectors share these
functions of NumPy arrays. Rows of a group are adjacent and share an id.
"""

import jax
import numpy as np

from rl_reason.base.structs import (
    Array,
    Experience,
    Rollouts,
    Steps,
    Tree,
)


def no_rows(
    rows: int,
    max_prompt: int,
    max_tokens: int,
    num_terms: int,
    turns: Tree | None = None,
    steps: bool = False,
    record: Tree | None = None,
) -> Experience:
  """Rows of padding, in the shapes of a real batch.

  Args:
    rows: B.
    max_prompt: P.
    max_tokens: T.
    num_terms: of reward.functions.
    turns: see `Experience`.
    steps: whether there are process rewards.
    record: of these rows (see `Rollouts`); None: nothing is recorded.
  """
  zeros_BT = np.zeros((rows, max_tokens), np.float32)
  zeros_B = np.zeros(rows, np.int32)
  return Experience(
      rollouts=Rollouts(
          tokens_BL=np.zeros((rows, max_prompt + max_tokens), np.int32),
          start_B=zeros_B,
          ids_B=zeros_B - 1,
          mask_BT=zeros_BT > 0,
          logps_BT=zeros_BT,
          lengths_B=zeros_B,
          truncated_B=zeros_B > 0,
          record=record,
      ),
      correct_B=zeros_B.astype(np.float32),
      scores_EB=tuple(zeros_B.astype(np.float32) for _ in range(num_terms)),
      old_logps_BT=zeros_BT,
      stale_lengths_B=zeros_B,
      age_B=zeros_B - 1,
      types_B=zeros_B,
      problems_B=zeros_B - 1,
      turns=turns,
      steps=Steps(
          rewards_EBT=(zeros_BT,) * num_terms,
          judged_EB=(zeros_B > 0,) * num_terms,
          ends_BT=zeros_BT > 0,
          returns_BT=zeros_BT,
      )
      if steps
      else None,
  )


def graded(
    rollouts: Rollouts,
    correct_B: Array,
    *,
    scores_EB: tuple[Array, ...] = (),
    types_B: Array | None = None,
    problems_B: Array | None = None,
) -> Experience:
  """Experience from responses that the policy of this step sampled.

  Arguments are fields of `Experience`. The default of types_B is zeros, the
  default of problems_B the ids of the prompts.
  """
  zeros_B = np.zeros(len(correct_B), np.int32)
  return Experience(
      rollouts=rollouts,
      correct_B=correct_B,
      scores_EB=scores_EB,
      old_logps_BT=rollouts.logps_BT,
      stale_lengths_B=zeros_B,
      age_B=zeros_B,
      types_B=zeros_B if types_B is None else types_B,
      problems_B=rollouts.ids_B if problems_B is None else problems_B,
  )


def with_old_logps(rows: Experience, logps_BT: Array | None) -> Experience:
  """Rows with old log-probs: those of pi_old, the policy before the update.

  Tokens of an older policy keep their log-probs.

  Args:
    rows: graded.
    logps_BT: by the trainer; None: a single on-policy update computes them
      itself, and the rows get log-probs of the sampler.
  """
  if logps_BT is None:
    return rows.replace(old_logps_BT=rows.rollouts.logps_BT)
  stale_BT = np.arange(logps_BT.shape[1]) < rows.stale_lengths_B[:, None]
  return rows.replace(
      old_logps_BT=np.where(stale_BT, rows.old_logps_BT, logps_BT)
  )


def credit_inputs(rows: Experience, **arrays: Array | None) -> dict[str, Array]:
  """The inputs of `credit`: arrays of graded rows, and `arrays`."""
  rollouts, mask_BT = rows.rollouts, rows.rollouts.mask_BT
  if rows.turns is not None:
    arrays |= rows.turns.inputs()
  if rows.steps is not None:
    arrays |= dict(
        step_rewards_EBT=rows.steps.rewards_EBT,
        step_ends_BT=rows.steps.ends_BT,
        judged_EB=rows.steps.judged_EB,
        prefix_returns_BT=rows.steps.returns_BT,
    )
  return dict(
      correct_B=rows.correct_B,
      scores_EB=rows.scores_EB,
      lengths_B=rollouts.policy_lengths_B,
      truncated_B=rollouts.truncated_B,
      groups_B=rollouts.ids_B,
      age_B=rows.age_B,
      types_B=rows.types_B,
      problems_B=rows.problems_B,
      mask_BT=mask_BT,
      # Padding may hold anything.
      logps_BT=np.where(mask_BT, rows.old_logps_BT, 0),
      sampler_logps_BT=np.where(mask_BT, rollouts.logps_BT, 0),
      **{name: x for name, x in arrays.items() if x is not None},
  )


def groups(ids_B: np.ndarray) -> list[np.ndarray]:
  """Row numbers of each group: adjacent rows that share an id."""
  if not len(ids_B):
    return []
  return np.split(np.arange(len(ids_B)), np.flatnonzero(np.diff(ids_B)) + 1)


def take(rows: Experience, which: list[np.ndarray]) -> Experience:
  """The rows of the given groups, in the given order."""
  index = np.concatenate([np.zeros(0, int), *which])
  return jax.tree.map(lambda x: x[index], rows)


def concatenate(parts: list[Experience]) -> Experience:
  """Rows of all parts, in order."""
  return jax.tree.map(lambda *x: np.concatenate(x), *parts)


def pad(rows: Experience, count: int, like: Experience, group_size: int):
  """Appends groups of padding up to `count` rows.

  Padding has no weight: its mask is empty, its age -1, its ids are negative.

  Args:
    rows: at most `count`.
    count: rows of the result.
    like: at least one row, copied for the shapes.
    group_size: rows of a group of padding.
  """
  missing = count - len(rows.age_B)
  padding = take(like, [np.zeros(missing, int)])
  rollouts = padding.rollouts.replace(
      mask_BT=np.zeros_like(padding.rollouts.mask_BT),
      ids_B=-1 - np.arange(missing, dtype=np.int32) // group_size,
  )
  age_B = np.full_like(padding.age_B, -1)
  return concatenate([rows, padding.replace(rollouts=rollouts, age_B=age_B)])


def without_padding(rows: Experience) -> Experience:
  """The groups without padding."""
  found = groups(rows.rollouts.ids_B)
  return take(rows, [group for group in found if rows.age_B[group[0]] >= 0])


def round_robin(groups: list[np.ndarray], parts: int) -> np.ndarray:
  """Row numbers of all groups; group n belongs to part n modulo `parts`.

  Padding comes last in a batch; round-robin gives each minibatch an even share.
  """
  return np.concatenate([g for p in range(parts) for g in groups[p::parts]])
