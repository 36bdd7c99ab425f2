"""Reinforcement learning: collect, log-probs, credit, update, log, evaluate.

The algorithm is the config: which advantage, surrogate and reduction, whether
batches are refilled, whether there is a critic. `train` is the same loop for
all of them. Where to find the techniques of DAPO and VAPO:

  dynamic sampling             dynamic_sampling.fill_batch
  overlong punishment          rewards.soft_overlong, in credit.outcome
  group-relative advantage     advantages.group_norm, in credit.assign
  clip-higher, dual clip       surrogates.ppo, in objective.loss
  token-level loss             reductions.token_mean, in objective.token_weights
  overlong filtering           step.train_batch
  value pretraining            value.run, before this loop
  decoupled GAE                credit.targets: the critic's lambda is its own
  length-adaptive GAE          advantages.gae_length_adaptive, in credit.assign
  positive-example LM loss     loss_terms.terms, in objective.loss
  group sampling               rollout.group_size, in collect
"""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from rl_reason.base import config as config_lib, feature
from rl_reason.base.structs import Tree
from rl_reason.checks import config_facts
from rl_reason.collect import dynamic_sampling
from rl_reason.collect.experience import credit_inputs, with_old_logps
from rl_reason.devices import sharding
from rl_reason.monitoring.health import HealthMonitor
from rl_reason.monitoring.step_logger import StepLogger
from rl_reason.stages import (
    build_step,
    collectors,
    interim,
    observers,
    optimizers,
    scorer,
)
from rl_reason.stages.initial_state import initial_state
from rl_reason.stages.run_output import open_stage
from rl_reason.stages.session import Session
from rl_reason.training import optimizer as optimizer_lib
from rl_reason.training.step import minibatches, train_batch


def train(
    c,
    session: Session,
    sft_params: Tree,
    critic_params: Tree | None = None,
    counters: dict[str, float] | None = None,
    *,
    replay: Any = None,
    update: Callable | None = None,
) -> Tree:
  """Runs or resumes RL.

  Args:
    c: the checked config.
    session: what the run has opened.
    sft_params: initial policy, and the reference policy of a KL.
    critic_params: initial critic, if the advantage needs values.
    counters: cost of value pretraining; None: nothing.
    replay: ends the loop at a step of a run, and sees it; see `lab.replay`.
    update: `build_step.policy_update` of the config; None: it is made here.

  Returns:
    the parameters after config.rl.steps steps.

  Raises:
    dynamic_sampling.Shortfall: the data cannot fill a batch.
    RunError: too many successive steps made no update; everything is saved.
    Stopped: SIGTERM; everything is saved.
  """
  # The config is read here and in `build_step`: one function for each part.
  output, (cfg, critic_cfg, mesh) = session.output, session.model
  display = output.display
  on_policy, has_critic = config_facts.on_policy(c), config_facts.has_critic(c)
  reward = build_step.reward(c)
  signal = build_step.signal(c, reward)
  trainer_logps = build_step.logps(c, cfg, mesh, display)
  critic_values = build_step.values(critic_cfg, mesh, display)
  assign_credit = build_step.credit(
      c, reward, mesh, display, on_policy=on_policy
  )
  objective = build_step.objective(c, on_policy=on_policy)
  coefs_of_step = build_step.coefficients(c)
  optimizer = optimizers.of_policy(c, cfg, mesh)
  # What the model reads: learned parameters, beside frozen ones of a feature.
  learned = optimizers.learned(c)
  frozen = learned.frozen(sft_params, cfg.dtype)
  policy = functools.partial(learned.read, frozen=frozen)
  first = learned.first(sft_params, cfg, mesh)
  if update is None:
    update = build_step.policy_update(c, objective, cfg, optimizer, display)
  critic_optimizer = None
  if has_critic:
    critic_optimizer = optimizers.of_critic(c, critic_cfg, mesh, c.rl.steps)
    update_critic = optimizer_lib.with_rate(
        build_step.critic_update(c, critic_cfg, critic_optimizer, display),
        **optimizers.critic_rate(c, c.rl.steps),
    )
  metrics_of_step = observers.step_metrics(c, cfg, display, on_policy=on_policy)
  # The collector lives on the devices that sample.
  rollout_engine = session.rollout_engine
  with jax.set_mesh(rollout_engine.mesh):
    collector = collectors.collector(
        c,
        session,
        "rollout",
        engine=rollout_engine,
        rewards=scorer.rewards(c, session, rollout_engine.mesh),
        batches=c.dynamic_sampling.batches,
        curriculum=c.data.curriculum,
        older=config_facts.older_rows(c),
    )
  plan_rows = build_step.planner(c, mesh)
  # What the config has beyond the six algorithms: see base/feature.py.
  loop = feature.Loop(
      signal,
      lambda params, rollouts: trainer_logps(params, plan_rows(rollouts))[0],
      collector,
      session,
      frozen,
      functools.partial(critic_values, critic_params),
      policy(first),
  )
  state = initial_state(
      c,
      first,
      critic_params,
      counters,
      parts=feature.start(c, loop),
      mesh=mesh,
      collector=collector,
      policy_optimizer=optimizer,
      critic_optimizer=critic_optimizer,
  )
  certificate = state.certificate = observers.certify(c, session, frozen)
  state.parts.begin(state)
  plan_rows = state.parts.planning(plan_rows)
  ref_logps = None
  if config_facts.estimates_kl(c):
    ref_logps = state.parts.reference(trainer_logps) or (
        lambda plan, *_: trainer_logps(policy(first), plan)[0]
    )
  total = c.rl.steps
  batch_options = config_facts.batch_options(c)
  # Keywords of `fill_batch`; the other two fields are read above.
  refill = dict(c.dynamic_sampling, batch=c.rollout.batch)
  refill |= dict(group_size=c.rollout.group_size)
  del refill["batches"], refill["signal"]
  clock = collector.clock
  health = HealthMonitor(config_lib.flat(c), display.say, output.log.lines)
  logger = StepLogger(output.log, display, clock, health, output.workdir)
  samples = observers.sample_log(
      c,
      session,
      collector,
      reward,
      lambda plan: trainer_logps(policy(state.policy.params), plan)[0],
  )
  evaluate = interim.evaluation(c, session)

  def sample_batch(step: int, weights: Tree, on_dispatch: Callable[[], None]):
    """The batch of a step, metrics, and counts."""
    collector.start_step()
    found = dynamic_sampling.fill_batch(
        samples.watch(step, collector.collect, weights, on_dispatch),
        state.parts.older(),
        signal=signal(step),
        **refill,
    )
    found = collector.finish(*found, weights=weights, step=step)
    return *found, collector.counts() | dict(version=step)

  collect = state.parts.collecting(sample_batch, samples)
  keep = {name: c.checkpoint[name] for name in ("keep_last", "keep_best")}
  stage = open_stage(c, output, "rl", **keep)
  if stage.restore(state) and interim.is_complete(state, total, display):
    stage.checkpoints.close()
    return policy(state.policy.params)

  # Evaluate held-out prompts, save the whole state, and stop, when due.
  goes_on = interim.between_steps(c, evaluate, stage, health, logger, clock)
  if replay is not None:
    goes_on = replay.between_steps(stage, logger)
  clock.skip()
  running = stage.running("RL", total, state, logger.flush)
  with contextlib.closing(state.parts), running:
    while goes_on(state, params := policy(state.policy.params)):
      # Collect: sample and grade responses until the batch is full of groups
      # with signal (dynamic sampling). Meanwhile the step before is logged.
      weights = certificate.weights(state.step, params)
      rows, metrics, counts = collect(
          state.step, weights, on_dispatch=logger.flush
      )
      logger.flush()  # not yet, if the engine has not called it
      metrics |= certificate.of_weights(counts, params, weights)
      del weights  # freed before the update
      plan = plan_rows(rows.rollouts, state.step)
      clock.lap("host")

      # Log-probs by the trainer; one on-policy update computes its own.
      logps_BT = entropy_BT = squares_BT = ref_logps_BT = None
      if not on_policy:
        logps_BT, entropy_BT, squares_BT = trainer_logps(params, plan)
      metrics |= certificate.of_logps(rows, logps_BT)
      rows = with_old_logps(rows, logps_BT)
      metrics |= state.parts.exchange(rows, state.step)
      if ref_logps is not None:
        ref_logps_BT = ref_logps(plan, params, state.step)
      clock.lap("old_log_prob")

      # Values of each prefix, if the advantage asks for them.
      values_BT = None
      if state.critic is not None:
        values_BT = critic_values(state.critic.params, plan)
      clock.lap("values")

      # Credit: rewards, then advantages and the critic's targets.
      inputs = credit_inputs(
          rows,
          ref_logps_BT=ref_logps_BT,
          values_BT=values_BT,
          entropy_BT=entropy_BT,
          squares_BT=squares_BT,
          progress=np.float32(state.step / total),
          kl_coef=np.float32(state.coefs["kl"]),
      )
      inputs |= state.parts.inputs(params, plan)
      credit = assign_credit(inputs)
      clock.lap("adv")

      # Update the policy, and the critic on the same minibatches.
      batch = train_batch(
          rows,
          credit,
          **batch_options,
          updates=len(plan.order_MB),
          ref_logps_BT=ref_logps_BT,
          values_BT=values_BT,
      )
      data_M = minibatches(mesh, batch, plan)
      coefs = coefs_of_step(state.coefs, state.step / total)
      coefs = sharding.put(mesh, coefs)
      clock.lap("host")
      if replay is not None:
        of_step = dict(rows=rows, plan=plan, credit=credit, batch=batch)
        models = dict(loop=loop, first=first)
        replay.watch(state, inputs, data_M, coefs, **of_step, **models)
      state.policy, actor_metrics = update(
          state.policy, *data_M, coefs, frozen, state.parts.beside()
      )
      critic_metrics = {}
      if state.critic is not None:
        state.critic, critic_metrics = update_critic(state.critic, *data_M)

      # Log, while the device computes the update.
      state.counters, metrics = metrics_of_step(
          state, metrics, counts, rows, credit, batch, plan
      )
      state.step, state.evaluated = state.step + 1, False
      logger.dispatched(state.step, metrics, actor_metrics, critic_metrics)
      samples.log(state.step, rows, credit, batch, plan, entropy_BT)
      samples.doubtful(state.step, counts.get("doubtful", []))
      state.parts.after(state, rows, credit, entropy_BT)
  return policy(state.policy.params)
