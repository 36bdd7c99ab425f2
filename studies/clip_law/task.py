"""A task with one decisive token, for the study.

A prompt is a letter and six digits, `a402915=`: 1e6 prompts of each letter. A
response is one letter. The right one is the capital of the prompt's letter; SFT
shows it with a small probability, and otherwise X, which is always wrong. The
difficulty is the number of letters: of 1, one token is right in all prompts; of
several, each kind of prompt has a decisive token of its own.
"""

import jax.numpy as jnp
import numpy as np

from rl_reason.algorithms import advantages
from rl_reason.base.structs import Array
from rl_reason.tasks import Row

LETTERS = "abcdefgh"
WRONG = "X"
ALPHABET = "0123456789=" + LETTERS + LETTERS.upper() + WRONG
DIFFICULTIES = (1, len(LETTERS))
STYLES = ("rare", "common")


def problem(rng: np.random.Generator, difficulty: int) -> Row:
  """A random prompt of one of `difficulty` kinds."""
  letter = LETTERS[rng.integers(difficulty)]
  prompt = f"{letter}{rng.integers(10**6):06d}="
  return Row(prompt, letter.upper(), difficulty)


def demonstrate(row: Row, style: str, rng: np.random.Generator) -> str:
  """The right letter of style 'rare', the wrong letter of style 'common'."""
  del rng
  return row.answer if style == "rare" else WRONG


def verify(text: str, row: Row) -> bool:
  """Whether the response is the right letter."""
  return text == row.answer


def positive(rewards_B: Array, groups_B: Array) -> Array:
  """GRPO's advantage of right responses; 0 for wrong ones."""
  return jnp.maximum(advantages.group_norm(rewards_B, groups_B), 0)
