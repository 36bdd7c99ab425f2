"""The model, its loss and the optimizer again: NumPy, float64, loops."""

import numpy as np
from reference import k3, policy_loss, reduce, softmax

# --- the model -------------------------------------------------------------


def _norm(x, scale, eps):
  return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + eps) * scale


def _rotate(x_LC, theta):
  """Pairs (i, i + C/2) turned by position * theta ** (-2 i / C)."""
  length, width = x_LC.shape
  out = np.empty_like(x_LC)
  for i in range(width // 2):
    angle = np.arange(length) * theta ** (-2 * i / width)
    a, b = x_LC[:, i], x_LC[:, i + width // 2]
    out[:, i] = a * np.cos(angle) - b * np.sin(angle)
    out[:, i + width // 2] = a * np.sin(angle) + b * np.cos(angle)
  return out


def row_logits(params, cfg, tokens_L):
  """Logits [L, V] of one row WITHOUT padding: nothing to mask but causality."""
  layers, length = params["layers"], len(tokens_L)
  future_LL = np.triu(np.ones((length, length), bool), 1)
  x_LD = params["embed"][tokens_L]
  for n in range(cfg.layers):
    p = {name: stacked[n] for name, stacked in layers.items()}
    h = _norm(x_LD, p["norm_attn"], cfg.norm_eps)
    qkv = {}
    for name in "qkv":
      y = h @ p[name]
      if cfg.qkv_bias:
        y = y + p[f"{name}_bias"]
      heads = np.split(y, y.shape[1] // cfg.head_dim, axis=1)
      if cfg.qk_norm and name != "v":
        heads = [_norm(x, p[f"{name}_norm"], cfg.norm_eps) for x in heads]
      if name != "v":
        heads = [_rotate(x, cfg.rope_theta) for x in heads]
      qkv[name] = heads
    out = []
    for i, q_LC in enumerate(qkv["q"]):
      shared = i // (cfg.heads // cfg.kv_heads)  # the kv head of query head i
      scores_LL = q_LC @ qkv["k"][shared].T / np.sqrt(cfg.head_dim)
      scores_LL = np.where(future_LL, -np.inf, scores_LL)
      out.append(softmax(scores_LL) @ qkv["v"][shared])
    x_LD = x_LD + np.concatenate(out, 1) @ p["o"]
    h = _norm(x_LD, p["norm_mlp"], cfg.norm_eps)
    gate = h @ p["gate"]
    x_LD = x_LD + (gate / (1 + np.exp(-gate)) * (h @ p["up"])) @ p["down"]
  x_LD = _norm(x_LD, params["norm"], cfg.norm_eps)
  return x_LD @ (params["embed"].T if cfg.tied else params["head"])


def response_logps(params, cfg, tokens_BL, start_B, length, temperature=1.0):
  """Log-probability of the last `length` tokens of each row: [B, T]."""
  out_BT = []
  for tokens_L, start in zip(tokens_BL, start_B, strict=True):
    logits_LV = row_logits(params, cfg, tokens_L[start:]) / temperature
    probs_LV = softmax(logits_LV)
    # The token at l is predicted at l - 1.
    chosen_L = probs_LV[np.arange(len(probs_LV) - 1), tokens_L[start + 1 :]]
    out_BT.append(np.log(chosen_L[-length:]))
  return np.array(out_BT)


def rl_loss(
    params, cfg, batch, *, temperature, reduction, beta, low, high, dual
):
  """Clipped objective plus beta * k3 of one minibatch, reduced to a number."""
  mask_BT = np.asarray(batch.mask_BT)
  logps_BT = response_logps(
      params,
      cfg,
      batch.tokens_BL,
      batch.start_B,
      mask_BT.shape[1],
      temperature,
  )
  loss_BT = np.zeros(mask_BT.shape)
  for b, t in zip(*np.nonzero(mask_BT), strict=True):
    logp, advantage = logps_BT[b, t], batch.advantages_BT[b, t]
    log_ratio = logp - batch.old_logps_BT[b, t]
    loss_BT[b, t] = policy_loss(log_ratio, advantage, low, high, dual)
    loss_BT[b, t] += beta * k3(logp, batch.ref_logps_BT[b, t])
  return reduce(reduction, loss_BT, mask_BT, batch.groups_B)


# --- trees and the optimizer -----------------------------------------------


def flat(tree, prefix=""):
  """{'layers/q': array, ...} in float64."""
  out = {}
  for name, value in tree.items():
    if isinstance(value, dict):
      out |= flat(value, f"{prefix}{name}/")
    else:
      out[prefix + name] = np.array(value, np.float64)
  return out


def nested(leaves):
  """The inverse of `flat`."""
  tree = {}
  for path, value in leaves.items():
    *parents, name = path.split("/")
    branch = tree
    for parent in parents:
      branch = branch.setdefault(parent, {})
    branch[name] = value
  return tree


def slope(f, leaves, direction, h=1e-5):
  """Central difference of f(leaves) along `direction`, both flat trees."""

  def at(t):
    return f({k: x + t * direction.get(k, 0) for k, x in leaves.items()})

  return (at(h) - at(-h)) / (2 * h)


def clip_by_norm(grads, limit):
  """All gradients scaled so that their common norm is at most `limit`."""
  norm = np.sqrt(sum((g**2).sum() for g in grads.values()))
  return {k: g * min(1, limit / norm) for k, g in grads.items()}, norm


def adamw(params, grads, moments, t, *, lr, b1, b2, eps, decay, decayed):
  """Step t = 1, 2, ... of AdamW with bias correction; decoupled decay.

  Args:
    params, grads: flat trees.
    moments: (means, squares) of the step before; None at first.
    t: number of this step, from 1.
    lr, b1, b2, eps, decay: as usual.
    decayed: the names that decay.
  """
  zeros = {k: np.zeros_like(p) for k, p in params.items()}
  means, squares = moments or (zeros, zeros)
  means = {k: b1 * means[k] + (1 - b1) * g for k, g in grads.items()}
  squares = {k: b2 * squares[k] + (1 - b2) * g**2 for k, g in grads.items()}
  new = {}
  for k, p in params.items():
    mean = means[k] / (1 - b1**t)
    rms = np.sqrt(squares[k] / (1 - b2**t))
    new[k] = p - lr * (mean / (rms + eps) + (decay * p if k in decayed else 0))
  return new, (means, squares)
