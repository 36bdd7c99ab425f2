r"""From PPO to VAPO where the first of many tokens decides (arXiv:2504.05118).

  python -m rl_reason.ablate --out=studies/chain \
    --config=configs/ablations/chain.py     # 64 tokens
  python -m rl_reason.ablate --out=studies/chain \
    --config=configs/ablations/chain.py:128
  python -m rl_reason.ablate --out=studies/chain \
    --config=configs/ablations/chain.py:256

A chain of 64, 128 or 256 tokens is right, a guess of one token is not; the
first token decides. See rl_reason/tasks/chain.py and studies/chain/plan.md.
"""

from rl_reason.lab import ablate

VARIANTS = ("", "128", "256")
# One technique at a time, each on top of the row before.
TECHNIQUES = (
    ("PPO", {}),
    ("+ value pretraining", {"critic.pretrain_steps": 20}),
    ("+ decoupled GAE", {"critic.lam": 1.0}),
    (
        "+ length-adaptive GAE",
        {"advantage.name": "gae_length_adaptive", "advantage.args.alpha": 1.0},
    ),
    ("+ positive-example loss", {"loss.positive_nll": 0.1}),
    ("+ clip-higher", {"surrogate.args.clip_high": 0.28}),
    ("+ token-level loss", {"reduction.name": "token_mean"}),
    ("+ group sampling (VAPO)", {"rollout.group_size": 8}),
)


def get_config(variant=""):
  """PPO, and the seven techniques of VAPO, one after the other."""
  if variant not in VARIANTS:
    raise ValueError("the variants are 128 and 256")
  file, rows, fields = f"configs/chain.py:ppo{variant}", [], {}
  for name, more in TECHNIQUES:
    fields = fields | more
    rows.append((name, file, fields))
  # Controls: is PPO only slower, and how much is the weight of the first token?
  rows += [
      ("PPO, twice the learning rate", file, {"optimizer.lr": 2e-4}),
      ("PPO + token-level loss", file, {"reduction.name": "token_mean"}),
  ]
  return ablate.ladder(
      title=f"From PPO to VAPO, chains of {variant or 64} tokens",
      question=(
          "What does each technique give, when the first token of a response"
          " decides? The paper, on AIME 2024: PPO 5, VAPO 60; without value"
          " pretraining 11, decoupled GAE 33, length-adaptive GAE 45,"
          " clip-higher 46, token-level loss 53, positive-example loss 54,"
          " group sampling 55: each technique has a positive sign."
      ),
      seeds=ablate.fresh_seeds("rl_reason chain", 8),
      reference="PPO",
      common={
          "evaluate.samples": 4,
          "evaluate.prompts": 250,
          "evaluate.interim_prompts": 125,
          "evaluate.batch": 250,
      },
      rows=rows,
      measures=("explained variance", "value loss", "entropy", "length"),
  )
