"""The same mathematics a second time: NumPy, float64, loops, no JAX.

Written from the papers' formulas and not from the library's code, so that a
mistake has to be made twice to go unseen. Slow on purpose.
"""

import numpy as np

# --- advantages and rewards ------------------------------------------------


def _groups(ids_B):
  """Row numbers of each group."""
  return [np.flatnonzero(np.equal(ids_B, i)) for i in set(np.asarray(ids_B))]


def group_mean(rewards_B, ids_B):
  """R - mean of the group."""
  rewards_B = np.asarray(rewards_B, np.float64)
  out_B = np.zeros(len(rewards_B))
  for rows in _groups(ids_B):
    some = rewards_B[rows]
    if len(set(some)) > 1:
      out_B[rows] = some - sum(some) / len(some)
  return out_B


def group_norm(rewards_B, ids_B, eps=1e-6, ddof=1):
  """(R - mean) / (std + eps); verl's convention is ddof 1."""
  out_B = group_mean(rewards_B, ids_B)
  for rows in _groups(ids_B):
    squares = sum(out_B[rows] ** 2)
    if squares > 0:
      std = (squares / (len(rows) - ddof)) ** 0.5
      out_B[rows] = out_B[rows] / (std + eps)
  return out_B


def leave_one_out(rewards_B, ids_B):
  """R less the mean of the others, written as that."""
  rewards_B = np.asarray(rewards_B, np.float64)
  out_B = np.zeros(len(rewards_B))
  for rows in _groups(ids_B):
    for i in rows:
      others = [rewards_B[j] for j in rows if j != i]
      if others:
        out_B[i] = rewards_B[i] - sum(others) / len(others)
  return out_B


def soft_overlong(length, max_tokens, buffer):
  """DAPO eq 13 for one response, case by case."""
  if length <= max_tokens - buffer:
    return 0.0
  if length <= max_tokens:
    return ((max_tokens - buffer) - length) / buffer
  return -1.0


# --- reductions: from per-token losses to one number -----------------------


def reduce(name, loss_BT, mask_BT, ids_B):
  """The reduction by its definition, over ragged lists of tokens."""
  rows = [
      [x for x, m in zip(loss, mask, strict=True) if m]
      for loss, mask in zip(loss_BT, mask_BT, strict=True)
  ]
  full = [row for row in rows if row]
  if not full:
    return 0.0
  if name == "token_mean":
    tokens = [x for row in full for x in row]
    return sum(tokens) / len(tokens)
  if name == "seq_mean_token_mean":
    return sum(sum(row) / len(row) for row in full) / len(full)
  if name == "seq_mean_token_sum":
    return sum(sum(row) for row in full) / len(full)
  if name == "constant":
    return sum(sum(row) for row in full) / (len(full) * len(mask_BT[0]))
  assert name == "prompt_token_mean"
  by_prompt = {}
  for row, i in zip(rows, np.asarray(ids_B).tolist(), strict=True):
    by_prompt.setdefault(i, []).extend(row)
  means = [sum(tokens) / len(tokens) for tokens in by_prompt.values() if tokens]
  return sum(means) / len(means)


# --- per-token losses ------------------------------------------------------


def policy_loss(log_ratio, advantage, low, high, dual=0.0):
  """Minus the clipped objective of one token, with dual clip."""
  ratio = np.exp(min(max(log_ratio, -20.0), 20.0))
  clipped = min(max(ratio, 1 - low), 1 + high)
  objective = min(ratio * advantage, clipped * advantage)
  if dual and advantage < 0:
    objective = max(objective, dual * advantage)
  return -objective


def k3(logp, ref):
  """Schulman's third estimator, clamped as in verl."""
  d = min(max(ref - logp, -20.0), 20.0)
  return min(np.exp(d) - d - 1, 10.0)


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


def _softmax(x):
  e = np.exp(x - x.max(-1, keepdims=True))
  return e / e.sum(-1, keepdims=True)


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
      out.append(_softmax(scores_LL) @ qkv["v"][shared])
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
    probs_LV = _softmax(logits_LV)
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
