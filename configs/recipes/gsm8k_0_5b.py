r"""DAPO of Qwen2.5-0.5B on GSM8K: one GPU of 24 GB, or TPU v5e-8.

  python -m rl_reason.main --config=configs/recipes/gsm8k_0_5b.py
  python -m rl_reason.main --config=configs/recipes/gsm8k_0_5b.py:v5e_8

Model and data come from the hub; `--config.model.path=DIR` and
`--config.data.train=gsm8k@DIR --config.data.evaluate=gsm8k@DIR` use local
copies. There are 7,473 training questions, one in twenty of which is a
validation prompt that selects the best checkpoint; the 1,319 questions of the
test split are evaluated before and after RL. No paper has this recipe: DAPO's
techniques and learning rate are those of `configs/paper/dapo.py`, and sizes,
lengths, steps and prompts are our choices. Accuracy and time were not measured.
Memory: docs/start.md.
"""

from rl_reason.configs import dapo_qwen

VARIANTS = ("", "v5e_8")


def get_config(variant=""):
  """128 questions x 8 per step, 200 steps: three and a half epochs."""
  if variant not in VARIANTS:
    raise ValueError("the variants are v5e_8 and smoke")
  c = dapo_qwen.get_config()
  # Ours.
  c.model.path = "Qwen/Qwen2.5-0.5B"
  c.data.train = c.data.evaluate = "gsm8k"
  # A base model continues text: no chat template, and EOS ends a response.
  c.data.template, c.data.chat = "qwen_boxed", False
  c.rollout.stop_tokens = ()
  c.rollout.batch, c.rollout.group_size, c.rollout.slots = 1024, 8, 256
  c.rollout.max_prompt, c.rollout.max_tokens = 384, 1024
  c.reward.overlong_buffer = 256
  c.reward.workers = 8
  c.updates.minibatches, c.updates.token_budget = 4, 16896  # 12 rows
  c.rl.steps = 200
  c.evaluate.prompts, c.evaluate.interim_prompts = 1319, 256
  c.evaluate.samples = c.evaluate.mean_of = 4
  c.evaluate.top_p = 1.0
  c.evaluate.batch = 64
  if variant == "v5e_8":
    c.rollout.slots = 1024  # 128 per chip
    c.updates.token_budget = 8448  # per chip
  return c
