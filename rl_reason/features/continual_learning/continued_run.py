"""The part of a run that continues another one: its state, and forgetting."""

import pathlib
from collections.abc import Callable
from typing import Any

import jax
import optax

from rl_reason.base import config as config_lib, feature, resume_rules
from rl_reason.base.errors import RunError
from rl_reason.base.fields import FIELDS
from rl_reason.base.structs import TrainState, Tree
from rl_reason.checkpointing.rl_state import RLState
from rl_reason.checks import config_facts
from rl_reason.features.continual_learning import forgetting
from rl_reason.stages import initial_state, optimizers, trained_parameters
from rl_reason.stages.model import Model, critic_config

# Fields that give the arrays of a policy their shapes and their meaning.
EQUAL = ("model.", "tokenizer")


class ContinuedRun(feature.Part):
  """Starts from the last state of config.rl.init; measures forgetting.

  Args:
    c: the config.
    loop: what RL has.
  """

  def __init__(self, c, loop: feature.Loop):
    self._c, self._session, self._frozen = c, loop.session, loop.frozen
    self._say = loop.session.output.display.say

  def begin(self, state: RLState) -> None:
    """Puts the last state of the run before into the state of step 0."""
    model = self._session.model
    carry_over(self._c, state, self._frozen, model=model, say=self._say)

  def evaluated(self, values: dict[str, Any], step: int) -> dict[str, float]:
    """The forgetting of each set; also says it."""
    c, workdir = self._c, self._session.output.workdir
    known = forgetting.best_before(c.rl.init, workdir)
    found = forgetting.measured(values, known, c.evaluate.mean_of)
    for line in forgetting.texts(found, values):
      self._say(f"{line} at step {step}")
    return found


def carry_over(
    c,
    state: RLState,
    frozen: Tree | None,
    *,
    model: Model,
    say: Callable[[str], None],
) -> None:
  """Puts the last state of the run of config.rl.init into a state of step 0.

  Those are the parameters of policy and critic, and, with rl.init_optimizer,
  the moments of their optimizers. All else is new: the stream of prompts,
  coefficients that moved, groups that were kept, counters, and the schedule of
  the learning rate, which begins again.

  Args:
    c: the config.
    state: of step 0; its policy and its critic are replaced.
    frozen: parameters of this run beside those that are learned, or None.
    model: shapes and devices.
    say: shows a line.

  Raises:
    RunError: that run is not complete, or its networks or optimizers have other
      shapes.
  """
  where = f"rl.init = {c.rl.init}"
  checkpoints, step = trained_parameters.other_checkpoint(
      c,
      "rl.init",
      pathlib.Path(c.rl.init) / "checkpoints" / "rl",
      EQUAL + (*feature.marked("policy"),),
      "--stage=all",
      say,
  )
  host = checkpoints.host(step)
  theirs = config_lib.unflat(resume_rules.complete(host["config"]))
  if step != theirs.rl.steps or not host["evaluated"]:
    raise RunError(
        f"{where}: RL is at step {step} of {theirs.rl.steps} there; finish that"
        " run first"
    )
  optimizers.learned(c).check(host, frozen)
  theirs.mesh = c.mesh
  critic = critic_config(theirs, model.cfg)
  like = initial_state.abstract_arrays(
      theirs, Model(model.cfg, critic, model.mesh)
  )
  arrays = checkpoints.restore(step, like)
  networks = ["policy"]
  state.policy = _continued(c, where, "policy", state.policy, arrays["policy"])
  # Where either run has no critic, this run keeps what it has.
  if state.critic is not None and arrays["critic"] is not None:
    networks.append("critic")
    state.critic = _continued(
        c, where, "critic", state.critic, arrays["critic"]
    )
  if config_facts.compares_with_start(c):
    remedy = f"; kl.reference = {c.rl.init!r} compares with that policy"
    say(
        f"kl.kind = {c.kl.kind!r}: the KL compares with its SFT policy, and not"
        f" with the policy that {where} continues"
        + remedy * ("kl.reference" in FIELDS)  # of a feature, which may be gone
    )
  kept = "with" if c.rl.init_optimizer else "without"
  say(
      f"{where}: {' and '.join(networks)} of its step {step}, {kept} the state"
      " of the optimizer"
  )


def _continued(
    c, where: str, name: str, own: TrainState, other: TrainState
) -> TrainState:
  """A network of step 0 with the parameters, and the moments, of another."""
  if _shapes(own.params) != _shapes(other.params):
    shared = feature.marked("policy")
    raise RunError(
        f"{where}: the {name} of that run has another shape; make model.*,"
        f" {''.join(f'{x}*, ' for x in shared)}tokenizer (or task.name"
        " without one) and critic.head.* equal"
    )
  if not c.rl.init_optimizer:
    return own.replace(params=other.params)
  if _shapes(own.opt_state) != _shapes(other.opt_state):
    raise RunError(
        f"{where}: the optimizer of its {name} is another one (optimizer.name,"
        " freeze, clip_norm): set rl.init_optimizer = False"
    )
  opt_state = with_schedule_of(own.opt_state, other.opt_state)
  return own.replace(params=other.params, opt_state=opt_state)


def with_schedule_of(own: Tree, other: Tree) -> Tree:
  """The state `other` of an optimizer, whose schedule is where `own` is.

  Moments, and the count by which Adam corrects their bias, are of `other`.
  """

  def is_schedule(x: Any) -> bool:
    return isinstance(x, optax.ScaleByScheduleState)

  return jax.tree.map(
      lambda mine, theirs: mine if is_schedule(mine) else theirs,
      own,
      other,
      is_leaf=is_schedule,
  )


def _shapes(tree: Tree) -> tuple[str, list[tuple[int, ...]]]:
  return str(jax.tree.structure(tree)), [x.shape for x in jax.tree.leaves(tree)]
