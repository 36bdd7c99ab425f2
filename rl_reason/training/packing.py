"""Packed rows: sequences end to end, so that padding costs no forward pass.

Sequences are placed by first-fit decreasing, on the host. Attention stays
within a segment, and positions start at 0 in each segment. A micro-batch has a
fixed number of packed rows, and a minibatch as many micro-batches as its tokens
fill, so all lengths share one shape and one compiled program. Only the forward
pass sees packed rows: log-probs and values are returned as [B, T].

Shapes here: U units; Y sequences of a unit; X tokens of all sequences.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_reason.base.structs import Array, Packed, Rollouts, Tree
from rl_reason.collect.experience import groups as groups_of, round_robin


def spans(start_B: Array, mask_BT: Array, slots: int) -> tuple[Array, Array]:
  """Tokens of each row's prompt and response, [B] int each.

  A response ends at the last token in its mask. A row with an empty mask is not
  packed: both numbers are 0.

  Raises:
    ValueError: a row has a response and no prompt, so that the sequence packed
      before it would predict its first token.
  """
  length = mask_BT.shape[1]
  response_B = (mask_BT * np.arange(1, length + 1)).max(1)
  prompt_B = np.where(response_B > 0, slots - length - start_B, 0)
  if (prompt_B < (response_B > 0)).any():
    raise ValueError("a response without a token of its prompt")
  return prompt_B, response_B


def place(
    length_B: Array, slots: int, rows: int, unit: int = 1
) -> tuple[Array, Array]:
  """First-fit decreasing: the packed row of each sequence, and its first slot.

  Args:
    length_B: tokens of each sequence; an empty one gets row 0, slot 0.
    slots: of a packed row.
    rows: R, of a micro-batch; packed rows are numbered across micro-batches.
    unit: adjacent sequences that share a micro-batch: pairs of a preference
      loss; 1 in RL.

  Returns:
    row and first slot, [B] int each.

  Raises:
    ValueError: a sequence is longer than a row, or a unit has more sequences
      than a micro-batch has rows.
  """
  if length_B.max(initial=0) > slots:
    raise ValueError(f"{length_B.max()} tokens in packed rows of {slots}")
  free_AR = np.full((max_micro_batches(len(length_B), rows, unit), rows), slots)
  spot_B2 = np.zeros((len(length_B), 2), int)
  length_UY = length_B.reshape(-1, unit)
  row_UY = np.arange(len(length_B)).reshape(-1, unit)
  total_U = length_UY.sum(1)
  # Long units first: short ones fill the gaps.
  for u in np.argsort(-total_U, kind="stable")[: np.count_nonzero(total_U)]:
    for a in np.flatnonzero(free_AR.max(1) >= length_UY[u].max()):
      # Try the unit in a copy: either all its sequences fit into this
      # micro-batch, or none is placed.
      free_R = free_AR[a].copy()
      for b in row_UY[u]:
        r = np.argmax(free_R >= length_B[b])
        spot_B2[b] = a * rows + r, slots - free_R[r]
        free_R[r] -= length_B[b]
        if free_R[r] < 0:
          break
      else:
        free_AR[a] = free_R
        break
  return tuple(spot_B2.T * (length_B > 0))


def max_micro_batches(rows: int, packed_rows: int, unit: int = 1) -> int:
  """Upper bound A of micro-batches, enough for B rows of any lengths.

  Raises:
    ValueError: a unit has more rows than a micro-batch.
  """
  if packed_rows < unit:
    raise ValueError(f"{unit} rows in micro-batches of {packed_rows}")
  return -(-rows // unit // (packed_rows // unit))


def pack(
    tokens_BL: Array,
    start_B: Array,
    mask_BT: Array,
    rows: int,
    unit: int = 1,
    record: Tree | None = None,
    spots: tuple | None = None,
) -> Packed:
  """Packs a minibatch of rows that are padded on both sides.

  Arrays are as in `Rollouts`. A micro-batch has `rows` packed rows, as long as
  the padded rows; `unit` adjacent rows share a micro-batch. `spots` replaces
  `place`: the shape [A, R, L], the packed row and the first slot of each
  sequence, and how many of its first tokens another sequence writes.

  Returns:
    tokens, positions, segments [A, R, L], source [B, T], and the record
    [A, R, L, ...]. A is enough for rows of full length; empty micro-batches
    come last.
  """
  slots, length = tokens_BL.shape[1], mask_BT.shape[1]
  prompt_B, response_B = spans(start_B, mask_BT, slots)
  length_B = prompt_B + response_B
  if spots is None:
    shape = max_micro_batches(len(length_B), rows, unit), rows, slots
    spots = shape, *place(length_B, slots, rows, unit), 0
  shape, row_B, first_B, skip_B = spots
  place_B = row_B * shape[-1] + first_B

  # All tokens in order: the row and the position of each. Whole arrays are then
  # written at once.
  owner_X = np.repeat(np.arange(len(length_B)), length_B - skip_B)
  before_B = np.cumsum(length_B - skip_B) - length_B
  at_X = np.arange(len(owner_X)) - before_B[owner_X]
  from_X = owner_X, start_B[owner_X] + at_X
  to_X = place_B[owner_X] + at_X

  def laid_out(of_token_X, padding):
    """Puts an array of all tokens, [X, ...], into packed rows."""
    rest = of_token_X.shape[1:]
    out = np.full((np.prod(shape), *rest), padding, of_token_X.dtype)
    out[to_X] = of_token_X
    return out.reshape(*shape, *rest)

  # A response token is predicted at the place before it; the first one at the
  # last place of the prompt.
  at_T = np.arange(length)
  source_BT = np.where(at_T < response_B[:, None], at_T, 0)
  source_BT += np.maximum(place_B + prompt_B - 1, 0)[:, None]
  return Packed(
      tokens_RL=laid_out(tokens_BL[from_X].astype(np.int32), 0),
      positions_RL=laid_out(at_X.astype(np.int32), 0),
      segments_RL=laid_out((owner_X + 1).astype(np.int32), 0),
      source_BT=source_BT.astype(np.int32),
      record=jax.tree.map(lambda x_BL: laid_out(x_BL[from_X], -1), record),
  )


def num_used(packed: Packed) -> Array:
  """Number of non-empty micro-batches in a minibatch."""
  return jnp.sum(jnp.any(packed.segments_RL > 0, (1, 2)))


def micro_batch(packed: Packed, at: Array) -> tuple[Packed, Array]:
  """Micro-batch number `at` of a minibatch.

  Returns:
    tokens, positions, segments and record [R, L, ...], and source [B, T] of all
    rows; and member [B] bool, whether it holds each row: results of other rows
    are meaningless.
  """
  places = packed.tokens_RL[0].size
  # Places count from the first micro-batch on.
  source_BT = packed.source_BT - at * places
  member_B = (0 <= source_BT[:, 0]) & (source_BT[:, 0] < places)
  micro = jax.tree.map(lambda x: x[at], packed.replace(source_BT=None))
  source_BT = jnp.where(member_B[:, None], source_BT, 0)
  return micro.replace(source_BT=source_BT), member_B


def fold(fn: Callable[[Packed, Array], Tree], packed: Packed) -> Tree:
  """Sums a function of micro-batches over the non-empty micro-batches.

  A loop instead of a scan: its length depends on the tokens, and it takes the
  memory of one micro-batch. Entries whose names end in `_max`, which are not
  negative, are combined by the maximum.
  """

  def add(path, total, new):
    is_max = jax.tree_util.keystr(path, simple=True).endswith("_max")
    return jnp.maximum(total, new) if is_max else total + new

  zeros = jax.eval_shape(lambda: fn(*micro_batch(packed, 0)))
  return jax.lax.fori_loop(
      0,
      num_used(packed),
      lambda at, total: jax.tree_util.tree_map_with_path(
          add, total, fn(*micro_batch(packed, at))
      ),
      jax.tree.map(jnp.zeros_like, zeros),
  )


def zero_others(member_B: Array, tree: Tree) -> Tree:
  """Sets rows of arrays [B, ...] to zero, except for members."""

  def choose(x):
    where = member_B.reshape(-1, *[1] * (x.ndim - 1))
    return jnp.where(where, x, jnp.zeros_like(x))

  return jax.tree.map(choose, tree)


# --- a training step: its minibatches ----------------------------------------


class PackingPlan(NamedTuple):
  """The split of a training step into packed minibatches, on the host.

  Attributes:
    order_MB: row numbers of each minibatch; an epoch has every row once.
    packed_M: tokens of the minibatches.
  """

  order_MB: Array
  packed_M: Packed


def plan(
    rollouts: Rollouts,
    step: int = 0,
    *,
    packed_rows: int,
    minibatches: int,
    epochs: int = 1,
    seed: int = 0,
    packer: Callable[..., Packed] = pack,
) -> PackingPlan:
  """Splits rows into minibatches of whole groups, and packs each of them.

  Adjacent rows with one id are a group. The first epoch keeps the order of the
  groups; later epochs shuffle them by the seed and the RL step.
  """
  groups = groups_of(rollouts.ids_B)
  orders = [round_robin(groups, minibatches)]
  for epoch in range(1, epochs):
    rng = np.random.default_rng((seed, step, epoch))
    shuffled = [groups[i] for i in rng.permutation(len(groups))]
    orders.append(round_robin(shuffled, minibatches))
  order_MB = np.concatenate(orders).reshape(minibatches * epochs, -1)
  packed = []
  for b in order_MB:
    r = jax.tree.map(lambda x, b=b: x[b], rollouts)
    rows = r.tokens_BL, r.start_B, r.mask_BT
    packed.append(packer(*rows, packed_rows, record=r.record))
  return PackingPlan(order_MB, jax.tree.map(lambda *x: np.stack(x), *packed))
