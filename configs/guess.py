"""DAPO in an environment: guess a number in few turns.

  python -m rl_reason.main --config=configs/guess.py

SFT teaches the policy to guess at random within the possible range; RL shortens
the games towards bisection.
"""

from rl_reason.configs import base, dapo


def get_config():
  """Games of up to 12 turns; the reward falls with their number."""
  c = dapo.techniques(base.get_config())
  c.task.name = "guess"
  c.task.difficulties = (3, 4, 5)
  c.sft.update(steps=1000, lr=4e-3, batch=96)
  c.sft.update(mixture="random:1", threshold=0.5)
  c.rollout.max_tokens = 48
  c.rl.steps = 80
  c.reward.overlong_buffer = 0  # each turn has a cost
  # A group whose games are all won in the same number of turns has no signal.
  c.dynamic_sampling.signal = "reward"
  c.evaluate.update(prompts=400, every=20)
  return c
