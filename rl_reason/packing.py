"""Packed rows: sequences end to end, so that padding costs no forward pass.

Host code on numpy rows. Sequences are placed first-fit decreasing; attention
stays within a segment, and positions begin anew with each. Only the forward
pass sees this: log-probs and values come back as [B, T].
"""

import jax
import numpy as np

from rl_reason.structs import Array, Packed


def spans(start_B: Array, mask_BT: Array, slots: int) -> tuple[Array, Array]:
  """Tokens of each row's prompt and response, [B] int each.

  A response reaches to the last token in its mask. A row without one takes no
  place: both are 0.

  Args:
    start_B: first slot that holds a token.
    mask_BT: bool, response tokens.
    slots: P + T.
  """
  length = mask_BT.shape[1]
  response_B = (mask_BT * np.arange(1, length + 1)).max(1)
  prompt_B = np.where(response_B > 0, slots - length - start_B, 0)
  return prompt_B, response_B


def place(length_B: Array, slots: int) -> tuple[Array, Array]:
  """First-fit decreasing: the packed row of each sequence, and where it starts.

  Args:
    length_B: tokens of each; those of none are put at 0, 0.
    slots: of a packed row.

  Returns:
    row and first slot, [B] int each.

  Raises:
    ValueError: a sequence is longer than a row.
  """
  if length_B.max(initial=0) > slots:
    raise ValueError(f"{length_B.max()} tokens in packed rows of {slots}")
  row_B, first_B = np.zeros_like(length_B), np.zeros_like(length_B)
  free_R = np.full(len(length_B), slots)
  for b in np.argsort(-length_B, kind="stable")[: np.count_nonzero(length_B)]:
    row_B[b] = np.argmax(free_R >= length_B[b])
    first_B[b] = slots - free_R[row_B[b]]
    free_R[row_B[b]] -= length_B[b]
  return row_B, first_B


def pack(
    tokens_BL: Array, start_B: Array, mask_BT: Array, rows: int | None = None
) -> Packed:
  """Rows that are padded on both sides, as packed rows of the same length.

  Args:
    tokens_BL: prompt and response.
    start_B: first slot that holds a token.
    mask_BT: bool, response tokens.
    rows: R; None: as many as it takes.

  Raises:
    ValueError: it takes more than `rows`.
  """
  slots, length = tokens_BL.shape[1], mask_BT.shape[1]
  prompt_B, response_B = spans(start_B, mask_BT, slots)
  length_B = prompt_B + response_B
  row_B, first_B = place(length_B, slots)
  needed = int(row_B.max(initial=0)) + 1
  rows = needed if rows is None else rows
  if needed > rows:
    raise ValueError(f"{needed} packed rows needed, {rows} given")
  place_B = row_B * slots + first_B

  owner_X = np.repeat(np.arange(len(length_B)), length_B)
  at_X = np.arange(len(owner_X)) - (np.cumsum(length_B) - length_B)[owner_X]
  packed = np.zeros((3, rows * slots), np.int32)
  packed[:, place_B[owner_X] + at_X] = (
      tokens_BL[owner_X, start_B[owner_X] + at_X],
      at_X,
      owner_X + 1,
  )
  at_T = np.arange(length)
  source_BT = np.where(at_T < response_B[:, None], at_T, 0)
  source_BT += np.maximum(place_B + prompt_B - 1, 0)[:, None]
  tokens_RL, positions_RL, segments_RL = packed.reshape(3, rows, slots)
  return Packed(
      tokens_RL, positions_RL, segments_RL, source_BT.astype(np.int32)
  )


def deal(
    length_B: Array, order_B: Array, hands: int, together: int = 1
) -> Array:
  """Row numbers dealt to micro-batches of like many rows and tokens: [A, B].

  Longest first, to and fro.

  Args:
    length_B: tokens of each row.
    order_B: row numbers.
    hands: A.
    together: adjacent rows that stay adjacent.
  """
  units = order_B.reshape(-1, together)
  if hands > 1:
    length = length_B[units].sum(1)
    units = units[np.argsort(-length, kind="stable")]
    units = units.reshape(-1, hands, together)
    units[1::2] = units[1::2, ::-1].copy()
    units = units.swapaxes(0, 1)
  return units.reshape(hands, -1)


def cut(
    tokens_BL: Array,
    start_B: Array,
    mask_BT: Array,
    order_MB: Array,
    ladder: list[tuple[int, int]],
    together: int = 1,
) -> tuple[Array, Packed]:
  """Micro-batches of minibatches, packed, in the first shape that holds them.

  Args:
    tokens_BL: prompt and response.
    start_B: first slot that holds a token.
    mask_BT: bool, response tokens.
    order_MB: the row numbers of each minibatch.
    ladder: shapes to choose from, see `config.ladder`.
    together: adjacent rows that stay in one micro-batch, adjacent.

  Returns:
    row numbers [M, A, B], and their Packed with leading axes [M, A].

  Raises:
    ValueError: not even the last shape holds them.
  """
  slots = tokens_BL.shape[1]
  prompt_B, response_B = spans(start_B, mask_BT, slots)
  length_B = prompt_B + response_B
  most = length_B[order_MB].sum(1).max()
  for hands, rows in ladder:
    if hands * rows * slots < most:
      continue
    order_MAB = np.stack(
        [deal(length_B, order_B, hands, together) for order_B in order_MB]
    )
    try:
      packed = [
          pack(tokens_BL[which], start_B[which], mask_BT[which], rows)
          for which in order_MAB.reshape(-1, order_MAB.shape[2])
      ]
    except ValueError:
      continue
    axes = order_MAB.shape[:2]
    return order_MAB, jax.tree.map(
        lambda *x, axes=axes: np.stack(x).reshape(*axes, *x[0].shape), *packed
    )
  raise ValueError(f"{most} tokens in shapes {ladder} of rows of {slots}")


def fill(packed: Packed) -> float:
  """Share of the slots that hold a token."""
  return float((packed.segments_RL > 0).mean())
