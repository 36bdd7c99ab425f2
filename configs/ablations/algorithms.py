"""Every algorithm on the same seeds, at equal steps and equal tokens.

python -m rl_reason.ablate --config=configs/ablations/algorithms.py
"""

from rl_reason.lab import ablate

NAMES = (
    "reinforce",
    "rloo",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "ppo",
    "grpo",
    "dr_grpo",
    "gspo",
    "cispo",
    "max_rl",
    "lite_ppo",
    "dapo",
    "vapo",
)


def get_config():
  """The unchanged configs: 256 responses per step, the built-in task."""
  return ablate.ladder(
      title="All algorithms",
      question=(
          "Which algorithm learns most per RL step, and which per generated"
          " token? Papers compare theirs with GRPO or PPO at equal steps; the"
          " tokens that dynamic sampling throws away are rarely counted."
      ),
      seeds=ablate.fresh_seeds("rl_reason ladders", 5),
      reference="dapo",
      common={
          "sft.batch": 64,  # the default when these were measured
          "rl.steps": 30,
          "evaluate.samples": 4,
          "evaluate.prompts": 500,
          "evaluate.interim_prompts": 250,
          "evaluate.batch": 250,
          "evaluate.every": 5,
      },
      rows=[(name, f"configs/{name}.py", {}) for name in NAMES],
      measures=("entropy", "length", "rounds", "pass@4"),
  )
