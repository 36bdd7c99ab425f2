"""Ratings of responses, and the preference pairs that follow from them.

WORKDIR/ratings.jsonl      every rating, with its prompt and response
WORKDIR/preferences.jsonl  {"prompt", "chosen", "rejected"}: a source of
                           data.train, from which reward models learn
"""

import collections
import json
import pathlib
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from rl_reason.monitoring import metrics

FILES = ("ratings.jsonl", "preferences.jsonl")
REMEMBERED = 10_000  # answers that can still be rated

Prompt = str | list[dict[str, Any]]  # a text, or the turns of a chat


class Unknown(Exception):
  """No answer of this id and index is remembered."""


class Answer(NamedTuple):
  """What a client got.

  Attributes:
    prompts: one, or as many as the request had.
    texts: the responses to each prompt, one prompt after the other.
  """

  prompts: Sequence[Prompt]
  texts: Sequence[str]

  def prompt(self, index: int) -> Prompt:
    """The prompt of a response."""
    return self.prompts[index * len(self.prompts) // len(self.texts)]


class Feedback:
  """Appends ratings and pairs to the files of a work directory.

  A rated response makes a pair with each earlier one to the same prompt that
  was rated differently, before a restart of the server, too.
  """

  def __init__(self, workdir: pathlib.Path):
    self._ratings, self._pairs = (workdir / name for name in FILES)
    self._answers: collections.OrderedDict[str, Answer]
    self._answers = collections.OrderedDict()
    self._rated: dict[str, dict[str, float]] = collections.defaultdict(dict)
    for row in metrics.read_jsonl(self._ratings):
      self._rated[_key(row["prompt"])][row["response"]] = row["rating"]

  def remember(self, name: str, answer: Answer) -> None:
    """Keeps an answer, so that it can be rated by its id."""
    self._answers[name] = answer
    while len(self._answers) > REMEMBERED:
      self._answers.popitem(last=False)

  def rate(self, name: str, index: int, rating: float, comment: str) -> int:
    """Appends a rating; returns how many pairs follow from it.

    Raises:
      Unknown: there is no such response.
    """
    prompt, text = self._find(name, index)
    rated = self._rated[_key(prompt)]
    pairs = [
        (text, other) if rating > value else (other, text)
        for other, value in rated.items()
        if value != rating and other != text
    ]
    rated[text] = rating
    row = dict(prompt=prompt, response=text, rating=rating, comment=comment)
    _append(self._ratings, [dict(time=time.time(), id=name, index=index) | row])
    self._append_pairs(prompt, pairs)
    return len(pairs)

  def prefer(self, name: str, chosen: int, rejected: int) -> int:
    """Appends the pair of two responses to one prompt; returns 1.

    Raises:
      Unknown: there are no such responses to one prompt.
    """
    (prompt, better), (other, worse) = (
        self._find(name, index) for index in (chosen, rejected)
    )
    if prompt != other:
      raise Unknown(f"{chosen} and {rejected} answer different prompts")
    self._append_pairs(prompt, [(better, worse)])
    return 1

  def _find(self, name: str, index: int) -> tuple[Prompt, str]:
    answer = self._answers.get(name)
    if answer is None:
      raise Unknown(
          f"no answer {name!r}: only the last {REMEMBERED:,} can be rated"
      )
    if index >= len(answer.texts):
      raise Unknown(f"{name} has {len(answer.texts)} responses, from 0")
    return answer.prompt(index), answer.texts[index]

  def _append_pairs(self, prompt: Prompt, pairs) -> None:
    _append(
        self._pairs,
        [
            dict(prompt=prompt, chosen=chosen, rejected=rejected)
            for chosen, rejected in pairs
        ],
    )


def _key(prompt: Prompt) -> str:
  return json.dumps(prompt, sort_keys=True)


def _append(path: pathlib.Path, rows: list[dict]) -> None:
  with path.open("a", encoding="utf-8") as file:
    file.writelines(json.dumps(row) + "\n" for row in rows)
