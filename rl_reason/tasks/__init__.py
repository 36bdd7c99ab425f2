"""Tasks: where rows come from, and the verifier of each.

A task is a module with

  ALPHABET, MAX_PROMPT, MAX_RESPONSE   what texts are made of, in characters
  DIFFICULTIES, STYLES                 levels; styles of demonstration
  problem(rng, difficulty) -> Row      a random problem
  demonstrate(row, style, rng) -> str  a response in one style, without EOS
  verify(text, row) -> bool            whether a finished response is right
  answer(text) -> str                  what the response answers, for maj@k

Rows are held out by a hash of the prompt, here, so that no task can forget.
"""

import functools
import hashlib
import importlib
import types
from typing import NamedTuple

import numpy as np

NAMES = ("arithmetic", "countdown")
HELD_OUT_SHARE = 5  # one prompt in five


class Row(NamedTuple):
  """A problem: what the model reads, and what the verifier needs."""

  prompt: str
  answer: str
  difficulty: int


def get(name: str) -> types.ModuleType:
  """The task's module."""
  return importlib.import_module(f"rl_reason.tasks.{name}")


def held_out(prompt: str) -> bool:
  """Whether a prompt belongs to the evaluation set: stable everywhere."""
  digest = hashlib.sha256(prompt.encode()).digest()
  return int.from_bytes(digest[:8], "big") % HELD_OUT_SHARE == 0


def draw(task, rng: np.random.Generator, levels, *, evaluation: bool) -> Row:
  """A random row, from the training or from the held-out prompts."""
  level = levels[rng.integers(len(levels))]
  while True:
    row = task.problem(rng, int(level))
    if held_out(row.prompt) == evaluation:
      return row


@functools.cache
def evaluation_rows(task, levels, count: int) -> list[Row]:
  """A fixed set of distinct held-out rows, shared evenly by the levels.

  A level with too few distinct prompts gives all it has and the others take
  its place. The rows do not depend on the seed of a run, and the first n of
  them are a mix of all levels.
  """
  rng = np.random.default_rng(20260101)
  found: dict[str, Row] = {}
  stale = 0
  while len(found) < count and stale < 3_000:
    row = draw(task, rng, levels, evaluation=True)
    stale = 0 if row.prompt not in found else stale + 1
    found.setdefault(row.prompt, row)
  return list(found.values())
