"""The optimizer steps of one RL step, one after the other.

`step.rl_update` takes all of them in one program and returns metrics. Here each
optimizer step shows its gradient, and which tokens the gradient is made of.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_reason.algorithms import objective as objective_lib
from rl_reason.base.structs import (
    Array,
    Batch,
    Packed,
    TrainState,
    Tree,
    call_by_name,
)
from rl_reason.devices import sharding
from rl_reason.models import decoder
from rl_reason.training import learned_parameters, packing, step as step_lib

# Arguments of `step.policy_gradient` among those of `step.rl_update`.
GRADIENT = "cfg", "temperature", "objective", "read"
# A step along the gradient, as a share of the norm of all parameters, by which
# the change of log-probs is measured: rounding (relative 1e-7) and curvature
# then both change a share by less than about a percent in float32.
PROBE = 1e-3
# Shares add up to 1; if their sum is further away, rounding has spoiled them.
TOLERANCE = 0.05


class Learning(NamedTuple):
  """The static arguments of `step.rl_update`, which describes them."""

  objective: objective_lib.Objective
  tx: optax.GradientTransformation
  cfg: decoder.ModelConfig
  temperature: float
  compare: None = None  # a KL over the whole vocabulary cannot be replayed,
  stream: None = None  # and neither can rows beside those of RL
  admits: Callable[[dict[str, Array]], Array | bool] = step_lib.every_update
  read: Callable[[Tree, Tree | None], Tree] = learned_parameters.ALL.read


class Tokens(NamedTuple):
  """The tokens of a minibatch, [B, T] each, on the host.

  Attributes:
    logps_BT: of the policy before the optimizer step.
    ratio_BT: to pi_old; 1 where the update is on-policy.
    weight_BT: derivative of the loss by the log-prob.
    clipped_BT: bool, the clip has removed the gradient.
    share_BT: of the squared norm of the gradient: the token's own gradient
      times the whole, divided by the squared norm of the whole. Shares add up
      to 1 over the minibatch, if the loss depends on log-probs and entropies
      alone; a token of negative share pulls against the others. NaN if
      rounding spoils the shares.
  """

  logps_BT: Array
  ratio_BT: Array
  weight_BT: Array
  clipped_BT: Array
  share_BT: Array


class OptimizerStep(NamedTuple):
  """One optimizer step.

  Attributes:
    grads: of the parameters, on the host.
    metrics: of `objective.loss`, and grad_norm, on the host.
    tokens: of its minibatch; None unless they were asked for.
    updated: whether the parameters were updated.
  """

  grads: Tree
  metrics: dict[str, float]
  tokens: Tokens | None
  updated: bool


def take(
    learning: Learning,
    state: TrainState,
    batch_M: Batch,
    packed_M: Packed,
    coefs: dict[str, Array],
    frozen: Tree | None = None,
    *,
    tokens: bool,
) -> Iterator[OptimizerStep | TrainState]:
  """Takes the optimizer steps of `step.rl_update`, and yields each of them.

  Args:
    learning: what `rl_update` has bound.
    state: before the RL step; it is not donated.
    batch_M: rows of all minibatches, on the mesh.
    packed_M: their tokens.
    coefs: scalars `kl` and `entropy`.
    frozen: as of `rl_update`.
    tokens: whether the tokens are looked at, which takes further forward
      passes.

  Yields:
    each optimizer step, and at last the state after all of them.
  """
  rest = learning._asdict()
  gradient = jax.jit(
      functools.partial(
          step_lib.policy_gradient,
          **{x: rest[x] for x in GRADIENT},
      )
  )
  optimize = jax.jit(functools.partial(_optimize, learning.tx, learning.admits))
  forward = jax.jit(functools.partial(_forward, learning))
  probe = jax.jit(_probe)
  of_tokens = jax.jit(functools.partial(_of_tokens, learning.objective))
  batch_M = jax.jit(step_lib.without_padding)(batch_M)
  before, going = state.step, jnp.array(True)
  for index in range(len(packed_M.source_BT)):
    b, packed = jax.tree.map(lambda x, m=index: x[m], (batch_M, packed_M))
    grads, metrics, w = gradient(state.params, b, packed, coefs, frozen)
    found = None
    if tokens:
      # Central difference of the log-probs along the gradient.
      logps = forward(state.params, packed, frozen)
      higher, lower, size = probe(state.params, grads)
      change = jax.tree.map(
          jnp.subtract,
          forward(higher, packed, frozen),
          forward(lower, packed, frozen),
      )
      found = of_tokens(*logps, change, size, b, w, coefs)
    at = before * len(packed_M.source_BT) + index
    new, going, more = optimize(state, grads, metrics, b.mask_BT, going, at)
    host = sharding.fetch((grads, metrics | more, found))
    grads, metrics, found = host
    yield OptimizerStep(
        grads=grads,
        metrics={name: float(x) for name, x in metrics.items()},
        tokens=found and _checked(found),
        updated=bool(sharding.fetch(going)) and not metrics["update_skipped"],
    )
    state = new
  yield state


def _optimize(tx, admits, state, grads, metrics, mask_BT, going, at):
  """The optimizer step of `rl_update`."""
  going &= admits(metrics)
  mask_BT = mask_BT & going
  new, more = step_lib.optimize(state, tx, grads, mask_BT, going, at)
  return new, going, more


def _forward(learning: Learning, params, packed, frozen):
  """Log-probs and entropies of a minibatch, [B, T] each."""
  params = learning.read(params, frozen)

  def micro_batch(micro, member_B):
    found = decoder.packed_logps(
        params, learning.cfg, micro, learning.temperature
    )
    return packing.zero_others(member_B, found[:2])

  return packing.fold(micro_batch, packed)


def _probe(params, grads):
  """Parameters a bit further along a gradient, a bit back, and twice the bit.

  The last one is divided by the norm of the gradient: it is the factor between
  the change of a log-prob and its derivative along the gradient.
  """
  size = PROBE * optax.tree.norm(params)
  norm = jnp.maximum(optax.tree.norm(grads), 1e-30)
  move = lambda sign: jax.tree.map(  # noqa: E731
      lambda x, g: x + sign * size / norm * g, params, grads
  )
  return move(1), move(-1), 2 * size * norm


def _of_tokens(o, logps_BT, entropy_BT, change, size, b, w, coefs) -> Tokens:
  """The tokens of a minibatch; `change` is of their log-probs and entropies."""

  def loss(logps_BT, entropy_BT):
    return objective_lib.loss(o, logps_BT, entropy_BT, b, w, coefs)[0]

  mask_BT = b.mask_BT
  logps_BT = jnp.where(mask_BT, logps_BT, 0)
  by_logp_BT, by_entropy_BT = jax.grad(loss, (0, 1))(logps_BT, entropy_BT)
  old_BT = logps_BT if o.on_policy else b.old_logps_BT
  arrays = dict(logps_BT=logps_BT, old_logps_BT=old_BT, mask_BT=mask_BT)
  _, aux = call_by_name(
      o.surrogate, arrays | dict(advantages_BT=b.advantages_BT)
  )
  share_BT = by_logp_BT * change[0] + by_entropy_BT * change[1]
  return Tokens(
      logps_BT=logps_BT,
      ratio_BT=jnp.exp(jnp.clip(logps_BT - old_BT, -20, 20)) * mask_BT,
      weight_BT=by_logp_BT * mask_BT,
      clipped_BT=aux["clipped"] & mask_BT,
      share_BT=jnp.where(mask_BT, share_BT / size, 0),
  )


def _checked(found: Tokens) -> Tokens:
  """Tokens without shares, if these do not add up to 1."""
  if abs(found.share_BT.sum(dtype=np.float64) - 1) <= TOLERANCE:
    return found
  return found._replace(share_BT=np.full_like(found.share_BT, np.nan))


# --- numbers of a gradient ----------------------------------------------------


def norm(tree: Tree) -> float:
  """The Euclidean norm of all arrays, in double precision."""
  return float(np.sqrt(sum(_squares(x).sum() for x in jax.tree.leaves(tree))))


def cosine(one: Tree, other: Tree) -> float | None:
  """The cosine of two trees of arrays; None if one of them is zero."""
  product = sum(
      np.vdot(np.asarray(x, np.float64), np.asarray(y, np.float64))
      for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
  )
  size = norm(one) * norm(other)
  return float(product / size) if size else None


def difference(after: Tree, before: Tree) -> Tree:
  """after - before, on the host, in double precision."""
  return jax.tree.map(
      lambda x, y: np.asarray(x, np.float64) - np.asarray(y, np.float64),
      sharding.fetch(after),
      sharding.fetch(before),
  )


def norms_by_layer(tree: Tree, is_stacked: Any) -> dict[str, float]:
  """Norms of the layers (`layer 0`), and of the arrays outside of layers."""
  layers: Array = 0.0
  out: dict[str, float] = {}
  for path, x in jax.tree.leaves_with_path(tree):
    if is_stacked(path):
      layers = layers + _squares(x).reshape(len(x), -1).sum(1)
    else:
      name = jax.tree_util.keystr(path, simple=True, separator=".")
      out[name] = float(np.sqrt(_squares(x).sum()))
  numbered = {
      f"layer {n}": float(np.sqrt(x))
      for n, x in enumerate(np.atleast_1d(layers))
  }
  return numbered | out if np.ndim(layers) else out


def _squares(x: Array) -> np.ndarray:
  return np.square(np.asarray(x, np.float64))
