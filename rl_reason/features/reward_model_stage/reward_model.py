"""The reward model stage: learns scores of responses from preferences.

Bradley-Terry (arXiv:2203.02155, eq 1): the difference of two scores is the
log-odds of the preference. The network is a critic's, so that its export is a
scorer (`reward.functions = "DIR*0.5"`) or an initial critic (`critic.init =
"exported"`). The export also has these weights as a classifier of transformers.

Shapes here: N pairs of responses.
"""

import functools
import shutil
from collections.abc import Iterable
from typing import Any

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax

from rl_reason import hf
from rl_reason.base import config as config_lib, errors
from rl_reason.base.errors import RunError
from rl_reason.base.structs import Array, Packed, TrainState, Tree
from rl_reason.checks.model_directory import resolve
from rl_reason.devices import sharding
from rl_reason.devices.compiled import CompiledOnce
from rl_reason.evaluation import statistics
from rl_reason.models import critic
from rl_reason.monitoring.display import Display
from rl_reason.stages import (
    build_step,
    demonstrations,
    export,
    scorer,
    supervised,
    trained_parameters,
)
from rl_reason.stages.model import Model
from rl_reason.stages.run_output import Output
from rl_reason.stages.session import Session
from rl_reason.training import packing
from rl_reason.training.step import accumulate, optimize


def run(c, session: Session, policy_params: Tree) -> Tree:
  """Runs or resumes the stage; writes export/reward_model at its end.

  It starts from reward_model.init, or from the trunk of `policy_params`, and
  returns the parameters.

  Raises:
    RunError: reward_model.init has another shape.
    DataError: reward_model.samples have no pairs to learn from.
    Stopped: SIGTERM; everything is saved.
  """
  model, tok, output = session.model, session.tok, session.output
  r, cfg, say = c.reward_model, model.critic_cfg, output.display.say
  pack = functools.partial(demonstrations.pack_pairs, c.rollout, tok)
  pairs = functools.partial(
      demonstrations.pairs, c, "reward_model", session.row_source, tok
  )

  def first(shardings: Tree) -> Tree:
    if r.init:
      params, other = trained_parameters.reward_model(
          c, r.init, "reward_model.init", model=model, tok=tok, say=say
      )
      if critic.table(other) != critic.table(cfg):
        raise RunError(
            f"reward_model.init = {r.init}: has another shape than model.* and"
            " critic.head.* say; leave it out to start from the policy"
        )
      return jax.jit(lambda x: x, out_shardings=shardings)(params)
    return trained_parameters.random_critic(
        c, "reward model", model, shardings, policy_params
    )

  def update(state, packed, _, tx):
    return preference_update(state, packed, cfg=cfg, tx=tx)

  def finish(params: Tree) -> None:
    stream, available = pairs(evaluation=True, say=lambda _: None)
    count = int(min(r.evaluate_pairs, available))
    batches = (pack(next(stream)) for _ in range(-(-count // r.batch)))
    size = build_step.packed_rows(c, model.mesh)
    score_N2 = _scores(params, batches, size, model, output.display)[:count]
    values = agreement(score_N2[:, 0] - score_N2[:, 1])
    metrics = {f"val-core/preferences/{k}": x for k, x in values.items()}
    output.log.metrics("reward_model", r.steps, metrics)
    say(
        "reward model: prefers the chosen response in"
        f" {values['accuracy']:.1%} +- {values['accuracy/ci95']:.1%} of"
        " held-out pairs, calibration error"
        f" {values['calibration_error']:.3f}"
    )
    _export(c, params, model, tok, output)

  return supervised.train(
      c,
      "reward_model",
      mesh=model.mesh,
      output=output,
      title="reward model",
      prefix="reward_model",
      table=critic.table(cfg),
      first=first,
      stream=pairs(evaluation=False, say=say)[0],
      rows=pack,
      update=supervised.program(
          c,
          update,
          title="reward model",
          table=critic.table(cfg),
          mesh=model.mesh,
          display=output.display,
      ),
      steps=r.steps,
      lr=r.lr,
      schedule=r.schedule,
      unit=2,
      final_check=finish,
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
  state, step_metrics = optimize(state, tx, grads, at=state.step)
  return state.replace(step=state.step + 1), metrics | step_metrics


def _scores(
    params: Tree, batches: Iterable, size: int, model: Model, display: Display
) -> np.ndarray:
  """Scores of pairs [N, 2]: chosen, rejected; `size` packed rows at a time."""
  program = CompiledOnce(
      "scores of pairs", scorer.scores_program(model.critic_cfg), display
  )
  scores = []
  for tokens_BL, start_B, mask_BT in batches:
    packed = packing.pack(tokens_BL, start_B, mask_BT, size)
    packed_M = jax.tree.map(lambda x: x[None], packed)  # one minibatch
    packed_M = sharding.put_packed(model.mesh, packed_M)
    scores.append(sharding.fetch(program(params, packed_M)).reshape(-1, 2))
  return np.concatenate(scores)


def _export(c, params: Tree, model: Model, tok: Any, output: Output) -> None:
  """Writes a checkpoint and, if transformers has one, a classifier of it."""
  path, say = output.workdir / "export" / "reward_model", output.display.say
  if jax.process_index() == 0:
    shutil.rmtree(path, ignore_errors=True)
  cfg = model.critic_cfg
  network, head = (params, critic.table(cfg), cfg.trunk), hf.SEQUENCE_CLASSIFIER
  try:
    export.save_network(c, resolve(c), tok, path, *network, head=head)
  except errors.ConfigError as e:
    say(f"reward model: not written for transformers: {e}")
  fields = config_lib.flat(c)
  export.save_checkpoint(fields, path, c.reward_model.steps, params)
  say(f"reward model written to {path}")


def agreement(margin_N: np.ndarray) -> dict[str, float]:
  """Returns how well margins [N] of scores predict preferences.

  A margin is the score of the chosen minus the score of the rejected response.

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
