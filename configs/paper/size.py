"""What the full-size presets share: shapes of models, and an optimizer."""

from rl_reason.configs import base


def qwen_32b():
  """Base with the shape of Qwen2.5-32B, sharded, in bfloat16.

  The prompts are still the built-in task's: with your own model and data,
  everything below and in the preset stays.
  """
  c = base.get_config()
  c.model.layers, c.model.width, c.model.mlp = 64, 5120, 27648
  c.model.heads, c.model.kv_heads, c.model.head_dim = 40, 8, 128
  c.model.rope_theta, c.model.norm_eps = 1e6, 1e-5
  c.model.qkv_bias, c.model.tied = True, False
  c.model.dtype, c.model.remat = "bfloat16", "full"
  c.mesh.data, c.mesh.fsdp, c.mesh.tensor = 1, -1, 8
  c.rollout.max_prompt, c.rollout.max_tokens = 2048, 20480
  c.rollout.slots = 512  # 5.9 GB of keys and values each, over all devices
  c.updates.token_budget = 45056  # two rows of the longest
  c.optimizer.lr = 1e-6
  c.optimizer.b2 = 0.999
  c.optimizer.weight_decay = 0.1
  c.critic.lr = 2e-6
  c.evaluate.samples = c.evaluate.mean_of = 32
  c.evaluate.top_p = 0.7
  return c
