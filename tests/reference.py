"""The same mathematics a second time: NumPy, float64, loops, no JAX.

Written from the papers' formulas and not from the library's code, so that a
mistake has to be made twice to go unseen. Slow on purpose.
"""

import itertools

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


def max_rl(rewards_B, groups_B):
  """(r - mean) / mean in groups with right and wrong answers."""
  out_B = np.zeros(len(rewards_B))
  for rows in _groups(groups_B):
    right = sum(rewards_B[rows])
    if 0 < right < len(rows):
      mean = right / len(rows)
      out_B[rows] = (rewards_B[rows] - mean) / mean
  return out_B


def opo(rewards_B, groups_B, lengths_B):
  """R less the mean of the group, each response weighed by its length."""
  out_B = np.zeros(len(rewards_B))
  for rows in _groups(groups_B):
    if len(set(rewards_B[rows])) > 1:
      worth = sum(rewards_B[i] * lengths_B[i] for i in rows)
      out_B[rows] = rewards_B[rows] - worth / sum(lengths_B[rows])
  return out_B


def pass_at_k(rewards_B, groups_B, k, eps=1e-6):
  """Pass@k training by all draws of k responses of a group.

  A draw has the reward 1 if one of its responses is a success. The advantage of
  a response is the mean reward of the draws that contain it, less the mean of
  all draws, over their standard deviation.
  """
  out_B = np.zeros(len(rewards_B))
  for rows in _groups(groups_B):
    draws = list(itertools.combinations(rows, k))
    won = {d: float(any(rewards_B[i] > 0 for i in d)) for d in draws}
    std = _std(list(won.values()), 0)
    for i in rows:
      here = _mean([won[d] for d in draws if i in d])
      out_B[i] = (here - _mean(list(won.values()))) / (std + eps)
  return out_B


# --- advantages of a token -------------------------------------------------


def returns_to_go(rewards_BT, mask_BT, gamma=1.0):
  out = []
  for row in _tokens(rewards_BT, mask_BT):
    ends = [row[t:] for t in range(len(row))]
    out.append([sum(gamma**n * r for n, r in enumerate(end)) for end in ends])
  return _spread(out, mask_BT)


def optimal_token_baseline(
    rewards_B, rewards_BT, groups_B, logps_BT, squares_BT, mask_BT, zero_tail=0
):
  """The return less the mean of the group, weighed by what was decided so far.

  Token by token, over the rows that have such a token.
  """
  of_rows = [_tokens(x, mask_BT) for x in (rewards_BT, logps_BT, squares_BT)]
  rows = [list(zip(*x, strict=True)) for x in zip(*of_rows, strict=True)]

  def weight(b, t):
    norms = [1 - 2 * np.exp(logp) + square for _, logp, square in rows[b]]
    return sum(max(x, 0) for x in norms[: t + 1])

  def to_go(b, t):
    return sum(reward for reward, *_ in rows[b][t:])

  out = [[0.0] * len(row) for row in rows]
  for group in _groups(groups_B):
    longest = max(len(rows[b]) for b in group)
    if all(
        len({to_go(b, t) for b in group if len(rows[b]) > t}) == 1
        for t in range(longest)
    ):
      continue
    for b in group:
      for t in range(len(rows[b])):
        some = [a for a in group if len(rows[a]) > t]
        total = sum(weight(a, t) for a in some) + 1e-8
        mean = sum(weight(a, t) * to_go(a, t) for a in some) / total
        alone = zero_tail and len(some) == 1
        out[b][t] = to_go(b, t) - (0 if alone else mean)
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


def logquad(
    reward, correct, length, max_tokens, coef, decay, threshold, alpha, beta
):
  """The length penalty of one response."""
  weight = coef
  if reward > threshold:
    weight = coef / np.exp(decay * (reward - threshold))
  share = length / max_tokens
  return -weight * (alpha * np.log(1 + share) if correct else beta * share**2)


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
  if name == "token_sum":
    return sum(sum(row) for row in full)
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


def sapo(log_ratio, advantage, tau_positive, tau_negative):
  """Minus SAPO's objective of one token."""
  tau = tau_positive if advantage > 0 else tau_negative
  gate = 1 / (1 + np.exp(-tau * (np.exp(log_ratio) - 1)))
  return -4 * gate / tau * advantage


def gmpo(logps_T, old_logps_T, advantage, bound):
  """GMPO for one response: the geometric mean of its clipped ratios."""
  logs = [a - b for a, b in zip(logps_T, old_logps_T, strict=True)]
  if advantage > 0:
    logs = [min(x, bound) for x in logs]
  else:
    logs = [max(x, -bound) for x in logs]
  return -np.exp(_mean(logs)) * advantage


def dppo(logp, old_logp, advantage, bound, most, weight_logp):
  """DPPO's loss of one token; mask and weight are taken at `weight_logp`."""
  change = np.exp(weight_logp) - np.exp(old_logp)
  if (advantage > 0 and change > bound) or (advantage <= 0 and change < -bound):
    return 0.0
  return -min(np.exp(weight_logp - old_logp), most) * advantage * logp


def vespo(ratio, advantage):
  """VESPO's weight of a response whose tokens have this product of ratios."""
  k, lam = (2, 3) if advantage >= 0 else (3, 2)
  return ratio**k * np.exp(lam * (1 - ratio))


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


def second_moment(old_BT, sampler_BT, mask_BT, advantages_BT, threshold):
  """M2PO: drops the furthest of the tokens that a clip could stop, one by one.

  The mean square of the others is then at most the threshold.
  """
  out_BT = mismatch(old_BT, sampler_BT, mask_BT, "token")
  log_BT = np.where(mask_BT, old_BT - sampler_BT, 0)
  squares = {
      at: log_BT[at] ** 2
      for at in zip(*np.nonzero(log_BT * advantages_BT > 0), strict=True)
  }
  while squares and _mean(list(squares.values())) > threshold:
    furthest = max(squares, key=squares.get)
    del squares[furthest]
    out_BT[furthest] = 0
  return out_BT


def top_share(values_BT, mask_BT, share):
  """Those that fewer than `share` of all tokens are larger than."""
  flat = sum(_tokens(values_BT, mask_BT), [])
  count = max(int(np.ceil(share * len(flat) - 1e-9)), 1)
  rows = [
      [sum(y > x for y in flat) < count for x in row]
      for row in _tokens(values_BT, mask_BT)
  ]
  return _spread(rows, mask_BT) > 0


def length_factor(mask_BT, alpha):
  lengths = [sum(row) for row in mask_BT]
  ordered = sorted(n for n in lengths if n)
  if not ordered:
    return np.ones(len(lengths))
  middle = len(ordered) // 2
  median = _mean(ordered[middle - 1 + len(ordered) % 2 : middle + 1])
  return np.array([(n / median) ** -alpha if n else 1.0 for n in lengths])


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


def softmax(x):
  e = np.exp(x - x.max(-1, keepdims=True))
  return e / e.sum(-1, keepdims=True)


def categorical_loss(logits, target, low, high):
  """Cross entropy of one token."""
  weights = two_hot(target, len(logits), low, high)
  return -sum(weights * np.log(softmax(np.asarray(logits, np.float64))))


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
