"""What may change when a run resumes, or when a run reuses a critic.

These tables are the only lists of such fields. Names are full names of a flat
config.
"""

import contextlib
import functools
import pathlib
import re
from collections.abc import Callable, Mapping
from typing import Any

from rl_reason.base import errors, feature, function_kinds, functions
from rl_reason.base.fields import FIELDS, used

Fields = Mapping[str, Any]
Predicate = Callable[[Any], bool]


def _takes_progress(kind: str, name: str) -> bool:
  """Whether the function of a name takes the progress of the run."""
  with contextlib.suppress(errors.ConfigError):
    return "progress" in functions.signature(kind, name).inputs
  return False


def _moves(terms: str) -> bool:
  """Whether a list of functions has a weight that moves, as in 'f*0.3..0'."""
  found = re.findall(r"\*\s*([^,*]+?)\.\.([^,*]+)", terms)
  return any(first.strip() != last.strip() for first, last in found)


# Readers of the progress (RL steps done / rl.steps): field -> whether a value
# reads it. A function reads the progress if its signature asks for it.
PROGRESS: dict[str, Predicate] = {
    "optimizer.schedule": lambda name: name != "constant",
    "critic.schedule": lambda name: name != "constant",
    "reward.functions": _moves,
    "loss.terms": _moves,
} | {
    f"{known.field}.name": functools.partial(_takes_progress, kind)
    for kind, known in function_kinds.KINDS.items()
    if "progress" in known.inputs
}
# Fields that decide what the values of a pretrained critic mean: the first
# policy, the sampling of its responses, their rewards, and the mask.
VALUES = (
    "seed",
    "model.",
    "tokenizer",
    "hub.",
    "task.",
    "data.",
    "sft.",
    "rollout.max_tokens",
    "rollout.stop_tokens",
    "rollout.stop_strings",
    "rollout.include_stop_str_in_output",
    "rollout.add_special_tokens",
    "rollout.temperature",
    "rollout.top_k",
    "rollout.top_p",
    "rollout.min_p",
    "rollout.repetition_penalty",
    "rollout.weights",
    "rollout.cache",
    "reward.",
    "loss.mask_truncated",
    "loss.truncated_in_baseline",
    "advantage.args.gamma",
)

# A run may resume with other values of these fields: no number of a step
# changes, except for the rounding of sums in another order.
FREE = (
    "log.",
    "export.",
    "serve.",
    "generate.",
    "mesh.",
    "checkpoint.",
    "rl.steps",
    "rl.max_steps_uncertified",
    "rl.max_steps_without_update",
    "sft.threshold",
    "data.max_corrupt",
    "model.attention",
    "model.remat",
    "model.logprob_chunk",
    "optimizer.offload",
    "reward.workers",
    "reward.executor",
    "reward.timeout",
    "rollout.slots",
    "rollout.engine.args.url",
    "rollout.engine.args.directory",
    "rollout.engine.args.parallel",
    "rollout.engine.args.seconds",
    "rollout.engine.args.key_env",
    "updates.token_budget",
    "content.",  # of content.record
    "evaluate.long_prompts",
)
# What runs of an earlier version did, in fields of a later version: such a run
# may resume with this value, besides the default.
EARLIER = {"rollout.add_special_tokens": False}
# What an evaluation may have other than the run: problems, lengths, sampler,
# the time of a verifier.
ELSEWHERE = (
    *("task.name", "task.difficulties", "rollout.max_prompt"),
    *("rollout.max_tokens", "rollout.stop_tokens"),
    *("rollout.stop_strings", "rollout.include_stop_str_in_output"),
    *("reward.seconds", "rollout.weights", "rollout.cache", "export.precision"),
)
# Fields that may differ from the fields of the run that is served.
SERVED = ("serve.", "mesh.", "rollout.weights", "rollout.cache")
# Paths, which may change where `path_contents.record` finds equal content.
MOVABLE = (
    "model.path",
    "tokenizer",
    "data.train",
    "data.evaluate",
    "critic.path",
    "sft.reuse",
    "sft.samples",
    "reward.functions",
    "critic.reuse",
)


def movable() -> tuple[str, ...]:
  """`MOVABLE`, and such paths of features."""
  return (*MOVABLE, *feature.marked("movable"), *feature.marked("sources"))


def free_fields() -> tuple[str, ...]:
  """`FREE`, and such fields of features."""
  return (*FREE, *feature.marked("free"), *feature.marked("machine"))


def elsewhere() -> tuple[str, ...]:
  """`ELSEWHERE`, and such fields of features."""
  return (*ELSEWHERE, *feature.marked("elsewhere"))


def reads_progress(fields: Fields) -> bool:
  """Whether a step of a run depends on the number of all steps."""
  known = PROGRESS | feature.marked("progress")
  return any(
      name in fields and reads(fields[name]) for name, reads in known.items()
  )


def is_shape(name: str) -> bool:
  """Whether a checkpoint of model.path decides this field."""
  return name.startswith("model.") and name not in (
      "model.path",
      "model.family",
      "model.dtype",
      "model.logits_dtype",
      "model.remat",
      "model.logprob_chunk",
      "model.attention",
  )


def complete(fields: Fields) -> dict[str, Any]:
  """The fields of a run, with defaults for those newer than the run.

  Fields that were taken out are left out, unless the run used their feature.
  """
  defaults = {name: spec.default for name, spec in FIELDS.items()}
  for known in function_kinds.KINDS.values():
    if f"{known.field}.name" not in fields:  # no function, without arguments
      defaults[f"{known.field}.args"] = {}
  return {
      name: list(x) if isinstance(x, tuple) else x
      for name, x in (defaults | used(fields)).items()
  }


def equal_content(name: str, old: Fields, new: Fields) -> bool:
  """Whether a field names equal files in both, perhaps at other places."""
  content = new.get(f"content.{name}")
  return bool(content) and content == old.get(f"content.{name}")


def differences(old: Fields, new: Fields) -> list[str]:
  """Fields that would change the numbers of a run, as 'field: old -> new'.

  Args:
    old: fields that a checkpoint was made with.
    new: fields of the run that is to be resumed from it.
  """
  may_move, may_differ = movable(), free_fields()

  def free(name):
    if name in EARLIER and name not in old:
      return bool(new[name] == EARLIER[name])
    if name == "rl.steps":
      return not reads_progress(new)
    if name == "data.programs" and new.get("task.name") != "files":
      return True  # only rows of files have programs
    if is_shape(name) and new.get("model.path"):
      return True  # the checkpoint decides
    if name in may_move and new.get(f"content.{name}"):
      return equal_content(name, old, new)
    return name.startswith(may_differ)

  was, old = complete(old), used(old)
  return [
      f"{name}: {old.get(name)!r} -> {new.get(name)!r}"
      for name in sorted(old.keys() | new.keys())
      if was.get(name) != new.get(name) and not free(name)
  ]


def other_values(there: Fields, here: Fields, workdir: str) -> list[str]:
  """Fields that give the values of a critic another meaning here.

  `workdir` is of the run that pretrained it, `there` are its fields.
  """
  reuse = str(here.get("sft.reuse", ""))
  if reuse and not there.get("sft.reuse"):
    # The policy of that very run, which made it by SFT.
    if pathlib.Path(reuse).resolve() == pathlib.Path(workdir).resolve():
      there = {**there, "sft.reuse": reuse}
  there, here = (
      {k: x for k, x in one.items() if k in other}
      for one, other in ((there, here), (here, there))
  )
  values = (*VALUES, *feature.marked("sampled"))
  values += tuple(f"{k}." for k, x in feature.stages().items() if x.policy)
  return [x for x in differences(there, here) if x.startswith(values)]
