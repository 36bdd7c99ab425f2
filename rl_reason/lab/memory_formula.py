"""Memory per device of a run, by formula from the shapes of its arrays.

Parameters, moments and caches are exact. Buffers that XLA allocates follow a
model of the programs, whose constants were fitted to programs compiled ahead of
time for TPU (results/aot.md) and measured on a CPU (results/size.md); tests
compare them.
"""

import dataclasses
import functools
import math
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rl_reason.base import errors, feature
from rl_reason.base.structs import Tree
from rl_reason.checks import config_facts
from rl_reason.devices import sharding
from rl_reason.models import (
    attention,
    critic,
    decoder,
    kernels,
    packed_attention,
    parameters,
)
from rl_reason.rollout import sampler_weights
from rl_reason.stages import model, optimizers
from rl_reason.training import optimizer, packing

# fp32 arrays of the size of the trained parameters besides the state:
# accumulated gradients, gradients of a micro-batch, and the copies that the
# loops hold of both.
GRADIENT_COPIES = 4
# fp32 arrays of a chunk of logits: logits, probabilities and their gradient.
LOGIT_COPIES = 3
# Copies of the output head in the dtype of the products, in other layouts, that
# a decode step makes even of weights in that dtype.
HEAD_COPIES = 2
# Arrays of a Batch with one 4-byte number for each response token; besides them
# it has a mask of 1 byte. And the copies of them, all rows and the rows of a
# minibatch, that an update makes when it masks padding and other rows.
BATCH_ARRAYS = 6
BATCH_COPIES, MINIBATCH_COPIES = 3, 10
PACKED_ARRAYS = 3  # tokens, positions and segments of packed rows
# fp32 arrays of the scores of one row, where attention has no kernel: XLA's
# CPU backend keeps those of several tiles at a time.
SCORE_COPIES = 1.6


class Size(NamedTuple):
  """Bytes per device.

  Attributes:
    resident: arrays that are in memory all the time, by name.
    update: further arrays of the update, by name.
    rollout: further arrays of the rollout, by name.
    evaluation: further arrays of an evaluation, by name.
  """

  resident: Mapping[str, int]
  update: Mapping[str, int]
  rollout: Mapping[str, int]
  evaluation: Mapping[str, int]

  @property
  def update_peak(self) -> int:
    """Bytes while the policy is updated."""
    return sum(self.resident.values()) + sum(self.update.values())

  @property
  def rollout_peak(self) -> int:
    """Bytes while responses are sampled."""
    return sum(self.resident.values()) + sum(self.rollout.values())

  @property
  def evaluation_peak(self) -> int:
    """Bytes while the policy is evaluated."""
    return sum(self.resident.values()) + sum(self.evaluation.values())

  @property
  def peak(self) -> int:
    """Bytes of the largest of the three."""
    return max(self.update_peak, self.rollout_peak, self.evaluation_peak)


def estimate(
    config,
    cfg: decoder.ModelConfig,
    critic_cfg: critic.CriticConfig,
    mesh,
    *,
    token_budget: int = 0,
    slots: int = 0,
    evaluated: int = 0,
    backend: str = "",
) -> Size:
  """The memory of a run per device.

  Args:
    config: checked.
    cfg: static shape of the policy.
    critic_cfg: static shape of the critic.
    mesh: mesh of the devices; may be abstract.
    token_budget: replaces updates.token_budget; 0: as configured.
    slots: replaces rollout.slots, over all devices; 0: as configured.
    evaluated: replaces evaluate.batch; 0: as configured.
    backend: "cpu" adds what only XLA's CPU backend needs: it has no kernel of
      attention, and computes in fp32 what the config wants in fewer bits.

  Raises:
    ConfigError: the model has experts.
  """
  if cfg.experts:
    raise errors.ConfigError(
        f"model.experts = {cfg.experts}: the formulas do not cover mixtures of"
        " experts; use --stage=size with dense models"
    )
  c, r = config, config.rollout
  table = decoder.table(cfg)
  has_frozen = bool(optimizers.learned(c).needs_start)
  learned = optimizers.learned(c).table(cfg)
  base = bytes_of(table, mesh, itemsize(cfg)) if has_frozen else 0
  fp32 = bytes_of(learned, mesh)

  # The state. Offloaded moments are in host memory; during an optimizer step
  # they use the space of activations and gradient copies.
  def moments(of: Tree) -> int:
    return 0 if c.optimizer.offload else moments_of(of, mesh, c.optimizer.name)

  resident = {
      "parameters": fp32 + base,
      "initial parameters": fp32,
      "optimizer state": moments(learned),
  }
  for one in feature.used(c):
    for name, (shape, _) in one.models(c, cfg).items():
      resident[name] = bytes_of(decoder.table(shape), mesh)
  trained = fp32
  if config_facts.has_critic(c):
    values = critic.table(critic_cfg)
    value = bytes_of(values, mesh)
    name = "critic, initial critic and its optimizer state"
    resident[name] = 2 * value + moments(values)
    trained = max(fp32, value)

  # The update of one micro-batch.
  length = config_facts.row_slots(c)
  budget = token_budget or c.updates.token_budget
  rows_length = max(budget // length, 1) * length
  tokens = rows_length // sharding.num_shards(mesh, "sequence")
  low = 0
  cast = itemsize(cfg) < 4 and not has_frozen  # what is frozen is cast already
  gathered = sharding.num_shards(mesh, "embed") > 1
  if cast or gathered:
    low = bytes_of(table, mesh, itemsize(cfg), gathered=True)
  on_cpu = backend == "cpu"
  computed = dataclasses.replace(cfg, dtype="float32") if on_cpu else cfg
  saved, transient = activations(computed, mesh, tokens)
  if on_cpu:
    transient += score_bytes(cfg, mesh, length)
    if model.shares_prompts(c):
      transient += shared_key_bytes(c, computed, mesh, tokens)
  logits = logit_bytes(cfg, mesh, tokens)
  update = {
      "batch": batch_bytes(c, mesh, budget),
      f"gradients, {GRADIENT_COPIES} arrays in float32": (
          GRADIENT_COPIES * trained
      ),
      "weights gathered for the products": low,
      "activations": saved + max(transient - logits, 0),
      "logits": logits,
  }

  # Copies of the weights of the sampler, for batches ahead.
  if (lag := config_facts.lag(c)) and not config_facts.samplers(c):
    copies = lag * weight_bytes(c, cfg, mesh, r.weights)
    resident["copies for batches ahead"] = copies

  # Sampling: a round of RL, and a batch of an evaluation.
  responses = c.dynamic_sampling.batches * r.batch
  sample = functools.partial(sampling, c, cfg, mesh, on_cpu=on_cpu)
  rollout = sample(
      prompts=responses // r.group_size,
      responses=responses,
      slots=slots or r.slots,
      weights=r.weights,
      cache=r.cache,
  )
  batch = evaluated or c.evaluate.batch
  evaluation = sample(
      prompts=batch,
      responses=batch * (c.evaluate.samples + 1),
      slots=slots or config_facts.most_slots(c),
      weights="same",
      cache="same",
  )
  return Size(resident, update, rollout, evaluation)


def smaller_state() -> str:
  """The fields that make the state of the optimizer smaller, for remedies."""
  return " or ".join(("optimizer.offload", *feature.marked("less_memory")))


def weight_bytes(c, cfg: decoder.ModelConfig, mesh, kind: str) -> int:
  """Bytes of weights of the sampler, gathered over fsdp and sequence."""
  size = {"same": itemsize(cfg), "bfloat16": 2, "int8": 1}[kind]
  weights = bytes_of(sampler_weights.table(cfg, kind), mesh, size)
  learned = optimizers.learned(c)
  if learned.needs_start:
    weights += bytes_of(learned.table(cfg), mesh, itemsize(cfg))
  return weights


def sampling(
    c,
    cfg: decoder.ModelConfig,
    mesh,
    *,
    prompts: int,
    responses: int,
    slots: int,
    weights: str,
    cache: str,
    on_cpu: bool,
) -> dict[str, int]:
  """Bytes of the arrays of the sampler, by name.

  `prompts`, `responses` and `slots` (0: one for each response) are of all
  devices; `weights` and `cache` are as in config.rollout.
  """
  length, width = config_facts.row_slots(c), c.rollout.max_prompt
  shards = sharding.num_shards(mesh, "batch")
  count = weight_bytes(c, cfg, mesh, weights)
  gathered = sharding.num_shards(mesh, "embed") > 1
  if weights == "same" and cfg.dtype == "float32" and not gathered:
    count = 0  # the sampler reads the parameters
  rows, prompts = min(slots or responses, responses), -(-prompts // shards)
  of_slots = cache_bytes(cfg, mesh, rows // shards, length, cache)
  of_prompts = cache_bytes(cfg, mesh, prompts, width, cache)
  decoding = decode_bytes(cfg, mesh, rows // shards)
  if on_cpu:
    if itemsize(cfg) < 4:  # fp32 copies of the weights and caches
      decoding += 4 // itemsize(cfg) * count
      if cache == "same":
        decoding += 4 // itemsize(cfg) * (of_slots + of_prompts)
    # On TPUs these buffers are where the caches will be (results/slices.md).
    computed = dataclasses.replace(cfg, dtype="float32")
    reading = prefill_bytes(computed, mesh, prompts * width)
    decoding = max(decoding, reading)
  return {
      "weights of the sampler": count,
      "key/value cache": of_slots,
      "cache of the prompts": of_prompts,
      "responses": response_bytes(c, responses // shards),
      "sampler, temporary": decoding,
  }


def batch_bytes(c, mesh, token_budget: int) -> int:
  """Bytes of the minibatches of an update, and of the copies that mask them."""
  updates, length = (
      c.updates.minibatches * c.updates.epochs,
      c.rollout.max_tokens,
  )
  rows = c.rollout.batch // c.updates.minibatches
  shards = sharding.num_shards(mesh, "batch")
  row_shards = sharding.num_shards(mesh, "rows")
  whole = config_facts.row_slots(c)
  packed = max(token_budget // whole, 1) * row_shards
  micro = packing.max_micro_batches(rows, packed)
  tokens = -(-rows // shards) * length  # of a minibatch, on one device
  given = updates * tokens * (1 + 4 * (BATCH_ARRAYS + BATCH_COPIES))
  given += 4 * MINIBATCH_COPIES * tokens
  of_place = 4 * PACKED_ARRAYS * len(config_facts.longest_prompts(c))
  return given + of_place * updates * micro * packed * whole // row_shards


def response_bytes(c, rows: int) -> int:
  """Bytes of responses and log-probs in the queue, and of one copy of them.

  `rows` is the number of rows on one device.
  """
  prompt, length = c.rollout.max_prompt, c.rollout.max_tokens
  return rows * (8 * length + 4 * (prompt + length) + 5 * length)


def itemsize(cfg: decoder.ModelConfig) -> int:
  """Bytes of one number in the dtype of the matrix products."""
  return jnp.dtype(cfg.dtype).itemsize


def moments_of(table: Tree, mesh, name: str) -> int:
  """Bytes per device of an optimizer's moments, of the parameters of a table.

  AdamW has two numbers for each parameter, Muon one for each of a matrix of the
  layers.
  """
  if name == "sgd":
    return 0
  entries = jax.tree.leaves_with_path(table, is_leaf=parameters.is_param)
  single = [
      x
      for path, x in entries
      if name == "muon" and optimizer.is_layer_matrix(path, x.shape)
  ]
  return 2 * bytes_of(table, mesh) - bytes_of(single, mesh)


def bytes_of(
    table: Tree, mesh, size: int = 4, *, gathered: bool = False
) -> int:
  """Bytes per device of the arrays of a table; `size` bytes a number.

  `gathered`: the width is replicated instead of sharded.
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
  """Bytes that a forward pass saves, and temporary bytes of one layer.

  `tokens` is the number of tokens of a micro-batch on one device.
  """
  size, parts = itemsize(cfg), sharding.num_shards(mesh, "heads")
  heads = (cfg.heads + 2 * cfg.kv_heads) * cfg.head_dim // parts
  queries, mlp = cfg.heads * cfg.head_dim // parts, cfg.mlp // parts
  stream, norms = cfg.width * size, cfg.width * 4
  chunks = sharding.num_shards(mesh, "sequence")
  # With sequence parallelism the stream between layers is sharded over tensor,
  # too, and each device holds the keys and values of whole rows.
  kept = stream // parts if chunks > 1 else stream
  gathered = (
      2 * cfg.kv_heads * cfg.head_dim // parts * chunks if chunks > 1 else 0
  )
  dots = (heads + queries + 2 * mlp + 2 * cfg.width) * size
  saved_by = {
      "dots": dots,
      "none": dots + (heads + queries + 2 * mlp) * size + 2 * norms,
  }
  saved, layers = kept + saved_by.get(cfg.remat, 0), cfg.layers
  if cfg.remat == "sqrt":  # inputs of all groups, and of the layers of one
    groups = decoder.layer_groups(layers)
    layers = groups + layers // groups
  transient = (4 * mlp + 4 * queries + gathered) * size + 4 * stream + 2 * norms
  hidden = 3 * stream  # output of the last layer, reordered by chunk
  return tokens * (layers * saved + hidden), tokens * transient


def score_bytes(cfg: decoder.ModelConfig, mesh, length: int) -> int:
  """Bytes of the scores of attention of one packed row, without a kernel."""
  heads = cfg.heads // sharding.num_shards(mesh, "heads")
  return int(SCORE_COPIES * 4 * heads * length**2)


def shared_key_bytes(c, cfg: decoder.ModelConfig, mesh, tokens: int) -> int:
  """Bytes of the keys and values that tiles of queries read, and of gradients.

  With shared prompts, a tile has copies of the keys that it may see.
  """
  prompt, response = c.rollout.max_prompt, c.rollout.max_tokens
  size = packed_attention.tile_of(prompt + response)
  keys = prompt + min(size + response, tokens)
  heads = cfg.kv_heads // sharding.num_shards(mesh, "kv_heads")
  of_key = 2 * heads * cfg.head_dim * itemsize(cfg)
  return 2 * -(-tokens // size) * keys * of_key


def prefill_bytes(cfg: decoder.ModelConfig, mesh, tokens: int) -> int:
  """Bytes of temporary buffers while `tokens` tokens of prompts are read."""
  parts = sharding.num_shards(mesh, "heads")
  projected = (2 * cfg.heads + 2 * cfg.kv_heads) * cfg.head_dim // parts
  widest = max(projected, 2 * cfg.mlp // parts)
  return tokens * itemsize(cfg) * (2 * cfg.width + widest)


def logit_bytes(cfg: decoder.ModelConfig, mesh, tokens: int) -> int:
  """Bytes of the chunks of logits of an update."""
  chunk = min(cfg.logprob_chunk, tokens)
  return LOGIT_COPIES * 4 * chunk * _vocab(cfg, mesh)


def cache_bytes(
    cfg: decoder.ModelConfig, mesh, rows: int, length: int, kind: str
) -> int:
  """Bytes of keys and values of `rows` rows; int8 adds fp32 scales."""
  heads = cfg.kv_heads
  parts = sharding.num_shards(mesh, "kv_heads")
  heads = heads // parts if heads % parts == 0 else heads
  slots = attention.cache_slots(length)
  dim = kernels.cached(cfg.attention, cfg.head_dim)
  head = dim * itemsize(cfg) if kind == "same" else dim + 4
  return 2 * cfg.layers * rows * heads * slots * head


def decode_bytes(cfg: decoder.ModelConfig, mesh, rows: int) -> int:
  """Bytes of temporary buffers of a decode step."""
  vocab = _vocab(cfg, mesh)
  head = HEAD_COPIES * vocab * cfg.width * itemsize(cfg)
  return head + LOGIT_COPIES * 4 * rows * vocab


def _vocab(cfg: decoder.ModelConfig, mesh) -> int:
  parts = sharding.num_shards(mesh, "vocab")
  return cfg.vocab // parts if cfg.vocab % parts == 0 else cfg.vocab
