"""Metrics of an update from the metrics of its minibatches."""

import jax.numpy as jnp

from rl_reason.base.structs import Array

# Metrics that are means over the tokens of a minibatch.
TOKEN_MEANS = (
    *("entropy", "ppo_kl", "kl_old_new", "kl/reference"),
    *("pg_clipfrac", "pg_clipfrac_lower", "vf_loss", "vf_targets_clipped"),
    *("rollout/sampler_trainer_kl", "rollout/logp_gap_mean"),
)


def summarize(by_M: dict[str, Array]) -> dict[str, Array]:
  """Metrics of an RL step from the metrics of its minibatches.

  Maxima (`*_max`), minima (`*_min`) and the counts `update_skipped` and
  `updates` cover all minibatches; other metrics are means over the minibatches
  that have tokens and are admitted, `TOKEN_MEANS` over the tokens of these
  minibatches. `updates` counts these, also if they are skipped because
  a gradient is not finite.
  """
  updated_M, tokens_M = by_M["updates"], by_M["tokens"] * by_M["updates"]
  share_M = tokens_M / jnp.maximum(tokens_M.sum(), 1)
  out = {}
  for name, value_M in by_M.items():
    if name == "tokens":
      continue
    if name.endswith("_max"):
      out[name] = value_M.max()
    elif name.endswith("_min"):
      out[name] = value_M.min()
    elif name in ("update_skipped", "updates"):
      out[name] = value_M.sum()
    elif name in TOKEN_MEANS:
      out[name] = jnp.sum(jnp.where(share_M > 0, value_M * share_M, 0))
    else:
      total = jnp.sum(value_M * updated_M)
      out[name] = total / jnp.maximum(updated_M.sum(), 1)
  return out
