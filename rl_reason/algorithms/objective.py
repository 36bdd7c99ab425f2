"""The loss of the policy: a surrogate, and the terms beside it.

The weights of all tokens are computed once over all rows of a minibatch
(`token_weights`); each of its micro-batches then contributes its terms of the
sum (`loss`).
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from rl_reason.algorithms import kl as kl_lib, reductions, variants
from rl_reason.base.structs import Array, Batch, call_by_name


@dataclasses.dataclass(frozen=True)
class Objective:
  """The terms of the loss; static. Functions have their keywords bound.

  Attributes:
    surrogate: a function of `surrogates`.
    reduction: a loss aggregation of `reductions`.
    kl: a KL to the reference: its estimator, one of `kl.ESTIMATORS`, 'full',
      which is computed over the whole vocabulary, or 'none'.
    entropy: whether there is an entropy bonus.
    positive_nll: mu, coefficient of the mean NLL over the tokens of the correct
      responses of the minibatch (VAPO, arXiv:2504.05118, sec 4.3); 0 for none.
    observation_nll: the same for the tokens of `variants.observed`.
    on_policy: whether the policy that is trained is the one that sampled: its
      own log-probs are then the old ones, and b.old_logps_BT the sampler's.
    length_alpha: of `variants.length_factor`; 0 for none.
  """

  surrogate: Callable[..., tuple[Array, dict[str, Array]]]
  reduction: Callable[..., Array]
  kl: str = "none"
  entropy: bool = False
  positive_nll: float = 0.0
  observation_nll: float = 0.0
  on_policy: bool = False
  length_alpha: float = 0.0


def token_weights(o: Objective, b: Batch) -> dict[str, Array]:
  """The weight of each token of a minibatch in each term of the loss.

  Args:
    o: static.
    b: all rows of the minibatch.

  Returns:
    [B, T] each: `all` (surrogate, KL and entropy), `mean` (means of metrics),
    and where the term exists `correct` and `observed`.
  """
  mask_BT = b.mask_BT.astype(b.advantages_BT.dtype)
  all_BT = call_by_name(o.reduction, dict(mask_BT=mask_BT, groups_B=b.groups_B))
  if o.length_alpha:
    all_BT *= variants.length_factor(mask_BT, o.length_alpha)[:, None]
  w = dict(all=all_BT, mean=reductions.token_mean(mask_BT, b.groups_B))
  if o.positive_nll:
    # One mean over the minibatch: one per micro-batch would scale the term by
    # their number.
    correct_BT = mask_BT * b.correct_B[:, None]
    w["correct"] = reductions.token_mean(correct_BT, b.groups_B)
  if o.observation_nll:
    seen_BT = variants.observed(b.mask_BT) * jnp.ones_like(mask_BT)
    w["observed"] = reductions.token_mean(seen_BT, b.groups_B)
  return w


def loss(
    o: Objective,
    logps_BT: Array,
    entropy_BT: Array,
    b: Batch,
    w: dict[str, Array],
    coefs: dict[str, Array],
    full_kl_BT: Array | None = None,
) -> tuple[Array, dict[str, Array]]:
  """The terms that a micro-batch contributes to the loss of its minibatch.

  Args:
    o: static.
    logps_BT: [B, T] of the policy that is trained.
    entropy_BT: [B, T] of it, in nats.
    b: the rows of the minibatch; masked positions are 0, and so are all rows
      that are not in the micro-batch.
    w: `token_weights` of the minibatch, 0 where b is.
    coefs: scalars `kl` and `entropy`, coefficients of those terms; arrays,
      since they may change from step to step without compiling again.
    full_kl_BT: [B, T] of `kl.full`; None with an estimator.

  Returns:
    the loss, and metrics that add up over micro-batches (`*_max`: the maximum
    over them).
  """
  mask_BT, mean_BT, all_logps_BT = b.mask_BT, w["mean"], logps_BT
  logps_BT = jnp.where(mask_BT, logps_BT, 0)
  # On-policy the ratio is exactly 1, and only its gradient matters.
  old_BT = jax.lax.stop_gradient(logps_BT) if o.on_policy else b.old_logps_BT

  # The surrogate.
  inputs = dict(logps_BT=logps_BT, old_logps_BT=old_BT, mask_BT=mask_BT)
  inputs["advantages_BT"] = b.advantages_BT
  # Of one on-policy update, b.old_logps_BT are the sampler's.
  sampler_BT = b.old_logps_BT if o.on_policy else b.sampler_logps_BT
  inputs["sampler_logps_BT"] = sampler_BT
  loss_BT, aux = call_by_name(o.surrogate, inputs)
  total = jnp.sum(w["all"] * loss_BT)
  metrics = dict(pg_loss=total)
  log_ratio_BT = logps_BT - old_BT

  # The terms beside it.
  if o.kl != "none":
    kl_BT = full_kl_BT
    if kl_BT is None:
      kl_BT = kl_lib.estimate(o.kl, logps_BT, b.ref_logps_BT, old_BT)
    metrics["kl_loss"] = jnp.sum(w["all"] * kl_BT)
    total += coefs["kl"] * metrics["kl_loss"]
    if o.on_policy or o.kl == "full":  # else measured before the update
      metrics["kl/reference"] = jnp.sum(mean_BT * kl_BT)
  if o.entropy:
    total -= coefs["entropy"] * jnp.sum(w["all"] * entropy_BT)
  if o.positive_nll:
    metrics["nll_loss"] = -jnp.sum(w["correct"] * logps_BT)
    total += o.positive_nll * metrics["nll_loss"]
  if o.observation_nll:
    metrics["observation_loss"] = variants.nll(w["observed"], all_logps_BT)
    total += o.observation_nll * metrics["observation_loss"]

  # Metrics: how far the policy has moved, and how many tokens are clipped.
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
