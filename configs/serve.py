r"""A server of a model that was not trained here, of a directory or the hub.

  python -m rl_reason.main --stage=serve --config=configs/serve.py \
      --config.model.path=DIR

The policy of a run needs no config: --stage=serve --workdir=runs/dapo.
"""

from rl_reason.configs import base


def get_config():
  """Prompts and responses of up to 2,048 tokens each, nothing is trained."""
  c = base.get_config()
  c.task.name, c.task.difficulties = "files", ()  # and no file
  c.model.path = "Qwen/Qwen2.5-0.5B-Instruct"
  c.sft.skill.steps = c.sft.habits.steps = c.rl.steps = 0
  c.mesh.data = 1
  c.rollout.max_prompt = c.rollout.max_tokens = 2048
  return c
