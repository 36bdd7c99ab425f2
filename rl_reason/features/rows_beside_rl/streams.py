"""Endless streams of rows beside RL, and the sum of their gradients."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from rl_reason.base import feature
from rl_reason.base.structs import Array, Packed, Tree
from rl_reason.checks import config_facts
from rl_reason.data import pipelines
from rl_reason.devices import sharding
from rl_reason.devices.randomness import host_seed
from rl_reason.features.rows_beside_rl import plain_text
from rl_reason.stages import build_step, optimizers, sft
from rl_reason.training import imitation, packing

LOSSES = dict(sft="sft_loss", text="text_loss")
# A batch of rows -> tokens [B, L], start [B], mask [B, T].
Pack = Callable[[Any], tuple[Array, Array, Array]]


class Streams(feature.Part):
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

  def beside(self) -> dict[str, dict[str, tuple[Packed, Array]]]:
    """The rows of an RL step on the mesh: packed, and masks [M, B, T]."""
    found = {name: self._take(*x) for name, x in self._streams.items()}
    return dict(rows_M=found)

  def _take(self, stream: Any, pack: Pack) -> tuple[Packed, Array]:
    rows = [pack(next(stream)) for _ in range(self._steps)]
    packed = [packing.pack(*x, self._packed_rows) for x in rows]
    packed_M = jax.tree.map(lambda *x: np.stack(x), *packed)
    mask_MBT = np.stack([mask_BT for _, _, mask_BT in rows])
    return (
        sharding.put_packed(self._mesh, packed_M),
        sharding.put(self._mesh, mask_MBT, None, "batch"),
    )

  def host(self) -> dict[str, Any]:
    """The position in each stream, as JSON."""
    found = {name: x.get_state() for name, (x, _) in self._streams.items()}
    return dict(stream=found)

  def restore(self, arrays: dict[str, Any], host: dict[str, Any]) -> None:
    """Goes to saved positions. Earlier versions had the stream of SFT alone."""
    state = host["stream"]
    if not self._streams.keys() <= state.keys():
      state = dict(sft=state)
    for name, (stream, _) in self._streams.items():
      stream.set_state(state[name])


def start(c, loop: feature.Loop) -> Streams:
  """The streams of a config.

  Raises:
    DataError: a stream has no row to imitate.
  """
  steps, found = c.updates.minibatches * c.updates.epochs, {}
  session = loop.session
  tok, mesh, say = session.tok, session.model.mesh, session.output.display.say

  def counted(name: str, rows: int) -> None:
    passes = c.rl.steps * steps * c.streams[f"{name}_batch"] / rows
    say(f"streams.{name}: {passes:.2g} passes over {rows:,} rows in RL")

  if c.streams.sft:
    source = session.row_source, tok, say
    batches = sft.batches(
        *(c, c.sft, "stream", c.streams.sft_batch, *source),
        functools.partial(counted, "sft"),
    )
    found["sft"] = batches, sft.packer(c, session)
  if c.streams.text:
    slots = c.rollout.max_prompt + c.rollout.max_tokens
    parts, weights = plain_text.read(
        "streams.text_sources",
        *(c.streams.text_sources, tok, slots, say),
        revisions=config_facts.revisions(c),
    )
    counted("text", sum(map(len, parts)))
    mixed = pipelines.mix(parts, weights, host_seed(c.seed, "plain text"))
    batches = pipelines.iterate(mixed, c.streams.text_batch)
    pack = functools.partial(plain_text.pack, slots=slots, pad=tok.pad_token_id)
    found["text"] = batches, pack
  packed_rows = build_step.packed_rows(c, mesh)
  return Streams(found, steps=steps, packed_rows=packed_rows, mesh=mesh)


def gradient_of(c, cfg: Any, coefs: Mapping[str, float]) -> Callable:
  """`gradients` with the keywords of the config bound."""
  return functools.partial(
      gradients,
      cfg=cfg,
      coefs=coefs,
      read=optimizers.learned(c).read,
  )


def gradients(
    params: Tree,
    rows: Mapping[str, tuple[Packed, Array]],
    frozen: Tree | None = None,
    *,
    coefs: Mapping[str, float],
    **settings: Any,
) -> tuple[Tree, dict[str, Array]]:
  """The sum of the gradients of streams, each with its own denominator.

  Args:
    params: that are learned.
    rows: stream -> packed rows and mask, of one optimizer step.
    frozen: parameters beside them; None without.
    coefs: static, stream -> `coef` of `imitation.gradient`.
    **settings: further keywords of `imitation.gradient`.

  Returns:
    gradients, and metrics: the mean NLL of each stream, as `LOSSES` names it.
  """
  grads, metrics = [], {}
  for name, of_stream in rows.items():
    of_rows, found = imitation.gradient(
        params, *of_stream, frozen, coef=coefs[name], **settings
    )
    grads.append(of_rows)
    metrics[LOSSES[name]] = found["loss"]
  return jax.tree.map(lambda *x: sum(x[1:], x[0]), *grads), metrics
