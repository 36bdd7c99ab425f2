r"""Supervised fine-tuning of a model on your own rows, without RL.

  python -m rl_reason.main --config=configs/sft.py \
      --config.model.path=DIR --config.data.train=rows.jsonl \
      --config.data.evaluate=held_out.jsonl

docs/sft.md explains the rows and the fields. Without the overrides model and
data, GSM8K with its solutions, come from the hub. We never ran it at this size.
"""

from rl_reason.configs import base


def get_config(variant=""):
  """Qwen2.5-0.5B; rate, schedule and batch are the defaults of section sft."""
  if variant:
    raise ValueError(
        "there is no variant but smoke; configs/sft_control.py has"
        " the control of RL"
    )
  c = base.get_config()
  c.task.name, c.task.difficulties = "files", ()
  c.model.path = "Qwen/Qwen2.5-0.5B"
  c.model.dtype, c.model.remat = "bfloat16", "full"
  c.mesh.data, c.mesh.fsdp = 1, -1
  c.data.train = c.data.evaluate = "gsm8k"
  c.sft.steps = 230  # two passes over GSM8K
  c.rollout.max_prompt, c.rollout.max_tokens = 512, 1024
  c.rollout.slots = 64
  c.updates.token_budget = 12288  # 8 rows of a device
  c.optimizer.weight_decay = 0.1  # Llama 2, as the defaults of section sft
  c.rl.steps = 0
  # One greedy response and one sample of each held-out prompt.
  c.evaluate.samples = c.evaluate.mean_of = 1
  c.evaluate.prompts, c.evaluate.interim_prompts = 256, 256
  c.evaluate.batch = 64
  return c
