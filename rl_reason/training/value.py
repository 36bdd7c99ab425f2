"""Value pretraining: what prefixes are worth under the fixed first policy.

VAPO (arXiv:2504.05118, sec 4.1; arXiv:2503.01491): a critic that starts cold
misjudges long responses, and GAE then teaches the policy its mistakes. Here it
learns Monte-Carlo returns of the policy that RL starts from, until it explains
them well enough; RL then starts with it.
"""

import pathlib

import jax

from rl_reason import config as config_lib
from rl_reason.checkpointing import checkpoint
from rl_reason.models import critic, parameters
from rl_reason.reward_models import classifier
from rl_reason.structs import RunError, Tree
from rl_reason.training import experience, step
from rl_reason.training.session import Once, Run, Stopped, require_equal

# Fields that give a critic its shape, and what it has learnt its meaning.
NETWORK = (
    "model.",
    "tokenizer",
    "task.name",
    *(f"critic.{x}" for x in ("head", "heads", "bins", "low", "high")),
)
MEANING = (
    "seed",
    "task.",
    "data.",
    "sft.skill.",
    "sft.habits.",
    "reward.",
    "advantage.gamma",
    "rollout.max_tokens",
)


def run(run: Run, policy_params: Tree) -> tuple[Tree, dict[str, float]]:
  """Runs, resumes, reuses or skips the stage.

  Args:
    run: everything that the stages share.
    policy_params: that RL starts from; they stay fixed.

  Returns:
    the critic's parameters, and what they cost: generated tokens and FLOPs.

  Raises:
    RunError: what is to be resumed, reused or imported does not fit.
    Stopped: SIGTERM; everything is saved.
  """
  c = run.config
  if c.critic.reuse and c.critic.pretrain_steps:
    return _reused(run)
  cfg = run.critic_cfg
  tx, shardings = optimizer(run, c.critic.pretrain_steps)
  if not c.critic.pretrain_steps:
    return _first(run, cfg, shardings.params, policy_params), _nothing()
  update = Once(
      "update of the critic", make_update(run, tx, shardings), run.display
  )
  maker = experience.Maker(run, "value")
  checkpoints = run.checkpoints("value")
  at, done, spent = 0, False, _nothing()
  found = run.resume(checkpoints)
  if found:
    at, host = found
    like = step.abstract_state(critic.table(cfg), tx, shardings)
    state = checkpoints.restore(at, like)
    maker.set_state(host["maker"])
    done, spent = host["done"], host["spent"]
    if done:
      checkpoints.close()
      return state.params, spent
    run.display.say(
        f"critic: goes on at step {at} of {c.critic.pretrain_steps}"
    )
  else:
    params = _first(run, cfg, shardings.params, policy_params)
    state = step.new_state(params, tx, shardings)
  run.begin()

  def save() -> None:
    host = run.host_state(maker=maker.get_state(), done=done, spent=spent)
    checkpoints.save(at, state, host)

  weights = maker.weights(policy_params)
  run.display.stage("critic", c.critic.pretrain_steps, at)
  try:
    while not done:
      run.check_stop()
      maker.reset()
      rows = maker.generate(weights)
      cut = maker.layout(rows.rollouts, at)
      values_BT = maker.values(state.params, cut)
      learnt = maker.returns(rows, values_BT)
      batch = experience.batch(run, rows, learnt, values_BT=values_BT)
      state, metrics = update(state, *experience.minibatches(run, batch, cut))
      at += 1
      generated = int(rows.rollouts.lengths_B.sum())
      passes = 1 + 3 * c.updates.epochs
      operations = experience.flops(run, rows, generated, maker.batch, passes)
      spent = dict(
          tokens=spent["tokens"] + generated, flops=spent["flops"] + operations
      )
      # This step's responses were new to the critic: its score is held out.
      explained = float(learnt["metrics"]["critic/vf_explained_var"])
      metrics = {k: float(x) for k, x in jax.device_get(metrics).items()}
      loss = metrics["critic/vf_loss"]
      run.log.metrics(
          "value",
          at,
          metrics
          | learnt["metrics"]
          | {
              "critic/rewards/mean": learnt["rewards_B"].mean(),
              "tokens/generated": spent["tokens"],
              "flops/total": spent["flops"],
          },
      )
      run.display.step(at, explained_variance=explained, loss=loss)
      enough = explained >= c.critic.pretrain_ev and (
          not c.critic.pretrain_loss or loss <= c.critic.pretrain_loss
      )
      done = enough or at == c.critic.pretrain_steps
      if done or at % c.checkpoint.every == 0:
        save()
    run.display.say(f"critic: explained variance {explained:.2f} at step {at}")
  except Stopped:
    if checkpoints.saved != at:
      save()
    raise
  finally:
    run.display.end_stage()
    checkpoints.close()
  return state.params, spent


def optimizer(run: Run, steps: int):
  """The critic's optimizer over `steps` rollouts, and its state's shardings."""
  c = run.config
  updates = c.updates.minibatches * c.updates.epochs
  tx = run.optimizer(
      lr=c.critic.lr,
      schedule=c.critic.schedule,
      warmup=min(c.critic.warmup_steps, max(steps - 1, 0)) * updates,
      total=steps * updates,
  )
  table = critic.table(run.critic_cfg)
  return tx, step.state_shardings(table, tx, run.mesh)


def make_update(run: Run, tx, shardings):
  """jit: `step.critic_update`, metrics under 'critic/'."""
  cfg = run.critic_cfg

  def fn(state, *cut):
    clip = run.config.critic.clip
    state, metrics = step.critic_update(state, *cut, cfg=cfg, tx=tx, clip=clip)
    return state, {f"critic/{k}": x for k, x in metrics.items()}

  return jax.jit(fn, donate_argnums=0, out_shardings=(shardings, None))


def _nothing() -> dict[str, float]:
  return dict(tokens=0, flops=0.0)


def _first(run: Run, cfg, shardings: Tree, policy_params: Tree) -> Tree:
  """Where the critic starts: policy, scratch, or an exported network."""
  c = run.config.critic
  if c.init == "exported" and classifier.is_one(c.path):
    return classifier.load_critic(run)
  if c.init == "exported":
    like = parameters.abstract(critic.table(cfg), shardings)
    path = pathlib.Path(c.path)
    return _restore(run, path, "critic.path", NETWORK, like)[0]
  trunk = policy_params if c.init == "policy" else None
  return run.init_critic("critic", shardings, trunk)


def _reused(run: Run) -> tuple[Tree, dict[str, float]]:
  """The critic that another work directory pretrained."""
  workdir = pathlib.Path(run.config.critic.reuse)
  tx, shardings = optimizer(run, run.config.critic.pretrain_steps)
  table = critic.table(run.critic_cfg)
  like = step.abstract_state(table, tx, shardings)
  path = workdir / "checkpoints" / "value"
  state, host = _restore(run, path, "critic.reuse", NETWORK + MEANING, like)
  if not host["done"]:
    raise RunError(f"{workdir}: not complete; run --stage=value there")
  return state.params, host["spent"]


def _restore(
    run: Run,
    path: pathlib.Path,
    field: str,
    equal: tuple[str, ...],
    like: Tree,
):
  """The newest checkpoint of a critic somewhere else, and its host state.

  Fields that begin with one of `equal` must be the same there.
  """
  checkpoints = checkpoint.Checkpoints(path)
  at = checkpoints.newest(run.display.say)
  if at is None:
    raise RunError(
        f"{field} = {path}: holds no whole checkpoint of a critic; make one"
        " with --stage=value or --stage=export"
    )
  host = checkpoints.host(at)
  here = config_lib.flat(run.config)
  require_equal(f"{field} = {path}", here, host["config"], equal)
  return checkpoints.restore(at, like), host
