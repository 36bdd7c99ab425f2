"""SFT, DPO on pairs of responses, and RL in one command.

python -m rl_reason.main --config=configs/preferences.py
"""

from rl_reason.configs import dapo


def get_config():
  """DAPO on the built-in task, whose policy first learns from pairs."""
  c = dapo.get_config()
  c.dpo.update(steps=100, batch=32, lr=1e-4)
  c.dpo.chosen, c.dpo.rejected = "careful:1", "sloppy:1,direct:1"
  return c
