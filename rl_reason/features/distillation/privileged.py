"""Packed rows that the policy and a reference read with different prompts.

The reference scores the responses of the policy after a prompt of its own
(`kl.privileged`). Both packings of a row get the room of the longer prompt, so
that each response token has one place in both: what compares the models
position by position needs to know nothing of the prompts.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from rl_reason.base.structs import Packed, Prompts, Rollouts
from rl_reason.training.packing import PackingPlan

Plan = Callable[[Rollouts, int], PackingPlan]


def plan(
    rollouts: Rollouts,
    step: int = 0,
    *,
    plan_rows: Plan,
    prompts: Callable[[list[int]], Prompts],
) -> PackingPlan:
  """`packing.plan` of rows with the prompts of a reference.

  Args:
    rollouts: of a step.
    step: number of the RL step.
    plan_rows: `packing.plan` with its keywords bound.
    prompts: ids -> prompts of the reference, with room for the policy's.

  Returns:
    the plan; `Packed.further` has the rows as the reference reads them.
  """
  ids, row_B = np.unique(rollouts.ids_B, return_inverse=True)
  real = ids >= 0  # others are padding, whose rows are not packed
  theirs = prompts(ids[real].tolist())
  slots = theirs.tokens_NP.shape[1]
  length = rollouts.mask_BT.shape[1]
  more = slots + length - rollouts.tokens_BL.shape[1]
  own_BL = np.pad(rollouts.tokens_BL, ((0, 0), (more, 0)))
  own_start_B = rollouts.start_B + more
  # Rows of padding keep the prompt of the policy.
  their_BL, their_start_B = own_BL.copy(), own_start_B.copy()
  of_N = np.cumsum(real) - 1
  which_B = real[row_B]
  place_B = of_N[row_B[which_B]]
  their_BL[which_B, :slots] = theirs.tokens_NP[place_B]
  their_start_B[which_B] = theirs.start_N[place_B]
  at_L = np.arange(slots + length, dtype=np.int32)
  wide = rollouts.replace(
      tokens_BL=own_BL,
      start_B=np.minimum(own_start_B, their_start_B),
      record=dict(
          tokens=their_BL.astype(np.int32),
          own_at=at_L - own_start_B[:, None].astype(np.int32),
          their_at=at_L - their_start_B[:, None].astype(np.int32),
      ),
  )
  order_MB, packed_M = plan_rows(wide, step)
  record: Any = packed_M.record
  packed_M = packed_M.replace(record=None)
  reference = _only(
      packed_M.replace(tokens_RL=record["tokens"], source_BT=None),
      record["their_at"],
  )
  own = _only(packed_M, record["own_at"])
  return PackingPlan(order_MB, own.replace(further=reference))


def _only(packed: Packed, at_RL: np.ndarray) -> Packed:
  """Packed rows without the places before a prompt: `at_RL` is negative."""
  arrays = dict(
      tokens_RL=packed.tokens_RL,
      positions_RL=at_RL,
      segments_RL=packed.segments_RL,
  )
  return packed.replace(
      **{name: np.where(at_RL < 0, 0, x) for name, x in arrays.items()}
  )


def of_reference(packed: Packed) -> Packed:
  """The rows as the reference reads them, of the same structure."""
  read = packed.further
  if read is None:
    return packed
  return read.replace(source_BT=packed.source_BT, further=read)


def plan_of_reference(found: PackingPlan) -> PackingPlan:
  """The plan of the rows as the reference reads them."""
  return found._replace(packed_M=of_reference(found.packed_M))
