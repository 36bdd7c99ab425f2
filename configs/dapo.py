"""DAPO (arXiv:2503.14476) on the built-in task.

  python -m rl_reason.main --config=configs/dapo.py

25% to 97% held out (five seeds, results/seeds.md), 2 minutes on 2 cores.
"""

from configs import base

VARIANTS = ("", "smoke", "shuffled")


def get_config(variant=""):
  """variant: '', 'smoke' (seconds, every stage) or 'shuffled' (a control)."""
  c = base.get_config()
  c.loss.clip_high = 0.28
  c.loss.dual_clip = 10.0
  c.loss.reduction = "token_mean"
  c.dynamic_sampling.enabled = True
  c.reward.overlong_buffer = 4
  if variant == "smoke":
    c.sft.skill.steps = 60
    c.sft.skill.threshold = 0.0
    c.sft.habits.steps = 10
    c.rollout.batch = 64
    c.updates.minibatches = 2
    c.dynamic_sampling.max_rounds = 2
    c.rl.steps = 3
    c.evaluate.prompts = c.evaluate.interim_prompts = c.evaluate.batch = 16
    c.evaluate.every = c.checkpoint.every = c.log.samples_every = 1
    c.checkpoint.sft_every = 20
  elif variant == "shuffled":
    c.reward.shuffle = True
  elif variant:
    raise ValueError(f"dapo.py:{variant}: there are {VARIANTS[1:]}")
  return c
