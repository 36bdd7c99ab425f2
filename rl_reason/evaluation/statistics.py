"""Statistics of held-out accuracy: intervals, pass@k, maj@k, calibration."""

import collections
import math
from typing import NamedTuple

import numpy as np

Z = 1.959964  # of a 95% interval


def share_interval(values_N: np.ndarray) -> tuple[float, float]:
  """Returns the mean over prompts and the half-width of its 95% interval.

  Wilson's interval (1927), which holds for few prompts and for means near 0 and
  1, where the normal one is far too narrow. A prompt counts for more than one
  trial as far as the values of prompts vary less than single trials would;
  their variance is shrunk towards the variance of trials by one observation, so
  that few prompts are not taken for equal ones. The longer side of the interval
  is returned.

  Args:
    values_N: one number in [0, 1] per prompt: samples of a prompt are averaged
      first, as they are not independent.
  """
  count, mean = len(values_N), float(values_N.mean())
  trial = mean * (1 - mean)  # variance of a single trial
  variance = (float(((values_N - mean) ** 2).sum()) + trial) / count
  trials = count * trial / variance if variance else count
  scale = 1 / (1 + Z**2 / trials)
  centre = scale * (mean + Z**2 / (2 * trials))
  half = scale * Z * (trial / trials + (Z / (2 * trials)) ** 2) ** 0.5
  return mean, half + abs(centre - mean)


def mean_interval(values_N: np.ndarray) -> tuple[float, float]:
  """Returns the mean of [N] numbers and half of its 95% normal interval.

  For rewards, whose bounds are not known; shares have `share_interval`. Samples
  of a prompt are averaged first, as they are not independent.
  """
  std = values_N.std(ddof=1) if len(values_N) > 1 else 0.0
  return float(values_N.mean()), float(1.96 * std / len(values_N) ** 0.5)


def interval(measure: str, values_N: np.ndarray) -> tuple[float, float]:
  """The interval of a mean: of a share if the measure is 'acc'."""
  return (share_interval if measure == "acc" else mean_interval)(values_N)


def pass_at_k(correct_NG: np.ndarray, k: int) -> np.ndarray:
  """Returns unbiased estimates that at least one of k samples is correct: [N].

  1 - C(G - c, k) / C(G, k), c of G correct (Codex, arXiv:2107.03374, eq 1).

  Args:
    correct_NG: {0, 1}, G >= k samples of each prompt.
    k: samples drawn without replacement.
  """
  samples = correct_NG.shape[1]
  incorrect_N = samples - correct_NG.sum(1).astype(int)
  # Exact integers: floating-point binomials overflow for many samples.
  none_N = [math.comb(n, k) / math.comb(samples, k) for n in incorrect_N]
  return 1 - np.array(none_N)


def best_of_k(
    correct_NG: np.ndarray, score_NG: np.ndarray, k: int
) -> np.ndarray:
  """Returns the expected correctness of the best-scored of k samples: [N].

  The mean over all subsets of k of the G samples, without sampling them (k
  samples drawn without replacement, as in `pass_at_k`); of equal scores each
  is chosen with equal probability. The best score of a subset is s with the
  probability (C(n(<=s), k) - C(n(<s), k)) / C(G, k), where n counts samples by
  their score, and the chosen sample is then any of those with the score s.

  Args:
    correct_NG: {0, 1}, G >= k samples of each prompt.
    score_NG: their scores; a score that is not finite is below all others.
    k: samples drawn without replacement.
  """
  out_N, samples = np.zeros(len(correct_NG)), correct_NG.shape[1]
  known_NG = np.where(np.isfinite(score_NG), score_NG, -np.inf)
  for n, score_G in enumerate(known_NG):
    for score in np.unique(score_G):
      up_to, below = (score_G <= score).sum(), (score_G < score).sum()
      # Exact integers, as in `pass_at_k`.
      subsets = math.comb(int(up_to), k) - math.comb(int(below), k)
      chosen = correct_NG[n][score_G == score].mean()
      out_N[n] += subsets / math.comb(samples, k) * chosen
  return out_N


def majority_vote(
    answers_NG: list[list[str]], correct_NG: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Returns the share of the most frequent answer, and whether it is correct.

  Samples without an answer ('') do not vote; ties go to the earlier answer.
  Answers are compared as text.

  Args:
    answers_NG: answer of each sample.
    correct_NG: {0, 1} of each sample.

  Returns:
    share of all samples that gave the answer [N], and {0, 1} [N]; both are 0
    where no sample votes.
  """
  share_N, correct_N = np.zeros((2, len(answers_NG)))
  for n, answers in enumerate(answers_NG):
    votes = collections.Counter(answer for answer in answers if answer)
    if votes:
      winner, count = votes.most_common(1)[0]
      share_N[n] = count / len(answers)
      correct_N[n] = correct_NG[n][answers.index(winner)]
  return share_N, correct_N


def calibration_error(
    confidence_N: np.ndarray, correct_N: np.ndarray, *, bins: int = 10
) -> float:
  """Expected calibration error (arXiv:1706.04599, eq 3).

  Args:
    confidence_N: [N] in [0, 1], confidence of each prediction.
    correct_N: [N] in [0, 1].
    bins: number of bins of confidence, of equal width.
  """
  bin_N = _bins(confidence_N, bins)
  gaps = [
      (bin_N == i).mean() * abs((correct_N - confidence_N)[bin_N == i].mean())
      for i in np.unique(bin_N)
  ]
  return float(sum(gaps))


class Bin(NamedTuple):
  """Predictions of similar confidence.

  Attributes:
    prompts: number of predictions.
    confidence: their mean confidence.
    accuracy, half: share of correct ones, and half of its 95% interval.
  """

  prompts: int
  confidence: float
  accuracy: float
  half: float


def calibration_curve(
    confidence_N: np.ndarray, correct_N: np.ndarray, *, bins: int = 10
) -> list[Bin]:
  """Returns the bins of `calibration_error` that are not empty, in order."""
  bin_N = _bins(confidence_N, bins)
  return [
      Bin(
          int((bin_N == i).sum()),
          float(confidence_N[bin_N == i].mean()),
          *share_interval(correct_N[bin_N == i]),
      )
      for i in np.unique(bin_N)
  ]


def _bins(confidence_N: np.ndarray, bins: int) -> np.ndarray:
  """The bin of each confidence, [N]; a confidence of 1 is in the last one."""
  return np.minimum((confidence_N * bins).astype(int), bins - 1)
