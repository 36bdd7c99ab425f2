"""SFT beside RL: rows to imitate in every optimizer step of RL.

The loss is then a sum of two streams with their own rows, weights and
denominators: RL over the responses that were sampled, and `streams.sft` times
the mean cross-entropy over the responses of SFT (its rows, or demonstrations).
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from rl_reason.base.structs import Array, Packed
from rl_reason.collect.environment_runner import Environments
from rl_reason.data.pipelines import RowSource
from rl_reason.devices import sharding
from rl_reason.monitoring.display import Display
from rl_reason.stages import build_step, sft
from rl_reason.training import packing


class Demonstrations:
  """An endless stream of rows, packed for the optimizer steps of an RL step.

  Args:
    stream: checkpointable iterator over batches of (prompt, response).
    pack: a batch -> tokens [B, L], start [B], mask [B, T].
    steps: optimizer steps of an RL step.
    packed_rows: packed rows of a micro-batch.
    mesh: the devices that learn.
  """

  def __init__(
      self,
      stream: Any,
      pack: Callable[[Any], tuple[Array, Array, Array]],
      *,
      steps: int,
      packed_rows: int,
      mesh: jax.sharding.Mesh,
  ):
    self._stream, self._pack, self._steps = stream, pack, steps
    self._packed_rows, self._mesh = packed_rows, mesh

  def take(self) -> tuple[Packed, Array]:
    """The rows of an RL step on the mesh: packed, and masks [M, B, T]."""
    rows = [self._pack(next(self._stream)) for _ in range(self._steps)]
    packed = [packing.pack(*x, self._packed_rows) for x in rows]
    packed_M = jax.tree.map(lambda *x: np.stack(x), *packed)
    mask_MBT = np.stack([mask_BT for _, _, mask_BT in rows])
    return (
        sharding.put_packed(self._mesh, packed_M),
        sharding.put(self._mesh, mask_MBT, None, "batch"),
    )

  def get_state(self) -> Any:
    """The position in the stream, as JSON."""
    return self._stream.get_state()

  def set_state(self, state: Any) -> None:
    """Goes to a position that `get_state` returned."""
    self._stream.set_state(state)


def demonstrations(
    c,
    mesh: jax.sharding.Mesh,
    display: Display,
    *,
    row_source: RowSource,
    tok: Any,
    environments: Environments | None,
) -> Demonstrations | None:
  """The stream of a config; None if config.streams.sft is 0.

  Raises:
    DataError: no row has a response to imitate.
  """
  if not c.streams.sft:
    return None
  steps, batch = c.updates.minibatches * c.updates.epochs, c.streams.sft_batch

  def counted(rows: int) -> None:
    passes = c.rl.steps * steps * batch / rows
    display.say(f"streams.sft: {passes:.2g} passes over {rows:,} rows in RL")

  source = row_source, tok, display.say
  return Demonstrations(
      sft.batches(c, c.sft, "stream", batch, *source, counted),
      sft.packer(c, tok, environments),
      steps=steps,
      packed_rows=build_step.packed_rows(c, mesh),
      mesh=mesh,
  )
