r"""Few prompts with many responses, or many prompts with few?

python -m rl_reason.ablate --out=studies/group_size_sweep \
  --config=configs/ablations/group_size_sweep.py
"""

from rl_reason.lab import ablate


def get_config():
  """GRPO with 256 responses per step, in groups of 2 to 32."""
  return ablate.ladder(
      title="The size of a group",
      question=(
          "At an equal number of responses, does a larger group help? It"
          " estimates its baseline better and is less often without signal, but"
          " there are fewer prompts. VAPO (512 prompts x 16 against 8192 x 1)"
          " goes from 55 to 60 on AIME 2024."
      ),
      seeds=ablate.fresh_seeds("rl_reason ladders", 5),
      reference="groups of 8",
      common={
          "sft.batch": 64,  # the default when these were measured
          "rl.steps": 25,
          **ablate.EVALUATED,
      },
      rows=[
          (f"groups of {n}", "configs/grpo.py", {"rollout.group_size": n})
          for n in (2, 4, 8, 16, 32)
      ],
      measures=("mixed groups", "entropy", "pass@4"),
  )
