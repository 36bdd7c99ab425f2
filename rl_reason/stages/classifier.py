"""Sequence classifiers of transformers as reward models and initial critics.

A `Qwen2ForSequenceClassification` or the like with one label, in a directory or
on the hub, is a term of the reward (`reward.functions = "DIR*0.5"`) or, if its
trunk has the policy's shape, an initial critic (`critic.init = "exported"`). It
reads the policy's tokens, so it needs the same tokenizer; a response is scored
after its last token, EOS included.
"""

import dataclasses
import pathlib
from typing import Any

from rl_reason import hf
from rl_reason.base.errors import ConfigError
from rl_reason.base.structs import Tree
from rl_reason.checkpointing import checkpoint
from rl_reason.checks import config_facts
from rl_reason.checks.model_directory import num_tokens
from rl_reason.data import tokenizer
from rl_reason.models import critic
from rl_reason.stages.model import Model
from rl_reason.tasks import reward_terms


def is_classifier(name: str) -> bool:
  """Whether a name is a classifier of transformers, not an export of a run."""
  path = pathlib.Path(name)
  if not path.is_dir():
    return reward_terms.is_model(name)
  has_checkpoint = bool(checkpoint.Checkpoints(path).steps())
  return (path / hf.CONFIG).is_file() and not has_checkpoint


def find(c, name: str, field: str, tok: Any) -> hf.Source:
  """Validates everything about a classifier except the values of its weights.

  Args:
    c: the config.
    name: a directory or a hub id.
    field: of the config, which holds the name.
    tok: the tokenizer of the policy.

  Raises:
    ConfigError: it is damaged or unsupported, has several labels, has too
      little context for the rollouts, or has another tokenizer.
  """
  source = hf.find(
      name,
      field,
      lambda cfg: critic.table(critic.scalar(cfg)),
      config_facts.revision(c, name),
  )
  rollout = c.rollout
  length = rollout.max_prompt + rollout.max_tokens
  if length > source.context:
    raise ConfigError(
        f"{source.label}: takes {source.context} tokens, and"
        f" rollout.max_prompt and rollout.max_tokens make {length}: lower one,"
        " or use a model with a longer context"
    )
  if not any((source.path / name).is_file() for name in hf.TOKENIZERS):
    raise ConfigError(
        f"{source.label}: has no tokenizer; add its own, which must be the"
        " policy's"
    )
  other = tokenizer.load(str(source.path), "")
  if difference := tokenizer.difference(tok, other):
    raise ConfigError(
        f"{source.label}: has another tokenizer: {difference}; use a model of"
        " the policy's family"
    )
  if (tokens := num_tokens(tok)) > source.cfg.vocab:
    raise ConfigError(
        f"{source.label}: has a vocab_size of {source.cfg.vocab}, and its"
        f" tokenizer has {tokens} tokens; the checkpoint is damaged"
    )
  return source


def load(
    c, name: str, field: str, *, model: Model, tok: Any
) -> tuple[Tree, critic.CriticConfig]:
  """Loads the parameters and the shape of a classifier; see `find`."""
  source, policy = find(c, name, field, tok), model.cfg
  trunk = dataclasses.replace(
      source.cfg,
      dtype=policy.dtype,
      logits_dtype=policy.logits_dtype,
      remat=policy.remat,
      logprob_chunk=policy.logprob_chunk,
      tokens=policy.tokens,
  )
  cfg = critic.scalar(trunk)
  return hf.load(source, critic.table(cfg), model.mesh), cfg
