"""Memory per device of the programs of an RL step, compiled but not run."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rl_reason.base.structs import Prompts
from rl_reason.checks import config_facts
from rl_reason.devices import sharding
from rl_reason.monitoring.display import Display
from rl_reason.rollout import sampler
from rl_reason.stages import compile_ahead
from rl_reason.stages.model import Model


def peak(compiled: jax.stages.Compiled) -> int:
  """Bytes of arguments, temporary buffers and outputs without aliases."""
  m: Any = compiled.memory_analysis()
  return (
      m.argument_size_in_bytes
      + m.temp_size_in_bytes
      + m.output_size_in_bytes
      - m.alias_size_in_bytes
  )


def update(
    c, model: Model, display: Display
) -> tuple[jax.stages.Compiled, tuple]:
  """The update of the policy, and its abstract arguments."""
  args = compile_ahead.update_arguments(c, model)
  # Outside of the mesh: what it makes of numbers cannot be compiled only.
  program = compile_ahead.program(c, model, display)
  with jax.set_mesh(model.mesh):
    return program.lower(*args).compile(), args


def rollout(c, model: Model) -> Iterator[tuple[jax.stages.Compiled, tuple]]:
  """The programs of a round of RL; see `sampling`."""
  r = c.rollout
  count = c.dynamic_sampling.batches * r.batch // r.group_size
  options = dict(slots=r.slots, cache=r.cache)
  return sampling(c, model, count, r.group_size, r.weights, **options)


def evaluation(c, model: Model) -> Iterator[tuple[jax.stages.Compiled, tuple]]:
  """The programs of a batch of an evaluation; see `sampling`."""
  e, slots = c.evaluate, config_facts.most_slots(c)
  return sampling(c, model, e.batch, e.samples + 1, "same", slots=slots)


def sampling(
    c, model: Model, count: int, group_size: int, kind: str, **options: Any
) -> Iterator[tuple[jax.stages.Compiled, tuple]]:
  """The prefill of all prompts, a chunk of decode steps, and the responses.

  Args:
    c: the checked config.
    model: shapes and devices.
    count: of the prompts.
    group_size: responses to each prompt.
    kind: as rollout.weights.
    **options: fields of `sampler.Sampler`.

  Yields:
    A program and its abstract arguments.
  """
  cfg, _, mesh = model
  r = c.rollout
  engine = sampler.Sampler(
      cfg, group_size, r.max_tokens, eos=(0,), pad=0, **options
  )
  row = sharding.sharding(mesh, "batch")
  width = sharding.sharding(mesh, "batch", None)
  prompts = Prompts(
      tokens_NP=jax.ShapeDtypeStruct(
          (count, r.max_prompt), jnp.int32, sharding=width
      ),
      start_N=jax.ShapeDtypeStruct((count,), jnp.int32, sharding=row),
      ids_N=jax.ShapeDtypeStruct((count,), jnp.int32, sharding=row),
  )
  weights = compile_ahead.abstract_weights(c, cfg, mesh, kind)
  key = jax.eval_shape(lambda: jax.random.key(0))
  with jax.set_mesh(mesh):
    args: tuple = weights, prompts, key, 1.0, None, r.max_tokens, 0.0
    start = sampler.program(engine, "start", "size").lower(*args)
    compiled = start.compile()
    yield compiled, args
    queue, slots = jax.tree.map(
        lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
        start.out_info,
        compiled.output_shardings,
    )
    decode = sampler.program(engine, "decode", "size")
    args = weights, queue, slots
    yield decode.lower(*args).compile(), args
    finish = sampler.program(engine, "finish", "size")
    args = prompts, None, queue
    yield finish.lower(*args).compile(), args


def sampler_peak(programs: Sequence[tuple[jax.stages.Compiled, tuple]]) -> int:
  """Bytes of the sampler at most, of the programs of `rollout`.

  While responses are copied, the weights and the cache of the slots stay.
  """
  (start, _), (decode, (weights, _, slots)), (finish, _) = programs
  held = sum(
      x.dtype.itemsize * math.prod(x.sharding.shard_shape(x.shape))
      for x in jax.tree.leaves((weights, slots))
  )
  return max(peak(start), peak(decode), peak(finish) + held)
