"""The record of the experts that the sampler chose for each token.

Z = layers * K experts of a token in all layers. `models.experts` repeats what
is recorded.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from rl_reason.base import feature
from rl_reason.base.structs import Array, Experience
from rl_reason.models.experts import Routing


def record(
    routing: Routing | None, cfg: Any, shape: tuple[int, ...]
) -> Array | None:
  """The record of tokens (see `Rollouts`): their experts in all layers.

  Args:
    routing: of the sampler's forward pass; None: a model without experts.
    cfg: of the model.
    shape: of the tokens.

  Returns:
    [*shape, Z] int8 or int16; None without experts.
  """
  if routing is None:
    return None
  routes = jnp.moveaxis(routing.routes_XK, 0, 1)
  return routes.reshape(*shape, -1).astype(_dtype(cfg))


def no_record(cfg: Any, shape: tuple[int, ...]) -> np.ndarray:
  """An empty record of tokens, on the host."""
  size = cfg.layers * cfg.experts_per_token
  return np.full((*shape, size), -1, _dtype(cfg))


def _dtype(cfg: Any) -> str:
  return "int8" if cfg.experts <= 128 else "int16"


RECORDER = feature.Recorder(record, no_record)


def lost(rows: Experience) -> float:
  """Share of the tokens that the sampler read, and whose experts it lost.

  The last token of a response is not read any more.
  """
  rollouts = rows.rollouts
  width = rollouts.tokens_BL.shape[1]
  end_B = width - rollouts.mask_BT.shape[1] + rollouts.lengths_B - 1
  at_L = np.arange(width)
  read_BL = (at_L >= rollouts.start_B[:, None]) & (at_L < end_B[:, None])
  read_BL &= rows.age_B[:, None] >= 0
  if rollouts.record is None:
    return 1.0
  lost_BL = (rollouts.record < 0).any(-1) & read_BL
  return lost_BL.sum() / max(read_BL.sum(), 1)


class Routes(feature.Part):
  """Looks for tokens whose experts are lost, for the certificate."""

  def collecting(
      self, collect: feature.Collect, samples: Any
  ) -> feature.Collect:
    """Adds what is lost to the faults of a batch."""

    def collect_and_look(*args: Any, **options: Any):
      rows, metrics, counts = collect(*args, **options)
      if share := lost(rows):
        fault = f"{share:.0%} of the tokens have lost their experts"
        counts = counts | dict(faults=[*counts.get("faults", ()), fault])
      return rows, metrics, counts

    return collect_and_look
