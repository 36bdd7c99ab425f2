r"""What SFT, DPO and RL add, one after the other.

python -m rl_reason.ablate --out=studies/preferences \
  --config=configs/ablations/preferences.py

See studies/preferences/plan.md.
"""

from rl_reason.lab import ablate


def get_config():
  """RL after SFT, and RL after SFT and DPO; step 0 is without RL."""
  return ablate.ladder(
      title="SFT, DPO and RL",
      question=(
          "What does preference optimization between SFT and RL add? Step 0 of"
          " a row is the policy before RL."
      ),
      seeds=ablate.fresh_seeds("rl_reason noisy verdicts", 8),
      reference="SFT, RL",
      common={
          "rl.steps": 20,
          **ablate.EVALUATED,
      },
      rows=[
          ("SFT, RL", "configs/dapo.py", {}),
          ("SFT, DPO, RL", "configs/preferences.py", {}),
      ],
      measures=("pass@4", "entropy", "length", "mixed groups"),
  )
