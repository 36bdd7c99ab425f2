"""Memory per device of the programs of an RL step, compiled but not run."""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rl_reason.base.structs import Batch, Packed, Prompts
from rl_reason.checks import facts
from rl_reason.devices import sharding
from rl_reason.models import decoder, linear, lora, parameters
from rl_reason.monitoring.display import Display
from rl_reason.rollout import sampler, sampler_weights
from rl_reason.stages import build_step, optimizers
from rl_reason.stages.model import Model
from rl_reason.training import packing
from rl_reason.training.optimizer import abstract_state


def peak(compiled: jax.stages.Compiled) -> int:
  """Bytes of arguments, temporary buffers and outputs without aliases."""
  m: Any = compiled.memory_analysis()
  return (
      m.argument_size_in_bytes
      + m.temp_size_in_bytes
      + m.output_size_in_bytes
      - m.alias_size_in_bytes
  )


def abstract_batch(by_row: Callable, length: int) -> Batch:
  """Shapes of the batch that an update reads.

  `by_row` makes an abstract array [rows, *sizes] of (dtype, *sizes).
  """
  number, numbers = by_row(jnp.float32), by_row(jnp.float32, length)
  return Batch(
      groups_B=by_row(jnp.int32),
      mask_BT=by_row(bool, length),
      advantages_BT=numbers,
      old_logps_BT=numbers,
      ref_logps_BT=numbers,
      correct_B=number,
      staleness_B=by_row(jnp.int32),
      values_BT=numbers,
      returns_BT=numbers,
  )


def update(
    c, model: Model, display: Display
) -> tuple[jax.stages.Compiled, tuple]:
  """The update of the policy, and its abstract arguments."""
  cfg, _, mesh = model
  count = c.updates.minibatches * c.updates.epochs
  rows, length = c.rollout.batch // c.updates.minibatches, c.rollout.max_tokens
  packed_rows = facts.packed_rows(c, sharding.num_shards(mesh, "rows"))
  micro = packing.max_micro_batches(rows, packed_rows)

  def array(shape, dtype, *axes):
    where = sharding.sharding(mesh, *axes)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

  def by_row(dtype, *sizes):
    axes = (None, "batch", *(None for _ in sizes))
    return array((count, rows, *sizes), dtype, *axes)

  batch = abstract_batch(by_row, length)
  shape = count, micro, packed_rows, c.rollout.max_prompt + length
  tokens = array(shape, jnp.int32, None, None, "rows", None)
  packed = Packed(tokens, tokens, tokens, by_row(jnp.int32, length))
  coef = array((), jnp.float32)
  optimizer = optimizers.of_policy(c, cfg, mesh)
  state = abstract_state(optimizers.learned_table(c, cfg), *optimizer)
  args: tuple[Any, ...] = (state, batch, packed, dict(kl=coef, entropy=coef))
  if c.lora.rank:
    args = (*args, _abstract(c, cfg, mesh, "same"))
  # Outside of the mesh: what it makes of numbers cannot be compiled only.
  on_policy = facts.on_policy(c)
  objective = build_step.objective(c, on_policy=on_policy)
  program = build_step.policy_update(c, objective, cfg, optimizer, display)
  with jax.set_mesh(mesh):
    return program.lower(*args).compile(), args


def rollout(c, model: Model) -> Iterator[tuple[jax.stages.Compiled, tuple]]:
  """The prefill of all prompts, a chunk of decode steps, and the responses.

  Args:
    c: the checked config.
    model: shapes and devices.

  Yields:
    A program and its abstract arguments.
  """
  cfg, _, mesh = model
  r = c.rollout
  count = c.dynamic_sampling.batches * r.batch // r.group_size
  engine = sampler.Sampler(
      cfg,
      r.group_size,
      r.max_tokens,
      eos=(0,),
      pad=0,
      slots=r.slots,
      cache=r.cache,
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
  weights = _abstract(c, cfg, mesh, r.weights, factors=c.lora.rank > 0)
  key = jax.eval_shape(lambda: jax.random.key(0))
  with jax.set_mesh(mesh):
    args: tuple = weights, prompts, key, 1.0, None, None, None
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


def _abstract(c, cfg, mesh, kind: str, *, factors: bool = False):
  """Weights of the sampler, or a frozen base, as shapes."""
  table = decoder.table(cfg)
  if factors:
    learned = optimizers.learned_table(c, cfg)
    table = lora.join(table, learned, optimizers.lora_scale(c))
  full = parameters.abstract(table, parameters.shardings(table, mesh))
  if kind == "same":
    cast = functools.partial(linear.cast, dtype=cfg.dtype)
    made = jax.eval_shape(cast, full)
  else:
    make = functools.partial(sampler_weights.make, cfg=cfg, weights=kind)
    made = jax.eval_shape(make, full)
  gathered = sampler_weights.table(cfg, kind, full)
  return jax.tree.map(
      lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
      made,
      parameters.shardings(gathered, mesh),
  )
