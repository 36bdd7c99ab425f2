r"""The baselines in one table: SFT, PPO, a reward model, GRPO, DAPO, VAPO.

python -m rl_reason.ablate --out=studies/baselines \
  --config=configs/ablations/baselines.py

See studies/baselines/plan.md. The row of PPO with a reward model, which is
examples/iterative_grpo.py --ppo, was made by a config of its own.
"""

from rl_reason.lab import ablate

STEPS = 30
# Forward passes of RL as steps of SFT, as in configs/sft_control.py.
SFT = 80 + STEPS * 256 * (7 + 1 + 3) // (96 * 3)
ROWS = (
    ("SFT", "sft_control", {"rl.steps": 0, "sft.habits.steps": SFT}),
    ("PPO", "ppo", {}),
    ("GRPO", "grpo", {}),
    ("DAPO", "dapo", {}),
    ("VAPO", "vapo", {}),
)


def get_config():
  """The unchanged configs, 256 responses per step, on the built-in task."""
  return ablate.ladder(
      title="Baselines",
      question=(
          "What do the baselines of the literature give on one task, from one"
          " SFT model per seed, at equal steps and at equal tokens?"
      ),
      seeds=ablate.fresh_seeds("rl_reason baselines", 8),
      reference="GRPO",
      common={
          "rl.steps": STEPS,
          **ablate.EVALUATED,
      },
      rows=[(row, f"configs/{file}.py", own) for row, file, own in ROWS],
      measures=("entropy", "length", "rounds", "pass@4"),
  )
