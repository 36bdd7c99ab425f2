"""Tasks: where rows come from, and the verifier of each.

A task is a module with

  ALPHABET, MAX_RESPONSE               what texts are made of, in characters
  DIFFICULTIES, STYLES                 levels; styles of demonstration
  longest(difficulty) -> str           as long as a prompt of it can be
  problem(rng, difficulty) -> Row      a random problem
  demonstrate(row, style, rng) -> str  a response in one style, without EOS
  verify(text, row) -> bool            whether a finished response is right
  answer(text, row) -> str             what the response answers, for maj@k

`files` is the exception: its rows are not made here, its verdicts come from
worker processes.

Rows are held out by a hash of the prompt, here, so that no task can forget.
"""

import functools
import hashlib
import importlib
import types
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

NAMES = ("arithmetic", "countdown")
FILES = "files"  # the task whose rows are not made here
HELD_OUT_SHARE = 5  # one prompt in five


class Row(NamedTuple):
  """A problem: what the model reads, and what the verifier needs.

  Attributes:
    prompt: as the model reads it.
    answer: the gold.
    difficulty: a level.
    kind: verifier of a row that no task made: math, choice, code.
    source: the set that it is from.
    response, rejected: of a pair to learn from.
    tolerance: absolute error that a numeric answer may have.
  """

  prompt: str
  answer: str
  difficulty: int
  kind: str = ""
  source: str = ""
  response: str = ""
  rejected: str = ""
  tolerance: float = 0.0


def get(name: str) -> types.ModuleType:
  """The task's module."""
  return importlib.import_module(f"rl_reason.tasks.{name}")


def begin(
    task, pairs: list[tuple[str, Row]]
) -> Callable[[], list[bool | None]]:
  """Starts to verify (response, row) pairs.

  Returns:
    a function that waits for the verdicts; None where the verifier failed.
  """
  if hasattr(task, "begin"):
    return task.begin(pairs)

  def verdict(text, row):
    try:
      return bool(task.verify(text, row))
    except Exception:  # whatever it is, the run goes on
      return None

  verdicts = [verdict(*pair) for pair in pairs]
  return lambda: verdicts


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
def evaluation_rows(
    task, levels: tuple[int, ...], count: int
) -> tuple[Row, ...]:
  """A fixed set of distinct held-out rows, shared evenly by the levels.

  A level with too few distinct prompts gives all it has and the others take
  its place; fewer than `count` rows if all are used up. The rows do not depend
  on the seed of a run, and come in random order: the first n of them are a
  fair sample.
  """
  rng = np.random.default_rng(20261121)
  found: dict[str, Row] = {}
  open_levels = list(levels)
  while len(found) < count and open_levels:
    for level in list(open_levels):
      for _ in range(1000):
        row = draw(task, rng, (level,), evaluation=True)
        if row.prompt not in found:
          break
      else:
        open_levels.remove(level)
        continue
      found[row.prompt] = row
  rows = list(found.values())[:count]
  return tuple(rows[i] for i in rng.permutation(len(rows)))
