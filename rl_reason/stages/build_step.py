"""The parts of an RL step, one function each, as a config describes them.

`rl.train` calls these functions once, before its loop. Each reads its own
sections of the config and returns a function of arrays, which compiles at its
first call.
"""

import functools
from collections.abc import Callable

import jax
import numpy as np

from rl_reason.algorithms import (
    credit as credit_lib,
    loss_terms,
    objective as objective_lib,
    process,
    rewards,
    variants,
)
from rl_reason.base import feature, functions
from rl_reason.base.structs import Array, Experience
from rl_reason.checks import config_facts, own_functions
from rl_reason.collect import dynamic_sampling
from rl_reason.devices import sharding
from rl_reason.devices.compiled import CompiledOnce
from rl_reason.devices.randomness import host_seed
from rl_reason.models import critic, decoder, squared_probabilities
from rl_reason.monitoring.display import Display
from rl_reason.stages import finished_baseline, optimizers
from rl_reason.stages.model import shares_prompts
from rl_reason.stages.optimizers import Optimizer
from rl_reason.tasks import reward_terms
from rl_reason.training import (
    optimizer as optimizer_lib,
    packing,
    shared_prompts,
    step,
)


def policy_update(
    c,
    objective: objective_lib.Objective,
    cfg: decoder.ModelConfig,
    optimizer: Optimizer,
    display: Display,
) -> Callable:
  """`step.rl_update` on the mesh; the state of the policy is donated."""
  _, shardings = optimizer
  settings = optimizers.update_settings(c, objective, cfg, optimizer)
  update = jax.jit(
      functools.partial(step.rl_update, **settings),
      donate_argnums=0,
      out_shardings=(shardings, None),
  )
  program = CompiledOnce("update of the policy", update, display)
  return optimizer_lib.with_rate(program, **optimizers.policy_rate(c))


def critic_update(
    c, cfg: critic.CriticConfig, optimizer: Optimizer, display: Display
) -> CompiledOnce:
  """`step.critic_update` on the mesh; the critic's state is donated."""
  tx, shardings = optimizer
  update = jax.jit(
      functools.partial(step.critic_update, cfg=cfg, tx=tx, clip=c.critic.clip),
      donate_argnums=0,
      out_shardings=(shardings, None),
  )
  return CompiledOnce("update of the critic", update, display)


def objective(c, *, on_policy: bool) -> objective_lib.Objective:
  """The surrogate, its loss aggregation and the terms of the loss."""
  estimated = config_facts.estimates_kl(c)
  moved = {x for one in feature.used(c) for x in one.coefs(c)}
  terms = loss_terms.terms(
      kl=c.kl.kind if estimated and c.kl.place == "loss" else "none",
      entropy=c.loss.entropy_coef > 0 or "entropy" in moved,
      positive_nll=c.loss.positive_nll,
      on_policy=on_policy,
  )
  reduction = functions.bind("reduction", c.reduction)
  for one in feature.used(c):
    reduction = one.reduction(c, reduction)
  terms += tuple(x for one in feature.used(c) for x in one.terms(c))
  terms += tuple(map(_own_term, own_functions.terms(c)))
  return objective_lib.Objective(
      surrogate=functions.bind("surrogate", c.surrogate),
      reduction=reduction,
      terms=terms,
      on_policy=on_policy,
  )


def _own_term(x: own_functions.Own) -> objective_lib.Term:
  """A term of the user; one whose coefficient is 0 throughout is a metric."""
  coef: str | float = x.label if x.first or x.last else 0
  return objective_lib.Term(f"loss/{x.label}/mean", x.function, coef, x.weights)


def coefficients(c) -> Callable[[dict[str, float], float], dict[str, Array]]:
  """(coefs of the state, fraction of RL that is done) -> those of the terms."""
  own = own_functions.terms(c)

  def of_step(coefs, progress):
    found = {name: coefs[name] for name in ("kl", "entropy")}
    found |= {x.label: x.coef(progress) for x in own}
    return {name: np.float32(x) for name, x in found.items()}

  return of_step


def packed_rows(c, mesh: jax.sharding.Mesh) -> int:
  """Packed rows of a micro-batch, over all their shards: data x fsdp."""
  return config_facts.packed_rows(c, sharding.num_shards(mesh, "rows"))


def planner(c, mesh: jax.sharding.Mesh) -> Callable[..., packing.PackingPlan]:
  """(rollouts, step) -> `packing.plan` of their minibatches."""
  packer = packing.pack
  if shares_prompts(c):
    packer = functools.partial(
        shared_prompts.pack, join=config_facts.packed_rows(c)
    )
  return functools.partial(
      packing.plan,
      packer=packer,
      packed_rows=packed_rows(c, mesh),
      minibatches=c.updates.minibatches,
      epochs=c.updates.epochs,
      seed=host_seed(c.seed, "epochs"),
  )


def logps(
    c, cfg: decoder.ModelConfig, mesh: jax.sharding.Mesh, display: Display
) -> Callable[..., tuple[Array, ...]]:
  """(params, plan) -> log-probs, entropies, squares_BT or None, [B, T] each."""
  compare = (
      squared_probabilities.chunked if config_facts.reads_squares(c) else None
  )
  program = step.logps_program(cfg, c.rollout.temperature, compare)
  program = CompiledOnce("log-probabilities", program, display)
  return lambda *args: (*step.forward(mesh, program, *args), None)[:3]


def values(
    cfg: critic.CriticConfig, mesh: jax.sharding.Mesh, display: Display
) -> Callable[..., Array]:
  """(parameters of the critic, plan) -> values of response tokens, [B, T]."""
  program = CompiledOnce("values", values_program(cfg), display)
  return functools.partial(step.forward, mesh, program)


def values_program(cfg: critic.CriticConfig) -> Callable:
  """jit: (params, Packed of minibatches) -> values [M, B, T]."""
  return step.map_micro_batches(
      lambda params, packed: critic.values(params, cfg, packed)[0]
  )


def credit(
    c,
    reward: Callable[[dict], Array],
    mesh: jax.sharding.Mesh,
    display: Display,
    *,
    on_policy: bool,
) -> Callable[[dict], dict]:
  """Arrays of `credit_inputs` -> rewards, advantages, returns and metrics."""
  advantage = functions.bind("advantage", c.advantage)
  if shared := config_facts.shares_advantage(c):
    with_shares: dict[str, Callable] = {
        "deviation": variants.with_shares,
        "linear": variants.with_linear_shares,
    }
    advantage = functools.partial(with_shares[shared], advantage=advantage)
  for one in feature.used(c):
    advantage = one.advantage(c, advantage)
  found = [one.adjustment(c) for one in feature.used(c)]
  assign = functools.partial(
      credit_lib.assign,
      advantage=advantage,
      groups=c.advantage.groups,
      whiten=c.advantage.whiten,
      gamma=config_facts.discount(c),
      critic_lam=c.critic.lam,
      kl=c.kl.kind
      if config_facts.estimates_kl(c) and not on_policy
      else "none",
      kl_in_reward=c.kl.place == "reward",
      adjustments=[x for x in found if x is not None],
  )
  parts = None
  if shared or "parts" in config_facts.advantage_inputs(c):
    weights = {x.label: (x.first, x.last) for x in terms(c)}
    parts = functools.partial(
        variants.reward_parts, reward=reward, weights=weights
    )
  title = "rewards and advantages"
  return _reward_and(c, assign, reward, mesh, title, display, parts)


def returns(
    c,
    reward: Callable[[dict], Array],
    mesh: jax.sharding.Mesh,
    display: Display,
) -> Callable[[dict], dict]:
  """Arrays of `credit_inputs` -> rewards and Monte-Carlo returns."""
  gamma = config_facts.discount(c)
  assign = functools.partial(credit_lib.monte_carlo, gamma=gamma)
  return _reward_and(c, assign, reward, mesh, "rewards and returns", display)


def _reward_and(
    c,
    assign: Callable,
    reward: Callable,
    mesh,
    title: str,
    display: Display,
    parts: Callable | None = None,
) -> Callable[[dict], dict]:
  if (kind := c.reward.process) != "none":
    reward = functools.partial(process.outcome, outcome=reward)
    assign = functools.partial(
        process.assign,
        assign=assign,
        term_weights=term_weights(c),
        potentials=kind == "potentials",
        by_step="turns_BT" in config_facts.advantage_inputs(c),
        gamma=config_facts.discount(c),
    )
  fn = functools.partial(
      credit_lib.rewards_and_advantages,
      reward=reward,
      assign=assign,
      parts=parts,
      counts=finished_baseline.counts(c),
  )
  program = CompiledOnce(title, jax.jit(fn), display)
  return functools.partial(step.on_mesh, mesh, program)


def reward(c) -> Callable[[dict], Array]:
  """`credit.outcome` with the keywords of the config bound.

  Without a verifier the reward is the sum of the reward functions alone, unless
  a feature judges responses. Potentials are no part of it.
  """
  r, nothing = c.reward, config_facts.no_verifier(c)
  outcome = functions.bind("outcome", r.outcome)
  if nothing:
    outcome = rewards.correctness
  if player := feature.first(c, "player"):
    outcome = player.outcome
  found = functools.partial(
      credit_lib.outcome,
      max_tokens=c.rollout.max_tokens,
      outcome=outcome,
      correct=0.0 if nothing else r.correct,
      incorrect=0.0 if nothing else r.incorrect,
      term_weights=term_weights(c),
      overlong_buffer=r.overlong_buffer,
      overlong_coef=r.overlong_coef,
      length_penalty=functions.bind("length_penalty", r.length_penalty),
      bootstrap=r.truncated == "bootstrap",
  )
  if r.process == "potentials":
    return functools.partial(process.outcome, outcome=found)
  return found


def term_weights(c) -> tuple[tuple[float, float], ...]:
  """The weight of each term of the reward at the first and the last step."""
  return tuple((x.first, x.last) for x in terms(c))


def terms(c) -> tuple[reward_terms.Term, ...]:
  """The functions and models of the reward, with their weights."""
  return reward_terms.terms(c.reward.functions)


def signal(
    c, reward: Callable[[dict], Array]
) -> Callable[[int], Callable[[Experience], Array]]:
  """Step -> the `signal` of `dynamic_sampling.fill_batch`."""
  if config_facts.by_reward(c):
    return functools.partial(
        dynamic_sampling.rewards_differ,
        reward=finished_baseline.rewards(c, reward),
        steps=c.rl.steps,
    )
  without_truncated = finished_baseline.applies(c)
  without_truncated |= c.reward.truncated == "bootstrap"
  if c.dynamic_sampling.enabled and without_truncated:
    return dynamic_sampling.in_every_step(
        dynamic_sampling.finished_partly_correct
    )
  return dynamic_sampling.in_every_step(dynamic_sampling.partly_correct)
