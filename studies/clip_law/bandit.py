"""The bandit of the study: clip-higher on a softmax over a few actions.

Action 0 is right and begins with probability p0; all others are wrong. A prompt
is a state: the logits of a state are shared logits and its own ones, and each
rollout has new prompts. Groups have a mixture of right and wrong samples, as
dynamic sampling leaves them. Advantage, surrogate, reduction and optimizer are
the functions of the package. The probability is exact, in float64.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rl_reason.algorithms import advantages, reductions, surrogates
from rl_reason.training import optimizer

FREE = 1e9  # a clip_high that no ratio reaches
ACTIONS, GROUPS, GROUP_SIZE = 4, 16, 16  # K, S (groups with signal), G


class Bandit(NamedTuple):
  """An experiment.

  Attributes:
    clip_high: e.
    p0: probability of the right action before training.
    lr: learning rate.
    minibatches: of whole groups; optimizer steps of an epoch.
    epochs: passes over the samples of a rollout.
    b1: Adam's decay of the mean.
    positive: whether only samples with A > 0 enter the loss.
    sharing: inner product of the features of two prompts: what a step on one
      prompt moves the logits of another, relative to its own.
  """

  clip_high: float
  p0: float
  lr: float
  minibatches: int = 8
  epochs: int = 1
  b1: float = 0.9
  positive: bool = False
  sharing: float = 1.0


def sample_group(logps_K: jax.Array, key: jax.Array) -> jax.Array:
  """Actions [G] of a group that is neither all right nor all wrong."""
  count_key, wrong_key = jax.random.split(key)
  log_p, g = logps_K[0], GROUP_SIZE
  count_G = jnp.arange(1, g)  # of right samples
  log_binomial_G = -jax.lax.lgamma(count_G + 1.0) - jax.lax.lgamma(
      g - count_G + 1.0
  )
  log_wrong = jnp.log1p(-jnp.exp(log_p))
  chances_G = log_binomial_G + count_G * log_p + (g - count_G) * log_wrong
  right = 1 + jax.random.categorical(count_key, chances_G)
  wrong_G = 1 + jax.random.categorical(wrong_key, logps_K[1:], shape=(g,))
  return jnp.where(jnp.arange(g) < right, 0, wrong_G)


def curve(
    b: Bandit, key: jax.Array, *, rule: str, steps: int, rollouts: int
) -> dict[str, jax.Array]:
  """Trains a bandit.

  Args:
    b: scalars, which may be traced.
    key: of the samples.
    rule: 'sgd' or 'adamw'.
    steps: N at most; what is beyond minibatches x epochs does nothing.
    rollouts: R.

  Returns:
    log_p [R + 1]: log-prob of the right action on new prompts, before each
    rollout and after the last; ratio [R, N]: log-ratio of the right action
    after each optimizer step, mean over the prompts of the batch.
  """
  tx = optimizer.make_optimizer(
      name=rule,
      lr=b.lr,
      schedule="constant",
      total=1,
      b1=b.b1,
      b2=0.95,
      eps=1e-8,
      weight_decay=0.0,
      clip_norm=0.0,
  )
  wrong = jnp.log((1 - b.p0) / (ACTIONS - 1))
  first_K = jnp.full(ACTIONS, wrong).at[0].set(jnp.log(b.p0))
  states = jnp.arange(GROUPS)
  groups_B = jnp.repeat(states, GROUP_SIZE)
  groups_X = jnp.repeat(states, ACTIONS)  # a row of each action in each group
  new_prompts = jnp.zeros((GROUPS, ACTIONS))

  def logps(params):
    shared_K, own_SK = params["shared"], params["own"]
    # Features of norm 1, so that `sharing` is their inner product.
    shared_K = jnp.sqrt(b.sharing) * shared_K
    own_SK = jnp.sqrt(1 - b.sharing) * own_SK
    return jax.nn.log_softmax(first_K + shared_K + own_SK)

  def loss(params, counts_X, old_X, advantages_X):
    # Equal rows of a group are one row, with their number as its weight.
    columns = [
        x[:, None]
        for x in (logps(params).reshape(-1), old_X, advantages_X, counts_X)
    ]
    loss_XT, _ = surrogates.ppo(*columns, clip_high=b.clip_high)
    return jnp.sum(reductions.token_mean(columns[-1], groups_X) * loss_XT)

  def rollout(carry, key):
    params, moments = carry
    params = params | dict(own=new_prompts)
    old_SK = logps(params)
    sample_key, order_key = jax.random.split(key)
    keys = jax.random.split(sample_key, GROUPS)
    actions_SG = jax.vmap(sample_group)(old_SK, keys)
    rewards_B = jnp.where(actions_SG.reshape(-1) == 0, 1.0, -1.0)
    advantages_B = advantages.group_norm(rewards_B, groups_B)
    if_positive_B = jnp.maximum(advantages_B, 0)
    advantages_B = jnp.where(b.positive, if_positive_B, advantages_B)
    is_action_SGK = actions_SG[..., None] == jnp.arange(ACTIONS)
    counts_SK = is_action_SGK.sum(1)
    total_SK = (is_action_SGK * advantages_B.reshape(GROUPS, -1, 1)).sum(1)
    advantages_SK = total_SK / jnp.maximum(counts_SK, 1)

    def step(carry, number):
      # The first epoch keeps the order of the groups; later ones shuffle them.
      epoch, minibatch = number // b.minibatches, number % b.minibatches
      epoch_key = jax.random.fold_in(order_key, epoch)
      uniform_S = jax.random.uniform(epoch_key, GROUPS)
      rank_S = jnp.where(epoch == 0, states, jnp.argsort(uniform_S))
      inside_S = rank_S * b.minibatches // GROUPS == minibatch
      grads = jax.grad(loss)(
          carry[0],
          (counts_SK * inside_S[:, None]).reshape(-1).astype(old_SK.dtype),
          old_SK.reshape(-1),
          advantages_SK.reshape(-1),
      )
      changes, moments = tx.update(grads, carry[1], carry[0])
      new = jax.tree.map(jnp.add, carry[0], changes), moments
      active = number < b.minibatches * b.epochs
      carry = jax.tree.map(lambda x, y: jnp.where(active, x, y), new, carry)
      return carry, jnp.mean(logps(carry[0])[:, 0] - old_SK[:, 0])

    carry, ratio_N = jax.lax.scan(step, (params, moments), jnp.arange(steps))
    fresh = logps(carry[0] | dict(own=new_prompts))[0, 0]
    return carry, (fresh, ratio_N)

  params = dict(shared=jnp.zeros(ACTIONS), own=new_prompts)
  first = params, tx.init(params)
  keys = jax.random.split(key, rollouts)
  _, (log_p_R, ratio_RN) = jax.lax.scan(rollout, first, keys)
  log_p = jnp.concatenate([jnp.log(jnp.asarray(b.p0))[None], log_p_R])
  return dict(log_p=log_p, ratio=ratio_RN)


def curves(
    bandits: list[Bandit], seeds: range, *, rule: str, rollouts: int
) -> dict[str, np.ndarray]:
  """`curve` of many bandits and seeds in one program.

  Returns:
    the results of `curve` with leading axes [bandits, seeds].

  Raises:
    ValueError: minibatches do not divide the groups; or prompts have weights
      of their own, and the optimizer is Adam, whose moments would be those of
      other prompts.
  """
  for b in bandits:
    if GROUPS % b.minibatches:
      raise ValueError(
          f"minibatches = {b.minibatches}: must divide {GROUPS} groups"
      )
    if b.sharing < 1 and rule != "sgd":
      raise ValueError(f"rule = {rule!r}: must be 'sgd' where sharing < 1")
  steps = max(b.minibatches * b.epochs for b in bandits)
  one = functools.partial(curve, rule=rule, steps=steps, rollouts=rollouts)
  with jax.enable_x64(True):
    keys = jax.vmap(jax.random.key)(jnp.array(seeds))
    many = Bandit(*(np.array(x) for x in zip(*bandits, strict=True)))
    of_seeds = jax.vmap(one, (None, 0))
    found = jax.jit(jax.vmap(of_seeds, (0, None)))(many, keys)
    return jax.tree.map(np.asarray, found)
