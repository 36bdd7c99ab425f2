"""The recent responses to each prompt, however many steps ago they were.

A temporal group: the prompt's own past outputs. Only those to the prompts of a
batch are read, and get importance weights, so that a long memory costs memory
on the host and no further forward passes.
"""

from typing import Any

import jax
import numpy as np
from flax import struct

from rl_reason.base import feature
from rl_reason.base.structs import Array, Experience, Tree
from rl_reason.features.earlier_steps import history
from rl_reason.features.earlier_steps.history import History
from rl_reason.stages import collectors


@struct.dataclass
class PromptHistory:
  """The last K responses to each of P prompts.

  Attributes:
    responses: P K places; those of a prompt are adjacent, the oldest response
      first, and its empty places last.
    problems_P: int32, as in Experience; -1 for an empty place.
    used_P: int32, the number of the batch that had the prompt last.
  """

  responses: History
  problems_P: Array
  used_P: Array


def empty(no_rows: Experience, prompts: int, responses: int) -> PromptHistory:
  """Empty places for a number of prompts, and of responses to each."""
  one = history.from_rows(no_rows, no_rows.correct_B)
  places_R = np.zeros(prompts * responses, np.int32)  # no_rows is padding
  return PromptHistory(
      responses=jax.tree.map(lambda x: x[places_R], one),
      problems_P=np.full(prompts, -1, np.int32),
      used_P=np.zeros(prompts, np.int32),
  )


def append(
    old: PromptHistory, rows: Experience, rewards_B: Array
) -> PromptHistory:
  """Remembers a batch.

  A prompt keeps its newest responses. A new prompt takes an empty place, or
  that of the prompt that no batch has had for longest.
  """
  new = history.from_rows(rows, rewards_B)
  problems_P, used_P = old.problems_P.copy(), old.used_P.copy()
  responses = jax.tree.map(np.copy, old.responses)
  size, now = len(old.responses.start_H) // len(problems_P), used_P.max() + 1
  for problem in _distinct(new.problems_H):
    known = np.flatnonzero(problems_P == problem)
    at = known[0] if known.size else np.argmin(used_P)
    places = slice(at * size, (at + 1) * size)
    of_it = responses.problems_H[places] == problem
    added = new.problems_H == problem

    def newest(places_RX: Array, new_BX: Array, at=places, kept=(of_it, added)):
      both = np.concatenate([places_RX[at][kept[0]], new_BX[kept[1]]])[-size:]
      places_RX[at] = 0
      places_RX[at.start : at.start + len(both)] = both

    jax.tree.map(newest, responses, new)
    count = min(of_it.sum() + added.sum(), size)
    responses.problems_H[places][count:] = -1
    problems_P[at], used_P[at] = problem, now
  return PromptHistory(responses, problems_P, used_P)


def of_batch(whole: PromptHistory, problems_B: Array, count: int) -> History:
  """The responses to the prompts of a batch, in `count` places.

  Args:
    whole: of all prompts.
    problems_B: as in Experience.
    count: no smaller than the number of places of all prompts of the batch.
  """
  wanted = np.isin(whole.responses.problems_H, _distinct(problems_B))
  (places,) = np.nonzero(wanted)

  def chosen(places_RX: Array) -> Array:
    out = np.zeros((count, *places_RX.shape[1:]), places_RX.dtype)
    out[: len(places)] = places_RX[places]
    return out

  found = jax.tree.map(chosen, whole.responses)
  found.problems_H[len(places) :] = -1
  return found


def _distinct(problems_B: Array) -> list[int]:
  """The prompts of rows in their order, without padding."""
  return list(dict.fromkeys(x for x in problems_B.tolist() if x >= 0))


def of_config(c) -> PromptHistory:
  """An empty history in the shapes of a config."""
  a = c.advantage
  no_rows = collectors.empty_rows(c, c.rollout.batch)
  return empty(no_rows, a.history_prompts, a.history_responses)


class EarlierResponses(feature.Part):
  """The responses to each prompt of a run.

  Args:
    remembered: of step 0.
    count: see `of_batch`.
    **options: see `history.credit_inputs`.
  """

  def __init__(self, remembered: PromptHistory, count: int, **options: Any):
    self.history, self._count, self._options = remembered, count, options

  def exchange(self, rows: Experience, step: int) -> dict[str, float]:
    """Notes the prompts of the batch; the share of those that came before."""
    self._problems_B = rows.problems_B
    prompts = _distinct(rows.problems_B)
    known = np.isin(prompts, self.history.problems_P).sum()
    return {"train/prompts_known": known / max(len(prompts), 1)}

  def inputs(self, params: Tree, plan: Any) -> dict[str, Array]:
    """Rewards and importance weights of the prompts' earlier responses."""
    found = of_batch(self.history, self._problems_B, self._count)
    return history.credit_inputs(found, params, **self._options)

  def after(self, state, rows: Experience, credit: dict, entropy_BT) -> None:
    """Remembers the step."""
    self.history = append(self.history, rows, credit["rewards_B"])

  def arrays(self) -> dict[str, PromptHistory]:
    """The history."""
    return dict(history=self.history)

  def restore(self, arrays: dict[str, Any], host: dict) -> None:
    """Goes on with a saved history."""
    self.history = arrays["history"]
