"""Which responses to a prompt are kept, and as what rows.

A function takes the `Sample`s of one prompt and returns the columns of each row
to write, without those of the prompt itself. `generate.keep` names it.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Sample(NamedTuple):
  """One response.

  Attributes:
    response: its text.
    final: its final answer, '' if there is none.
    correct: of the verifier; None where it failed, or there is none.
    reward: of the verdict, and of reward.functions.
    truncated: whether it has no end.
    ids, logps: its tokens, and their log-probs as they were sampled.
  """

  response: str
  final: str
  correct: bool | None
  reward: float
  truncated: bool
  ids: list[int]
  logps: list[float]


Columns = dict[str, Any]


def everything(samples: Sequence[Sample]) -> list[Columns]:
  """All responses, for replay."""
  return list(map(_columns, samples))


def correct(samples: Sequence[Sample]) -> list[Columns]:
  """Correct responses, each text once: rejection sampling."""
  found: dict[str, Sample] = {}
  for x in samples:
    if x.correct:
      found.setdefault(x.response, x)
  return list(map(_columns, found.values()))


def best(samples: Sequence[Sample]) -> list[Columns]:
  """The finished response with the highest reward, the first of equal ones.

  Where a verifier judges, it has to be correct.
  """
  judged = any(x.correct is not None for x in samples)
  fit = [x for x in samples if not x.truncated and (x.correct or not judged)]
  return [_columns(max(fit, key=lambda x: x.reward))] if fit else []


def pairs(samples: Sequence[Sample]) -> list[Columns]:
  """The responses with the highest and the lowest reward, if they differ."""
  ordered = sorted(samples, key=lambda x: -x.reward)
  chosen, rejected = ordered[0], ordered[-1]
  if chosen.reward == rejected.reward or chosen.response == rejected.response:
    return []
  return [
      dict(
          chosen=chosen.response,
          rejected=rejected.response,
          chosen_reward=chosen.reward,
          rejected_reward=rejected.reward,
      )
  ]


def majority(samples: Sequence[Sample]) -> list[Columns]:
  """Responses whose final answer more than half of all have: self-consistency.

  The answer of the row becomes that of the majority; verdicts decide nothing.
  """
  answers = [x.final for x in samples if x.final and not x.truncated]
  if not answers:
    return []
  answer, count = collections.Counter(answers).most_common(1)[0]
  if 2 * count <= len(samples):
    return []
  agreed = [x for x in samples if x.final == answer and not x.truncated]
  share = count / len(samples)
  return [_columns(x) | dict(answer=answer, share=share) for x in agreed]


NAMES: dict[str, Callable[[Sequence[Sample]], list[Columns]]] = dict(
    all=everything, correct=correct, best=best, pairs=pairs, majority=majority
)


def _columns(sample: Sample) -> Columns:
  out = sample._asdict()
  del out["final"]
  return out
