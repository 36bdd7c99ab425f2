r"""DAPO of Qwen2.5-7B on DAPO-Math-17K: eight GPUs of 80 GB.

  python -m rl_reason.main --config=configs/recipes/dapo_math_7b.py

Model and data come from the hub; `--config.model.path=DIR` and
`--config.data.train=dapo-math-17k.parquet` use local copies. The techniques,
groups of 16 and the learning rate are DAPO's (`configs/paper/dapo.py`); sizes,
lengths and steps are our choices: responses are shorter and batches smaller
than in the paper. Accuracy and time were not measured. Memory: docs/start.md.
"""

from rl_reason.configs import dapo_qwen


def get_config():
  """256 questions x 16 per step in four updates, evaluated on AIME."""
  c = dapo_qwen.get_config()
  # Ours.
  c.model.path = "Qwen/Qwen2.5-7B"
  c.rollout.batch, c.rollout.group_size, c.rollout.slots = 4096, 16, 512
  c.rollout.max_prompt, c.rollout.max_tokens = 1024, 8192
  c.reward.overlong_buffer = 2048
  c.reward.workers = 32
  c.updates.minibatches, c.updates.token_budget = 4, 18432  # 2 rows per device
  c.evaluate.batch = 32
  return c
