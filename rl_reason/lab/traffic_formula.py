"""Bytes that each device sends in a step of RL: gradients and weights.

By formula, as ring collectives send them. Of an array of S bytes in n parts an
all-gather sends S (n - 1) / n, a reduce-scatter as much, and an all-reduce
twice as much; a device receives what it sends. The count is that of ZeRO-3
(arXiv:1910.02054, sec 7): a micro-batch gathers the weights for the forward
pass and again for the backward pass, in the type of the products, and reduces
its gradient in float32. All responses are of maximal length, which makes the
number of micro-batches the largest possible.

XLA decides what is sent. It may gather once for all micro-batches, which is
less, or send a gradient by an all-reduce instead of a reduce-scatter, which is
twice as much. Not counted are activations, which `mesh.tensor`,
`mesh.sequence` and `mesh.expert` send several times per layer; rows, which are
small; and reward models.
"""

import math

import jax

from rl_reason.base import feature
from rl_reason.base.structs import Tree
from rl_reason.checks import config_facts
from rl_reason.devices import sharding
from rl_reason.lab.memory_formula import bytes_of, itemsize, weight_bytes
from rl_reason.models import critic, decoder, parameters
from rl_reason.stages import optimizers
from rl_reason.training import packing

PASSES = 2  # of the update that gather the weights: forward and backward


def estimate(
    c, cfg: decoder.ModelConfig, critic_cfg: critic.CriticConfig, mesh
) -> dict[str, int]:
  """Bytes that a device that learns sends in an RL step, by name.

  Args:
    c: checked.
    cfg: static shape of the policy.
    critic_cfg: static shape of the critic.
    mesh: mesh of the devices that learn; may be abstract.

  Returns:
    what is not 0. Weights for other devices or for an engine are what all
    devices that learn send, divided by their number.
  """
  micro, minibatches = micro_batches(c, mesh)
  updates = minibatches * c.updates.epochs
  table, learned = decoder.table(cfg), optimizers.learned(c)
  weights = gathered(table, mesh, itemsize(cfg))
  forward = micro * minibatches  # micro-batches of a pass over all rows
  passes = int(not config_facts.on_policy(c))
  out = {
      "weights, gathered for the update": PASSES * micro * updates * weights,
      "gradients, reduced": micro * updates * reduced(learned.table(cfg), mesh),
      "weights, gathered for log-probs": passes * forward * weights,
  }
  if config_facts.compares_with_start(c):
    out["reference policy, gathered"] = forward * weights
  for one in feature.used(c):
    for name, (shape, times) in one.models(c, cfg).items():
      of_model = gathered(decoder.table(shape), mesh, itemsize(shape))
      out[f"{name}, gathered"] = round(times * forward) * of_model
  if config_facts.has_critic(c):
    values, size = critic.table(critic_cfg), itemsize(critic_cfg.trunk)
    count = PASSES * micro * updates + forward
    out["critic, gathered"] = count * gathered(values, mesh, size)
    out["gradients of the critic, reduced"] = (
        micro * updates * reduced(values, mesh)
    )
  # The sampler's weights are cast or quantised, and then gathered once a step.
  of_sampler = weight_bytes(c, cfg, mesh, c.rollout.weights)
  parts = sharding.num_shards(mesh, "embed")
  out["weights of the sampler, gathered"] = of_sampler * (parts - 1) // parts
  learners = math.prod(mesh.shape.values())
  if count := config_facts.samplers(c):
    sent = count * of_sampler  # each has the same part of mesh.tensor
    out["weights, to the devices that only sample"] = sent // learners
  if c.rollout.engine.name != "own":
    whole = weight_bytes(c, cfg, sharding.abstract_mesh(), "same")
    out["weights, to the engine"] = whole // learners
  return {name: size for name, size in out.items() if size}


def micro_batches(c, mesh) -> tuple[int, int]:
  """Micro-batches of a minibatch, and minibatches of a step and an epoch."""
  rows = c.rollout.batch // c.updates.minibatches
  packed = config_facts.packed_rows(c, sharding.num_shards(mesh, "rows"))
  return packing.max_micro_batches(rows, packed), c.updates.minibatches


def gathered(table: Tree, mesh, size: int) -> int:
  """Bytes that a device sends when the width of all arrays is gathered.

  Args:
    table: of the parameters.
    mesh: of the devices.
    size: bytes of a number.
  """
  whole = bytes_of(table, mesh, size, gathered=True)
  return whole - bytes_of(table, mesh, size)


def reduced(table: Tree, mesh) -> int:
  """Bytes that a device sends when a gradient in float32 is summed.

  The devices that have other rows each have a gradient. It is scattered over
  those that split an array, and then summed over those that have the same part.
  """
  replicas = math.prod(mesh.shape.values()) // mesh.shape["tensor"]
  total = 0
  for entry in jax.tree.leaves(table, is_leaf=parameters.is_param):
    part = bytes_of([entry], mesh)
    whole = bytes_of([entry], mesh, gathered=True)
    same = replicas * part // whole  # devices with the same part
    total += whole - part + 2 * part * (same - 1) // same
  return total
