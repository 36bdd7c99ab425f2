r"""Variants that no config uses, against the parts that they would replace.

python -m rl_reason.ablate --out=studies/variants \
  --config=configs/ablations/variants.py
python -m rl_reason.ablate --out=studies/variants \
  --config=configs/ablations/variants.py:critic
python -m rl_reason.ablate --out=studies/variants \
  --config=configs/ablations/variants.py:difficulties

All on parities. GRPO and its advantages and clip; PPO and its critic; and
what reads the difficulty of a prompt, on prompts of three difficulties. See
studies/variants/plan.md.
"""

from rl_reason.lab import ablate

GRPO = "configs/xor.py:grpo"
LOO = {"advantage.name": "leave_one_out"}
# Rewards of two values have no degrees of confidence.
BLOCKS = {"reward.functions": "rl_reason.tasks.xor:blocks*1"}
ROWS = (
    ("GRPO", {}),
    ("clip from below at .05", {"surrogate.args.clip_low": 0.05}),
    ("clip from below at .1", {"surrogate.args.clip_low": 0.1}),
    ("clip from below at .4", {"surrogate.args.clip_low": 0.4}),
    ("rank", {"advantage.name": "rank"}),
    ("explore", {"advantage.name": "explore"}),
    ("leave-one-out", LOO),
    ("+ weighted by length", {"advantage.name": "length_weighted"}),
    ("+ weighted by quality", {"advantage.name": "quality_weighted"}),
    ("+ earlier steps (temporal)", {"advantage.name": "temporal"}),
    ("leave-one-out, blocks rewarded", LOO | BLOCKS),
    (
        "+ weighted by confidence",
        {"advantage.name": "confidence_weighted"} | BLOCKS,
    ),
)
# One response is compared with the seven others by the critic, too: the rows
# differ from GRPO in the baseline and not in the prompts.
PPO = {
    "advantage.name": "gae",
    "advantage.whiten": True,
    "critic.pretrain_steps": 10,
    "critic.lam": 1.0,
}
CRITIC = (
    ("PPO", {}),
    (
        "lambda by offset and complexity",
        {"advantage.name": "gae_exp_complexity", "advantage.args.hardest": 3.0},
    ),
    (
        "hybrid with GRPO",
        {"advantage.name": "hybrid", "advantage.args.alpha": 1.0},
    ),
    ("gated critic", {"critic.head.name": "gated"}),
    ("categorical critic", {"critic.head.name": "categorical"}),
    ("value mixture", {"critic.value_mixture.name": "mixture"}),
)
# After SFT 100%, 30% and 15% of the responses are correct.
THREE = {"task.difficulties": (1, 2, 3)}
DIFFICULTIES = (
    ("GRPO", {}),
    ("hierarchical", {"advantage.name": "hierarchical"}),
    ("group sizes by length", {"rollout.group_sizes.name": "by_length"}),
    ("group sizes by variance", {"rollout.group_sizes.name": "by_variance"}),
)
LADDERS = {  # with RL steps at which the reference is below its limit
    "": ("Variants of the advantage and the clip", ROWS, {}, 12),
    "critic": ("Variants of the critic", CRITIC, PPO, 12),
    "difficulties": (
        "Variants that read the difficulty",
        DIFFICULTIES,
        THREE,
        15,
    ),
}


def get_config(variant=""):
  """GRPO and its variants; or those of PPO, or of prompts by difficulty."""
  if variant not in LADDERS:
    raise ValueError("the variants are critic and difficulties")
  title, rows, shared, steps = LADDERS[variant]
  return ablate.ladder(
      title=title,
      question=(
          "Which variants that no config uses change what is learned on"
          " parities, at equal steps and at equal generated tokens? None of"
          " them has a published result that says so."
      ),
      # Those of credit.py, so that both ablations share their SFT models.
      seeds=ablate.fresh_seeds("rl_reason credit", 8),
      reference=rows[0][0],
      common={
          "rl.steps": steps,
          **ablate.EVALUATED,
          "evaluate.every": 3,
      },
      rows=[(name, GRPO, shared | fields) for name, fields in rows],
      measures=("entropy", "length", "clipped", "training accuracy"),
  )
