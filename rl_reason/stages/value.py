"""Value pretraining: fits the critic to the fixed first policy.

VAPO (arXiv:2504.05118, sec 4.1; arXiv:2503.01491): a critic that starts cold
misjudges long responses, and GAE then teaches the policy its mistakes. Value
pretraining fits it to Monte-Carlo returns of the policy that RL starts from,
until it explains them well enough; RL then starts with that critic.
"""

import functools

import jax
import numpy as np

from rl_reason.base import config as config_lib
from rl_reason.base.structs import Tree
from rl_reason.checkpointing.resumable import NetworkState
from rl_reason.collect.experience import credit_inputs
from rl_reason.models import critic
from rl_reason.monitoring import (
    alerts,
    health,
    resources,
    step_metrics,
    updates,
)
from rl_reason.stages import (
    build_step,
    collectors,
    observers,
    optimizers,
    scorer,
    trained_parameters,
)
from rl_reason.stages.run_output import open_stage
from rl_reason.stages.session import Session
from rl_reason.training.optimizer import abstract_state, new_state
from rl_reason.training.step import minibatches, train_batch


def run(
    c, session: Session, policy_params: Tree
) -> tuple[Tree, dict[str, float]]:
  """Runs, resumes, reuses or skips value pretraining; the policy stays fixed.

  RL starts from the same `policy_params`.

  Returns:
    the critic's parameters, and their cost: generated tokens and FLOPs.

  Raises:
    RunError: a checkpoint to resume, reuse or import does not match the config.
    Stopped: SIGTERM; everything is saved.
  """
  model, tok, output = session.model, session.tok, session.output
  cfg, critic_cfg, mesh = model
  display, total = output.display, c.critic.pretrain_steps
  if c.critic.reuse and total:
    return trained_parameters.reused_critic(c, model=model, say=display.say)
  tx, shardings = optimizer = optimizers.of_critic(c, critic_cfg, mesh, total)
  initial = functools.partial(
      trained_parameters.critic,
      c,
      policy_params,
      shardings.params,
      model=model,
      tok=tok,
      say=display.say,
  )
  if not total:
    return initial(), resources.no_counters()
  # The config is read here and in `build_step`: one function for each part.
  rewards, engine = scorer.rewards(c, session, mesh), session.engine
  collector = collectors.collector(
      c, session, "value", engine=engine, rewards=rewards
  )
  plan_rows = build_step.planner(c, mesh)
  values = build_step.values(critic_cfg, mesh, display)
  returns = build_step.returns(c, build_step.reward(c), mesh, display)
  update = build_step.critic_update(c, critic_cfg, optimizer, display)
  counter = observers.counter(c, cfg, passes=1 + 3 * c.updates.epochs)
  mask_truncated, save_every = c.loss.mask_truncated, c.checkpoint.every
  min_explained, max_loss = c.critic.pretrain_ev, c.critic.pretrain_loss
  state = NetworkState(
      abstract_state(critic.table(critic_cfg), tx, shardings),
      collector.prompts,
      resources.no_counters(),
      rewards=rewards,
  )
  stage = open_stage(c, output, "value")
  fields, limit = config_lib.flat(c), c.rl.max_steps_without_update
  skips = health.SkippedUpdates("value pretraining", fields, "critic.lr", limit)
  per_step = updates.per_step(fields)

  # Resume from the newest checkpoint, or begin.
  if stage.restore(state):
    if state.complete:
      stage.checkpoints.close()
      skips.require_any(int(state.train.skipped), state.step * per_step)
      return state.train.params, state.counters
  else:
    state.train = new_state(initial(), tx, shardings)
  weights = engine.weights(policy_params, c.rollout.weights)

  said: set[str] = set()  # alerts
  with stage.running("critic", total, state):
    while not state.complete:
      stage.check_stop()
      skips.enforce(lambda: None)
      collector.start_step()
      collector.clock.skip()  # a save is no part of a step
      # Sample and grade; groups without signal train the critic as well.
      rows = collector.collect(weights)
      plan = plan_rows(rows.rollouts, state.step)
      # Monte-Carlo returns, and how well the critic explains them so far. Its
      # responses are new to the critic, so this score is held out.
      values_BT = values(state.train.params, plan)
      inputs = credit_inputs(rows, values_BT=values_BT, progress=np.float32(0))
      credit = returns(inputs)
      # Update the critic.
      batch = train_batch(
          rows,
          credit,
          mask_truncated=mask_truncated,
          updates=len(plan.order_MB),
          values_BT=values_BT,
      )
      data_M = minibatches(mesh, batch, plan)
      state.train, metrics = update(state.train, *data_M)
      state.step += 1

      # Count, log, and end once the critic is good enough.
      state.counters = counter.add(
          state.counters,
          rows,
          generated=int(rows.rollouts.mask_BT.sum()),
          responses=collector.num_responses,
      )
      metrics = {
          f"critic/{name}": float(x)
          for name, x in jax.device_get(metrics).items()
      }
      counts = collector.counts()
      failures = counts["failures"] | counts["functions"]
      metrics |= {name: n for name, n in failures.items() if n}
      skips.add(
          state.step,
          metrics["critic/update_skipped"] < per_step,
          metrics["critic/grad_norm"],
      )
      loss = metrics["critic/vf_loss"]
      explained = float(credit["metrics"]["critic/vf_explained_var"])
      rewards_B = credit["rewards_B"][np.isfinite(credit["rewards_B"])]
      collector.clock.lap("update_critic")
      seconds = sum(collector.clock.take().values())
      output.log.metrics(
          "value",
          state.step,
          metrics
          | credit["metrics"]
          | step_metrics.statistics("critic/rewards", rewards_B, "mean")
          | resources.totals(state.counters)
          | {"timing_s/steps": seconds},
      )
      display.step(state.step, explained_variance=explained, loss=loss)
      for rule, message in alerts.of_pretraining(metrics, fields):
        if rule.name not in said:
          display.say(f"warning: step {state.step}: {message}")
        said.add(rule.name)
      good = explained >= min_explained and (not max_loss or loss <= max_loss)
      state.complete = good or state.step == total
      if state.complete or stage.due(state.step, save_every):
        stage.save(state)
    skips.require_any(int(state.train.skipped), state.step * per_step)
    display.say(
        f"critic: explained variance {explained:.2f} at step {state.step}"
    )
  return state.train.params, state.counters
