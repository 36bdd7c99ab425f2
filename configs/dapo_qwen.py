r"""DAPO on your own model and data set.

  python -m rl_reason.main --config=configs/dapo_qwen.py \
      --config.model.path=DIR --config.data.train=dapo-math-17k.parquet

We never ran it at this size. Without the overrides both come from the hub.
Comments say which numbers are of the paper (arXiv:2503.14476), of the recipe
that its authors released, and ours.
"""

from rl_reason.configs import base, dapo


def get_config():
  """Qwen2.5-1.5B, 128 prompts x 16 per step, two rows of 5120 per device."""
  # The paper.
  c = dapo.techniques(base.get_config())
  c.data.train = "dapo_math_17k"
  c.rollout.group_size = 16
  c.updates.minibatches = 16
  c.optimizer.lr = 1e-6
  c.evaluate.samples = c.evaluate.mean_of = 32
  c.evaluate.top_p = 0.7
  # The recipe.
  c.optimizer.warmup_steps = 10
  c.optimizer.weight_decay, c.optimizer.b2 = 0.1, 0.999
  # Ours.
  c.task.name, c.task.difficulties = "files", ()
  c.model.path = "Qwen/Qwen2.5-1.5B"
  c.data.evaluate = "aime24,aime25"
  c.data.template, c.data.chat = "dapo", True
  c.rollout.stop_tokens = ("<|im_end|>",)  # ends a turn; the base EOS differs
  c.rollout.batch = 2048
  c.rollout.max_prompt, c.rollout.max_tokens = 1024, 4096
  c.reward.overlong_buffer = 1024
  c.rl.steps = 400
  c.evaluate.prompts = c.evaluate.interim_prompts = 30
  c.evaluate.every = 20
  # Ours, of memory and time only.
  c.model.dtype, c.model.remat = "bfloat16", "full"
  c.mesh.data, c.mesh.fsdp = 1, -1
  c.rollout.slots = 512
  c.reward.workers = 16
  c.updates.token_budget = 10240
  c.evaluate.batch = 16
  return c
