"""Optimizer, initial state, and the jit-ed updates of SFT and RL.

One optimizer step = one minibatch. Its per-token weights are computed over all
of its rows before it is cut into micro-batches, whose gradients then add up.
"""

import functools
from collections.abc import Callable

import chex
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rl_reason.algorithms import (
    losses,
    objective as objective_lib,
    reductions,
    schedules,
    values,
)
from rl_reason.algorithms.objective import Objective
from rl_reason.models import critic, decoder, lora, parameters
from rl_reason.scale import sharding
from rl_reason.structs import Array, Batch, Packed, TrainState, Tree
from rl_reason.training import packing

DEVICE, HOST = jax.memory.Space.Device, jax.memory.Space.Host


def make_optimizer(
    *,
    lr: float,
    schedule: str,
    warmup: int,
    total: int,
    b1: float,
    b2: float,
    eps: float,
    weight_decay: float,
    clip_norm: float,
    name: str = "adamw",
    freeze: float = 0.0,
    offload: bool = False,
) -> optax.GradientTransformation:
  """AdamW (or plain SGD, for tests of parallelism) with a schedule.

  Args:
    lr: peak learning rate.
    schedule: see `schedules.learning_rate`.
    warmup: optimizer steps of linear warm-up.
    total: optimizer steps of the stage.
    b1: Adam's decay of the mean.
    b2: Adam's decay of the square.
    eps: Adam's epsilon.
    weight_decay: decoupled; not on vectors (norms, biases).
    clip_norm: of the global gradient; 0 is off.
    name: 'adamw' or 'sgd'.
    freeze: share of the layers, from the first on, that do not learn. Their
      gradients count neither for the norm nor for the moments.
    offload: the moments lie in the host's memory, except while `optimize`
      needs them.
  """
  rate = schedules.learning_rate(schedule, peak=lr, warmup=warmup, total=total)

  def matrices(params):
    return jax.tree_util.tree_map_with_path(
        lambda path, x: x.ndim > 1 + _stacked(path), params
    )

  if name == "sgd":
    rule = optax.sgd(rate)
  else:
    rule = optax.adamw(
        rate, b1, b2, eps, weight_decay=weight_decay, mask=matrices
    )
  parts = [optax.clip_by_global_norm(clip_norm)] if clip_norm else []
  parts += [rule]
  if freeze:  # before, for norm and moments; after, for the decay
    still = optax.stateless(lambda x, _: _without_first_layers(x, freeze))
    parts = [still, *parts, still]
  tx = optax.chain(*parts)
  return _offload(tx) if offload else tx


def _offload(tx: optax.GradientTransformation) -> optax.GradientTransformation:
  def init(params):
    state = tx.init(params)
    return optax.tree.map_params(tx, lambda x: jax.device_put(x, HOST), state)

  return optax.GradientTransformation(init, tx.update)


def _stacked(path) -> bool:
  """Whether a parameter's first axis counts layers."""
  return any(getattr(part, "key", None) == "layers" for part in path)


def _without_first_layers(tree: Tree, share: float) -> Tree:
  def cut(path, x):
    if not _stacked(path):
      return x
    learns_N = jnp.arange(x.shape[0]) >= round(share * x.shape[0])
    return x * learns_N.reshape(-1, *(1,) * (x.ndim - 1))

  return jax.tree_util.tree_map_with_path(cut, tree)


def state_shardings(
    table: Tree, tx: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
  """Where each array of the state lives: Adam's moments split as their weight.

  Args:
    table: of the parameters, `decoder.table` or `critic.table`.
    tx: the optimizer.
    mesh: where.
  """
  replicated = NamedSharding(mesh, PartitionSpec())
  params = parameters.shardings(table, mesh)
  shapes = jax.eval_shape(
      lambda: parameters.init_table(table, jax.random.key(0))
  )
  jaxpr, opt_state = jax.make_jaxpr(tx.init, return_shape=True)(shapes)
  types = jax.tree.unflatten(jax.tree.structure(opt_state), jaxpr.out_avals)

  def beside(moment, where):
    if moment.memory_space == DEVICE:
      return where
    return where.with_memory_kind(sharding.PINNED)

  opt_state = optax.tree.map_params(
      tx,
      beside,
      types,
      params,
      transform_non_params=lambda _: replicated,
  )
  return TrainState(params, opt_state, replicated, replicated)


def _step_0(params: Tree, tx: optax.GradientTransformation) -> TrainState:
  zero = jnp.zeros((), jnp.int32)
  return TrainState(params, tx.init(params), zero, zero)


def new_state(
    params: Tree, tx: optax.GradientTransformation, shardings: TrainState
) -> TrainState:
  """Step 0 of a stage, from parameters that already lie on the mesh."""
  make = functools.partial(_step_0, tx=tx)
  return jax.jit(make, out_shardings=shardings)(params)


def init_state(
    table: Tree,
    tx: optax.GradientTransformation,
    shardings: TrainState,
    key: Array,
) -> TrainState:
  """Step 0 of a stage, from random parameters made where they live."""
  make = functools.partial(parameters.init_table, table)
  params = jax.jit(make, out_shardings=shardings.params)(key)
  return new_state(params, tx, shardings)


def abstract_state(
    table: Tree,
    tx: optax.GradientTransformation,
    shardings: TrainState,
) -> TrainState:
  """Shapes, dtypes and shardings of a state: what a restore asks for."""
  return jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      jax.eval_shape(
          lambda key: _step_0(parameters.init_table(table, key), tx),
          jax.random.key(0),
      ),
      shardings,
  )


def optimize(
    state: TrainState,
    tx: optax.GradientTransformation,
    grads: Tree,
    mask: Array | bool = True,
    wanted: Array | bool = True,
) -> tuple[TrainState, dict[str, Array]]:
  """One optimizer step, or none (and counted, if it was wanted).

  None if a gradient is not finite, or if no token of the minibatch counts:
  Adam's momentum would move the parameters all the same.
  """
  norm = optax.tree.norm(grads)
  good = jnp.isfinite(norm) & jnp.any(mask)

  # A branch, not a choice of numbers: XLA fetches what lies on the host as soon
  # as it can, and here that is not before the last gradient.
  def change(params, held):
    moments = jax.device_put(held, DEVICE)
    updates, moments = tx.update(grads, moments, params)
    back = jax.tree.map(
        lambda new, old: jax.device_put(new, jax.typeof(old).memory_space),
        moments,
        held,
    )
    return optax.apply_updates(params, updates), back

  params, opt_state = jax.lax.cond(
      good, change, lambda *same: same, state.params, state.opt_state
  )
  state = state.replace(
      params=params,
      opt_state=opt_state,
      skipped=state.skipped + (wanted & ~good),
  )
  return state, dict(grad_norm=norm, update_skipped=1.0 * (wanted & ~good))


def accumulate(
    loss_fn: Callable[[Tree, Packed, Tree], tuple[Array, dict]],
    params: Tree,
    packed: Packed,
    rows: Tree,
) -> tuple[Tree, dict[str, Array]]:
  """Sum of gradients over the micro-batches of a minibatch that hold a token.

  Args:
    loss_fn: (params, Packed of a micro-batch, rows) -> (its share of the loss,
      its metrics). A metric whose name ends in `_max` is a maximum, of what is
      not negative; others are shares of a sum.
    params: of the model.
    packed: of the minibatch.
    rows: a pytree with leading axis B. A micro-batch gets all of them, zeros
      in place of those that it does not hold.

  Returns:
    gradients of the sum, and the metrics of the whole.
  """
  grad_fn = jax.grad(loss_fn, has_aux=True)

  def one(micro, here_B):
    return grad_fn(params, micro, packing.only(here_B, rows))

  def add(total, new):
    (grads, metrics), (more, others) = total, new
    return jax.tree.map(jnp.add, grads, more), {
        k: jnp.maximum(x, others[k]) if k.endswith("_max") else x + others[k]
        for k, x in metrics.items()
    }

  return packing.fold(one, packed, add)


def sft_update(
    state: TrainState,
    packed: Packed,
    mask_BT: Array,
    *,
    cfg: decoder.ModelConfig,
    tx: optax.GradientTransformation,
) -> tuple[TrainState, dict[str, Array]]:
  """One step of supervised fine-tuning: mean NLL of the response tokens.

  Args:
    state: donated by the caller's jit.
    packed: of the minibatch.
    mask_BT: bool, response tokens.
    cfg: static.
    tx: static.

  Returns:
    the next state, and metrics: loss, grad_norm, update_skipped.
  """
  weights_BT = mask_BT / jnp.maximum(mask_BT.sum(dtype=jnp.float32), 1)

  def loss_fn(params, packed, weights_BT):
    logps_BT, _ = decoder.packed_logps(params, cfg, packed)
    loss = -jnp.sum(weights_BT * logps_BT)
    return loss, dict(loss=loss)

  grads, metrics = accumulate(loss_fn, state.params, packed, weights_BT)
  state, more = optimize(state, tx, grads, mask_BT)
  return state.replace(step=state.step + 1), metrics | more


def preference_update(
    state: TrainState,
    packed: Packed,
    *,
    cfg: critic.CriticConfig,
    tx: optax.GradientTransformation,
) -> tuple[TrainState, dict[str, Array]]:
  """One step of a reward model: mean Bradley-Terry loss of the pairs.

  Args:
    state: donated by the caller's jit.
    packed: of the minibatch. The rows of a pair are adjacent and share a
      micro-batch; the preferred response comes first.
    cfg: static.
    tx: static.

  Returns:
    the next state, and metrics: loss, accuracy, grad_norm, update_skipped.
  """
  pairs = len(packed.source_BT) // 2

  def loss_fn(params, packed, real_B):
    head = params["value_head"]
    if cfg.head == "scalar":  # pairs do not see its bias: 0 it stays, exactly
      head = head | dict(bias=jax.lax.stop_gradient(head["bias"]))
    params = params | dict(value_head=head)
    chosen_B, rejected_B = critic.scores(params, cfg, packed).reshape(-1, 2).T
    share_B = real_B.reshape(-1, 2).prod(1) / pairs
    loss = jnp.sum(share_B * losses.bradley_terry(chosen_B, rejected_B))
    return loss, dict(
        loss=loss, accuracy=jnp.sum(share_B * (chosen_B > rejected_B))
    )

  ones_B = jnp.ones(2 * pairs)
  grads, metrics = accumulate(loss_fn, state.params, packed, ones_B)
  state, more = optimize(state, tx, grads)
  return state.replace(step=state.step + 1), metrics | more


def rl_update(
    state: TrainState,
    batch_M: Batch,
    packed_M: Packed,
    coefs: dict[str, Array],
    base: Tree | None = None,
    *,
    cfg: decoder.ModelConfig,
    tx: optax.GradientTransformation,
    temperature: float,
    objective: Objective,
    max_kl: float = 0.0,
    lora_scale: float = 1.0,
) -> tuple[TrainState, dict[str, Array]]:
  """All optimizer steps of one RL step: a scan over the minibatches.

  Args:
    state: donated by the caller's jit.
    batch_M: rows cut as [M, B, ...]: minibatches one after the other.
    packed_M: their tokens, each in as many micro-batches as they fill.
    coefs: see `objective.loss`.
    base: what the factors of the state stand beside (see `lora`); None: the
      state has all parameters.
    cfg: static.
    tx: static.
    temperature: at which the responses were sampled.
    objective: static, the terms of the loss.
    max_kl: updates end when KL(old || new) on the next minibatch is beyond it
      (arXiv:1707.06347's early stopping); 0 is off.
    lora_scale: static, alpha / rank.

  Returns:
    the next state and metrics, means over the minibatches that were updated on,
    except: `*_max` and `*_min`; `update_skipped`, `updates`, numbers;
    `first_log_ratio_max`, the largest |log r| before the first of the updates
    (0 up to rounding if on-policy).
  """
  chex.assert_rank(batch_M.mask_BT, 3)

  def loss_fn(params, packed, rows):
    b, w = rows
    params = lora.join(base, params, lora_scale)
    scored = decoder.packed_logps(params, cfg, packed, temperature)
    return objective_lib.loss(objective, *scored, b, w, coefs)

  def minibatch(carry, cut):
    (old, going, index), (b, packed) = carry, cut
    key = jax.random.fold_in(jax.random.key(old.step), index)
    w = objective_lib.token_weights(objective, b, key)
    grads, metrics = accumulate(loss_fn, old.params, packed, (b, w))
    if max_kl:
      going &= metrics["kl_old_new"] <= max_kl
    new, more = optimize(old, tx, grads, b.mask_BT & going, going)
    mean, square = metrics.pop("ratio_mean"), metrics.pop("ratio_square")
    some = jnp.any(b.mask_BT)
    ess = jnp.where(some, mean**2 / jnp.maximum(square, 1e-30), 1)
    metrics["kl_old_new_max"] = metrics["kl_old_new"]  # also where it stopped
    stale = jnp.sum(w["share"] * (b.age_B + index)[:, None])
    metrics |= more | dict(ess=ess, ess_min=ess, staleness=stale)
    metrics["staleness_max"] = jnp.max(
        jnp.where(b.age_B < 0, 0, b.age_B + index)
    )
    return (new, going, index + 1), metrics | dict(updates=going & some)

  # Padding may hold anything, also NaN: it must not reach a sum.
  batch_M = batch_M.replace(
      **{
          name: jnp.where(batch_M.mask_BT, getattr(batch_M, name), 0)
          for name in ("old_logps_BT", "ref_logps_BT", "advantages_BT")
      }
  )
  carry = state, jnp.array(True), jnp.zeros((), jnp.int32)
  (state, _, _), by_M = jax.lax.scan(minibatch, carry, (batch_M, packed_M))
  metrics = summarize(by_M)
  metrics["first_log_ratio_max"] = by_M["log_ratio_max"][0]
  return state.replace(step=state.step + 1), metrics


def critic_update(
    state: TrainState,
    batch_M: Batch,
    packed_M: Packed,
    *,
    cfg: critic.CriticConfig,
    tx: optax.GradientTransformation,
    clip: float,
) -> tuple[TrainState, dict[str, Array]]:
  """The critic's optimizer steps of one RL step, on the same minibatches.

  Args:
    state: of the critic; donated by the caller's jit.
    batch_M: as in `rl_update`; reads values_BT (before the update) and
      returns_BT.
    packed_M: as in `rl_update`.
    cfg: static.
    tx: static; the critic's own.
    clip: of `values.value_loss`; a categorical head has no clip.

  Returns:
    the next state and metrics: vf_loss (token mean), grad_norm, updates,
    update_skipped.
  """

  def loss_fn(params, packed, rows):
    b, share_BT = rows
    values_BT, logits_BTN = critic.values(params, cfg, packed)
    values_BT, old_BT, returns_BT = (
        jnp.where(b.mask_BT, x, 0)
        for x in (values_BT, b.values_BT, b.returns_BT)
    )
    if cfg.head == "categorical":
      loss_BT = values.categorical_loss(
          logits_BTN, returns_BT, cfg.low, cfg.high
      )
    else:
      loss_BT = values.value_loss(values_BT, old_BT, returns_BT, clip=clip)
    loss = jnp.sum(share_BT * loss_BT)
    return loss, dict(vf_loss=loss)

  def minibatch(state, cut):
    b, packed = cut
    mask = b.mask_BT.astype(b.returns_BT.dtype)
    share_BT = reductions.token_mean(mask, b.groups_B)
    grads, metrics = accumulate(loss_fn, state.params, packed, (b, share_BT))
    state, more = optimize(state, tx, grads, b.mask_BT)
    return state, metrics | more | dict(updates=jnp.any(b.mask_BT))

  state, by_M = jax.lax.scan(minibatch, state, (batch_M, packed_M))
  return state.replace(step=state.step + 1), summarize(by_M)


def summarize(by_M: dict[str, Array]) -> dict[str, Array]:
  """Metrics of an RL step from those of its minibatches.

  `*_max`, `*_min` and the numbers `update_skipped` and `updates` over all of
  them, means over those that were updated on (`updates` says which).
  """
  done_M = by_M["updates"]
  out = {}
  for name, x_M in by_M.items():
    if name.endswith("_max"):
      out[name] = x_M.max()
    elif name.endswith("_min"):
      out[name] = x_M.min()
    elif name in ("update_skipped", "updates"):
      out[name] = x_M.sum()
    else:
      out[name] = jnp.sum(x_M * done_M) / jnp.maximum(done_M.sum(), 1)
  return out
