"""Mixture of experts in place of the feed-forward layer (Qwen3-MoE).

A router chooses K of E feed-forward layers for each token and weights their
outputs. No token is dropped: tokens are sorted by expert, and
`jax.lax.ragged_dot` multiplies the tokens of each expert with its weights.

The choice is discrete: a sampler with other rounding may choose other experts
than the trainer. Routing replay (arXiv:2510.11370) repeats recorded choices:
`feed_forward` then takes the experts as given and computes only their weights.

With `mesh.expert` > 1 each device has some of the experts. The devices along
this axis gather their tokens, each device sums the outputs of its experts over
all tokens, and each token's sum goes back to its device.

Shapes here: X tokens; E experts of a layer; K experts of a token; N = X * K
pairs of both; Z = layers * K experts of a token in all layers.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rl_reason.base.structs import Array, Packed, Tree
from rl_reason.devices import sharding
from rl_reason.models import linear, sequence

AXIS = "expert"


class Routing(NamedTuple):
  """The output of a router; of a whole model, with a leading axis of layers.

  Attributes:
    routes_XK: int32, the router's own choice of experts.
    probs_XE: float32, the softmax of its logits.
  """

  routes_XK: Array
  probs_XE: Array


def table(cfg: Any, layer: Callable) -> dict[str, Any]:
  """The parameters of a layer; `layer` as in `decoder.table`."""
  d, f, e = cfg.width, cfg.mlp, cfg.experts
  wide = (e, d, f), (AXIS, "embed", "mlp"), "normal", d
  return dict(
      router=layer((d, e), ("embed", None), "normal", d),
      gate=layer(*wide),
      up=layer(*wide),
      down=layer(
          (e, f, d), (AXIS, "mlp", "embed"), "normal", f * 2 * cfg.layers
      ),
  )


def feed_forward(
    x_XD: Array, p: Tree, cfg: Any, given_XK: Array | None
) -> tuple[Array, Routing]:
  """The sum of the experts of each token, and the routing.

  Args:
    x_XD: of the residual stream, normalized.
    p: parameters of one layer.
    cfg: `decoder.ModelConfig`, static.
    given_XK: the experts of each token, -1 where the router chooses; None: the
      router chooses everywhere.
  """
  logits_XE = linear.product32(x_XD, p["router"])
  probs_XE = jax.nn.softmax(logits_XE, -1)
  _, routes_XK = jax.lax.top_k(probs_XE, cfg.experts_per_token)
  used_XK = _used(routes_XK, given_XK)
  share_XK = jnp.take_along_axis(probs_XE, used_XK, 1)
  if cfg.norm_topk:
    share_XK /= share_XK.sum(1, keepdims=True)

  # Each device computes its experts, for tokens of the devices along the axis.
  weights = [p[name] for name in ("gate", "up", "down")]
  weights = [
      w if isinstance(w, linear.Int8) else w.astype(x_XD.dtype) for w in weights
  ]
  leaves, treedef = jax.tree.flatten(weights)
  names = dict(gate=(AXIS, None, "mlp"), down=(AXIS, "mlp", None))
  axes = []
  for w, name in zip(weights, ("gate", "gate", "down"), strict=True):
    first, *_, last = names[name]
    scale = [(first, last)] * isinstance(w, linear.Int8)
    axes += [names[name], *scale]
  tokens = "batch", None
  run = sharding.by_device(
      functools.partial(_local, treedef, cfg, len(x_XD)),
      (tokens, tokens, tokens, *axes),
      tokens,
  )
  out_XD = run(x_XD, used_XK, share_XK.astype(x_XD.dtype), *leaves)
  return out_XD, Routing(routes_XK, probs_XE)


def _used(routes_XK: Array, given_XK: Array | None) -> Array:
  if given_XK is None:
    return routes_XK
  return jnp.where(given_XK < 0, routes_XK, given_XK.astype(jnp.int32))


def _local(treedef, cfg, total, x_XD, used_XK, share_XK, *leaves):
  """`feed_forward` of one device, with its part of the arrays.

  `total` counts the tokens of all devices.
  """
  gate, up, down = treedef.unflatten(leaves)
  count = len(leaves[0])
  first, sums = 0, []
  spread = count < cfg.experts and len(x_XD) < total
  if count < cfg.experts:
    first = jax.lax.axis_index(AXIS) * count
    sums = [] if spread else [AXIS]
  if spread:
    x_XD, used_XK, share_XK = (
        jax.lax.all_gather(y, AXIS, tiled=True)
        for y in (x_XD, used_XK, share_XK)
    )
  if leaves[0].shape[2] < cfg.mlp:
    sums.append("tensor")

  # Sort pairs by expert, experts of this device first. Copies of tokens are
  # permuted and permuted back, not gathered and scattered, so that the sum over
  # K has the same order everywhere.
  expert_N = (used_XK.reshape(-1) - first) % cfg.experts
  order_N = jnp.argsort(expert_N, stable=True)
  sorted_N = expert_N[order_N]
  sizes_E = jnp.bincount(expert_N, length=count)
  rows_ND = jnp.repeat(x_XD, used_XK.shape[1], 0)
  rows_ND = rows_ND.at[order_N].get(unique_indices=True)

  def product(x, w):
    if not isinstance(w, linear.Int8):
      return jax.lax.ragged_dot(x, w, sizes_E)
    # As in `linear.product`, the scale multiplies the product, in fp32.
    out = jax.lax.ragged_dot(x, w.values.astype(x.dtype), sizes_E)
    return (out * w.scale.at[sorted_N].get(mode="clip")).astype(x.dtype)

  out_ND = product(
      jax.nn.silu(product(rows_ND, gate)) * product(rows_ND, up), down
  )
  # Pairs of other devices' experts come last and are in no group.
  out_ND = jnp.where((sorted_N < count)[:, None], out_ND, 0)
  back_N = jnp.argsort(order_N)
  out_ND = out_ND.at[back_N].get(unique_indices=True)
  out_XKD = out_ND.reshape(*used_XK.shape, -1) * share_XK[..., None]
  out_XD = out_XKD.sum(1)
  if sums:
    out_XD = jax.lax.psum(out_XD, tuple(sums))
  if spread:
    out_XD = jax.lax.psum_scatter(out_XD, AXIS, tiled=True)
  return out_XD


# --- recorded experts --------------------------------------------------------


def by_layer(record: Array | None, cfg: Any) -> Array | None:
  """The recorded experts of each layer: [layers, X, K]; None without one."""
  if record is None:
    return None
  routes = record.reshape(-1, cfg.layers, cfg.experts_per_token)
  return jnp.moveaxis(routes, 1, 0)


# --- what training reads -----------------------------------------------------


def loss(
    cfg: Any, routing: Routing | None, packed: Packed, mean_BT: Array
) -> tuple[Array | float, dict[str, Array]]:
  """The load-balancing loss of a micro-batch, and metrics of its routing.

  Loss and metrics are summed over micro-batches.

  Args:
    cfg: of the model.
    routing: of the forward pass; None: the model has no experts.
    packed: its tokens.
    mean_BT: weight of each response token in a mean over the minibatch; zeros
      in the rows of other micro-batches.

  Returns:
    cfg.router_aux times loss, and metrics: router_aux_loss unless it is 0; with
    a record router_agreement, the share of recorded experts that the routers of
    this pass choose too, averaged over layers and response tokens.
  """
  if routing is None:
    return 0.0, {}
  metrics, total = {}, jnp.zeros(())
  # With model.remat = "sqrt" the layers are in groups.
  routing = jax.tree.map(
      lambda x: x.reshape(cfg.layers, *x.shape[-2:]), routing
  )
  segments_RL = sequence.split(packed.segments_RL)
  given = by_layer(jax.tree.map(sequence.split, packed.record), cfg)
  if given is not None:
    agree_X = agreement(routing, given)
    agree_RL = sequence.join(agree_X.reshape(segments_RL.shape))
    agree_BT = agree_RL.reshape(-1)[packed.source_BT]
    metrics["router_agreement"] = jnp.sum(mean_BT * agree_BT)
  if cfg.router_aux:
    used = _used(routing.routes_XK, given)
    copies_RL = segments_RL > 0
    if packed.shared is not None:
      copies_RL = sequence.split(packed.shared.copies_RL)
    value = balance(used, routing.probs_XE, copies_RL.reshape(-1))
    # Micro-batches are weighted by their response tokens.
    metrics["router_aux_loss"] = value = value * mean_BT.sum()
    total = cfg.router_aux * value
  return total, metrics


def agreement(routing: Routing, given_XK: Array) -> Array:
  """Share of the given experts that the routers choose too: [X]."""
  same = routing.routes_XK[..., None] == given_XK[..., None, :]
  return same.any(-1).mean((0, 2))


def balance(routes_XK: Array, probs_XE: Array, copies_X: Array) -> Array:
  """E times the sum over experts of their share of tokens and probability.

  As in transformers, over the tokens of all layers ([layers, X, K or E]), each
  as often as sequences have it; padding has 0 copies. The
  value is K if all experts are chosen equally often (arXiv:2101.03961, eq 4 to
  6, has K = 1).
  """
  count = jnp.maximum(copies_X.sum() * len(routes_XK), 1)
  experts = probs_XE.shape[-1]
  chosen_XE = (routes_XK[..., None] == jnp.arange(experts)).sum(-2)
  share_E = jnp.sum(chosen_XE * copies_X[:, None], (0, 1)) / count
  prob_E = jnp.sum(probs_XE * copies_X[:, None], (0, 1)) / count
  return experts * jnp.sum(share_E * prob_E)
