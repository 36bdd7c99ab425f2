"""The model of a config: checkpoint, tokenizer, static shape and kernels."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from rl_reason import hf, tasks
from rl_reason.base import errors, functions
from rl_reason.checks import facts
from rl_reason.data import tokenizer
from rl_reason.devices import unused_accelerators
from rl_reason.models import critic, cudnn, decoder, kernels, pallas

# Times that bfloat16 takes on a CPU, of float32: sampling, and an update.
SLOWER = 2.8, 1.2  # results/dtype.md
# Kernels that are tried before a run chooses them: head_dim -> why they fail.
TRIED: dict[str, Callable[[int], str]] = {
    "cudnn": cudnn.failure,
    "triton": pallas.failure,
}


class Model(NamedTuple):
  """The static shapes of the networks of a run, and the devices that learn.

  Attributes:
    cfg: shape of the policy.
    critic_cfg: shape of a critic.
    mesh: the devices.
  """

  cfg: decoder.ModelConfig
  critic_cfg: critic.CriticConfig
  mesh: jax.sharding.Mesh


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
  source = hf.find(name, revision=facts.revision(c, name))
  shape = hf.architecture.fields(source.cfg)
  del shape["vocab"]  # no field: it follows from the tokenizer
  c.model.update(shape)
  length = c.rollout.max_prompt + c.rollout.max_tokens
  if length > source.context:
    raise errors.ConfigError(
        f"rollout.max_tokens = {c.rollout.max_tokens}: with"
        f" rollout.max_prompt it makes {length} tokens, and {source.label}"
        f" takes {source.context} (max_position_embeddings, sliding_window)"
    )
  return source


def load_tokenizer(c, source: hf.Source | None, alphabet: str) -> Any:
  """The tokenizer of the config, or else of the checkpoint `source`, if any.

  `alphabet` is of the task, for a tokenizer of characters.

  Raises:
    ConfigError: there is none, or it does not fit the checkpoint.
  """
  path = tokenizer_path(c, source)
  tok = tokenizer.load(path, alphabet, facts.revision(c, path))
  if source and (tokens := _size(tok)) > source.cfg.vocab:
    raise errors.ConfigError(
        f"tokenizer = {path!r}: has {tokens} tokens, and {source.label} has a"
        f" vocab_size of {source.cfg.vocab}; use the tokenizer of that model"
    )
  return tok


def tokenizer_path(c, source: hf.Source | None) -> str:
  """The path of the tokenizer: as configured, or of the checkpoint.

  Raises:
    ConfigError: there is none.
  """
  if c.tokenizer or not source:
    return c.tokenizer
  if not any((source.path / name).is_file() for name in hf.TOKENIZERS):
    raise errors.ConfigError(
        f"tokenizer = '': {source.label} has no tokenizer; name one"
    )
  return str(source.path)


def _size(tok: Any) -> int:
  return 1 + max(tok.get_vocab().values())


def check_prompts(
    c, task: Any, difficulties: tuple[int, ...], tok: Any
) -> None:
  """Refuses difficulties whose prompts are too long, or cannot be spelled.

  Raises:
    ConfigError: names the difficulties, or the characters.
  """
  if c.task.name == tasks.FILES:
    return
  slots = c.rollout.max_prompt
  texts = [task.longest(difficulty) for difficulty in difficulties]
  lacking = sorted(set("".join(texts)) - set(task.ALPHABET))
  if lacking and not (c.tokenizer or c.model.path):
    raise errors.ConfigError(
        f"tokenizer = '': the ALPHABET of {c.task.name} lacks the"
        f" characters {''.join(lacking)!r} of its prompts: name a tokenizer"
    )
  sizes = list(map(len, tokenizer.encode(tok, texts)))
  if max(sizes) > slots:
    longest = texts[sizes.index(max(sizes))]
    too_long = [
        str(difficulty)
        for difficulty, size in zip(difficulties, sizes, strict=True)
        if size > slots
    ]
    raise errors.ConfigError(
        f"rollout.max_prompt = {slots}: {longest!r} has {max(sizes)} tokens;"
        f" raise it, or leave {', '.join(too_long)} out of task.difficulties"
    )


def policy_shape(
    c, source: hf.Source | None, tok: Any, say: Callable[[str], None]
) -> decoder.ModelConfig:
  """The static shape of the policy; says which kernel computes attention.

  Raises:
    ConfigError: that kernel does not read the key/value cache.
  """
  tokens = _size(tok)
  vocab = source.cfg.vocab if source else tokens
  cfg = model_config(c, vocab=vocab, tokens=tokens)
  chosen = kernels.KERNELS.get(cfg.attention)
  if c.rollout.cache == "int8" and chosen and not chosen.int8:
    raise errors.ConfigError(
        "rollout.cache = 'int8': the paged attention of"
        f" {cfg.attention} does not read int8; use 'same'"
    )
  say(f"attention: {cfg.attention} ({attention_backend(c)[1]})")
  if line := unused_accelerators.unused_accelerator(jax.default_backend()):
    say(f"warning: {line}")
  if line := slow_dtype(cfg):
    say(f"warning: {line}")
  return cfg


def slow_dtype(cfg: decoder.ModelConfig) -> str:
  """A warning if the dtype of the products is slow on this machine, or ''."""
  if cfg.dtype != "bfloat16" or jax.default_backend() != "cpu":
    return ""
  return (
      f"model.dtype = {cfg.dtype!r} is slow on a CPU: sampling took"
      f" {SLOWER[0]} times as long as in float32, and an update {SLOWER[1]}"
      " times (results/dtype.md); on a CPU set model.dtype = 'float32'"
  )


def model_config(c, *, vocab: int, tokens: int | None) -> decoder.ModelConfig:
  """The static shape of the model of a config.

  Args:
    c: the config of this run or of another one.
    vocab: rows of the embedding.
    tokens: number of tokens of the tokenizer, at most `vocab`.
  """
  shape = {k: x for k, x in c.model.items() if k != "path"}
  shape["attention"], _ = attention_backend(c)
  return decoder.ModelConfig(vocab=vocab, tokens=tokens, **shape)


def attention_backend(c, backend: str = "") -> tuple[str, str]:
  """The kernel of attention on a backend, by default this one, and why."""
  m, sizes = c.model, facts.mesh_sizes(c, jax.device_count())
  parts = sizes["sequence"] * sizes["tensor"] if sizes["sequence"] > 1 else 1
  args = m.attention, backend or jax.default_backend(), m.dtype, m.head_dim
  name, reason = kernels.choose(*args, whole_rows=m.kv_heads % parts == 0)
  if name in TRIED and not backend and (failure := TRIED[name](m.head_dim)):
    return "xla", f"{name}: {failure}"
  return name, reason


def critic_config(c, trunk: decoder.ModelConfig) -> critic.CriticConfig:
  """The static shape of the critic of a config."""
  return functions.bind("critic_head", c.critic.head)(trunk)
