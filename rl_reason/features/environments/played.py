"""An environment as the player of responses of several turns."""

from collections.abc import Callable
from typing import Any

from rl_reason.base import feature

# The checks of a config ask for the name of a player: JAX is imported later.


class Environment(feature.Player):
  """Plays and rewards responses; see `feature.Player`.

  Args:
    declaration: what the run has opened it by.
    c: the config.
  """

  name = "the environment"

  def __init__(self, declaration: feature.Declaration, c):
    self._declaration, self._c = declaration, c

  @property
  def outcome(self) -> Callable[..., Any]:
    """The sum of the rewards of a trajectory's turns."""
    from rl_reason.features.environments import turns

    return turns.total

  def play(self, session, rows, ids, sizes_N) -> Any:
    """Plays a round of an evaluation."""
    from rl_reason.devices.randomness import host_seed
    from rl_reason.features.environments import episodes

    seed = host_seed(self._c.seed, "environments of evaluate")
    found = session.opened[self._declaration]
    return episodes.Episodes(found, rows, ids, sizes_N, seed)

  def padding(self, rows: int) -> Any:
    """Rows without turns."""
    import numpy as np

    from rl_reason.features.environments import turns

    shape = rows, self._c.rollout.max_tokens
    return turns.Turns(np.zeros(shape, np.float32), np.zeros(shape, np.int32))

  def encoder(self, session) -> Callable[[str], list[int]]:
    """Encodes observations."""
    return session.opened[self._declaration].observer.text
