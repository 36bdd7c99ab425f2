"""Which samples of a prompt become rows of training data.

A function takes the `Sample`s of one prompt and returns the columns of each
row, without the columns of the prompt. `generate.keep` names the function.
"""

import collections
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Sample(NamedTuple):
  """One response.

  Attributes:
    response: text of the response.
    final: the final answer, '' if there is none.
    correct: verdict of the verifier; None without a verifier, or if it failed.
    reward: sum of the verdict's reward and of reward.functions; None where a
      function failed, or where nothing scores the response.
    truncated: whether the response was cut off at the maximum length.
    ids, logps: tokens, and the log-probs of the sampler.
  """

  response: str
  final: str
  correct: bool | None
  reward: float | None
  truncated: bool
  ids: list[int]
  logps: list[float]


Columns = dict[str, Any]


def everything(samples: Sequence[Sample]) -> list[Columns]:
  """All responses, for replay."""
  return list(map(_columns, samples))


def correct(samples: Sequence[Sample]) -> list[Columns]:
  """Correct responses without duplicates: rejection sampling."""
  found: dict[str, Sample] = {}
  for x in samples:
    if x.correct:
      found.setdefault(x.response, x)
  return list(map(_columns, found.values()))


def best(samples: Sequence[Sample]) -> list[Columns]:
  """The first complete response with the highest reward: best of n.

  If the prompt has a verifier, the response must be correct.
  """
  judged = any(x.correct is not None for x in samples)
  fit = [
      (x.reward, -n)
      for n, x in enumerate(samples)
      if not x.truncated and (x.correct or not judged) and x.reward is not None
  ]
  return [_columns(samples[-max(fit)[1]])] if fit else []


def pairs(samples: Sequence[Sample]) -> list[Columns]:
  """The responses with the highest and the lowest reward, if these differ."""
  scored = [(x.reward, x) for x in samples if x.reward is not None]
  if not scored:
    return []
  ordered = [x for _, x in sorted(scored, key=lambda pair: -pair[0])]
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
  """Responses with the answer of more than half of all: self-consistency.

  This answer becomes the answer of the row; verdicts are ignored.
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


def prompts(samples: Sequence[Sample]) -> list[Columns]:
  """The prompt alone, with what was measured on its responses."""
  del samples
  return [{}]


def measured(samples: Sequence[Sample]) -> Columns:
  """What the responses say about the prompt: columns of all of its rows.

  The pass rate is the share of correct ones among the `samples` that have a
  verdict; None if none has.
  """
  verdicts = [x.correct for x in samples if x.correct is not None]
  return dict(
      pass_rate=sum(verdicts) / len(verdicts) if verdicts else None,
      samples=len(verdicts),
      response_tokens=sum(len(x.ids) for x in samples) / len(samples),
  )


NAMES: dict[str, Callable[[Sequence[Sample]], list[Columns]]] = dict(
    all=everything,
    correct=correct,
    best=best,
    pairs=pairs,
    majority=majority,
    prompts=prompts,
)


def _columns(sample: Sample) -> Columns:
  out = sample._asdict()
  del out["final"]
  return out
