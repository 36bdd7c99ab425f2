"""A reward model: scores of responses, learnt from which of two is preferred.

Bradley-Terry (arXiv:2203.02155, eq 1): the difference of two scores is the
log-odds of the preference. The network is that of a critic, so the same export
is a reward (`reward.scorers = "DIR*0.5"`) or where a critic starts
(`critic.init = "exported"`). Beside it is the same as transformers loads it.
Those of others: `classifier`.
"""

import functools
import pathlib
import shutil

import jax
import numpy as np

from rl_reason import config as config_lib, hf
from rl_reason.checkpointing import checkpoint
from rl_reason.data import pipelines
from rl_reason.evaluation import evaluate
from rl_reason.models import critic, parameters
from rl_reason.reward_models import classifier
from rl_reason.scale import sharding
from rl_reason.structs import Array, RunError, Tree
from rl_reason.training import packing, step, supervised
from rl_reason.training.session import (
    Once,
    Run,
    critic_config,
    model_config,
    over_micro_batches,
    require_equal,
    resolve,
)


def run(run: Run, policy_params: Tree) -> Tree:
  """Runs or resumes the stage; writes export/reward_model at its end.

  Args:
    run: everything that the stages share.
    policy_params: whose trunk it starts from.

  Returns:
    the parameters.

  Raises:
    Stopped: SIGTERM; everything is saved.
  """
  c = run.config.reward_model
  cfg = run.critic_cfg

  def first(shardings: Tree) -> Tree:
    return run.init_critic("reward model", shardings, policy_params)

  def update(state, packed, _, tx):
    return step.preference_update(state, packed, cfg=cfg, tx=tx)

  return supervised.fit(
      run,
      "reward_model",
      title="reward model",
      prefix="reward_model",
      table=critic.table(cfg),
      first=first,
      stream=_pairs(run, c.batch, evaluation=False),
      rows=functools.partial(_rows, run),
      update=update,
      steps=c.steps,
      lr=c.lr,
      schedule=c.schedule,
      together=2,
      finish=functools.partial(_finish, run, cfg),
  )


def _pairs(run: Run, batch: int, *, evaluation: bool):
  c = run.config.reward_model
  styles = (
      config_lib.mixture(x) if x else dict.fromkeys(run.task.STYLES, 1.0)
      for x in (c.chosen, c.rejected)
  )
  return run.preferences(batch, *styles, evaluation=evaluation)


def _rows(run: Run, pairs: list[tuple[str, str, str]]) -> tuple[Array, ...]:
  """Both rows of each pair, adjacent: tokens, start, mask of 2 B rows."""
  texts = [(prompt, text) for prompt, *both in pairs for text in both]
  slots = run.config.rollout.max_prompt, run.config.rollout.max_tokens
  return pipelines.pack_demonstrations(run.tok, texts, *slots)


def _finish(run: Run, cfg: critic.CriticConfig, params: Tree) -> None:
  """Scores held-out pairs, and exports the network."""
  c = run.config.reward_model
  program = Once("scores of pairs", _scores(cfg), run.display)
  stream = _pairs(run, c.batch, evaluation=True)
  scores = []
  for _ in range(-(-c.evaluate_pairs // c.batch)):
    tokens_BL, start_B, mask_BT = _rows(run, next(stream))
    packed = packing.pack(tokens_BL, start_B, mask_BT, run.packed_rows)
    one_M = run.put_packed(jax.tree.map(lambda x: x[None], packed))
    scores.append(sharding.fetch(program(params, one_M)).reshape(-1, 2))
  score_N2 = np.concatenate(scores)[: c.evaluate_pairs]
  values = agreement(score_N2[:, 0] - score_N2[:, 1])
  run.log.metrics(
      "reward_model",
      c.steps,
      {f"val-core/preferences/{k}": x for k, x in values.items()},
  )
  run.display.say(
      f"reward model: prefers the right response in {values['accuracy']:.1%}"
      f" +- {values['accuracy/ci95']:.1%} of held-out pairs, calibration error"
      f" {values['calibration_error']:.3f}"
  )
  path = run.workdir / "export" / "reward_model"
  if jax.process_index() == 0:
    shutil.rmtree(path, ignore_errors=True)
  _save_classifier(run, cfg, params, path)
  out = checkpoint.Checkpoints(path)
  out.save(c.steps, params, dict(config=config_lib.flat(run.config)))
  out.close()
  run.display.say(f"reward model written to {path}")


def _save_classifier(
    run: Run, cfg: critic.CriticConfig, params: Tree, path: pathlib.Path
) -> None:
  """Writes it as a sequence classifier of transformers, where there is one."""
  c = run.config
  source = resolve(c)
  try:
    hf.save(
        path,
        params,
        critic.table(cfg),
        cfg.trunk,
        head=hf.WHOLE,
        source=source,
        tok=run.tok if c.tokenizer or not source else None,
        context=c.rollout.max_prompt + c.rollout.max_tokens,
    )
  except config_lib.ConfigError as e:
    run.display.say(f"reward model: not written for transformers: {e}")


def agreement(ahead_N: np.ndarray) -> dict[str, float]:
  """How well scores predict preferences.

  Args:
    ahead_N: [N] score of the preferred response less that of the other.

  Returns:
    accuracy (ties count half) with a 95% interval; nll, of the preferences;
    calibration_error, of how sure it is of the one that it prefers.
  """
  ahead_N = ahead_N.astype(np.float64)
  right_N = (ahead_N > 0) + 0.5 * (ahead_N == 0)
  sure_N = 1 / (1 + np.exp(-np.abs(ahead_N)))  # of the one that it prefers
  mean, half = evaluate.mean_interval(right_N)
  return {
      "accuracy": mean,
      "accuracy/ci95": half,
      "nll": float(np.logaddexp(0, -ahead_N).mean()),
      "calibration_error": evaluate.calibration_error(sure_N, right_N),
  }


def load(run: Run, given: str) -> tuple[Tree, critic.CriticConfig]:
  """The parameters and the shape of a reward model, of ours or of others.

  Its network may be of another shape than the policy; its tokenizer may not.

  Args:
    run: everything that the stages share.
    given: the directory of an exported one, or see `classifier`.

  Raises:
    RunError: there is none, or it reads other tokens.
    ConfigError: so it is, of one of others.
  """
  if classifier.is_one(given):
    return classifier.load(run, given, "reward.scorers")
  path = pathlib.Path(given)
  checkpoints = checkpoint.Checkpoints(path)
  at = checkpoints.newest(run.display.say)
  if at is None:
    raise RunError(
        f"reward.scorers: {path} holds no whole reward model; make one with"
        " --stage=reward_model, it is in its export/reward_model"
    )
  fields = checkpoints.host(at)["config"]
  require_equal(
      f"reward.scorers = {path}",
      config_lib.flat(run.config),
      fields,
      ("tokenizer", "task.name"),
  )
  there = config_lib.unflat(fields)
  trunk = model_config(there, vocab=run.cfg.vocab, tokens=run.cfg.tokens)
  cfg = critic_config(there, trunk)
  table = critic.table(cfg)
  like = parameters.abstract(table, parameters.shardings(table, run.mesh))
  return checkpoints.restore(at, like), cfg


def scorer(run: Run, given: str):
  """A reward model, as `load` takes it, ready to score.

  Returns:
    the parameters, and a program: (params, Packed of minibatches) -> scores
    [M, B].

  Raises:
    RunError: there is none, or it reads other tokens.
  """
  params, cfg = load(run, given)
  return params, Once("scores of the reward model", _scores(cfg), run.display)


def _scores(cfg: critic.CriticConfig):
  """jit: (params, Packed of minibatches) -> scores [M, B]."""
  return over_micro_batches(
      lambda params, packed: critic.scores(params, cfg, packed)
  )
