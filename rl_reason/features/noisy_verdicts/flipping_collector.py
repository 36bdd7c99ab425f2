"""A collector whose verdicts are wrong with a probability, drawn per response.

What reads a verdict in training reads the wrong one: dynamic sampling, rewards,
advantages, the pass rates of prompts, and train/accuracy. Evaluations grade
without a collector, and have no noise.
"""

from typing import Any

import numpy as np

from rl_reason.base.structs import Array, Experience
from rl_reason.collect import collector
from rl_reason.collect.experience import groups
from rl_reason.tasks import Row


def flips(ids_B: Array, *, share: float, seed: int) -> np.ndarray:
  """Which verdicts are wrong, [B] bool.

  The draw of a response is a function of (seed, id of its prompt, sample): the
  batch, its order, other prompts and a resume change none.

  Args:
    ids_B: ids of prompts, in groups of adjacent responses.
    share: probability of a wrong verdict.
    seed: of the noise.
  """
  draws = [
      np.random.default_rng((seed, ids_B[group[0]])).random(len(group))
      for group in groups(ids_B)
  ]
  return np.concatenate(draws) < share


class FlippingCollector(collector.RolloutCollector):
  """Flips a share of the verdicts.

  A response has a verdict if its row has a verifier, which did not fail, and if
  it has an end: truncated responses are incorrect without one.

  Args:
    *args: as of `RolloutCollector`.
    share: probability of a wrong verdict.
    seed: of the noise.
    **options: as of `RolloutCollector`.
  """

  def __init__(self, *args: Any, share: float, seed: int, **options: Any):
    super().__init__(*args, **options)
    self._share, self._seed = share, seed
    self._judged = self._flipped = self._right = self._responses = 0

  def start_step(self) -> None:
    """Resets the counts of responses and of wrong verdicts, too."""
    super().start_step()
    self._judged = self._flipped = self._right = self._responses = 0

  def counts(self) -> dict[str, Any]:
    """With the share of wrong verdicts, and the accuracy without noise."""
    found = super().counts()
    noise = {
        "noisy_verdicts/flipped": self._flipped / max(self._judged, 1),
        "noisy_verdicts/accuracy": self._right / max(self._responses, 1),
    }
    return found | dict(responses=found["responses"] | noise)

  def _score(
      self, rows: Experience, scores_UB: Array, rows_B: list[Row]
  ) -> Experience:
    correct_B, r = rows.correct_B, rows.rollouts
    judged_B = self._verified(rows_B) & ~r.truncated_B & (correct_B >= 0)
    flips_B = flips(r.ids_B, share=self._share, seed=self._seed) & judged_B
    self._judged += int(judged_B.sum())
    self._flipped += int(flips_B.sum())
    self._right += int((correct_B > 0).sum())
    self._responses += len(correct_B)
    noisy_B = np.where(flips_B, 1 - correct_B, correct_B)
    rows = rows.replace(correct_B=noisy_B.astype(correct_B.dtype))
    return super()._score(rows, scores_UB, rows_B)
