"""The model of a config: checkpoint, tokenizer, static shape and kernels."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from rl_reason import hf
from rl_reason.base import errors, functions
from rl_reason.checks import config_facts
from rl_reason.checks.model_directory import num_tokens
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


def policy_shape(
    c, source: hf.Source | None, tok: Any, say: Callable[[str], None]
) -> decoder.ModelConfig:
  """The static shape of the policy; says which kernel computes attention.

  Raises:
    ConfigError: that kernel does not read the key/value cache.
  """
  tokens = num_tokens(tok)
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
  shape = {k: x for k, x in c.model.items() if k not in ("path", "family")}
  shape["attention"], _ = attention_backend(c)
  return decoder.ModelConfig(vocab=vocab, tokens=tokens, **shape)


def attention_backend(c, backend: str = "") -> tuple[str, str]:
  """The kernel of attention on a backend, by default this one, and why."""
  m, sizes = c.model, config_facts.mesh_sizes(c, jax.device_count())
  parts = sizes["sequence"] * sizes["tensor"] if sizes["sequence"] > 1 else 1
  args = m.attention, backend or jax.default_backend(), m.dtype, m.head_dim
  name, reason = kernels.choose(*args, whole_rows=m.kv_heads % parts == 0)
  if name in TRIED and not backend and (failure := TRIED[name](m.head_dim)):
    return "xla", f"{name}: {failure}"
  return name, reason


def shares_prompts(c) -> bool:
  """Whether packed rows of RL hold the prompt of a group once.

  Raises:
    ConfigError: kernels compute attention, with updates.share_prompts = always.
  """
  wanted, kernel = c.updates.share_prompts, attention_backend(c)[0]
  if wanted == "always" and kernel != "xla":
    raise errors.ConfigError(
        f"updates.share_prompts = 'always': attention is computed by {kernel},"
        " whose masks have no shared prompts: use 'auto', or model.attention ="
        " 'xla'"
    )
  possible = kernel == "xla" and not config_facts.unshared_prompts(c)
  wants = wanted == "always" or (
      wanted == "auto" and config_facts.saves_tokens(c)
  )
  return possible and wants


def critic_config(c, trunk: decoder.ModelConfig) -> critic.CriticConfig:
  """The static shape of the critic of a config."""
  return functions.bind("critic_head", c.critic.head)(trunk)
