"""The device programs of a server: the decode loop of training, kept running.

Responses are rows of one `decode_loop.Queue` that never ends. As in training, a
waiting row takes the first free slot between two bursts, on the device. Shapes
do not depend on the requests: nothing compiles twice, and the tokens of a row
do not depend on the other rows.

Shapes here: N prefilled prompts; R rows; B decode slots; U decode steps of one
call; P tokens of a text, padded on the right.
"""

import dataclasses
import functools
import zlib
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rl_reason.base.structs import Array, Tree
from rl_reason.models import attention, decoder, packed_attention
from rl_reason.rollout import decode_loop
from rl_reason.rollout.decode_loop import Queue, Slots
from rl_reason.rollout.sampling_filters import Filters

STEPS = decode_loop.BURST  # one burst per call, so that text streams evenly
PURPOSE = "serve"  # of keys, as in `randomness.key`
TOP = 20  # most likely tokens of a position whose log-probs are computed
PART = 128  # queries whose attention scores are in memory at a time
CHUNK = 64  # positions whose logits are in memory at a time in `score`


@struct.dataclass
class Rows:
  """Sampling parameters of each row, set by the host.

  Attributes:
    prompt_R: int32, number of the prefilled prompt.
    seed_R, id_R, sample_R: int32, seed, prompt id and sample number, which
      determine the noise; see `randomness.key`.
    temperature_R: float32, 0 is greedy.
    filters: with arrays [R]; see `sampling_filters`.
    limit_R: int32, maximum tokens of the response; 0 ends it at once.
  """

  prompt_R: Array
  seed_R: Array
  id_R: Array
  sample_R: Array
  temperature_R: Array
  filters: Filters
  limit_R: Array


@struct.dataclass
class Progress:
  """Results of a call of `decode`, for the host.

  Attributes:
    tokens_RU, logps_RU: new tokens of each row, left-aligned.
    lengths_R: tokens of each row so far.
    truncated_R, ended_R: as in `Queue`.
    occupied: number of slots up to the last occupied one.
  """

  tokens_RU: Array
  logps_RU: Array
  lengths_R: Array
  truncated_R: Array
  ended_R: Array
  occupied: Array


@dataclasses.dataclass(frozen=True)
class Programs:
  """The device programs and their static arguments.

  Attributes:
    cfg: static shape of the model.
    prompts: N, number of prefilled prompts in the cache.
    slots: B, number of responses that decode together.
    widths: smaller numbers of slots, ascending, each with its own decode
      program for a server that is not busy; for CPUs, which compute slot by
      slot.
    max_prompt: maximum tokens of a prompt.
    max_tokens: maximum tokens of a response, including EOS.
    eos: ids that end a response.
    pad: id that fills the positions after a response.
    cache: dtype of keys and values: 'same' as the model, or 'int8'.
  """

  cfg: decoder.ModelConfig
  prompts: int
  slots: int
  max_prompt: int
  max_tokens: int
  eos: tuple[int, ...]
  pad: int
  cache: str = "same"
  widths: tuple[int, ...] = ()

  @property
  def rows(self) -> int:
    """R: rows on the device, of which half decode and half wait."""
    return 2 * self.slots

  def empty(self) -> tuple[Queue, Slots]:
    """A queue without rows, and free slots."""
    cfg, rows = self.cfg, self.rows
    hidden = functools.partial(jnp.zeros, dtype=cfg.dtype)

    def integers(shape, fill=0):
      return jnp.full(shape, fill, jnp.int32)

    queue = Queue(
        cache=decoder.empty_cache(
            cfg, self.prompts, self.max_prompt, self.cache
        ),
        hidden_ND=hidden((self.prompts, cfg.width)),
        length_N=integers(self.prompts),
        prompt_R=integers(rows),
        order_R=integers(rows),
        key_R=jnp.zeros((rows, 2), jnp.uint32),
        temperature_R=jnp.ones(rows),
        limit_R=integers(rows),
        tokens_RT=integers((rows, self.max_tokens), self.pad),
        logps_RT=jnp.zeros((rows, self.max_tokens)),
        lengths_R=integers(rows),
        truncated_R=jnp.ones(rows, bool),
        ended_R=jnp.ones(rows, bool),
        end_W=integers(1),
        next_W=integers(1),
        prompts_NP=integers((self.prompts, self.max_prompt), self.pad),
    )
    length = attention.cache_slots(self.max_prompt + self.max_tokens)
    slots = Slots(
        cache=decoder.empty_cache(cfg, self.slots, length, self.cache),
        hidden_BD=hidden((self.slots, cfg.width)),
        row_B=integers(self.slots, rows),
        t_B=integers(self.slots),
        position_B=integers(self.slots, -1),
    )
    return decode_loop.constrain(queue), decode_loop.constrain(slots)

  def prefill(
      self, params: Tree, queue: Queue, tokens_P: Array, length: Array, n: Array
  ) -> Queue:
    """Prefills one prompt, padded on the right, as number n of the queue.

    Each call prefills one prompt, so its results do not depend on other
    prompts.
    """
    hidden_D, filled = decode_loop.prefill_row(self, params, tokens_P, length)
    prompts_NP: Any = queue.prompts_NP
    queue = queue.replace(
        cache=attention.with_row(queue.cache, filled, n),
        hidden_ND=queue.hidden_ND.at[n].set(hidden_D),
        length_N=queue.length_N.at[n].set(length),
        prompts_NP=prompts_NP.at[n, : len(tokens_P)].set(tokens_P),
    )
    return decode_loop.constrain(queue)

  def decode(
      self,
      params: Tree,
      queue: Queue,
      slots: Slots,
      rows: Rows,
      new_R: Array,
      count: Array,
      *,
      width: int,
  ) -> tuple[Queue, Slots, Progress]:
    """Queues new rows, then decodes one burst.

    Args:
      params: parameters of the model.
      queue: donated.
      slots: donated.
      rows: sampling parameters of all rows, old and new.
      new_R: rows to queue, in order, padded with R.
      count: number of rows to queue.
      width: number of slots that decode, from the first; the rest are empty.
    """
    # Rows that are already waiting come first.
    waiting = queue.end_W[0] - queue.next_W[0]
    order_R = jnp.roll(queue.order_R, -queue.next_W[0])
    at_R = jnp.arange(self.rows) - waiting
    is_new_R = (at_R >= 0) & (at_R < count)
    fresh_R = jnp.zeros(self.rows, bool).at[new_R].set(True, mode="drop")
    purpose = zlib.crc32(PURPOSE.encode())

    def key(seed, prompt_id, sample):
      key = jax.random.fold_in(jax.random.key(seed), jnp.uint32(purpose))
      key = jax.random.fold_in(jax.random.fold_in(key, prompt_id), sample)
      return jax.random.key_data(key)

    queue = queue.replace(
        prompt_R=rows.prompt_R,
        order_R=jnp.where(is_new_R, new_R[jnp.clip(at_R, 0)], order_R),
        key_R=jax.vmap(key)(rows.seed_R, rows.id_R, rows.sample_R),
        temperature_R=rows.temperature_R,
        limit_R=rows.limit_R,
        lengths_R=jnp.where(fresh_R, 0, queue.lengths_R),
        ended_R=queue.ended_R & ~fresh_R,
        end_W=(waiting + count)[None],
        next_W=jnp.zeros(1, jnp.int32),
    )
    before_R = queue.lengths_R
    # The whole cache is passed, since a slice of it would be copied.
    cache, rest = slots.cache, slots.replace(cache=None)
    first = jax.tree.map(lambda x: x[:width], rest).replace(cache=cache)
    queue, first, _ = decode_loop.decode(
        params,
        queue,
        first,
        cfg=self.cfg,
        eos=self.eos,
        filters=rows.filters,
        bursts=1,
    )
    slots = jax.tree.map(
        lambda x, new: x.at[:width].set(new), rest, first.replace(cache=None)
    ).replace(cache=first.cache)
    at_RU = before_R[:, None] + jnp.arange(STEPS)
    progress = Progress(
        tokens_RU=jnp.take_along_axis(queue.tokens_RT, at_RU, 1, mode="clip"),
        logps_RU=jnp.take_along_axis(queue.logps_RT, at_RU, 1, mode="clip"),
        lengths_R=queue.lengths_R,
        truncated_R=queue.truncated_R,
        ended_R=queue.ended_R,
        occupied=jnp.max(
            jnp.where(slots.row_B < self.rows, jnp.arange(self.slots) + 1, 0)
        ),
    )
    queue, slots = decode_loop.constrain(queue), decode_loop.constrain(slots)
    return queue, slots, progress

  def score(
      self, params: Tree, tokens_P: Array, length: Array, temperature: Array
  ) -> tuple[Array, Array, Array]:
    """Log-probs of the tokens of one text, padded on the right.

    Returns:
      for each position: the log-prob of the NEXT token, and log-probs and ids
      of the TOP most likely tokens.
    """
    at_1P = jnp.arange(len(tokens_P))[None]
    segments_1P = (at_1P < length).astype(jnp.int32)
    kernels = self.cfg.attention != "xla"
    attend = attention.packed if kernels else packed_in_parts
    hidden_1PD, *_ = decoder.forward(
        params, self.cfg, tokens_P[None], at_1P, attend(segments_1P)
    )

    def one(args):
      hidden_D, token = args
      logits_V = decoder.logits(params, self.cfg, hidden_D[None])[0]
      logps_V = jax.nn.log_softmax(logits_V / temperature)
      best, ids = jax.lax.top_k(logps_V, min(TOP, self.cfg.vocab))
      return logps_V[token], best, ids

    next_P = jnp.roll(tokens_P, -1)
    return jax.lax.map(one, (hidden_1PD[0], next_P), batch_size=CHUNK)


def packed_in_parts(segments_1P: Array) -> attention.Attend:
  """`attention.packed` in XLA, PART queries at a time.

  Only the attention scores of one part are in memory at a time.
  """
  length = segments_1P.shape[1]
  starts = jnp.arange(0, length, PART)

  def attend(kernels, layer, q_1PKQC, k_1PKC, v_1PKC, cache):
    pad = -length % PART
    q, k, v, segments = (
        jnp.pad(x, ((0, 0), (0, pad)) + ((0, 0),) * (x.ndim - 2))
        for x in (q_1PKQC, k_1PKC, v_1PKC, segments_1P)
    )
    q *= q.shape[-1] ** -0.5

    def part(start):
      own = jax.lax.dynamic_slice_in_dim(q, start, PART, 1)
      return packed_attention.attend(own, k, v, segments, None, start)[0]

    out = jax.lax.map(part, starts).reshape(q.shape)
    return out[:, :length], cache

  return attend


def widths(limit: int) -> list[int]:
  """Lengths to pad prompts to: powers of two from 64 up to a limit."""
  out = [64]
  while out[-1] < limit:
    out.append(2 * out[-1])
  return [*out[:-1], limit]
