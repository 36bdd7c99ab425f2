"""Reward models as terms of the reward: our own, or those of transformers."""

import pathlib

from rl_reason import config as config_lib
from rl_reason.checkpointing import checkpoint
from rl_reason.models import critic, parameters
from rl_reason.reward_models import classifier
from rl_reason.scale.compiled import CompiledOnce
from rl_reason.session import (
    Session,
    critic_config,
    model_config,
    require_equal,
)
from rl_reason.structs import RunError, Tree
from rl_reason.training.step import map_micro_batches


def load(session: Session, name: str) -> tuple[Tree, critic.CriticConfig]:
  """Loads the parameters and the shape of a reward model.

  Its shape may differ from the policy's; its tokenizer must not.

  Args:
    session: of the run.
    name: directory of an export of ours, or a classifier; see `classifier`.

  Raises:
    RunError: the export is missing or has another tokenizer or task.
    ConfigError: likewise for a classifier.
  """
  if classifier.is_classifier(name):
    return classifier.load(session, name, "reward.functions")
  checkpoints = checkpoint.Checkpoints(pathlib.Path(name))
  step = checkpoints.newest(session.display.say)
  if step is None:
    raise RunError(
        f"reward.functions: {name} holds no complete reward model;"
        " --stage=reward_model writes one to export/reward_model"
    )
  fields = checkpoints.host(step)["config"]
  own_fields = config_lib.flat(session.config)
  equal = ("tokenizer", "task.name")
  require_equal(f"reward.functions = {name}", own_fields, fields, equal)
  config = config_lib.unflat(fields)
  policy = session.cfg
  trunk = model_config(config, vocab=policy.vocab, tokens=policy.tokens)
  cfg = critic_config(config, trunk)
  table = critic.table(cfg)
  like = parameters.abstract(table, parameters.shardings(table, session.mesh))
  return checkpoints.restore(step, like), cfg


def load_scorer(session: Session, name: str) -> tuple[Tree, CompiledOnce]:
  """Loads a reward model for scoring; see `load`.

  Returns:
    the parameters, and a program: (params, Packed of minibatches) -> scores
    [M, B].
  """
  params, cfg = load(session, name)
  title = "scores of the reward model"
  return params, CompiledOnce(title, scores_program(cfg), session.display)


def scores_program(cfg: critic.CriticConfig):
  """Returns jit: (params, Packed of minibatches) -> scores [M, B]."""
  return map_micro_batches(
      lambda params, packed: critic.scores(params, cfg, packed)
  )
