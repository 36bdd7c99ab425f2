"""A decoder of the Llama/Qwen family as a pure function of a pytree.

RMSNorm, rotary positions, grouped-query attention, SwiGLU; the config chooses
biases, q/k norm, tied embeddings and experts. Layers are stacked and run under
`lax.scan`, so compile time does not grow with depth. `table` describes each
parameter once.

Shapes here: H heads, of queries or of keys.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rl_reason.base.structs import Array, Packed, Tree
from rl_reason.devices import sharding
from rl_reason.models import (
    attention,
    experts,
    linear,
    packed_attention,
    parameters,
    rope,
    sequence,
)
from rl_reason.models.kernels import by_layer
from rl_reason.models.parameters import Param


@dataclasses.dataclass(frozen=True)
class ModelConfig:
  """Static shape of a decoder; hashable, hence a static argument of jit.

  Attributes:
    vocab: rows of the embedding.
    layers, width: depth and width of the residual stream.
    heads, kv_heads, head_dim: `heads` must be a multiple of `kv_heads`.
    mlp: width of the feed-forward layer, or of each expert.
    rope_theta: base of the rotary frequencies.
    rope_type: how a context was extended, a key of `rope.UNCHANGED`.
    rope_factor: the lowest frequencies are divided by it.
    rope_low, rope_high: rotations within `rope_context` tokens; frequencies
      below `rope_low` are scaled, frequencies above `rope_high` are not.
    rope_context: context length of the model before it was extended.
    rope_scale: queries and keys are multiplied by it (YaRN).
    rope_truncate: whether YaRN rounds the indices of its frequencies.
    norm_eps: epsilon of the RMS norms.
    qkv_bias: biases on the q, k, v projections (Qwen2).
    o_bias, mlp_bias: on the output of attention, on the feed-forward layer.
    qk_norm: RMS norm on each q and k head (Qwen3).
    tied: the embedding is also the output head.
    dtype: of the matrix products; parameters and log-probs stay fp32.
    logits_dtype: 'float32': the head's products are summed and returned in it;
      'same': logits are rounded to dtype, as the code of some models does.
    remat: 'none', 'dots' (the backward pass recomputes all but products with
      weights and the outputs of attention), 'full', or 'sqrt' (saves inputs of
      groups of layers, and inputs of single layers for one group at a time).
    logprob_chunk: positions per shard of the rows whose logits exist at a time.
    attention: 'xla', or a key of `kernels.KERNELS`.
    tokens: size of the tokenizer; further rows of the embedding are padding and
      never sampled. None: all rows.
    experts: feed-forward layers to choose from, see `experts`; 0: one for all.
    experts_per_token: chosen experts of a token.
    norm_topk: whether their weights sum to 1.
    router_aux: coefficient of `experts.loss`, router_aux_loss_coef in
      transformers; 0: none.
  """

  vocab: int
  layers: int
  width: int
  heads: int
  kv_heads: int
  head_dim: int
  mlp: int
  rope_theta: float = 10_000.0
  rope_type: str = "llama3"
  rope_factor: float = 1.0
  rope_low: float = 1.0
  rope_high: float = 4.0
  rope_context: int = 8192
  rope_scale: float = 1.0
  rope_truncate: bool = True
  norm_eps: float = 1e-6
  qkv_bias: bool = False
  o_bias: bool = False
  mlp_bias: bool = False
  qk_norm: bool = False
  tied: bool = True
  dtype: str = "float32"
  logits_dtype: str = "float32"
  remat: str = "none"
  logprob_chunk: int = 1024
  attention: str = "xla"
  tokens: int | None = None
  experts: int = 0
  experts_per_token: int = 8
  norm_topk: bool = True
  router_aux: float = 0.0


# The weights of a layer that `linear.product` multiplies with.
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")

# What the forward pass of a layer saves for the backward pass; without remat it
# saves everything.
_POLICIES = jax.checkpoint_policies
REMAT = {
    "dots": _POLICIES.save_from_both_policies(
        _POLICIES.dots_with_no_batch_dims_saveable,
        _POLICIES.save_only_these_names(packed_attention.SAVED),
    ),
    "full": _POLICIES.nothing_saveable,
    "sqrt": _POLICIES.nothing_saveable,
}


def table(cfg: ModelConfig) -> dict[str, Any]:
  """Every parameter of the model: a pytree of `Param`."""
  d, f, v = cfg.width, cfg.mlp, cfg.vocab
  q, kv = cfg.heads * cfg.head_dim, cfg.kv_heads * cfg.head_dim

  def layer(shape, axes, init, fan_in=1):
    return Param((cfg.layers, *shape), (None, *axes), init, fan_in)

  layers = dict(
      norm_attn=layer((d,), (None,), "ones"),
      q=layer((d, q), ("embed", "heads"), "normal", d),
      k=layer((d, kv), ("embed", "kv_heads"), "normal", d),
      v=layer((d, kv), ("embed", "kv_heads"), "normal", d),
      o=layer((q, d), ("heads", "embed"), "normal", q * 2 * cfg.layers),
      norm_mlp=layer((d,), (None,), "ones"),
      gate=layer((d, f), ("embed", "mlp"), "normal", d),
      up=layer((d, f), ("embed", "mlp"), "normal", d),
      down=layer((f, d), ("mlp", "embed"), "normal", f * 2 * cfg.layers),
  )
  if cfg.experts:
    layers |= experts.table(cfg, layer)
  biased = ["q", "k", "v"] * cfg.qkv_bias + ["o"] * cfg.o_bias
  for name in biased + ["gate", "up", "down"] * cfg.mlp_bias:
    (*_, out), (*_, axis) = layers[name].shape, layers[name].axes
    axis = None if axis == "embed" else axis  # the residual stream is unsharded
    layers[f"{name}_bias"] = layer((out,), (axis,), "zeros")
  for name in ["q_norm", "k_norm"] * cfg.qk_norm:
    layers[name] = layer((cfg.head_dim,), (None,), "ones")
  params = dict(
      embed=Param((v, d), ("vocab", "embed"), "normal", d),
      layers=layers,
      norm=Param((d,), (None,), "ones"),
  )
  if not cfg.tied:
    params["head"] = Param((d, v), ("embed", "vocab"), "normal", d)
  return params


def layer_groups(layers: int) -> int:
  """Number of equal groups of layers: the largest divisor up to the root."""
  return max(n for n in range(1, math.isqrt(layers) + 1) if layers % n == 0)


def init(cfg: ModelConfig, key: Array) -> Tree:
  """fp32 parameters of a decoder."""
  return parameters.init_table(table(cfg), key)


def empty_cache(
    cfg: ModelConfig, rows: int, slots: int, cache: str = "same"
) -> attention.Caches:
  """A cache of zeros for `rows` rows of `slots` tokens.

  The dtype is 'same' (of the matrix products) or 'int8'. With kernels that
  decode by layer, each layer has a cache of its own.
  """
  shape = rows, cfg.kv_heads, slots, cfg.head_dim
  dtype = cfg.dtype if cache == "same" else cache
  if by_layer(cfg.attention):
    return tuple(
        attention.empty_cache(cfg.attention, (1, *shape), dtype)
        for _ in range(cfg.layers)
    )
  return attention.empty_cache(cfg.attention, (cfg.layers, *shape), dtype)


def rms_norm(x: Array, scale: Array, eps: float) -> Array:
  """RMS norm over the last axis, computed in fp32."""
  x32 = x.astype(jnp.float32)
  x32 *= jax.lax.rsqrt(jnp.mean(x32**2, -1, keepdims=True) + eps)
  return (x32 * scale).astype(x.dtype)


def forward(
    params: Tree,
    cfg: ModelConfig,
    tokens_BL: Array,
    positions_BL: Array,
    attend: attention.Attend,
    cache: Any = None,
    record: Tree | None = None,
) -> tuple[Array, Any, experts.Routing | None]:
  """The residual stream after the last norm.

  Args:
    params: as of `init`, or with a tuple of layers; a matrix may be any weight
      of `linear`.
    cfg: static.
    tokens_BL: int32.
    positions_BL: int32, of each token in its sequence; any for padding.
    attend: of `attention`: which tokens each token sees.
    cache: of `empty_cache`, if `attend` reads or writes one.
    record: choices of the model at these tokens, which are repeated (see
      `experts.by_layer`); None: the model chooses.

  Returns:
    hidden [B, L, D] in cfg.dtype, the new cache (None without one), and the
    routing of each layer, or of each group and layer (None without experts).
  """
  rows, length = tokens_BL.shape
  kv, group = cfg.kv_heads, cfg.heads // cfg.kv_heads
  freq_C = rope.frequencies(cfg)

  # The residual stream is [X, D] with X = B * L: the gradient of a weight is
  # then one plain matrix product. XLA's CPU backend runs it 2.6 times as fast
  # as the contraction over two axes of [B, L, D].
  def block(carry, layer):
    x_XD, cache = carry
    index, p, given = layer

    def project(x, name):
      out = linear.product(x, p[name])
      bias = p.get(f"{name}_bias")
      return out if bias is None else out + bias.astype(out.dtype)

    # Attention. Norms come before each sublayer, so that the residual stream is
    # a plain sum of the outputs.
    h = sequence.gathered(rms_norm(x_XD, p["norm_attn"], cfg.norm_eps))
    q, k, v = (
        project(h, x).reshape(rows, length, -1, cfg.head_dim) for x in "qkv"
    )
    if cfg.qk_norm:
      q = rms_norm(q, p["q_norm"], cfg.norm_eps)
      k = rms_norm(k, p["k_norm"], cfg.norm_eps)
    q = rope.rotate(q, positions_BL, freq_C, cfg.rope_scale)
    k = rope.rotate(k, positions_BL, freq_C, cfg.rope_scale)
    q = q.reshape(rows, length, kv, group, cfg.head_dim)
    a, cache = attend(cfg.attention, index, q, k, v, cache)
    a = a.reshape(rows * length, -1)
    x_XD = x_XD + sequence.gathered(project(a, "o"))
    # Feed-forward (SwiGLU).
    h = sequence.gathered(rms_norm(x_XD, p["norm_mlp"], cfg.norm_eps))
    routing = None
    if cfg.experts:
      h, routing = experts.feed_forward(h, p, cfg, given)
    else:
      h = jax.nn.silu(project(h, "gate")) * project(h, "up")
      h = project(h, "down")
    x_XD = x_XD + sequence.gathered(h)
    return (sequence.stream(x_XD), cache), routing

  # Only training takes gradients, of stacked layers without a cache. A scan
  # needs no `prevent_cse`.
  given = experts.by_layer(record, cfg)
  layers = jnp.arange(cfg.layers), params["layers"], given
  unrolled = any(isinstance(x, tuple) for x in (cache, params["layers"]))
  if cache is None and not unrolled and cfg.remat != "none":
    remat = functools.partial(
        jax.checkpoint, policy=REMAT[cfg.remat], prevent_cse=False
    )
    block = remat(block)
    if cfg.remat == "sqrt":  # a scan over groups of layers, each one a scan
      groups = layer_groups(cfg.layers)
      layers = jax.tree.map(
          lambda x: x.reshape(groups, -1, *x.shape[1:]), layers
      )
      block = remat(functools.partial(jax.lax.scan, block))
  embed_VD = sequence.full_width(params["embed"].astype(cfg.dtype))
  x_XD = sequence.stream(embed_VD[tokens_BL.reshape(-1)])
  if unrolled:
    carry, routing = _unrolled(block, (x_XD, cache), layers)
  else:
    carry, routing = jax.lax.scan(block, (x_XD, cache), layers)
  x_XD, cache = carry
  x_XD = rms_norm(x_XD, params["norm"], cfg.norm_eps)
  return x_XD.reshape(rows, length, -1), cache, routing


def _unrolled(block: Callable, carry: tuple, layers: tuple) -> tuple:
  """As `jax.lax.scan(block, carry, layers)`, over layers with own arrays."""
  x_XD, caches = carry
  _, params, given = layers
  new, routings = [], []
  for n in range(len(caches or params)):

    def of_layer(tree, n=n):
      return jax.tree.map(lambda x: x[n], tree)

    p = params[n] if isinstance(params, tuple) else of_layer(params)
    cache = caches[n] if caches else None
    (x_XD, cache), routing = block((x_XD, cache), (0, p, of_layer(given)))
    new.append(cache)
    routings.append(routing)
  routing = jax.tree.map(lambda *xs: jnp.stack(xs), *routings)
  return (x_XD, tuple(new) if caches else None), routing


def hidden(
    params: Tree, cfg: ModelConfig, packed: Packed
) -> tuple[Array, experts.Routing | None]:
  """`forward` of packed rows, in the chunks of `sequence.split`.

  Returns:
    hidden [R, L, D], and the routing of `forward`.
  """
  p = jax.tree.map(sequence.split, packed.replace(source_BT=None))
  attend = attention.packed(p.segments_RL, p.shared, chunks=True)
  rows = p.tokens_RL, p.positions_RL, attend
  hidden_RLD, _, routing = forward(params, cfg, *rows, record=p.record)
  return hidden_RLD, routing


def logits(params: Tree, cfg: ModelConfig, hidden: Array) -> Array:
  """fp32 logits [..., V] of hidden states [..., D]; MASK_VALUE for padding."""
  # `product` casts the head to the dtype of the states here: after a cast
  # before a loop over chunks, its gradient would accumulate in that dtype.
  head = params["head"] if "head" in params else params["embed"].T
  out = linear.product32(hidden, head)
  if cfg.logits_dtype == "same":
    out = linear.rounded(out, cfg.dtype)
  if cfg.tokens is None or cfg.tokens == cfg.vocab:
    return out
  return jnp.where(
      jnp.arange(cfg.vocab) < cfg.tokens, out, attention.MASK_VALUE
  )


def packed_logps(
    params: Tree,
    cfg: ModelConfig,
    packed: Packed,
    temperature: float = 1.0,
    compare: Callable[..., tuple[Array, ...]] | None = None,
) -> tuple[Any, ...]:
  """Log-probability and entropy of each response token.

  Logits exist for `cfg.logprob_chunk` positions of a shard of the rows at a
  time, also in the backward pass. Positions that predict a response token come
  first, and chunks without them are skipped: prompts and padding cost no
  logits. The config and the temperature are static. `compare` computes further
  numbers of all logits of a token, such as `squared_probabilities.chunked`.

  Returns:
    logps [B, T] and entropy [B, T], float32, entropy in nats, and with
    `compare` what it adds; past the end of a response, they repeat the values
    of its first token. And the routing of `forward`, for the loss of the
    routers.
  """
  hidden_RLD, routing = hidden(params, cfg, packed)
  shards = sharding.num_shards(jax.sharding.get_abstract_mesh(), "batch")

  # In each shard, positions that predict a response token come first.
  predicts_X = jnp.zeros(packed.tokens_RL.size, bool)
  predicts_X = predicts_X.at[packed.source_BT].set(True)
  predicts_RL = sequence.split(predicts_X.reshape(packed.tokens_RL.shape))
  predicts_WX = predicts_RL.reshape(shards, -1)
  order_WX = jnp.argsort(~predicts_WX, axis=1, stable=True)
  positions = order_WX.shape[1]
  pad = -positions % min(cfg.logprob_chunk, positions)
  padded_WX = jnp.pad(order_WX, ((0, 0), (0, pad)))

  # Gather within shards: a gather over all rows would move hidden states
  # between devices.
  def take(x):
    x_WX = x.reshape(shards, positions, *x.shape[2:])
    x_WX = sharding.constrain(x_WX, "batch", *[None] * (x_WX.ndim - 1))
    index = padded_WX.reshape(*padded_WX.shape, *[1] * (x_WX.ndim - 2))
    return jnp.take_along_axis(x_WX, index, 1)

  # The token that a position predicts is the next one of its row.
  name = "embed" if cfg.tied else "head"
  of_chunks: Callable[..., tuple[Array, ...]] = _chunked_logps
  if compare is not None:
    of_chunks = functools.partial(compare, packed, take)
  chunked = of_chunks(
      cfg,
      temperature,
      {name: params[name]},
      take(hidden_RLD),
      take(sequence.split(jnp.roll(packed.tokens_RL, -1, 1))),
      predicts_WX.sum(1).max(),
  )

  # Undo the order, then look up each response token.
  rank_WX = jnp.argsort(order_WX, axis=1)
  in_order = (jnp.take_along_axis(x_WX, rank_WX, 1) for x_WX in chunked)
  out = (
      sequence.join(x_WX.reshape(predicts_RL.shape)).reshape(-1)[
          packed.source_BT
      ]
      for x_WX in in_order
  )
  return *out, routing


def chunk(x_WX: Array, at: Array, size: int) -> Array:
  """Chunk number `at` of every shard: [W * size, ...]."""
  x = jax.lax.dynamic_slice_in_dim(x_WX, at * size, size, 1)
  return x.reshape(-1, *x.shape[2:])


def with_chunk(x_WX: Array, new: Array, at: Array, size: int) -> Array:
  """Puts back what `chunk` has taken, or what was computed from it."""
  new = new.reshape(len(x_WX), size, *new.shape[1:])
  return jax.lax.dynamic_update_slice_in_dim(x_WX, new, at * size, 1)


# The gradient is written by hand. The loops can then end after the last
# position with a response token, and a chunk of logits becomes its gradient in
# place, where autodiff would hold four chunks.
@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _chunked_logps(cfg, temperature, head, hidden_WXD, targets_WX, count):
  """Log-probs and entropy of the first `count` positions; zeros elsewhere."""
  args = cfg, temperature, head, hidden_WXD, targets_WX, count
  return _chunked_forward(*args)[0]


def _chunked_forward(cfg, temperature, head, hidden_WXD, targets_WX, count):
  size = min(cfg.logprob_chunk, targets_WX.shape[1])

  def one(at, out):
    scaled_XV = logits(head, cfg, chunk(hidden_WXD, at, size)) / temperature
    target_X = chunk(targets_WX, at, size)
    logsumexp_X = jax.nn.logsumexp(scaled_XV, -1)
    chosen_X = jnp.take_along_axis(scaled_XV, target_X[:, None], 1)[:, 0]
    probs_XV = jnp.exp(scaled_XV - logsumexp_X[:, None])
    mean_X = jnp.sum(_expected(probs_XV, scaled_XV), -1)
    # Entropy is logsumexp minus the mean logit.
    new = chosen_X - logsumexp_X, logsumexp_X - mean_X, logsumexp_X
    return tuple(
        with_chunk(x, y, at, size) for x, y in zip(out, new, strict=True)
    )

  zeros_WX = jnp.zeros(targets_WX.shape, jnp.float32)
  logps_WX, entropy_WX, logsumexp_WX = jax.lax.fori_loop(
      0, -(-count // size), one, (zeros_WX,) * 3
  )
  saved = head, hidden_WXD, targets_WX, count, entropy_WX, logsumexp_WX
  return (logps_WX, entropy_WX), saved


def _chunked_backward(cfg, temperature, saved, grads):
  head, hidden_WXD, targets_WX, count, *rest = saved
  size = min(cfg.logprob_chunk, targets_WX.shape[1])
  (name, weight), contracted = next(iter(head.items())), ((0,), (0,))

  def one(at, carry):
    hidden_grad_WXD, weight_grad = carry
    hidden_XD = chunk(hidden_WXD, at, size)
    target_X1, entropy_X1, logsumexp_X1, logp_grad_X1, entropy_grad_X1 = (
        chunk(x, at, size)[:, None] for x in (targets_WX, *rest, *grads)
    )
    scaled_XV = logits(head, cfg, hidden_XD) / temperature
    probs_XV = jnp.exp(scaled_XV - logsumexp_X1)
    onehot_XV = jnp.arange(cfg.vocab) == target_X1
    # d logp = onehot - p, d entropy = -p (log p + entropy).
    surplus_XV = scaled_XV - logsumexp_X1 + entropy_X1
    neg_entropy_XV = _expected(probs_XV, surplus_XV)
    grad_XV = logp_grad_X1 * (onehot_XV - probs_XV)
    grad_XV = grad_XV - entropy_grad_X1 * neg_entropy_XV
    grad_XV = (grad_XV / temperature).astype(cfg.dtype)
    # The weight's gradient adds up in its own dtype, fp32.
    pair = (grad_XV, hidden_XD) if cfg.tied else (hidden_XD, grad_XV)
    weight_grad += jax.lax.dot_general(
        *pair, (contracted, ((), ())), preferred_element_type=weight.dtype
    )
    low = weight.astype(cfg.dtype)
    new_XD = grad_XV @ (low if cfg.tied else low.T)
    return with_chunk(hidden_grad_WXD, new_XD, at, size), weight_grad

  hidden_grad_WXD, weight_grad = jax.lax.fori_loop(
      0,
      -(-count // size),
      one,
      (jnp.zeros_like(hidden_WXD), jnp.zeros_like(weight)),
  )
  return {name: weight_grad}, hidden_grad_WXD, None, None


def _expected(probs, values):
  """p x, and 0 where p is 0: there the logit may be -inf, and x with it."""
  return jnp.where(probs > 0, probs * values, 0)


_chunked_logps.defvjp(_chunked_forward, _chunked_backward)
