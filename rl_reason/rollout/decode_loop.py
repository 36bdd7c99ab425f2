"""The decode loop of the sampler, on the device: continuous batching.

A fixed number of slots decode together, one token each per step. A token is
drawn from the last hidden state, written to its response, and read by the
model. When a response ends, its slot admits the next row of the queue.

Shapes here: N prompts; R rows of the queue, one response each; B decode slots;
W data shards, each with a queue and slots of its own; V tokens of the
vocabulary; Z blocks of the vocabulary.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rl_reason.base.structs import Array, Tree
from rl_reason.devices import sharding
from rl_reason.models import attention, decoder
from rl_reason.rollout.sampling_filters import Filters

BURST = 8  # decode steps between two admissions from the queue
CHUNK = 2  # bursts of one device call; the host reads counts while it runs
VOCAB_BLOCK = 512  # tokens of a block of the vocabulary


@struct.dataclass
class Queue:
  """R rows, one response each; rows of a prompt are adjacent.

  Attributes:
    cache: of the prompts, prefilled.
    hidden_ND: hidden state after the last token of each prompt.
    length_N: tokens of each prompt.
    prompt_R: the prompt that a row answers.
    order_R: rows in the order in which they start.
    key_R: seeds the noise of the row.
    temperature_R: 0 is greedy.
    limit_R: maximum tokens of the response.
    tokens_RT, logps_RT, lengths_R, truncated_R: the responses so far, as in
      `Rollouts`.
    ended_R: bool, whether the response is complete.
    end_W: rows to start, in each data shard.
    next_W: rows that have started.
    record_NP, record_RT: the record of `Rollouts`, of prompt tokens (padded on
      the right) and of response tokens.
    prompts_NP: tokens of the prompts, padded on the right; None if no filter
      reads them.
  """

  cache: attention.Caches
  hidden_ND: Array
  length_N: Array
  prompt_R: Array
  order_R: Array
  key_R: Array
  temperature_R: Array
  limit_R: Array
  tokens_RT: Array
  logps_RT: Array
  lengths_R: Array
  truncated_R: Array
  ended_R: Array
  end_W: Array
  next_W: Array
  record_NP: Tree | None = None
  record_RT: Tree | None = None
  prompts_NP: Array | None = None


@struct.dataclass
class Slots:
  """The B slots, each of which decodes a row or is empty.

  Attributes:
    cache: of the prompt and response in each slot.
    hidden_BD: hidden state from which the next token is drawn.
    row_B: row of the queue; R if the slot is empty.
    t_B: tokens of the response so far.
    position_B: of the next token; -1 if the slot is empty.
  """

  cache: attention.Caches
  hidden_BD: Array
  row_B: Array
  t_B: Array
  position_B: Array


def specs(
    kind: type, replicated: tuple[str, ...] = (), heads: tuple = ()
) -> Any:
  """PartitionSpecs of a Queue or Slots: split by rows, or replicated.

  Args:
    kind: the class.
    replicated: fields that each data shard has in full.
    heads: logical axes of the cache after that of its rows.
  """

  def spec(name):
    rows = None if name in replicated else "batch"
    return sharding.spec(*(None, rows, *heads) if name == "cache" else (rows,))

  return kind(**{x.name: spec(x.name) for x in dataclasses.fields(kind)})


def constrain(tree: Any, replicated: tuple[str, ...] = ()) -> Any:
  """Constrains a Queue or Slots to the mesh, including the cache's heads."""
  if jax.sharding.get_abstract_mesh().empty:
    return tree
  axes = attention.cache_axes(isinstance(tree.cache, tuple))
  wanted = specs(type(tree), replicated, axes[2:])
  return jax.lax.with_sharding_constraint(tree, wanted)


def decode(
    params: Tree,
    queue: Queue,
    slots: Slots,
    *,
    cfg: decoder.ModelConfig,
    eos: Any,
    filters: Filters | None,
    record: Callable[..., Tree] | None = None,
    bursts: int = CHUNK,
) -> tuple[Queue, Slots, Array]:
  """`Sampler.decode` of one data shard; keywords are fields of `Sampler`.

  `filters` may also have arrays, with a number for each row.
  """
  rows, end = len(queue.lengths_R), queue.end_W[0]

  def busy(carry):
    done, queue, slots = carry
    unfinished = jnp.any(slots.row_B < rows) | (queue.next_W[0] < end)
    return (done < bursts) & unfinished

  def burst(carry):
    done, queue, slots = carry
    # Admit rows only between bursts: an admission costs a sort and copies of
    # caches, an empty slot costs at most BURST - 1 idle steps.
    queue, slots = _admit(queue, slots)
    # Rows of similar length are read together, up to the end of the longest.
    order_B = jnp.argsort(-slots.position_B)
    step = functools.partial(_step, params, cfg, eos, filters, record, order_B)
    carry = jax.lax.fori_loop(0, BURST, step, (queue, slots))
    return done + 1, *carry

  _, queue, slots = jax.lax.while_loop(busy, burst, (0, queue, slots))
  unfinished = end - queue.next_W[0] + jnp.sum(slots.row_B < rows)
  return queue, slots, unfinished[None]


def _admit(queue: Queue, slots: Slots) -> tuple[Queue, Slots]:
  """Moves the next rows of the queue into empty slots."""
  rows, first = len(queue.lengths_R), queue.next_W[0]
  free_B = slots.row_B == rows
  next_B = first + jnp.cumsum(free_B) - 1
  admits_B = free_B & (next_B < queue.end_W[0])
  row_B = jnp.where(admits_B, queue.order_R[next_B], slots.row_B)
  prompt_B = queue.prompt_R[row_B]

  # Copy the prefilled cache of the prompt in place, one admitted row after the
  # other: a gather for all slots at once would copy the whole cache.
  def copy(n, cache):
    slot = slot_B[n]
    prefix = jax.tree.map(
        lambda x: jax.lax.dynamic_slice_in_dim(x, prompt_B[slot], 1, 1),
        queue.cache,
    )
    return attention.with_row(cache, prefix, slot)

  slot_B = jnp.argsort(~admits_B)
  count = admits_B.sum()
  return queue.replace(next_W=queue.next_W + count), Slots(
      cache=jax.lax.fori_loop(0, count, copy, slots.cache),
      hidden_BD=jnp.where(
          admits_B[:, None], queue.hidden_ND[prompt_B], slots.hidden_BD
      ),
      row_B=row_B,
      t_B=jnp.where(admits_B, 0, slots.t_B),
      position_B=jnp.where(
          admits_B, queue.length_N[prompt_B], slots.position_B
      ),
  )


def _step(params: Tree, cfg, eos, filters, record, order_B, _, carry):
  """One decode step: draws a token for each slot, writes it and reads it."""
  queue, slots = carry
  rows = len(queue.lengths_R)
  row_B, t_B = slots.row_B, slots.t_B

  # Sample from the hidden state of the last token. The noise depends on the row
  # and on t, not on the slot.
  temperature_B = queue.temperature_R[row_B]
  greedy_B = temperature_B == 0
  scaled_BV = decoder.logits(params, cfg, slots.hidden_BD)
  scaled_BV /= jnp.where(greedy_B, 1, temperature_B)[:, None]
  key_B = jax.random.wrap_key_data(queue.key_R[row_B])
  uniform_B = jax.vmap(
      lambda key, t: jax.random.uniform(jax.random.fold_in(key, t))
  )(key_B, t_B)
  drawn_BV = scaled_BV
  if filters is not None:
    filters = filters.of_rows(row_B)
    drawn_BV = filters.penalize(scaled_BV, queue, row_B, t_B)
  token_B = jnp.where(
      greedy_B,
      jnp.argmax(drawn_BV, -1),
      draw(drawn_BV, uniform_B, filters),
  )
  # The log-prob before all filters, as the trainer computes it.
  chosen_B = jnp.take_along_axis(scaled_BV, token_B[:, None], -1)[:, 0]
  logp_B = chosen_B - jax.nn.logsumexp(scaled_BV, -1)
  token_B = token_B.astype(jnp.int32)

  # Write the token to its response. Writes of empty slots are dropped, because
  # their row is out of bounds.
  new = token_B, queue.tokens_RT, row_B, t_B
  is_eos_B = eos(*new) if callable(eos) else jnp.isin(token_B, np.array(eos))
  active_B = (row_B < rows) & ~is_eos_B & (t_B + 1 < queue.limit_R[row_B])
  queue = queue.replace(
      tokens_RT=queue.tokens_RT.at[row_B, t_B].set(token_B, mode="drop"),
      logps_RT=queue.logps_RT.at[row_B, t_B].set(logp_B, mode="drop"),
      lengths_R=queue.lengths_R.at[row_B].set(t_B + 1, mode="drop"),
      truncated_R=queue.truncated_R.at[row_B].set(~is_eos_B, mode="drop"),
      ended_R=queue.ended_R.at[row_B].set(~active_B, mode="drop"),
  )

  # Read the token into the cache and compute the next hidden state. Attention
  # reads no blocks for slots at position -1, whose rows have ended.
  position_B = jnp.where(active_B, slots.position_B, -1)
  hidden_B1D, cache, routing = decoder.forward(
      params,
      cfg,
      token_B[:, None],
      position_B[:, None],
      attention.decode(position_B, order_B),
      slots.cache,
  )
  if record is not None:
    at = jnp.where(active_B, row_B, rows), t_B
    record_RT = jax.tree.map(
        lambda x, new: x.at[at].set(new, mode="drop"),
        queue.record_RT,
        record(routing, cfg, t_B.shape),
    )
    queue = queue.replace(record_RT=record_RT)
  return queue, Slots(
      cache=cache,
      hidden_BD=hidden_B1D[:, 0],
      row_B=jnp.where(active_B, row_B, rows),
      t_B=t_B + 1,
      position_B=position_B + active_B,
  )


def prefill_row(
    sampler: Any, params: Tree, tokens_L: Array, length: Array
) -> tuple[Array, attention.Caches]:
  """The last hidden state [D] and the cache of one row, padded on the right."""
  at_1L = jnp.arange(len(tokens_L))[None]
  hidden_1LD, cache, _ = decoder.forward(
      params,
      sampler.cfg,
      tokens_L[None],
      at_1L,
      attention.prefill((at_1L < length).astype(jnp.int32)),
      decoder.empty_cache(sampler.cfg, 1, len(tokens_L), sampler.cache),
  )
  return hidden_1LD[0, length - 1], cache


def shrink(slots: Slots) -> Slots:
  """Halves the slots of one data shard; occupied slots stay first."""
  # Empty slots have position -1 and are sorted to the end.
  keep_B = jnp.argsort(-slots.position_B)[: len(slots.row_B) // 2]
  cache = jax.tree.map(lambda x: x[:, keep_B], slots.cache)
  rest = jax.tree.map(lambda x: x[keep_B], slots.replace(cache=None))
  return rest.replace(cache=cache)


def draw(
    logits_BV: Array, uniform_B: Array, filters: Filters | None = None
) -> Array:
  """Inverse-CDF sampling: one uniform number decides one token.

  Args:
    logits_BV: float32, temperature already applied.
    uniform_B: in [0, 1).
    filters: drop tokens; None keeps all.

  Returns:
    [B] int32.
  """
  probs_BV = jax.nn.softmax(logits_BV, -1)
  if filters is not None:
    probs_BV = filters.truncate(probs_BV)
  return _inverse_cdf(probs_BV, uniform_B)


def _inverse_cdf(probs_BV: Array, uniform_B: Array) -> Array:
  """The token whose interval of the CDF contains a number; [B].

  Finds a block of tokens by the sums of blocks, then a token in the block: a
  cumulative sum over a whole vocabulary takes a dozen passes over it.
  """
  rows, vocab = probs_BV.shape
  width = min(VOCAB_BLOCK, vocab)
  padded_BV = jnp.pad(probs_BV, ((0, 0), (0, -vocab % width)))
  probs_BZV = padded_BV.reshape(rows, -1, width)
  cdf_BZ = jnp.cumsum(probs_BZV.sum(-1), -1)
  # Scaled by the total mass, which filters leave below 1.
  point_B1 = uniform_B[:, None] * cdf_BZ[:, -1:]
  block_B1 = jnp.sum(cdf_BZ <= point_B1, -1, keepdims=True)
  block_B1 = jnp.minimum(block_B1, probs_BZV.shape[1] - 1)
  block_BV = jnp.take_along_axis(probs_BZV, block_B1[..., None], 1)[:, 0]
  before_B1 = jnp.take_along_axis(cdf_BZ, jnp.maximum(block_B1 - 1, 0), 1)
  cdf_BV = jnp.where(block_B1 > 0, before_B1, 0) + jnp.cumsum(block_BV, -1)
  index_B = jnp.sum(cdf_BV <= point_B1, -1)
  # Rounding may put the point past the last token with any mass.
  last_B = jnp.max(jnp.where(block_BV > 0, jnp.arange(width), 0), -1)
  return block_B1[:, 0] * width + jnp.minimum(index_B, last_B)
