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
import jax.numpy as jnp
import numpy as np
import optax

from rl_reason import config as config_lib, hf
from rl_reason.checkpointing import checkpoint
from rl_reason.data import pipelines
from rl_reason.evaluation import evaluate
from rl_reason.models import critic
from rl_reason.reward_models import losses
from rl_reason.reward_models.scorer import scores_program
from rl_reason.scale import sharding
from rl_reason.scale.compiled import CompiledOnce
from rl_reason.session import Session, packed_rows, resolve
from rl_reason.structs import Array, Packed, TrainState, Tree
from rl_reason.training import packing, supervised
from rl_reason.training.step import accumulate, optimize
from rl_reason.training.value import init_params


def run(session: Session, policy_params: Tree) -> Tree:
  """Runs or resumes the stage; writes export/reward_model at its end.

  Args:
    session: of the run.
    policy_params: whose trunk it starts from.

  Returns:
    the parameters.

  Raises:
    Stopped: SIGTERM; everything is saved.
  """
  c = session.config.reward_model
  cfg = session.critic_cfg

  def first(shardings: Tree) -> Tree:
    return init_params(session, "reward model", shardings, policy_params)

  def update(state, packed, _, tx):
    return preference_update(state, packed, cfg=cfg, tx=tx)

  return supervised.train(
      session,
      "reward_model",
      title="reward model",
      prefix="reward_model",
      table=critic.table(cfg),
      first=first,
      stream=_pairs(session, c.batch, evaluation=False),
      rows=functools.partial(_rows, session),
      update=update,
      steps=c.steps,
      lr=c.lr,
      schedule=c.schedule,
      together=2,
      final_check=functools.partial(_finish, session, cfg),
  )


def preference_update(
    state: TrainState,
    packed: Packed,
    *,
    cfg: critic.CriticConfig,
    tx: optax.GradientTransformation,
) -> tuple[TrainState, dict[str, Array]]:
  """One step of a reward model: mean Bradley-Terry loss of the pairs.

  Args:
    state: donated by the caller's jit.
    packed: of the minibatch. The rows of a pair are adjacent and share a
      micro-batch; the preferred response comes first.
    cfg: static.
    tx: static.

  Returns:
    the next state, and metrics: loss, accuracy, grad_norm, update_skipped.
  """
  pairs = len(packed.source_BT) // 2

  def loss_fn(params, packed, real_B):
    head = params["value_head"]
    if cfg.head == "scalar":  # pairs do not see its bias: 0 it stays, exactly
      head = head | dict(bias=jax.lax.stop_gradient(head["bias"]))
    params = params | dict(value_head=head)
    chosen_B, rejected_B = critic.scores(params, cfg, packed).reshape(-1, 2).T
    share_B = real_B.reshape(-1, 2).prod(1) / pairs
    loss = jnp.sum(share_B * losses.bradley_terry(chosen_B, rejected_B))
    return loss, dict(
        loss=loss, accuracy=jnp.sum(share_B * (chosen_B > rejected_B))
    )

  ones_B = jnp.ones(2 * pairs)
  grads, metrics = accumulate(loss_fn, state.params, packed, ones_B)
  state, more = optimize(state, tx, grads)
  return state.replace(step=state.step + 1), metrics | more


def _pairs(session: Session, batch: int, *, evaluation: bool):
  c = session.config.reward_model
  styles = (
      config_lib.mixture(x) if x else dict.fromkeys(session.task.STYLES, 1.0)
      for x in (c.chosen, c.rejected)
  )
  return session.rows.preferences(batch, *styles, evaluation=evaluation)


def _rows(
    session: Session, pairs: list[tuple[str, str, str]]
) -> tuple[Array, ...]:
  """Both rows of each pair, adjacent: tokens, start, mask of 2 B rows."""
  texts = [(prompt, text) for prompt, *both in pairs for text in both]
  slots = session.config.rollout.max_prompt, session.config.rollout.max_tokens
  return pipelines.pack_demonstrations(session.tok, texts, *slots)


def _finish(session: Session, cfg: critic.CriticConfig, params: Tree) -> None:
  """Scores held-out pairs, and exports the network."""
  c = session.config.reward_model
  program = CompiledOnce(
      "scores of pairs", scores_program(cfg), session.display
  )
  stream = _pairs(session, c.batch, evaluation=True)
  scores = []
  for _ in range(-(-c.evaluate_pairs // c.batch)):
    tokens_BL, start_B, mask_BT = _rows(session, next(stream))
    packed = packing.pack(tokens_BL, start_B, mask_BT, packed_rows(session))
    one_M = sharding.put_packed(
        session.mesh, jax.tree.map(lambda x: x[None], packed)
    )
    scores.append(sharding.fetch(program(params, one_M)).reshape(-1, 2))
  score_N2 = np.concatenate(scores)[: c.evaluate_pairs]
  values = agreement(score_N2[:, 0] - score_N2[:, 1])
  session.log.metrics(
      "reward_model",
      c.steps,
      {f"val-core/preferences/{k}": x for k, x in values.items()},
  )
  session.display.say(
      f"reward model: prefers the right response in {values['accuracy']:.1%}"
      f" +- {values['accuracy/ci95']:.1%} of held-out pairs, calibration error"
      f" {values['calibration_error']:.3f}"
  )
  path = session.workdir / "export" / "reward_model"
  if jax.process_index() == 0:
    shutil.rmtree(path, ignore_errors=True)
  _save_classifier(session, cfg, params, path)
  out = checkpoint.Checkpoints(path)
  out.save(c.steps, params, dict(config=config_lib.flat(session.config)))
  out.close()
  session.display.say(f"reward model written to {path}")


def _save_classifier(
    session: Session, cfg: critic.CriticConfig, params: Tree, path: pathlib.Path
) -> None:
  """Writes it as a sequence classifier of transformers, where there is one."""
  c = session.config
  source = resolve(c)
  try:
    hf.save(
        path,
        params,
        critic.table(cfg),
        cfg.trunk,
        head=hf.SEQUENCE_CLASSIFIER,
        source=source,
        tokenizer=session.tok if c.tokenizer or not source else None,
        context=c.rollout.max_prompt + c.rollout.max_tokens,
    )
  except config_lib.ConfigError as e:
    session.display.say(f"reward model: not written for transformers: {e}")


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
