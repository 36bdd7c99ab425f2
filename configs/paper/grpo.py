"""GRPO (arXiv:2402.03300) of DeepSeekMath 7B, as published.

  python -m rl_reason.main --config=configs/paper/grpo.py

We never ran it at this size and have no time or score. The paper reports 51.7
on MATH, from 46.8 after SFT. It differs from this config in two respects: its
reward is a reward model, which is not public, and here it is the verdict; its
144,000 questions, the part of its SFT data that is related to GSM8K and MATH,
are not public, and this config takes one epoch over the training splits of
both. Comments say which numbers are of the paper, and ours. Model and data come
from the hub; `model.path`, `data.train` and `data.evaluate` take local copies.
Memory: docs/start.md.
"""

from rl_reason.configs.paper import size


def get_config():
  """64 responses per prompt, one update of 1024 rows per rollout, k3 at .04."""
  c = size.qwen_32b()
  # The paper.
  c.model.path = "deepseek-ai/deepseek-math-7b-instruct"  # after SFT
  c.rollout.batch, c.rollout.group_size = 1024, 64
  c.rollout.max_tokens = 1024
  c.updates.minibatches = 1
  c.kl.kind, c.kl.coef = "k3", 0.04
  # Ours.
  c.data.train, c.data.evaluate = "gsm8k,math", "math500,gsm8k"
  c.data.template = "qwen_boxed"
  c.rollout.stop_tokens = ()
  c.rollout.max_prompt = 1024
  c.reward.correct, c.reward.incorrect = 1.0, 0.0  # the paper: a reward model
  c.surrogate.args.clip_low = c.surrogate.args.clip_high = 0.2
  c.optimizer.weight_decay = 0.0
  c.rl.steps = 936
  c.evaluate.prompts, c.evaluate.interim_prompts = 500, 128
  c.evaluate.samples = c.evaluate.mean_of = 4
  c.evaluate.top_p = 1.0
  # Ours, of memory and time only.
  c.mesh.tensor = 1
  c.rollout.slots = 256
  c.updates.token_budget = 8192  # four rows
  return c
