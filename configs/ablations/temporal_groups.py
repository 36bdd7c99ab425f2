r"""Temporal groups per prompt, where prompts come again.

python -m rl_reason.ablate --out=studies/temporal_groups \
  --config=configs/ablations/temporal_groups.py

See studies/temporal_groups/plan.md.
"""

from rl_reason.lab import ablate

LOO = {"advantage.name": "leave_one_out"}
TEMPORAL = {"advantage.name": "temporal", "advantage.history_responses": 8}


def get_config():
  """Leave-one-out and temporal groups, in groups of 2 and of 8."""
  return ablate.ladder(
      title="Temporal groups per prompt",
      question=(
          "Does a baseline of the prompt's last 8 responses, of whatever step,"
          " help where prompts come again?"
      ),
      seeds=ablate.fresh_seeds("rl_reason temporal groups", 8),
      reference="groups of 2",
      common={
          "task.difficulties": (2,),
          "sft.difficulties": (2, 3, 4, 5, 6),
          "rollout.batch": 64,
          "updates.minibatches": 2,
          "optimizer.lr": 2e-5,
          "rl.steps": 20,
          "evaluate.samples": 16,
          "evaluate.mean_of": 16,
          "evaluate.every": 10,
      },
      rows=[
          (
              f"groups of {size}{more}",
              "configs/grpo.py",
              fields | {"rollout.group_size": size},
          )
          for size in (2, 8)
          for more, fields in (("", LOO), (", and earlier ones", TEMPORAL))
      ],
      measures=("entropy", "length", "gradient norm", "training accuracy"),
  )
