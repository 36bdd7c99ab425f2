"""What a model card says of a config: how the model was trained, no secrets.

A card is published. Numbers, choices and names of functions go into it. Paths
of this machine, arguments of the user's functions, addresses, and texts that
the user wrote do not.
"""

import json
import pathlib
import re
from collections.abc import Mapping
from typing import Any

from rl_reason import tasks
from rl_reason.base import feature, function_kinds
from rl_reason.base.fields import FIELDS
from rl_reason.data import datasets
from rl_reason.tasks import reward_terms

LOCAL = "a local path"
# Of the machine, the screen, the server and the work directory.
_OF_THE_MACHINE = (
    *("log.", "serve.", "generate.", "checkpoint.", "mesh.", "content."),
    *("hub.", "rollout.engine.", "reward.workers"),
    *("reward.executor", *feature.marked("machine")),
)
# Texts that are names of code, or of the package.
_NAMES = (
    *(f"{known.field}.name" for known in function_kinds.KINDS.values()),
    *("task.name", *feature.marked("code"), "data.template"),
    *("sft.mixture", "sft.habits.mixture", "evaluate.tasks"),
    *feature.marked("published"),
)
# Texts that name data and models: ids of the hub, known sets, or paths.
_SOURCES = (
    *("model.path", "tokenizer", "data.train", "data.evaluate"),
    *(*feature.marked("movable"), *feature.marked("sources")),
)
_HUB = re.compile(r"[\w-][\w.-]*/[\w.-]+(:\w+)?")
# Names with weights or difficulties; a path has a slash.
_PLAIN = re.compile(r"[\w.:,+*()-]*")
# Of files of this machine, which have the form of ids of the hub.
_FILES = {
    *(".json", ".jsonl", ".csv", ".tsv", ".txt", ".parquet", ".arrow", ".gguf"),
    *(".gz", ".bz2", ".xz", ".zst", ".zip", ".ndjson", ".py"),
}
_CODE = re.compile(r"[\w.]*(:[\w.]*)?")


def published(fields: Mapping[str, Any]) -> dict[str, str]:
  """The fields of a model card, as JSON.

  Args:
    fields: flat, of a run.
  """
  out = {}
  for name, value in fields.items():
    precision = name == "export.precision"
    if name.startswith((*_OF_THE_MACHINE, "export.")) and not precision:
      continue
    if name == "reward.functions":
      value = ",".join(map(_term, reward_terms.parts(value)))
    elif name in _SOURCES:
      # The run has hashed local files, which may be gone by now. It has hashed
      # the weights of a model of the hub, too.
      hashed = fields.get(f"content.{name}") and name != "model.path"
      value = LOCAL if hashed else sources(value)
    elif not _plain(name, value):
      continue
    out[name] = json.dumps(value)
  return out


def sources(text: str) -> str:
  """Hub ids and known sets as they are; `LOCAL` for paths of this machine."""
  return ",".join(map(_source, filter(None, map(str.strip, text.split(",")))))


def metric(name: str, fields: Mapping[str, Any]) -> str:
  """The name of a metric, without paths of the sets that were evaluated."""
  for number, item in enumerate(fields.get("data.evaluate", "").split(",")):
    place = item.strip().rpartition("*")[0] or item.strip()
    for path in (place, place.rpartition(":")[0]):
      if path and _source(path) == LOCAL:
        name = name.replace(path, f"{LOCAL} {number}")
  return name


def _source(text: str) -> str:
  place, mark, weight = text.rpartition("*")
  place, weight = (place, mark + weight) if mark else (text, "")
  name = place.partition("@")[0]  # a known set, from a file
  if name.partition(":")[0] in datasets.KNOWN:
    return name + weight
  is_file = pathlib.PurePath(place).suffix.lower() in _FILES
  is_hub = _HUB.fullmatch(place) and not is_file
  is_hub = is_hub and not pathlib.Path(place).exists()
  return (place if is_hub else LOCAL) + weight


def _term(text: str) -> str:
  """A term of the reward without its arguments."""
  try:
    found = reward_terms.term(text)
  except ValueError:  # of an earlier version
    return LOCAL
  name = found.name.partition("(")[0]
  if reward_terms.is_model(name):
    name = _source(name)
  elif not _CODE.fullmatch(name):  # a file of rules
    name = LOCAL
  weights = f"{found.first:g}"
  if found.last != found.first:
    weights += f"..{found.last:g}"
  return f"{name}*{weights}"


def _plain(name: str, value: Any) -> bool:
  """Whether a value is a number, a choice or a name of code."""
  if isinstance(value, list | tuple):
    return all(_plain("", x) for x in value)
  if not isinstance(value, str):
    return not isinstance(value, dict)
  choices = FIELDS[name].choices if name in FIELDS else ()
  if not value or choices:
    return not value or value in choices
  is_gym = value.startswith(f"{tasks.GYM}:")  # with arguments of its sets
  plain = is_gym or _PLAIN.fullmatch(value.replace(", ", ","))
  return name in _NAMES and bool(plain)
