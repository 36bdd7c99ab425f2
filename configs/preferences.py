"""SFT, DPO on pairs of responses, and RL in one command.

python -m rl_reason.main --config=configs/preferences.py

Held-out accuracy of seed 0 before RL: 19.7% after SFT, 25.4% after DPO. At
three times the learning rate DPO ranks more pairs correctly, and ends at 12.8%.
"""

from rl_reason.configs import dapo


def get_config():
  """DAPO on the built-in task, whose policy first learns from pairs."""
  c = dapo.get_config()
  c.dpo.update(steps=100, batch=32, lr=1e-4)
  c.dpo.chosen, c.dpo.rejected = "careful:1", "sloppy:1,direct:1"
  return c
