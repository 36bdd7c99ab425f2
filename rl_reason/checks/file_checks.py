"""The local files that a config names, read before anything is compiled.

Of a checkpoint config.json and the headers of the weights, the tokenizer with
its chat template, and the first rows of data. What is on the hub is fetched,
and checked, by the run.
"""

import contextlib
import pathlib
import re
from collections.abc import Iterator
from typing import Any

from rl_reason import tasks
from rl_reason.base import feature, own_code
from rl_reason.base.config import at
from rl_reason.checks import prompt_lengths, relations, rules
from rl_reason.checks.rules import Faults, Rule

TRAINS = ("all", "sft", "value", *feature.stages())
# Stage -> uses of data whose rows the stage reads.
USES: dict[str, tuple[str, ...]] = {"evaluate": ("evaluate",)}
USES |= dict.fromkeys((*TRAINS, "prepare"), ("evaluate", "train"))


def check(c, stage: str, faults: Faults) -> None:
  """Adds the faults of the files of a run.

  Args:
    c: the config; fields with faults have their defaults.
    stage: of `run.STAGES`.
    faults: of the config; files of fields with faults are not read.
  """
  with faults.caught():
    rules.check(c, _directories(c, faults.fields))
  uses = () if c.task.name != tasks.FILES else USES.get(stage, ())
  in_vain = {"task.name", "data.train", "data.evaluate", "data.columns"}
  in_vain |= {"data.kind", "data.template", "data.chat", "reward.seconds"}
  with contextlib.ExitStack() as cleanup:
    rows = None
    if uses and not in_vain & faults.fields:
      from rl_reason.checks import first_rows

      rows = first_rows.FirstRows(c, uses)
      cleanup.callback(rows.close)
    tok = _model(c, faults)
    if rows:
      faults.add(rows.faults(tok))
    elif c.task.name != tasks.FILES and stage in TRAINS:
      _prompts(c, tok, faults)
  in_vain = {"model.path", "tokenizer", "task.name"}
  trains = stage in TRAINS and not in_vain & faults.fields
  for one in feature.used(c):
    with faults.caught():
      found = one.files(c, tok, trains)
      rules.check(c, (x for x in found if x[0] not in faults.fields))


def _directories(c, unknown: set[str]) -> Iterator[Rule]:
  """Work directories of other runs."""
  for name in ("sft.reuse", "critic.reuse"):
    path = at(c, name)
    if path and name not in unknown and not pathlib.Path(path).is_dir():
      yield name, "there is no such directory; name the work directory of a run"


def _model(c, faults: Faults) -> Any:
  """Checks the model and the tokenizer; returns a tokenizer of the user's.

  It is None if no tokenizer is named, or if it is on the hub or has faults.
  """
  if {"model.path", "tokenizer"} & faults.fields:
    return None
  if not (c.model.path or c.tokenizer):
    return None
  from rl_reason import hf
  from rl_reason.checks import model_directory, model_rules
  from rl_reason.data import templates, tokenizer

  place, source = pathlib.Path(c.model.path), None
  c = c.copy_and_resolve_references()
  if c.model.path and (place.exists() or not hf.is_hub_id(c.model.path)):
    with faults.caught():
      source = model_directory.resolve(c)
      rules.check(c, relations.of_experts(c))
      rules.check(c, model_rules.of_shape(c))
  local = c.model.path and place.is_dir()
  if not (local or c.tokenizer) or _on_hub(c.tokenizer):
    return None
  if local and not c.tokenizer and not source and not _has_config(place):
    return None  # transformers reads config.json, too
  with faults.caught():
    alphabet = tasks.get(c.task.name).ALPHABET
    if source:
      tok = model_directory.load_tokenizer(c, source, alphabet)
    else:
      path = model_directory.tokenizer_path(c, place if local else None)
      args = templates.arguments(c.data.template_args)
      tok = tokenizer.load(path, alphabet, template_args=args)
      model_directory.of_rollout(tok, c.rollout)
    return tok
  return None


def _has_config(directory: pathlib.Path) -> bool:
  """Whether a directory has a config.json of a supported model."""
  from rl_reason.hf import architecture, model_files

  try:
    architecture.read(model_files.read_json(directory / architecture.CONFIG))
    return True
  except model_files.CheckpointError:
    return False


def _on_hub(name: str) -> bool:
  """Whether a tokenizer has to be fetched."""
  is_id = re.fullmatch(r"[\w-][\w.-]*(/[\w.-]+)?", name)
  return bool(is_id) and not pathlib.Path(name).exists()


def _prompts(c, tok: Any, faults: Faults) -> None:
  """Checks the prompts of a task that generates its problems."""
  if {"task.name", "task.difficulties", "rollout.max_prompt"} & faults.fields:
    return
  if any(
      x.startswith(("task.difficulties", "sft.difficulties"))
      for x in faults.lines
  ):
    return  # of difficulties that the task does not have
  if tok is None and (c.tokenizer or c.model.path):
    return

  def count(texts):
    if tok is None:  # a token for each character
      return list(map(len, texts))
    from rl_reason.data import tokenizer

    return list(map(len, tokenizer.encode_prompts(tok, texts)))

  with faults.caught():
    try:
      task = tasks.get(c.task.name)
      prompt_lengths.check_prompts(c, task, count)
    except rules.ConfigError:
      raise
    except Exception as e:  # the user's task may raise anything
      rules.refuse(c, "task.name", own_code.raised(e))
