"""Sequence classifiers of transformers as reward models and initial critics.

A `Qwen2ForSequenceClassification` or the like with one label, in a directory or
on the hub, is a term of the reward (`reward.functions = "DIR*0.5"`) or, if its
trunk has the policy's shape, an initial critic (`critic.init = "exported"`). It
reads the policy's tokens, so it needs the same tokenizer; a response is scored
after its last token, EOS included.
"""

import dataclasses
import pathlib

from rl_reason import hf
from rl_reason.base.errors import ConfigError
from rl_reason.base.structs import Tree
from rl_reason.checkpointing import checkpoint
from rl_reason.checks import facts
from rl_reason.data import tokenizer
from rl_reason.models import critic
from rl_reason.stages.other_runs import require_equal
from rl_reason.stages.session import Session
from rl_reason.tasks import reward_terms


def is_classifier(name: str) -> bool:
  """Whether a name is a classifier of transformers: no checkpoint of ours."""
  path = pathlib.Path(name)
  if not path.is_dir():
    return reward_terms.is_model(name)
  has_checkpoint = bool(checkpoint.Checkpoints(path).steps())
  return (path / hf.CONFIG).is_file() and not has_checkpoint


def check(session: Session) -> None:
  """Refuses unusable classifiers that the config names, before any work.

  Raises:
    ConfigError, RunError: names the field and the remedy.
  """
  for term in reward_terms.terms(session.config.reward.functions):
    if reward_terms.is_model(term.name) and is_classifier(term.name):
      find(session, term.name, "reward.functions")
  c = session.config.critic
  if c.init == "exported" and is_classifier(c.path):
    _find_critic(session)


def find(session: Session, name: str, field: str) -> hf.Source:
  """Validates everything about a classifier except the values of its weights.

  It is a directory or a hub id, which the config field of that name holds.

  Raises:
    ConfigError: it is damaged or unsupported, has several labels, has too
      little context for the rollouts, or has another tokenizer.
  """
  source = hf.find(
      name,
      field,
      lambda cfg: critic.table(critic.scalar(cfg)),
      facts.revision(session.config, name),
  )
  rollout, vocab = session.config.rollout, session.tok.get_vocab()
  length = rollout.max_prompt + rollout.max_tokens
  if length > source.context:
    raise ConfigError(
        f"{source.label}: takes {source.context} tokens, and"
        f" rollout.max_prompt and rollout.max_tokens make {length}"
    )
  if not any((source.path / name).is_file() for name in hf.TOKENIZERS):
    raise ConfigError(
        f"{source.label}: has no tokenizer beside it, which must be the"
        " policy's; add its own"
    )
  other = tokenizer.load(str(source.path), "").get_vocab()
  differences = sorted(vocab.items() ^ other.items())
  if differences:
    token = differences[0][0]
    raise ConfigError(
        f"{source.label}: has another tokenizer: {token!r} has id"
        f" {other.get(token)}, and {vocab.get(token)} in the policy's; use a"
        " model of the policy's family"
    )
  if max(vocab.values()) >= source.cfg.vocab:
    raise ConfigError(
        f"{source.label}: has a vocab_size of {source.cfg.vocab}, and its"
        f" tokenizer has {1 + max(vocab.values())} tokens; the checkpoint is"
        " damaged"
    )
  return source


def load(
    session: Session, name: str, field: str
) -> tuple[Tree, critic.CriticConfig]:
  """Loads the parameters and the shape of a classifier; see `find`."""
  source, policy = find(session, name, field), session.cfg
  trunk = dataclasses.replace(
      source.cfg,
      dtype=policy.dtype,
      logits_dtype=policy.logits_dtype,
      remat=policy.remat,
      logprob_chunk=policy.logprob_chunk,
      tokens=policy.tokens,
  )
  cfg = critic.scalar(trunk)
  return hf.load(source, critic.table(cfg), session.mesh), cfg


def load_critic(session: Session) -> Tree:
  """Loads the classifier in critic.path as the parameters of a critic.

  Raises:
    RunError: its shape is not that of the policy.
  """
  table = critic.table(session.critic_cfg)
  return hf.load(_find_critic(session), table, session.mesh)


def _find_critic(session: Session) -> hf.Source:
  """Validates the classifier in critic.path against the critic's shape."""
  source = find(session, session.config.critic.path, "critic.path")
  theirs, ours = (
      {f"model.{name}": x for name, x in hf.architecture.fields(cfg).items()}
      for cfg in (source.cfg, session.cfg)
  )
  del ours["model.tied"]  # a critic has no LM head
  ours["critic.head.name"] = session.critic_cfg.head
  theirs["critic.head.name"] = "scalar"
  require_equal(source.label, ours, theirs)
  return source
