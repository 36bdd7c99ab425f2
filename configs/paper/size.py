"""Model, data, lengths and optimizer, shared by the published recipes.

A comment above the lines says whose numbers they are, here and in the presets:
of the paper, of the recipe that DAPO's authors released, or ours, where neither
says anything. VAPO's paper compares with DAPO "under identical experimental
settings" and repeats neither data nor lengths; the lines of DAPO that it shares
are therefore our reading of it.
"""

from rl_reason.configs import base


def qwen_32b():
  """Qwen2.5-32B on DAPO-Math-17K with responses of 20,480 tokens."""
  c = base.get_config()
  # The paper, of DAPO and of VAPO.
  c.model.path = "Qwen/Qwen2.5-32B"
  c.optimizer.lr = 1e-6
  c.data.evaluate = "aime24"
  c.evaluate.samples = c.evaluate.mean_of = 32
  c.evaluate.temperature, c.evaluate.top_p = 1.0, 0.7
  # The paper of DAPO.
  c.data.train = "dapo_math_17k"
  c.rollout.max_tokens = 20480
  # The recipe of DAPO.
  c.rollout.max_prompt = 2048
  c.optimizer.weight_decay, c.optimizer.b2 = 0.1, 0.999
  c.optimizer.clip_norm = 1.0
  # Ours.
  c.task.name, c.task.difficulties = "files", ()
  c.data.template, c.data.chat = "published", True
  c.rollout.stop_tokens = ("<|im_end|>",)  # ends a turn; the base EOS differs
  c.rl.steps = 320  # VAPO's 5,000 steps are updates (its figure 1), 16 each
  c.evaluate.prompts = c.evaluate.interim_prompts = 30  # all of AIME 2024
  # Ours, of memory and time only.
  c.model.dtype, c.model.remat = "bfloat16", "full"
  c.mesh.data, c.mesh.fsdp, c.mesh.tensor = 1, -1, 8
  c.rollout.slots = 512  # 5.9 GB of KV cache each, over all devices
  c.reward.workers = 64
  c.updates.token_budget = 45056  # two rows of maximal length
  c.evaluate.batch = 64
  return c
