"""The bandit of `bench.clip_law`: clip-higher on a softmax over a few actions.

Action 0 is right and begins with probability p0; all others are wrong. A prompt
is a state: the logits of a state are shared logits and its own ones, and each
rollout has new prompts. Groups have a mixture of right and wrong samples, as
dynamic sampling leaves them. Advantage, surrogate, reduction and optimizer are
the functions of the package. The probability is exact, in float64.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from rl_reason.algorithms import advantages, reductions, surrogates
from rl_reason.training import optimizer

FREE = 1e9  # a clip_high that no ratio reaches


@dataclasses.dataclass(frozen=True)
class Bandit:
  """The static part of an experiment.

  Attributes:
    rollouts: R.
    minibatches: of whole groups; optimizer steps of an epoch.
    epochs: passes over the samples of a rollout.
    optimizer: 'sgd' or 'adamw'.
    b1: Adam's decay of the mean.
    positive: whether only samples with A > 0 enter the loss.
    sharing: inner product of the features of two prompts: what a step on one
      prompt moves the logits of another, relative to its own.
    actions: K.
    groups: with signal, in a batch.
    group_size: G.
  """

  rollouts: int
  minibatches: int = 8
  epochs: int = 1
  optimizer: str = "sgd"
  b1: float = 0.9
  positive: bool = False
  sharing: float = 1.0
  actions: int = 4
  groups: int = 16
  group_size: int = 16

  @property
  def steps(self) -> int:
    """N, the optimizer steps of a rollout."""
    return self.minibatches * self.epochs


def sample_group(b: Bandit, logps_K: jax.Array, key: jax.Array) -> jax.Array:
  """Actions [G] of a group that is neither all right nor all wrong."""
  count_key, wrong_key = jax.random.split(key)
  log_p, g = logps_K[0], b.group_size
  count_G = jnp.arange(1, g)  # of right samples
  log_binomial_G = (
      jax.lax.lgamma(g + 1.0)
      - jax.lax.lgamma(count_G + 1.0)
      - jax.lax.lgamma(g - count_G + 1.0)
  )
  log_wrong = jnp.log1p(-jnp.exp(log_p))
  chances_G = log_binomial_G + count_G * log_p + (g - count_G) * log_wrong
  right = 1 + jax.random.categorical(count_key, chances_G)
  wrong_G = 1 + jax.random.categorical(wrong_key, logps_K[1:], shape=(g,))
  return jnp.where(jnp.arange(g) < right, 0, wrong_G)


def curve(b: Bandit, clip_high, p0, lr, key: jax.Array) -> dict[str, jax.Array]:
  """Trains the bandit.

  Args:
    b: static.
    clip_high: e.
    p0: probability of the right action before training.
    lr: learning rate.
    key: of the samples.

  Returns:
    log_p [R + 1]: log-prob of the right action on new prompts, before each
    rollout and after the last; ratio [R, N]: log-ratio of the right action
    after each optimizer step, mean over the prompts of the batch.

  Raises:
    ValueError: prompts have weights of their own, and the optimizer is Adam,
      whose moments would be those of other prompts.
  """
  if b.sharing < 1 and b.optimizer != "sgd":
    raise ValueError(
        f"optimizer = {b.optimizer!r}: must be 'sgd' where sharing < 1"
    )
  tx = optimizer.make_optimizer(
      name=b.optimizer,
      lr=lr,
      schedule="constant",
      total=1,
      b1=b.b1,
      b2=0.95,
      eps=1e-8,
      weight_decay=0.0,
      clip_norm=0.0,
  )
  wrong = jnp.log((1 - p0) / (b.actions - 1))
  first_K = jnp.full(b.actions, wrong).at[0].set(jnp.log(p0))
  states, size = jnp.arange(b.groups), b.group_size
  groups_B = jnp.repeat(states, size)
  new_prompts = jnp.zeros((b.groups, b.actions))

  def logps(params):
    shared_K, own_SK = params["shared"], params["own"]
    # Features of norm 1, so that `sharing` is their inner product.
    shared_K = jnp.sqrt(b.sharing) * shared_K
    own_SK = jnp.sqrt(1 - b.sharing) * own_SK
    return jax.nn.log_softmax(first_K + shared_K + own_SK)

  def loss(params, actions_B, groups_B, old_B, advantages_B):
    new_B = logps(params)[groups_B, actions_B]
    mask_BT = jnp.ones((len(new_B), 1))
    columns = [x[:, None] for x in (new_B, old_B, advantages_B)]
    loss_BT, _ = surrogates.ppo(*columns, mask_BT, clip_high=clip_high)
    return jnp.sum(reductions.token_mean(mask_BT, groups_B) * loss_BT)

  def rollout(carry, key):
    params, moments = carry
    params = params | dict(own=new_prompts)
    old_SK = logps(params)
    sample_key, order_key = jax.random.split(key)
    sample = functools.partial(sample_group, b)
    actions_SG = jax.vmap(sample)(
        old_SK, jax.random.split(sample_key, b.groups)
    )
    rewards_B = jnp.where(actions_SG.reshape(-1) == 0, 1.0, -1.0)
    advantages_B = advantages.group_norm(rewards_B, groups_B)
    if b.positive:
      advantages_B = jnp.maximum(advantages_B, 0)
    old_B = old_SK[groups_B, actions_SG.reshape(-1)]
    order_ES = jnp.stack(
        [
            states if epoch == 0 else jax.random.permutation(k, states)
            for epoch, k in enumerate(jax.random.split(order_key, b.epochs))
        ]
    )

    def step(carry, which):
      params, moments = carry
      rows = (which[:, None] * size + jnp.arange(size)).reshape(-1)
      arrays = actions_SG.reshape(-1), groups_B, old_B, advantages_B
      grads = jax.grad(loss)(params, *(x[rows] for x in arrays))
      changes, moments = tx.update(grads, moments, params)
      params = jax.tree.map(jnp.add, params, changes)
      return (params, moments), jnp.mean(logps(params)[:, 0] - old_SK[:, 0])

    minibatches = order_ES.reshape(b.steps, -1)
    carry, ratio_N = jax.lax.scan(step, (params, moments), minibatches)
    fresh = logps(carry[0] | dict(own=new_prompts))[0, 0]
    return carry, (fresh, ratio_N)

  params = dict(shared=jnp.zeros(b.actions), own=new_prompts)
  keys = jax.random.split(key, b.rollouts)
  _, (log_p_R, ratio_RN) = jax.lax.scan(
      rollout, (params, tx.init(params)), keys
  )
  log_p = jnp.concatenate([jnp.log(jnp.asarray(p0))[None], log_p_R])
  return dict(log_p=log_p, ratio=ratio_RN)


def curves(b: Bandit, cells: np.ndarray, seeds: range) -> dict[str, np.ndarray]:
  """`curve` of many cells and seeds in one program.

  Args:
    b: static.
    cells: [C, 3] of clip_high, p0 and learning rate.
    seeds: of the samples.

  Returns:
    the results of `curve` with leading axes [C, seeds].
  """
  with jax.enable_x64(True):
    keys = jax.vmap(jax.random.key)(jnp.array(seeds))
    one = functools.partial(curve, b)
    of_cell = jax.vmap(one, (None, None, None, 0))
    of_all = jax.jit(jax.vmap(of_cell, (0, 0, 0, None)))
    cells = np.asarray(cells, np.float64)
    return jax.tree.map(np.asarray, of_all(*cells.T, keys))
