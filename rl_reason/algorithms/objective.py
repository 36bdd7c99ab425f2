"""What the policy minimises: a surrogate, and the terms beside it.

Arrays in, numbers out. A minibatch is weighed once, over all of its rows
(`token_weights`); each of its micro-batches then adds its share of the loss
(`loss`).
"""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from rl_reason.algorithms import corrections, losses, reductions
from rl_reason.structs import Array, Batch


@dataclasses.dataclass(frozen=True)
class Objective:
  """The terms of the loss; static.

  Attributes:
    surrogate: a function of `surrogates`, its keywords bound.
    reduction: a function of `weights`.
    kl: 'none', 'k1', 'k2' or 'k3': a KL to the reference.
    entropy: whether there is a bonus.
    positive_nll: mu, factor of the mean NLL over the tokens of right responses
      (VAPO, arXiv:2504.05118, sec 4.3), over the whole minibatch.
    length_alpha: see `corrections.length_factor`.
    on_policy: whether the policy that learns is the one that sampled: its own
      log-probs are then the old ones, and those of the batch the sampler's.
    cov: 'none', 'clip' or 'kl': see `corrections.clip_cov`, `top_share`.
    cov_share: share of tokens that Clip-Cov or KL-Cov picks.
    cov_low, cov_high: of `corrections.clip_cov`.
    cov_coef: KL-Cov's factor of |log r| on its tokens.
  """

  surrogate: Callable[..., tuple[Array, dict[str, Array]]]
  reduction: Callable[[Array, Array], Array]
  kl: str = "none"
  entropy: bool = False
  positive_nll: float = 0.0
  length_alpha: float = 0.0
  on_policy: bool = False
  cov: str = "none"
  cov_share: float = 2e-4
  cov_low: float = 1.0
  cov_high: float = 5.0
  cov_coef: float = 1.0


def token_weights(o: Objective, b: Batch, key: Array) -> dict[str, Array]:
  """What each token of a minibatch weighs in each term.

  Args:
    o: static.
    b: all rows of the minibatch.
    key: decides which tokens Clip-Cov takes.

  Returns:
    [B, T] each: `policy` (surrogate), `every` (KL, entropy), `share` (means of
    metrics), and where the term is there `right` (NLL) and `held` (KL-Cov).
  """
  mask_BT = b.mask_BT.astype(b.advantages_BT.dtype)
  every_BT = o.reduction(mask_BT, b.groups_B)
  if o.length_alpha:
    every_BT *= corrections.length_factor(mask_BT, o.length_alpha)[:, None]
  w = dict(every=every_BT, policy=every_BT)
  w["share"] = reductions.token_mean(mask_BT, b.groups_B)
  if o.positive_nll:
    w["right"] = reductions.token_mean(
        mask_BT * b.correct_B[:, None], b.groups_B
    )
  if o.cov != "none":
    cov_BT = corrections.covariance(b.old_logps_BT, b.advantages_BT, mask_BT)
  if o.cov == "clip":
    w["policy"] *= corrections.clip_cov(
        cov_BT,
        mask_BT,
        jax.random.uniform(key, mask_BT.shape),
        cov_share=o.cov_share,
        cov_low=o.cov_low,
        cov_high=o.cov_high,
    )
  elif o.cov == "kl":
    w["held"] = every_BT * corrections.top_share(cov_BT, mask_BT, o.cov_share)
  return w


def loss(
    o: Objective,
    logps_BT: Array,
    entropy_BT: Array,
    b: Batch,
    w: dict[str, Array],
    coefs: dict[str, Array],
) -> tuple[Array, dict[str, Array]]:
  """A micro-batch's share of the loss of its minibatch, and of its metrics.

  Args:
    o: static.
    logps_BT: [B, T] of the policy that learns.
    entropy_BT: [B, T] of it, in nats.
    b: the rows of the minibatch; what the mask hides is 0, and so is every row
      that the micro-batch does not hold.
    w: `token_weights` of them.
    coefs: scalars `kl` and `entropy`, factors of those terms; arrays, since
      they may change from step to step.

  Returns:
    the loss, and metrics that add up over micro-batches (`*_max`: whose largest
    counts).
  """
  mask_BT, share_BT = b.mask_BT, w["share"]
  logps_BT = jnp.where(mask_BT, logps_BT, 0)
  old_BT = jax.lax.stop_gradient(logps_BT) if o.on_policy else b.old_logps_BT
  loss_BT, aux = o.surrogate(logps_BT, old_BT, b.advantages_BT, mask_BT)
  log_ratio_BT = logps_BT - old_BT
  metrics = dict(pg_loss=jnp.sum(w["policy"] * loss_BT))
  if o.on_policy:
    gap_BT = (b.old_logps_BT - old_BT) * mask_BT
    metrics["rollout/sampler_trainer_kl"] = jnp.sum(share_BT * gap_BT)
    metrics["rollout/logp_gap_max"] = jnp.max(jnp.abs(gap_BT))
  total = metrics["pg_loss"]
  if o.kl != "none":
    kl_BT = losses.kl(logps_BT, b.ref_logps_BT, kind=o.kl)
    metrics["kl_loss"] = jnp.sum(w["every"] * kl_BT)
    if o.on_policy:
      metrics["kl/reference"] = jnp.sum(share_BT * kl_BT)
    total += coefs["kl"] * metrics["kl_loss"]
  if o.entropy:
    total -= coefs["entropy"] * jnp.sum(w["every"] * entropy_BT)
  if o.positive_nll:
    metrics["nll_loss"] = -jnp.sum(w["right"] * logps_BT)
    total += o.positive_nll * metrics["nll_loss"]
  if o.cov == "kl":
    total += o.cov_coef * jnp.sum(w["held"] * jnp.abs(log_ratio_BT))

  ratio_BT = jnp.exp(jnp.clip(log_ratio_BT, -20, 20))
  high_BT = aux["clipped"] & (b.advantages_BT > 0) & mask_BT
  return total, metrics | dict(
      loss=total,
      entropy=jnp.sum(share_BT * entropy_BT),
      ppo_kl=-jnp.sum(share_BT * log_ratio_BT),
      kl_old_new=jnp.sum(share_BT * (ratio_BT - 1 - log_ratio_BT)),
      pg_clipfrac=jnp.sum(share_BT * aux["clipped"]),
      pg_clipfrac_lower=jnp.sum(share_BT * aux["clipped_lower"]),
      ratio_mean=jnp.sum(share_BT * ratio_BT),
      ratio_square=jnp.sum(share_BT * ratio_BT**2),
      log_ratio_max=jnp.max(jnp.abs(log_ratio_BT) * mask_BT),
      clipped_prob_max=jnp.max(jnp.exp(logps_BT) * high_BT),
  )
