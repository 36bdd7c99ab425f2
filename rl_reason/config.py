"""What a config says: its fields by name, what follows from them, comparisons.

Nothing here imports jax, so that a mistake is named within a second.
"""

import ast
import difflib
import functools
import json
import pathlib
from collections.abc import Iterable
from typing import Any, NamedTuple

import ml_collections


class ConfigError(ValueError):
  """One line: the field, its value, and the remedy."""


def one_line(e: Exception) -> str:
  """What an error says, or else its kind."""
  return " ".join(str(e).split()) or type(e).__name__


def no_such_field(name: str, value: Any, fields: Iterable[str]) -> str:
  """Says so, with the field that was perhaps meant."""
  near = difflib.get_close_matches(name, fields, 1)
  hint = f"; did you mean {near[0]}?" if near else ", see configs/base.py"
  return f"{name} = {value}: there is no such field{hint}"


# A run may go on with another value of these: they change no number of a step.
FREE = (
    "log.",
    "mesh.",
    "checkpoint.",
    "rl.steps",
    "sft.skill.threshold",
    "model.attention",
    "optimizer.offload",
)


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
    if name == "rl.steps":
      return not _stretched(new)
    if name.startswith("mesh.") and new.get("rollout.across_steps"):
      return False  # which groups are whole in time depends on the shards
    if is_shape(name) and new.get("model.path"):
      return True  # the checkpoint decides
    return name.startswith(FREE)

  return [
      f"{name}: {old.get(name)!r} -> {new.get(name)!r}"
      for name in sorted(old.keys() | new.keys())
      if old.get(name) != new.get(name) and not free(name)
  ]


def is_shape(name: str) -> bool:
  """Whether a checkpoint of model.path decides this field."""
  return name.startswith("model.") and name not in (
      "model.path",
      "model.dtype",
      "model.remat",
      "model.logprob_chunk",
      "model.attention",
  )


def _stretched(fields: dict[str, Any]) -> bool:
  """Whether more RL steps would change those that are done: decays."""
  schedules = ("optimizer.schedule", "critic.schedule")
  name = str(fields.get("advantage.name"))
  known = signatures("advantages").get(name, Signature((), ()))
  return (
      any(fields.get(x, "constant") != "constant" for x in schedules)
      or "progress" in known.arrays
      or bool(fields.get("critic.mix"))
  )


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


class Signature(NamedTuple):
  """What a function of the pure core takes, by name."""

  arrays: tuple[str, ...]  # positional: `credit.py` says what there is
  keywords: tuple[str, ...]  # fields of a section of the config


@functools.cache
def signatures(module: str) -> dict[str, Signature]:
  """Public functions of a module of the pure core, read as text."""
  files = (module, "advantage_variants")[: 1 + (module == "advantages")]
  room = pathlib.Path(__file__).with_name("algorithms")
  found = {
      node.name: Signature(
          tuple(arg.arg for arg in node.args.args),
          tuple(arg.arg for arg in node.args.kwonlyargs),
      )
      for file in files
      for node in ast.parse((room / f"{file}.py").read_text()).body
      if isinstance(node, ast.FunctionDef) and node.name[0] != "_"
  }
  inputs = ("mask_BT", "groups_B")  # the file has other functions, too
  return {
      name: one
      for name, one in found.items()
      if module != "reductions" or one.arrays == inputs
  }


# Field that names a function -> its module; keywords are fields beside it.
FUNCTIONS = {
    "advantage.name": "advantages",
    "loss.surrogate": "surrogates",
    "loss.reduction": "reductions",
    "loss.correction": "corrections",
}


# Fields of these are named section.PREFIXkeyword.
PREFIXES = {"loss.correction": "correction_"}


def signature(c, field: str) -> Signature:
  """Of the function that a field names."""
  section, _, name = field.partition(".")
  return signatures(FUNCTIONS[field])[c[section][name]]


def keywords(c, field: str) -> dict[str, Any]:
  """The fields that the function named by a field takes as keywords."""
  section, prefix = c[field.partition(".")[0]], PREFIXES.get(field, "")
  return {name: section[prefix + name] for name in signature(c, field).keywords}


def unread(c) -> set[str]:
  """Keywords of functions of the pure core that none of the chosen takes."""
  known, used = set(), set()
  for field, module in FUNCTIONS.items():
    section, _, name = field.partition(".")
    for function, one in signatures(module).items():
      prefix = PREFIXES.get(field, "")
      names = {f"{section}.{prefix}{x}" for x in one.keywords}
      known |= names
      used |= names if function == c[section][name] else set()
  # The critic's targets are discounted, too.
  return known - used - ({"advantage.gamma"} if has_critic(c) else set())


def needs(c) -> tuple[str, ...]:
  """Arrays that the advantage is computed from."""
  return signature(c, "advantage.name").arrays


def packed_rows(c, ways: int = 1) -> int:
  """Packed rows of a micro-batch: what each shard's budget holds, or one.

  Args:
    c: the config.
    ways: shards that the rows of a batch are split over.
  """
  slots = c.rollout.max_prompt + c.rollout.max_tokens
  return ways * max(c.updates.token_budget // slots, 1)


def has_critic(c) -> bool:
  """Whether the advantage asks for values."""
  return "values_BT" in needs(c)


def has_history(c) -> bool:
  """Whether the advantage asks for responses of earlier steps."""
  return "past_rewards_H" in needs(c)


def on_policy(c) -> bool:
  """Whether the update itself gives the old log-probs, without a pass for them.

  With one optimizer step a rollout they are those that it starts from; unless
  something before the update reads them, or their entropy.
  """
  early = {"logps_BT", "entropy_BT", "past_rewards_H"} & set(needs(c))
  kl = c.kl.kind != "none" and (c.kl.place == "reward" or c.kl.target)
  entropy = c.loss.top_entropy < 1 or c.loss.entropy_target
  later = c.dynamic_sampling.surplus == "keep" or c.rollout.across_steps
  known = c.loss.correction != "none" or c.loss.cov != "none"
  once = c.updates.minibatches * c.updates.epochs == 1
  return once and not (early or kl or entropy or later or known)


def lora_targets(c) -> tuple[str, ...]:
  """The matrices that get factors, by name."""
  return tuple(name.strip() for name in c.lora.targets.split(","))
