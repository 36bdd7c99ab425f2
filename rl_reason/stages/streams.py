"""Rows to imitate during RL: responses of SFT, and plain text.

The loss is then a sum of streams with their own rows, weights and denominators:
RL over the responses that were sampled, `streams.sft` times the mean
cross-entropy over the responses of SFT (its rows, or demonstrations), and
`streams.text` times the mean cross-entropy over the tokens of plain text.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from rl_reason.base.structs import Array, Packed
from rl_reason.checks import config_facts
from rl_reason.collect.environment_runner import Environments
from rl_reason.data import pipelines, plain_text
from rl_reason.data.pipelines import RowSource
from rl_reason.devices import sharding
from rl_reason.devices.randomness import host_seed
from rl_reason.monitoring.display import Display
from rl_reason.stages import build_step, sft
from rl_reason.training import packing

# A batch of rows -> tokens [B, L], start [B], mask [B, T].
Pack = Callable[[Any], tuple[Array, Array, Array]]


class Streams:
  """Endless streams of rows, packed for the optimizer steps of an RL step.

  Args:
    streams: by name, a checkpointable iterator over batches, and what packs a
      batch.
    steps: optimizer steps of an RL step.
    packed_rows: packed rows of a micro-batch.
    mesh: the devices that learn.
  """

  def __init__(
      self,
      streams: Mapping[str, tuple[Any, Pack]],
      *,
      steps: int,
      packed_rows: int,
      mesh: jax.sharding.Mesh,
  ):
    self._streams, self._steps = streams, steps
    self._packed_rows, self._mesh = packed_rows, mesh

  def take(self) -> dict[str, tuple[Packed, Array]]:
    """The rows of an RL step on the mesh: packed, and masks [M, B, T]."""
    return {name: self._take(*x) for name, x in self._streams.items()}

  def _take(self, stream: Any, pack: Pack) -> tuple[Packed, Array]:
    rows = [pack(next(stream)) for _ in range(self._steps)]
    packed = [packing.pack(*x, self._packed_rows) for x in rows]
    packed_M = jax.tree.map(lambda *x: np.stack(x), *packed)
    mask_MBT = np.stack([mask_BT for _, _, mask_BT in rows])
    return (
        sharding.put_packed(self._mesh, packed_M),
        sharding.put(self._mesh, mask_MBT, None, "batch"),
    )

  def get_state(self) -> Any:
    """The position in each stream, as JSON."""
    return {name: x.get_state() for name, (x, _) in self._streams.items()}

  def set_state(self, state: Any) -> None:
    """Goes to the positions that `get_state` returned.

    Earlier versions had the stream of SFT alone.
    """
    if not self._streams.keys() <= state.keys():
      state = dict(sft=state)
    for name, (stream, _) in self._streams.items():
      stream.set_state(state[name])


def beside_rl(
    c,
    mesh: jax.sharding.Mesh,
    display: Display,
    row_source: RowSource,
    tok: Any,
    environments: Environments | None,
) -> Streams | None:
  """The streams of a config; None if it has no stream beside RL.

  Raises:
    DataError: a stream has no row to imitate.
  """
  steps, found = c.updates.minibatches * c.updates.epochs, {}

  def counted(name: str, rows: int) -> None:
    passes = c.rl.steps * steps * c.streams[f"{name}_batch"] / rows
    display.say(f"streams.{name}: {passes:.2g} passes over {rows:,} rows in RL")

  if c.streams.sft:
    source = row_source, tok, display.say
    batches = sft.batches(
        *(c, c.sft, "stream", c.streams.sft_batch, *source),
        functools.partial(counted, "sft"),
    )
    found["sft"] = batches, sft.packer(c, tok, environments)
  if c.streams.text:
    slots = c.rollout.max_prompt + c.rollout.max_tokens
    parts, weights = plain_text.read(
        "streams.text_sources",
        *(c.streams.text_sources, tok, slots, display.say),
        revisions=config_facts.revisions(c),
    )
    counted("text", sum(map(len, parts)))
    mixed = pipelines.mix(parts, weights, host_seed(c.seed, "plain text"))
    batches = pipelines.iterate(mixed, c.streams.text_batch)
    pack = functools.partial(plain_text.pack, slots=slots, pad=tok.pad_token_id)
    found["text"] = batches, pack
  if not found:
    return None
  packed_rows = build_step.packed_rows(c, mesh)
  return Streams(found, steps=steps, packed_rows=packed_rows, mesh=mesh)
