"""VAPO where the first of 64, 128 or 256 tokens decides: a rare long chain.

python -m rl_reason.main --config=configs/chain.py

SFT guesses the last value at once, 97% of the time, and a guess is right one
time in ten; the chain is nearly always right. See rl_reason/tasks/chain.py for
the task, and configs/ablations/chain.py for the ladder from PPO to VAPO.
"""

from rl_reason.configs import ppo, vapo

VARIANTS = ("", "128", "256", "ppo", "ppo128", "ppo256")
# Tokens of a chain -> difficulty where the prompt asks for it, and where the
# choice is free; letters of a prompt.
SIZES = {64: (1, 2, 32), 128: (3, 4, 64), 256: (5, 6, 64)}


def get_config(variant=""):
  """VAPO, or PPO, on chains of 64, 128 or 256 tokens."""
  if variant not in VARIANTS:
    raise ValueError("the variants are 128, 256, ppo, ppo128, ppo256 and smoke")
  c = (ppo if variant.startswith("ppo") else vapo).get_config()
  tokens = int(variant.removeprefix("ppo") or 64)
  asked, free, letters = SIZES[tokens]
  c.task.name, c.task.difficulties = "chain", (free,)
  c.sft.difficulties, c.sft.mixture = (asked, free), "mixed:1"
  c.sft.habits.update(steps=0, mixture="")
  c.sft.update(steps=600, batch=64, lr=4e-3, threshold=0.0)
  c.rollout.batch = 128
  c.rollout.max_prompt, c.rollout.max_tokens = letters + 1, tokens + 1
  c.updates.token_budget = 4096
  c.optimizer.lr = 1e-4
  if c.critic.pretrain_steps:
    c.critic.pretrain_steps = 20
  c.rl.steps = 30
  c.evaluate.every = 5
  return c
