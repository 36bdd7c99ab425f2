"""PPO with a reward model in one command, as in InstructGPT (arXiv:2203.02155).

  python -m rl_reason.main --config=configs/ppo_reward_model.py

SFT; pairs of its responses, which the verifier judges in place of people; a
reward model of these pairs; then PPO, whose reward is the score of the reward
model minus a KL to the SFT model, with a critic that starts from the reward
model. No verdict enters the reward.

Held-out accuracy: 24% to 55% after 30 of its 40 steps (eight seeds,
studies/baselines/baselines.md). At a KL coefficient of .2 the policy exploits
the reward
model: accuracy rises to 55% at step 5 and ends at 22%, while the score goes on
rising (seed 1, studies/baselines/plan.md).
"""

from rl_reason.configs import ppo


def get_config():
  """One round: pairs of the SFT policy, a reward model, then PPO."""
  c = ppo.get_config()
  c.rounds.count = 1
  # About half of the prompts get correct and incorrect responses: a pair.
  c.generate.keep = "pairs"
  c.generate.prompts, c.generate.samples = 2048, 4
  c.reward_model.steps = 150
  c.kl.kind, c.kl.place, c.kl.coef = "k1", "reward", 0.8
  c.critic.init = "exported"  # from the reward model of the round
  return c
