"""Gaps of log-probs of batches whose policy is gone when they are learned."""

from collections.abc import Callable

import jax
import numpy as np

from rl_reason.base.structs import Experience, Tree
from rl_reason.devices import sharding
from rl_reason.devices.compiled import CompiledOnce
from rl_reason.models import decoder, linear
from rl_reason.monitoring.display import Display
from rl_reason.training import packing, step

REPLAYED = 4  # rows of a batch


def replayer(
    cfg: decoder.ModelConfig,
    mesh: jax.sharding.Mesh,
    temperature: float,
    display: Display,
) -> Callable[[Experience, Tree], dict[str, float]]:
  """Compares log-probs where the policy is gone when a batch is learned.

  Batches that are sampled ahead are of an older policy, whose log-probs the
  trainer does not compute. A few of their rows are replayed with the weights
  that sampled them, which the checksums certify, by the trainer's forward pass.

  Args:
    cfg: shape of the policy.
    mesh: the devices that sample.
    temperature: of sampling.
    display: the screen.

  Returns:
    (rows of a batch, weights that sampled it) -> metrics, as `of_logps`.
  """
  shards = sharding.num_shards(mesh, "batch")
  count = shards * max(REPLAYED // shards, 1)
  program = CompiledOnce(
      "log-probabilities of a few rows",
      step.map_micro_batches(
          lambda weights, packed: decoder.packed_logps(
              _for_training(weights), cfg, packed, temperature
          )[0]
      ),
      display,
  )

  def replay(rows: Experience, weights: Tree) -> dict[str, float]:
    real = np.flatnonzero(rows.age_B >= 0)
    if not real.size:
      return {}
    index = real[np.linspace(0, real.size - 1, count).astype(int)]
    rollouts = jax.tree.map(lambda x: x[index], rows.rollouts)
    plan = packing.plan(
        rollouts, packed_rows=sharding.num_shards(mesh, "rows"), minibatches=1
    )
    logps_BT = step.forward(mesh, program, weights, plan)
    gap = np.abs(rollouts.logps_BT - logps_BT)[rollouts.mask_BT]
    return {"rollout/logp_gap_mean": gap.mean()}

  return replay


def _for_training(weights: Tree) -> Tree:
  """Sampler weights with the head as an array, which `packed_logps` reads."""
  head = weights.get("head")
  if not isinstance(head, linear.Int8):
    return weights
  return weights | dict(head=head.values * head.scale)
