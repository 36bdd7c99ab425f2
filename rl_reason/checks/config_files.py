"""Files of configs: presets, and the smoke run of any config."""

import pathlib
import runpy

import ml_collections

from rl_reason.base import feature, own_code
from rl_reason.base.config import at, home, no_such_section
from rl_reason.base.errors import ConfigError, RunError, did_you_mean
from rl_reason.base.fields import FIELDS
from rl_reason.checks import presets

PRESETS, EXAMPLE = presets.FOLDER, presets.EXAMPLE


def find_file(path: str) -> tuple[pathlib.Path, str]:
  """The file of a config, and a line for the screen if a preset is meant.

  Args:
    path: a file; or the name of a preset, such as 'dapo' or 'paper/dapo'; or
      its path in a clone, 'configs/dapo.py', where there is no clone.

  Raises:
    ConfigError: there is no such file, and no preset of this name.
  """
  file = pathlib.Path(home(path))
  if why := presets.explained(home(path)):
    raise ConfigError(f"--config = {path}: {why}")
  if file.is_file():
    return file, ""
  name = path.removeprefix("configs/").removesuffix(".py")
  preset = PRESETS / f"{name}.py"
  if preset.is_file() and not file.is_absolute() and ".." not in file.parts:
    return preset, f"--config = {path}: not a file here; uses {preset}"
  raise ConfigError(
      f"--config = {path}: there is no such file in {pathlib.Path.cwd()}, and"
      f" no preset of this name{presets.unknown(path)}"
  )


def read(path: str) -> ml_collections.ConfigDict:
  """The config of FILE.py, FILE.py:variant or FILE.py:smoke; see `find_file`.

  Raises:
    ConfigError: there is no such file, it raises an error, or it has no
      `get_config` that returns a config.
    RunError: it ends the process.
  """
  name, _, variant = path.removesuffix(":smoke").partition(":")
  file, _ = find_file(name)
  own_code.search_working_directory()  # for the user's modules
  text = f"{path}:"
  try:
    found = runpy.run_path(str(file))
    if not callable(get_config := found.get("get_config")):
      has = [x for x, value in found.items() if callable(value)]
      raise ConfigError(
          f"{text} has no function get_config"
          f"{did_you_mean('get_config', has) or ';'} it returns the config:"
          f" {EXAMPLE}"
      )
    c = get_config(*filter(None, [variant]))
    if not isinstance(c, ml_collections.ConfigDict):
      raise ConfigError(
          f"{text} get_config returns {type(c).__name__}, and must return a"
          f" config: {EXAMPLE}"
      )
    return smoke(c) if path.endswith(":smoke") else c
  except ConfigError:
    raise
  except SystemExit as e:
    raise RunError(f"{text} {own_code.ended(e)}") from None
  except ModuleNotFoundError as e:
    if (e.name or "").partition(".")[0] != "configs":
      raise ConfigError(f"{text} {own_code.raised(e)}") from None
    raise ConfigError(
        f"{text} {own_code.raised(e)}: {pathlib.Path.cwd()} has no such folder:"
        f" the presets are installed as rl_reason.configs: {EXAMPLE}"
    ) from None
  except KeyboardInterrupt:
    raise
  except BaseException as e:  # the file may raise anything
    why = no_such_section(e) or own_code.explained(e)
    raise ConfigError(f"{text} {why}") from None


def smoke(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """Every stage of a config within seconds: fewer steps, rows and tokens.

  Args:
    c: any config; changed.
  """

  def at_most(path, **limits):
    part = at(c, path)
    for name, limit in limits.items():
      part[name] = min(part[name], limit)

  # Fewer steps of each stage.
  c.sft.threshold = 0.0
  at_most("sft", steps=60)
  at_most("sft", warmup_steps=max(c.sft.steps - 1, 0))
  at_most("sft.habits", steps=10)
  at_most("rl", steps=3)
  for name, limit in feature.marked("smoke").items():
    path, _, last = name.rpartition(".")
    at_most(path, **{last: limit})
  at_most("generate", prompts=64, samples=8, batch=32)
  at_most("critic", pretrain_steps=2, warmup_steps=max(c.rl.steps - 1, 0))
  at_most("optimizer", warmup_steps=max(c.rl.steps - 1, 0))

  # A small model on any number of devices.
  at_most("model", layers=2, width=64, mlp=192)
  at_most("model", heads=4, kv_heads=2, head_dim=16)
  others = [x for x in c.mesh if x not in ("data", "fsdp")]
  c.mesh.update({x: FIELDS[f"mesh.{x}"].default for x in others})
  # Few and short responses, in whole groups.
  at_most("rollout", max_prompt=256, max_tokens=128, slots=64)
  c.rollout.batch = max(64, c.rollout.group_size)
  prompts = c.rollout.batch // c.rollout.group_size
  at_most("updates", minibatches=min(2, prompts))
  length = c.rollout.max_prompt + c.rollout.max_tokens
  at_most("updates", token_budget=16 * length)
  at_most("reward", overlong_buffer=c.rollout.max_tokens // 3)
  if c.dynamic_sampling.enabled:
    at_most("dynamic_sampling", max_rounds=2)
  c.dynamic_sampling.shortfall = "pad"

  # Every kind of evaluation, checkpoint and log.
  at_most("evaluate", samples=8)
  at_most("evaluate", mean_of=c.evaluate.samples)
  c.evaluate.prompts = c.evaluate.interim_prompts = c.evaluate.batch = 16
  c.evaluate.every = c.checkpoint.every = c.log.samples_every = 1
  c.checkpoint.sft_every = 20
  return c
