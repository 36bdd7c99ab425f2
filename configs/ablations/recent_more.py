r"""More algorithms of recent papers against GRPO, and old data.

python -m rl_reason.ablate --out=studies/recent \
  --config=configs/ablations/recent_more.py

See studies/recent/plan.md.
"""

from rl_reason.lab import ablate

GRPO = "configs/grpo.py"
KL = {"kl.kind": "k3", "kl.coef": 0.04}  # as in DeepSeekMath
ROWS = (
    ("grpo", GRPO, {}),
    ("scale_rl", "configs/scale_rl.py", {}),
    ("scale_rl, interruptions", "configs/scale_rl.py:interrupt", {}),
    ("deepseek_v3_2", "configs/deepseek_v3_2.py", {}),
    ("otb", "configs/otb.py", {}),
    ("opo", "configs/opo.py", {}),
    ("token_sum", GRPO, {"reduction.name": "token_sum"}),
    ("k3", GRPO, KL),
    ("k3_unbiased", GRPO, KL | {"kl.kind": "k3_unbiased"}),
    ("abs", GRPO, KL | {"kl.kind": "abs"}),
    ("grpo, 8 steps old", GRPO, {"rl.staleness": 8}),
    ("m2po, 8 steps old", "configs/m2po.py", {}),
)


def get_config():
  """The sizes of configs/ablations/recent.py."""
  return ablate.ladder(
      title="More algorithms of recent papers",
      question=(
          "Which of these recipes, aggregations and penalties changes what GRPO"
          " learns on the built-in task, and does the mask of M2PO help with"
          " old data? The papers report a higher asymptote (ScaleRL), stable"
          " training (DeepSeek-V3.2), and old data that train as well as new"
          " ones (M2PO)."
      ),
      seeds=ablate.fresh_seeds("rl_reason recent more", 8),
      reference="grpo",
      common={
          "rl.steps": 30,
          **ablate.EVALUATED,
      },
      rows=ROWS,
      measures=("entropy", "length", "clipped", "pass@4"),
  )
