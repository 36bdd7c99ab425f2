"""Where the responses to one prompt share it in a packed row.

A row has the prompt of a group once, without its last token, and the responses
of the group after it. Each response begins with a copy of the last token, which
predicts its first token: the place before each response token belongs to one
response, as in rows that share nothing. A response sees the prompt and itself,
and positions are those in the sequence.
"""

from typing import NamedTuple

import jax
import numpy as np

from rl_reason.base.structs import Array, Packed, Shared, Tree
from rl_reason.training import packing


def pack(
    tokens_BL: Array,
    start_B: Array,
    mask_BT: Array,
    rows: int,
    record: Tree | None = None,
    *,
    join: int,
) -> Packed:
  """As `packing.pack`; adjacent rows with equal prompts share them.

  `join` packed rows are one: a prompt has room for more responses.
  """
  slots, length = tokens_BL.shape[1], mask_BT.shape[1]
  prompt_B, response_B = packing.spans(start_B, mask_BT, slots)
  micro = packing.max_micro_batches(len(prompt_B), rows)
  shape = micro, rows // join, slots * join
  group_B = groups(tokens_BL, start_B, prompt_B, record)
  found = place(group_B, prompt_B, prompt_B + response_B, shape)
  spots = shape, found.row_B, found.first_B, found.skip_B
  args = tokens_BL, start_B, mask_BT, rows
  packed = packing.pack(*args, record=record, spots=spots)

  # The shared tokens of a prompt are a segment of their own.
  owner_ARL, used_ARL = packed.segments_RL - 1, packed.segments_RL > 0
  of_prompt_ARL = packed.positions_RL < found.shared_B[owner_ARL]
  of_prompt_ARL &= used_ARL
  begin_B = found.first_B[found.owner_B]
  prompt_B2 = np.stack([begin_B, begin_B + found.shared_B], 1)
  prompt_ARL2 = np.where(used_ARL[..., None], prompt_B2[owner_ARL], 0)
  copies_B = np.bincount(found.owner_B, minlength=len(begin_B))
  copies_ARL = np.where(of_prompt_ARL, copies_B[owner_ARL], used_ARL)
  segments_ARL = packed.segments_RL + len(begin_B) * of_prompt_ARL
  return packed.replace(
      segments_RL=segments_ARL.astype(np.int32),
      shared=Shared(
          prompt_ARL2.astype(np.int32),
          copies_ARL.astype(np.int32),
          (slots - length, length),
      ),
  )


class Spots(NamedTuple):
  """The spot of each sequence, [B] int each.

  Attributes:
    row_B: the packed row.
    first_B: the slot of the first token, as if the shared tokens were next to
      the others.
    shared_B: tokens that the sequence may share: its prompt but the last token.
    owner_B: the sequence that brings the shared tokens into the row.
  """

  row_B: Array
  first_B: Array
  shared_B: Array
  owner_B: Array

  @property
  def skip_B(self) -> Array:
    """First tokens of each sequence that another one brings."""
    own_B = self.owner_B == np.arange(len(self.owner_B))
    return np.where(own_B, 0, self.shared_B)


def groups(
    tokens_BL: Array, start_B: Array, prompt_B: Array, record: Tree | None
) -> Array:
  """The group of each sequence, [B] int: adjacent rows with equal prompts.

  What is recorded of the prompts (`Rollouts.record`) must be equal, too.
  """
  at_L = np.arange(tokens_BL.shape[1])
  end_B = start_B + prompt_B
  prompt_BL = (at_L >= start_B[:, None]) & (at_L < end_B[:, None])
  differs_B = (start_B[1:] != start_B[:-1]) | (end_B[1:] != end_B[:-1])
  for x in (tokens_BL, *jax.tree.leaves(record)):
    change_BL = (x[1:] != x[:-1]).reshape(-1, len(at_L), x[0, 0].size).any(-1)
    differs_B |= (change_BL & prompt_BL[1:]).any(1)
  return np.append(0, np.cumsum(differs_B))


def place(
    group_B: Array,
    prompt_B: Array,
    length_B: Array,
    shape: tuple[int, int, int],
) -> Spots:
  """First-fit by groups: long groups first, and their long sequences first.

  A sequence prefers a row with its prompt. A group that does not fit into the
  rest of a row continues in another row, where its prompt is once more.

  Args:
    group_B: of `groups`.
    prompt_B: tokens of each prompt.
    length_B: tokens of each sequence; an empty one gets row 0, slot 0.
    shape: micro-batches, packed rows and slots. A row has slots for k sequences
      of full length, and there are rows for all: a row without room for one
      more sequence has at least k of them.
  """
  micro, rows, slots = shape
  free_R = np.full(micro * rows, slots)
  owner_R = np.full(micro * rows, -1)
  shared_B = np.maximum(prompt_B - 1, 0)
  row_B, first_B = np.zeros((2, len(length_B)), int)
  owner_B = np.arange(len(length_B))
  total_B = np.bincount(group_B, length_B)[group_B]
  order = np.lexsort((-length_B, group_B, -total_B))
  for b in order[length_B[order] > 0]:
    # Rows where the last owner of a prompt is of the same group have it.
    has_R = (owner_R >= 0) & (group_B[owner_R] == group_B[b])
    cost_R = length_B[b] - shared_B[b] * has_R
    r = np.argmin(np.where(cost_R <= free_R, cost_R, slots + 1))
    if not has_R[r]:
      owner_R[r] = b
    # The shared tokens need no slots here if the row has them.
    first_B[b] = slots - free_R[r] - shared_B[b] * has_R[r]
    row_B[b], owner_B[b] = r, owner_R[r]
    free_R[r] -= cost_R[r]
  return Spots(row_B, first_B, shared_B, owner_B)
