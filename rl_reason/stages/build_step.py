"""The parts of an RL step, one function each, as a config describes them.

`rl.train` calls these functions once, before its loop. Each reads its own
sections of the config and returns a function of arrays, which compiles at its
first call.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from rl_reason.algorithms import (
    credit as credit_lib,
    objective as objective_lib,
    process,
    rewards,
    turns,
    variants,
)
from rl_reason.base import functions
from rl_reason.base.structs import Array, Experience
from rl_reason.checkpointing.rl_state import RLState
from rl_reason.checks import facts
from rl_reason.collect import dynamic_sampling, history
from rl_reason.collect.ahead import Ahead
from rl_reason.collect.collector import RolloutCollector
from rl_reason.collect.continuations import ContinuingCollector
from rl_reason.collect.environment_runner import Environments
from rl_reason.collect.episodes import TurnsCollector
from rl_reason.collect.experience import no_rows
from rl_reason.collect.partial_rollouts import PartialRolloutCollector
from rl_reason.collect.reward_runner import Rewards
from rl_reason.data.pipelines import RowSource
from rl_reason.data.prompt_stream import PromptStream
from rl_reason.devices import sharding
from rl_reason.devices.compiled import CompiledOnce
from rl_reason.devices.randomness import host_seed, key
from rl_reason.models import critic, decoder, experts
from rl_reason.monitoring.display import Display
from rl_reason.monitoring.samples import EXTREMES, SampleLog
from rl_reason.rollout import sampling_filters
from rl_reason.stages import optimizers
from rl_reason.stages.optimizers import Optimizer
from rl_reason.tasks import reward_terms
from rl_reason.training import (
    certificate,
    optimizer as optimizer_lib,
    packing,
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
  """The terms of the loss.

  A field of the section `loss` that has the name of a field of `Objective` is
  its value.
  """
  known = {x.name for x in dataclasses.fields(objective_lib.Objective)}
  controlled = c.loss.entropy_controller.name != "fixed"
  return objective_lib.Objective(
      surrogate=functions.bind("surrogate", c.surrogate),
      reduction=functions.bind("reduction", c.reduction),
      kl=c.kl.kind if c.kl.place == "loss" else "none",
      entropy=c.loss.entropy_coef > 0 or controlled,
      on_policy=on_policy,
      covariance=functions.bind("covariance", c.covariance),
      **{name: x for name, x in c.loss.items() if name in known},
  )


def packed_rows(c, mesh: jax.sharding.Mesh) -> int:
  """Packed rows of a micro-batch, over all their shards: data x fsdp."""
  return facts.packed_rows(c, sharding.num_shards(mesh, "rows"))


def planner(c, mesh: jax.sharding.Mesh) -> Callable[..., packing.PackingPlan]:
  """(rollouts, step) -> `packing.plan` of their minibatches."""
  return functools.partial(
      packing.plan,
      packed_rows=packed_rows(c, mesh),
      minibatches=c.updates.minibatches,
      epochs=c.updates.epochs,
      seed=host_seed(c.seed, "epochs"),
  )


def logps(
    c, cfg: decoder.ModelConfig, mesh: jax.sharding.Mesh, display: Display
) -> Callable[..., tuple[Array, Array]]:
  """(params, plan) -> log-probs and entropies of response tokens, [B, T]."""
  program = step.logps_program(cfg, c.rollout.temperature)
  program = CompiledOnce("log-probabilities", program, display)
  return functools.partial(step.forward, mesh, program)


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
  assign = functools.partial(
      credit_lib.assign,
      advantage=functions.bind("advantage", c.advantage),
      groups=c.advantage.groups,
      whiten=c.advantage.whiten,
      gamma=facts.discount(c),
      critic_lam=c.critic.lam,
      fallback=c.critic.fallback,
      value_mixture=functions.bind("value_mixture", c.critic.value_mixture),
      kl=c.kl.kind if facts.estimates_kl(c) and not on_policy else "none",
      kl_in_reward=c.kl.place == "reward",
      top_entropy=c.loss.top_entropy,
      correction=functions.bind("correction", c.correction),
  )
  parts = None
  if "parts" in facts.advantage_inputs(c):
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
  gamma = facts.discount(c)
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
        by_step="turns_BT" in facts.advantage_inputs(c),
        gamma=facts.discount(c),
    )
  fn = functools.partial(
      credit_lib.rewards_and_advantages,
      reward=reward,
      assign=assign,
      parts=parts,
  )
  program = CompiledOnce(title, jax.jit(fn), display)
  return functools.partial(step.on_mesh, mesh, program)


def reward(c) -> Callable[[dict], Array]:
  """`credit.outcome` with the keywords of the config bound.

  Without a verifier the reward is the sum of the reward functions alone; in an
  environment it is the sum over the turns. Potentials are no part of it.
  """
  r, nothing = c.reward, facts.no_verifier(c)
  outcome = functions.bind("outcome", r.outcome)
  if nothing:
    outcome = rewards.correctness
  elif facts.environment(c):
    outcome = turns.total
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
  if facts.by_reward(c):
    return functools.partial(
        dynamic_sampling.rewards_differ, reward=reward, steps=c.rl.steps
    )
  if c.dynamic_sampling.enabled and c.reward.truncated == "bootstrap":
    return dynamic_sampling.in_every_step(
        dynamic_sampling.finished_partly_correct
    )
  return dynamic_sampling.in_every_step(dynamic_sampling.partly_correct)


def history_inputs(
    c, plan_rows: Callable, trainer_logps: Callable
) -> Callable[..., dict[str, Array]]:
  """(history, params) -> inputs of credit; see `history`."""
  return functools.partial(
      history.credit_inputs,
      logps=lambda params, past: trainer_logps(params, plan_rows(past))[0],
      batch=c.rollout.batch,
      ratio_limit=c.advantage.history_ratio,
  )


def controllers(c) -> Callable[..., dict[str, float]] | None:
  """`steer` with the adaptive controllers of the config; None without one."""
  found = dict(
      kl_controller=functions.bind("kl_controller", c.kl.controller),
      entropy_controller=functions.bind(
          "entropy_controller", c.loss.entropy_controller
      ),
  )
  if not any(found.values()):
    return None
  return functools.partial(steer, rows=c.rollout.batch, **found)


def steer(
    coefs: dict[str, float],
    mask_BT: Array,
    entropy_BT: Any,
    credit: dict[str, Any],
    *,
    rows: int,
    kl_controller: Callable[..., float] | None,
    entropy_controller: Callable[..., float] | None,
) -> dict[str, float]:
  """The coefficients of the next step, from the measurements of this step.

  A step without a response whose reward is known moves no coefficient. Without
  a controller (None), its coefficient is fixed.
  """
  out = dict(coefs)
  mask_BT = mask_BT & np.isfinite(credit["rewards_B"])[:, None]
  if not mask_BT.any():
    return out
  if kl_controller is not None:
    measured = float(credit["metrics"]["kl/reference"])
    out["kl"] = kl_controller(coefs["kl"], measured, rows)
  if entropy_controller is not None:
    entropy = float(entropy_BT[mask_BT].mean())
    out["entropy"] = entropy_controller(coefs["entropy"], entropy)
  return out


def collector(
    c,
    purpose: str,
    *,
    row_source: RowSource,
    tok: Any,
    engine: Any,
    rewards: Rewards,
    environments: Environments | None,
    batches: int = 1,
    partial_groups: int = 0,
    curriculum: int = 0,
) -> RolloutCollector:
  """The rollout collector of a stage, on the devices of its engine.

  Args:
    c: the config.
    purpose: names the randomness of prompts and of sampling.
    row_source: the rows by purpose.
    tok: the tokenizer.
    engine: samples the responses.
    rewards: the terms of the reward.
    environments: makes and calls environments; None without.
    batches: batches of responses that a round generates.
    partial_groups: groups that a round may leave unfinished.
    curriculum: first prompts, which come easiest first.
  """
  prompts = PromptStream(
      *row_source.prompts(f"{purpose} prompts", curriculum=curriculum),
      retire_after=c.rollout.retire_after,
      types=c.rollout.types,
  )
  options: dict[str, Any] = dict(
      task=row_source.task,
      tok=tok,
      rewards=rewards,
      key=key(engine.mesh, c.seed, purpose),
      num_responses=batches * c.rollout.batch,
      group_size=c.rollout.group_size,
      group_sizes=functions.bind("group_sizes", c.rollout.group_sizes),
      max_prompt=c.rollout.max_prompt,
      temperature=c.rollout.temperature,
      filters=sampling_filters.of(c.rollout),
      cache=c.rollout.cache,
      record=c.rollout.replay_routing,
      shuffle_seed=host_seed(c.seed, "shuffle") if c.reward.shuffle else None,
  )
  if environments is not None:
    return TurnsCollector(
        prompts,
        engine,
        environments=environments,
        environment_seed=host_seed(c.seed, f"environments of {purpose}"),
        **options,
    )
  if facts.continues(c):
    shards = sharding.num_shards(engine.mesh, "batch")
    count, slots = c.advantage.continuations, c.rollout.slots or c.rollout.batch
    return ContinuingCollector(
        prompts,
        engine,
        continuations=count,
        prefixes=max(slots // shards // count, 1) * shards,
        reward=reward(c),
        steps=c.rl.steps,
        **options,
    )
  if not partial_groups:
    return RolloutCollector(prompts, engine, **options)
  return PartialRolloutCollector(
      prompts,
      engine,
      unfinished=empty_rows(c, partial_groups * c.rollout.group_size),
      max_tokens=c.rollout.max_tokens,
      across_steps=c.rollout.partial_across_steps,
      num_shards=sharding.num_shards(engine.mesh, "batch"),
      **options,
  )


def empty_rows(c, rows: int) -> Experience:
  """`no_rows` in the shapes of a config."""
  record = None
  if c.rollout.replay_routing:
    shape = rows, c.rollout.max_prompt + c.rollout.max_tokens
    record = experts.no_record(c.model, shape)
  return no_rows(
      rows,
      c.rollout.max_prompt,
      c.rollout.max_tokens,
      len(terms(c)),
      turns=bool(facts.environment(c)),
      steps=c.reward.process != "none",
      record=record,
  )


def sample_ahead(
    c,
    collect: Callable[..., tuple],
    *,
    state: RLState,
    samples: SampleLog,
    cfg: decoder.ModelConfig,
    mesh: jax.sharding.Mesh,
    display: Display,
) -> Ahead:
  """`collect` ahead of learning, on the mesh that samples; see `Ahead`."""
  return Ahead(
      collect,
      state.collector,
      samples,
      staleness=c.rl.staleness,
      steps=c.rl.steps,
      sampler_logps=c.rl.old_logps == "sampler",
      mesh=mesh,
      empty=no_batches(c),
      replay=certificate.replayer(cfg, mesh, c.rollout.temperature, display),
  )


def no_batches(c) -> tuple[tuple[Experience, Experience], ...]:
  """Padding in the shapes of S batches in flight, and of their extreme groups.

  An extreme group may be as large as a whole round if groups are unequal.
  """
  group = c.rollout.group_size
  if c.rollout.group_sizes.name != "equal":
    group = c.dynamic_sampling.batches * c.rollout.batch
  rows = empty_rows(c, c.rollout.batch)
  extremes = empty_rows(c, len(EXTREMES) * group)
  return ((rows, extremes),) * c.rl.staleness
