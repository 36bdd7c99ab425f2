"""Model, data, lengths and optimizer, shared by the published recipes."""

from rl_reason.configs import base


def qwen_32b():
  """Qwen2.5-32B on DAPO-Math-17K with responses of 20,480 tokens."""
  c = base.get_config()
  c.task.name, c.task.difficulties = "files", ()
  c.model.path = "Qwen/Qwen2.5-32B"
  c.model.dtype, c.model.remat = "bfloat16", "full"
  c.mesh.data, c.mesh.fsdp, c.mesh.tensor = 1, -1, 8
  c.data.train, c.data.evaluate = "dapo_math_17k", "aime24"
  c.data.template, c.data.chat = "published", True
  c.rollout.stop_tokens = ("<|im_end|>",)  # ends a turn; the base EOS differs
  c.rollout.max_prompt, c.rollout.max_tokens = 2048, 20480
  c.rollout.slots = 512  # 5.9 GB of KV cache each, over all devices
  c.reward.workers = 64
  c.updates.token_budget = 45056  # two rows of maximal length
  c.optimizer.lr = 1e-6
  c.optimizer.b2 = 0.999
  c.optimizer.weight_decay = 0.1
  c.rl.steps = 320  # x 16 updates: VAPO's 5,000 steps are updates
  c.evaluate.prompts = c.evaluate.interim_prompts = 30  # all of AIME 2024
  c.evaluate.samples = c.evaluate.mean_of = 32
  c.evaluate.top_p = 0.7
  c.evaluate.batch = 64
  return c
