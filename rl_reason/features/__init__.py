"""The features beyond the six algorithms: a line and a folder for each.

The core names no feature, and imports nothing else of `rl_reason/features/`.
To take one out, remove its line and its folder. README.md says what each is.
"""

import functools
import importlib
import pathlib
from typing import Any

FEATURES = (
    "group_replay",
    "earlier_steps",
    "controllers",
    "run_targets",
    "token_reweighting",
    "prefix_values",
    "rows_beside_rl",
    "continual_learning",
    "published_protocols",
    "perturbed_questions",
    "compared_evaluations",
    "reward_model_stage",
    "preference_optimization",
    "standardised_scores",
    "noisy_verdicts",
    "retired_prompts",
    "unequal_groups",
    "sampling_ahead",
    "low_rank",
    "distillation",
    "environments",
    "mixed_values",
    "mismatch_corrections",
    "bounded_updates",
    "routing_replay",
)


@functools.cache
def declared() -> tuple[Any, ...]:
  """The `feature.Declaration` of each, in the order of the table."""
  modules = [importlib.import_module(f"{__name__}.{x}") for x in FEATURES]
  return tuple(x.FEATURE for x in modules)


def files(name: str) -> list[pathlib.Path]:
  """The files of a name that features have, such as charts.toml."""
  found = (pathlib.Path(__file__).parent / x / name for x in FEATURES)
  return [x for x in found if x.exists()]
