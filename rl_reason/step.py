"""Optimizer, initial state, and the jit-ed updates of SFT and RL.

One optimizer step = one minibatch. Its per-token weights are computed over all
of its rows before it is cut into micro-batches, whose gradients then add up.
"""

import functools
from collections.abc import Callable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rl_reason import losses, model, schedules, weights
from rl_reason.structs import Array, Batch, TrainState, Tree


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
  """
  rate = schedules.learning_rate(schedule, peak=lr, warmup=warmup, total=total)

  def matrices(params):
    stacked = params["layers"]
    return {
        **jax.tree.map(lambda x: x.ndim > 1, {**params, "layers": {}}),
        "layers": jax.tree.map(lambda x: x.ndim > 2, stacked),
    }

  if name == "sgd":
    rule = optax.sgd(rate)
  else:
    rule = optax.adamw(
        rate, b1, b2, eps, weight_decay=weight_decay, mask=matrices
    )
  clip = optax.clip_by_global_norm(clip_norm) if clip_norm else None
  return optax.chain(*([clip] if clip else []), rule)


def state_shardings(
    cfg: model.ModelConfig, tx: optax.GradientTransformation, mesh: Mesh
) -> TrainState:
  """Where each array of the state lives: Adam's moments beside their weight."""
  replicated = NamedSharding(mesh, PartitionSpec())
  params = model.shardings(cfg, mesh)
  shapes = jax.eval_shape(lambda: model.init(cfg, jax.random.key(0)))
  opt_state = optax.tree.map_params(
      tx,
      lambda _, where: where,
      jax.eval_shape(tx.init, shapes),
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
    cfg: model.ModelConfig,
    tx: optax.GradientTransformation,
    shardings: TrainState,
    key: Array,
) -> TrainState:
  """Step 0 of a stage, from random parameters made where they live."""
  make = functools.partial(model.init, cfg)
  params = jax.jit(make, out_shardings=shardings.params)(key)
  return new_state(params, tx, shardings)


def abstract_state(
    cfg: model.ModelConfig,
    tx: optax.GradientTransformation,
    shardings: TrainState,
) -> TrainState:
  """Shapes, dtypes and shardings of a state: what a restore asks for."""
  return jax.tree.map(
      lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s),
      jax.eval_shape(
          lambda key: _step_0(model.init(cfg, key), tx), jax.random.key(0)
      ),
      shardings,
  )


def optimize(
    state: TrainState,
    tx: optax.GradientTransformation,
    grads: Tree,
    mask: Array | bool = True,
) -> tuple[TrainState, dict[str, Array]]:
  """One optimizer step, or none (and counted).

  None if a gradient is not finite, or if no token of the minibatch counts:
  Adam's momentum would move the parameters all the same.
  """
  norm = optax.tree.norm(grads)
  good = jnp.isfinite(norm) & jnp.any(mask)
  updates, opt_state = tx.update(grads, state.opt_state, state.params)
  params = optax.apply_updates(state.params, updates)

  def keep(new, old):
    return jax.tree.map(lambda a, b: jnp.where(good, a, b), new, old)

  state = state.replace(
      params=keep(params, state.params),
      opt_state=keep(opt_state, state.opt_state),
      skipped=state.skipped + ~good,
  )
  return state, dict(grad_norm=norm, update_skipped=1.0 - good)


def accumulate(
    loss_fn: Callable[[Tree, Any], tuple[Array, dict]],
    params: Tree,
    micro_A: Any,
) -> tuple[Tree, dict[str, Array]]:
  """Sum of gradients over the leading axis of `micro_A`.

  Args:
    loss_fn: (params, one micro-batch) -> (its share of the loss, its metrics).
      A metric whose name ends in `_max` is a maximum; others are shares of a
      sum.
    params: of the model.
    micro_A: a pytree with leading axis A.

  Returns:
    gradients of the sum, and the metrics of the whole.
  """
  grad_fn = jax.grad(loss_fn, has_aux=True)

  def add(grads, micro):
    more, metrics = grad_fn(params, micro)
    return jax.tree.map(jnp.add, grads, more), metrics

  zeros = jax.tree.map(jnp.zeros_like, params)
  grads, metrics_A = jax.lax.scan(add, zeros, micro_A)
  return grads, {
      k: x.max(0) if k.endswith("_max") else x.sum(0)
      for k, x in metrics_A.items()
  }


def split(tree: Tree, *axes: int) -> Tree:
  """Rows [B, ...] -> [*axes, B / prod(axes), ...], on the host."""
  return jax.tree.map(lambda x: x.reshape(*axes, -1, *x.shape[1:]), tree)


def sft_update(
    state: TrainState,
    rows_A: tuple[Array, Array, Array],
    *,
    cfg: model.ModelConfig,
    tx: optax.GradientTransformation,
) -> tuple[TrainState, dict[str, Array]]:
  """One step of supervised fine-tuning: mean NLL of the response tokens.

  Args:
    state: donated by the caller's jit.
    rows_A: tokens [A, B, L], start [A, B], mask [A, B, T].
    cfg: static.
    tx: static.

  Returns:
    the next state, and metrics: loss, grad_norm, update_skipped.
  """
  mask_ABT = rows_A[2].astype(jnp.float32)
  weights_ABT = mask_ABT / jnp.maximum(mask_ABT.sum(), 1)

  def loss_fn(params, micro):
    tokens_BL, start_B, weights_BT = micro
    logps_BT, _ = model.response_logps(
        params, cfg, tokens_BL, start_B, weights_BT.shape[1]
    )
    loss = -jnp.sum(weights_BT * logps_BT)
    return loss, dict(loss=loss)

  grads, metrics = accumulate(
      loss_fn, state.params, (rows_A[0], rows_A[1], weights_ABT)
  )
  state, more = optimize(state, tx, grads, rows_A[2])
  return state.replace(step=state.step + 1), metrics | more


def rl_update(
    state: TrainState,
    batch_MA: Batch,
    *,
    cfg: model.ModelConfig,
    tx: optax.GradientTransformation,
    temperature: float,
    reduction: str,
    kl: str,
    kl_coef: float,
    **clip: float,
) -> tuple[TrainState, dict[str, Array]]:
  """All optimizer steps of one RL step: a scan over the minibatches.

  Args:
    state: donated by the caller's jit.
    batch_MA: rows cut as [M, A, B, ...]: M minibatches one after the other,
      each as A micro-batches.
    cfg: static.
    tx: static.
    temperature: at which the responses were sampled.
    reduction: name of a function of `weights`.
    kl: 'none', 'k1', 'k2' or 'k3': a KL to the reference in the loss.
    kl_coef: its factor (beta).
    **clip: keywords of `losses.policy_loss`.

  Returns:
    the next state and metrics, means over the minibatches except: `*_max`, the
    largest; `update_skipped`, the number; `first_log_ratio_max`, the largest
    |log r| before the first of the updates (0 up to rounding if on-policy).
  """
  chex.assert_rank(batch_MA.tokens_BL, 4)
  length = batch_MA.mask_BT.shape[-1]
  reduce = getattr(weights, reduction)

  def loss_fn(params, micro):
    b, weights_BT, share_BT = micro
    logps_BT, entropy_BT = model.response_logps(
        params, cfg, b.tokens_BL, b.start_B, length, temperature
    )
    # Padding may hold anything, also NaN: it must not reach a sum.
    logps_BT, old_BT, ref_BT, advantages_BT = (
        jnp.where(b.mask_BT, x, 0)
        for x in (logps_BT, b.old_logps_BT, b.ref_logps_BT, b.advantages_BT)
    )
    loss_BT, aux = losses.policy_loss(logps_BT, old_BT, advantages_BT, **clip)
    metrics = dict(pg_loss=jnp.sum(weights_BT * loss_BT))
    loss = metrics["pg_loss"]
    if kl != "none":
      kl_BT = losses.kl(logps_BT, ref_BT, kind=kl)
      kl_loss = jnp.sum(weights_BT * kl_BT)
      loss += kl_coef * kl_loss
      metrics |= dict(kl_loss=kl_loss)
    mask, high = b.mask_BT, aux["clipped"] & (advantages_BT > 0)
    metrics |= dict(
        loss=loss,
        entropy=jnp.sum(share_BT * entropy_BT),
        ppo_kl=-jnp.sum(share_BT * aux["log_ratio"]),
        pg_clipfrac=jnp.sum(share_BT * aux["clipped"]),
        pg_clipfrac_lower=jnp.sum(share_BT * aux["clipped_lower"]),
        log_ratio_max=jnp.max(jnp.abs(aux["log_ratio"]) * mask),
        clipped_prob_max=jnp.max(jnp.exp(logps_BT) * (high & mask)),
    )
    return loss, metrics

  def minibatch(state, b_A: Batch):
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), b_A)
    mask_BT = flat.mask_BT.astype(jnp.float32)
    weights_BT = reduce(mask_BT, flat.groups_B)
    share_BT = weights.token_mean(mask_BT, flat.groups_B)
    shape = b_A.mask_BT.shape
    grads, metrics = accumulate(
        loss_fn,
        state.params,
        (b_A, weights_BT.reshape(shape), share_BT.reshape(shape)),
    )
    state, more = optimize(state, tx, grads, mask_BT)
    return state, metrics | more

  state, by_M = jax.lax.scan(minibatch, state, batch_MA)
  metrics = {
      k: x.max() if k.endswith("_max") else x.mean() for k, x in by_M.items()
  }
  metrics["update_skipped"] = by_M["update_skipped"].sum()
  metrics["first_log_ratio_max"] = by_M["log_ratio_max"][0]
  return state.replace(step=state.step + 1), metrics
