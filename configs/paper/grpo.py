"""GRPO (arXiv:2402.03300) with its published hyperparameters, at full size.

  python -m rl_reason.main --config=configs/paper/grpo.py

Never run at this size by us, so without a time.
The paper: 51.7 on MATH, from 46.8 after SFT.
"""

from rl_reason.configs.paper import size


def get_config():
  """64 responses a prompt, one update of 1024 rows a rollout, k3 at .04."""
  c = size.qwen_32b()
  # DeepSeekMath 7B.
  c.model.layers, c.model.width, c.model.mlp = 30, 4096, 11008
  c.model.heads, c.model.kv_heads, c.model.head_dim = 32, 32, 128
  c.model.rope_theta, c.model.norm_eps, c.model.qkv_bias = 1e4, 1e-6, False
  c.rollout.batch, c.rollout.group_size = 1024, 64
  c.rollout.max_prompt, c.rollout.max_tokens = 1024, 1024
  c.updates.minibatches = 1
  c.kl.kind, c.kl.coef = "k3", 0.04
  c.reward.incorrect = 0.0
  c.optimizer.weight_decay = 0.0
  return c
