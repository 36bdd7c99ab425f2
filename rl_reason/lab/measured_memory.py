"""Peak memory of the programs of an RL step, run once on this machine.

The programs are those of `compiled_memory`. An update gets one micro-batch of
tokens in each minibatch, and a rollout samples one chunk of decode steps: more
of them take more time, and no more memory.
"""

import ctypes
import gc
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rl_reason.base.structs import Packed, Tree
from rl_reason.devices import sharding
from rl_reason.lab import memory_formula
from rl_reason.models import decoder
from rl_reason.stages.model import Model

Program = tuple[jax.stages.Compiled, tuple]
MOST_FLOPS = 2e12  # on a CPU: about a minute


def is_cheap(c, model: Model) -> bool:
  """Whether the programs take seconds: always on accelerators."""
  if jax.default_backend() != "cpu":
    return True
  one = sharding.abstract_mesh()
  count = memory_formula.bytes_of(decoder.table(model.cfg), one, 1)
  length = c.rollout.max_prompt + c.rollout.max_tokens
  micro = max(c.updates.token_budget, length)
  updates = c.updates.minibatches * c.updates.epochs
  responses = c.dynamic_sampling.batches * c.rollout.batch
  prompts = responses // c.rollout.group_size + c.evaluate.batch
  prompts *= c.rollout.max_prompt
  decoded = 2 * 16 * min(c.rollout.slots or responses, responses)
  flops = 2 * count * (4 * updates * micro + prompts + decoded)
  return flops < MOST_FLOPS


def update(program: Program) -> int | None:
  """Peak bytes of an update, with its arguments; None: not known."""
  compiled, args = program

  def run() -> Any:
    made = _ones(args)
    return compiled(*made)

  return _peak(run)


def rollout(programs: Sequence[Program]) -> int | None:
  """Peak bytes of prefill, decode steps and a copy of the responses."""
  (start, args), (decode, _), (finish, _) = programs

  def run() -> Any:
    made = _ones(args)
    queue, slots = start(*made)
    queue, slots, _ = decode(made[0], queue, slots)
    part = finish(made[1], None, queue)
    return decode(made[0], queue, slots), part

  return _peak(run)


def _peak(run: Callable[[], Any]) -> int | None:
  """Bytes that a function adds to the memory of a device at most.

  On a CPU, to the resident memory of the process, which only Linux tells.
  """
  gc.collect()
  device = jax.local_devices()[0]
  stats = device.memory_stats() or {}
  if "peak_bytes_in_use" in stats:
    before, peak = stats["bytes_in_use"], stats["peak_bytes_in_use"]
    jax.block_until_ready(run())
    after = device.memory_stats()["peak_bytes_in_use"]
    return after - before if after > peak else None  # an earlier one was higher
  reset = pathlib.Path("/proc/self/clear_refs")
  if sys.platform != "linux" or not reset.exists():
    return None
  jax.block_until_ready(run())  # the first run starts threads
  gc.collect()
  ctypes.CDLL(None).malloc_trim(0)
  before = _status("VmRSS")
  try:
    reset.write_text("5")  # the peak begins anew
  except OSError:
    return None
  jax.block_until_ready(run())
  return (_status("VmHWM") - before) // jax.local_device_count()


def _status(name: str) -> int:
  """A number of /proc/self/status in bytes."""
  lines = pathlib.Path("/proc/self/status").read_text().splitlines()
  (line,) = [x for x in lines if x.startswith(name)]
  return 1024 * int(line.split()[1])


def _ones(args: tuple) -> tuple:
  """Arrays of ones; packed rows have tokens in their first micro-batch only."""

  def packed(x: Any) -> Any:
    if not isinstance(x, Packed):
      return jax.tree.map(_one, x)
    segments = np.zeros(x.segments_RL.shape, np.int32)
    segments[:, 0] = 1
    first = jax.device_put(segments, x.segments_RL.sharding)
    return jax.tree.map(_one, x).replace(segments_RL=first)

  is_packed = lambda x: isinstance(x, Packed)  # noqa: E731
  made = jax.tree.map(packed, args, is_leaf=is_packed)
  return jax.block_until_ready(made)


def _one(x: Any) -> Tree:
  if not hasattr(x, "dtype"):
    return x
  if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
    return jax.random.key(0)
  return jax.device_put(np.ones(x.shape, x.dtype), x.sharding)
