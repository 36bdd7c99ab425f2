"""Attention of packed rows in XLA, with a backward pass written by hand.

The backward pass recomputes the scores, as in FlashAttention
(arXiv:2307.08691): no array is length x length for all rows.
Shapes here: X queries of a tile; S keys that they may see; Z = Q * X.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name

from rl_reason.base.structs import Array
from rl_reason.models import linear

TILE = 64  # queries of a tile, which skips all later keys
MAX_TILES = 8  # tiles of a row; the tiles of a long row have more queries
SAVED = "attention"  # checkpoint name of residuals that remat keeps
LOG2 = np.float32(np.log(2))
MASK_VALUE = -1e30  # score of masked keys, whose softmax weight is 0


def attend(
    q_BLKQC: Array,
    k_BLKC: Array,
    v_BLKC: Array,
    segments_BL: Array,
    prompt_BL2: Array | None = None,
    first_query: Array | None = None,
    *,
    longest: tuple[int, int] = (0, 0),
) -> Array:
  """Causal attention of scaled queries within segments, softmax in fp32.

  Args:
    q_BLKQC: queries of whole rows, or of a part of each row.
    k_BLKC: keys of whole rows.
    v_BLKC: values of whole rows.
    segments_BL: as in `models.attention.packed`.
    prompt_BL2: of whole rows, the place of the shared prompt of each token, see
      `Shared`; None: no prompt is shared.
    first_query: position of the first query in its row, int32; None for queries
      of whole rows.
    longest: `Shared.longest`, with shared prompts.
  """
  length = q_BLKQC.shape[1]
  first_BL, at_BL = first_keys(segments_BL), None
  if first_query is not None or prompt_BL2 is not None:
    start = 0 if first_query is None else first_query
    at_L = start + jnp.arange(length)
    at_BL = jnp.broadcast_to(at_L, (len(first_BL), length))
    first_BL, prompt_BL2 = jax.tree.map(
        lambda x: jax.lax.dynamic_slice_in_dim(x, start, length, 1),
        (first_BL, prompt_BL2),
    )
  rows = q_BLKQC, k_BLKC, v_BLKC, Seen(first_BL, at_BL, prompt_BL2)
  if prompt_BL2 is not None:
    rows = _tiles_of_rows(*rows, longest)
  q, k, v, seen = rows
  heads_first = q.transpose(0, 2, 3, 1, 4), k.swapaxes(1, 2), v.swapaxes(1, 2)
  out_BKQLC = _attend_rows(*heads_first, seen)
  out_BLKQC = out_BKQLC.transpose(0, 3, 1, 2, 4)
  if prompt_BL2 is None:
    return out_BLKQC
  whole = out_BLKQC.reshape(len(q_BLKQC), -1, *q_BLKQC.shape[2:])
  return whole[:, :length]


class Seen(NamedTuple):
  """Which keys a query sees, up to its own place.

  Attributes:
    first_BL: the first key of its segment.
    at_BL: the place of the query; None for queries of whole rows.
    prompt_BL2: begin and end of a prompt that it sees too; None: of none.
    at_BS: the place of each key, with prompt_BL2.
  """

  first_BL: Array
  at_BL: Array | None = None
  prompt_BL2: Array | None = None
  at_BS: Array | None = None


def tile_of(longest: int) -> int:
  """Queries of a tile, with shared prompts.

  Args:
    longest: tokens of the longest prompt and of the longest response.
  """
  return max(TILE, -(-longest // MAX_TILES))


def _tiles_of_rows(q_BLKQC, k_BLKC, v_BLKC, seen, longest):
  """Tiles of queries as rows, with the keys that they may see.

  The queries of a tile see keys in two places: at most `response` keys before
  the first query and up to the last one, and the prompt of the first query.
  (The prompt of another sequence begins in the tile.) So the work of a token
  does not grow with its row.
  """
  prompt, response = longest
  (rows, length), slots = q_BLKQC.shape[:2], k_BLKC.shape[1]
  size = tile_of(prompt + response)

  def tiled(x):
    # More queries, which see the keys of the last one.
    edges = ((0, 0), (0, -length % size)) + ((0, 0),) * (x.ndim - 2)
    x = jnp.pad(x, edges, mode="edge")
    return x.reshape(-1, size, *x.shape[2:])

  tiles = jax.tree.map(tiled, seen)
  window = min(size + response, slots)
  begin_W1 = jnp.clip(tiles.at_BL[:, :1] - response, 0, slots - window)
  prompt = min(prompt, slots)
  prompt_W1 = jnp.minimum(tiles.prompt_BL2[:, :1, 0], slots - prompt)
  of_prompt_WS = prompt_W1 + jnp.arange(prompt)
  near_WS = begin_W1 + jnp.arange(window)
  keys_WS = jnp.concatenate([of_prompt_WS, near_WS], 1)
  # A key in both places counts once: its copy is behind all queries.
  once_WS = jnp.where(of_prompt_WS < begin_W1, of_prompt_WS, slots)
  seen = tiles._replace(at_BS=jnp.concatenate([once_WS, near_WS], 1))

  def read(x_BLKC):
    of_rows = keys_WS.reshape(rows, -1)
    found = jax.vmap(lambda x, at: x[at])(x_BLKC, of_rows)
    return found.reshape(*keys_WS.shape, *x_BLKC.shape[2:])

  return tiled(q_BLKQC), read(k_BLKC), read(v_BLKC), seen


def first_keys(segments_BL: Array) -> Array:
  """The position of the first visible key of each token, in its segment; int32.

  On XLA's CPU backend, comparing segment numbers would take as long as the rest
  of attention.
  """
  at_L = jnp.arange(segments_BL.shape[1])
  starts_BL = segments_BL != jnp.roll(segments_BL, 1, 1)
  return jax.lax.cummax(jnp.where(starts_BL, at_L, 0), 1)


def einsum32(axes: str, *args: Array) -> Array:
  """An einsum with sums in fp32 for any dtype of the arguments."""
  return jnp.einsum(axes, *args, preferred_element_type=jnp.float32)


def softmax_terms(scores: Array, shift: Array, dtype) -> Array:
  """exp(scores - shift) in fp32, rounded to the dtype of the values.

  Terms are rounded before they are summed, so that the sum has the same numbers
  as the product with the values. The sum hardly depends on the order of the
  keys, since terms with few bits add up exactly.
  """
  return linear.rounded(jnp.exp(scores - shift), dtype)


def softmax_shift(row_max: Array) -> Array:
  """The shift of `softmax_terms`: row_max, rounded up to a multiple of log 2.

  Terms of different shifts differ by a power of two, so they round to the same
  bits. Therefore a sampler that reads keys in blocks, with a running maximum,
  agrees with a trainer that has all keys. The shift is far above MASK_VALUE, so
  that masked keys have terms of 0 even if all keys are masked.
  """
  row_max = jnp.maximum(row_max, MASK_VALUE / 2)
  return jnp.ceil(row_max / LOG2) * LOG2


@jax.custom_vjp
def _attend_rows(q_BKQLC, k_BKLC, v_BKLC, seen):
  return _rows_forward(q_BKQLC, k_BKLC, v_BKLC, seen)[0]


def _rows_forward(*rows):
  # Without the barrier, differentiation computes the masks of all rows before
  # the layers, and keeps them: [B, K, Q, X, S] for each tile.
  rows = jax.lax.optimization_barrier(rows)
  out_BKQLC, logsumexp_BKQL = _map_rows(_row_forward, rows)
  out_BKQLC = checkpoint_name(out_BKQLC, SAVED)
  logsumexp_BKQL = checkpoint_name(logsumexp_BKQL, SAVED)
  return out_BKQLC, (*rows, out_BKQLC, logsumexp_BKQL)


def _rows_backward(saved, grad_BKQLC):
  return *_map_rows(_row_backward, (*saved, grad_BKQLC)), None


_attend_rows.defvjp(_rows_forward, _rows_backward)


def _map_rows(fn: Callable, rows: tuple[Array, ...]):
  # On a CPU, one row at a time: the scores stay in the cache of the CPU, and
  # their memory is reused. Both passes take 0.4 of the time of all rows at once
  # (16 rows of 160, 8 heads of 32).
  if jax.default_backend() == "cpu":
    return jax.lax.map(lambda row: fn(*row), rows)
  return jax.vmap(fn)(*rows)


def _tiles(length: int, keys: int | None) -> list[tuple[slice, int]]:
  """Tiles of the queries of a row, and the number of keys that each tile reads.

  A tile skips later keys, unless the positions of the queries are known only on
  the device: then each tile reads `keys` keys.
  """
  count = min(-(-length // TILE), MAX_TILES)
  ends = [length * n // count for n in range(count + 1)]
  tiles = [slice(*pair) for pair in itertools.pairwise(ends)]
  return [(tile, keys or tile.stop) for tile in tiles]


def _visible(tile: slice, keys: int, seen: Seen):
  """Whether the queries of a tile see each of the first keys: bool [X, S]."""
  first_L, at_L, prompt_L2, at_S = seen
  at_S = jnp.arange(keys) if at_S is None else at_S
  at_L = jnp.arange(len(first_L)) if at_L is None else at_L
  visible = first_L[tile, None] <= at_S
  if prompt_L2 is not None:
    begin_X1, end_X1 = jnp.split(prompt_L2[tile], 2, -1)
    visible |= (begin_X1 <= at_S) & (at_S < end_X1)
  return visible & (at_S <= at_L[tile, None])


def _row_forward(q_KQLC, k_KLC, v_KLC, seen):
  """Attention of one row [K, Q, L, C], and the logsumexp of its scores."""
  outs, logsumexps = [], []
  all_keys = None if seen.at_BL is None else k_KLC.shape[1]
  for tile, keys in _tiles(q_KQLC.shape[2], all_keys):
    k_KSC, v_KSC = k_KLC[:, :keys], v_KLC[:, :keys]
    scores = einsum32("KQXC,KSC->KQXS", q_KQLC[:, :, tile], k_KSC)
    visible = _visible(tile, keys, seen)
    scores = jnp.where(visible, scores, MASK_VALUE)
    shift = softmax_shift(scores.max(-1, keepdims=True))
    terms = softmax_terms(scores, shift, v_KSC.dtype)
    total = terms.sum(-1, keepdims=True)
    out = einsum32("KQXS,KSC->KQXC", terms.astype(v_KSC.dtype), v_KSC)
    outs.append((out / total).astype(v_KSC.dtype))
    logsumexps.append((shift + jnp.log(total))[..., 0])
  return jnp.concatenate(outs, 2), jnp.concatenate(logsumexps, 2)


def _row_backward(
    q_KQLC,
    k_KLC,
    v_KLC,
    seen,
    out_KQLC,
    logsumexp_KQL,
    grad_KQLC,
):
  """Gradients of a row's queries, keys and values.

  The axis of keys precedes the axis of queries, so that no product needs
  transposed scores, which would be copies on a CPU.
  """
  product = grad_KQLC.astype(jnp.float32) * out_KQLC
  mean_KQL = product.sum(-1)
  kv, group, _, dim = q_KQLC.shape
  grad_q, grad_k, grad_v = [], jnp.zeros_like(k_KLC), jnp.zeros_like(v_KLC)
  all_keys = None if seen.at_BL is None else k_KLC.shape[1]
  for tile, keys in _tiles(q_KQLC.shape[2], all_keys):
    k_KSC, v_KSC = k_KLC[:, :keys], v_KLC[:, :keys]
    # The queries of all heads of a key in one axis: Z = Q * X.
    q_KZC, grad_KZC = (
        x[:, :, tile].reshape(kv, -1, dim) for x in (q_KQLC, grad_KQLC)
    )

    def by_head(x_KSZ):
      return x_KSZ.reshape(*x_KSZ.shape[:2], group, -1)

    # Recomputes probabilities from the saved logsumexp.
    scores = by_head(einsum32("KSC,KZC->KSZ", k_KSC, q_KZC))
    visible_XS = _visible(tile, keys, seen)
    scores = jnp.where(visible_XS.T[:, None], scores, MASK_VALUE)
    probs = jnp.exp(scores - logsumexp_KQL[:, None, :, tile])
    # The gradient of the scores: p (dp - sum(p dp)).
    grad = by_head(einsum32("KSC,KZC->KSZ", v_KSC, grad_KZC))
    grad = (probs * (grad - mean_KQL[:, None, :, tile])).astype(k_KSC.dtype)
    probs_KSZ, scores_grad_KSZ = (
        x.reshape(*x.shape[:2], -1) for x in (probs.astype(v_KSC.dtype), grad)
    )
    grad_KCZ = jnp.einsum("KSC,KSZ->KCZ", k_KSC, scores_grad_KSZ)
    grad_q.append(grad_KCZ.reshape(kv, dim, group, -1))
    # Padded instead of updated in place, which crashes jaxlib 0.11.2 on a mesh.
    rest = (0, 0), (0, k_KLC.shape[1] - keys), (0, 0)
    grad_k += jnp.pad(jnp.einsum("KSZ,KZC->KSC", scores_grad_KSZ, q_KZC), rest)
    grad_v += jnp.pad(jnp.einsum("KSZ,KZC->KSC", probs_KSZ, grad_KZC), rest)
  grad_KCQL = jnp.concatenate(grad_q, 3)
  return grad_KCQL.transpose(0, 2, 3, 1), grad_k, grad_v
