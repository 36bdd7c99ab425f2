"""Metrics of a step by functions of the user: log.metrics."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from rl_reason.base import own_code
from rl_reason.base.structs import Batch, Experience, call_by_name


def arrays_of_step(
    rows: Experience, credit: Mapping[str, Any], batch: Batch, step: int
) -> dict[str, Any]:
  """What a function may name: NumPy arrays of the rows of a batch.

  Rows of padding are left out. `own_functions.OF_STEP` has the names.
  """
  r = rows.rollouts
  arrays = dict(
      rewards_B=credit["rewards_B"],
      correct_B=rows.correct_B,
      groups_B=r.ids_B,
      types_B=rows.types_B,
      problems_B=rows.problems_B,
      lengths_B=r.policy_lengths_B,
      truncated_B=r.truncated_B,
      age_B=rows.age_B,
      tokens_BL=r.tokens_BL,
      mask_BT=batch.mask_BT,
      sampler_logps_BT=r.logps_BT,
      advantages_BT=batch.advantages_BT,
      ref_logps_BT=batch.ref_logps_BT,
      values_BT=batch.values_BT,
      returns_BT=batch.returns_BT,
  )
  real_B = rows.age_B >= 0
  found: dict[str, Any] = {k: np.asarray(x)[real_B] for k, x in arrays.items()}
  found["scores_EB"] = tuple(np.asarray(x)[real_B] for x in rows.scores_EB)
  return found | dict(step=step)


class OwnMetrics:
  """Calls the functions of the user; one that fails is reported once.

  A function returns a number, or numbers by name. A failure does not stop the
  run: the step lacks its metrics.

  Args:
    functions: by label.
    say: prints a line.
  """

  def __init__(
      self, functions: Mapping[str, Callable], say: Callable[[str], None]
  ):
    self._functions, self._say = functions, say
    self._failed: set[str] = set()

  def __call__(
      self, rows: Experience, credit: Mapping[str, Any], batch: Batch, step: int
  ) -> dict[str, float]:
    """The metrics of a step, by name."""
    arrays = arrays_of_step(rows, credit, batch, step)
    out = {}
    for label, function in self._functions.items():
      try:
        found = call_by_name(function, arrays)
        named = found if isinstance(found, Mapping) else {"": found}
        out |= {
            f"own/{label}/{name}".rstrip("/"): float(x)
            for name, x in named.items()
        }
      except (Exception, SystemExit) as e:  # the user's code may raise anything
        if label not in self._failed:
          self._failed.add(label)
          self._say(
              f"warning: log.metrics: {label} raised {own_code.raised(e)}; it"
              " must return a number, or a dict of numbers: steps in which it"
              " fails lack its metrics"
          )
    return out
