"""The terms of the reward, reward models among them."""

import functools
from typing import Any

import jax

from rl_reason.base import feature
from rl_reason.base.structs import Array, Rollouts
from rl_reason.checks import config_facts
from rl_reason.collect.reward_runner import Model, Rewards
from rl_reason.devices.compiled import CompiledOnce
from rl_reason.models import critic
from rl_reason.monitoring.display import Display
from rl_reason.stages import build_step, trained_parameters
from rl_reason.stages.session import Session
from rl_reason.tasks import reward_terms
from rl_reason.training import packing, step


def rewards(c, session: Session, mesh: jax.sharding.Mesh) -> Rewards:
  """The terms of the reward; loads the reward models, which score on `mesh`.

  Reward models read the tokens of the run's model.
  """
  found = build_step.terms(c)
  scored = session.model._replace(mesh=mesh)
  tok, display = session.tok, session.output.display
  models = {
      name: reward_model(c, name, scored, tok, display)
      for x in found
      for name in reward_terms.models_of(x.name)
  }
  scales = {
      x.name: feature.first(c, "scale", x) for x in found if x.name in models
  }
  return Rewards(
      found,
      session.reward_runner,
      models,
      by_step=c.reward.process != "none",
      scales={name: x for name, x in scales.items() if x is not None},
      by_verdict=config_facts.by_verdict(c),
  )


def reward_model(c, name: str, model, tok: Any, display: Display) -> Model:
  """A reward model, as a term of the reward calls it."""
  mesh = model.mesh
  params, cfg = trained_parameters.reward_model(
      c, name, model=model, tok=tok, say=display.say
  )

  @functools.cache
  def programs_of(rows: int):
    """The plan and the program for this number of responses."""
    program = scores_program(cfg)
    title = "scores of the reward model"
    plan = build_step.planner(c, mesh)
    if rows != c.rollout.batch:  # an evaluation has batches of its own
      plan = functools.partial(
          packing.plan,
          packed_rows=build_step.packed_rows(c, mesh),
          minibatches=1,
      )
    return plan, CompiledOnce(title, program, display)

  def scores(rollouts: Rollouts) -> Array:
    plan, program = programs_of(len(rollouts.ids_B))
    return step.forward(mesh, program, params, plan(rollouts))

  return scores


def scores_program(cfg: critic.CriticConfig):
  """Returns jit: (params, Packed of minibatches) -> scores [M, B]."""
  return step.map_micro_batches(
      lambda params, packed: critic.scores(params, cfg, packed)
  )
