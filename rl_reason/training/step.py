"""The jit-ed update: gradients of micro-batches, optimizer steps, metrics.

One optimizer step updates on one minibatch. Token weights are computed over the
whole minibatch, before it is split into micro-batches, and gradients of
micro-batches are summed: neither micro-batches nor devices change the result.
"""

import functools
from collections.abc import Callable, Mapping

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_reason.algorithms import objective as objective_lib, reductions, values
from rl_reason.algorithms.objective import Objective
from rl_reason.base.structs import (
    Array,
    Batch,
    Experience,
    Packed,
    TrainState,
    Tree,
)
from rl_reason.devices import sharding
from rl_reason.models import critic, decoder, experts
from rl_reason.training import (
    learned_parameters,
    optimizer,
    packing,
    update_metrics,
)

# --- forward passes over the rows of a step ----------------------------------


def map_micro_batches(fn: Callable[[Tree, Packed], Tree]) -> Callable:
  """jit: (params, Packed of minibatches) -> results of all rows, [M, B, ...].

  The micro-batches are the same as in the update. A forward pass takes no more
  memory than the update, and the same matrix products compute the log-probs, so
  the first update starts at a ratio of exactly 1.

  Args:
    fn: (params, Packed of a micro-batch) -> arrays [B, ...].
  """

  def program(params, packed_M):
    def micro_batch(micro, member_B):
      return packing.zero_others(member_B, fn(params, micro))

    return jax.lax.map(functools.partial(packing.fold, micro_batch), packed_M)

  return jax.jit(program)


def logps_program(cfg, temperature: float, compare=None) -> Callable:
  """jit: log-probs, entropy, what `compare` adds, of tokens: [M, B, T] each."""
  return map_micro_batches(
      lambda p, x: decoder.packed_logps(p, cfg, x, temperature, compare)[:-1]
  )


def forward(
    mesh: jax.sharding.Mesh | None,
    program: Callable,
    params: Tree,
    plan: packing.PackingPlan,
) -> Tree:
  """Runs a program of `map_micro_batches` over the first epoch of a plan.

  Returns host arrays [B, ...] in the order of the rows.
  """
  rows = plan.order_MB.shape[1]
  minibatches = (plan.order_MB.max() + 1) // rows  # of one epoch
  packed_M = jax.tree.map(lambda x: x[:minibatches], plan.packed_M)
  out_MB = sharding.fetch(program(params, sharding.put_packed(mesh, packed_M)))
  back_B = np.argsort(plan.order_MB[:minibatches].reshape(-1))
  return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:])[back_B], out_MB)


def on_mesh(mesh: jax.sharding.Mesh, program: Callable, arrays: Tree) -> Tree:
  """Calls a program with host arrays; returns host arrays."""
  return sharding.fetch(program(sharding.put(mesh, arrays)))


# --- host arrays of a step ---------------------------------------------------


def train_batch(
    rows: Experience,
    credit: dict[str, Array],
    *,
    mask_truncated: bool = False,
    reads_sampler: bool = False,
    updates: int = 1,
    ref_logps_BT: Array | None = None,
    values_BT: Array | None = None,
) -> Batch:
  """The batch of the update, in the order of the rows, on the host.

  Args:
    rows: with old log-probs.
    credit: advantages_BT, which may be [B, 1]; returns_BT with a critic;
      optionally rewards_B: rows with a reward that is not finite leave the
      loss.
    mask_truncated: overlong filtering: truncated responses leave the loss and
      its denominators.
    reads_sampler: whether the batch has the log-probs of the sampler.
    updates: optimizer steps of an RL step.
    ref_logps_BT: of the reference policy of a KL, or None.
    values_BT: of the critic before the update, or None.
  """
  mask_BT = rows.rollouts.mask_BT
  if mask_truncated:
    mask_BT = mask_BT & ~rows.rollouts.truncated_B[:, None]
  if "rewards_B" in credit:
    mask_BT = mask_BT & np.isfinite(credit["rewards_B"])[:, None]
  zeros_BT = np.zeros_like(rows.old_logps_BT)
  staleness_B = np.where(rows.age_B < 0, -1, rows.age_B * updates)
  return Batch(
      groups_B=rows.rollouts.ids_B,
      mask_BT=mask_BT,
      advantages_BT=credit["advantages_BT"] * mask_BT,
      old_logps_BT=rows.old_logps_BT,
      ref_logps_BT=zeros_BT if ref_logps_BT is None else ref_logps_BT,
      correct_B=rows.correct_B,
      staleness_B=staleness_B.astype(np.int32),
      values_BT=zeros_BT if values_BT is None else values_BT,
      returns_BT=credit.get("returns_BT", zeros_BT),
      sampler_logps_BT=rows.rollouts.logps_BT if reads_sampler else None,
  )


def minibatches(
    mesh: jax.sharding.Mesh | None, batch: Batch, plan: packing.PackingPlan
) -> tuple[Batch, Packed]:
  """The minibatches on the mesh: arrays [M, B, ...], and packed tokens."""
  batch_M = jax.tree.map(lambda x: x[plan.order_MB], batch)
  return (
      sharding.put(mesh, batch_M, None, "batch"),
      sharding.put_packed(mesh, plan.packed_M),
  )


# --- gradients and the optimizer ---------------------------------------------


def accumulate(
    loss_fn: Callable[[Tree, Packed, Tree], tuple[Array, dict]],
    params: Tree,
    packed: Packed,
    rows: Tree,
) -> tuple[Tree, dict[str, Array]]:
  """Sums gradients over the micro-batches of a minibatch.

  Args:
    loss_fn: (params, Packed of a micro-batch, rows) -> (share of the loss,
      metrics), which `packing.fold` adds up.
    params: of the model.
    packed: of the minibatch.
    rows: a pytree with leading axis B. Each micro-batch gets all rows, with
      zeros in rows of other micro-batches.

  Returns:
    gradients of the summed loss, and the metrics of the minibatch.
  """
  grad_fn = jax.grad(loss_fn, has_aux=True)

  def micro_batch(micro, member_B):
    return grad_fn(params, micro, packing.zero_others(member_B, rows))

  return packing.fold(micro_batch, packed)


def optimize(
    state: TrainState,
    tx: optax.GradientTransformation,
    grads: Tree,
    mask: Array | bool = True,
    wanted: Array | bool = True,
    at: Array | None = None,
) -> tuple[TrainState, dict[str, Array]]:
  """Takes one optimizer step, or skips it and counts the skipped step.

  A step is skipped if a gradient is not finite, or if no token has weight in
  the loss: Adam's momentum would move the parameters without a gradient.

  Args:
    state: before the step.
    tx: the optimizer.
    grads: of the parameters.
    mask: tokens in the loss; without any True the step is skipped.
    wanted: whether a skipped step counts as skipped.
    at: number of this step in the stage, skipped ones included, which decides
      its learning rate; None: steps that were taken decide it.

  Returns:
    the next state, and the metrics grad_norm and update_skipped.
  """
  norm = optax.tree.norm(grads)
  good = jnp.isfinite(norm) & jnp.any(mask)

  # A branch instead of a selection between two results: XLA copies offloaded
  # moments from the host as early as it can, which is after the last gradient
  # inside a branch.
  def update(params, offloaded):
    moments = jax.device_put(offloaded, jax.memory.Space.Device)
    updates, moments = tx.update(grads, moments, params)
    moments = jax.tree.map(
        lambda new, old: jax.device_put(new, jax.typeof(old).memory_space),
        moments,
        offloaded,
    )
    return optax.apply_updates(params, updates), moments

  opt_state = state.opt_state
  if at is not None:
    opt_state = optimizer.schedules_at(opt_state, at)
  params, opt_state = jax.lax.cond(
      good, update, lambda *unchanged: unchanged, state.params, opt_state
  )
  skipped = wanted & ~good
  state = state.replace(
      params=params, opt_state=opt_state, skipped=state.skipped + skipped
  )
  return state, dict(grad_norm=norm, update_skipped=1.0 * skipped)


# --- the RL update -----------------------------------------------------------


def policy_gradient(
    params: Tree,
    b: Batch,
    packed: Packed,
    coefs: dict[str, Array],
    frozen: Tree | None = None,
    compared: Tree | None = None,
    *,
    cfg: decoder.ModelConfig,
    temperature: float,
    objective: Objective,
    compare: tuple[str, Callable] | None = None,
    read: Callable[[Tree, Tree | None], Tree] = learned_parameters.ALL.read,
) -> tuple[Tree, dict[str, Array], dict[str, Array]]:
  """The gradient of the loss of one minibatch, its metrics and token weights.

  Arguments are as of `rl_update`.
  """

  def loss_fn(params, packed, rows):
    b, w = rows
    params = read(params, frozen)
    of_chunks, names = None, ()
    if compare is not None:
      theirs = params if compared is None else compared
      of_chunks, names = functools.partial(compare[1], theirs), compare[:1]
    logps_BT, entropy_BT, *more, routing = decoder.packed_logps(
        params, cfg, packed, temperature, of_chunks
    )
    of_names = dict(zip(names, more, strict=True))
    loss, metrics = objective_lib.loss(
        objective, logps_BT, entropy_BT, b, w, coefs, of_names
    )
    of_model, more = experts.loss(cfg, routing, packed, w["mean"])
    return loss + of_model, metrics | more

  # Loss aggregation: the weight of each token in the minibatch.
  w = objective_lib.token_weights(objective, b)
  return *accumulate(loss_fn, params, packed, (b, w)), w


def without_padding(batch: Batch) -> Batch:
  """Zeros where the mask is empty: padding may be NaN, which spoils a sum."""
  names = ["old_logps_BT", "ref_logps_BT", "advantages_BT", "sampler_logps_BT"]
  arrays = {x: y for x in names if (y := getattr(batch, x)) is not None}
  return batch.replace(
      **{x: jnp.where(batch.mask_BT, y, 0) for x, y in arrays.items()}
  )


def every_update(metrics: dict[str, Array]) -> bool:
  """Admits all updates of a rollout, whatever their metrics are."""
  return True


def rl_update(
    state: TrainState,
    batch_M: Batch,
    packed_M: Packed,
    coefs: dict[str, Array],
    frozen: Tree | None = None,
    beside: Mapping[str, Tree] | None = None,
    *,
    cfg: decoder.ModelConfig,
    tx: optax.GradientTransformation,
    temperature: float,
    objective: Objective,
    compare: tuple[str, Callable] | None = None,
    stream: Callable | None = None,
    admits: Callable[[dict[str, Array]], Array | bool] = every_update,
    read: Callable[[Tree, Tree | None], Tree] = learned_parameters.ALL.read,
) -> tuple[TrainState, dict[str, Array]]:
  """All optimizer steps of one RL step: a scan over its minibatches.

  Args:
    state: donated by the caller's jit.
    batch_M: rows of all minibatches, [M, B, ...].
    packed_M: their tokens.
    coefs: scalars `kl` and `entropy`; see `objective.loss`.
    frozen: parameters that `read` takes and no update changes; None: the state
      has all parameters.
    beside: `compared`, the parameters that `compare` reads, or without them
      the policy's own; and `rows_M`, rows of all minibatches, for `stream`.
    cfg: static.
    tx: static.
    temperature: at which the responses were sampled.
    objective: static, the terms of the loss.
    compare: static, the name of an array [B, T] that terms of the loss read,
      and what computes it: after parameters, it takes what `compare` of
      `decoder.packed_logps` takes; None: there is no such array.
    stream: static, the gradient of rows beside RL, which is added; None for RL
      alone.
    admits: static, metrics of a minibatch before its update -> whether it is
      made; after the first that is not, no further one is.
    read: static, (learned parameters, frozen) -> those of the model.

  Returns:
    the next state, and metrics of `update_metrics.summarize`, with
    `first_log_ratio_max`, the largest |log ratio| before the first update (0 up
    to rounding if on-policy).
  """
  chex.assert_rank(batch_M.mask_BT, 3)

  beside = beside or {}
  gradient = functools.partial(
      policy_gradient,
      cfg=cfg,
      temperature=temperature,
      objective=objective,
      compare=compare,
      read=read,
  )

  def minibatch(carry, xs):
    (state, going, index), (b, packed, rows) = carry, xs
    grads, metrics, w = gradient(
        state.params, b, packed, coefs, frozen, beside.get("compared")
    )
    if stream is not None:
      more, of_rows = stream(state.params, rows, frozen)
      grads = jax.tree.map(jnp.add, grads, more)
      metrics |= of_rows
    going &= admits(metrics)
    at = state.step * len(batch_M.mask_BT) + index
    new, step_metrics = optimize(state, tx, grads, b.mask_BT & going, going, at)

    # Effective sample size of the importance ratios, and age of the rows.
    mean, square = metrics.pop("ratio_mean"), metrics.pop("ratio_square")
    has_tokens = jnp.any(b.mask_BT)
    ess = jnp.where(has_tokens, mean**2 / jnp.maximum(square, 1e-30), 1)
    metrics["kl_old_new_max"] = metrics["kl_old_new"]  # also if it stopped here
    staleness = jnp.sum(w["mean"] * (b.staleness_B + index)[:, None])
    metrics |= step_metrics | dict(ess=ess, ess_min=ess, staleness=staleness)
    metrics["staleness_max"] = jnp.max(
        jnp.where(b.staleness_B < 0, 0, b.staleness_B + index)
    )
    metrics["updates"] = going & has_tokens
    metrics["tokens"] = b.mask_BT.sum()
    return (new, going, index + 1), metrics

  rows_M = beside.get("rows_M")
  carry = state, jnp.array(True), jnp.zeros((), jnp.int32)
  (state, _, _), by_M = jax.lax.scan(
      minibatch, carry, (without_padding(batch_M), packed_M, rows_M)
  )
  metrics = update_metrics.summarize(by_M)
  metrics["first_log_ratio_max"] = by_M["log_ratio_max"][0]
  return state.replace(step=state.step + 1), metrics


# --- the critic's update -----------------------------------------------------


def critic_update(
    state: TrainState,
    batch_M: Batch,
    packed_M: Packed,
    *,
    cfg: critic.CriticConfig,
    tx: optax.GradientTransformation,
    clip: float,
) -> tuple[TrainState, dict[str, Array]]:
  """The critic's optimizer steps of one RL step, on the policy's minibatches.

  Args:
    state: of the critic; donated by the caller's jit.
    batch_M: as in `rl_update`; with values before the update, and returns.
    packed_M: as in `rl_update`.
    cfg: static.
    tx: static.
    clip: of `values.value_loss`; a categorical head ignores it.

  Returns:
    the next state, and metrics: vf_loss (token mean), grad_norm, updates,
    update_skipped; with a categorical head vf_targets_clipped, the share of
    targets outside its support.
  """

  def loss_fn(params, packed, rows):
    b, share_BT = rows
    values_BT, logits_BTJ = critic.values(params, cfg, packed)
    clipped = {}
    values_BT, old_BT, returns_BT = (
        jnp.where(b.mask_BT, x, 0)
        for x in (values_BT, b.values_BT, b.returns_BT)
    )
    if cfg.head == "categorical":
      loss_BT = values.categorical_loss(
          logits_BTJ, returns_BT, cfg.low, cfg.high
      )
      beyond_BT = (returns_BT < cfg.low) | (returns_BT > cfg.high)
      clipped = dict(vf_targets_clipped=jnp.sum(share_BT * beyond_BT))
    else:
      loss_BT = values.value_loss(values_BT, old_BT, returns_BT, clip=clip)
    loss = jnp.sum(share_BT * loss_BT)
    return loss, dict(vf_loss=loss) | clipped

  def minibatch(state, xs):
    b, packed, index = xs
    mask = b.mask_BT.astype(b.returns_BT.dtype)
    share_BT = reductions.token_mean(mask, b.groups_B)
    grads, metrics = accumulate(loss_fn, state.params, packed, (b, share_BT))
    at = state.step * count + index
    state, more = optimize(state, tx, grads, b.mask_BT, at=at)
    more |= dict(updates=jnp.any(b.mask_BT), tokens=b.mask_BT.sum())
    return state, metrics | more

  count = len(batch_M.mask_BT)
  number_M = jnp.arange(count, dtype=jnp.int32)
  state, by_M = jax.lax.scan(minibatch, state, (batch_M, packed_M, number_M))
  return state.replace(step=state.step + 1), update_metrics.summarize(by_M)
