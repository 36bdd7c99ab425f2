"""Reward models of others: classifiers of transformers that give one number.

`Qwen2ForSequenceClassification` and the like, with one label: a directory or a
hub id. It may be a scorer (`reward.scorers = "DIR*0.5"`), of any size, or where
a critic starts (`critic.init = "exported"`), if its trunk has the policy's
shape. It reads the policy's tokens, so its tokenizer must be the same one; a
response is scored after its last token, EOS included.
"""

import dataclasses
import pathlib

from rl_reason import hf
from rl_reason.checkpointing import checkpoint
from rl_reason.config import ConfigError
from rl_reason.data import tokenizer
from rl_reason.models import critic
from rl_reason.session import Session, require_equal
from rl_reason.structs import Tree
from rl_reason.tasks import scorers


def is_one(given: str) -> bool:
  """Whether transformers' files are meant, not a checkpoint of our own."""
  path = pathlib.Path(given)
  if not path.is_dir():
    return scorers.is_model(given)
  own = checkpoint.Checkpoints(path).steps()
  return (path / hf.CONFIG).is_file() and not own


def check(session: Session) -> None:
  """Refuses what the config names and cannot be used, before any work.

  Raises:
    ConfigError, RunError: names the field and the remedy.
  """
  for term in scorers.terms(session.config.reward.scorers):
    if scorers.is_model(term.name) and is_one(term.name):
      find(session, term.name, "reward.scorers")
  if session.config.critic.init == "exported" and is_one(
      session.config.critic.path
  ):
    _find_critic(session)


def find(session: Session, given: str, field: str) -> hf.Source:
  """Checks all of a classifier but the values of its weights.

  Args:
    session: of the run.
    given: a directory or a hub id.
    field: of the config, named in errors.

  Raises:
    ConfigError: it is damaged, not supported, has more than one label, is too
      short for the rollouts, or reads other tokens.
  """
  source = hf.find(given, field, lambda cfg: critic.table(_shape(cfg)))
  r = session.config.rollout
  slots = r.max_prompt + r.max_tokens
  if slots > source.context:
    raise ConfigError(
        f"{source.label}: takes {source.context} tokens, and"
        f" rollout.max_prompt and rollout.max_tokens make {slots}"
    )
  if not any((source.path / name).is_file() for name in hf.TOKENIZERS):
    raise ConfigError(
        f"{source.label}: has no tokenizer beside it, so nothing says that it"
        " reads the policy's tokens; put its own there"
    )
  ours = session.tok.get_vocab()
  theirs = tokenizer.load(str(source.path), "").get_vocab()
  differ = sorted(ours.items() ^ theirs.items())
  if differ:
    token = differ[0][0]
    raise ConfigError(
        f"{source.label}: has another tokenizer: {token!r} is"
        f" {theirs.get(token)} there and {ours.get(token)} here; take one that"
        " was made from the policy's family"
    )
  if max(ours.values()) >= source.cfg.vocab:
    raise ConfigError(
        f"{source.label}: has a vocab_size of {source.cfg.vocab}, and its"
        f" tokenizer has {1 + max(ours.values())} tokens; the checkpoint is"
        " damaged"
    )
  return source


def _shape(trunk) -> critic.CriticConfig:
  return critic.CriticConfig(trunk)  # a scalar head


def load(
    session: Session, given: str, field: str
) -> tuple[Tree, critic.CriticConfig]:
  """The parameters and the shape of a classifier, as `find` checks it."""
  source, m = find(session, given, field), session.cfg
  trunk = dataclasses.replace(
      source.cfg,
      dtype=m.dtype,
      remat=m.remat,
      logprob_chunk=m.logprob_chunk,
      tokens=m.tokens,
  )
  cfg = _shape(trunk)
  return hf.load(source, critic.table(cfg), session.mesh), cfg


def load_critic(session: Session) -> Tree:
  """The parameters of critic.path, as those of this run's critic.

  Raises:
    RunError: its shape is not that of the policy.
  """
  source = _find_critic(session)
  return hf.load(source, critic.table(session.critic_cfg), session.mesh)


def _find_critic(session: Session) -> hf.Source:
  source = find(session, session.config.critic.path, "critic.path")
  there, here = (
      {f"model.{name}": x for name, x in hf.architecture.fields(cfg).items()}
      for cfg in (source.cfg, session.cfg)
  )
  del here["model.tied"]  # a critic has no head of tokens
  here["critic.head"], there["critic.head"] = session.critic_cfg.head, "scalar"
  require_equal(source.label, here, there)
  return source
