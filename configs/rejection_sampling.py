"""Rejection-sampled SFT in rounds: STaR, RAFT, expert iteration.

  python -m rl_reason.main --config=configs/rejection_sampling.py

A round samples 8 responses to each of 1,024 prompts, keeps the correct ones
without duplicates, and trains the policy of the round before on them by SFT.
Held-out accuracy: 23% to 58% and 79% in two rounds (5 seeds,
studies/rounds/rounds.md), 91% in four rounds (seed 0), 3 minutes of CPU time.
"""

from rl_reason.configs import base


def get_config():
  """The task and SFT of the base config; four rounds, no RL."""
  c = base.arithmetic()
  c.rounds.count = 4
  c.generate.keep = "correct"  # best: one per prompt; majority: no verifier
  c.rounds.lr = 1e-3
  c.rl.steps = 0
  return c
