"""Partial rollouts: responses that an earlier call began are continued.

Kimi k1.5 (arXiv:2501.12599, section 2.6.2). `sampler.stream` calls `resume` if
it is passed partial rollouts; no other rollout executes this module.

Shapes here: as in `sampler`, R rows of the queue; B decode slots.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from rl_reason.models import attention, decoder
from rl_reason.rollout.decode_loop import Queue, Slots
from rl_reason.scale import sharding
from rl_reason.structs import Array, Rollouts, Tree


def resume(
    sampler: Any,
    params: Tree,
    tokens_NP: Array,
    queue: Queue,
    slots: Slots,
    resumed: tuple[Rollouts, Array],
    expected_R: Array,
) -> tuple[Queue, Slots]:
  """A queue and slots in which partial responses continue.

  `Sampler.start` calls it with prompts that are padded on the right, its queue,
  empty slots, and the responses so far with those that have ended.
  """
  rollouts, ended_R = resumed
  shards = len(queue.next_W)
  # Partial responses start first, complete ones never; between the two those
  # that were not begun, the longest first.
  rank_R = jnp.where(ended_R, 2, jnp.where(rollouts.lengths_B > 0, 0, 1))
  order_WR = jnp.lexsort(
      (-expected_R.reshape(shards, -1), rank_R.reshape(shards, -1)), -1
  )
  queue = queue.replace(
      order_R=order_WR.reshape(-1),
      tokens_RT=rollouts.tokens_BL[:, tokens_NP.shape[1] :],
      logps_RT=rollouts.logps_BT,
      lengths_R=rollouts.lengths_B,
      truncated_R=rollouts.truncated_B,
      ended_R=ended_R,
      end_W=jnp.sum(~ended_R.reshape(shards, -1), 1),
  )
  queue, slots = sampler.constrain(queue, slots)
  specs = sampler.specs()
  prefill = sharding.by_batch_shard(
      functools.partial(_prefill, sampler),
      (sharding.spec(), specs[0].length_N, *specs),
      specs,
  )
  return prefill(params, tokens_NP, queue, slots)


def _prefill(sampler: Any, params: Tree, tokens_NP, queue, slots):
  """Fills the first slots of one data shard with its partial responses.

  Prompt and response are prefilled anew, because the policy may be another one;
  one row at a time, because few are resumed. Responses that find no free slot
  are sampled again from their start.
  """
  max_tokens = queue.tokens_RT.shape[1]
  partial_R = (queue.lengths_R > 0) & ~queue.ended_R
  count = jnp.minimum(partial_R.sum(), len(slots.row_B))

  def one(n, slots):
    row = queue.order_R[n]
    prompt, t = queue.prompt_R[row], queue.lengths_R[row]
    length = queue.length_N[prompt]
    tokens_L = jnp.pad(tokens_NP[prompt], (0, max_tokens))
    tokens_L = jax.lax.dynamic_update_slice(
        tokens_L, queue.tokens_RT[row], (length,)
    )
    at_1L = jnp.arange(len(tokens_L))[None]
    hidden_1LD, filled, _ = decoder.forward(
        params,
        sampler.cfg,
        tokens_L[None],
        at_1L,
        attention.prefill((at_1L < length + t).astype(jnp.int32)),
        decoder.empty_cache(sampler.cfg, 1, len(tokens_L), sampler.cache),
    )
    return Slots(
        cache=attention.with_row(slots.cache, filled, n),
        hidden_BD=slots.hidden_BD.at[n].set(hidden_1LD[0, length + t - 1]),
        row_B=slots.row_B.at[n].set(row),
        t_B=slots.t_B.at[n].set(t),
        position_B=slots.position_B.at[n].set(length + t),
    )

  slots = jax.lax.fori_loop(0, count, one, slots)
  return queue.replace(next_W=queue.next_W + count), slots
