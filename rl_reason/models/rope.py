"""Rotary positions (arXiv:2104.09864), and how contexts are extended.

A scaling divides some frequencies by `rope_factor` and leaves others: a row of
`UNCHANGED` says which share of each frequency stays. The formulas are the ones
of transformers, whose config.json names them.
"""

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from rl_reason.base.structs import Array

Shape = Any  # a `decoder.ModelConfig`, whose docstring has the fields


def _llama3(cfg: Shape, freq_C: np.ndarray) -> np.ndarray:
  """Llama 3.1 (arXiv:2407.21783; the formula is in the released code).

  Frequencies of fewer than `rope_low` rotations within `rope_context` tokens
  are scaled, frequencies of more than `rope_high` rotations stay; in between,
  the unchanged share rises linearly with the rotations.
  """
  rotations_C = cfg.rope_context * freq_C / (2 * np.pi)
  return (rotations_C - cfg.rope_low) / (cfg.rope_high - cfg.rope_low)


def _yarn(cfg: Shape, freq_C: np.ndarray) -> np.ndarray:
  """YaRN (arXiv:2309.00071, equations 17 to 20).

  As `_llama3`, but linear in the index of the frequency. With `rope_truncate`
  the ramp begins and ends at whole indices.
  """

  def index(rotations: float) -> float:
    """The index of the frequency with this number of rotations."""
    turns = cfg.rope_context / (2 * math.pi * rotations)
    return cfg.head_dim / 2 * math.log(turns) / math.log(cfg.rope_theta)

  first, last = index(cfg.rope_high), index(cfg.rope_low)
  if cfg.rope_truncate:
    first, last = math.floor(first), math.ceil(last)
  first, last = max(first, 0), min(last, cfg.head_dim - 1)
  last += 0.001 * (first == last)
  return (last - np.arange(len(freq_C))) / (last - first)


# Rope type of transformers -> the share of each frequency that is not divided.
# 'dynamic' scales nothing within max_position_embeddings, and a model reads no
# more tokens: beyond, a token's log-prob would depend on the length of its row.
UNCHANGED: dict[str, Callable[[Shape, np.ndarray], np.ndarray]] = {
    "llama3": _llama3,
    "yarn": _yarn,
    "linear": lambda _, freq_C: np.zeros_like(freq_C),
    "dynamic": lambda _, freq_C: np.ones_like(freq_C),
}


def frequencies(cfg: Shape) -> np.ndarray:
  """Rotary frequencies [C / 2], radians a token, float64."""
  half = cfg.head_dim // 2
  freq_C = cfg.rope_theta ** (-np.arange(half) / half)
  share_C = np.clip(UNCHANGED[cfg.rope_type](cfg, freq_C), 0, 1)
  return freq_C * (share_C + (1 - share_C) / cfg.rope_factor)


def rotate(
    x_BLHC: Array, positions_BL: Array, freq_C: np.ndarray, scale: float = 1.0
) -> Array:
  """Rotary position embedding of halves (the convention of Llama and Qwen).

  Args:
    x_BLHC: queries or keys.
    positions_BL: int32, of each token in its sequence.
    freq_C: radians a token, [C / 2].
    scale: of the result (YaRN's attention factor).
  """
  freq32_C = jnp.asarray(freq_C, jnp.float32)
  angle_BL1C = positions_BL[:, :, None, None] * freq32_C
  cos, sin = jnp.cos(angle_BL1C) * scale, jnp.sin(angle_BL1C) * scale
  a, b = jnp.split(x_BLHC.astype(jnp.float32), 2, -1)
  rotated = jnp.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
  return rotated.astype(x_BLHC.dtype)
