"""Access to a config: its fields by full name, overrides, JSON."""

import ast
import contextlib
import difflib
import json
import os
import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import ml_collections

from rl_reason.base import function_kinds, functions
from rl_reason.base.errors import ConfigError
from rl_reason.base.fields import (
    FIELDS,
    NAMES_OF_TYPES,
    REMOVED,
    RENAMED,
    removed,
    section,
    used,
)
from rl_reason.base.other_names import COUNTED, of_others

# What a file says about SFT for its own task, and for no other task.
OF_TASK = (
    "sft.mixture",
    "sft.difficulties",
    "sft.threshold",
    "sft.habits.",
)


def at(c, name: str) -> Any:
  """The field or section of a full name such as 'rollout.batch'; '' is all."""
  for part in filter(None, name.split(".")):
    c = c[part]
  return c


def extend(c, name: str, **fields: Any) -> None:
  """Adds fields to a section; see `fields.section`. '' is the top."""
  at(c, name).update(section(name, **fields))


def known_fields(c) -> list[str]:
  """Full names of all fields, arguments of the named functions included."""
  out = list(flat(c))
  for kind, known in function_kinds.KINDS.items():
    with contextlib.suppress(ConfigError, KeyError, AttributeError):
      takes = functions.signature(kind, at(c, known.field).name).arguments
      out += [f"{known.field}.args.{name}" for name in takes]
  return out


def no_such_field(c, name: str, value: Any) -> ConfigError:
  """The error of a field that does not exist, with similar ones."""
  if name in RENAMED:
    return ConfigError(
        f"{name} = {value}: is now {RENAMED[name]}", fields=[RENAMED[name]]
    )
  if why := removed(name):
    return ConfigError(f"{name} = {value}: {why}", fields=[name])
  # Arguments of functions come second: their signatures take a second.
  found = similar(name, FIELDS) or similar(name, known_fields(c))
  hint = "see configs/base.py"
  if found:
    first, *rest = found
    others = "one of " * (len(rest) > 1) + ", ".join(rest)
    counts = COUNTED.get(name.rpartition(".")[2])
    hint = (
        f"did you mean {first}{f', {counts}' if counts else ''}"
        f"{f', or {others}' if rest else ''}?"
    )
  return ConfigError(
      f"{name} = {value}: there is no such field; {hint}",
      fields=found or [name],
  )


# Of fields with the same last name, one of the policy is meant most often.
_FIRST = ("optimizer", "rollout", "rl")


def similar(name: str, known: Iterable[str]) -> list[str]:
  """The fields that a wrong name may mean, the most likely one first."""
  known, last = list(known), name.rpartition(".")[2]
  if meant := of_others().get(last):
    return [meant]
  lasts = [x.rpartition(".")[2] for x in known]
  near = []
  if "." in name:
    near = difflib.get_close_matches(name, known, 1)
  # A field may be in another section, under the same last name or a similar
  # one; a name without a section is always of this kind.
  for wanted in ([last], difflib.get_close_matches(last, lasts, 1, 0.75)):
    if not near:
      near = [x for x, y in zip(known, lasts, strict=True) if y in wanted]
  return sorted(near, key=lambda x: x.partition(".")[0] not in _FIRST)


def no_such_section(e: BaseException) -> str:
  """What has become of a section that a file reads in vain; '' if unknown.

  Args:
    e: what ml_collections raised; its message is the last part of the name.
  """
  word = str(e).partition("\n")[0].strip("\"'")
  for name in (*RENAMED, *REMOVED):
    section = name.rpartition(".")[0]
    is_gone = not any(x.startswith(f"{section}.") for x in FIELDS)
    if is_gone and section.rpartition(".")[2] == word:
      now = removed(name) or f"is now {RENAMED[name]}"
      return f"there is no section {section}: {name} {now}"
  return ""


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
    ConfigError: fields do not exist, or values are of another type; the other
      fields are set.
  """
  notes, lines, unknown = [], [], set()
  task = c.task.name if "task" in c else None
  # Names of functions go first: they may reset the arguments.
  for name in sorted(values, key=lambda x: not x.endswith(".name")):
    try:
      notes += _override(c, name, values[name])
    except ConfigError as e:
      lines += e.lines
      unknown |= e.fields
  if lines:
    raise ConfigError(*lines, fields=unknown)
  if task is not None and c.task.name != task:
    notes += _leave_out_sft(c, task, values)
  return notes


def _leave_out_sft(c, task: str, values: Mapping[str, Any]) -> list[str]:
  """Resets what a file says about the SFT of its own task; returns a line."""
  lost = []
  for name, spec in FIELDS.items():
    of_task = name.startswith(OF_TASK) and name not in values
    if of_task and at(c, name) != spec.default:
      lost.append(f"{name} = {at(c, name)!r}")
      path, _, last = name.rpartition(".")
      at(c, path)[last] = spec.default
  left = f"task.name = {c.task.name}: leaves out {', '.join(lost)} of {task}"
  return [left] if lost else []


def _override(c, name: str, value: Any) -> list[str]:
  """Sets one field; see `override`."""
  path, _, last = name.rpartition(".")
  try:
    parent = at(c, path) if path else c
    argument = path.rpartition(".")[2] == "args"
    # Whether a function takes an argument is checked later, with its value.
    old = parent.get(last) if argument else parent[last]
  except (KeyError, AttributeError, TypeError):
    raise no_such_field(c, name, value) from None
  if isinstance(old, ml_collections.ConfigDict):
    known = [x for x in FIELDS if x.startswith(f"{name}.")]
    if last == "args":  # of a function: it has no field of its own
      raise ConfigError(
          f"{name} = {value}: set one argument at a time: {name}.NAME = VALUE",
          fields=[f"{path}.name"],
      )
    meant = f"{name}.name" if f"{name}.name" in known else known[0]
    raise ConfigError(
        f"{name} = {value}: is a section, not a field; its fields are"
        f" {', '.join(known)}",
        fields=[meant],
    )
  with c.unlocked():
    if argument:
      if last in parent:
        del parent[last]  # the type of an argument may change
      parent[last] = _literal(value)
      return []
    try:
      parent[last] = _parse(value, old)
    except (TypeError, ValueError, SyntaxError, KeyError):
      kind = NAMES_OF_TYPES[type(old)]
      raise ConfigError(
          f"{name} = {value}: must be {kind}{_several(name, value, old)}",
          fields=[name],
      ) from None
    if last == "name" and parent.get("args") and parent.name != old:
      lost = ", ".join(f"{k} = {v!r}" for k, v in parent.args.items())
      parent.args = {}
      return [f"{name} = {parent.name}: leaves out {lost} of {old}"]
  return []


def _several(name: str, value: Any, old: Any) -> str:
  """The command for several values of a field, if the value is a list."""
  parts = value.split(",") if isinstance(value, str) else []
  try:
    [_parse(x, old) for x in parts]
  except (TypeError, ValueError, SyntaxError, KeyError):
    return ""
  if not parts[1:]:
    return ""
  flags = " ".join(f"--set={name}={x}" for x in parts)
  return (
      "; a run has one value, and several runs are a sweep: python -m"
      f" rl_reason.lab.sweep --config=... --seeds=0 {flags}"
  )


def expand(c) -> None:
  """Replaces `~` by the home directory at the beginning of all paths.

  Args:
    c: the config; fields that are declared as paths are changed.
  """
  for name, spec in FIELDS.items():
    if spec.is_path and isinstance(value := at(c, name), str):
      *path, last = name.split(".")
      at(c, ".".join(path))[last] = home(value)


def home(text: str) -> str:
  """A path, or items such as 'NAME@~/a.jsonl*2,~/b.jsonl', without `~`."""
  return re.sub(
      r"(?<![^,@=\s])~[^/,@=*:\s]*(?=/|$|[,*:])",
      lambda found: os.path.expanduser(found[0]),
      text,
  )


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


def with_defaults(c: ml_collections.ConfigDict) -> ml_collections.ConfigDict:
  """A copy with all arguments of all functions, as a run records them."""
  c = c.copy_and_resolve_references()
  with c.unlocked():
    for kind, known in function_kinds.KINDS.items():
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


EARLIER = (
    "the run is of an earlier version of rl_reason, which can continue,"
    " evaluate and export it; for this version, choose another --workdir"
)

# The module of objects that Python code passes to `rl_reason.train`, formerly
# and now: its name is part of theirs.
_PASSED_OBJECTS = "rl_reason.tasks.given:", "rl_reason.tasks.passed_objects:"


def load(path: pathlib.Path) -> dict[str, Any]:
  """The flat config that a work directory was made with.

  Raises:
    ConfigError: the file is damaged, or was written by another version; the run
      used a feature that was taken out.
  """
  try:
    fields = json.loads(path.read_text().replace(*_PASSED_OBJECTS))
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
  for name, now in RENAMED.items():
    if name in fields:
      raise ConfigError(f"{path}: {name} is now {now}: {EARLIER}")
  fields = used(fields)
  if gone := [x for x in REMOVED if x in fields]:
    raise ConfigError(
        *(f"{path}: {x} = {fields[x]}: {removed(x)}: {EARLIER}" for x in gone)
    )
  return fields
