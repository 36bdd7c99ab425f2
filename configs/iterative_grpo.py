"""Iterative GRPO with a reward model (arXiv:2402.03300, algorithm 1).

  python -m rl_reason.main --config=configs/iterative_grpo.py

A round writes samples of the policy, of which the verifier makes pairs, lets
the reward model go on learning from them and from 10% of earlier pairs, and
takes 10 steps of GRPO with its scores alone as the reward and the policy of the
round before as the reference of the KL.
"""

from rl_reason.configs import base


def get_config():
  """GRPO's section 4.2 has a KL coefficient of .04 and a replay of 10%."""
  c = base.get_config()
  c.rounds.count = 4
  c.rounds.replay = 0.1
  c.generate.keep = "pairs"
  c.rl.steps = 10  # of a round
  c.kl.kind, c.kl.coef = "k3", 0.04
  return c
