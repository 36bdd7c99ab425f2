"""The update of the policy, compiled while SFT or the first rollout runs.

A program is compiled for shapes, so it can be compiled before there are arrays.
On accelerators the update of RL compiles for minutes.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rl_reason.base import feature
from rl_reason.base.structs import Batch, Packed, Shared, Tree
from rl_reason.checks import config_facts
from rl_reason.devices import sharding
from rl_reason.models import decoder, parameters
from rl_reason.monitoring.display import Display
from rl_reason.rollout import sampler_weights
from rl_reason.stages import build_step, optimizers
from rl_reason.stages.model import Model, shares_prompts
from rl_reason.training import packing
from rl_reason.training.optimizer import abstract_state


def policy_update(c, model: Model, display: Display) -> Callable:
  """The update of the policy; another thread begins to compile it.

  XLA times kernels on a GPU while it compiles; other programs that run at the
  same time could change its choice, and bits of the results. On a GPU the
  update therefore compiles at its first call.
  """
  if shares_prompts(c):
    display.say("packed rows hold each prompt once (updates.share_prompts)")
  update: Any = program(c, model, display)
  if jax.default_backend() == "gpu":
    return update

  def compile_it() -> jax.stages.Compiled:
    with jax.set_mesh(model.mesh):
      return update.lower(*update_arguments(c, model)).compile()

  update.ahead(compile_it)
  return update


def program(c, model: Model, display: Display) -> Callable:
  """The update of the policy as the config describes it."""
  objective = build_step.objective(c, on_policy=config_facts.on_policy(c))
  optimizer = optimizers.of_policy(c, model.cfg, model.mesh)
  return build_step.policy_update(c, objective, model.cfg, optimizer, display)


class Shapes(NamedTuple):
  """What the shapes of a feature follow from; all are abstract.

  Attributes:
    cfg: shape of the policy.
    mesh: the devices that learn.
    policy: parameters, as the model reads them.
    packed_M: the packed rows of the minibatches.
    packed: (rows of a minibatch, response tokens) -> further packed rows.
    by_row: (dtype, *sizes, rows) -> an array [M, rows, *sizes].
  """

  cfg: decoder.ModelConfig
  mesh: jax.sharding.Mesh
  policy: Tree
  packed_M: Packed
  packed: Callable[..., Packed]
  by_row: Callable[..., Any]


def update_arguments(c, model: Model) -> tuple:
  """The arguments of the update as shapes on the mesh."""
  cfg, _, mesh = model
  count = c.updates.minibatches * c.updates.epochs
  rows, length = c.rollout.batch // c.updates.minibatches, c.rollout.max_tokens
  packed_rows = config_facts.packed_rows(c, sharding.num_shards(mesh, "rows"))
  slots = c.rollout.max_prompt + length

  def array(shape, dtype, *axes):
    where = sharding.sharding(mesh, *axes)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=where)

  def by_row(dtype, *sizes, rows=rows):
    axes = (None, "batch", *(None for _ in sizes))
    return array((count, rows, *sizes), dtype, *axes)

  def packed(rows, length=length, slots=slots, join=1):
    micro = packing.max_micro_batches(rows, packed_rows)
    shape = count, micro, packed_rows // join, slots * join
    tokens = array(shape, jnp.int32, None, None, "rows", None)
    source = by_row(jnp.int32, length, rows=rows)
    found = Packed(tokens, tokens, tokens, source)
    if join == 1:
      return found
    prompt = array((*shape, 2), jnp.int32, None, None, "rows", None, None)
    longest = slots - length, length
    return found.replace(shared=Shared(prompt, tokens, longest))

  reads_sampler = config_facts.batch_options(c)["reads_sampler"]
  batch = abstract_batch(by_row, length, reads_sampler)
  coef = array((), jnp.float32)
  optimizer = optimizers.of_policy(c, cfg, mesh)
  learned, full = optimizers.learned(c), abstract_model(cfg, mesh)
  state = abstract_state(learned.table(cfg), *optimizer)
  frozen = jax.eval_shape(lambda x: learned.frozen(x, cfg.dtype), full)
  if frozen is not None:
    frozen = _placed(frozen, jax.tree.map(lambda x: x.sharding, full))
  join = config_facts.packed_rows(c) if shares_prompts(c) else 1
  packed_M = packed(rows, slots=config_facts.row_slots(c), join=join)
  policy = learned.read(state.params, frozen)
  shapes = Shapes(cfg, mesh, policy, packed_M, packed, by_row)
  beside: dict[str, Any] = {}
  for one in feature.used(c):
    beside |= one.abstract(c, shapes)
  packed_M = beside.pop("packed_M", packed_M)
  names = build_step.coefficients(c)(dict(kl=0, entropy=0), 0.0)
  coefs = dict.fromkeys(names, coef)
  return state, batch, packed_M, coefs, frozen, beside


def abstract_model(cfg: decoder.ModelConfig, mesh) -> Tree:
  """All parameters of a model as shapes on the mesh."""
  table = decoder.table(cfg)
  return parameters.abstract(table, parameters.shardings(table, mesh))


def abstract_batch(
    by_row: Callable, length: int, reads_sampler: bool = False
) -> Batch:
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
      sampler_logps_BT=numbers if reads_sampler else None,
  )


def abstract_weights(c, cfg, mesh, kind: str):
  """The weights of the sampler as shapes."""
  learned = optimizers.learned(c)
  table = learned.read(learned.table(cfg), decoder.table(cfg))
  full = parameters.abstract(table, parameters.shardings(table, mesh))
  make = functools.partial(sampler_weights.make, cfg=cfg, weights=kind)
  made = jax.eval_shape(make, full)
  gathered = sampler_weights.table(cfg, kind, full)
  return _placed(made, parameters.shardings(gathered, mesh))


def _placed(shapes: Tree, where: Tree) -> Tree:
  """Shapes with shardings."""
  return jax.tree.map(
      lambda x, where: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=where),
      shapes,
      where,
  )
