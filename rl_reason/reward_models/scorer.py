"""A reward model as a scorer of responses, trained by us or by others."""

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


def load(session: Session, given: str) -> tuple[Tree, critic.CriticConfig]:
  """The parameters and the shape of a reward model, of ours or of others.

  Its network may be of another shape than the policy; its tokenizer may not.

  Args:
    session: of the run.
    given: the directory of an exported one, or see `classifier`.

  Raises:
    RunError: there is none, or it reads other tokens.
    ConfigError: so it is, of one of others.
  """
  if classifier.is_one(given):
    return classifier.load(session, given, "reward.scorers")
  path = pathlib.Path(given)
  checkpoints = checkpoint.Checkpoints(path)
  at = checkpoints.newest(session.display.say)
  if at is None:
    raise RunError(
        f"reward.scorers: {path} holds no whole reward model; make one with"
        " --stage=reward_model, it is in its export/reward_model"
    )
  fields = checkpoints.host(at)["config"]
  require_equal(
      f"reward.scorers = {path}",
      config_lib.flat(session.config),
      fields,
      ("tokenizer", "task.name"),
  )
  there = config_lib.unflat(fields)
  trunk = model_config(
      there, vocab=session.cfg.vocab, tokens=session.cfg.tokens
  )
  cfg = critic_config(there, trunk)
  table = critic.table(cfg)
  like = parameters.abstract(table, parameters.shardings(table, session.mesh))
  return checkpoints.restore(at, like), cfg


def scorer(session: Session, given: str):
  """A reward model, as `load` takes it, ready to score.

  Returns:
    the parameters, and a program: (params, Packed of minibatches) -> scores
    [M, B].

  Raises:
    RunError: there is none, or it reads other tokens.
  """
  params, cfg = load(session, given)
  return params, CompiledOnce(
      "scores of the reward model", scores_program(cfg), session.display
  )


def scores_program(cfg: critic.CriticConfig):
  """jit: (params, Packed of minibatches) -> scores [M, B]."""
  return map_micro_batches(
      lambda params, packed: critic.scores(params, cfg, packed)
  )
