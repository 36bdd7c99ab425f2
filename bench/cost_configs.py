"""The runs of `bench.costs`: an algorithm and a model, ALGORITHM-MODEL.

  python -m rl_reason.main --config=bench/cost_configs.py:vapo-default

The algorithm is its config in configs/, with all of its techniques. What makes
the size of a step is equal in all: rows, minibatches, lengths, token budget.
"""

import importlib
from typing import NamedTuple

from configs import smollm2

ALGORITHMS = ("ppo", "grpo", "dapo", "vapo")
# Sections that are the algorithm; all others are of the model and its task.
SECTIONS = (
    "advantage surrogate reduction kl loss critic dynamic_sampling".split()
)


class Size(NamedTuple):
  """What is equal for all algorithms.

  Attributes:
    batch: responses that a step learns from.
    minibatches: of a step.
    pretrain: steps of value pretraining, where there are some.
    steps: of RL.
  """

  batch: int
  minibatches: int
  pretrain: int
  steps: int


MODELS = {
    "default": Size(256, 4, 4, 12),  # 100k parameters, the built-in task
    "135M": Size(32, 2, 2, 6),  # SmolLM2, word problems
    "tiny": Size(32, 2, 1, 3),  # to try the command
}
VARIANTS = tuple(f"{x}-{y}" for x in ALGORITHMS for y in MODELS)


def get_config(variant="grpo-default"):
  """The config of an algorithm, on a model."""
  if variant not in VARIANTS:
    raise ValueError(f"the variants are {', '.join(VARIANTS)} and smoke")
  algorithm, model = variant.split("-")
  c = importlib.import_module(f"configs.{algorithm}").get_config()
  size = MODELS[model]
  if model == "135M":
    of_algorithm, c = c, smollm2.get_config()
    for name in SECTIONS:
      c[name] = of_algorithm[name]
    c.rollout.group_size = of_algorithm.rollout.group_size
    c.critic.lr = 2 * c.optimizer.lr  # as in VAPO's paper
  if model == "tiny":
    c.sft.update(steps=2, threshold=0.0)
    c.sft.habits.steps = 0
    c.rollout.max_tokens = 12
    c.task.difficulties = (2,)
  c.rollout.batch = size.batch
  c.updates.minibatches, c.updates.epochs = size.minibatches, 1
  c.rl.steps = size.steps
  if c.critic.pretrain_steps:
    c.critic.pretrain_steps = size.pretrain
  c.evaluate.update(every=0, prompts=8, interim_prompts=8)
  c.evaluate.update(samples=1, mean_of=1)
  c.checkpoint.every = size.steps
  return c
