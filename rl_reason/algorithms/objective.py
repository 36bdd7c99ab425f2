"""The loss of the policy: a surrogate, and the terms beside it.

The weights of all tokens are computed once over all rows of a minibatch
(`token_weights`); each of its micro-batches then contributes its terms of the
sum (`loss`).
"""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

from rl_reason.algorithms import reductions
from rl_reason.base.structs import Array, Batch, call_by_name

# Arrays of a minibatch that functions of the loss may name.
OF_BATCH = (
    *("mask_BT", "groups_B", "correct_B", "advantages_BT", "ref_logps_BT"),
    *("values_BT", "returns_BT"),
)


@dataclasses.dataclass(frozen=True)
class Term:
  """A term of the loss beside the surrogate; static.

  Micro-batches add up coefficient * sum(weights * values). `loss_terms` has
  those of the named algorithms. Functions have their keywords bound, and are
  called with the arrays that their positional parameters name.

  Attributes:
    name: of its metric, sum(weights * values).
    value: a function of the arrays of `loss` -> [B, T]. They are 0 where the
      mask is empty, and in rows of other micro-batches; values are finite.
    coef: a constant, or the name of a coefficient in `coefs`; 0: the term is a
      metric alone.
    weights: a function of mask_BT, groups_B and correct_B, of all rows of the
      minibatch -> [B, T]; None: the weights of the surrogate.
  """

  name: str
  value: Callable[..., Array]
  coef: float | str
  weights: Callable[..., Array] | None = None


@dataclasses.dataclass(frozen=True)
class Objective:
  """The loss; static. Functions have their keywords bound.

  Attributes:
    surrogate: a function of `surrogates`.
    reduction: a loss aggregation of `reductions`.
    terms: what is added, in this order.
    on_policy: whether the policy that is trained is the one that sampled: its
      own log-probs are then the old ones, and b.old_logps_BT the sampler's.
  """

  surrogate: Callable[..., tuple[Array, dict[str, Array]]]
  reduction: Callable[..., Array]
  terms: tuple[Term, ...] = ()
  on_policy: bool = False


def token_weights(o: Objective, b: Batch) -> dict[str, Array]:
  """The weight of each token of a minibatch in each term of the loss.

  One per minibatch: weights of a micro-batch alone would scale a term by the
  number of micro-batches.

  Args:
    o: static.
    b: all rows of the minibatch.

  Returns:
    [B, T] each: `all` (of the surrogate), `mean` (means of metrics), and those
    of terms that have weights of their own, by name.
  """
  mask_BT = b.mask_BT.astype(b.advantages_BT.dtype)
  rows = dict(mask_BT=mask_BT, groups_B=b.groups_B, correct_B=b.correct_B)
  functions = {x.name: x.weights for x in o.terms if x.weights is not None}
  functions |= dict(all=o.reduction, mean=reductions.token_mean)
  return {name: call_by_name(fn, rows) for name, fn in functions.items()}


def loss(
    o: Objective,
    logps_BT: Array,
    entropy_BT: Array,
    b: Batch,
    w: dict[str, Array],
    coefs: Mapping[Any, Array],
    more: Mapping[str, Array] | None = None,
) -> tuple[Array, dict[str, Array]]:
  """The terms that a micro-batch contributes to the loss of its minibatch.

  Args:
    o: static.
    logps_BT: [B, T] of the policy that is trained.
    entropy_BT: [B, T] of it, in nats.
    b: the rows of the minibatch; masked positions are 0, and so are all rows
      that are not in the micro-batch.
    w: `token_weights` of the minibatch, 0 where b is.
    coefs: scalars, the coefficients that terms name; arrays, since they may
      change from step to step without compiling again.
    more: arrays [B, T] of a feature that terms name.

  Returns:
    the loss, and metrics that add up over micro-batches (`*_max`: the maximum
    over them).
  """
  mask_BT, mean_BT = b.mask_BT, w["mean"]
  arrays = {x: getattr(b, x) for x in OF_BATCH}
  arrays |= dict(all_logps_BT=logps_BT, entropy_BT=entropy_BT)
  logps_BT = jnp.where(mask_BT, logps_BT, 0)
  # On-policy the ratio is exactly 1, and only its gradient matters; the batch
  # has the log-probs of the sampler.
  old_BT, sampler_BT = b.old_logps_BT, b.sampler_logps_BT
  if o.on_policy:
    old_BT, sampler_BT = jax.lax.stop_gradient(logps_BT), b.old_logps_BT
  arrays |= dict(logps_BT=logps_BT, old_logps_BT=old_BT)
  arrays |= dict(sampler_logps_BT=sampler_BT, **(more or {}))

  loss_BT, aux = call_by_name(o.surrogate, arrays)
  total = jnp.sum(w["all"] * loss_BT)
  metrics = dict(pg_loss=total)
  for term in o.terms:
    weights_BT: Any = w.get(term.name, w["all"])
    value_BT = call_by_name(term.value, arrays)
    metrics[term.name] = jnp.sum(weights_BT * value_BT)
    if term.coef:
      coef: Any = coefs.get(term.coef, term.coef)
      total += coef * metrics[term.name]

  # Metrics: how far the policy has moved, and how many tokens are clipped.
  log_ratio_BT = logps_BT - old_BT
  if o.on_policy:
    gap_BT = (b.old_logps_BT - old_BT) * mask_BT
    metrics["rollout/sampler_trainer_kl"] = jnp.sum(mean_BT * gap_BT)
    metrics["rollout/logp_gap_max"] = jnp.max(jnp.abs(gap_BT))
    metrics["rollout/logp_gap_mean"] = jnp.sum(mean_BT * jnp.abs(gap_BT))
  ratio_BT = jnp.exp(jnp.clip(log_ratio_BT, -20, 20))
  high_BT = aux["clipped"] & (b.advantages_BT > 0) & mask_BT
  return total, metrics | dict(
      loss=total,
      entropy=jnp.sum(mean_BT * entropy_BT),
      ppo_kl=-jnp.sum(mean_BT * log_ratio_BT),
      kl_old_new=jnp.sum(mean_BT * (ratio_BT - 1 - log_ratio_BT)),
      pg_clipfrac=jnp.sum(mean_BT * aux["clipped"]),
      pg_clipfrac_lower=jnp.sum(mean_BT * aux["clipped_lower"]),
      ratio_mean=jnp.sum(mean_BT * ratio_BT),
      ratio_square=jnp.sum(mean_BT * ratio_BT**2),
      log_ratio_max=jnp.max(jnp.abs(log_ratio_BT) * mask_BT),
      clipped_prob_max=jnp.max(jnp.exp(logps_BT) * high_BT),
  )
