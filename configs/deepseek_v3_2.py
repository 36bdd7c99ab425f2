"""GRPO as in DeepSeek-V3.2 (arXiv:2512.02556): unbiased KL, sequence mask.

  python -m rl_reason.main --config=configs/deepseek_v3_2.py

Held-out accuracy: 23% to 92% after 30 of its 40 steps (eight seeds,
studies/recent/recent_more.md). The paper states neither the threshold of the
mask nor
the coefficient of the KL nor the clip. Its models are mixtures of experts: see
rollout.replay_routing for "keep routing".
"""

from rl_reason.configs import base


def get_config():
  """Section 3.1; TRL's documentation gives the mask's threshold."""
  c = base.arithmetic()
  c.advantage.name = "group_mean"  # R - mean, not divided by the deviation
  c.surrogate.name = "ppo_sequence_mask"  # off-policy sequence masking
  c.kl.update(kind="k3_unbiased", coef=1e-3)  # the coefficient is our choice
  return c
