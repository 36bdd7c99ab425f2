"""Clip-higher (DAPO, arXiv:2503.14476, sec 3.1): how high?

  python -m rl_reason.ablate --config=configs/ablations/clip_sweep.py
"""

from rl_reason import ablate

SEEDS = ablate.fresh_seeds("clip_sweep", 5)


def get_config():
  """DAPO without dynamic sampling, at five upper bounds of the ratio."""
  return ablate.ladder(
      title="The upper clip bound",
      question=(
          "Does a higher upper bound of the ratio keep entropy up, and does"
          " that help? DAPO raises it from 0.2 to 0.28 and sees entropy stay,"
          " and accuracy on AIME 2024 go from 36 to 38."
      ),
      seeds=SEEDS,
      reference="high 0.2",
      common={"dynamic_sampling.enabled": False, "loss.clip_low": 0.2},
      rows=[
          (f"high {high}", "configs/dapo.py", {"loss.clip_high": high})
          for high in (0.1, 0.2, 0.28, 0.4, 0.8)
      ],
      measures=("entropy", "truncation", "pass@8"),
  )
