"""Trained parameters: of a stage of this run, of another run, or exported.

sft           the policy of SFT, or of model.path
start         the policy that RL starts from: of SFT, or of a stage after it
policy        the policy of a work directory, by step
rl            policy and critic of a checkpoint of RL
critic        the critic that value pretraining starts from
reused_critic the critic that another run has pretrained
reward_model  a reward model of this package, or of transformers
"""

import functools
import pathlib
from collections.abc import Callable
from typing import Any

import jax

from rl_reason import hf
from rl_reason.base import config as config_lib, feature, fields, resume_rules
from rl_reason.base.errors import RunError
from rl_reason.base.structs import Tree
from rl_reason.checkpointing import averaging
from rl_reason.checkpointing.checkpoint import Checkpoints
from rl_reason.checks import config_facts, named_code
from rl_reason.devices.randomness import key
from rl_reason.models import (
    critic as critic_lib,
    decoder,
    linear,
    parameters,
)
from rl_reason.monitoring.display import Display
from rl_reason.stages import classifier, optimizers
from rl_reason.stages.model import Model, critic_config, model_config
from rl_reason.stages.run_output import Output, open_stage
from rl_reason.tasks import reward_terms
from rl_reason.training.optimizer import abstract_state

# Parts of SFT, as their checkpoints are called -> their sections.
PARTS = {"sft": "sft", "habits": "sft.habits"}
Say = Callable[[str], None]

# Fields that give a critic its shape; `resume_rules.VALUES` give it meaning.
NETWORK = ("model.", "tokenizer", "task.name", "critic.head.")


def imported(c, model: Model, display: Display) -> Tree:
  """The parameters of config.model.path."""
  name = c.model.path
  source = hf.find(name, revision=config_facts.revision(c, name))
  display.doing(f"reading {source.path}")
  params = hf.load(source, decoder.table(model.cfg), model.mesh)
  display.say(f"read {len(source.tensors)} tensors of {source.path}")
  return params


def sft(c, *, model: Model, output: Output) -> Tree:
  """The final parameters of SFT, of this run or of config.sft.reuse.

  Without SFT they are the parameters of config.model.path.

  Raises:
    RunError: SFT is not complete, or its model is a different one.
  """
  s = c.sft
  if not has_sft(c):
    return imported(c, model, output.display)
  workdir = pathlib.Path(s.reuse or output.workdir)
  for part in reversed(PARTS):
    checkpoints = Checkpoints(workdir / "checkpoints" / part)
    step = checkpoints.newest(output.display.say)
    if step is not None:
      break
  if step is None and (workdir / "checkpoints" / "skill").exists():
    raise RunError(
        f"{workdir}: checkpoints/skill is now checkpoints/sft: the run is of an"
        " earlier version of rl_reason; export its policy with that version,"
        " and start from the export: model.path"
    )
  host = {} if step is None else checkpoints.host(step)
  # The habits are the last part, unless they had no steps.
  last = part == "habits" or (host and not host["config"]["sft.habits.steps"])
  steps = f"{PARTS[part]}.steps"
  if step is None or not last or step != host["config"][steps]:
    raise RunError(f"{workdir}: its SFT is not complete; run --stage=sft there")
  if s.reuse:  # the run's own config was compared with everything it wrote
    equal = ["model.", "tokenizer"]
    if not (c.tokenizer or c.model.path):
      equal.append("task.name")  # the tokenizer has its characters
    require_equal(
        f"sft.reuse = {workdir}",
        config_lib.flat(c),
        host["config"],
        tuple(equal),
    )
  return _network(checkpoints, step, model)


def _network(checkpoints: Checkpoints, step: int, model: Model) -> Tree:
  """The parameters of a policy alone: this run may have another optimizer."""
  table = decoder.table(model.cfg)
  shardings = parameters.shardings(table, model.mesh)
  like = dict(params=parameters.abstract(table, shardings))
  return checkpoints.restore_part(step, like)["params"]


def _ended(which: str, output: Output) -> tuple[Checkpoints, int] | None:
  """The last checkpoint of a stage of `feature.stages` that trains a policy.

  It is None if `which` is the name of no such stage.

  Raises:
    RunError: the stage is not complete.
  """
  known = feature.stages().get(which)
  if known is None or not known.policy:
    return None
  checkpoints = Checkpoints(output.workdir / "checkpoints" / which)
  step = checkpoints.newest(output.display.say)
  if step is None or not checkpoints.host(step)["complete"]:
    raise RunError(
        f"{output.workdir}: its stage {which} is not complete; run"
        f" --stage={which} there"
    )
  return checkpoints, step


def start(c, *, model: Model, output: Output) -> Tree:
  """The policy that RL starts from: of `feature.before_rl`, or of SFT.

  Raises:
    RunError: the stage is not complete; see `sft`.
  """
  names = feature.before_rl(c)
  if not names:
    return sft(c, model=model, output=output)
  ended = _ended(names[-1], output)
  assert ended, names
  return _network(*ended, model)


def has_sft(c) -> bool:
  """Whether there is a policy of SFT, of this run or of another one."""
  return bool(c.sft.reuse or config_facts.sft_steps(c))


def policy(
    c, which: str, *, model: Model, output: Output
) -> tuple[Tree, Tree | None, int, str]:
  """A policy, its critic (or None), their step of RL, and words about them.

  Args:
    c: the config.
    which: 'newest', 'best', a step of RL, several (see `averaging`), 'sft', or
      a stage of a feature whose result is a policy. Where RL has not begun,
      'newest' is the policy that RL would start from: of such a stage, of SFT,
      or without SFT the model of model.path.
    model: shapes and devices.
    output: work directory and screen.

  Raises:
    RunError: there is no such checkpoint.
  """
  if ended := _ended(which, output):
    return _network(*ended, model), None, 0, f"the policy of --stage={which}"
  if starts(c, which, output):
    about = "SFT" if has_sft(c) else c.model.path
    before = feature.before_rl(c) if which != "sft" else []
    if before:
      about = f"--stage={before[-1]}"
    params = (start if before else sft)(c, model=model, output=output)
    return params, None, 0, f"the policy of {about}"
  params, critic_params, step = rl(c, which, model=model, output=output)
  what = f"step {step}" if "+" not in which else f"the mean of steps {which}"
  about = f"the policy of {what} of RL in {output.workdir}"
  return params, critic_params, step, about


def merged(policy: Tree) -> Tree:
  """A policy with each weight as an array, as exports have it."""
  leaves = jax.tree.leaves(policy, is_leaf=linear.is_composed)
  if not any(map(linear.is_composed, leaves)):
    return policy  # a program would copy it
  return jax.jit(linear.merged)(policy)


def require(c, which: str, output: Output) -> None:
  """Refuses a policy that a work directory has not, before it takes long.

  Raises:
    RunError: as `policy`.
  """
  if not _ended(which, output) and not starts(c, which, output):
    _step(c, which, output)


def starts(c, which: str, output: Output) -> bool:
  """Whether `which` names a policy before RL, and no stage of a feature."""
  begun = open_stage(c, output, "rl").checkpoints.steps()
  return which == "sft" or (which == "newest" and not begun)


def _step(c, which: str, output: Output) -> int:
  """The step of a complete checkpoint of RL; of an average the last step.

  Raises:
    RunError: there is none; lists the available ones. Or there is no average.
  """
  checkpoints = open_stage(c, output, "rl").checkpoints
  several = _several(c, which)
  if which == "best":
    step = checkpoints.best()
  elif which == "newest":
    step = checkpoints.newest(output.display.say)
  elif several:
    step = several.steps[-1]
  else:
    step = int(which) if which.isdigit() else None
  steps = several.steps if several else (step,)
  if step is None or any(x is None or checkpoints.fault(x) for x in steps):
    complete = [s for s in checkpoints.steps() if not checkpoints.fault(s)]
    raise RunError(
        f"--step = {which}: no such checkpoint of RL in {output.workdir}"
        f" (there are {complete}; or 'newest', 'best', 'sft')"
    )
  if several:
    _require_shapes(checkpoints, several, which)
  return step


def rl(
    c,
    which: str,
    *,
    model: Model,
    output: Output,
    base: Callable[[], Tree] | None = None,
) -> tuple[Tree, Tree | None, int]:
  """Policy and critic of a complete checkpoint of RL.

  Args:
    c: the config.
    which: 'newest', 'best', a step, or several steps, which are averaged.
    model: shapes and devices.
    output: work directory and screen.
    base: () -> the parameters that RL started from, read if learned parameters
      are beside frozen ones; None: of `start`.

  Returns:
    the policy, the critic (None without one), and their (last) step.

  Raises:
    RunError: there is no such checkpoint; lists the available ones. Or frozen
      parameters have changed, or checkpoints cannot be averaged.
  """
  checkpoints = open_stage(c, output, "rl").checkpoints
  several = _several(c, which)
  step = _step(c, which, output)
  # Only the networks are read: no code of the config decides their shapes.
  learned = optimizers.learned(c)
  tables = dict(policy=learned.table(model.cfg))
  if checkpoints.contents(step)["critic"] is not None:
    tables["critic"] = critic_lib.table(model.critic_cfg)
  like = {
      name: dict(
          params=parameters.abstract(
              table, parameters.shardings(table, model.mesh)
          )
      )
      for name, table in tables.items()
  }
  if several:
    read = [
        functools.partial(checkpoints.restore_part, x, like)
        for x in several.steps
    ]
    found = averaging.combine(several.weights(), read)
  else:
    found = checkpoints.restore_part(step, like)
  networks = {name: x["params"] for name, x in found.items()}
  of_start = base or functools.partial(start, c, model=model, output=output)
  frozen = learned.frozen(of_start, model.cfg.dtype)
  learned.check(checkpoints.host(step), frozen)
  params = learned.read(networks["policy"], frozen)
  return params, networks.get("critic"), step


def _several(c, which: str) -> averaging.Average | None:
  """The steps to average, if `which` names several.

  Raises:
    RunError: they cannot be averaged.
  """
  try:
    found = averaging.parse(which)
  except ValueError as e:
    raise RunError(f"--step = {which}: {e}") from None
  if found and (why := optimizers.learned(c).no_mean):
    raise RunError(f"--step = {which}: {why}")
  return found


def _require_shapes(
    checkpoints: Checkpoints, several: averaging.Average, which: str
) -> None:
  """Refuses to average networks of other shapes."""

  def shapes(step: int):
    found = checkpoints.contents(step)
    return {
        name: jax.tree.map(lambda x: tuple(x.shape), found[name]["params"])
        for name in ("policy", "critic")
        if found[name] is not None
    }

  first, *others = several.steps
  for step in others:
    if shapes(step) != shapes(first):
      raise RunError(
          f"--step = {which}: the networks of step {step} have other shapes"
          f" than those of step {first}: only equal ones have a mean"
      )


def random_critic(
    c, purpose: str, model: Model, shardings: Tree, trunk: Tree | None
) -> Tree:
  """A critic on the mesh, its trunk copied from a policy, or random.

  The parameters of the policy are copied, because updates donate their state.
  """

  def make(random_key, trunk):
    return critic_lib.init(model.critic_cfg, random_key, trunk)

  random_key = key(model.mesh, c.seed, purpose)
  return jax.jit(make, out_shardings=shardings)(random_key, trunk)


def critic(
    c, policy_params: Tree, shardings: Tree, *, model: Model, tok: Any, say: Say
) -> Tree:
  """Initial parameters of a critic: of the policy, random, or exported."""
  path = c.critic.path
  if c.critic.init == "exported" and classifier.is_classifier(path):
    table = critic_lib.table(model.critic_cfg)
    return hf.load(_critic_source(c, model, tok), table, model.mesh)
  if c.critic.init == "exported":
    table = critic_lib.table(model.critic_cfg)
    like = parameters.abstract(table, shardings)
    checkpoints, step = other_checkpoint(
        c, "critic.path", path, NETWORK, "--stage=export", say
    )
    return checkpoints.restore(step, like)
  trunk = policy_params if c.critic.init == "policy" else None
  return random_critic(c, "critic", model, shardings, trunk)


def reused_critic(
    c, *, model: Model, say: Say
) -> tuple[Tree, dict[str, float]]:
  """The critic that another work directory pretrained, and its counters.

  Raises:
    RunError: it is not complete, or its values are of another policy.
  """
  reuse, steps = c.critic.reuse, c.critic.pretrain_steps
  path = pathlib.Path(reuse) / "checkpoints" / "value"
  checkpoints, step = other_checkpoint(
      c, "critic.reuse", path, NETWORK, "--stage=value", say
  )
  host, here = checkpoints.host(step), config_lib.flat(c)
  if other := resume_rules.other_values(host["config"], here, reuse):
    raise RunError(
        f"critic.reuse = {reuse}: its values are of another policy, or"
        f" of other rewards ({'; '.join(other)}); make the fields equal, or"
        " pretrain here: critic.reuse = ''"
    )
  if not host["complete"]:
    raise RunError(f"{reuse}: not complete; run --stage=value there")
  cfg, mesh = model.critic_cfg, model.mesh
  optimizer = optimizers.of_critic(c, cfg, mesh, steps)
  like = abstract_state(critic_lib.table(cfg), *optimizer)
  return checkpoints.restore(step, like).params, host["counters"]


def is_trained(name: str) -> bool:
  """Whether there is a reward model: a classifier, or an export of a run."""
  exported = bool(Checkpoints(pathlib.Path(name)).steps())
  return exported or classifier.is_classifier(name)


def reward_model(
    c,
    name: str,
    field: str = "reward.functions",
    *,
    model: Model,
    tok: Any,
    say: Say,
) -> tuple[Tree, critic_lib.CriticConfig]:
  """The parameters and the shape of a reward model.

  It is an export of this package, or a classifier of transformers. Its shape
  may differ from the policy's; its tokenizer must not.

  Args:
    c: the config.
    name: a directory or, of a classifier, a hub id.
    field: of the config, which holds the name.
    model: of the run; its mesh are the devices that score.
    tok: the tokenizer.
    say: shows a line.

  Raises:
    RunError: the export is missing or has another tokenizer or task.
    ConfigError: likewise for a classifier.
  """
  if classifier.is_classifier(name):
    return classifier.load(c, name, field, model=model, tok=tok)
  equal = ("tokenizer", "task.name")
  checkpoints, step = other_checkpoint(
      c, field, name, equal, "--stage=reward_model", say
  )
  theirs = config_lib.unflat(checkpoints.host(step)["config"])
  theirs.mesh = c.mesh  # of the devices that score
  trunk = model_config(theirs, vocab=model.cfg.vocab, tokens=model.cfg.tokens)
  cfg = critic_config(theirs, trunk)
  table = critic_lib.table(cfg)
  like = parameters.abstract(table, parameters.shardings(table, model.mesh))
  return checkpoints.restore(step, like), cfg


def check_classifiers(c, *, model: Model, tok: Any) -> None:
  """Refuses unusable classifiers that the config names, before any work.

  Raises:
    ConfigError, RunError: names the field and the remedy.
  """
  for term in reward_terms.terms(c.reward.functions):
    for name in reward_terms.models_of(term.name):
      if classifier.is_classifier(name):
        classifier.find(c, name, "reward.functions", tok)
  if c.critic.init == "exported" and classifier.is_classifier(c.critic.path):
    _critic_source(c, model, tok)


def _critic_source(c, model: Model, tok: Any) -> hf.Source:
  """The classifier in critic.path, if it has the shape of the critic."""
  source = classifier.find(c, c.critic.path, "critic.path", tok)
  theirs, ours = (
      {f"model.{name}": x for name, x in hf.architecture.fields(cfg).items()}
      for cfg in (source.cfg, model.cfg)
  )
  del ours["model.tied"]  # a critic has no LM head
  ours["critic.head.name"] = model.critic_cfg.head
  theirs["critic.head.name"] = "scalar"
  require_equal(source.label, ours, theirs)
  return source


def other_checkpoint(
    c,
    field: str,
    path: str | pathlib.Path,
    equal: tuple[str, ...],
    command: str,
    say: Say,
) -> tuple[Checkpoints, int]:
  """The checkpoints that another run wrote, and the newest complete step.

  Args:
    c: the config of this run.
    field: the field that names the other run, for messages.
    path: directory of the checkpoints.
    equal: prefixes of the fields that must agree in both configs.
    command: the command that makes a checkpoint of this kind.
    say: shows a line.

  Raises:
    ConfigError: its critic has a head of code that this config does not name.
    RunError: there is none, or a field differs.
  """
  checkpoints = Checkpoints(pathlib.Path(path))
  step = checkpoints.newest(say)
  if step is None:
    raise RunError(
        f"{field} = {path}: holds no complete checkpoint; {command} writes one"
    )
  there = checkpoints.host(step)["config"]
  head = "critic.head.name"
  if there.get(head, c.critic.head.name) != c.critic.head.name:
    named_code.refuse_code(f"{field} = {path}", {head: there[head]})
  require_equal(f"{field} = {path}", config_lib.flat(c), there, equal)
  return checkpoints, step


def require_equal(
    where: str,
    here: dict[str, Any],
    there: dict[str, Any],
    prefixes: tuple[str, ...] = ("",),
) -> None:
  """Refuses the work of another config, if fields that matter differ.

  Args:
    where: the field that names it, and its value.
    here: fields of this run.
    there: fields of the other run.
    prefixes: of the fields that matter; by default all do.

  Raises:
    RunError: names the first field that differs, and both values.
  """
  free = resume_rules.free_fields()
  for name, value in here.items():
    matters = name.startswith(prefixes) and name not in free
    newer = fields.FIELDS.get(name)  # than the other run, perhaps
    other = there.get(name, newer and newer.default)
    moved = resume_rules.equal_content(name, there, here)
    if matters and other != value and not moved:
      raise RunError(
          f"{where}: {name} is {other!r} there and {value!r} here; make them"
          " equal"
      )
