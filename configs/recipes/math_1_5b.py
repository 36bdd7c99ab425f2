r"""DAPO of Qwen2.5-1.5B on MATH: one GPU of 80 GB, or several smaller devices.

  python -m rl_reason.main --config=configs/recipes/math_1_5b.py

Model and data come from the hub; `--config.model.path=DIR` and
`--config.data.train=math@DIR` use local copies. Training questions that share
13 words with MATH-500 are dropped. No paper has this recipe: DAPO's techniques,
groups of 16 and the learning rate are those of `configs/paper/dapo.py`, and
sizes, lengths, steps and prompts are our choices. Accuracy and time were not
measured. Memory: docs/start.md.
"""

from rl_reason.configs import dapo_qwen


def get_config():
  """128 questions x 16 per step, 300 steps: five epochs."""
  c = dapo_qwen.get_config()
  # Ours.
  c.model.path = "Qwen/Qwen2.5-1.5B"
  c.data.train, c.data.evaluate = "math", "math500,amc23"
  # A base model continues text: no chat template, and EOS ends a response.
  c.data.template, c.data.chat = "qwen_boxed", False
  c.rollout.stop_tokens = ()
  c.rollout.batch, c.rollout.group_size, c.rollout.slots = 2048, 16, 256
  c.rollout.max_prompt, c.rollout.max_tokens = 1024, 3072
  c.reward.overlong_buffer = 512
  c.updates.minibatches, c.updates.token_budget = 8, 16384  # 4 rows
  c.rl.steps = 300
  c.evaluate.prompts, c.evaluate.interim_prompts = 500, 128
  c.evaluate.samples = c.evaluate.mean_of = 4
  c.evaluate.top_p = 1.0
  c.evaluate.batch = 64
  return c
