"""DAPO in the environment `python`: finding a program by trial and error.

  python -m rl_reason.main --config=configs/lines.py

SFT teaches the policy not to repeat a slope that failed, then the habit of
drawing slopes at random. RL has to tell the two apart by their rewards.
"""

from rl_reason.configs import dapo


def get_config():
  """Up to three programs; each distinct program runs in the sandbox once."""
  c = dapo.get_config()
  c.task.name, c.task.difficulties = "lines", ()
  c.environment.name, c.environment.max_turns = "python", 3
  c.sft.batch = 48
  c.sft.update(steps=300, threshold=0.0)
  c.sft.habits.update(mixture="careful:1,random:3", steps=50)
  c.rollout.batch, c.rollout.max_tokens = 128, 224
  c.reward.overlong_buffer = 0
  c.rl.steps = 30
  # There are only 240 prompts, so few are held out.
  c.evaluate.update(prompts=24, interim_prompts=16, samples=16, mean_of=16)
  return c
