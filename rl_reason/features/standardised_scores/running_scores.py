"""Running statistics of a reward model's scores, and standardised scores.

The scale of a reward model is arbitrary, and its scores drift as the policy
learns. With reward.model_scale = "running" a score is rewarded as

  clip((score - mean) / std, -c, c)                arXiv:2307.04964, sec 5.3.1

with the mean and the standard deviation of all scores of the run so far, this
round included, and c = reward.model_clip. The moments of a round join the
running moments exactly (Chan, Golub and LeVeque, 1979, eq 2.1):

  n = n_a + n_b,  d = mean_b - mean_a,  mean = mean_a + d n_b / n
  M2 = M2_a + M2_b + d^2 n_a n_b / n,   std = sqrt(M2 / n)

Host code in float64. All processes see all scores, so that they agree.
"""

from typing import Any

import numpy as np

from rl_reason.base.structs import Array

EPS = 1e-8  # of the standard deviation: equal scores become 0


class RunningScores:
  """Standardises the scores of one reward model.

  Args:
    name: of the reward model in metrics.
    clip: c, in standard deviations; 0 is off.

  Attributes:
    count: number of scores so far.
    mean: of all scores so far.
    squares: M2, the sum of squared deviations from the mean.
  """

  def __init__(self, name: str, clip: float):
    self.count, self.mean, self.squares = 0, 0.0, 0.0
    self._name, self._clip = name, clip
    self.reset()

  @property
  def std(self) -> float:
    """Of all scores so far; 0 without any."""
    return float(np.sqrt(self.squares / max(self.count, 1)))

  def reset(self) -> None:
    """Begins the metrics of the next step."""
    self._step, self._clipped = np.zeros(0), 0

  def __call__(self, scores_B: Array, real_B: Array) -> Array:
    """Adds the scores of a round to the statistics, and standardises them.

    Args:
      scores_B: raw scores; a score that is not finite stays as it is, and is
        not counted.
      real_B: whether a row is a response; padding is not counted.

    Returns:
      float32 scores [B].
    """
    scores_B = np.asarray(scores_B, np.float64)
    found = scores_B[real_B & np.isfinite(scores_B)]
    self._add(found)
    out_B = (scores_B - self.mean) / (self.std + EPS)
    self._step = np.append(self._step, found)
    if self._clip:
      clipped_B = real_B & np.isfinite(out_B) & (np.abs(out_B) > self._clip)
      self._clipped += int(clipped_B.sum())
      out_B = np.clip(out_B, -self._clip, self._clip)
    # Clipped, an infinite score would be a reward.
    out_B = np.where(np.isfinite(scores_B), out_B, scores_B)
    return out_B.astype(np.float32)

  def _add(self, scores: np.ndarray) -> None:
    if not scores.size:
      return
    count, mean = self.count + scores.size, scores.mean()
    difference = mean - self.mean
    self.squares += float(
        np.sum((scores - mean) ** 2)
        + difference**2 * self.count * scores.size / count
    )
    self.mean += float(difference * scores.size / count)
    self.count = count

  def metrics(self) -> dict[str, float]:
    """Of the raw scores since `reset`, and of all scores so far."""
    name = f"reward/{self._name}"
    if not self._step.size:
      return {}
    out = {
        # Raw: the scores of the batch always have a mean near 0.
        f"{name}/mean": float(self._step.mean()),
        f"{name}/std": float(self._step.std()),
        f"{name}/running_mean": self.mean,
        f"{name}/running_std": self.std,
    }
    if self._clip:
      out[f"{name}/clipped"] = self._clipped / self._step.size
    return out

  def get_state(self) -> dict[str, Any]:
    """The statistics as JSON, whose numbers are exact."""
    return dict(count=self.count, mean=self.mean, squares=self.squares)

  def set_state(self, state: dict[str, Any]) -> None:
    """Restores `get_state`."""
    self.count, self.mean = state["count"], state["mean"]
    self.squares = state["squares"]
