"""DAPO in the environment `python`: programs that are run, found by trial.

  python -m rl_reason.main --config=configs/lines.py

SFT teaches to try slopes at random. RL has to teach a memory of those that
failed, and does not within these steps (results/environments.md).
"""

from rl_reason.configs import dapo


def get_config():
  """Up to three programs; each distinct one runs in the sandbox once."""
  c = dapo.get_config()
  c.task.name, c.task.difficulties = "lines", ()
  c.environment.name, c.environment.max_turns = "python", 3
  c.sft.batch = 48
  c.sft.skill.update(mixture="random:1", steps=200, threshold=0.0)
  c.sft.habits.update(mixture="random:1", steps=0)
  c.rollout.batch, c.rollout.max_tokens = 128, 224
  c.reward.overlong_buffer = 0
  c.rl.steps = 30
  # All held-out prompts that there are.
  c.evaluate.update(prompts=16, interim_prompts=16, samples=16, mean_of=16)
  return c
