"""What RL learns of a policy, and the parameters that the model reads."""

from collections.abc import Callable
from typing import Any

import jax

from rl_reason.base.structs import Tree
from rl_reason.models import decoder


class Learned:
  """All parameters are learned, and the model reads them as they are.

  A feature may learn other parameters beside frozen ones, with methods of its
  own in place of these (`feature.Declaration.learns`).

  Attributes:
    needs_start: why RL needs the parameters that it starts from, in words; ''
      if a checkpoint of RL has all that the model reads.
    no_mean: why learned parameters of several steps have no mean, and what to
      do; '' if they have one.
  """

  needs_start = ""
  no_mean = ""

  def table(self, cfg: decoder.ModelConfig) -> Tree:
    """The table of the learned parameters."""
    return decoder.table(cfg)

  def frozen(self, params: Tree | Callable[[], Tree], dtype: str) -> Any:
    """What updates read and never change; None: there is nothing.

    Its arrays have the shapes and shardings of the parameters.

    Args:
      params: all parameters that RL starts from, or a function that reads them.
      dtype: of the matrix products.
    """
    return None

  def first(
      self, params: Tree, cfg: decoder.ModelConfig, mesh: jax.sharding.Mesh
  ) -> Tree:
    """The learned parameters of step 0; `params` are all that RL starts from.

    They may share arrays with `params`.
    """
    return params

  def read(self, learned: Tree, frozen: Tree | None) -> Tree:
    """The parameters of the model, without copies."""
    return learned

  def check(self, host: dict[str, Any], frozen: Tree | None) -> None:
    """Refuses a checkpoint, by what it has on the host, of other frozen ones.

    Raises:
      RunError: with the remedy.
    """


ALL = Learned()
