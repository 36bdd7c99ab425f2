"""The policies that one --stage=evaluate evaluates besides the first one.

They are the runs of further work directories (`--workdir=a,b`), then the models
of evaluate.models. All policies share the seed of the first one, and hence the
noise of their samples, so that differences between them are paired.
"""

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ml_collections

from rl_reason.base import config as config_lib, feature
from rl_reason.base.errors import ConfigError
from rl_reason.checks import run_directory, saved_config

# Config, work directory and --step of a policy; of a model there is one step.
Policy = tuple[ml_collections.ConfigDict, pathlib.Path, str]
# Fields that decide what is asked and how is sampled.
_SAME = (
    *feature.marked("sampled"),
    *("evaluate.", "task.", "data.template", "data.chat"),
    *("data.system", "rollout.max_prompt", "rollout.max_tokens"),
)
_OTHERWISE = (  # these decide neither
    *("evaluate.against", "evaluate.batch", "evaluate.every"),
    *("evaluate.interim_prompts", "evaluate.models", "evaluate.validation"),
)


def others(
    first: Policy,
    workdirs: Sequence[pathlib.Path],
    given: Mapping[str, Any],
    say: Callable[[str], None],
) -> list[Policy]:
  """All policies but the first.

  Args:
    first: the first policy.
    workdirs: further work directories.
    given: full names of overridden fields -> their values, for all policies.
    say: shows a line: on what differs between the runs.

  Raises:
    ConfigError: as `saved_config.read`; or a model cannot be evaluated.
  """
  config, place, step = first
  out: list[Policy] = []
  for workdir in workdirs:
    other, notes = saved_config.read(workdir, "evaluate", given)
    for line in notes:
      say(line)
    if found := _differences(config, other):
      say(
          f"warning: {workdir} is not evaluated as {place} is: {found}; a field"
          " on the command line, as --config.evaluate.samples=8, is for both"
      )
    out.append((other, workdir, step))
  for name in filter(None, map(str.strip, config.evaluate.models.split(","))):
    workdir = place / "models" / run_directory.text(name).strip("_")
    out.append((_of_model(config, name), workdir, "newest"))
  for other, workdir, _ in out:
    if other.seed != config.seed:
      say(f"{workdir}: sampled with seed {config.seed}, as {place} is")
      other.seed = config.seed
  return out


def _differences(config, other) -> str:
  """The fields in which two evaluations differ, 'name = value, not value'."""
  was, now = map(config_lib.flat, (config, other))
  return "; ".join(
      f"{name} = {value!r}, not {was.get(name)!r}"
      for name, value in now.items()
      if name.startswith(_SAME) and name not in _OTHERWISE
      if was.get(name) != value
  )


def _of_model(config, name: str) -> ml_collections.ConfigDict:
  """The config that evaluates a model as it is, with its own tokenizer."""
  from rl_reason.checks import model_directory  # imports transformers

  out = config_lib.unflat(
      {k: x for k, x in config_lib.flat(config).items() if "content." not in k}
  )
  out.model.path, out.tokenizer = config_lib.home(name), ""
  out.sft.steps, out.sft.reuse, out.sft.habits.steps = 0, "", 0
  config_lib.override(out, feature.marked("evaluated"))
  out.evaluate.models = ""
  try:
    model_directory.resolve(out)
  except ConfigError as e:
    raise ConfigError(*(f"evaluate.models: {x}" for x in e.lines)) from None
  return out
