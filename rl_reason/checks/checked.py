"""Errors and warnings of a config before anything compiles.

An error is one line: the field, its value, and the remedy. Nothing here imports
jax, so that an error appears within half a second.
"""

import pathlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import ml_collections

from rl_reason import environments, tasks
from rl_reason.base import config, errors, functions, kinds
from rl_reason.base.errors import ConfigError
from rl_reason.base.fields import FIELDS
from rl_reason.checks import (
    combinations,
    config_files,
    facts,
    of_experts as experts,
    of_rounds as rounds,
    unread,
)
from rl_reason.checks.combinations import Fault, fail, faults_of
from rl_reason.data import datasets, templates
from rl_reason.monitoring import loggers
from rl_reason.tasks import files as task_files, reward_terms

# Fields that may differ from those of the run that is served.
SERVED = ("serve.", "mesh.", "rollout.weights", "rollout.cache")
# Of `models.decoder`, which needs jax.
MATRICES = ("q", "k", "v", "o", "gate", "up", "down")


def checked(
    path: str | ml_collections.ConfigDict, given: Mapping[str, Any]
) -> tuple[ml_collections.ConfigDict, list[str]]:
  """Reads and checks a config with its overrides.

  Args:
    path: FILE.py, or FILE.py:variant; or the name of a preset; or a config,
      which is copied.
    given: full name of a field -> its value, or text.

  Returns:
    The config with all arguments of its functions, and lines for the screen:
    which preset is meant, arguments that an override has left out, warnings.

  Raises:
    ConfigError: the first thing that is wrong.
  """
  preset = ""
  if isinstance(path, str):
    c = config_files.read(path)
    _, preset = config_files.find_file(path.partition(":")[0])
  else:
    c, path = path.copy_and_resolve_references(), "the config"
  notes = [*filter(None, [preset]), *config.override(c, given)]
  try:
    fields(c, tuple(given))
  except (AttributeError, KeyError, TypeError) as e:
    raise ConfigError(
        f"{path}: {errors.one_line(e)}; does it start from configs/base.py?"
    ) from None
  said = [*combinations.warnings(c), *unread.warnings(c)]
  notes += [f"warning: {line}" for line in said]
  return config.with_defaults(c), notes


def fields(c: ml_collections.ConfigDict, given: tuple[str, ...] = ()) -> None:
  """Checks every field, every function and every combination.

  Args:
    c: the whole config.
    given: names of the fields that were set on the command line.

  Raises:
    ConfigError: the first thing that is wrong.
  """
  # Single fields first: combinations rely on types and bounds.
  values = config.flat(c)
  bounds(c, FIELDS)
  arguments = tuple(f"{x.field}.args" for x in kinds.KINDS.values())
  for name, value in values.items():
    if name not in FIELDS and not name.startswith(arguments):
      raise config.no_such_field(c, name, value)
  for kind, known in kinds.KINDS.items():
    functions.check(kind, config.at(c, known.field))
  # Combinations are checked, and shown, with the defaults of all arguments.
  values = config.flat(config.with_defaults(c))
  try:
    for rules in (_task, _data, _model, _log, _export, _hub, rounds.check):
      rules(c)
    combinations.check(c, values)
    if not c.model.path:  # or else `devices` knows the shape
      experts.check(c)
    unread.refuse(c, given)
  except Fault as e:
    raise _error(values, *e.args) from None


def bounds(c: ml_collections.ConfigDict, names: Iterable[str]) -> None:
  """Checks types and bounds of some fields.

  Raises:
    ConfigError: the first value that a field cannot have.
  """
  for name in names:
    if problem := FIELDS[name].problem(config.at(c, name)):
      raise _error(config.flat(c), name, problem)


def _error(values: dict[str, Any], field: str, remedy: str) -> ConfigError:
  return ConfigError(f"{field} = {values.get(field)!r}: {remedy}")


def _sft_steps(c) -> int:
  return 0 if c.sft.reuse else c.sft.skill.steps + c.sft.habits.steps


def _task(c) -> None:
  """The task, its difficulties, and the styles of its demonstrations."""
  with faults_of("task.name"):
    task = tasks.get(c.task.name)
  with faults_of("environment.name"):
    environments.find(c.environment.name, task)
  if c.sft.samples and not _sft_steps(c):
    fail("sft.samples: no step of SFT learns from them: set sft.skill.steps")
  if _sft_steps(c) and not (task.has_demonstrations or c.sft.samples):
    fail(
        f"sft.skill.steps: the task {c.task.name} has no function demonstrate:"
        " give model.path, and set sft.skill.steps = 0 and sft.habits.steps = 0"
    )
  for level in c.task.difficulties if task.DIFFICULTIES else ():
    if level not in task.DIFFICULTIES:
      fail(
          f"task.difficulties: {level!r} is none of {c.task.name}'s"
          f" {task.DIFFICULTIES}"
      )
  mixtures = ["sft.skill.mixture", "sft.habits.mixture"]
  pairs = ["reward_model.chosen", "reward_model.rejected"]
  for name in mixtures + [x for x in pairs if config.at(c, x)]:
    with faults_of(name):
      styles = facts.mixture(config.at(c, name))
    for style in styles if task.STYLES else ():
      if style not in task.STYLES:
        fail(
            f"{name}: {style!r} is none of {c.task.name}'s styles"
            f" {', '.join(task.STYLES)}; see configs/{c.task.name}.py"
        )


def _data(c) -> None:
  """Rows of files."""
  d = c.data
  with faults_of("data.train"):
    train = facts.sources(c, "train")
    for source, _ in train:
      if source.benchmark and not d.allow_benchmarks:
        fail(
            f"data.train: {source.name}:{source.split} is a benchmark: leave it"
            " out, or set data.allow_benchmarks = True"
        )
  with faults_of("data.evaluate"):
    evaluate = facts.sources(c, "evaluate")
  if any(weight is not None for _, weight in evaluate):
    fail("data.evaluate: sets are evaluated separately: leave out the weights")
  for name in ("sft.samples", "reward_model.samples"):
    with faults_of(name):
      datasets.parse_all(config.at(c, name), "train")
  with faults_of("data.kind"):
    kinds = datasets.assignments(d.kind)
    for kind in kinds.values():
      task_files.check_kind(kind)
  for name in filter(None, kinds):
    if not any(name in source.names for source, _ in train + evaluate):
      fail(
          f"data.kind: {name!r} is no file of data.train or data.evaluate;"
          " known sets have a kind of their own"
      )
  if any(facts.unverified(c)) and c.rl.steps and not c.reward.functions:
    fail(
        "reward.functions: nothing verifies responses (data.kind = 'none', or a"
        " task that has no function verify), so that only functions can reward"
        " them: name one, as in 'my_rewards:judge*1'"
    )
  with faults_of("data.template"):
    templates.choose(d.template, "")
  with faults_of("data.columns"):
    datasets.columns(d.columns)
  if (d.train or d.evaluate) and not (c.tokenizer or c.model.path):
    fail(
        "tokenizer: the characters of the built-in tasks cannot spell"
        " data.train and data.evaluate: name a tokenizer"
    )
  files, named = c.task.name == tasks.FILES, bool(d.train or d.evaluate)
  # A model that is only served needs no rows.
  learns = c.rl.steps or c.sft.skill.steps or c.sft.habits.steps
  if files != named and (named or learns):
    fail(
        "task.name: 'files' goes with data.train and data.evaluate: set both or"
        " neither"
    )


def _model(c) -> None:
  """Shapes, the mesh, LoRA, and the optimizer."""
  m, o = c.model, c.optimizer
  if m.heads % m.kv_heads:
    fail(f"model.heads: must be a multiple of model.kv_heads = {m.kv_heads}")
  if m.head_dim % 2:
    fail("model.head_dim: must be even (rotary embeddings)")
  if m.rope_low >= m.rope_high:
    fail(f"model.rope_low: must be below model.rope_high = {m.rope_high}")
  if not (m.path or c.sft.reuse or c.sft.skill.steps):
    fail(
        "sft.skill.steps: an untrained model solves nothing: train it, or give"
        " model.path or sft.reuse"
    )
  for axis, size in facts.mesh_axes(c).items():
    if size != -1 and size < 1:
      fail(f"mesh.{axis}: must be positive, or -1")
  if list(facts.mesh_axes(c).values()).count(-1) > 1:
    fail("mesh.data: only one axis of the mesh may be -1")
  length = c.rollout.max_prompt + c.rollout.max_tokens
  if length % c.mesh.sequence:
    fail(
        "mesh.sequence: must divide the length of packed rows,"
        f" rollout.max_prompt + rollout.max_tokens = {length}"
    )
  for name in facts.lora_targets(c):
    if name not in MATRICES:
      fail(f"lora.targets: {name!r} is none of {', '.join(MATRICES)}")
  if o.freeze and not (m.path or round(o.freeze * m.layers)):
    fail(f"optimizer.freeze: is not one layer of model.layers = {m.layers}")
  if o.offload and o.name != "adamw":
    fail(f"optimizer.offload: {o.name!r} keeps no moments: leave it out")
  for section in ("optimizer", "critic"):
    if c[section].warmup_steps >= max(c.rl.steps, 1):
      fail(f"{section}.warmup_steps: must be less than rl.steps = {c.rl.steps}")


def _log(c) -> None:
  """Loggers beside metrics.jsonl."""
  with faults_of("log.loggers"):
    loggers.check(c.log.loggers)


def _hub(c) -> None:
  """Revisions: of repositories that something is fetched from."""
  with faults_of("hub.revisions"):
    given = facts.revisions(c)
  if not given:
    return
  fetched = {c.model.path, c.tokenizer, c.critic.path}
  texts = [c.data.train, c.data.evaluate, c.sft.samples, c.reward_model.samples]
  for text in texts:
    fetched |= {x.place for x, _ in datasets.parse_all(text, "train")}
  with faults_of("reward.functions"):
    fetched |= {x.name for x in reward_terms.terms(c.reward.functions)}
  for name in given:
    if name not in fetched or pathlib.Path(name).exists():
      hint = errors.did_you_mean(name, filter(None, fetched))
      fail(
          f"hub.revisions: {name!r} is no repository that this config"
          f" fetches{hint}"
      )


def _export(c) -> None:
  """The name of a repository."""
  name = c.export.push_to
  if name and not re.fullmatch(r"[\w.-]+/[\w.-]{1,96}", name):
    fail("export.push_to: must be 'owner/name' of a repository on the hub")


# --- what depends on more than the config ------------------------------------
