r"""GRPO with the defaults of TRL 1.16.0 (`GRPOConfig`, `GRPOTrainer`).

  python -m rl_reason.main --config=configs/trl_grpo.py \
      --config.model.path=DIR --config.data.train=rows.jsonl

The model and the data are the ones of TRL's quickstart, and come from the hub
without the overrides. `rollout.batch` is the generation batch of one process:
8 completions are one prompt. TRL sets a number of epochs, this config the steps
of 3 epochs over GSM8K's 7,473 rows. tests/test_trl_defaults.py compares each
field of `GRPOConfig` with this file; docs/coming_from.md lists what is counted
differently. We never ran it at this size.
"""

from rl_reason.configs import base


def get_config():
  """One update per rollout of 8 responses to a prompt, no KL, linear decay."""
  c = base.get_config()
  c.seed = 42
  c.task.name, c.task.difficulties = "files", ()
  c.model.path = "Qwen/Qwen2.5-0.5B-Instruct"
  c.model.dtype, c.model.remat = "bfloat16", "full"  # fp32 parameters, as TRL
  c.data.train = c.data.evaluate = "gsm8k"
  c.data.chat = True  # the question is the user's turn, without instructions
  c.rollout.batch = c.rollout.group_size = 8
  c.rollout.max_prompt, c.rollout.max_tokens = 512, 512
  c.reward.incorrect = 0.0  # accuracy_reward is 1 or 0
  c.advantage.args = dict(eps=1e-4)
  c.reduction.name = "token_mean"  # loss_type "dapo"
  c.updates.minibatches, c.updates.token_budget = 1, 8192
  c.optimizer.lr, c.optimizer.schedule = 1e-6, "linear"
  c.optimizer.b2 = 0.999
  c.rl.steps = 3 * 7473
  c.evaluate.every = 0  # eval_strategy "no"; nothing chooses a checkpoint
  c.evaluate.validation = False
  c.evaluate.prompts, c.evaluate.samples = 1319, 4
  c.evaluate.batch = 64
  c.checkpoint.every = 500
  c.log.loggers = ""  # report_to "none"
  return c
