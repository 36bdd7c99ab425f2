"""DAPO on parities: RL learns to write out what SFT lets the model guess.

python -m rl_reason.main --config=configs/xor.py

SFT teaches the steps of a parity, but its responses to three blocks of eight
bits are guesses, 95% of the time. Held-out accuracy: 14% to 95%
(16 seeds, studies/xor/xor.md), about 5 minutes on 2 cores. There are 2^24
prompts. See rl_reason/tasks/xor.py for the task.
"""

from rl_reason.configs import base, dapo

VARIANTS = ("", "grpo", "shuffled")


def get_config(variant=""):
  """DAPO; the variants are GRPO, and a control with shuffled rewards."""
  if variant not in VARIANTS:
    raise ValueError("the variants are grpo, shuffled and smoke")
  c = base.get_config()
  if variant != "grpo":
    c = dapo.techniques(c)
  c.reward.shuffle = variant == "shuffled"
  c.task.name, c.task.difficulties = "xor", (3,)
  c.sft.difficulties, c.sft.mixture = (1, 2, 3), "mixed:1"
  c.sft.update(steps=4000, batch=128, lr=3e-3)
  c.rollout.max_prompt, c.rollout.max_tokens = 36, 57
  c.optimizer.lr = 4e-4
  c.rl.steps = 25
  c.evaluate.every = 5
  return c
