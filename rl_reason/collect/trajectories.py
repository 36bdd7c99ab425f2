"""Rollout collection in environments: trajectories of several turns."""

import functools
from typing import Any

from rl_reason.base.structs import Experience
from rl_reason.collect.collector import RolloutCollector, _nothing
from rl_reason.collect.episodes import Environments, Episodes


class TurnsCollector(RolloutCollector):
  """A collector whose responses are trajectories in environments.

  Args:
    environments: of the run.
    environment_seed: of the generators that environments get.
    **options: of `RolloutCollector`.
  """

  def __init__(
      self,
      *args,
      environments: Environments,
      environment_seed: int,
      **options,
  ):
    super().__init__(*args, **options)
    self._environments, self._seed = environments, environment_seed
    self._episodes: Episodes

  def _sample(
      self, weights, ids, rows, sizes_N, rows_B, on_dispatch, **options
  ) -> Any:
    """Yields all trajectories so far and which have ended, on the host."""
    self._episodes = Episodes(
        self._environments, rows, ids, sizes_N, self._seed
    )
    prompts = self._episodes.prompts
    prompted = [
        row._replace(prompt=prompt)
        for row, prompt in zip(rows, prompts, strict=True)
    ]
    turns = functools.partial(
        super()._sample, weights, ids, prompted, sizes_N, rows_B
    )

    def sample(**wave):
      # The device has work from the first turns on.
      begins = on_dispatch if "resumed" not in wave else _nothing
      return turns(begins, **options | wave)

    return self._episodes.stream(sample)

  def _grader(self, rows_B) -> Episodes:
    """The trajectories of `_sample`: their environments judge them."""
    del rows_B
    return self._episodes

  def _experience(self, rollouts, correct_B, rows_B) -> Experience:
    """Trajectories of this step's policy, with their turns."""
    out = super()._experience(rollouts, correct_B, rows_B)
    return out.replace(turns=self._episodes.turns())
