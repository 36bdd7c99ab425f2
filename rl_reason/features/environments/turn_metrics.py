"""Metrics of the turns of a batch."""

from rl_reason.base import feature
from rl_reason.base.structs import Experience
from rl_reason.monitoring import step_metrics


class TurnMetrics(feature.Part):
  """Logs how many turns the trajectories of a batch have."""

  def exchange(self, rows: Experience, step: int) -> dict[str, float]:
    """The number of turns: mean, and others; padding is left out."""
    real_B = rows.age_B >= 0
    if rows.turns is None or not real_B.any():
      return {}
    turns_B = rows.turns.numbers_BT.max(1)[real_B]
    return step_metrics.statistics("environment/turns", turns_B)
