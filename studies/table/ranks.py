"""Ranks of rows with confidence, from values that are paired by seed.

Shapes here: N seeds; K rows; R bootstrap samples.
"""

from typing import NamedTuple

import numpy as np

LEAST = 5  # seeds of a bootstrap
RESAMPLES = 4000
LEVEL = 0.95


class Ranks(NamedTuple):
  """What the seeds say about the order of the rows; rank 1 is the highest mean.

  Attributes:
    low_K: least rank of each row that the seeds do not exclude.
    high_K: greatest rank that they do not exclude.
    quantile: half-widths of the simultaneous intervals of all differences, in
      standard errors.
    mean_KK: difference of the means, row minus column.
    half_KK: half-widths of the simultaneous intervals.
    different_KK: whether an interval excludes 0.
  """

  low_K: np.ndarray
  high_K: np.ndarray
  quantile: float
  mean_KK: np.ndarray
  half_KK: np.ndarray
  different_KK: np.ndarray


def ranks(values_NK: np.ndarray, samples: int = RESAMPLES) -> Ranks | None:
  """Ranks the rows by their means; None for fewer than `LEAST` seeds.

  Differences of all pairs get simultaneous intervals: the bootstrap resamples
  seeds, and the quantile of the largest studentized difference of a sample
  holds for all pairs at once. The rank of a row lies between 1 + the number of
  rows above and K - the number of rows below by these intervals; all ranks do
  so at once with the same confidence (Mogstad, Romano, Shaikh and Wilhelm,
  "Inference for ranks", Review of Economic Studies, 2024).

  Args:
    values_NK: for instance accuracy, by seed and row.
    samples: of the bootstrap.
  """
  count, rows = values_NK.shape
  if count < LEAST:
    return None
  rng = np.random.default_rng(0)
  times_RN = rng.multinomial(count, np.full(count, 1 / count), samples)
  differences_NKK = values_NK[:, :, None] - values_NK[:, None, :]
  flat_ND = differences_NKK.reshape(count, -1)
  mean_1D, error_1D = _mean_and_error(np.ones((1, count)), flat_ND)
  again_RD, spread_RD = _mean_and_error(times_RN, flat_ND)
  # A pair whose difference is the same in all seeds of a sample tells nothing.
  known_RD = spread_RD > 1e-9 * error_1D.max(initial=1e-300)
  scores_RD = np.abs(again_RD - mean_1D) / np.where(known_RD, spread_RD, np.inf)
  largest_R = scores_RD.max(1)
  mean_KK, error_KK = (x.reshape(rows, rows) for x in (mean_1D, error_1D))
  quantile = float(np.quantile(largest_R, LEVEL))
  half_KK = quantile * error_KK
  above_KK = mean_KK > half_KK  # the row is above the column
  return Ranks(
      low_K=1 + above_KK.sum(0),
      high_K=rows - above_KK.sum(1),
      quantile=quantile,
      mean_KK=mean_KK,
      half_KK=half_KK,
      different_KK=above_KK | above_KK.T,
  )


def _mean_and_error(
    times_RN: np.ndarray, x_ND: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
  """Means and standard errors of samples that have each seed some times."""
  count = len(x_ND)
  mean_RD = times_RN @ x_ND / count
  square_RD = times_RN @ x_ND**2 / count
  variance_RD = np.maximum(square_RD - mean_RD**2, 0) / (count - 1)
  return mean_RD, variance_RD**0.5
