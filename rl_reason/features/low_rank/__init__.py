"""LoRA: RL trains low-rank factors beside a frozen base (`lora.rank`).

The model reads the base with its factors, and nothing else of a run differs;
see README.md.
"""

from collections.abc import Iterator

from rl_reason.base import feature
from rl_reason.base.fields import field, number, section

MOST = 1e-2  # a usual learning rate of factors


def _targets(c) -> tuple[str, ...]:
  """Names of the matrices that have factors."""
  return tuple(name.strip() for name in c.lora.targets.split(","))


class _LowRank(feature.Declaration):
  marks = {
      "policy": ("lora.",),
      "evaluated": {"lora.rank": 0},
      "published": ("lora.targets",),
      "other_names": {
          "lora_r": "lora.rank",
          "lora_rank": "lora.rank",
          "lora_alpha": "lora.alpha",
          "lora_target_modules": "lora.targets",
          "target_modules": "lora.targets",
      },
      "less_memory": ("lora.rank",),
  }

  def fields(self, c) -> None:
    c.lora = section(  # of RL; SFT and critics train all parameters
        "lora",
        rank=number(  # 0 is off
            0,
            low=0,
            needs="RL",
            not_with={"optimizer.freeze": "LoRA freezes all layers"},
        ),
        # Factors are scaled by alpha / rank.
        alpha=number(32.0, low=1e-9, needs="lora.rank"),
        # Matrices with factors.
        targets=field("q,k,v,o,gate,up,down", needs="lora.rank"),
    )

  def used(self, c) -> bool:
    return bool(c.lora.rank)

  def rules(self, c) -> Iterator[feature.Rule]:
    from rl_reason.models.decoder import MATRICES  # imports JAX

    for name in _targets(c):
      if name not in MATRICES:
        yield "lora.targets", f"{name!r} is none of {', '.join(MATRICES)}"

  def rules_of_model(self, c) -> Iterator[feature.Rule]:
    if c.model.experts and {"gate", "up", "down"} & {*_targets(c)}:
      yield "lora.targets", "experts have no factors: use 'q,k,v,o'"

  def cautions(self, c) -> Iterator[feature.Rule]:
    o = c.optimizer
    if o.name != "sgd" and c.rl.steps and o.lr > MOST:
      yield "optimizer.lr", (
          "is high for LoRA factors, which RL changes at about 1e-5 to 1e-4"
      )
    if c.rollout.engine.name != "own":
      yield "rollout.engine.name", (
          "gets LoRA factors merged with their matrix; an engine in bfloat16"
          " rounds most of a small adapter away: run the engine in float32"
      )

  def passes(self, c) -> float:
    return -c.updates.epochs  # a frozen base takes no gradients of its weights

  def of_model(self, fields, *, short: bool) -> str:
    if not fields.get("lora.rank"):
      return ""
    where = "" if short else f" on {fields['lora.targets']}"
    return f"LoRA of rank {fields['lora.rank']}{where}"

  def learns(self, c):
    from rl_reason.features.low_rank import low_rank_factors

    return low_rank_factors.Factors(
        c.lora.rank, c.lora.alpha, _targets(c), c.seed
    )

  def start(self, c, loop: feature.Loop) -> feature.Part:
    from rl_reason.features.low_rank import low_rank_factors

    return low_rank_factors.Base(loop.frozen)


FEATURE = _LowRank()
