"""The state of RL at step 0, and the shapes that a restore asks for."""

import jax
import jax.numpy as jnp

from rl_reason.base import feature
from rl_reason.base.structs import Tree
from rl_reason.checkpointing.rl_state import RLState, named
from rl_reason.checks import config_facts
from rl_reason.collect.collector import RolloutCollector
from rl_reason.devices import sharding
from rl_reason.models import critic
from rl_reason.monitoring import resources
from rl_reason.stages import optimizers
from rl_reason.stages.model import Model
from rl_reason.stages.optimizers import Optimizer
from rl_reason.training.optimizer import abstract_state, new_state


def initial_state(
    c,
    first: Tree,
    critic_params: Tree | None,
    counters: dict[str, float] | None,
    *,
    parts: feature.Part,
    mesh: jax.sharding.Mesh,
    collector: RolloutCollector,
    policy_optimizer: Optimizer,
    critic_optimizer: Optimizer | None,
) -> RLState:
  """The state of step 0.

  `first` are the learned parameters of the policy; `counters` are the cost of
  value pretraining; `parts` are of the features. Without a critic,
  `critic_params` and `critic_optimizer` are None.
  """
  # Parameters are copied: updates donate their state, and the initial ones are
  # still read, as the reference of a KL or by a mixture of values.
  policy = new_state(copied(first), *policy_optimizer)
  critic_state = None
  if critic_optimizer is not None:
    critic_state = new_state(copied(critic_params), *critic_optimizer)
  return RLState(
      policy=policy,
      critic=critic_state,
      collector=collector,
      parts=parts,
      coefs=dict(kl=c.kl.coef, entropy=c.loss.entropy_coef),
      counters=dict(counters or resources.no_counters()),
      mesh=mesh,
  )


@jax.jit
def copied(params: Tree) -> Tree:
  """A copy of all arrays, by one program instead of one for each shape."""
  return jax.tree.map(jnp.copy, params)


def abstract_arrays(c, model: Model) -> Tree:
  """Shapes and shardings of all arrays in a checkpoint of RL."""
  cfg, critic_cfg, mesh = model
  policy = abstract_state(
      optimizers.learned(c).table(cfg), *optimizers.of_policy(c, cfg, mesh)
  )
  critic_state = None
  if config_facts.has_critic(c):
    critic_state = abstract_state(
        critic.table(critic_cfg),
        *optimizers.of_critic(c, critic_cfg, mesh, c.rl.steps),
    )
  on_host: dict[str, Tree] = {}
  for one in feature.used(c):
    on_host |= one.arrays(c)
  return dict(
      policy=policy, critic=critic_state, **sharding.put(mesh, named(on_host))
  )
