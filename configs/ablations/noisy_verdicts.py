r"""GRPO, DAPO and MaxRL with a share of the verdicts flipped in training.

python -m rl_reason.ablate --out=studies/noisy_verdicts \
  --config=configs/ablations/noisy_verdicts.py

See studies/noisy_verdicts/plan.md.
"""

from rl_reason.lab import ablate

ALGORITHMS = ("grpo", "dapo", "max_rl")
SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.45)


def get_config():
  """21 rows: 256 responses per step, the built-in task."""
  return ablate.ladder(
      title="Noisy verdicts",
      question=(
          "How much of what GRPO, DAPO and MaxRL learn remains where a share of"
          " the verdicts is wrong?"
      ),
      seeds=ablate.fresh_seeds("rl_reason noisy verdicts", 8),
      reference="grpo, p = 0",
      common={
          "rl.steps": 30,
          **ablate.EVALUATED,
      },
      rows=[
          (
              f"{name}, p = {share:g}",
              f"configs/{name}.py",
              {"reward.flip": share},
          )
          for name in ALGORITHMS
          for share in SHARES
      ],
      measures=("entropy", "length", "mixed groups"),
  )
