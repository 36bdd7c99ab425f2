"""The optimizer of a stage and its sharded initial state."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from optax import contrib

from rl_reason.algorithms import schedules
from rl_reason.base.structs import Array, TrainState, Tree
from rl_reason.devices import sharding
from rl_reason.models import parameters

DEVICE, HOST = jax.memory.Space.Device, jax.memory.Space.Host
# Root mean square of Muon's update of a matrix at learning rate 1: about
# that of AdamW, so that learning rates carry over (arXiv:2502.16982, eq. 4).
MUON_RMS = 0.2


def make_optimizer(
    *,
    lr: float,
    schedule: str,
    total: int,
    warmup: int = 0,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
    clip_norm: float,
    name: str = "adamw",
    freeze: float = 0.0,
    offload: bool = False,
    rates_S: Array | None = None,
) -> optax.GradientTransformation:
  """AdamW, Muon, or plain SGD (for tests of parallelism), with a schedule.

  Muon (Jordan 2024; arXiv:2502.16982) replaces the momentum of each matrix of
  the layers by its nearest orthogonal matrix. Adam with Nesterov momentum
  updates all other parameters: embeddings, heads, norms and biases.

  Args:
    lr: peak learning rate.
    schedule: see `schedules.learning_rate`.
    warmup: optimizer steps of linear warm-up.
    total: optimizer steps of the stage.
    b1: Adam's decay of the mean. Muon's, of the matrices, is .95.
    b2: Adam's decay of the square.
    eps: Adam's epsilon.
    weight_decay: decoupled; not on vectors (norms, biases). With Muon, it is on
      matrices of the layers alone.
    clip_norm: of the global gradient; 0 is off.
    name: 'adamw', 'muon' or 'sgd'.
    freeze: share of the layers, from the first on, that do not learn. Their
      gradients enter neither the norm nor the moments.
    offload: keeps the moments in host memory, except during `step.optimize`.
    rates_S: the learning rates of all updates, of `learning_rates`, instead of
      lr, schedule, warmup and total, which a program would have as constants.
  """
  rate = schedules.learning_rate(schedule, peak=lr, warmup=warmup, total=total)
  if rates_S is not None:
    rate = rates_S.__getitem__
  if name == "sgd":
    rule = optax.sgd(rate)
  elif name == "muon":
    rule = contrib.muon(
        rate,
        eps=eps,
        weight_decay=weight_decay,
        adam_b1=b1,
        adam_b2=b2,
        muon_weight_dimension_numbers=layer_matrices,
        consistent_rms=MUON_RMS,
    )
  else:
    rule = optax.adamw(
        rate, b1, b2, eps, weight_decay=weight_decay, mask=decays
    )
  parts = [optax.clip_by_global_norm(clip_norm)] * bool(clip_norm) + [rule]
  if freeze:  # before the rule for norm and moments, after it for the decay
    still = optax.stateless(lambda x, _: _without_first_layers(x, freeze))
    parts = [still, *parts, still]
  tx = optax.chain(*parts)
  return _offload(tx) if offload else tx


def learning_rates(
    count: int, *, lr: float, schedule: str, warmup: int, total: int
) -> np.ndarray:
  """The learning rates of `count` updates: [S], on the host.

  Programs that get them as an argument are equal for all schedules. Keywords
  are as of `make_optimizer`.
  """
  rate = schedules.learning_rate(schedule, peak=lr, warmup=warmup, total=total)

  def rates(step_S):  # an argument: constants would be folded, and round apart
    return jnp.broadcast_to(rate(step_S), count)

  return np.asarray(jax.jit(rates)(np.arange(count, dtype=np.int32)))


def decays(params: Tree) -> Tree:
  """Whether weight decay applies: to matrices, not to norms or biases."""
  return jax.tree_util.tree_map_with_path(
      lambda path, x: x.ndim > 1 + is_stacked(path), params
  )


def layer_matrices(params: Tree) -> Tree:
  """The input and output axis of each matrix of the layers; None elsewhere."""

  def axes(path, x):
    if not is_layer_matrix(path, x.shape):
      return None
    return contrib.MuonDimensionNumbers(x.ndim - 2, x.ndim - 1)

  return jax.tree_util.tree_map_with_path(axes, params)


def is_layer_matrix(path, shape: tuple[int, ...]) -> bool:
  """Whether a parameter is a matrix for each layer, or each of its experts."""
  return is_stacked(path) and len(shape) >= 3


def is_stacked(path) -> bool:
  """Whether the first axis of a parameter counts layers."""
  return any(getattr(part, "key", None) == "layers" for part in path)


def _offload(tx: optax.GradientTransformation) -> optax.GradientTransformation:
  def init(params):
    state = tx.init(params)
    return optax.tree.map_params(tx, lambda x: jax.device_put(x, HOST), state)

  return optax.GradientTransformation(init, tx.update)


def _without_first_layers(tree: Tree, share: float) -> Tree:
  def cut(path, x):
    if not is_stacked(path):
      return x
    learns = jnp.arange(x.shape[0]) >= round(share * x.shape[0])
    return x * learns.reshape(-1, *(1,) * (x.ndim - 1))

  return jax.tree_util.tree_map_with_path(cut, tree)


def state_shardings(
    table: Tree, tx: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
  """The sharding of each array; moments are sharded like their parameter."""
  replicated = NamedSharding(mesh, PartitionSpec())
  params = parameters.shardings(table, mesh)
  shapes = jax.eval_shape(
      lambda: parameters.init_table(table, jax.random.key(0))
  )
  jaxpr, opt_state = jax.make_jaxpr(tx.init, return_shape=True)(shapes)
  types = jax.tree.unflatten(jax.tree.structure(opt_state), jaxpr.out_avals)

  def like_parameter(moment, param_sharding):
    if isinstance(moment, optax.MaskedNode):  # Muon's of a parameter of Adam
      return moment
    if moment.memory_space == DEVICE:
      return param_sharding
    return param_sharding.with_memory_kind(sharding.PINNED)

  opt_state = optax.tree.map_params(
      tx,
      like_parameter,
      types,
      params,
      transform_non_params=lambda _: replicated,
      is_leaf=lambda x: isinstance(x, optax.MaskedNode),
  )
  return TrainState(params, opt_state, replicated, replicated)


def first_state(params: Tree, tx: optax.GradientTransformation) -> TrainState:
  """Step 0 of a stage, from parameters."""
  zero = jnp.zeros((), jnp.int32)
  return TrainState(params, tx.init(params), zero, zero)


def new_state(
    params: Tree, tx: optax.GradientTransformation, shardings: TrainState
) -> TrainState:
  """Step 0 of a stage, from parameters on the mesh."""
  make = functools.partial(first_state, tx=tx)
  return jax.jit(make, out_shardings=shardings)(params)


def init_state(
    table: Tree,
    tx: optax.GradientTransformation,
    shardings: TrainState,
    key: Array,
) -> TrainState:
  """Step 0 of a stage, from random parameters, initialised in their shards."""
  make = functools.partial(parameters.init_table, table)
  params = jax.jit(make, out_shardings=shardings.params)(key)
  return new_state(params, tx, shardings)


def abstract_state(
    table: Tree, tx: optax.GradientTransformation, shardings: TrainState
) -> TrainState:
  """Shapes, dtypes and shardings of a state, for a restore."""
  return jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      jax.eval_shape(
          lambda: first_state(
              parameters.init_table(table, jax.random.key(0)), tx
          )
      ),
      shardings,
  )


def schedules_at(opt_state: Tree, update: Array) -> Tree:
  """The state of an optimizer whose next learning rate is that of an update.

  Schedules count all updates of a stage, so that they end with it. The count by
  which Adam corrects its bias is without the skipped ones.
  """

  def is_schedule(x):
    return isinstance(x, optax.ScaleByScheduleState)

  return jax.tree.map(
      lambda x: optax.ScaleByScheduleState(update) if is_schedule(x) else x,
      opt_state,
      is_leaf=is_schedule,
  )


def with_rate(
    update: Callable, *, lr: float, schedule: str, warmup: int, total: int
) -> Callable:
  """An update with the learning rate of its last optimizer step as a metric.

  The rate stays on the device, like all metrics of an update. Keywords are as
  of `make_optimizer`.
  """
  rate = schedules.learning_rate(schedule, peak=lr, warmup=warmup, total=total)
  last = jax.jit(lambda made: rate(jnp.maximum(made - 1, 0)))

  def call(state, *args):
    state, metrics = update(state, *args)
    counts = optax.tree.get_all_with_path(state.opt_state, "count")
    return state, metrics | dict(lr=last(counts[-1][1]))

  call.lower = lambda *args: update.lower(*args)  # to compile before a call
  call.ahead = lambda compile_it: update.ahead(compile_it)
  return call
