"""Configs: fields with their bounds, loading, comparison, what follows.

Nothing here imports jax, so that an error appears within half a second.
"""

import ast
import contextlib
import importlib
import json
import pathlib
import runpy
from collections.abc import Mapping
from typing import Any

import ml_collections

from rl_reason.base import dependencies, functions
from rl_reason.base.errors import ConfigError, did_you_mean, one_line
from rl_reason.base.functions import Spec

# --- fields ------------------------------------------------------------------

# The folder of the presets, in a clone or installed.
PRESETS = pathlib.Path(
    next(iter(importlib.import_module("rl_reason.configs").__path__))
)
# Every field of configs/base.py by its full name; `section` fills this in.
FIELDS: dict[str, Spec] = {}
# What has become of a field of earlier versions.
RENAMED = {
    "log.tensorboard": "log.loggers, names such as 'tensorboard,wandb' or ''",
    "reward.scorers": "reward.functions, whose text is the same",
}


def number(default, low=None, high=None) -> Spec:
  """A field with a number; an integer if the default is one."""
  return Spec(default, type(default), low, high)


def choice(*values) -> Spec:
  """A field with one of a few values; the first is the default."""
  return Spec(values[0], choices=tuple(dict.fromkeys(values)))


def section(name: str, /, **fields) -> ml_collections.ConfigDict:
  """A section of a config, and a record of the values that its fields may have.

  Args:
    name: full name of the section; '' for the top.
    **fields: `number`, `choice`, a plain default, or a section.
  """
  c = ml_collections.ConfigDict()
  for field, value in fields.items():
    if not isinstance(value, ml_collections.ConfigDict):
      spec = value if isinstance(value, Spec) else Spec(value, type(value))
      FIELDS[f"{name}.{field}".lstrip(".")] = spec
      value = spec.default
    c[field] = value
  return c


def function(kind: str, name: str = "") -> ml_collections.ConfigDict:
  """A section that names a function, by default none; no arguments are set.

  Args:
    kind: see `functions.KINDS`.
    name: of the function.
  """
  known = functions.KINDS[kind]
  c = section(known.field, name=name or known.off)
  c.args = ml_collections.ConfigDict()
  return c


def at(c, name: str) -> Any:
  """The field or section of a full name such as 'rollout.batch'."""
  for part in name.split("."):
    c = c[part]
  return c


def known_fields(c) -> list[str]:
  """Full names of all fields, arguments of the named functions included."""
  out = list(flat(c))
  for kind, known in functions.KINDS.items():
    with contextlib.suppress(ConfigError, KeyError, AttributeError):
      takes = functions.signature(kind, at(c, known.field).name).arguments
      out += [f"{known.field}.args.{name}" for name in takes]
  return out


def no_such_field(c, name: str, value: Any) -> ConfigError:
  """The error of a field that does not exist, with a similar one."""
  if name in RENAMED:
    return ConfigError(f"{name} = {value}: is now {RENAMED[name]}")
  known = [x for x in known_fields(c) if x != name]
  hint = did_you_mean(name, known) or "; see configs/base.py"
  return ConfigError(f"{name} = {value}: there is no such field{hint}")


def override(c, values: Mapping[str, Any]) -> list[str]:
  """Sets fields as a command line does.

  A function that takes the place of another one does not get the arguments
  that the config file sets for that one.

  Args:
    c: the config; changed.
    values: full name of a field -> its value, or text to be read as its type.

  Returns:
    One line for each function whose arguments were left out.

  Raises:
    ConfigError: there is no such field, or the value is of another type.
  """
  notes = []
  # Names of functions go first: they may reset the arguments.
  for name in sorted(values, key=lambda x: not x.endswith(".name")):
    path, _, last = name.rpartition(".")
    try:
      parent = at(c, path) if path else c
      argument = path.rpartition(".")[2] == "args"
      # Whether a function takes an argument is checked later, with its value.
      old = parent.get(last) if argument else parent[last]
    except (KeyError, AttributeError, TypeError):
      raise no_such_field(c, name, values[name]) from None
    if isinstance(old, ml_collections.ConfigDict):
      raise ConfigError(f"{name} = {values[name]}: is a section, not a field")
    with c.unlocked():
      if argument:
        if last in parent:
          del parent[last]  # the type of an argument may change
        parent[last] = _literal(values[name])
        continue
      try:
        parent[last] = _parse(values[name], old)
      except (TypeError, ValueError, SyntaxError, KeyError):
        kind = functions.NAMES_OF_TYPES[type(old)]
        raise ConfigError(f"{name} = {values[name]}: must be {kind}") from None
      if last == "name" and parent.get("args") and parent.name != old:
        lost = ", ".join(f"{k} = {v!r}" for k, v in parent.args.items())
        notes.append(f"{name} = {parent.name}: leaves out {lost} of {old}")
        parent.args = {}
  return notes


def _literal(value: Any) -> Any:
  """Text that is a Python literal as its value."""
  try:
    return ast.literal_eval(value) if isinstance(value, str) else value
  except (ValueError, SyntaxError):
    return value


def _parse(value: Any, old: Any) -> Any:
  """Text from a command line as the type of the old value."""
  if not isinstance(value, str) or isinstance(old, str):
    return value
  if isinstance(old, bool):
    return {"true": True, "1": True, "false": False, "0": False}[value.lower()]
  if isinstance(old, tuple):
    found = ast.literal_eval(value)
    return tuple(found) if isinstance(found, tuple | list) else (found,)
  return type(old)(value)


# --- files -------------------------------------------------------------------


def find_file(path: str) -> tuple[pathlib.Path, str]:
  """The file of a config, and a line for the screen if a preset is meant.

  Args:
    path: a file; or the name of a preset, such as 'dapo' or 'paper/dapo'; or
      its path in a clone, 'configs/dapo.py', where there is no clone.

  Raises:
    ConfigError: there is no such file, and no preset of this name.
  """
  file = pathlib.Path(path)
  if file.is_file():
    return file, ""
  name = path.removeprefix("configs/").removesuffix(".py")
  preset = PRESETS / f"{name}.py"
  if preset.is_file() and not file.is_absolute() and ".." not in file.parts:
    return preset, f"--config = {path}: not a file here; uses {preset}"
  known = [
      str(x.relative_to(PRESETS).with_suffix("")) for x in PRESETS.rglob("*.py")
  ]
  raise ConfigError(f"{path}: there is no such file{did_you_mean(name, known)}")


def read(path: str) -> ml_collections.ConfigDict:
  """The config of FILE.py, FILE.py:variant or FILE.py:smoke; see `find_file`.

  Raises:
    ConfigError: there is no such file, or it raises an error.
  """
  name, _, variant = path.removesuffix(":smoke").partition(":")
  file, _ = find_file(name)
  functions.search_working_directory()  # for the user's modules
  try:
    c = runpy.run_path(str(file))["get_config"](*filter(None, [variant]))
    return smoke(c) if path.endswith(":smoke") else c
  except Exception as e:  # the file may raise anything
    raise ConfigError(f"{path}: {one_line(e)}") from None


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
  c.sft.skill.threshold = 0.0
  at_most("sft.skill", steps=60)
  at_most("sft.habits", steps=10)
  at_most("rl", steps=3)
  at_most("reward_model", steps=20, evaluate_pairs=64)
  if c.rounds.count:
    at_most("rounds", count=2)
    at_most("generate", prompts=64, samples=8, batch=32)
    if c.generate.keep != "pairs":
      at_most("rounds", steps=10)
  at_most("critic", pretrain_steps=2, warmup_steps=max(c.rl.steps - 1, 0))
  at_most("optimizer", warmup_steps=max(c.rl.steps - 1, 0))

  # A small model on any number of devices.
  at_most("model", layers=2, width=64, mlp=192)
  at_most("model", heads=4, kv_heads=2, head_dim=16)
  c.mesh.update({x: 1 for x in mesh_axes(c) if x not in ("data", "fsdp")})
  c.mesh.rollout = 0
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


def with_defaults(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """A copy with all arguments of all functions, as a run records them."""
  c = c.copy_and_resolve_references()
  with c.unlocked():
    for kind, known in functions.KINDS.items():
      part = at(c, known.field)
      part.args = functions.arguments(kind, part)
  return c


def flat(c) -> dict[str, Any]:
  """{'rollout.batch': 256, ...} in JSON types; an empty section is {}."""
  out: dict[str, Any] = {}
  for name, value in c.items():
    if isinstance(value, ml_collections.ConfigDict) and value:
      out |= {f"{name}.{k}": v for k, v in flat(value).items()}
    elif isinstance(value, ml_collections.ConfigDict):
      out[name] = {}
    else:
      out[name] = list(value) if isinstance(value, tuple) else value
  return out


def unflat(fields: dict[str, Any]) -> ml_collections.ConfigDict:
  """The inverse of `flat`."""
  c = ml_collections.ConfigDict()
  for name, value in fields.items():
    node, *path = c, *name.split(".")
    for part in path[:-1]:
      if part not in node:
        node[part] = ml_collections.ConfigDict()
      node = node[part]
    node[path[-1]] = tuple(value) if isinstance(value, list) else value
  return c


def load(path: pathlib.Path) -> dict[str, Any]:
  """The flat config that a work directory was made with.

  Raises:
    ConfigError: the file is damaged, or was written by another version.
  """
  try:
    fields = json.loads(path.read_text())
    unflat({name: spec.default for name, spec in FIELDS.items()} | fields)
  except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
    raise ConfigError(
        f"{path}: cannot be read; choose another --workdir, or remove the file"
        " to continue with the config of this command"
    ) from None
  if "surrogate.name" not in fields:
    raise ConfigError(
        f"{path}: is of another version of rl_reason, whose fields had other"
        " names; choose another --workdir"
    )
  return fields


# --- what follows from a config ----------------------------------------------


def mixture(text: str) -> dict[str, float]:
  """'careful:1,direct:4' -> {'careful': 1.0, 'direct': 4.0}.

  Raises:
    ValueError: the text has another form.
  """
  try:
    pairs = [part.split(":") for part in text.split(",")]
    out = {style.strip(): float(weight) for style, weight in pairs}
  except ValueError:
    out = {}
  if min(out.values(), default=-1) < 0 or not sum(out.values()) > 0:
    raise ValueError("must look like 'careful:1,direct:4'")
  return out


def revisions(c) -> dict[str, str]:
  """Revisions of repositories on the hub, by their ids.

  Raises:
    ValueError: the text of hub.revisions has another form.
  """
  items = [x.strip() for x in c.hub.revisions.split(",") if x.strip()]
  pairs = [[y.strip() for y in x.split("=")] for x in items]
  if any(len(pair) != 2 or not all(pair) for pair in pairs):
    raise ValueError("must look like 'OWNER/REPOSITORY=REVISION,...'")
  out = dict(pairs)
  if len(out) < len(pairs):
    raise ValueError("names a repository twice")
  return out


def revision(c, repository: str) -> str | None:
  """The revision of a repository on the hub; None is the newest."""
  return revisions(c).get(repository)


def needs(c) -> tuple[str, ...]:
  """Inputs of the advantage, by name."""
  return functions.signature("advantage", c.advantage.name).inputs


def has_critic(c) -> bool:
  """Whether the advantage is computed from values."""
  return "values_BT" in needs(c)


def has_history(c) -> bool:
  """Whether the advantage is computed from responses of earlier steps."""
  return "past_rewards_H" in needs(c)


def type_field(c) -> str:
  """The field that goes by the type (difficulty) of problems; '' if none."""
  if c.advantage.groups == "type":
    return "advantage.groups"
  if "types_B" in needs(c):
    return "advantage.name"
  equal = c.rollout.group_sizes.name == "equal"
  return "" if equal else "rollout.group_sizes.name"


def discount(c) -> float:
  """Discount of the critic's targets: that of the advantage, 1 without one."""
  return functions.arguments("advantage", c.advantage).get("gamma", 1.0)


def on_policy(c) -> bool:
  """Whether the update itself computes the old log-probs, without a pass.

  With one optimizer step a rollout the old log-probs are those that the update
  starts from, unless something before the update reads them or their entropy.
  """
  early = {"logps_BT", "entropy_BT", "past_rewards_H"} & set(needs(c))
  kl = c.kl.kind != "none" and (
      c.kl.place == "reward" or c.kl.controller.name != "fixed"
  )
  entropy = c.loss.top_entropy < 1 or c.loss.entropy_controller.name != "fixed"
  factors = c.correction.name != "none" or c.covariance.name != "none"
  late = dependencies.those(dependencies.OFF_POLICY, flat(c))
  return not (late or early or kl or entropy or factors)


def mesh_axes(c) -> dict[str, int]:
  """Axes of the mesh that learns, as they are configured."""
  return {name: size for name, size in c.mesh.items() if name != "rollout"}


def packed_rows(c, num_shards: int = 1) -> int:
  """Packed rows of a micro-batch: as many as the token budget holds, or one.

  Args:
    c: the config.
    num_shards: shards of the rows; each has a token budget of its own.
  """
  length = c.rollout.max_prompt + c.rollout.max_tokens
  return num_shards * max(c.updates.token_budget // length, 1)


def lora_targets(c) -> tuple[str, ...]:
  """Names of the matrices that have LoRA factors."""
  return tuple(name.strip() for name in c.lora.targets.split(","))
