r"""VAPO without one technique at a time (arXiv:2504.05118, table 1).

python -m rl_reason.ablate --out=studies/vapo_leave_one_out \
  --config=configs/ablations/vapo_leave_one_out.py
"""

from rl_reason.lab import ablate


def get_config():
  """PPO, VAPO, VAPO without each of its seven techniques, PPO with two.

  A fixed lambda is .5, not .95: long responses are hard because they span many
  horizons, l (1 - lambda). The paper's responses span about 500; with .95 ours
  would span one, and no technique could help.
  """
  vapo, ppo = "configs/vapo.py", "configs/ppo.py"
  return ablate.ladder(
      title="VAPO, leave one out",
      question=(
          "What does each technique give, when responses are many horizons of"
          " GAE long? The paper, on AIME 2024: PPO 5; without value pretraining"
          " 11, decoupled GAE 33, length-adaptive GAE 45, clip-higher 46,"
          " token-level loss 53, positive-example loss 54, group sampling 55;"
          " VAPO 60."
      ),
      seeds=ablate.fresh_seeds("rl_reason ladders", 5),
      reference="VAPO",
      common={
          "sft.batch": 64,  # the default when these were measured
          "rl.steps": 25,
          "advantage.args.lam": 0.5,
          **ablate.EVALUATED,
      },
      rows=[
          ("PPO", ppo, {"critic.lam": 0.5}),
          (
              "PPO + value pretraining",
              ppo,
              {"critic.lam": 0.5, "critic.pretrain_steps": 30},
          ),
          ("PPO + decoupled GAE", ppo, {"critic.lam": 1.0}),
          (
              "PPO + both",
              ppo,
              {"critic.lam": 1.0, "critic.pretrain_steps": 30},
          ),
          ("without value pretraining", vapo, {"critic.pretrain_steps": 0}),
          ("without decoupled GAE", vapo, {"critic.lam": 0.5}),
          ("without length-adaptive GAE", vapo, {"advantage.name": "gae"}),
          ("without clip-higher", vapo, {"surrogate.args.clip_high": 0.2}),
          (
              "without token-level loss",
              vapo,
              {"reduction.name": "seq_mean_token_mean"},
          ),
          ("without positive-example loss", vapo, {"loss.positive_nll": 0.0}),
          ("without group sampling", vapo, {"rollout.group_size": 1}),
          ("VAPO", vapo, {}),
          (
              "VAPO + dynamic sampling",
              vapo,
              {"dynamic_sampling.enabled": True},
          ),
          ("DAPO", "configs/dapo.py", {}),
      ],
      measures=("explained variance", "value loss", "entropy", "length"),
  )
