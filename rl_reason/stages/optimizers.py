"""What learns in each stage, and the optimizer of it."""

import dataclasses
from typing import Any

import jax
import optax

from rl_reason.algorithms.objective import Objective
from rl_reason.base import feature
from rl_reason.base.structs import TrainState
from rl_reason.models import critic, decoder
from rl_reason.training import learned_parameters, optimizer

Optimizer = tuple[optax.GradientTransformation, TrainState]


def of_policy(
    c, cfg: decoder.ModelConfig, mesh: jax.sharding.Mesh
) -> Optimizer:
  """The optimizer of RL, and the shardings of the policy's training state."""
  tx = of_stage(c.optimizer, freeze=c.optimizer.freeze, **policy_rate(c))
  return tx, optimizer.state_shardings(learned(c).table(cfg), tx, mesh)


def update_settings(
    c, objective: Objective, cfg: decoder.ModelConfig, optimizer: Optimizer
) -> dict[str, Any]:
  """The static arguments of `step.rl_update`."""
  tx, _ = optimizer
  cfg = dataclasses.replace(cfg, router_aux=c.loss.router_aux)
  found = dict(
      cfg=cfg,
      tx=tx,
      temperature=c.rollout.temperature,
      objective=objective,
      read=learned(c).read,
  )
  for one in feature.used(c):
    found |= one.update(c, cfg)
  return found


def of_critic(
    c, critic_cfg: critic.CriticConfig, mesh: jax.sharding.Mesh, steps: int
) -> Optimizer:
  """The critic's optimizer over `steps` rollouts, and its state's shardings."""
  tx = of_stage(c.optimizer, **critic_rate(c, steps))
  return tx, optimizer.state_shardings(critic.table(critic_cfg), tx, mesh)


def of_stage(o, **rate: Any) -> optax.GradientTransformation:
  """The optimizer of a stage.

  Args:
    o: config.optimizer, which all stages share.
    **rate: keywords of `make_optimizer` that differ between stages: lr,
      schedule, total, warmup and freeze.
  """
  shared = "name b1 b2 eps weight_decay clip_norm offload".split()
  return optimizer.make_optimizer(**{name: o[name] for name in shared}, **rate)


def sft_rate(part) -> dict[str, Any]:
  """The learning rate of SFT or the habits: keywords of `make_optimizer`."""
  warmup = part.get("warmup_steps", 0)
  return dict(
      lr=part.lr, schedule=part.schedule, warmup=warmup, total=part.steps
  )


def policy_rate(c) -> dict[str, Any]:
  """The learning rate of RL: keywords of `make_optimizer`."""
  return _rate(c.updates, c.optimizer, c.optimizer.warmup_steps, c.rl.steps)


def critic_rate(c, steps: int) -> dict[str, Any]:
  """The critic's learning rate over `steps` rollouts: the same keywords."""
  warmup = min(c.critic.warmup_steps, max(steps - 1, 0))
  return _rate(c.updates, c.critic, warmup, steps)


def _rate(updates, part, warmup: int, steps: int) -> dict[str, Any]:
  per_step = updates.minibatches * updates.epochs
  total = dict(warmup=warmup * per_step, total=steps * per_step)
  return dict(lr=part.lr, schedule=part.schedule) | total


def learned(c) -> learned_parameters.Learned:
  """What RL learns: all parameters, or what a feature learns instead."""
  found = (one.learns(c) for one in feature.used(c))
  return next((x for x in found if x is not None), learned_parameters.ALL)
