"""The reward model stage: learns scores of responses from preferences.

Bradley-Terry (arXiv:2203.02155, eq 1): the difference of two scores is the
log-odds of the preference. The network is a critic's, so that its export is a
scorer (`reward.functions = "DIR*0.5"`) or an initial critic (`critic.init =
"exported"`). Beside it are the same weights as a classifier of transformers.

Shapes here: N pairs of responses.
"""

import functools
import math
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_reason import hf
from rl_reason.base import errors
from rl_reason.base.errors import RunError
from rl_reason.base.structs import Array, Packed, TrainState, Tree
from rl_reason.checks import facts
from rl_reason.data import sample_files
from rl_reason.devices import sharding
from rl_reason.devices.compiled import CompiledOnce
from rl_reason.devices.randomness import host_seed
from rl_reason.evaluation import statistics
from rl_reason.models import critic
from rl_reason.stages import demonstrations, scorer, supervised
from rl_reason.stages.session import (
    Session,
    packed_rows,
    save_checkpoint,
    save_network,
)
from rl_reason.stages.value import init_params
from rl_reason.training import packing
from rl_reason.training.step import accumulate, optimize


def run(session: Session, policy_params: Tree) -> Tree:
  """Runs or resumes the stage; writes export/reward_model at its end.

  It starts from reward_model.init, or from the trunk of a policy, and returns
  the parameters.

  Raises:
    RunError: reward_model.init has another shape.
    DataError: reward_model.samples have no pairs to learn from.
    Stopped: SIGTERM; everything is saved.
  """
  c, cfg = session.config.reward_model, session.critic_cfg

  def first(shardings: Tree) -> Tree:
    if c.init:
      params, other = scorer.load(session, c.init, "reward_model.init")
      if critic.table(other) != critic.table(cfg):
        raise RunError(
            f"reward_model.init = {c.init}: has another shape than model.* and"
            " critic.head.* say; leave it out to start from the policy"
        )
      return jax.jit(lambda x: x, out_shardings=shardings)(params)
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
      stream=_pairs(session, evaluation=False)[0],
      rows=functools.partial(_pack_pairs, session),
      update=update,
      steps=c.steps,
      lr=c.lr,
      schedule=c.schedule,
      unit=2,
      final_check=functools.partial(_finish, session),
  )


def bradley_terry(chosen_B: Array, rejected_B: Array) -> Array:
  """-log P(chosen is preferred) = -log sigmoid(chosen - rejected): [B].

  Bradley and Terry (1952), as a loss of reward models: arXiv:2203.02155, eq 1.
  """
  chex.assert_equal_shape([chosen_B, rejected_B])
  return -jax.nn.log_sigmoid(chosen_B - rejected_B)


def preference_update(
    state: TrainState,
    packed: Packed,
    *,
    cfg: critic.CriticConfig,
    tx: optax.GradientTransformation,
) -> tuple[TrainState, dict[str, Array]]:
  """One step of a reward model: mean Bradley-Terry loss of the pairs.

  The rows of a pair are adjacent and share a micro-batch; the preferred
  response comes first. cfg and tx are static; the caller's jit donates the
  state. Returns the next state, and metrics: loss, accuracy, grad_norm,
  update_skipped.
  """
  pairs = len(packed.source_BT) // 2

  def loss_fn(params, packed, real_B):
    head = params["value_head"]
    if cfg.head == "scalar":  # pairs do not depend on its bias: keep it at 0
      head = head | dict(bias=jax.lax.stop_gradient(head["bias"]))
    params = params | dict(value_head=head)
    chosen_B, rejected_B = critic.scores(params, cfg, packed).reshape(-1, 2).T
    share_B = real_B.reshape(-1, 2).prod(1) / pairs
    loss = jnp.sum(share_B * bradley_terry(chosen_B, rejected_B))
    return loss, dict(
        loss=loss, accuracy=jnp.sum(share_B * (chosen_B > rejected_B))
    )

  ones_B = jnp.ones(2 * pairs)
  grads, metrics = accumulate(loss_fn, state.params, packed, ones_B)
  state, step_metrics = optimize(state, tx, grads)
  return state.replace(step=state.step + 1), metrics | step_metrics


def _pairs(session: Session, *, evaluation: bool):
  """An endless iterator over batches of (prompt, chosen, rejected).

  With it comes how many pairs differ; of generated ones there is no end.
  """
  c, rollout = session.config.reward_model, session.config.rollout
  if not c.samples:
    chosen, rejected = (
        facts.mixture(x) if x else dict.fromkeys(session.task.STYLES, 1.0)
        for x in (c.chosen, c.rejected)
    )
    stream = demonstrations.preferences(
        session.rows, c.batch, chosen, rejected, evaluation=evaluation
    )
    return stream, math.inf
  parts, weights = sample_files.read(
      "reward_model.samples",
      c.samples,
      session.tok,
      (rollout.max_prompt, rollout.max_tokens),
      (lambda _: None) if evaluation else session.display.say,
      pairs=True,
      revisions=facts.revisions(session.config),
  )
  parts, held_out = sample_files.split(parts)
  if evaluation:
    parts, weights = [[x for part in held_out for x in part]], [1.0]
  seed = host_seed(session.config.seed, f"samples of pairs {evaluation}")
  stream = sample_files.iterate(parts, weights, seed, c.batch)
  return stream, sum(map(len, parts))


def _pack_pairs(session: Session, pairs) -> tuple[Array, Array, Array]:
  """Tokens, start and mask of 2 B rows; the rows of a pair are adjacent."""
  texts = [(prompt, text) for prompt, *both in pairs for text in both]
  rollout = session.config.rollout
  return demonstrations.pack(
      session.tok, texts, rollout.max_prompt, rollout.max_tokens
  )


def _finish(session: Session, params: Tree) -> None:
  """Evaluates held-out pairs and exports the network."""
  c, cfg = session.config.reward_model, session.critic_cfg
  steps, batch = c.steps, c.batch
  say = session.display.say
  # Score held-out pairs.
  program = CompiledOnce(
      "scores of pairs", scorer.scores_program(cfg), session.display
  )
  stream, available = _pairs(session, evaluation=True)
  pairs, scores = int(min(c.evaluate_pairs, available)), []
  for _ in range(-(-pairs // batch)):
    packed = packing.pack(
        *_pack_pairs(session, next(stream)),
        packed_rows(session.config, session.mesh),
    )
    packed_M = jax.tree.map(lambda x: x[None], packed)  # one minibatch
    packed_M = sharding.put_packed(session.mesh, packed_M)
    scores.append(sharding.fetch(program(params, packed_M)).reshape(-1, 2))
  score_N2 = np.concatenate(scores)[:pairs]
  values = agreement(score_N2[:, 0] - score_N2[:, 1])
  metrics = {f"val-core/preferences/{k}": x for k, x in values.items()}
  session.log.metrics("reward_model", steps, metrics)
  say(
      f"reward model: prefers the chosen response in {values['accuracy']:.1%}"
      f" +- {values['accuracy/ci95']:.1%} of held-out pairs, calibration error"
      f" {values['calibration_error']:.3f}"
  )
  # Export: a classifier of transformers, if there is one, and a checkpoint.
  path = session.workdir / "export" / "reward_model"
  if jax.process_index() == 0:
    shutil.rmtree(path, ignore_errors=True)
  network, head = (params, critic.table(cfg), cfg.trunk), hf.SEQUENCE_CLASSIFIER
  try:
    save_network(session, path, *network, head=head)
  except errors.ConfigError as e:
    say(f"reward model: not written for transformers: {e}")
  save_checkpoint(session, path, steps, params)
  say(f"reward model written to {path}")


def agreement(margin_N: np.ndarray) -> dict[str, float]:
  """Returns how well scores predict preferences.

  Args:
    margin_N: score of the chosen response minus that of the rejected one.

  Returns:
    accuracy (ties count half) with its 95% interval; nll of the preferences;
    calibration_error of the model's confidence in the response it prefers.
  """
  margin_N = margin_N.astype(np.float64)
  correct_N = (margin_N > 0) + 0.5 * (margin_N == 0)
  confidence_N = 1 / (1 + np.exp(-np.abs(margin_N)))
  mean, half = statistics.share_interval(correct_N)
  return {
      "accuracy": mean,
      "accuracy/ci95": half,
      "nll": float(np.logaddexp(0, -margin_N).mean()),
      "calibration_error": statistics.calibration_error(
          confidence_N, correct_N
      ),
  }
