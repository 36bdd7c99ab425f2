"""Reward functions of the package, each of one response.

The config names them as terms of the reward: `reward_terms.py`.
"""

import re
from collections.abc import Sequence
from typing import NamedTuple

from rl_reason.tasks import Row
from rl_reason.verifiers.arithmetic_steps import verdicts as step_verdicts


class Response(NamedTuple):
  """What a function of one response may look at.

  Attributes:
    text: without its EOS.
    share: its number of tokens divided by rollout.max_tokens.
    truncated: whether it has no EOS.
  """

  text: str
  share: float
  truncated: bool


def boxed(response: Response, row: Row) -> float:
  r"""1 if there is one \boxed{...} and it closes, else 0."""
  before, mark, rest = response.text.partition("\\boxed{")
  depth = 1
  for symbol in rest:
    depth += (symbol == "{") - (symbol == "}")
    if not depth:
      break
  return float(bool(mark) and not depth and "\\boxed{" not in rest)


_TAG = re.compile(r"</?(think|answer)>")
_TAGS = re.compile(
    r"\s*<think>(?P<think>.+?)</think>\s*<answer>(?P<answer>.+?)</answer>\s*",
    re.DOTALL,
)


def tags(response: Response, row: Row) -> float:
  """1 for exactly <think>...</think> <answer>...</answer>, else 0.

  The format reward of R1-Zero (arXiv:2501.12948, sec 2.2.2). The first tag may
  be the end of the prompt.
  """
  text = response.text
  if row.prompt.rstrip().endswith("<think>"):
    text = "<think>" + text
  match = _TAGS.fullmatch(text)
  inner = match["think"] + match["answer"] if match else ""
  return float(bool(match) and not _TAG.search(inner))


def length(response: Response, row: Row) -> float:
  """The share of the allowed tokens that the response has."""
  return response.share


def steps(response: Response, row: Row) -> float:
  """The share of correct arithmetic steps, or 0."""
  correct = step_verdicts(response.text)
  return sum(correct) / len(correct) if correct else 0.0


def repetition(response: Response, row: Row, *, run: int = 4) -> float:
  """The share of n-grams of words, n = `run`, that are repeated."""
  return repeated(response.text.split(), run=run)


def repeated(items: Sequence, *, run: int = 4) -> float:
  """The share of n-grams, n = `run`, that occur earlier in the sequence."""
  ngrams = [tuple(items[i : i + run]) for i in range(len(items) - run + 1)]
  return 1 - len(set(ngrams)) / len(ngrams) if ngrams else 0.0


NAMES = ("boxed", "tags", "length", "steps", "repetition")
