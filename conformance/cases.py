"""Cases of `python -m conformance.run`: inputs and the numbers that follow.

A case calls one operation of a library's adapter. The inputs are small, and the
expected numbers are worked by hand or in float64 NumPy from the formula that
the case states. `None` in an expected array is a position that the formula says
nothing about. About half of the cases test a fault that a public library had,
with the thread that documents it; the others are the formulas of the papers.

Token arrays have 4 rows and 4 positions in all cases, so that a library that
compiles its functions compiles each of them once.
"""

import dataclasses
from typing import Any

import numpy as np

NAN, INF = float("nan"), float("inf")
GITHUB = "https://github.com/"


@dataclasses.dataclass(frozen=True)
class Case:
  """One case.

  Attributes:
    name: family and property, as in 'gae/observations'.
    operation: function of the adapter (conformance/adapters/__init__.py).
    inputs: its keyword arguments.
    expected: its results by name.
    formula: what the expected numbers are.
    source: paper with equation, or what else the formula follows.
    fault: what a public library did instead, as its thread has it; '' for a
      plain formula.
    issue: the public thread that documents the fault, if there is one.
    rtol: relative tolerance. An eps of at most 1e-4 is inside of it where
      the formula divides by a standard deviation.
    atol: absolute tolerance.
  """

  name: str
  operation: str
  inputs: dict[str, Any]
  expected: dict[str, Any]
  formula: str
  source: str
  fault: str = ""
  issue: str = ""
  rtol: float = 2e-5
  atol: float = 1e-6


def _rows(*rows) -> np.ndarray:
  return np.array(rows, np.float64)


def _f(array) -> list:
  """A nested list of float32 numbers, NaN in the array as None."""
  array = np.asarray(array, np.float64)
  out = np.where(np.isnan(array), None, array.astype(object))
  return out.tolist()


# --- arrays that several cases share -----------------------------------------

# Four responses of 1, 2, 4 and 3 tokens.
MASK = _rows([1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 1, 1, 0]) > 0
ALL = np.ones((4, 4), bool)
HOLES = _rows([1, 0, 1, 1], [1, 1, 0, 1], [1, 1, 1, 1], [1, 0, 0, 1]) > 0
OLD = np.full((4, 4), -1.0)
ADVANTAGES = np.array([1.0, -2.0, 3.0, -1.0])
# Weights of a token, from the lengths 1, 2, 4, 3 (10 tokens).
WEIGHTS = dict(
    token_mean=MASK / 10,
    seq_mean_token_mean=MASK / np.array([[1], [2], [4], [3]]) / 4,
    seq_mean_token_sum=MASK / 4,
    token_sum=1.0 * MASK,
    constant=MASK / (4 * 4),  # 4 responses, at most 4 tokens
    # Two prompts of two responses: 3 and 7 tokens.
    prompt_token_mean=MASK / np.array([[3], [3], [7], [7]]) / 2,
)
DAPO = dict(clip_low=0.2, clip_high=0.28)
PPO = dict(clip_low=0.2, clip_high=0.2)
# Ratios below, inside and above the bounds, for both signs of the advantage.
RATIOS = np.tile([1.5, 0.5, 1.0, 1.25], (4, 1))
SIGNS = np.repeat([[1.0], [-1.0], [2.0], [-2.0]], 4, 1)


def _clipped(ratios, advantages, low, high, dual=1e9):
  """Loss and its derivative by log p: PPO's clip, and the dual clip."""
  bound = np.clip(ratios, 1 - low, 1 + high)
  loss = -np.minimum(ratios * advantages, bound * advantages)
  grad = np.where(loss == -ratios * advantages, loss, 0.0)
  cap = -dual * advantages
  capped = (advantages < 0) & (loss > cap)
  return np.where(capped, cap, loss), np.where(capped, 0.0, grad)


def _loss(
    ratios,
    advantages,
    mask,
    weights,
    *,
    loss,
    grad,
    reduction="token_mean",
    **more,
):
  """Inputs of `policy_loss`, and the weighted sums of loss and gradient."""
  inputs = dict(
      logps_BT=_f(OLD + np.log(ratios)),
      old_logps_BT=_f(OLD),
      advantages_BT=_f(np.broadcast_to(advantages, (4, 4))),
      mask_BT=mask.tolist(),
      reduction=reduction,
      **more,
  )
  expected = dict(
      loss=float(np.sum(weights * loss, where=mask)),
      grad_BT=_f(np.where(mask, weights * grad, 0.0)),
  )
  return dict(operation="policy_loss", inputs=inputs, expected=expected)


def _policy(ratios, advantages, mask, *, reduction="token_mean", **clip):
  """The clipped surrogate, reduced."""
  bounds = PPO | {k: clip[k] for k in PPO if k in clip}
  dual = clip.get("dual_clip", 1e9)
  loss, grad = _clipped(
      ratios, advantages, bounds["clip_low"], bounds["clip_high"], dual
  )
  weights = WEIGHTS[reduction] if mask is MASK else mask / mask.sum()
  return _loss(
      ratios,
      advantages,
      mask,
      weights,
      loss=loss,
      grad=grad,
      reduction=reduction,
      **(bounds | clip),
  )


# --- advantages of responses -------------------------------------------------


def _advantages() -> list[Case]:
  group = "(R - mean of the group) / standard deviation (G - 1) of the group"
  grpo = "GRPO, arXiv:2402.03300, sec 4.1.2"
  # Rewards 1, 0, 0, 1: mean 1/2, squares add up to 1, std = sqrt(1/3).
  # Rewards 1, -1, -1, -1: mean -1/2, squares add up to 3, std = 1.
  rewards = [1.0, 0, 0, 1, 1, -1, -1, -1]
  groups = [0, 0, 0, 0, 1, 1, 1, 1]
  first, second = [0.5, -0.5, -0.5, 0.5], [1.5, -0.5, -0.5, -0.5]
  order = [0, 4, 1, 5, 2, 6, 3, 7]
  by_hand = [*(np.array(first) * 3**0.5), *second]
  large = np.float32(1000.1) + np.float32(0.1) * np.array([0, 1] * 4, "f")
  exact = large.astype(np.float64)
  return [
      Case(
          name="grpo/by_hand",
          operation="grpo_advantages",
          inputs=dict(rewards_B=rewards, groups_B=groups),
          expected=dict(advantages_B=_f(by_hand)),
          formula=group,
          source=grpo,
          rtol=3e-4,
      ),
      Case(
          name="grpo/rows_apart",
          operation="grpo_advantages",
          inputs=dict(
              rewards_B=[rewards[i] for i in order],
              groups_B=[groups[i] for i in order],
          ),
          expected=dict(advantages_B=_f([by_hand[i] for i in order])),
          formula=group + "; the rows of a group are not adjacent",
          source=grpo,
          rtol=3e-4,
          fault=(
              "groups are windows of G adjacent rows, but the rows of a prompt"
              " are not adjacent: prompts share a baseline"
          ),
          issue=GITHUB + "PrimeIntellect-ai/prime-rl/pull/600",
      ),
      Case(
          name="grpo/all_rollouts_count",
          operation="grpo_advantages",
          inputs=dict(rewards_B=[6.0, 0, 1, 1, 0, 0, 4, 0], groups_B=groups),
          # 4, -2, -1, -1: 22 / 3; -1, -1, 3, -1: 12 / 3 = 4.
          expected=dict(
              advantages_B=_f(
                  [
                      *(np.array([4, -2, -1, -1]) / (22 / 3) ** 0.5),
                      *(np.array([-1, -1, 3, -1]) / 2),
                  ]
              )
          ),
          formula=group,
          source=grpo,
          rtol=3e-4,
          fault="mean and standard deviation of the first rollout only",
          issue=GITHUB + "ServiceNow/PipelineRL/pull/54",
      ),
      Case(
          name="grpo/equal_rewards",
          operation="grpo_advantages",
          inputs=dict(rewards_B=[0.7] * 7, groups_B=[0] * 7),
          expected=dict(advantages_B=[0.0] * 7),
          formula=group + "; 0 if all rewards of the group are equal",
          source=grpo
          + ", whose formula is 0/0; DAPO, arXiv:2503.14476, sec 3.2",
          fault=(
              "the float32 standard deviation of equal rewards is a residue and"
              " not 0, and advantages are divided by it (there, that of the"
              " other rewards of a group)"
          ),
          issue=GITHUB + "NVIDIA-NeMo/RL/pull/4161",
      ),
      Case(
          name="grpo/large_offset",
          operation="grpo_advantages",
          inputs=dict(rewards_B=large.tolist(), groups_B=groups),
          # Both groups have the same mean and standard deviation.
          expected=dict(
              advantages_B=_f((exact - exact.mean()) / (exact[:4].std(ddof=1)))
          ),
          formula=group + "; rewards 1000.1 and 1000.2",
          source=grpo,
          rtol=5e-3,
          fault=(
              "the variance is E[x^2] - E[x]^2, which cancels (there, to a"
              " negative number for equal rewards)"
          ),
          issue=GITHUB + "NousResearch/atropos/pull/481",
      ),
      Case(
          name="dr_grpo/by_hand",
          operation="dr_grpo_advantages",
          inputs=dict(rewards_B=rewards, groups_B=groups),
          expected=dict(advantages_B=[*first, *second]),
          formula="R - mean of the group",
          source="Dr.GRPO, arXiv:2503.20783, eq 3",
      ),
      Case(
          name="rloo/by_hand",
          operation="rloo_advantages",
          inputs=dict(rewards_B=rewards, groups_B=groups),
          # 1 - (0+0+1)/3 = 2/3; 0 - (1+0+1)/3 = -2/3; 1 + 1 = 2;
          # -1 - (1-1-1)/3 = -2/3
          expected=dict(
              advantages_B=_f(
                  np.array([2, -2, -2, 2, 6, -2, -2, -2], np.float64) / 3
              )
          ),
          formula="R - mean of the other rewards of the group",
          source="RLOO, arXiv:2402.14740, eq 8",
      ),
      Case(
          name="lite_ppo/by_hand",
          operation="lite_ppo_advantages",
          inputs=dict(rewards_B=[1.0, 0, 1, 0, 3, 0, 3, 0], groups_B=groups),
          # Deviations +-1/2 and +-3/2; the batch has mean 1 and squares
          # 4 * 1 + 2 * 4 + 2 * 0 = 12, std = sqrt(12/7).
          expected=dict(
              advantages_B=_f(
                  np.array([0.5, -0.5, 0.5, -0.5, 1.5, -1.5, 1.5, -1.5])
                  / (12 / 7) ** 0.5
              )
          ),
          formula="(R - mean of the group) / standard deviation of the batch",
          source="LitePPO, arXiv:2508.08221",
          rtol=3e-4,
      ),
      Case(
          name="max_rl/by_hand",
          operation="max_rl_advantages",
          inputs=dict(rewards_B=[1.0, 0, 0, 0, 1, 1, 0, 0], groups_B=groups),
          # Mean 1/4: 3 and -1; mean 1/2: 1 and -1.
          expected=dict(advantages_B=[3.0, -1, -1, -1, 1, 1, -1, -1]),
          formula="(R - mean of the group) / mean of the group",
          source="MaxRL, arXiv:2602.02710",
      ),
      Case(
          name="credit/every_sample_has_its_own_tokens",
          operation="token_advantages",
          # Two trajectories of a prompt, each with two samples (turns) whose
          # policy tokens are at other positions.
          inputs=dict(
              rewards_B=[1.0, 1, -1, -1],
              groups_B=[0, 0, 0, 0],
              mask_BT=[
                  [True, True, False, False],
                  [False, False, True, True],
                  [False, True, True, False],
                  [True, False, False, True],
              ],
          ),
          expected=dict(
              advantages_BT=[
                  [1.0, 1, 0, 0],
                  [0.0, 0, 1, 1],
                  [0.0, -1, -1, 0],
                  [-1.0, 0, 0, -1],
              ]
          ),
          formula=(
              "A = R - mean of the group, on each token of the sample's mask"
          ),
          source="Dr.GRPO, arXiv:2503.20783, eq 3",
          fault=(
              "the advantage of the last step, times that step's mask, copied"
              " to all steps: most step samples had advantage 0"
          ),
          issue=GITHUB + "NovaSky-AI/SkyRL/pull/1507",
      ),
  ]


# --- advantages of tokens ----------------------------------------------------


def _gae(rewards, values, mask, gamma, lam):
  """A_t + V_t by the definition, over the tokens of each row's mask."""
  out = np.full(rewards.shape, NAN)
  for b, row in enumerate(mask):
    at, next_value, next_advantage = np.flatnonzero(row), 0.0, 0.0
    for t in at[::-1]:
      delta = rewards[b, t] + gamma * next_value - values[b, t]
      next_advantage = delta + gamma * lam * next_advantage
      next_value = values[b, t]
      out[b, t] = next_advantage + next_value
  return out


def _gae_case(name, mask, gamma, lam, junk=0.0, **text) -> Case:
  rewards = np.where(np.arange(4) == _last(mask), 1.0, 0.0)
  values = _rows(
      [0.5, 0.25, 0.75, 0.5],
      [0.25, 0.5, 0.25, 0.75],
      [0.5, 0.25, 0.75, 0.125],
      [0.75, 0.5, 0.25, 0.5],
  )
  return Case(
      name=name,
      operation="gae",
      inputs=dict(
          rewards_BT=_f(rewards),
          values_BT=_f(np.where(mask, values, junk)),
          mask_BT=mask.tolist(),
          gamma=gamma,
          lam=lam,
      ),
      expected=dict(returns_BT=_f(_gae(rewards, values, mask, gamma, lam))),
      formula=(
          "A_t + V_t, A_t = delta_t + gamma lam A_{t+1}, delta_t = r_t + gamma"
          " V_{t+1} - V_t; t + 1 is the next token of the mask"
      ),
      **({"source": "GAE, arXiv:1506.02438, eq 16"} | text),
  )


def _last(mask):
  """[4, 1] position of the last token of each row."""
  return 3 - np.argmax(mask[:, ::-1], 1)[:, None]


def _returns(mask, gamma, kl, coef=0.5):
  rewards = np.where(np.arange(4) == _last(mask), ADVANTAGES[:, None], 0.0)
  rewards = rewards - coef * kl
  out = np.full((4, 4), NAN)
  for b, row in enumerate(mask):
    total = 0.0
    for t in np.flatnonzero(row)[::-1]:
      total = rewards[b, t] + gamma * total
      out[b, t] = total
  return out


def _returns_case(name, mask, gamma, **text) -> Case:
  kl = _rows([1, 2, -1, 3], [0.5, 1, 4, -1], [1, 1, 1, 1], [2, 5, 5, 1])
  return Case(
      name=name,
      operation="kl_reward_returns",
      inputs=dict(
          rewards_B=_f(ADVANTAGES),
          logps_BT=_f(OLD + kl),
          ref_logps_BT=_f(OLD),
          mask_BT=mask.tolist(),
          kl_coef=0.5,
          gamma=gamma,
      ),
      expected=dict(returns_BT=_f(_returns(mask, gamma, kl))),
      formula=(
          "sum of gamma^k r_{t+k}; r is -beta (log p - log p_ref), plus the"
          " outcome on the last token of the mask"
      ),
      **(
          {"source": "arXiv:2203.02155, sec 3.5; REINFORCE++, 2501.03262"}
          | text
      ),
  )


def _tokens() -> list[Case]:
  white = _rows([1, 9, 9, 9], [3, 5, 9, 9], [2, 4, 6, 8], [1, 3, 7, 9])
  inside = white[MASK]
  whitened = (white - inside.mean()) / inside.std(ddof=1)
  # Lengths 1, 2, 4, 3 with alpha .4: lambda 1 - 2.5 / l, not below 0.
  adaptive = np.concatenate(
      [
          _gae(
              np.where(np.arange(4) == _last(MASK), 1.0, 0.0)[b : b + 1],
              np.full((1, 4), 0.5),
              MASK[b : b + 1],
              1.0,
              max(0.0, 1 - 2.5 / MASK[b].sum()),
          )
          for b in range(4)
      ]
  )
  return [
      _gae_case("gae/by_hand", ALL, 1.0, 0.5),
      _gae_case("gae/discount", ALL, 0.5, 0.5),
      _gae_case(
          "gae/padding",
          MASK,
          0.5,
          0.5,
          junk=7.0,
      ),
      _gae_case(
          "gae/observations",
          HOLES,
          0.5,
          0.5,
          junk=7.0,
          source="verl's masked GAE (the token after an observation is t + 1)",
          fault="tokens of an observation enter the TD errors and the discount",
          issue=GITHUB + "verl-project/verl/pull/2337",
      ),
      Case(
          name="gae/length_adaptive",
          operation="gae_length_adaptive",
          inputs=dict(
              rewards_BT=_f(np.where(np.arange(4) == _last(MASK), 1.0, 0.0)),
              values_BT=_f(np.full((4, 4), 0.5)),
              mask_BT=MASK.tolist(),
              alpha=0.4,
          ),
          expected=dict(returns_BT=_f(adaptive)),
          formula="GAE with lambda = 1 - 1 / (alpha l), not below 0, gamma 1",
          source="VAPO, arXiv:2504.05118, sec 4.2",
      ),
      _returns_case("kl_reward/by_hand", MASK, 1.0),
      _returns_case(
          "kl_reward/outcome_on_the_last_token",
          MASK,
          0.5,
          fault=(
              "the outcome is on the last token of the row, whatever the mask:"
              " it is discounted or lost before it reaches the policy's tokens"
          ),
          issue=GITHUB + "radixark/miles/pull/1827",
      ),
      _returns_case(
          "kl_reward/observations",
          HOLES,
          1.0,
          fault="the KL of masked tokens enters the returns of earlier tokens",
          issue=GITHUB + "THUDM/slime/pull/1372",
      ),
      Case(
          name="whiten/padding",
          operation="whiten",
          inputs=dict(values_BT=_f(white), mask_BT=MASK.tolist()),
          expected=dict(values_BT=_f(np.where(MASK, whitened, NAN))),
          formula=(
              "(A - mean) / standard deviation (n - 1), both over the tokens"
              " of the mask"
          ),
          source="masked whitening of PPO (verl's masked_whiten)",
          fault="the mean also counts padding, the variance does not",
          issue=GITHUB + "NovaSky-AI/SkyRL/issues/1305",
      ),
  ]


def _more_advantages() -> list[Case]:
  """Advantages of recent papers."""
  groups = [0, 0, 1, 1]

  def tokens(values):
    """Numbers of rows or tokens, where the mask has a token."""
    values = np.asarray(values, np.float64)
    values = values if values.ndim == 2 else values[:, None]
    return np.where(MASK, values, NAN)

  def whitened(values_BT):
    inside = values_BT[MASK]
    return (values_BT - inside.mean()) / inside.std(ddof=1)

  # OTB: weights up to each token, returns are the outcome.
  probs = _rows(
      [0.5, 0.2, 0.9, 0.4],
      [0.3, 0.6, 0.1, 0.8],
      [0.4, 0.7, 0.25, 0.9],
      [0.2, 0.5, 0.6, 0.3],
  )
  squares = probs**2 + 0.3 * (1 - probs) ** 2
  energy = np.where(MASK, np.cumsum(1 - 2 * probs + squares, 1), 0.0)
  otb = np.full((4, 4), NAN)
  for rows in ([0, 1], [2, 3]):
    share = energy[rows] / energy[rows].sum(0).clip(1e-9)
    baseline = (share * ADVANTAGES[rows, None]).sum(0)
    otb[rows] = ADVANTAGES[rows, None] - baseline
  # A baseline of a token that no other response reaches is a choice.
  otb[~MASK] = otb[1, 1] = otb[2, 3] = NAN
  returns = _returns_case("", MASK, 1.0)
  returns_BT = np.array(returns.expected["returns_BT"], np.float64)
  # The papers do not say whether the variance divides by n or by n - 1; of ten
  # tokens, the standard deviations differ by 5.4%.
  either = 0.06
  parts = _rows(
      [1, 0, 0, 1, 0, 0, 1, 0], [0.5, 0.25, 0.75, 0.5, 0.1, 0.9, 0.3, 0.3]
  )
  terms = parts.reshape(2, 2, 4)
  terms = terms - terms.mean(2, keepdims=True)
  terms = terms / terms.std(2, ddof=1, keepdims=True)
  total = terms[0].ravel() + 0.5 * terms[1].ravel()
  # M2PO: the active tokens (log r and A of one sign) have (log r)^2 .0025, .01,
  # .0225, .04, .0625, .16, .25; the mean of the first five is .0275, with .16
  # it is .0496.
  logs = _rows(
      [0.1, 0, 0, 0],
      [0.6, -0.2, 0, 0],  # .6 is far, but A < 0: no clip could stop it
      [0.25, -0.1, 0.5, 0.05],
      [-0.4, 0.1, -0.15, 0],
  )
  kept = np.exp(logs)
  kept[2, 2] = kept[3, 0] = 0.0
  return [
      Case(
          name="reinforce_pp/by_hand",
          operation="reinforce_pp_advantages",
          inputs=returns.inputs,
          expected=dict(advantages_BT=_f(whitened(returns_BT))),
          formula=(
              "(A - mean) / standard deviation, both over all tokens; A is the"
              " sum of the rewards from the token on, which are -beta (log p -"
              " log p_ref), plus the outcome on the last token of the mask"
          ),
          source="REINFORCE++, arXiv:2501.03262",
          rtol=either,
      ),
      Case(
          name="reinforce_pp_baseline/by_hand",
          operation="reinforce_pp_baseline_advantages",
          inputs=dict(
              rewards_B=_f(ADVANTAGES), groups_B=groups, mask_BT=MASK.tolist()
          ),
          # Means -1/2 and 1.
          expected=dict(
              advantages_BT=_f(whitened(tokens([1.5, -1.5, 2.0, -2.0])))
          ),
          formula=(
              "(A - mean) / standard deviation, both over all tokens; A is R -"
              " mean of the group"
          ),
          source="REINFORCE++-baseline, arXiv:2501.03262",
          rtol=either,
      ),
      Case(
          name="opo/by_hand",
          operation="opo_advantages",
          inputs=dict(
              rewards_B=_f(ADVANTAGES), groups_B=groups, mask_BT=MASK.tolist()
          ),
          # (1 * 1 - 2 * 2) / 3 = -1; (4 * 3 - 3 * 1) / 7 = 9/7.
          expected=dict(advantages_BT=_f(tokens([2.0, -1.0, 12 / 7, -16 / 7]))),
          formula="R - mean of the group, each response weighed by its length",
          source="OPO, arXiv:2505.23585",
      ),
      Case(
          name="otb/by_hand",
          operation="otb_advantages",
          inputs=dict(
              rewards_B=_f(ADVANTAGES),
              groups_B=groups,
              logps_BT=_f(np.log(probs)),
              squares_BT=_f(squares),
              mask_BT=MASK.tolist(),
          ),
          expected=dict(advantages_BT=_f(otb)),
          formula=(
              "R - sum(W R) / sum(W) over the group's responses that reach the"
              " token, W = sum of 1 - 2 p + (squared probabilities of the"
              " vocabulary) up to the token"
          ),
          source="optimal token baseline, arXiv:2602.07078",
      ),
      Case(
          name="gdpo/by_hand",
          operation="gdpo_advantages",
          inputs=dict(
              parts_KB=_f(parts),
              weights_K=[1.0, 0.5],
              groups_B=[0, 0, 0, 0, 1, 1, 1, 1],
          ),
          expected=dict(
              advantages_B=_f((total - total.mean()) / total.std(ddof=1))
          ),
          formula=(
              "each part of the reward as in GRPO, the weighted sum of the"
              " parts, (A - mean) / standard deviation (n - 1) of the batch;"
              " responses of one token"
          ),
          source="GDPO, arXiv:2601.05242",
          rtol=1e-3,
      ),
      Case(
          name="pass_at_k/by_hand",
          operation="pass_at_k_advantages",
          inputs=dict(
              rewards_B=[1.0, 0, 0, 0, 1, 1, 0, 0],
              groups_B=[0, 0, 0, 0, 1, 1, 1, 1],
              k=2,
          ),
          # P = 1/2, s = 1/2, Q = 2/3; P = 5/6, s = sqrt(5)/6, Q = 1/3.
          expected=dict(
              advantages_B=_f(
                  [1, *[-1 / 3] * 3, *np.array([1, 1, -1, -1]) / 5**0.5]
              )
          ),
          formula=(
              "pass@2 of a group of 4, s = sqrt(P (1 - P)): (1 - P) / s of a"
              " success, (1 - P - Q) / s of a failure; P is the chance that two"
              " responses have a success, Q that one of the others is a failure"
          ),
          source="pass@k training, arXiv:2508.10751",
      ),
      Case(
          name="w_reinforce/by_hand",
          operation="w_reinforce_advantages",
          inputs=dict(rewards_B=[1.0, -1, 1, -1], weight=0.1),
          expected=dict(advantages_B=[0.1, -1, 0.1, -1]),
          formula="R, times .1 where R > 0",
          source="W-REINFORCE, arXiv:2506.01347",
      ),
      Case(
          name="m2po/by_hand",
          operation="m2po_weights",
          inputs=dict(
              old_logps_BT=_f(OLD),
              sampler_logps_BT=_f(OLD - logs),
              advantages_BT=_f(np.broadcast_to(ADVANTAGES[:, None], (4, 4))),
              mask_BT=MASK.tolist(),
              threshold=0.04,
          ),
          expected=dict(weights_BT=_f(tokens(kept))),
          formula=(
              "pi_old / pi_sampler, 0 for the tokens of largest (log r)^2 among"
              " those whose log r and A have one sign, until the mean (log r)^2"
              " of the rest of them is at most .04"
          ),
          source="M2PO, arXiv:2510.01161, algorithm 1",
      ),
  ]


# --- the loss of the policy --------------------------------------------------


def _surrogates() -> list[Case]:
  ppo = "PPO, arXiv:1707.06347, eq 7"
  clip = "-min(r A, clip(r, 1 - low, 1 + high) A), mean over tokens"
  dual = "arXiv:1912.09729, eq 5"
  near = np.tile([1.25, 0.75, 1.35, 0.65], (4, 1))
  far = np.tile([5.0, 2.5, 0.5, 4.0], (4, 1))
  zeros = np.array(SIGNS)
  zeros[:, 1:3] = 0
  overflow = np.where(MASK, RATIOS, 1.0)
  hidden = _policy(overflow, SIGNS, MASK)
  huge = dict(hidden["inputs"])
  logps = OLD + np.log(overflow)
  huge["logps_BT"] = np.where(MASK, logps, 199.0).tolist()
  huge["advantages_BT"] = SIGNS.tolist()
  minus = dict(huge) | dict(
      logps_BT=np.where(MASK, logps, -1.0).tolist(),
      old_logps_BT=np.where(MASK, OLD, -INF).tolist(),
  )
  # GSPO: eq 5. Row means of log r: the tokens of a row differ, s = exp(mean).
  log_s = np.array([[np.log(1.1)], [np.log(1.1)], [np.log(1.5)], [np.log(0.5)]])
  spread = _rows(
      [0, 0, 0, 0],
      [0.3, -0.3, 0, 0],
      [0.2, -0.2, 0.4, -0.4],
      [0.1, 0.2, -0.3, 0],
  )
  gspo_ratios = np.exp(log_s + spread)
  row = SIGNS[:, :1]
  s = np.exp(log_s)
  gspo_loss, gspo_grad = _clipped(s, row, 0.2, 0.28)
  # d log s / d log p = 1 / |o|: the weight of a token is 1 / |o| / rows; with
  # the sum over tokens (LUSPO), 1 / rows.
  gspo, luspo = (
      _loss(
          gspo_ratios,
          row,
          MASK,
          WEIGHTS[reduction],
          loss=np.broadcast_to(gspo_loss, (4, 4)),
          grad=np.broadcast_to(gspo_grad, (4, 4)),
          reduction=reduction,
          kind="gspo",
          **DAPO,
      )
      for reduction in ("seq_mean_token_mean", "seq_mean_token_sum")
  )
  leak = dict(gspo["inputs"])
  leak["logps_BT"] = np.where(MASK, OLD + np.log(gspo_ratios), 3.0).tolist()
  # CISPO: weight min(r, 5), gradient -weight A, also where it is clipped.
  cispo_ratios = np.tile([8.0, 1.5, 0.5, 4.0], (4, 1))
  weight = np.minimum(cispo_ratios, 5.0)
  cispo = _loss(
      cispo_ratios,
      SIGNS,
      ALL,
      ALL / 16,
      loss=-weight * SIGNS * (OLD + np.log(cispo_ratios)),
      grad=-weight * SIGNS,
      kind="cispo",
      ratio_max=5.0,
  )
  return [
      Case(
          name="ppo/by_hand",
          **_policy(RATIOS, SIGNS, ALL),
          formula=clip,
          source=ppo,
      ),
      Case(
          name="ppo/negative_advantage",
          **_policy(np.ones((4, 4)), -np.abs(SIGNS), ALL),
          formula=clip + "; at r = 1 the gradient is -A for both signs of A",
          source=ppo,
      ),
      Case(
          name="ppo/clip_higher",
          **_policy(near, SIGNS, ALL, **DAPO),
          formula=clip + "; low .2, high .28",
          source="DAPO, arXiv:2503.14476, eq 10",
          fault=(
              "the clipped term is computed and not used, so that the upper"
              " bound has no effect"
          ),
          issue=GITHUB + "rllm-org/rllm/issues/81",
      ),
      Case(
          name="ppo/lower_bound",
          **_policy(np.tile([0.5, 0.3, 0.9, 0.79], (4, 1)), SIGNS, ALL, **DAPO),
          formula=clip + "; the lower bound is 1 - low",
          source=ppo,
          fault="the lower bound is epsilon and not 1 - epsilon",
          issue=GITHUB + "ChenmienTan/RL2/pull/21",
      ),
      Case(
          name="ppo/ratio_to_the_old_policy",
          **_policy(near, np.abs(SIGNS), ALL),
          formula=clip + "; r = p / p_old, p_old of the policy that sampled",
          source=ppo,
          fault=(
              "the ratio is p / stop_gradient(p): it is always 1, and the clip"
              " never binds (the thread asks whether to change it)"
          ),
          issue=GITHUB + "inclusionAI/AReno/issues/68",
      ),
      Case(
          name="ppo/advantages_are_not_the_mask",
          **_policy(RATIOS, zeros, MASK),
          formula=clip + " of the mask; some advantages are 0 or negative",
          source=ppo,
          fault="advantages passed as the mask of the loss",
          issue=GITHUB + "verl-project/verl/issues/2506",
      ),
      Case(
          name="ppo/dual_clip_negative",
          **_policy(far, -np.abs(SIGNS), ALL, dual_clip=3.0),
          formula=clip + "; where A < 0 at most -c A, c = 3",
          source=dual,
      ),
      Case(
          name="ppo/dual_clip_positive",
          **_policy(far, np.abs(SIGNS), ALL, dual_clip=3.0),
          formula=clip + "; the dual clip changes nothing where A > 0",
          source=dual,
          fault="the dual clip also applied to positive advantages",
          issue=GITHUB + "thu-ml/tianshou/issues/433",
      ),
      Case(
          name="mask/overflow",
          **(hidden | dict(inputs=huge)),
          formula=clip + " of the mask; outside of it log r is 200",
          source=ppo,
          fault="0 * inf: the ratio of a masked token overflows",
          issue=GITHUB + "PrimeIntellect-ai/prime-rl/pull/2084",
      ),
      Case(
          name="mask/infinite_log_prob",
          **(hidden | dict(inputs=minus)),
          formula=clip + " of the mask; outside of it log p_old is -inf",
          source=ppo,
          fault="0 * inf: masked log-probs of -inf or NaN reach the loss",
          issue=GITHUB + "NVIDIA-NeMo/RL/pull/4120",
      ),
      Case(
          name="gspo/by_hand",
          **gspo,
          formula=(
              "-min(s A, clip(s) A), s = exp(mean of log r over the response),"
              " mean over responses"
          ),
          source="GSPO, arXiv:2507.18071, eq 5",
          fault="the loss of a response is multiplied by its length",
          issue=GITHUB + "huggingface/trl/issues/3823",
      ),
      Case(
          name="gspo/masked_tokens",
          **(gspo | dict(inputs=leak)),
          formula="the same; outside of the mask log r is 4",
          source="GSPO, arXiv:2507.18071, eq 5",
          fault=(
              "masked tokens enter the mean of the log-ratios (there, a mean"
              " over the batch)"
          ),
          issue=GITHUB + "MakazhanAlpamys/Soup/issues/723",
      ),
      Case(
          name="luspo/by_hand",
          **luspo,
          formula=(
              "GSPO's loss of a response times its number of tokens, mean over"
              " responses"
          ),
          source="LUSPO, arXiv:2602.05261",
      ),
      Case(
          name="cispo/by_hand",
          **cispo,
          formula=(
              "-stop_gradient(min(r, 5)) A log p: clipped tokens keep their"
              " gradient"
          ),
          source="CISPO, arXiv:2506.13585, eq 4",
          fault=(
              "the clipped ratio without log p: clipped tokens lose their"
              " gradient"
          ),
          issue=GITHUB + "allenai/open-instruct/pull/1269",
      ),
  ]


def _recent_surrogates() -> list[Case]:
  """Surrogates of recent papers."""
  # Log-ratios and advantages of each response; tokens inside and outside.
  log_BT = np.log(
      _rows(
          [1.5, 1, 1, 1], [1.3, 0.4, 1, 1], [2.2, 0.9, 0.5, 1], [0.3, 0.6, 1, 1]
      )
  )
  row = SIGNS[:, :1]
  ratios, logps = np.exp(log_BT), OLD + log_BT

  def case(kind, loss, grad, reduction="seq_mean_token_mean", **inputs):
    return _loss(
        ratios,
        row,
        MASK,
        WEIGHTS[reduction],
        loss=loss,
        grad=grad,
        reduction=reduction,
        kind=kind,
        **inputs,
    )

  def mean(values_BT):
    kept = np.where(MASK, values_BT, 0)
    return kept.sum(1, keepdims=True) / MASK.sum(1, keepdims=True)

  tau = np.where(row > 0, 1.0, 1.05)
  gate = 1 / (1 + np.exp(-tau * (ratios - 1)))
  bounded = np.where(row > 0, np.minimum(log_BT, 0.4), np.maximum(log_BT, -0.4))
  s = np.exp(mean(bounded))
  change = np.exp(logps) - np.exp(OLD)
  far = np.where(row > 0, change > 0.1, change < -0.1)
  truncated = np.where(far, 0.0, np.minimum(ratios, 20.0))
  product = np.exp(np.where(MASK, log_BT, 0).sum(1, keepdims=True))
  k, lam = np.where(row > 0, 2.0, 3.0), np.where(row > 0, 3.0, 2.0)
  whole = product**k * np.exp(lam * (1 - product))
  unlikely = (row < 0) & (mean(-log_BT) > 0.5)
  kept_loss, kept_grad = (
      np.where(unlikely, 0.0, x) for x in _clipped(ratios, row, 0.2, 0.28)
  )
  return [
      Case(
          name="sapo/by_hand",
          **case(
              "sapo",
              -4 / tau * gate * row,
              -4 * gate * (1 - gate) * ratios * row,
              tau_positive=1.0,
              tau_negative=1.05,
          ),
          formula=(
              "-4 / tau sigmoid(tau (r - 1)) A, tau 1 where A > 0 and else"
              " 1.05, mean over responses of the mean over tokens"
          ),
          source="SAPO, arXiv:2511.20347",
      ),
      Case(
          name="gmpo/by_hand",
          **case(
              "gmpo",
              -s * row,
              np.where(bounded == log_BT, -s * row, 0.0),
              clip_low=0.4,
              clip_high=0.4,
          ),
          formula=(
              "-s A, s = exp(mean over the response of log r, at most .4 where"
              " A > 0 and else at least -.4), mean over responses"
          ),
          source="GMPO, arXiv:2507.20673",
      ),
      Case(
          name="dppo/by_hand",
          **case(
              "dppo",
              -truncated * row * logps,
              -truncated * row,
              "token_mean",
              change_low=0.1,
              change_high=0.1,
              ratio_max=20.0,
          ),
          formula=(
              "-stop_gradient(min(r, 20)) A log p, 0 where p - p_old > .1 and"
              " A > 0, or p_old - p > .1 and A < 0, mean over tokens"
          ),
          source="DPPO (Binary-TV), arXiv:2602.04879",
      ),
      Case(
          name="vespo/by_hand",
          **case(
              "vespo",
              -whole * row * logps,
              -whole * row,
              "token_mean",
              k_positive=2.0,
              lam_positive=3.0,
              k_negative=3.0,
              lam_negative=2.0,
          ),
          formula=(
              "-stop_gradient(W^k exp(lam (1 - W))) A log p, W = product of r"
              " over the response, mean over tokens"
          ),
          source="VESPO, arXiv:2602.10693",
      ),
      Case(
          name="sequence_mask/by_hand",
          **case("ppo_sequence_mask", kept_loss, kept_grad, delta=0.5, **DAPO),
          formula=(
              "PPO's clip, low .2, high .28, and 0 where A < 0 and the mean of"
              " -log r over the response exceeds .5, mean over responses"
          ),
          source="DeepSeek-V3.2, arXiv:2512.02556, eq 9",
      ),
  ]


def _reductions() -> list[Case]:
  advantages = np.repeat(ADVANTAGES[:, None], 4, 1)
  ones = np.ones((4, 4))
  text = dict(
      token_mean="sum over all tokens / number of tokens",
      seq_mean_token_mean="mean over responses of the mean over tokens",
      seq_mean_token_sum="mean over responses of the sum over tokens",
      token_sum="sum over all tokens",
      constant="sum over all tokens / (responses x maximal length)",
      prompt_token_mean="mean over prompts of the mean over a prompt's tokens",
  )
  sources = dict(
      token_mean="DAPO, arXiv:2503.14476, sec 3.3 (the released recipe)",
      seq_mean_token_mean="GRPO, arXiv:2402.03300, eq 3",
      seq_mean_token_sum="the name is verl's",
      token_sum="the name is verl's",
      constant="Dr.GRPO, arXiv:2503.20783, sec 3.2",
      prompt_token_mean="DAPO, arXiv:2503.14476, eq 8 as printed",
  )
  faults = dict(
      token_mean=(
          "the losses of masked tokens are in the sum and not in the count",
          "alibaba/ROLL/pull/444",
      ),
      seq_mean_token_sum=(
          "loss_agg_mode is not passed to the loss: the mode has no effect",
          "verl-project/verl/issues/1083",
      ),
      constant=(
          "divided by the maximal length only: the loss grows with the batch",
          "verl-project/verl/issues/3741",
      ),
  )
  cases = []
  for name, formula in text.items():
    fault, issue = faults.get(name, ("", ""))
    made = _policy(ones, advantages, MASK, reduction=name)
    made["inputs"]["groups_B"] = [0, 0, 1, 1]
    cases.append(
        Case(
            name=f"reduction/{name}",
            **made,
            formula=formula + "; lengths 1, 2, 4, 3",
            source=sources[name],
            fault=fault,
            issue=GITHUB + issue if issue else "",
        )
    )
  # A response that was cut at the limit leaves the loss: three remain.
  kept = MASK & (np.arange(4) != 2)[:, None]
  for name, weights in dict(
      token_mean=kept / 6,
      seq_mean_token_mean=kept / np.array([[1], [2], [4], [3]]) / 3,
  ).items():
    # Only the count of tokens is in a thread.
    fault = "filtered tokens still count in the denominator"
    documented = name == "token_mean"
    cases.append(
        Case(
            name=f"overlong_filtering/{name}",
            **_loss(
                ones,
                advantages,
                kept,
                weights,
                loss=-advantages,
                grad=-advantages,
                reduction=name,
                **PPO,
            ),
            formula=text[name] + "; a filtered response is in no count",
            source="DAPO, arXiv:2503.14476, sec 3.4 (overlong filtering)",
            fault=fault if documented else "",
            issue=GITHUB + "huggingface/trl/issues/6369" if documented else "",
        )
    )
  accumulation = dict(
      token_mean=(
          "each micro-batch divides by its own tokens",
          "allenai/open-instruct/pull/1161",
      ),
      seq_mean_token_mean=(
          "gradients of micro-batches are added up and not averaged",
          "NVIDIA-NeMo/RL/issues/84",
      ),
      constant=(
          "the gradient is multiplied by the number of micro-batches (found in"
          " review)",
          "redai-studio/Relax/pull/173",
      ),
  )
  for name, (fault, issue) in accumulation.items():
    made = _policy(ones, advantages, MASK, reduction=name)
    made["inputs"]["micro_batches"] = [[0, 1], [2, 3]]
    made["expected"].pop("loss")
    cases.append(
        Case(
            name=f"micro_batches/{name}",
            **made,
            formula=(
                f"the gradient of the {name} of all rows, in two micro-batches"
            ),
            source="definition of gradient accumulation",
            fault=fault,
            issue=GITHUB + issue,
        )
    )
  made = _policy(RATIOS, SIGNS, MASK)
  made["inputs"]["micro_batches"] = [[0, 1], [2, 3]]
  cases.append(
      Case(
          name="micro_batches/logged_loss",
          operation="logged_loss",
          inputs=made["inputs"],
          expected=dict(loss=made["expected"]["loss"]),
          formula="the logged policy loss is the loss, in two micro-batches",
          source="definition",
          fault=(
              "the logged loss is divided by the number of micro-batches twice"
          ),
          issue=GITHUB + "verl-project/verl/pull/4711",
      )
  )
  nll = _f(MASK * np.array([[-1.0], [0], [0], [-1]]) / 4)
  cases.append(
      Case(
          name="micro_batches/positive_nll",
          operation="positive_nll",
          # Rows 0 and 3 are correct: 1 + 3 tokens; log p = -1, -2, ...
          inputs=dict(
              logps_BT=_f(-np.arange(1.0, 5)[None] * np.ones((4, 1))),
              correct_B=[1.0, 0, 0, 1],
              mask_BT=MASK.tolist(),
              micro_batches=[[0, 1], [2, 3]],
          ),
          # (1 + 1 + 2 + 3) / 4
          expected=dict(loss=7 / 4, grad_BT=nll),
          formula="mean of -log p over the tokens of all correct responses",
          source="VAPO, arXiv:2504.05118, sec 4.3",
      )
  )
  return cases


def _corrections() -> list[Case]:
  # pi_old / pi_sampler 4, 1, 1/4, 2 and pi / pi_old 1.1.
  mismatch = np.tile([4.0, 1.0, 0.25, 2.0], (4, 1))
  ratios = np.full((4, 4), 1.1)
  source = "truncated importance sampling (fengyao.notion.site/off-policy-rl)"
  cases = []
  for name, weights, more, where in (
      ("tis/by_hand", np.minimum(mismatch, 2.0), dict(high=2.0), source),
      (
          "icepop/by_hand",
          np.where((mismatch >= 0.5) & (mismatch <= 3.0), mismatch, 0.0),
          dict(low=0.5, high=3.0),
          "IcePop, arXiv:2510.18855",
      ),
  ):
    made = _loss(
        ratios,
        SIGNS,
        ALL,
        ALL / 16,
        loss=-weights * ratios * SIGNS,
        grad=-weights * ratios * SIGNS,
        **PPO,
        correction=dict(kind=name.split("/")[0], **more),
        sampler_logps_BT=_f(OLD - np.log(mismatch)),
    )
    kind = (
        "min(pi_old / pi_sampler, 2)"
        if name.startswith("tis")
        else "pi_old / pi_sampler in [.5, 3], else 0"
    )
    tis = name.startswith("tis")
    cases.append(
        Case(
            name=name,
            **made,
            formula=f"{kind}, without a gradient, times the clipped surrogate",
            source=where,
            fault=(
                "the factor uses the policy in training and not the old one"
                if tis
                else ""
            ),
            issue=GITHUB + "THUDM/slime/pull/179" if tis else "",
        )
    )
  return cases


# --- KL, values, tokens, rewards, sampling -----------------------------------

P, Q = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.2, 0.3, 0.4])


def _kl() -> list[Case]:
  d = _rows([0.5, -0.5, 1, 2], [0, 1, 0, 0], [-1, 0.25, -2, 1], [1, 1, -1, 0])
  kinds = dict(
      k1=(d, np.ones((4, 4)), "d"),
      k2=(d**2 / 2, d, "d^2 / 2"),
      k3=(np.exp(-d) - 1 + d, 1 - np.exp(-d), "exp(-d) - 1 + d"),
      # The gradient at d = 0 is a choice.
      abs=(np.abs(d), np.where(d == 0, NAN, np.sign(d)), "|d|"),
  )
  schulman = "Schulman, Approximating KL divergence, 2020"
  faults = dict(
      k3=(
          "the log-ratio has the wrong sign: exp(d) - 1 - d (in the code that"
          " the review quotes)",
          "ml-explore/mlx-examples/pull/1233",
      )
  )
  cases = []
  for kind, (value, grad, formula) in kinds.items():
    fault, issue = faults.get(kind, ("", ""))
    cases.append(
        Case(
            name=f"kl/{kind}",
            operation="kl_loss",
            inputs=dict(
                logps_BT=_f(OLD + d),
                ref_logps_BT=_f(OLD),
                mask_BT=MASK.tolist(),
                kind=kind,
            ),
            expected=dict(
                loss=float(value[MASK].mean()),
                grad_BT=_f(np.where(MASK, grad / 10, 0)),
            ),
            formula=f"{formula}, d = log p - log p_ref; mean over tokens",
            source=schulman if kind != "abs" else "the name is verl's",
            fault=fault,
            issue=GITHUB + issue if issue else "",
        )
    )
  kl = float(np.sum(P * np.log(P / Q)))
  gradient = P * (np.log(P / Q) - kl)
  reverse = (
      "the expected gradient by the logits of the KL term in the loss is that"
      " of KL(p || q): p (log(p / q) - KL)"
  )
  for choice, fault, issue in (
      (
          "default",
          "k1 or k3 is differentiated where the reverse KL was meant: the"
          " expected gradient of k1 is 0, and that of k3 is the one of the"
          " forward KL",
          "OpenRLHF/OpenRLHF/pull/1309",
      ),
      (
          "unbiased",
          "the KL estimate in the loss lacks the score term: its expected"
          " gradient is not that of the reverse KL",
          "NVIDIA-NeMo/RL/pull/2506",
      ),
  ):
    cases.append(
        Case(
            name=f"kl/gradient_{choice}",
            operation="kl_gradient",
            inputs=dict(probs_V=_f(P), ref_probs_V=_f(Q), choice=choice),
            expected=dict(grad_V=_f(gradient)),
            formula=reverse
            + (
                "; the estimator that the library takes by default"
                if choice == "default"
                else "; the best of the library's options"
            ),
            source="arXiv:2512.21852",
            fault=fault,
            issue=GITHUB + issue,
        )
    )
  return cases


def _others() -> list[Case]:
  values = _rows([0, 1, 2, 3], [1, 1, 1, 1], [0, 0, 0, 0], [2, 1, 0, -1])
  old = _rows([1, 1, 1, 1], [0, 2, 1, 1], [0, 1, -1, 2], [2, 2, 2, 2])
  returns = _rows([1, 1, 1, 1], [0, 0, 2, 2], [1, 1, 1, 1], [1, 0, 1, 0])
  near = np.clip(values, old - 0.5, old + 0.5)
  value_loss = np.maximum((values - returns) ** 2, (near - returns) ** 2) / 2
  logits = np.array(
      [[0.0, 1, 2, 3], [1, 1, 1, 1], [-2, 0, 2, 0], [5, 0, 0, -5]]
  )
  scaled = logits / 0.5
  logp = scaled - np.log(np.exp(scaled).sum(-1, keepdims=True))
  tokens = [3, 0, 1, 2]
  plain = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
  overlong = "0 up to L_max - L_cache, then linearly to -1 at L_max, -1 beyond"
  dapo = "DAPO, arXiv:2503.14476, eq 13"

  def lengths(name, count, characters, wanted, **text) -> Case:
    return Case(
        name=f"overlong/{name}",
        operation="soft_overlong",
        inputs=dict(
            token_ids=[list(range(2, 2 + n)) for n in count],
            texts=["x" * n for n in characters],
            max_tokens=20,
            buffer=8,
        ),
        expected=dict(rewards_B=wanted),
        formula=overlong + "; L_max = 20, L_cache = 8",
        source=dapo,
        **text,
    )

  return [
      Case(
          name="value/clip",
          operation="value_loss",
          inputs=dict(
              values_BT=_f(values),
              old_values_BT=_f(old),
              returns_BT=_f(returns),
              mask_BT=MASK.tolist(),
              clip=0.5,
          ),
          expected=dict(loss=float(value_loss[MASK].mean())),
          formula=(
              "max((V - R)^2, (clip(V, V_old +- .5) - R)^2) / 2, mean over"
              " tokens"
          ),
          source="PPO's value clip, as in OpenAI baselines ppo2",
          fault=(
              "the old values are predicted anew by the critic in training, so"
              " that the clip has no effect"
          ),
          issue=GITHUB + "tensorflow/agents/issues/352",
      ),
      Case(
          name="logps/temperature",
          operation="token_logps",
          inputs=dict(logits_NV=_f(logits), tokens_N=tokens, temperature=0.5),
          expected=dict(logps_N=_f(logp[np.arange(4), tokens])),
          formula="log softmax(logits / T) of the sampled token, T = .5",
          source="the policy that samples is softmax(logits / T)",
          fault="log-probs of the loss without the temperature of the sampler",
          issue=GITHUB + "huggingface/trl/pull/3029",
      ),
      Case(
          name="entropy/by_hand",
          operation="entropy",
          inputs=dict(logits_NV=_f(logits)),
          expected=dict(entropy_N=_f(-(np.exp(plain) * plain).sum(-1))),
          formula="-sum of p log p, in nats",
          source="Shannon's entropy",
      ),
      Case(
          name="entropy/zero_probability",
          operation="entropy",
          inputs=dict(
              logits_NV=[
                  [0.0, 0.0, -INF, -INF],
                  [0.0, -INF, -INF, -INF],
                  [1.0, 1.0, 1.0, -INF],
                  [0.0, 0.0, 0.0, 0.0],
              ]
          ),
          expected=dict(entropy_N=_f([np.log(2), 0.0, np.log(3), np.log(4)])),
          formula="-sum of p log p; a token of probability 0 adds 0",
          source="Shannon's entropy",
          fault="0 * -inf: the entropy is NaN",
          issue=GITHUB + "huggingface/trl/issues/7221",
      ),
      # 12 and fewer 0; 14: -2/8; 16: -4/8; 20: -1.
      lengths(
          "by_hand", [10, 12, 14, 20], [10, 12, 14, 20], [0.0, 0, -0.25, -1]
      ),
      lengths(
          "tokens",
          [4, 12, 14, 20],
          [16, 48, 56, 80],
          [0.0, 0, -0.25, -1],
          fault="the length is counted in characters (there, in a first draft)",
          issue=GITHUB + "huggingface/open-r1/pull/638",
      ),
      lengths(
          "floor",
          [20, 24, 28, 40],
          [20, 24, 28, 40],
          [-1.0, -1, -1, -1],
          fault="the punishment has no bound above L_max (found in review)",
          issue=GITHUB + "OpenRLHF/OpenRLHF/pull/1091",
      ),
      Case(
          name="dynamic_sampling/accuracy",
          operation="groups_with_signal",
          inputs=dict(
              correct_B=[1.0, 1, 0, 1, 0, 0, 1, 0],
              rewards_B=[1.0, 1, -1, 1, -1, -1, 1, -1],
              groups_B=[0, 0, 1, 1, 2, 2, 3, 3],
          ),
          expected=dict(keep_N=[False, True, False, True]),
          formula="groups with 0 < number of correct responses < G",
          source="DAPO, arXiv:2503.14476, eq 11",
      ),
      Case(
          name="dynamic_sampling/shaped_reward",
          operation="groups_with_signal",
          inputs=dict(
              correct_B=[1.0, 1, 0, 1, 0, 0, 0, 0],
              # The punishment of length makes the rewards of groups 0 and 3
              # differ.
              rewards_B=[1.0, 0.5, -1, 1, -1, -1, -1, -1.5],
              groups_B=[0, 0, 1, 1, 2, 2, 3, 3],
          ),
          expected=dict(keep_N=[False, True, False, False]),
          formula="groups with 0 < number of correct responses < G",
          source="DAPO, arXiv:2503.14476, eq 11",
          fault="groups are filtered by the reward after length shaping",
          issue=GITHUB + "NVIDIA-NeMo/RL/issues/2431",
      ),
      Case(
          name="dynamic_sampling/order",
          operation="chosen_prompts",
          # Prompts 0, 2 and 3 have signal. Prompt 0 finishes last.
          inputs=dict(
              signal_N=[True, False, True, True],
              finished_at_N=[4.0, 1.0, 2.0, 3.0],
              wanted=2,
          ),
          expected=dict(prompts=[0, 2]),
          formula=(
              "the first prompts with signal in the order of the data, whatever"
              " time their responses take"
          ),
          source="DAPO, arXiv:2503.14476, algorithm 1; Magistral, 2506.10910",
          fault=(
              "prompts whose responses take long are discarded as stale: the"
              " data lean towards prompts that finish early (there, in"
              " asynchronous training)"
          ),
          issue=GITHUB + "thinking-machines-lab/tinker-cookbook/pull/822",
      ),
      Case(
          name="old_policy/several_updates",
          operation="keeps_old_logps",
          inputs=dict(updates_per_rollout=2),
          expected=dict(kept=True),
          formula=(
              "with two optimizer steps per rollout, the ratio of the second"
              " one is to the policy that sampled: its log-probs are kept"
          ),
          source="PPO, arXiv:1707.06347, algorithm 1",
          fault=(
              "the sampler's log-probs are recomputed with the current weights"
              " before every step: the ratio is always 1"
          ),
          issue=GITHUB + "GMISWE/tinker-cloud/pull/66",
      ),
  ]


CASES: tuple[Case, ...] = (
    *_advantages(),
    *_tokens(),
    *_more_advantages(),
    *_surrogates(),
    *_recent_surrogates(),
    *_reductions(),
    *_corrections(),
    *_kl(),
    *_others(),
)
