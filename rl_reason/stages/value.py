"""Value pretraining: fits the critic to the fixed first policy.

VAPO (arXiv:2504.05118, sec 4.1; arXiv:2503.01491): a critic that starts cold
misjudges long responses, and GAE then teaches the policy its mistakes. Value
pretraining fits it to Monte-Carlo returns of the policy that RL starts from,
until it explains them well enough; RL then starts with that critic.
"""

import pathlib

import jax
import numpy as np

from rl_reason.base import config as config_lib, resume_rules
from rl_reason.base.errors import RunError
from rl_reason.base.structs import Tree
from rl_reason.checkpointing.resumable import NetworkState
from rl_reason.collect.experience import credit_inputs
from rl_reason.devices.compiled import CompiledOnce
from rl_reason.devices.randomness import key
from rl_reason.models import critic, parameters
from rl_reason.monitoring import rl_metrics, signs, skips as skips_lib, updates
from rl_reason.stages import build_step, classifier
from rl_reason.stages.other_runs import other_checkpoint
from rl_reason.stages.session import Session, open_stage
from rl_reason.training.optimizer import abstract_state, new_state
from rl_reason.training.step import forward, minibatches, on_mesh, train_batch

# Fields that give a critic its shape; `resume_rules.VALUES` give it meaning.
NETWORK = (
    "model.",
    "tokenizer",
    "task.name",
    "critic.head.",
)


def run(session: Session, policy_params: Tree) -> tuple[Tree, dict[str, float]]:
  """Runs, resumes, reuses or skips value pretraining; the policy stays fixed.

  Returns:
    the critic's parameters, and what they cost: generated tokens and FLOPs.

  Raises:
    RunError: a checkpoint to resume, reuse or import does not match the config.
    Stopped: SIGTERM; everything is saved.
  """
  c, mesh = session.config, session.mesh
  total = c.critic.pretrain_steps
  if c.critic.reuse and total:
    return _reused(session)
  tx, shardings = build_step.critic_optimizer(session, total)
  if not total:
    params = _first(session, shardings.params, policy_params)
    return params, rl_metrics.no_counters()
  collector = build_step.make_collector(session, "value")
  table = critic.table(session.critic_cfg)
  state = NetworkState(
      abstract_state(table, tx, shardings),
      collector.prompts,
      rl_metrics.no_counters(),
  )
  stage = open_stage(session, "value")
  fields, limit = config_lib.flat(c), c.rl.max_steps_without_update
  skips = skips_lib.Skips("value pretraining", fields, "critic.lr", limit)
  per_step = updates.per_step(fields)

  # Resume from the newest checkpoint, or begin.
  if stage.restore(state):
    if state.complete:
      stage.checkpoints.close()
      skips.require_any(int(state.train.skipped), state.step * per_step)
      return state.train.params, state.counters
  else:
    params = _first(session, shardings.params, policy_params)
    state.train = new_state(params, tx, shardings)
  display = session.display
  update = CompiledOnce(
      "update of the critic",
      build_step.critic_update_program(
          session.critic_cfg, tx, shardings, clip=c.critic.clip
      ),
      display,
  )
  values_program = CompiledOnce(
      "values", build_step.values_program(session.critic_cfg), display
  )
  returns = CompiledOnce(
      "rewards and returns", build_step.returns_program(c), display
  )
  plan_rows = build_step.make_planner(c, mesh)
  passes = 1 + 3 * c.updates.epochs
  counter = build_step.make_counter(c, session.cfg, passes=passes)
  weights = session.engine.weights(policy_params, c.rollout.weights)

  said: set[str] = set()  # signs
  with stage.running("critic", total, state):
    while not state.complete:
      stage.check_stop()
      skips.check(lambda: None)
      collector.start_step()
      collector.clock.skip()  # a save is no part of a step
      # Sample and grade; groups without signal train the critic as well.
      rows = collector.collect(weights)
      plan = plan_rows(rows.rollouts, state.step)
      # Monte-Carlo returns, and how well the critic explains them so far. Its
      # responses are new to the critic, so this score is held out.
      values_BT = forward(mesh, values_program, state.train.params, plan)
      inputs = credit_inputs(rows, values_BT=values_BT, progress=np.float32(0))
      credit = on_mesh(mesh, returns, inputs)
      # Update the critic.
      batch = train_batch(
          rows,
          credit,
          mask_truncated=c.loss.mask_truncated,
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
      session.log.metrics(
          "value",
          state.step,
          metrics
          | credit["metrics"]
          | rl_metrics.statistics("critic/rewards", rewards_B, "mean")
          | rl_metrics.totals(state.counters)
          | {"timing_s/steps": seconds},
      )
      display.step(state.step, explained_variance=explained, loss=loss)
      found = signs.of_pretraining(metrics, fields)
      for name in found.keys() - said:
        display.say(f"warning: step {state.step}: {found[name]}")
      said |= found.keys()
      good = explained >= c.critic.pretrain_ev and (
          not c.critic.pretrain_loss or loss <= c.critic.pretrain_loss
      )
      state.complete = good or state.step == total
      if state.complete or stage.due(state.step, c.checkpoint.every):
        stage.save(state)
    skips.require_any(int(state.train.skipped), state.step * per_step)
    display.say(
        f"critic: explained variance {explained:.2f} at step {state.step}"
    )
  return state.train.params, state.counters


def init_params(
    session: Session, purpose: str, shardings: Tree, trunk: Tree | None
) -> Tree:
  """A critic on the mesh, its trunk copied from a policy, or random.

  The parameters of the policy are copied, because updates donate their state.
  """

  def make(random_key, trunk):
    return critic.init(session.critic_cfg, random_key, trunk)

  random_key = key(session.mesh, session.config.seed, purpose)
  return jax.jit(make, out_shardings=shardings)(random_key, trunk)


def _first(session: Session, shardings: Tree, policy_params: Tree) -> Tree:
  """Initial parameters: from the policy, random, or an exported network."""
  c = session.config.critic
  if c.init == "exported" and classifier.is_classifier(c.path):
    return classifier.load_critic(session)
  if c.init == "exported":
    table = critic.table(session.critic_cfg)
    like = parameters.abstract(table, shardings)
    checkpoints, step = other_checkpoint(
        session, "critic.path", c.path, NETWORK, "--stage=export"
    )
    return checkpoints.restore(step, like)
  trunk = policy_params if c.init == "policy" else None
  return init_params(session, "critic", shardings, trunk)


def _reused(session: Session) -> tuple[Tree, dict[str, float]]:
  """The critic that another work directory pretrained."""
  c = session.config.critic
  path = pathlib.Path(c.reuse) / "checkpoints" / "value"
  checkpoints, step = other_checkpoint(
      session, "critic.reuse", path, NETWORK, "--stage=value"
  )
  host, here = checkpoints.host(step), config_lib.flat(session.config)
  if other := resume_rules.other_values(host["config"], here, c.reuse):
    raise RunError(
        f"critic.reuse = {c.reuse}: its values are those of another policy, or"
        f" of other rewards ({'; '.join(other)}); make the fields equal, or"
        " pretrain here: critic.reuse = ''"
    )
  if not host["complete"]:
    raise RunError(f"{c.reuse}: not complete; run --stage=value there")
  optimizer = build_step.critic_optimizer(session, c.pretrain_steps)
  like = abstract_state(critic.table(session.critic_cfg), *optimizer)
  return checkpoints.restore(step, like).params, host["counters"]
