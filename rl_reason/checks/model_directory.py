"""The checkpoint and the tokenizer that a config names."""

import pathlib
from typing import Any

from rl_reason import hf
from rl_reason.base import errors
from rl_reason.checks import config_facts
from rl_reason.data import templates, tokenizer


def resolve(c) -> hf.Source | None:
  """The checkpoint of config.model.path; its shape is filled into the config.

  Args:
    c: config.model gets the shape of the checkpoint; to resolve it twice has no
      further effect.

  Returns:
    the checkpoint, or None if the model is a fresh one.

  Raises:
    ConfigError: it is damaged, not supported, or too short for the rollouts.
  """
  if not c.model.path:
    return None
  name = c.model.path
  source = hf.find(name, revision=config_facts.revision(c, name))
  shape = hf.architecture.fields(source.cfg)
  del shape["vocab"]  # no field: it follows from the tokenizer
  c.model.update(shape)
  require_context(c, source)
  return source


def require_context(c, source: hf.Source) -> None:
  """Refuses rollouts that are longer than the context of the checkpoint.

  Raises:
    ConfigError: names the field and the context.
  """
  length = config_facts.row_slots(c)
  prompts = config_facts.longest_prompts(c)
  prompt = max(prompts, key=prompts.__getitem__)
  if length > source.context:
    raise errors.ConfigError(
        f"rollout.max_tokens = {c.rollout.max_tokens}: with"
        f" {prompt} it makes {length} tokens, and {source.label}"
        f" takes {source.context} (max_position_embeddings, sliding_window):"
        f" lower rollout.max_tokens or {prompt}"
    )


def load_tokenizer(c, source: hf.Source | None, alphabet: str) -> Any:
  """The tokenizer of the config, or else of the checkpoint `source`, if any.

  `alphabet` is of the task, for a tokenizer of characters.

  Raises:
    ConfigError: there is none, or it does not fit the checkpoint.
  """
  path = tokenizer_path(c, source.path if source else None)
  tok = tokenizer.load(
      path,
      alphabet,
      config_facts.revision(c, path),
      templates.arguments(c.data.template_args),
  )
  if source and (tokens := num_tokens(tok)) > source.cfg.vocab:
    raise errors.ConfigError(
        f"tokenizer = {path!r}: has {tokens} tokens, and {source.label} has a"
        f" vocab_size of {source.cfg.vocab}; use the tokenizer of that model"
    )
  of_rollout(tok, c.rollout)
  return tok


def of_rollout(tok: Any, rollout: Any) -> None:
  """Notes on a tokenizer how prompts begin and responses end.

  `rollout` is a section of the config.

  Raises:
    ConfigError: a stop token is no token.
  """
  tokenizer.end_with(
      tok,
      rollout.stop_tokens,
      rollout.stop_strings,
      keep=rollout.include_stop_str_in_output,
  )
  if not rollout.add_special_tokens:
    tokenizer.begin_with(tok, ())


def tokenizer_path(c, checkpoint: pathlib.Path | None) -> str:
  """The path of the tokenizer: as configured, or of the checkpoint.

  Args:
    c: the config.
    checkpoint: the local directory of config.model.path; None without one.

  Raises:
    ConfigError: there is none.
  """
  if c.tokenizer or not checkpoint:
    return c.tokenizer
  if not any((checkpoint / name).is_file() for name in hf.TOKENIZERS):
    raise errors.ConfigError(
        f"tokenizer = '': model.path = {c.model.path!r} has no tokenizer"
        f" ({', '.join(hf.TOKENIZERS)}); name one"
    )
  return str(checkpoint)


def num_tokens(tok: Any) -> int:
  """Rows of an embedding that a tokenizer needs."""
  return 1 + max(tok.get_vocab().values())
