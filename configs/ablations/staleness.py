r"""How old may the policy be that sampled a batch, and which correction helps?

python -m rl_reason.ablate --out=studies/staleness \
  --config=configs/ablations/staleness.py
"""

from rl_reason.lab import ablate

# Corrections for the age of the policy that sampled.
CORRECTIONS = {
    "none": {"rl.old_logps": "trainer"},
    "ratio": {"rl.old_logps": "sampler"},
    "truncate": {"rl.old_logps": "trainer", "correction.name": "truncate"},
}


def get_config():
  """GRPO on the built-in task, sampled 0 to 8 steps ahead."""
  ahead = [
      (
          f"S = {staleness}, {name}",
          "configs/grpo.py",
          {"rl.staleness": staleness} | fields,
      )
      for staleness in (1, 2, 4, 8)
      for name, fields in CORRECTIONS.items()
  ]
  return ablate.ladder(
      title="Batches of an older policy",
      question=(
          "Sampling while learning makes every batch S steps old. How much"
          " accuracy does that cost, and does a correction give it back: the"
          " ratio of PPO to the policy that sampled, or a truncated importance"
          " weight beside a ratio to the policy before the update?"
      ),
      seeds=ablate.fresh_seeds("rl_reason staleness", 5),
      reference="S = 0",
      common={
          "rl.steps": 30,
          **ablate.EVALUATED,
          "evaluate.every": 6,
      },
      rows=[("S = 0", "configs/grpo.py", {}), *ahead],
      measures=("entropy", "clipped", "update KL", "length"),
  )
