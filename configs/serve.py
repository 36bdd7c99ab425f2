r"""Serves an existing checkpoint, from a directory or the hub.

  python -m rl_reason.main --stage=serve --config=configs/serve.py \
      --config.model.path=DIR

To serve the policy of a run, no config is needed: --stage=serve
--workdir=runs/dapo.
"""

from rl_reason.configs import base


def get_config():
  """Prompts and responses of up to 2,048 tokens each; nothing is trained."""
  c = base.get_config()
  c.task.name, c.task.difficulties = "files", ()  # without a file
  c.model.path = "Qwen/Qwen2.5-0.5B-Instruct"
  c.rl.steps = 0
  c.mesh.data = 1
  c.rollout.max_prompt = c.rollout.max_tokens = 2048
  return c
