r"""Algorithms of recent papers against GRPO, at equal steps and equal tokens.

python -m rl_reason.ablate --out=studies/recent \
  --config=configs/ablations/recent.py

See studies/recent/plan.md.
"""

from rl_reason.lab import ablate

NAMES = (
    "grpo",
    "dapo",
    "sapo",
    "gmpo",
    "luspo",
    "dppo",
    "vespo",
    "opo",
    "w_reinforce",
    "pass_at_k",
    "gdpo",
)


def get_config():
  """The unchanged configs: 256 responses per step, the built-in task."""
  return ablate.ladder(
      title="Algorithms of recent papers",
      question=(
          "Which of these losses, masks and baselines changes what GRPO learns"
          " on the built-in task? Their papers report gains of a few points"
          " over GRPO, most of them from one run."
      ),
      seeds=ablate.fresh_seeds("rl_reason recent", 8),
      reference="grpo",
      common={
          "rl.steps": 30,
          **ablate.EVALUATED,
      },
      rows=[(name, f"configs/{name}.py", {}) for name in NAMES],
      measures=("entropy", "length", "clipped", "pass@4"),
  )
