"""The same mathematics a second time: NumPy, float64, loops, no JAX.

Written from the papers' formulas and not from the library's code, so that a
mistake has to be made twice to go unseen. Slow on purpose.
"""

import numpy as np

# --- groups, rows and batches ----------------------------------------------


def _groups(ids_B):
  """Row numbers of each group."""
  return [np.flatnonzero(np.equal(ids_B, i)) for i in set(np.asarray(ids_B))]


def _others(ids_B, b):
  """The other rows of row b's group."""
  return [i for i in range(len(ids_B)) if ids_B[i] == ids_B[b] and i != b]


def _tokens(values_BT, mask_BT):
  """Each row without what its mask hides: ragged lists."""
  return [
      [float(x) for x, m in zip(row, mask, strict=True) if m]
      for row, mask in zip(values_BT, mask_BT, strict=True)
  ]


def _spread(rows, mask_BT):
  """The inverse of `_tokens`, with 0 for what is hidden."""
  out_BT = np.zeros(np.shape(mask_BT))
  for b, row in enumerate(rows):
    out_BT[b, np.flatnonzero(mask_BT[b])] = row
  return out_BT


def _mean(some):
  return sum(some) / len(some) if len(some) else 0.0


def _std(some, ddof):
  squares = sum((x - _mean(some)) ** 2 for x in some)
  return (squares / max(len(some) - ddof, 1)) ** 0.5


def group_sum(values_B, groups_B):
  return [sum(values_B[np.equal(groups_B, g)]) for g in groups_B]


def group_max(values_B, groups_B):
  return [max(values_B[np.equal(groups_B, g)]) for g in groups_B]


def group_min(values_B, groups_B):
  return [min(values_B[np.equal(groups_B, g)]) for g in groups_B]


def group_constant(values_B, groups_B):
  return [len(set(values_B[np.equal(groups_B, g)])) == 1 for g in groups_B]


def row_mean(values_BT, mask_BT):
  return np.array([_mean(row) for row in _tokens(values_BT, mask_BT)])


def masked_mean(values_BT, mask_BT):
  return _mean(sum(_tokens(values_BT, mask_BT), []))


def whiten(values_BT, mask_BT, eps=1e-8):
  """(x - mean) / sqrt(unbiased variance + eps) of what the mask shows."""
  rows = _tokens(values_BT, mask_BT)
  flat = sum(rows, [])
  if len(set(flat)) < 2:
    return np.zeros(np.shape(mask_BT))
  scale = (_std(flat, 1) ** 2 + eps) ** -0.5
  mean = _mean(flat)
  return _spread([[(x - mean) * scale for x in row] for row in rows], mask_BT)


# --- advantages of a response ----------------------------------------------


def group_mean(rewards_B, groups_B):
  """R - mean of the group."""
  rewards_B = np.asarray(rewards_B, np.float64)
  out_B = np.zeros(len(rewards_B))
  for rows in _groups(groups_B):
    some = rewards_B[rows]
    if len(set(some)) > 1:
      out_B[rows] = some - sum(some) / len(some)
  return out_B


def group_norm(rewards_B, groups_B, eps=1e-6, ddof=1):
  """(R - mean) / (std + eps); verl's convention is ddof 1."""
  out_B = group_mean(rewards_B, groups_B)
  for rows in _groups(groups_B):
    squares = sum(out_B[rows] ** 2)
    if squares > 0:
      std = (squares / (len(rows) - ddof)) ** 0.5
      out_B[rows] = out_B[rows] / (std + eps)
  return out_B


def group_mean_batch_std(rewards_B, groups_B, valid_B, eps=1e-6, ddof=1):
  """The mean of the group, the deviation of all rows that are not padding."""
  real = [r for r, v in zip(rewards_B, valid_B, strict=True) if v]
  return group_mean(rewards_B, groups_B) / (_std(real, ddof) + eps) * valid_B


def leave_one_out(rewards_B, groups_B):
  """R less the mean of the others, written as that."""
  return _less_others(rewards_B, groups_B, np.ones(len(rewards_B)))


def _less_others(rewards_B, groups_B, weights_B):
  """R less the weighted mean of the others; 0 if they weigh nothing."""
  rewards_B = np.asarray(rewards_B, np.float64)
  out_B = np.zeros(len(rewards_B))
  for b in range(len(rewards_B)):
    others = _others(groups_B, b)
    weight = sum(weights_B[i] for i in others)
    if weight > 0:
      worth = sum(weights_B[i] * rewards_B[i] for i in others)
      out_B[b] = rewards_B[b] - worth / weight
  return out_B


def length_weighted(rewards_B, groups_B, mask_BT):
  weights_B = [1 / max(sum(row), 1) ** 0.5 for row in mask_BT]
  return _less_others(rewards_B, groups_B, weights_B)


def quality_weighted(rewards_B, groups_B, logps_BT, mask_BT):
  weights_B = [np.exp(_mean(row)) for row in _tokens(logps_BT, mask_BT)]
  return _less_others(rewards_B, groups_B, weights_B)


def confidence_weighted(rewards_B, groups_B):
  """2 sigmoid(|R|) - 1: how far a preference is from a coin's."""
  weights_B = [2 / (1 + np.exp(-abs(r))) - 1 for r in rewards_B]
  return _less_others(rewards_B, groups_B, weights_B)


def max_rl(rewards_B, groups_B):
  """(r - mean) / mean in groups with right and wrong answers."""
  out_B = np.zeros(len(rewards_B))
  for rows in _groups(groups_B):
    right = sum(rewards_B[rows])
    if 0 < right < len(rows):
      mean = right / len(rows)
      out_B[rows] = (rewards_B[rows] - mean) / mean
  return out_B


def rank(rewards_B, groups_B):
  """(rank - (K + 1) / 2) / (K / 2); ties share the mean of their ranks."""
  out_B = np.zeros(len(rewards_B))
  for rows in _groups(groups_B):
    count = len(rows)
    ordered = sorted(rewards_B[rows])
    for b in rows:
      places = [i + 1 for i, r in enumerate(ordered) if r == rewards_B[b]]
      out_B[b] = (_mean(places) - (count + 1) / 2) / (count / 2)
  return out_B


def hierarchical(rewards_B, types_B, valid_B, mix=0.5, eps=1e-6, ddof=1):
  """Both scales without the rows that are padding."""
  real = np.flatnonzero(valid_B)
  out_B = np.zeros(len(rewards_B))
  some, types = rewards_B[real], types_B[real]
  one = np.zeros(len(real))
  out_B[real] = mix * group_norm(some, types, eps, ddof)
  out_B[real] += (1 - mix) * group_norm(some, one, eps, ddof)
  return out_B


def temporal(
    rewards_B, problems_B, past_rewards_H, past_problems_H, past_weights_H
):
  """The others are those of this step, at weight 1, and those of the past."""
  out_B = np.zeros(len(rewards_B))
  for b, problem in enumerate(problems_B):
    weight = worth = 0.0
    for i in _others(problems_B, b):
      weight, worth = weight + 1, worth + rewards_B[i]
    for r, p, w in zip(
        past_rewards_H, past_problems_H, past_weights_H, strict=True
    ):
      if p == problem:
        weight, worth = weight + w, worth + w * r
    if weight > 0:
      out_B[b] = rewards_B[b] - worth / weight
  return out_B


def explore(
    rewards_B,
    groups_B,
    logps_BT,
    mask_BT,
    progress,
    bonus=0.1,
    decay=1.0,
    eps=1e-6,
    ddof=1,
):
  """GRPO plus bonus exp(-decay progress) x normalised surprise."""
  out_B = group_norm(rewards_B, groups_B, eps, ddof)
  surprise_B = -row_mean(logps_BT, mask_BT)
  novel_B = group_norm(surprise_B, groups_B, eps, ddof)
  for rows in _groups(groups_B):
    if len(set(rewards_B[rows])) > 1:
      out_B[rows] += bonus * np.exp(-decay * progress) * novel_B[rows]
  return out_B


# --- advantages of a token -------------------------------------------------


def returns_to_go(rewards_BT, mask_BT, gamma=1.0):
  out = []
  for row in _tokens(rewards_BT, mask_BT):
    ends = [row[t:] for t in range(len(row))]
    out.append([sum(gamma**n * r for n, r in enumerate(end)) for end in ends])
  return _spread(out, mask_BT)


def _sum_of_deltas(rewards_BT, values_BT, mask_BT, gamma, factor):
  """A_t = sum over l of gamma^l factor(b, l) delta_{t+l}: no recursion."""
  out = []
  rows = zip(
      _tokens(rewards_BT, mask_BT), _tokens(values_BT, mask_BT), strict=True
  )
  for b, (reward, value) in enumerate(rows):
    then = [*value[1:], 0.0]
    delta = [
        r + gamma * w - v for r, v, w in zip(reward, value, then, strict=False)
    ]
    ends = [delta[t:] for t in range(len(delta))]
    out.append(
        [
            sum(gamma**n * factor(b, n) * d for n, d in enumerate(end))
            for end in ends
        ]
    )
  return _spread(out, mask_BT)


def gae(rewards_BT, values_BT, mask_BT, gamma=1.0, lam=0.95):
  """Explicit sum of (gamma lam)^l delta_{t+l}."""
  return _sum_of_deltas(
      rewards_BT, values_BT, mask_BT, gamma, lambda b, n: lam**n
  )


def gae_length_adaptive(rewards_BT, values_BT, mask_BT, gamma=1.0, alpha=0.05):
  """VAPO: lam = 1 - 1 / (alpha l) of the row's own length, not below 0."""
  lams = [max(0.0, 1 - 1 / (alpha * max(sum(row), 1))) for row in mask_BT]
  return _sum_of_deltas(
      rewards_BT, values_BT, mask_BT, gamma, lambda b, n: lams[b] ** n
  )


def gae_exp_complexity(
    rewards_BT,
    values_BT,
    mask_BT,
    types_B,
    gamma=1.0,
    lam=0.95,
    decay=1.0,
    slope=0.5,
    hardest=1.0,
):
  """The factor of delta_{t+l} is the product lam_1 ... lam_l."""
  length = np.shape(mask_BT)[1]

  def factor(b, offset):
    ease = 1 - slope * min(types_B[b] / hardest, 1)
    out = 1.0
    for n in range(1, offset + 1):
      out *= lam * np.exp(-decay * n / length) * ease
    return out

  return _sum_of_deltas(rewards_BT, values_BT, mask_BT, gamma, factor)


def hybrid(
    rewards_B,
    groups_B,
    rewards_BT,
    values_BT,
    mask_BT,
    progress,
    mix=0.5,
    decay=1.0,
    gamma=1.0,
    alpha=0.05,
    eps=1e-6,
    ddof=1,
):
  """Both whitened over the tokens, then mixed."""
  vapo_BT = gae_length_adaptive(rewards_BT, values_BT, mask_BT, gamma, alpha)
  grpo_B = group_norm(rewards_B, groups_B, eps, ddof)
  grpo_BT = np.repeat(grpo_B[:, None], np.shape(mask_BT)[1], 1)
  share = mix * np.exp(-decay * progress)
  vapo_BT, grpo_BT = whiten(vapo_BT, mask_BT), whiten(grpo_BT, mask_BT)
  return share * vapo_BT + (1 - share) * grpo_BT


# --- rewards ---------------------------------------------------------------


def soft_overlong(length, max_tokens, buffer):
  """DAPO eq 13 for one response, case by case."""
  if length <= max_tokens - buffer:
    return 0.0
  if length <= max_tokens:
    return ((max_tokens - buffer) - length) / buffer
  return -1.0


def bootstrap_truncated(rewards_B, truncated_B, groups_B):
  """A truncated response gets the mean of its group's finished ones."""
  out_B = np.array(rewards_B, np.float64)
  for b in np.flatnonzero(truncated_B):
    rows = np.flatnonzero(np.equal(groups_B, groups_B[b]))
    out_B[b] = _mean([rewards_B[i] for i in rows if not truncated_B[i]])
  return out_B


def logquad(reward, correct, length, max_tokens, coef, decay, threshold):
  """The length penalty of one response."""
  weight = coef
  if reward > threshold:
    weight = coef / np.exp(decay * (reward - threshold))
  share = length / max_tokens
  return -weight * (np.log(1 + share) / np.log(2) if correct else share * share)


def per_token(rewards_B, mask_BT, kl_BT, coef):
  """-coef * KL on every token, and the outcome on the last one."""
  rows = [[-coef * x for x in row] for row in _tokens(kl_BT, mask_BT)]
  for row, reward in zip(rows, rewards_B, strict=True):
    if row:
      row[-1] += reward
  return _spread(rows, mask_BT)


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


def gspo(logps_T, old_logps_T, advantage, low, high):
  """GSPO eq 5 for one response: one ratio, one loss."""
  log_ratio = _mean([a - b for a, b in zip(logps_T, old_logps_T, strict=True)])
  return policy_loss(log_ratio, advantage, low, high)


def cispo(logp, old_logp, advantage, low, high, weight_logp=None):
  """CISPO eq 4 for one token; its weight is taken at `weight_logp`."""
  weight_logp = logp if weight_logp is None else weight_logp
  ratio = np.exp(min(max(weight_logp - old_logp, -20.0), 20.0))
  return -min(max(ratio, 1 - low), 1 + high) * advantage * logp


def k3(logp, ref):
  """Schulman's third estimator, clamped as in verl."""
  d = min(max(ref - logp, -20.0), 20.0)
  return min(np.exp(d) - d - 1, 10.0)


# --- corrections -----------------------------------------------------------


def mismatch(old_logps_BT, sampler_logps_BT, mask_BT, level):
  """pi_old / pi_sampler of tokens, of whole rows, or its geometric mean."""
  rows = []
  for old, sampler in zip(
      _tokens(old_logps_BT, mask_BT),
      _tokens(sampler_logps_BT, mask_BT),
      strict=True,
  ):
    ratios = [np.exp(a - b) for a, b in zip(old, sampler, strict=True)]
    if level != "token":
      power = 1 / max(len(ratios), 1) if level == "geometric" else 1
      ratios = [np.prod(ratios) ** power] * len(ratios)
    rows.append(ratios)
  return _spread(rows, mask_BT)


def truncate(old_BT, sampler_BT, mask_BT, high, level):
  ratio_BT = mismatch(old_BT, sampler_BT, mask_BT, level)
  return np.array([[min(x, high) for x in row] for row in ratio_BT])


def two_sided(old_BT, sampler_BT, mask_BT, low, high, level):
  ratio_BT = mismatch(old_BT, sampler_BT, mask_BT, level)
  return np.array(
      [[x if low <= x <= high else 0.0 for x in row] for row in ratio_BT]
  )


def top_share(values_BT, mask_BT, share):
  """Those that fewer than `share` of all tokens are larger than."""
  flat = sum(_tokens(values_BT, mask_BT), [])
  count = max(int(np.ceil(share * len(flat) - 1e-9)), 1)
  rows = [
      [sum(y > x for y in flat) < count for x in row]
      for row in _tokens(values_BT, mask_BT)
  ]
  return _spread(rows, mask_BT) > 0


def covariance(logps_BT, advantages_BT, mask_BT):
  logp = masked_mean(logps_BT, mask_BT)
  advantage = masked_mean(advantages_BT, mask_BT)
  rows = [
      [(a - logp) * (b - advantage) for a, b in zip(*pair, strict=True)]
      for pair in zip(
          _tokens(logps_BT, mask_BT),
          _tokens(advantages_BT, mask_BT),
          strict=True,
      )
  ]
  return _spread(rows, mask_BT)


def clip_cov(cov_BT, mask_BT, uniform_BT, share, low, high):
  """The candidates with the least uniforms lose their gradient."""
  count = max(int(share * np.sum(mask_BT) + 1e-9), 1)
  able = [
      (uniform_BT[b][t], b, t)
      for b, t in zip(*np.nonzero(mask_BT), strict=True)
      if low < cov_BT[b][t] < high
  ]
  out_BT = np.ones(np.shape(mask_BT))
  for _, b, t in sorted(able)[:count]:
    out_BT[b, t] = 0
  return out_BT


def length_factor(mask_BT, alpha):
  lengths = [sum(row) for row in mask_BT]
  ordered = sorted(n for n in lengths if n)
  if not ordered:
    return np.ones(len(lengths))
  middle = len(ordered) // 2
  median = _mean(ordered[middle - 1 + len(ordered) % 2 : middle + 1])
  return np.array([(n / median) ** -alpha if n else 1.0 for n in lengths])


def past_weights(logps_HT, past_logps_HT, mask_HT, limit):
  ratio_HT = mismatch(logps_HT, past_logps_HT, mask_HT, "sequence")
  return np.array([min(max(row), limit) for row in ratio_HT])


# --- the critic ------------------------------------------------------------


def value_loss(value, old_value, target, clip):
  """PPO's value loss of one token."""
  loss = (value - target) ** 2
  if clip:
    near = min(max(value, old_value - clip), old_value + clip)
    loss = max(loss, (near - target) ** 2)
  return loss / 2


def two_hot(target, bins, low, high):
  """Linear weights of the two points of the support that are nearest."""
  points = [low + (high - low) * i / (bins - 1) for i in range(bins)]
  target = min(max(target, low), high)
  width = points[1] - points[0]
  return np.array([max(0.0, 1 - abs(target - p) / width) for p in points])


def categorical_loss(logits, target, low, high):
  """Cross entropy of one token."""
  weights = two_hot(target, len(logits), low, high)
  return -sum(weights * np.log(_softmax(np.asarray(logits, np.float64))))


def explained_variance(values_BT, returns_BT, mask_BT):
  """1 - Var(R - V) / Var(R)."""
  value = sum(_tokens(values_BT, mask_BT), [])
  target = sum(_tokens(returns_BT, mask_BT), [])
  if len(set(target)) < 2:
    return 0.0
  rest = [r - v for r, v in zip(target, value, strict=True)]
  return 1 - _std(rest, 0) ** 2 / _std(target, 0) ** 2


def mixture(pretrained, value, progress, reliability, mix, decay, eta):
  """V_aug of one token."""
  reliability = min(max(reliability, 0), 1)
  weight = mix / np.exp(decay * progress) / (1 + eta * reliability)
  return weight * pretrained + (1 - weight) * value


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
