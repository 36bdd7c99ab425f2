"""Reward models as terms of the reward: our own, or those of transformers."""

from rl_reason.base import config as config_lib
from rl_reason.base.structs import Tree
from rl_reason.checks import named_code
from rl_reason.models import critic, parameters
from rl_reason.stages import classifier
from rl_reason.stages.other_runs import other_checkpoint
from rl_reason.stages.session import Session, critic_config, model_config
from rl_reason.training.step import map_micro_batches


def load(
    session: Session, name: str, field: str = "reward.functions"
) -> tuple[Tree, critic.CriticConfig]:
  """Loads the parameters and the shape of a reward model.

  It is an export of ours, or a classifier (see `classifier`), which the config
  field of that name holds. Its shape may differ from the policy's; its
  tokenizer must not.

  Raises:
    RunError: the export is missing or has another tokenizer or task.
    ConfigError: likewise for a classifier.
  """
  if classifier.is_classifier(name):
    return classifier.load(session, name, field)
  equal = ("tokenizer", "task.name")
  checkpoints, step = other_checkpoint(
      session, field, name, equal, "--stage=reward_model"
  )
  fields = checkpoints.host(step)["config"]
  if fields["critic.head.name"] != session.config.critic.head.name:
    head = {"critic.head.name": fields["critic.head.name"]}
    named_code.refuse_code(f"{field} = {name}", head)
  config = config_lib.unflat(fields)
  config.mesh = session.config.mesh  # that of the devices which score
  policy = session.cfg
  trunk = model_config(config, vocab=policy.vocab, tokens=policy.tokens)
  cfg = critic_config(config, trunk)
  table = critic.table(cfg)
  like = parameters.abstract(table, parameters.shardings(table, session.mesh))
  return checkpoints.restore(step, like), cfg


def scores_program(cfg: critic.CriticConfig):
  """Returns jit: (params, Packed of minibatches) -> scores [M, B]."""
  return map_micro_batches(
      lambda params, packed: critic.scores(params, cfg, packed)
  )
