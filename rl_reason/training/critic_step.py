"""The critic's update: the value loss on the minibatches of the policy."""

import jax
import jax.numpy as jnp
import optax

from rl_reason.algorithms import reductions, values
from rl_reason.base.structs import Array, Batch, Packed, TrainState
from rl_reason.models import critic
from rl_reason.training.step import accumulate, optimize, summarize


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

  Arguments as in `step.rl_update`, of the critic; of the batch, the values
  before the update and the returns are read. `clip` is that of
  `values.value_loss`; a categorical head has none. Returns the next state and
  metrics: vf_loss (token mean), grad_norm, updates, update_skipped, and of a
  categorical head vf_targets_clipped: the share of targets beyond its support.
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
    b, packed = xs
    mask = b.mask_BT.astype(b.returns_BT.dtype)
    share_BT = reductions.token_mean(mask, b.groups_B)
    grads, metrics = accumulate(loss_fn, state.params, packed, (b, share_BT))
    state, step_metrics = optimize(state, tx, grads, b.mask_BT)
    return state, metrics | step_metrics | dict(updates=jnp.any(b.mask_BT))

  state, by_M = jax.lax.scan(minibatch, state, (batch_M, packed_M))
  return state.replace(step=state.step + 1), summarize(by_M)
