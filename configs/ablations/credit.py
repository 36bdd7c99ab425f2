r"""Credit below the response: blocks of a parity, judged one by one.

python -m rl_reason.ablate --out=studies/credit \
  --config=configs/ablations/credit.py

DAPO on parities, with rewards of blocks at the end of the response and of each
block, with potentials, and with values of prefixes by rollouts. The axis of
generated tokens counts continuations. See studies/credit/plan.md.
"""

from rl_reason.lab import ablate

BLOCKS = "rl_reason.tasks.xor:blocks"
BY_STEP = {"reward.process": "rewards", "reward.functions": f"{BLOCKS}*1"}
ROWS = (
    ("DAPO", {}),
    ("DAPO, no standard deviation", {"advantage.name": "group_mean"}),
    ("+ blocks, at the end", {"reward.functions": f"{BLOCKS}*1"}),
    (
        "+ blocks, process supervision",
        BY_STEP | {"advantage.name": "process_norm"},
    ),
    (
        "+ blocks, baseline by step",
        BY_STEP | {"advantage.name": "returns_by_turn"},
    ),
    (
        "+ potentials",
        {
            "reward.process": "potentials",
            "reward.functions": f"{BLOCKS}(so_far=True)*3",
            "advantage.name": "returns_by_turn",
        },
    ),
    (
        "VinePPO",
        {
            "reward.process": "rewards",
            "reward.functions": f"{BLOCKS}*0",  # steps without rewards
            "advantage.name": "vine",
        },
    ),
)


def get_config():
  """DAPO on parities, and credit of blocks in six ways."""
  return ablate.ladder(
      title="Credit below the response",
      question=(
          "What does credit of steps give at equal generated tokens, where a"
          " response has three blocks? DeepSeekMath (arXiv:2402.03300, section"
          " 5.2.1) finds process supervision ahead of outcome supervision;"
          " VinePPO (arXiv:2410.01679) finds values by rollouts ahead of PPO."
      ),
      seeds=ablate.fresh_seeds("rl_reason credit", 8),
      reference="DAPO",
      common={
          **ablate.EVALUATED,
          "evaluate.every": 1,  # to compare at equal tokens between steps
      },
      rows=[(name, "configs/xor.py", fields) for name, fields in ROWS],
      measures=("entropy", "length", "rounds", "training accuracy"),
  )
