"""GDPO (arXiv:2601.05242): several rewards, each normalised in its group.

  python -m rl_reason.main --config=configs/gdpo.py

Held-out accuracy: 22% to 92% after 30 of its 40 steps (eight seeds,
studies/recent/recent.md).
"""

from rl_reason.configs import base


def get_config():
  """The verdict, the share of correct steps, and a punishment of length."""
  c = base.arithmetic()
  c.reward.functions = "steps*0.5,length*-0.1"
  c.advantage.name = "gdpo"
  c.advantage.whiten = True  # over the batch
  return c
