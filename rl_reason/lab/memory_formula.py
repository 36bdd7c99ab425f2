"""Bytes per device of a run, from the shapes of its arrays.

What has a shape is exact: parameters, moments, caches. What XLA allocates in
between follows a model of the programs, whose constants are those of programs
that were compiled ahead of time for TPU (results/aot.md); tests compare.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl_reason.base import errors
from rl_reason.base.structs import Tree
from rl_reason.checks import facts
from rl_reason.devices import sharding
from rl_reason.models import (
    attention,
    critic,
    decoder,
    kernels,
    lora,
    parameters,
)
from rl_reason.rollout import sampler_weights

# Copies of the trained parameters in fp32 beside the state: the gradients that
# add up, those of a micro-batch, and what their loops hold of both.
GRADIENT_COPIES = 4
# Chunks of logits in fp32 at a time: logits, probabilities, their gradient.
LOGIT_COPIES = 3
# Output heads in the dtype of the products that a decode step makes of weights
# that are in this dtype already: layouts for the products.
HEAD_COPIES = 2


class Size(NamedTuple):
  """Bytes per device.

  Attributes:
    resident: what is in memory in every phase of a step, by name.
    update: what the update adds, by name.
    rollout: what sampling adds, by name.
  """

  resident: Mapping[str, int]
  update: Mapping[str, int]
  rollout: Mapping[str, int]

  @property
  def update_peak(self) -> int:
    """Bytes while the policy is updated."""
    return sum(self.resident.values()) + sum(self.update.values())

  @property
  def rollout_peak(self) -> int:
    """Bytes while responses are sampled."""
    return sum(self.resident.values()) + sum(self.rollout.values())


def estimate(
    config,
    cfg: decoder.ModelConfig,
    critic_cfg: critic.CriticConfig,
    mesh,
    *,
    token_budget: int = 0,
    slots: int = 0,
) -> Size:
  """The size of a run.

  Args:
    config: checked.
    cfg: of the policy.
    critic_cfg: of the critic.
    mesh: of the devices, which may be abstract.
    token_budget: instead of updates.token_budget.
    slots: instead of rollout.slots, over all devices.

  Raises:
    ConfigError: the model has experts.
  """
  if cfg.experts:
    raise errors.ConfigError(
        f"model.experts = {cfg.experts}: no formula counts the memory of"
        " experts; --stage=size is for dense models"
    )
  c, r = config, config.rollout
  shards = sharding.num_shards(mesh, "batch")
  table = decoder.table(cfg)
  learned, base = table, 0
  if c.lora.rank:
    targets = facts.lora_targets(c)
    learned = lora.table(cfg, c.lora.rank, targets)
    base = bytes_of(table, mesh, itemsize(cfg))
  fp32 = bytes_of(learned, mesh)

  # The state. Moments may wait in the memory of the host; for a step they take
  # the place of the activations and of copies of the gradients.
  moments = 2 * fp32 if c.optimizer.name == "adamw" else 0
  on_device = 0 if c.optimizer.offload else moments
  resident = {
      "parameters": fp32 + base,
      "initial parameters": fp32,
      "optimizer state": on_device,
  }
  trained = fp32
  if facts.has_critic(c):
    value = bytes_of(critic.table(critic_cfg), mesh)
    factor = on_device // fp32  # moments for each parameter
    resident["critic, with the same three"] = (2 + factor) * value
    trained = max(fp32, value)

  # The update of one micro-batch.
  length = r.max_prompt + r.max_tokens
  budget = token_budget or c.updates.token_budget
  rows_length = max(budget // length, 1) * length
  tokens = rows_length // sharding.num_shards(mesh, "sequence")
  low = 0
  cast = itemsize(cfg) < 4 and not c.lora.rank  # a frozen base is cast already
  gathered = sharding.num_shards(mesh, "embed") > 1
  if cast or gathered:
    low = bytes_of(table, mesh, itemsize(cfg), gathered=True)
  saved, transient = activations(cfg, mesh, tokens)
  logits = logit_bytes(cfg, mesh, tokens)
  update = {
      "gradients": GRADIENT_COPIES * trained + low,
      "activations": saved + max(transient - logits, 0),
      "logits": logits,
  }

  # Sampling, from weights gathered over fsdp and sequence.
  size = {"same": itemsize(cfg), "bfloat16": 2, "int8": 1}[r.weights]
  weights = bytes_of(sampler_weights.table(cfg, r.weights), mesh, size)
  if c.lora.rank:
    weights += bytes_of(learned, mesh, itemsize(cfg))
  if c.rl.staleness and not c.mesh.rollout:
    resident["copies for batches ahead"] = c.rl.staleness * weights
  same = r.weights == "same" and cfg.dtype == "float32"
  if same and not gathered:
    weights = 0
  responses = c.dynamic_sampling.batches * r.batch
  rows = slots or r.slots or responses
  rows = min(rows, responses)
  rollout = {
      "weights of the sampler": weights,
      "key/value cache": cache_bytes(
          cfg, mesh, rows // shards, length, r.cache
      ),
      "cache of the prompts": cache_bytes(
          cfg, mesh, responses // r.group_size // shards, r.max_prompt, r.cache
      ),
      "sampler, temporary": decode_bytes(cfg, mesh, rows // shards),
  }
  return Size(resident, update, rollout)


def itemsize(cfg: decoder.ModelConfig) -> int:
  """Bytes of a number of the matrix products."""
  return jnp.dtype(cfg.dtype).itemsize


def bytes_of(
    table: Tree, mesh, size: int = 4, *, gathered: bool = False
) -> int:
  """Bytes per device of the arrays of a table.

  Args:
    table: of `parameters.Param`.
    mesh: of the devices.
    size: bytes of a number.
    gathered: whether every shard of the width has all of it.
  """
  total = 0
  for entry in jax.tree.leaves(table, is_leaf=parameters.is_param):
    axes = entry.axes
    if gathered:
      axes = tuple(None if x == "embed" else x for x in axes)
    where = sharding.fit(mesh, entry.shape, axes)
    total += size * math.prod(where.shard_shape(entry.shape))
  return total


def activations(cfg: decoder.ModelConfig, mesh, tokens: int) -> tuple[int, int]:
  """What the forward pass of a micro-batch saves, and what one layer needs.

  Args:
    cfg: of the model.
    mesh: of the devices.
    tokens: of the micro-batch on one device.
  """
  size, parts = itemsize(cfg), sharding.num_shards(mesh, "heads")
  heads = (cfg.heads + 2 * cfg.kv_heads) * cfg.head_dim // parts
  queries, mlp = cfg.heads * cfg.head_dim // parts, cfg.mlp // parts
  stream, norms = cfg.width * size, cfg.width * 4
  chunks = sharding.num_shards(mesh, "sequence")
  # Between layers the stream of chunks is split over tensor, too; keys and
  # values of whole rows are those of all chunks.
  kept = stream // parts if chunks > 1 else stream
  gathered = (
      2 * cfg.kv_heads * cfg.head_dim // parts * chunks if chunks > 1 else 0
  )
  dots = (heads + queries + 2 * mlp + 2 * cfg.width) * size
  beside = {
      "dots": dots,
      "none": dots + (heads + queries + 2 * mlp) * size + 2 * norms,
  }
  saved, layers = kept + beside.get(cfg.remat, 0), cfg.layers
  if cfg.remat == "sqrt":  # of all groups, and of the layers of one
    groups = decoder.layer_groups(layers)
    layers = groups + layers // groups
  transient = (4 * mlp + 4 * queries + gathered) * size + 4 * stream + 2 * norms
  hidden = 3 * stream  # of the last layer, in the order of the chunks
  return tokens * (layers * saved + hidden), tokens * transient


def logit_bytes(cfg: decoder.ModelConfig, mesh, tokens: int) -> int:
  """Chunks of logits of an update."""
  chunk = min(cfg.logprob_chunk, tokens)
  return LOGIT_COPIES * 4 * chunk * _vocab(cfg, mesh)


def cache_bytes(
    cfg: decoder.ModelConfig, mesh, rows: int, length: int, kind: str
) -> int:
  """Keys and values of so many rows of one device; int8 has scales beside."""
  heads = cfg.kv_heads
  parts = sharding.num_shards(mesh, "kv_heads")
  heads = heads // parts if heads % parts == 0 else heads
  slots = attention.cache_slots(length)
  dim = kernels.cached(cfg.attention, cfg.head_dim)
  head = dim * itemsize(cfg) if kind == "same" else dim + 4
  return 2 * cfg.layers * rows * heads * slots * head


def decode_bytes(cfg: decoder.ModelConfig, mesh, rows: int) -> int:
  """Temporary buffers of a decode step."""
  vocab = _vocab(cfg, mesh)
  head = HEAD_COPIES * vocab * cfg.width * itemsize(cfg)
  return head + LOGIT_COPIES * 4 * rows * vocab


def _vocab(cfg: decoder.ModelConfig, mesh) -> int:
  parts = sharding.num_shards(mesh, "vocab")
  return cfg.vocab // parts if cfg.vocab % parts == 0 else cfg.vocab
