"""Phases of RL: the config of each one, checked before the first one starts."""

import pathlib

from rl_reason import tasks
from rl_reason.base import config as config_lib, phase_plan
from rl_reason.base.config import at
from rl_reason.base.errors import ConfigError
from rl_reason.checks import config_checks, config_facts, file_checks, rules
from rl_reason.tasks import evaluation_tasks

# Fields that phases cannot change, by prefix -> what to do instead.
WHOLE = "start another run for another model"
SAME = "set it in the config, for all phases"
FIXED = {
    **dict.fromkeys(("model.", "lora.", "critic.head.", "tokenizer"), WHOLE),
    **dict.fromkeys(("seed", "mesh.", "hub."), SAME),
    "sft.": "SFT precedes the first phase: set it in the config",
    "rl.steps": "the end of a phase is its `until`",
    "rl.init": "a phase starts from the one before",
    "kl.reference": "say refresh=reference",
    "rl.init_optimizer": "say refresh=optimizer",
    "evaluate.tasks": "phases evaluate all tasks so far by themselves",
    **dict.fromkeys(("phases", "rounds."), "a phase is a single run"),
    **dict.fromkeys(
        ("critic.pretrain", "critic.reuse", "critic.value_mixture"),
        "values are pretrained before the first phase: set it in the config",
    ),
}
# Fields that decide the arrays in the state of an optimizer.
STATE = ("optimizer.name", "optimizer.freeze", "optimizer.clip_norm")
TEXT = "phases"


def directory(workdir: pathlib.Path, number: int) -> pathlib.Path:
  """The work directory of a phase."""
  return workdir / f"phase-{number}"


def tokenizer(workdir: pathlib.Path) -> pathlib.Path:
  """The tokenizer of phases of several tasks, whose characters it has."""
  return workdir / "tokenizer"


def overridden(config, number: int):
  """The config with the fields of a phase, and its number of steps.

  Raises:
    ConfigError: a field does not exist, or has another type.
  """
  plan = phase_plan.parse(config.phases)
  c = config.copy_and_resolve_references()
  c.phases = ()
  config_lib.override(c, plan[number].fields)
  config_lib.expand(c)
  c.rl.steps = phase_plan.lengths(plan)[number]
  return c


def of_phase(config, number: int, workdir: pathlib.Path):
  """The config of the run of a phase.

  Args:
    config: of all phases, checked.
    number: of the phase; phase 0 also makes the initial policy.
    workdir: work directory of all phases.
  """
  from rl_reason.devices.randomness import host_seed  # imports JAX

  plan, c = phase_plan.parse(config.phases), overridden(config, number)
  if alphabet(config):
    c.tokenizer = str(tokenizer(workdir))
  sets = [_own_set(overridden(config, i)) for i in range(len(plan))]
  # Later phases must not change this one: phases may be added.
  own = filter(None, sets[: number + 1])
  so_far = dict.fromkeys((*own, *evaluation_tasks.parse(config.evaluate.tasks)))
  c.evaluate.tasks = ",".join(x.text for x in so_far)
  if c.task.name == tasks.FILES:
    texts = [
        overridden(config, i).data.evaluate.split(",")
        for i in range(number + 1)
        if sets[i] is None
    ]
    # In the order of the phases, since sets of equal names are numbered.
    found = dict.fromkeys(x for text in texts for x in text)
    c.data.evaluate = ",".join(filter(None, found))
  if not number:
    return config_lib.with_defaults(c)
  c.seed = host_seed(config.seed, f"phase {number}")  # other prompts and noise
  if config_facts.sft_steps(config):
    c.sft.reuse = str(directory(workdir, 0))
  c.critic.pretrain_steps, c.critic.reuse = 0, ""
  c.rl.init = str(directory(workdir, number - 1))
  refresh = plan[number].refresh
  c.rl.init_optimizer = phase_plan.OPTIMIZER not in refresh
  if c.kl.kind != "none":  # the newest reference, of this phase or before
    for i in range(1, number + 1):
      if phase_plan.REFERENCE in plan[i].refresh:
        c.kl.reference = str(directory(workdir, i - 1))
  return config_lib.with_defaults(c)


def alphabet(config) -> str:
  """All characters of the tasks, if they differ and no tokenizer is named."""
  if config.tokenizer or config.model.path:
    return ""
  names = dict.fromkeys(
      overridden(config, i).task.name for i in range(len(config.phases))
  )
  found = {name: tasks.get(name).ALPHABET for name in names}
  if len(set(found.values())) < 2:
    return ""
  return "".join(dict.fromkeys("".join(found.values())))


def check(config, stage: str, faults: rules.Faults) -> None:
  """Adds the faults of all phases, each line with the number of its phase.

  Args:
    config: of all phases, checked by itself.
    stage: of `run.STAGES`.
    faults: of the config.
  """
  plan, workdir = phase_plan.parse(config.phases), pathlib.Path("phases")

  def add(number: int, e: Exception) -> None:
    lines = e.lines if isinstance(e, ConfigError) else [str(e)]
    faults.add([f"{TEXT}: phase {number}: {x}" for x in lines], [TEXT])

  # Each phase by itself: the config of a phase depends on all of them.
  for number, phase in enumerate(plan):
    try:
      for name, value in phase.fields.items():
        _require_free(name, value)
      _own_set(overridden(config, number))
    except (ConfigError, ValueError) as e:
      add(number, e)
  if faults.lines:
    return
  before = None
  for number, phase in enumerate(plan):
    try:
      c = of_phase(config, number, workdir)
      _require_sets(config, number)
      if before is not None:
        _require_state(c, before, phase)
      config_checks.fields(c, phase.fields)
    except (ConfigError, ValueError) as e:
      add(number, e)
      continue
    # Of files, those that exist before the first phase.
    own, before = rules.Faults(), c
    c = c.copy_and_resolve_references()
    c.rl.init, c.rl.init_optimizer, c.sft.reuse = "", True, config.sft.reuse
    c.tokenizer, c.kl.reference = config.tokenizer, config.kl.reference
    if alphabet(config):
      c.evaluate.tasks = ""  # the tokenizer of all tasks is not there yet
    file_checks.check(c, stage, own)
    faults.add([f"{TEXT}: phase {number}: {x}" for x in own.lines], own.fields)


def _require_free(name: str, value: str) -> None:
  """Refuses a field that cannot change between phases."""
  for prefix in sorted(FIXED, key=len, reverse=True):
    if name.startswith(prefix):
      raise ConfigError(
          f"{name} = {value}: cannot change between phases: {FIXED[prefix]}"
      )


def _require_state(c, before, phase: phase_plan.Phase) -> None:
  """Refuses an optimizer that cannot go on with the state of the one before."""
  if phase_plan.OPTIMIZER in phase.refresh:
    return
  for name in STATE:
    old, new = at(before, name), at(c, name)
    if name == "optimizer.clip_norm":
      old, new = bool(old), bool(new)
    if old != new:
      raise ConfigError(
          f"{name} = {at(c, name)!r}: has another state than with"
          f" {at(before, name)!r} in the phase before: say refresh=optimizer"
      )


def _require_sets(config, number: int) -> None:
  """Refuses a phase that cannot evaluate the sets of an earlier one."""
  c = overridden(config, number)
  for i in range(number):
    other = overridden(config, i)
    same = other.task == c.task and other.environment == c.environment
    files = tasks.FILES == c.task.name == other.task.name
    if _own_set(other) is None and not (same or files):
      raise ConfigError(
          f"task.name = {c.task.name!r}: evaluates no held-out rows of"
          f" {other.task.name!r} of phase {i}, so its forgetting would not be"
          f" known: let {other.task.name!r} be the task of the last phases"
      )


def _own_set(c) -> evaluation_tasks.TaskSet | None:
  """The held-out set of a generated task; None for files.

  Raises:
    ValueError: the sets of the task cannot be evaluated in later phases.
  """
  if c.task.name == tasks.FILES or c.task.name.startswith(tasks.GYM):
    return None
  if config_facts.environment(c) or not tasks.get(c.task.name).verifies:
    return None
  return evaluation_tasks.of(c.task.name, tuple(c.task.difficulties))
