"""ScaleRL (arXiv:2510.13786): the recipe of a study of scaling, in its parts.

  python -m rl_reason.main --config=configs/scale_rl.py
  python -m rl_reason.main --config=configs/scale_rl.py:interrupt

Held-out accuracy: 23% to 88% after 30 of its 40 steps, with interruptions 83%
(eight seeds, studies/recent/recent_more.md). The variant interrupts long
thoughts (see rl_reason/features/environments/interrupt.py). Updates of the
weights within a response (PipelineRL) are missing.
"""

from rl_reason.configs import base

VARIANTS = ("", "interrupt")


def get_config(variant=""):
  """Groups of 16; ratios up to 5, as in TRL's settings of the recipe."""
  if variant not in VARIANTS:
    raise ValueError("the variants are interrupt and smoke")
  c = base.arithmetic()
  c.surrogate.name = "cispo"
  c.surrogate.args = dict(clip_low=1.0, clip_high=4.0)
  c.reduction.name = "prompt_token_mean"
  c.advantage.name = "group_mean_batch_std"
  c.rollout.update(group_size=16, retire_after=1, retire_rate=0.9)
  # Groups without variance are dropped, and no others are sampled for them.
  c.dynamic_sampling.update(enabled=True, max_rounds=1, shortfall="pad")
  c.model.logits_dtype = "float32"
  if variant == "interrupt":  # a long thought, then the answer
    c.environment.update(name="interrupt", turn_tokens=36, phrase=";#")
  return c
