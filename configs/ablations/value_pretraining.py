r"""Does value pretraining alone rescue PPO (arXiv:2504.05118, table 1)?

  python -m rl_reason.ablate --out=studies/value_pretraining \
    --config=configs/ablations/value_pretraining.py

Two rows of `vapo_leave_one_out.py` on eight other seeds: five left it open.
"""

from rl_reason.configs.ablations import vapo_leave_one_out
from rl_reason.lab import ablate


def get_config():
  """PPO with and without value pretraining; responses span many horizons."""
  c = vapo_leave_one_out.get_config()
  c.title = "PPO and value pretraining"
  c.question = (
      "Does a critic that was trained before RL rescue PPO, when responses are"
      " many horizons of GAE long? The paper, on AIME 2024: VAPO loses 49 of 60"
      " points without it."
  )
  c.seeds = ablate.fresh_seeds("rl_reason value pretraining", 8)
  c.reference = "PPO"
  c.rows = tuple(
      row for row in c.rows if row[0] in ("PPO", "PPO + value pretraining")
  )
  return c
