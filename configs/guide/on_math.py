"""Model and data of the guide's presets: ours, since it names none."""

from rl_reason.configs.paper import size


def qwen_7b():
  """Qwen2.5-7B on MATH, whose rows have a level from 1 to 5 and a subject."""
  c = size.qwen_32b()
  c.model.path = "Qwen/Qwen2.5-7B"
  c.data.train, c.data.evaluate = "math", "math500"
  # A base model continues text: no chat template, and EOS ends a response.
  c.data.template, c.data.chat = "qwen_boxed", False
  c.rollout.stop_tokens = ()
  c.rollout.max_prompt, c.rollout.max_tokens = 1024, 3072
  c.evaluate.prompts, c.evaluate.interim_prompts = 500, 128
  c.evaluate.samples = c.evaluate.mean_of = 4
  c.evaluate.top_p = 1.0
  c.mesh.tensor = 1
  c.rollout.slots = 256
  c.updates.token_budget = 16384  # 4 rows
  return c
