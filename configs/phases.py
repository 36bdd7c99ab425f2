"""A curriculum in three phases, whose forgetting is measured.

  python -m rl_reason.main --config=configs/phases.py

Sums of 2 or 3 operands come first, then of 4 to 6 with the policy so far as the
reference of the KL, then all lengths after a hard reset of reference and
optimizer, as in ProRL (arXiv:2505.24864, section 3.2). Every phase evaluates
the sums of the phases before, too: docs/phases.md.
"""

from rl_reason.configs import base


def get_config():
  """GRPO with a small KL; each phase takes 15 steps."""
  c = base.arithmetic()
  c.kl.kind, c.kl.coef = "k3", 0.01
  c.rl.steps = 45
  c.phases = (
      "until=15; task.difficulties=(2, 3)",
      "until=30; task.difficulties=(4, 5, 6); refresh=reference",
      "until=45; refresh=reference,optimizer",
  )
  return c
