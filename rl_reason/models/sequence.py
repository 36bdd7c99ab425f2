"""Context parallelism: packed rows are split along their tokens.

With `mesh.sequence` = S > 1, S devices share packed rows, and each has one
chunk of every row: [R, L] becomes [R * S, L / S], with the chunks of a device
adjacent. The first axis is sharded over all batch axes, so that operations on
single tokens are local. Only attention needs whole rows. With S = 1 all
functions are no-ops. Shapes here: L tokens of a chunk; Z of its whole row; X of
all rows; S devices.
"""

import functools
from collections.abc import Callable

import jax

from rl_reason.base.structs import Array
from rl_reason.devices import sharding

AXIS = "sequence"


def _shards(name: str) -> int:
  return sharding.num_shards(jax.sharding.get_abstract_mesh(), name)


def split(x_RL: Array) -> Array:
  """Chunks [R * S, L / S, ...] of packed rows [R, L, ...]."""
  parts, rows = _shards(AXIS), _shards("rows")
  if parts == 1:
    return x_RL
  count, length, *rest = x_RL.shape
  x = x_RL.reshape(rows, count // rows, parts, length // parts, *rest)
  x = x.swapaxes(1, 2).reshape(count * parts, length // parts, *rest)
  return sharding.constrain(x, "batch", *[None] * (x.ndim - 1))


def join(x_RL: Array) -> Array:
  """Packed rows [R, L, ...] of their chunks [R * S, L / S, ...]."""
  parts, rows = _shards(AXIS), _shards("rows")
  if parts == 1:
    return x_RL
  count, length, *rest = x_RL.shape
  x = x_RL.reshape(rows, parts, count // parts // rows, length, *rest)
  return x.swapaxes(1, 2).reshape(count // parts, length * parts, *rest)


def stream(x_XD: Array) -> Array:
  """Shards the residual stream by tokens.

  With S > 1 also over the tensor axis (arXiv:2205.05198, sec 4.2.2), so that
  devices do not save copies of the same activations.
  """
  over_tensor = _shards(AXIS) > 1 and len(x_XD) % _shards("stream") == 0
  return sharding.constrain(x_XD, "stream" if over_tensor else "batch", None)


def gathered(x_XD: Array) -> Array:
  """The stream for products whose weights are sharded over the tensor axis.

  Constrains results, too: otherwise XLA would gather the tokens of all chunks.
  """
  return x_XD if _shards(AXIS) == 1 else sharding.constrain(x_XD, "batch", None)


def full_width(embed_VD: Array) -> Array:
  """The embedding, gathered over the width, for the lookup of tokens.

  Otherwise XLA would gather the tokens of all devices, also for the gradient.
  """
  if _shards(AXIS) == 1:
    return embed_VD
  vocab = None if len(embed_VD) % _shards("vocab") else "vocab"
  return sharding.constrain(embed_VD, vocab, None)


def whole_rows(
    attend: Callable[..., Array], in_xla: Callable[..., Array]
) -> Callable[..., Array]:
  """Attention of whole rows as a function of their chunks, in a shard_map.

  If S divides the number of key heads, devices exchange heads for tokens
  (arXiv:2309.14509, sec 3.1): each device attends in whole rows with 1 / S of
  its heads, which balances the work. Otherwise each device gathers all keys and
  values, and attends in XLA with the queries of its chunks.

  Args:
    attend: (q_BLKQC, k_BLKC, v_BLKC, segments_BL and other arrays of the
      tokens) -> out_BLKQC, of whole rows.
    in_xla: `packed_attention.attend` of the same arrays.
  """
  parts = _shards(AXIS)
  if parts == 1:
    return attend
  gather = functools.partial(
      jax.lax.all_gather, axis_name=AXIS, axis=1, tiled=True
  )
  exchange = functools.partial(jax.lax.all_to_all, axis_name=AXIS, tiled=True)

  def run(q_BLKQC, k_BLKC, v_BLKC, *of_tokens):
    of_rows = [gather(x) for x in of_tokens]
    if k_BLKC.shape[2] % parts == 0:
      q_BZKQC, k_BZKC, v_BZKC = (
          exchange(x, split_axis=2, concat_axis=1)
          for x in (q_BLKQC, k_BLKC, v_BLKC)
      )
      out_BZKQC = attend(q_BZKQC, k_BZKC, v_BZKC, *of_rows)
      return exchange(out_BZKQC, split_axis=1, concat_axis=2)
    first = jax.lax.axis_index(AXIS) * q_BLKQC.shape[1]
    keys = gather(k_BLKC), gather(v_BLKC)
    return in_xla(q_BLKQC, *keys, *of_rows, first_query=first)

  return run
