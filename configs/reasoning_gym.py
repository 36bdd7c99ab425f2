"""DAPO on a data set of the package reasoning_gym: spelling words backward.

  pip install 'rl_reason[reasoning-gym]'
  python -m rl_reason.main --config=configs/reasoning_gym.py

SFT on answers teaches part of the skill, RL the rest. Another set or a mixture:
--config.task.name='reasoning_gym:gcd(max_value=100)*2,chain_sum'.
"""

from rl_reason.configs import base, dapo


def get_config():
  """Words of 3 to 6 letters; the prompt is the plain question."""
  c = dapo.techniques(base.get_config())
  c.task.name = "reasoning_gym:spell_backward(max_word_len=6)"
  c.task.difficulties = (0,)  # n > 0: the n-th level of the set's curriculum
  c.sft.update(steps=300, lr=4e-3, batch=96)
  c.rollout.max_prompt, c.rollout.max_tokens = 64, 12
  c.reward.overlong_buffer = 0
  c.evaluate.prompts = 400
  return c
