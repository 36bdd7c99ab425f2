"""Checks a whole config before anything compiles, and compares configs.

Nothing here imports jax, so that a mistake is named within a second.
"""

import ast
import json
import pathlib
from typing import Any

import ml_collections

from rl_reason import tasks


class ConfigError(ValueError):
  """One line: the field, its value, and the remedy."""


# A run may go on with another value of these: they change no number of a step.
FREE = ("log.", "mesh.", "checkpoint.", "rl.steps", "sft.skill.threshold")


def flat(c) -> dict[str, Any]:
  """{'loss.clip_high': 0.28, ...} in JSON types."""
  out = {}
  for name, value in c.items():
    if isinstance(value, ml_collections.ConfigDict):
      out |= {f"{name}.{k}": v for k, v in flat(value).items()}
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


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
  """Fields that would change the numbers of a run, as 'field: old -> new'.

  Args:
    old: `flat` config that a checkpoint was made with.
    new: `flat` config of the run that wants to go on with it.
  """

  def free(name):
    if name == "rl.steps":  # a decay is stretched by more steps
      return new.get("optimizer.schedule") == "constant"
    return name.startswith(FREE)

  return [
      f"{name}: {old.get(name)!r} -> {new.get(name)!r}"
      for name in sorted(old.keys() | new.keys())
      if old.get(name) != new.get(name) and not free(name)
  ]


def load(path: pathlib.Path) -> dict[str, Any]:
  """The flat config that a work directory was made with.

  Raises:
    ConfigError: the file is damaged.
  """
  try:
    fields = json.loads(path.read_text())
    unflat(fields)
  except (ValueError, AttributeError, TypeError, KeyError):
    raise ConfigError(
        f"{path}: cannot be read; choose another --workdir, or remove the file"
        " to go on with the config that you give"
    ) from None
  return fields


def mixture(text: str) -> dict[str, float]:
  """'careful:1,direct:4' -> {'careful': 1.0, 'direct': 4.0}.

  Raises:
    ValueError: anything else.
  """
  out = {}
  for part in text.split(","):
    style, mark, weight = part.partition(":")
    if not mark or float(weight) < 0:
      raise ValueError(part)
    out[style.strip()] = float(weight)
  if not sum(out.values()) > 0:
    raise ValueError(text)
  return out


def signatures() -> dict[str, dict[str, list[str]]]:
  """Public functions of the pure core and their keywords, read as text."""
  here = pathlib.Path(__file__).parent
  out = {}
  for module in ("advantages", "weights"):
    body = ast.parse((here / f"{module}.py").read_text()).body
    out[module] = {
        node.name: [arg.arg for arg in node.args.kwonlyargs]
        for node in body
        if isinstance(node, ast.FunctionDef) and node.name[0] != "_"
    }
  return out


def advantage_keywords(c) -> dict[str, Any]:
  """The fields of config.advantage that the chosen function takes."""
  wanted = signatures()["advantages"][c.advantage.name]
  return {name: c.advantage[name] for name in wanted}


CHOICES = {
    "task.name": tasks.NAMES,
    "model.dtype": ("float32", "bfloat16", "float16"),
    "model.remat": ("none", "dots", "full"),
    "sft.skill.schedule": ("constant", "cosine", "linear"),
    "sft.habits.schedule": ("constant", "cosine", "linear"),
    "optimizer.schedule": ("constant", "cosine", "linear"),
    "optimizer.name": ("adamw", "sgd"),
    "dynamic_sampling.surplus": ("discard", "keep"),
    "dynamic_sampling.shortfall": ("pad", "raise"),
    "reward.truncated": ("terminal", "bootstrap"),
    "loss.kl": ("none", "k1", "k2", "k3"),
}

# Least value of each number; (low, high) where there is a highest one too.
BOUNDS = {
    "seed": 0,
    "model.layers": 1,
    "model.width": 1,
    "model.heads": 1,
    "model.kv_heads": 1,
    "model.head_dim": 2,
    "model.mlp": 1,
    "model.logprob_chunk": 1,
    "sft.batch": 1,
    "sft.micro_batches": 1,
    "sft.skill.steps": 1,
    "sft.skill.lr": 0,
    "sft.skill.threshold": (0, 1),
    "sft.habits.steps": 1,
    "sft.habits.lr": 0,
    "rollout.prompts": 1,
    "rollout.group_size": 1,
    "rollout.max_prompt": 1,
    "rollout.max_tokens": 1,
    "rollout.temperature": 1e-6,
    "rollout.top_p": (1e-9, 1),
    "dynamic_sampling.max_rounds": 1,
    "reward.overlong_buffer": 0,
    "reward.overlong_coef": 0,
    "advantage.eps": 0,
    "advantage.ddof": (0, 1),
    "loss.clip_low": (0, 1),
    "loss.clip_high": 0,
    "loss.dual_clip": 0,
    "loss.log_ratio_max": 0,
    "loss.kl_coef": 0,
    "updates.minibatches": 1,
    "updates.micro_batches": 1,
    "updates.epochs": 1,
    "optimizer.lr": 0,
    "optimizer.warmup_steps": 0,
    "optimizer.b1": (0, 1),
    "optimizer.b2": (0, 1),
    "optimizer.eps": 0,
    "optimizer.weight_decay": 0,
    "optimizer.clip_norm": 0,
    "rl.steps": 0,
    "evaluate.prompts": 1,
    "evaluate.samples": 1,
    "evaluate.mean_of": 1,
    "evaluate.temperature": 0,
    "evaluate.top_p": (1e-9, 1),
    "evaluate.batch": 1,
    "evaluate.every": 0,
    "evaluate.interim_prompts": 1,
    "checkpoint.every": 1,
    "checkpoint.sft_every": 1,
    "checkpoint.keep_last": 1,
    "checkpoint.keep_best": 0,
    "log.sft_every": 1,
    "log.samples_every": 1,
    "log.samples": 1,
}


def check(c: ml_collections.ConfigDict, given: tuple[str, ...] = ()) -> None:
  """Checks every field and every combination that cannot work.

  Args:
    c: the whole config.
    given: names of the fields that were set on the command line.

  Raises:
    ConfigError: the first thing that is wrong.
  """
  fields = flat(c)

  def refuse(name: str, remedy: str):
    raise ConfigError(f"{name} = {fields.get(name)!r}: {remedy}")

  def require(condition, name: str, remedy: str):
    if not condition:
      refuse(name, remedy)

  for name, allowed in CHOICES.items():
    require(
        fields[name] in allowed, name, f"must be one of {', '.join(allowed)}"
    )
  for name, bound in BOUNDS.items():
    low, high = bound if isinstance(bound, tuple) else (bound, None)
    x = fields[name]
    text = f"at least {low}" + (f" and at most {high}" if high else "")
    require(
        x >= low and (high is None or x <= high), name, f"must be {text}"
    )

  task = tasks.get(c.task.name)
  for level in c.task.difficulties:
    require(
        level in task.DIFFICULTIES,
        "task.difficulties",
        f"{level!r} is none of {c.task.name}'s {task.DIFFICULTIES}",
    )
  for stage in ("skill", "habits"):
    name = f"sft.{stage}.mixture"
    try:
      styles = mixture(fields[name])
    except ValueError:
      refuse(name, "must look like 'careful:1,direct:4'")
    for style in styles:
      require(
          style in task.STYLES,
          name,
          f"{style!r} is none of {c.task.name}'s styles"
          f" {', '.join(task.STYLES)}; see configs/{c.task.name}.py",
      )

  m = c.model
  require(
      m.heads % m.kv_heads == 0,
      "model.heads",
      f"must be a multiple of model.kv_heads = {m.kv_heads}",
  )
  require(m.head_dim % 2 == 0, "model.head_dim", "must be even (rotary)")
  axes = [c.mesh.data, c.mesh.fsdp, c.mesh.tensor]
  for name, size in c.mesh.items():
    require(size == -1 or size > 0, f"mesh.{name}", "must be positive, or -1")
  require(
      axes.count(-1) <= 1, "mesh.data", "only one axis of the mesh may be -1"
  )

  r, d = c.rollout, c.dynamic_sampling
  known = signatures()
  require(
      c.advantage.name in known["advantages"],
      "advantage.name",
      f"must be one of {', '.join(known['advantages'])}",
  )
  require(
      c.loss.reduction in known["weights"],
      "loss.reduction",
      f"must be one of {', '.join(known['weights'])}",
  )
  takes = known["advantages"][c.advantage.name]
  for name in given:
    section, _, field = name.partition(".")
    if section == "advantage" and field != "name":
      require(
          field in takes,
          name,
          f"{c.advantage.name} does not take it (it takes"
          f" {', '.join(takes) or 'nothing'}): leave it out",
      )
  require(
      r.group_size > 1 or c.rl.steps == 0,
      "rollout.group_size",
      f"{c.advantage.name} compares the responses to one prompt: use 2 or more",
  )
  require(
      r.top_p == 1 or r.allow_top_p,
      "rollout.top_p",
      "stored log-probs are those before top-p: training would be off-policy;"
      " use 1.0, or set rollout.allow_top_p=True",
  )
  require(
      r.prompts % c.updates.minibatches == 0,
      "updates.minibatches",
      f"must divide rollout.prompts = {r.prompts} (whole groups)",
  )
  rows = r.prompts // c.updates.minibatches * r.group_size
  require(
      rows % c.updates.micro_batches == 0,
      "updates.micro_batches",
      f"must divide the {rows} rows of a minibatch",
  )
  require(
      c.sft.batch % c.sft.micro_batches == 0,
      "sft.micro_batches",
      f"must divide sft.batch = {c.sft.batch}",
  )
  require(
      c.reward.overlong_buffer <= r.max_tokens,
      "reward.overlong_buffer",
      f"must not exceed rollout.max_tokens = {r.max_tokens}",
  )
  require(
      c.reward.right > c.reward.wrong,
      "reward.right",
      f"must be more than reward.wrong = {c.reward.wrong}",
  )
  require(
      c.loss.dual_clip == 0 or c.loss.dual_clip > 1,
      "loss.dual_clip",
      "must be more than 1, or 0 for off",
  )
  require(
      (c.loss.kl == "none") == (c.loss.kl_coef == 0),
      "loss.kl_coef",
      f"does not go with loss.kl = {c.loss.kl!r}: set both or neither",
  )
  require(
      d.surplus == "discard" or d.enabled,
      "dynamic_sampling.surplus",
      "there is a surplus only with dynamic_sampling.enabled=True",
  )
  require(
      c.optimizer.warmup_steps < max(c.rl.steps, 1),
      "optimizer.warmup_steps",
      f"must be less than rl.steps = {c.rl.steps}",
  )
  require(
      c.evaluate.mean_of <= c.evaluate.samples,
      "evaluate.mean_of",
      f"must not exceed evaluate.samples = {c.evaluate.samples}",
  )
  require(
      c.evaluate.interim_prompts <= c.evaluate.prompts,
      "evaluate.interim_prompts",
      f"must not exceed evaluate.prompts = {c.evaluate.prompts}",
  )


def check_devices(c: ml_collections.ConfigDict, devices: int) -> None:
  """Checks what depends on the number of devices.

  Raises:
    ConfigError: a batch or a parameter cannot be split over the mesh.
  """
  sizes = dict(c.mesh)
  known = 1
  for size in sizes.values():
    known *= size if size > 0 else 1
  for name, size in sizes.items():
    if size == -1:
      sizes[name] = devices // known
      known *= sizes[name]
  shape = " x ".join(f"{k} {v}" for k, v in sizes.items())
  if known != devices:
    raise ConfigError(
        f"mesh = {shape}: does not cover {devices} devices; set one axis to -1"
    )
  ways, tensor = sizes["data"] * sizes["fsdp"], sizes["tensor"]
  r = c.rollout
  for name, rows in {
      "sft.batch": c.sft.batch // c.sft.micro_batches,
      "rollout.prompts": r.prompts,
      "updates.micro_batches": r.prompts
      // c.updates.minibatches
      * r.group_size
      // c.updates.micro_batches,
      "evaluate.batch": c.evaluate.batch,
  }.items():
    if rows % ways:
      raise ConfigError(
          f"{name} = {flat(c)[name]!r}: {rows} rows at a time cannot be split"
          f" over data x fsdp = {ways} devices"
      )
  for name, size, parts in (
      ("model.kv_heads", c.model.kv_heads, tensor),
      ("model.mlp", c.model.mlp, tensor),
      ("model.width", c.model.width, sizes["fsdp"]),
  ):
    if size % parts:
      raise ConfigError(
          f"{name} = {size}: cannot be split over {parts} devices of the mesh"
          f" ({shape})"
      )
